"""What attention scores pairs by: mechanisms, which add, multiply, and pass through activations."""

from .base import Mechanism, Score, Sizes
from .edges import Edge
from .inner import Bilinear, Cosine, Dot
from .outer import MLP, Additive, Biaffine, Perceptron
from .positions import Relative, Tap, Uniform

__all__ = [
    "MLP",
    "Additive",
    "Biaffine",
    "Bilinear",
    "Cosine",
    "Dot",
    "Edge",
    "Mechanism",
    "Perceptron",
    "Relative",
    "Score",
    "Sizes",
    "Tap",
    "Uniform",
]
