"""Sorts of walks over a graph's relations: their syntax, and configuration files."""

from .grammar import Sort, Step, parse
from .vocabulary import Vocabulary

__all__ = ["Sort", "Step", "Vocabulary", "parse"]
