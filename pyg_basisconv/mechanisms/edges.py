"""Mechanisms that read the features of edges."""

from math import prod

from torch import Tensor

from ..content import Content
from ..entries import Entries
from ..errors import reject
from ..kernels import Affine, contracted
from ..printing import arguments
from ..theta.base import param
from .base import Mechanism, Score, Sizes, check_width, entry_score, per_copy, upcast
from .rows import EdgeTerms, TermRows


def edge_features(content: Content, dim: int) -> Tensor:
    """The edges' features, checked."""
    edge_attr = content.edge_features
    if edge_attr.shape[-1] != dim:
        reject("edge_attr", f"{dim} features (edge_dim) on the last axis", edge_attr.shape[-1], "correct one of them")
    return edge_attr


def edge_rows(content: Content, entries: Entries, dim: int) -> Tensor:
    """The same at the entries, by target, (E, R) or (*, E, R)."""
    edge_features(content, dim)
    return upcast(content.edge_rows_at(entries))


def rows_of_copies(content: Content, entries: Entries, dim: int) -> Tensor:
    """The same for all graphs of a batch, one after the other: (B E, R)."""
    rows = edge_rows(content, entries, dim)
    return rows.repeat(prod(content.batch), 1) if rows.dim() == 2 else rows.flatten(0, -2)


class Edge(Mechanism):
    r"""A term of the edge, :math:`w_k \cdot z_{mn}`, of its features z, `edge_attr`.

    Args:
        dim: R, the width of z.
        inner: D, for w as the product of a matrix R x D and a vector, as in `GATConv`; None for a free w.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases
    >>> conv = BasisConv(8, 6, bases.Attention(2, Edge(3), bases.Adjacency()))
    >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]]), edge_attr=torch.randn(2, 3)).shape
    torch.Size([3, 6])
    """

    def __init__(self, dim: int, inner: int | None = None) -> None:
        super().__init__()
        check_width("dim", dim)
        if inner is not None:
            check_width("inner", inner)
        self.edge_dim, self.inner = dim, inner

    def make(self, sizes: Sizes) -> None:
        if self.inner is None:
            self.parameter("weight", sizes.heads, self.edge_dim)
        else:
            self.parameter("weight", sizes.heads, self.edge_dim, self.inner)
            self.parameter("out", sizes.heads, self.inner)

    def score(self, content: Content, entries: Entries) -> Score:
        weight = param(self, "weight")
        map = Affine(weight) if self.inner is None else contracted(weight, param(self, "out"))  # (H, R)
        found = EdgeTerms(content, edge_rows(content, entries, self.edge_dim), map)
        return TermRows(entry=found, batch=content.batch)

    def extra_repr(self) -> str:
        return arguments(self, self.edge_dim, inner=None)


class Feature(Mechanism):
    """One feature of the edge, unchanged."""

    def __init__(self, dim: int, index: int) -> None:
        super().__init__()
        self.edge_dim, self.index = dim, index

    def score(self, content: Content, entries: Entries) -> Score:
        assert self.sizes is not None
        found = edge_rows(content, entries, self.edge_dim)[..., self.index]
        found = found.expand(self.sizes.heads, *found.shape)
        return entry_score(found if found.dim() > 2 else per_copy(found, content))
