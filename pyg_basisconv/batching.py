"""Joins bound bases of several graphs to one of their disjoint union."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .bases.bound_walks import BoundWalks
from .bases.concat import BoundConcat
from .bases.identity import BoundIdentity
from .bases.mix import BoundMix
from .bases.polynomial import BoundPolynomial
from .bases.product import BoundProduct
from .basis import BoundBasis
from .bound import Derived
from .edge_set import EdgeSet, disjoint
from .errors import reject
from .typed_edges import SharedEdges, TypedEdges

__all__ = ["block_diagonal"]


def block_diagonal(bounds: Sequence[BoundBasis]) -> BoundBasis:
    r"""The family of a batch, from the families of its graphs: :math:`A_k = diag(A_k^{(1)}, A_k^{(2)}, \ldots)`.

    A graph that is bound once need not be normalised again in each batch. Families of the same form keep it: a
    polynomial of block-diagonal matrices is block-diagonal, and so are sums, products, mixtures and walks. All others
    become lists of edges. PyG's `DataLoader` collates bound bases that are attributes of data to a list, see below.

    Args:
        bounds: families with the same K, dtype and device, of any sizes, in the order of the graphs in the batch.

    Shapes:
        - result: K matrices, :math:`\sum_i M_i \times \sum_i N_i`

    Raises:
        ValueError: for families that do not fit, and for one that was computed from a batch of features.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from torch_geometric.loader import DataLoader
    >>> from pyg_basisconv import BasisConv, bases
    >>> chebyshev, graphs = bases.Chebyshev(3), []
    >>> for N in (3, 5):
    ...     edge_index = torch.randint(N, (2, 2 * N))
    ...     graphs.append(Data(x=torch.randn(N, 8), bound=chebyshev.bind(edge_index, size=N)))
    >>> batch = next(iter(DataLoader(graphs, batch_size=2)))
    >>> A = block_diagonal(batch.bound)
    >>> A
    BoundPolynomial(K=3, M=8, N=8, dtype=torch.float32)
    >>> BasisConv(8, 4, chebyshev)(batch.x, A).shape
    torch.Size([8, 4])
    """
    several = list(bounds) if isinstance(bounds, Sequence) else []
    if not several or not all(isinstance(one, BoundBasis) for one in several):
        got = [type(one).__name__ for one in several] or type(bounds).__name__
        reject("bounds", "a list of bound bases, at least one", got, "bind the basis to each graph")
    for name in ("K", "dtype", "device"):
        found = {getattr(one, name): None for one in several}
        if len(found) > 1:
            got = ", ".join(map(str, found))
            reject("bounds", f"families of one {name}", got, "bind one basis to all graphs, in one dtype")
    some = next((one for one in several if one.batch), None)
    if some is not None:
        fix = "call the layer on a batch of graphs, or take the families of its samples apart with A[i]"
        reject("bounds", "families of one graph each", f"one of a batch of features {some.batch}", fix)
    grad = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad):  # see BoundBasis.explicit
        return several[0] if len(several) == 1 else _joined(several)


def _joined(several: Sequence[Any]) -> BoundBasis:
    """Two or more families that fit as one, in the form that they share."""
    for kind, key, join in _KINDS:
        if all(type(one) is kind for one in several) and len({key(one) for one in several}) == 1:
            return join(several)
    return _as_edges(several)


def _derived(several: Sequence[Derived]) -> BoundBasis:
    return several[0].remake([_joined(parts) for parts in zip(*(one.parts for one in several), strict=True)])


def _identity(several: Sequence[BoundIdentity]) -> BoundBasis:
    return BoundIdentity(sum(one.M for one in several), several[0].dtype, several[0].device)


def _shared(several: Sequence[SharedEdges]) -> BoundBasis:
    weight = torch.cat([one.weight for one in several])
    sets = [one.edge_set for one in several]
    return SharedEdges(EdgeSet(1, *_sizes(several), None, *_ends(several, sets)), weight, several[0].dtype)


def _as_edges(several: Sequence[BoundBasis]) -> BoundBasis:
    lists = [one.edges() for one in several]
    K = several[0].K
    kind = None if K == 1 else torch.cat([one.type.long() for one in lists])
    ones = all(one.of_ones for one in several)
    weight = None if ones else torch.cat([one.weight for one in lists])
    return TypedEdges(EdgeSet(K, *_sizes(several), kind, *_ends(several, lists)), weight, several[0].dtype)


def _sizes(several: Iterable[BoundBasis]) -> tuple[int, int]:
    """(M, N) of the union."""
    M, N = zip(*((one.M, one.N) for one in several), strict=True)
    return sum(M), sum(N)


def _ends(several: Sequence[BoundBasis], edges: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """The sources and the targets of edges, (E,) each."""
    source = disjoint([one.source for one in edges], [one.M for one in several])
    return source, disjoint([one.target for one in edges], [one.N for one in several])


# The kinds that keep their form: what has to be equal for families to be joined, and the function that joins them.
_KINDS: list[tuple[type[BoundBasis], Callable[[Any], Hashable], Callable[[Any], BoundBasis]]] = [
    (BoundIdentity, lambda _: None, _identity),
    (BoundConcat, lambda one: tuple(part.K for part in one.parts), _derived),
    (BoundPolynomial, lambda one: (one.K, one.a, one.c, *one.steps), _derived),
    (BoundProduct, lambda one: (one.first.K, one.second.K), _derived),
    (BoundMix, lambda one: tuple(map(tuple, one.coefficients)), _derived),
    (BoundWalks, lambda one: one.union_key, lambda several: several[0].union(*several[1:])),
    (SharedEdges, lambda _: None, _shared),
]
