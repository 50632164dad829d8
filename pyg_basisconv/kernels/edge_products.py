"""Inner products of keys and queries to which each entry adds something of its own, for a few entries."""

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import Tensor

from .activations import ActivationCode
from .multihead import group_sums, scale_rows, sum_channels, to_heads
from .op import add_optional, recorded
from .pattern import Pattern
from .scoring import PRODUCTS, ScoreForm, ScoreGrad, Tensors, Valued


def _at_entries(pattern: Pattern, sides: Tensors) -> tuple[Tensor, Tensor]:
    """(E, c D) both factors at each entry, in memory of their own and in the more precise of their dtypes."""
    key, query, of_key, of_query = cast(tuple[Tensor, ...], sides)
    source, target = pattern.ends
    return add_optional(key.index_select(0, source), of_key), add_optional(query.index_select(0, target), of_query)


def _edge_products(c: int, pattern: Pattern, *sides: Tensor | None) -> tuple[Tensor, tuple[()]]:
    """The sums at the entries are made again for the derivative, and not kept."""
    left, right = _at_entries(pattern, sides)
    return sum_channels(left.mul_(right), c), ()


def _derivative(grad: Tensor, needs: Sequence[bool], pattern: Pattern, sides: Tensors) -> tuple[Tensor | None, ...]:
    """The gradients of keys, queries, and what is added to both, that are needed."""
    left, right = _at_entries(pattern, sides)
    d_left, d_right = scale_rows(right, grad), scale_rows(left, grad)
    return (
        group_sums(d_left, pattern.at_source) if needs[0] else None,
        group_sums(d_right, pattern.at_target) if needs[1] else None,
        d_left if needs[2] else None,
        d_right if needs[3] else None,
    )


def _plain(c: int, pattern: Pattern, *sides: Tensor | None) -> Tensor:
    left, right = _at_entries(pattern, sides)
    return (left * right).unflatten(1, (c, -1)).sum(-1)


_record = recorded(2, _edge_products, lambda g: _derivative(g.grad, g.needs, g.fixed[1], g.tensors), _plain)


def edge_products(c: int, pattern: Pattern, *sides: Tensor | None) -> Tensor:
    r"""The scores :math:`(k_m + a_{mn}) \cdot (q_n + b_{mn})` of c heads. Both factors are stored at all entries.

    From k, (M, c D); q, (N, c D); a and b, (E, c D) by target, or None; to (E, c) by target.

    >>> import torch
    >>> pattern = Pattern(torch.tensor([0, 1]), torch.tensor([0, 0]), 2, 1)
    >>> key, query, of_key = torch.tensor([[1.], [2.]]), torch.tensor([[10.]]), torch.tensor([[0.], [3.]])
    >>> edge_products(1, pattern, key, query, of_key, None)
    tensor([[10.],
            [50.]])
    """
    return _record(c, pattern, *sides)


class EdgeProductScores(NamedTuple):
    """Inner products of keys of sources, (M, c D), and queries of targets, (N, c D), where entries add to the keys what
    a map (c, F, D) makes of their features, (E, F) by target.

    The tensors are keys, queries, features and the map.
    """

    def score(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> tuple[Tensor, tuple[Tensor, ...]]:
        key, query, *of_key = cast(tuple[Tensor, ...], tensors)
        return _edge_products(c, pattern, key, query, Valued(*of_key).tensor, None)

    def backward(self, given: ScoreGrad) -> Tensors:
        key, query, features, map = cast(tuple[Tensor, ...], given.tensors)
        *of_ends, of_features, of_map = given.needs
        sides = key, query, Valued(features, map).tensor, None
        needs = *of_ends, of_features or of_map, False
        d_key, d_query, d_entry, _ = _derivative(given.grad, needs, given.pattern, sides)
        if d_entry is None:
            return d_key, d_query, None, None
        by_heads = to_heads(d_entry, len(map))  # (c, E, D)
        d_features = (by_heads @ map.transpose(1, 2)).sum(0) if of_features else None
        return d_key, d_query, d_features, features.t() @ by_heads if of_map else None

    def plain(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> Tensor:
        key, query, *of_key = cast(tuple[Tensor, ...], tensors)
        return _plain(c, pattern, key, query, Valued(*of_key).tensor, None).t()

    def form(self, tensors: Tensors, c: int) -> ScoreForm | None:
        return ScoreForm(PRODUCTS, cast(Tensor, tensors[0]).shape[1] // c, ActivationCode(0), slice(0, 4))
