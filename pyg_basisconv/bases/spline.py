"""B-splines of the features of edges."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

import torch
from torch import Tensor

from ..basis import BoundBasis
from ..cache import IdentityCache
from ..edge_set import EdgeSet
from ..errors import check_count, reject
from ..kernels.grids import Ints
from ..mechanisms.base import upcast
from ..portable import any_seen
from ..printing import arguments
from ..typed_edges import TypedEdges
from .edge_functions import EdgeFunctions, Norm

# The pieces of the uniform B-spline of each degree over one interval, as polynomials in the place v within it.
PIECES: dict[int, list[list[float]]] = {
    1: [[1, -1], [0, 1]],
    2: [[1 / 2, -1, 1 / 2], [1 / 2, 1, -1], [0, 0, 1 / 2]],
    3: [[1 / 6, -1 / 2, 1 / 2, -1 / 6], [2 / 3, 0, -1, 1 / 2], [1 / 6, 1 / 2, 1 / 2, -1 / 2], [0, 0, 0, 1 / 6]],
}


class Spline(EdgeFunctions):
    r"""Products of B-splines of the features of edges, :math:`\varphi_k(z) = \prod_d B_{k_d}(z_d)`, for z in [0, 1].

    On each axis of length s, z is at :math:`v = z (s - degree)`, or :math:`z s` if the axis is closed, between knots;
    the splines that are not zero there are those from :math:`\lfloor v \rfloor` on, degree + 1 of them, modulo s. So of
    the K = prod(kernel_size) members (degree + 1)^D are not zero at an edge, and no others are held. The first axis is
    the fastest in the order of members. (SplineCNN, Fey et al., arXiv:1711.08920, as in PyG's `SplineConv`.)

    Args:
        kernel_size: s, for each of D axes.
        degree: 1, 2 or 3.
        is_open: False for an axis whose ends meet, such as an angle; one for all axes, or for each.
        norm: 'mean' to divide by the number of edges into n.

    Raises:
        ValueError: for features outside of [0, 1], with the number of the edge.

    >>> import torch
    >>> edge_index, z = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0.25], [1.]])
    >>> Spline(3).bind(edge_index, edge_attr=z).to_coo().to_dense()[:, :2, 2]  # 0.25 is halfway from knot 0 to 1
    tensor([[0.5000, 0.0000],
            [0.5000, 0.0000],
            [0.0000, 1.0000]])
    """

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        degree: int = 1,
        is_open: bool | Sequence[bool] = True,
        norm: Norm = None,
    ) -> None:
        sizes: Ints = tuple(kernel_size) if isinstance(kernel_size, tuple | list) else (kernel_size,)  # type: ignore[assignment]
        if not sizes:
            reject("kernel_size", "one size for each axis", kernel_size, "such as (5, 5)")
        check_count("degree", degree, most=max(PIECES))
        each: Any = tuple(is_open) if isinstance(is_open, tuple | list) else (is_open,) * len(sizes)
        if len(each) != len(sizes) or not all(isinstance(one, bool) for one in each):
            reject("is_open", "True or False, or one of them for each axis", repr(is_open), "such as (True, False)")
        for size, is_one_open in zip(sizes, each, strict=True):
            check_count("kernel_size", size, degree + 1 if is_one_open else 1)
        super().__init__(prod(sizes), len(sizes), norm)
        self.kernel_size, self.degree, self.is_open = sizes, degree, each[0] if len(set(each)) == 1 else each
        self.intervals = [size - degree * one for size, one in zip(sizes, each, strict=True)]

    def family(self, s: EdgeSet, z: Tensor, weight: Tensor | None, dtype: torch.dtype) -> BoundBasis:
        # What the features alone determine is kept for as long as they stay; of what learns, the indices. The family is
        # not kept: it refers to the features, which would stay with it.
        kept: IdentityCache = s.memo("splines", IdentityCache)
        shape = self.kernel_size, self.degree, self.is_open
        edges = kept.get((z.detach(),), shape, lambda: self._edges(s, z.detach()))

        def values() -> Tensor:
            found = self._values(upcast(z))
            return (found if weight is None else found * weight.unsqueeze(1)).flatten().to(dtype)

        return TypedEdges(edges, kept.get((z, weight), (shape, dtype), values), dtype)

    def _places(self, z: Tensor) -> Tensor:
        """(E, D) where the features are, counted in intervals between knots."""
        return z * torch.tensor(self.intervals, dtype=z.dtype, device=z.device)

    def _edges(self, s: EdgeSet, z: Tensor) -> EdgeSet:
        """An edge for each spline that is not zero at one: E (degree + 1)^D of them, those of an edge side by side."""
        outside = ~((z >= 0) & (z <= 1)).all(1)
        if any_seen(outside):
            e = int(outside.nonzero()[0])
            reject("edge_attr", "numbers from 0 to 1", f"{z[e].tolist()} of edge {e}", "scale them, or clamp(0, 1)")
        first = self._places(upcast(z)).floor().long()  # (E, D)
        member = torch.zeros(z.shape[0], 1, dtype=torch.long, device=z.device)
        offsets, steps = torch.arange(self.degree + 1, device=z.device), accumulate((1, *self.kernel_size), mul)
        for d, (size, step) in enumerate(zip(self.kernel_size, steps, strict=False)):
            along = (first[:, d : d + 1] + offsets) % size * step  # (E, degree + 1)
            member = (member.unsqueeze(1) + along.unsqueeze(2)).flatten(1)
        S = member.shape[1]
        source, target = (end.repeat_interleave(S) for end in (s.source, s.target))
        return EdgeSet(self.K, s.M, s.N, member.flatten(), source, target)

    def _values(self, z: Tensor) -> Tensor:
        """(E, (degree + 1)^D) the splines that are not zero, in the order of `_edges`."""
        v = self._places(z)
        v = v - v.detach().floor()  # (E, D)
        powers = torch.stack([v**i for i in range(self.degree + 1)], -1)  # (E, D, degree + 1)
        pieces = torch.tensor(PIECES[self.degree], dtype=z.dtype, device=z.device)
        along = powers @ pieces.t()  # (E, D, degree + 1)
        values = z.new_ones(z.shape[0], 1)
        for d in range(len(self.kernel_size)):
            values = (values.unsqueeze(1) * along[:, d].unsqueeze(2)).flatten(1)
        return values

    def values(self, z: Tensor) -> Tensor:
        """(E, D) -> (E, K) all splines, of which most are zero."""
        nodes = torch.arange(len(z), device=z.device)
        edges, values = self._edges(EdgeSet(1, len(z), len(z), None, nodes, nodes), z), self._values(z)
        place = edges.source.long() * self.K + edges.kinds.long()
        return z.new_zeros(len(z) * self.K).index_add(0, place, values.flatten()).view(-1, self.K)

    def extra_repr(self) -> str:
        sizes = self.kernel_size if len(self.kernel_size) > 1 else self.kernel_size[0]
        return arguments(self, sizes, degree=1, is_open=True, norm=None)
