"""What follows from one formula: layers composed, decomposed, and looked into."""

from .compose import Comparison, compare, compose

__all__ = ["Comparison", "compare", "compose"]
