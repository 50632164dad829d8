"""What attention scores pairs by: mechanisms, which add, multiply, and pass through activations."""

from .base import Mechanism, Score, Sizes, entry_score, node_score
from .edges import Edge
from .inner import Bilinear, Cosine, Dot, inner_score
from .outer import MLP, Additive, Biaffine, Perceptron
from .positions import Relative, Tap, Uniform

__all__ = ["MLP", "Additive", "Biaffine", "Bilinear", "Cosine", "Dot", "Edge", "Mechanism", "Perceptron", "Relative"]
__all__ += ["Score", "Sizes", "Tap", "Uniform", "entry_score", "inner_score", "node_score"]
