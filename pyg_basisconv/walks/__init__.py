"""Sorts of walks over a graph's relations: how they are written, and files that configure them."""

from .grammar import Sort, Step, parse
from .vocabulary import Vocabulary

__all__ = ["Sort", "Step", "Vocabulary", "parse"]
