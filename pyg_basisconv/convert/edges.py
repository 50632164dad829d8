"""The edges of a call to a layer with attention, with loops, and their weights in PyG's order."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import SparseTensor, torch_sparse
from torch_geometric.utils import add_self_loops, is_torch_sparse_tensor, remove_self_loops
from torch_geometric.utils.sparse import set_sparse_value

from ..basis import BoundBasis
from ..cache import IdentityCache, once
from ..errors import reject
from ..graph import Counts
from ..kernels.pattern import tally
from ..layouts import layout
from ..reading import check_edges, read_graph
from .layers import coalesced, pair

_EDGES = IdentityCache()


class CallEdges(NamedTuple):
    """The edges of a call.

    edge_index: (2, E), in the order in which PyG returns their weights.
    values: of a sparse layout.
    matrix: the graph in its own sparse layout, with the loops that were added.
    kept: the numbers of the given edges that are no loops, where loops replaced those.
    """

    edge_index: Tensor
    values: Tensor | None = None
    matrix: Any = None
    kept: Tensor | None = None


def read_edges(
    edge_index: Any, flow: str = "source_to_target", loops: int | None = None, size: Counts = (None, None)
) -> CallEdges:
    """The edges of a call, in any of PyG's layouts, with loops for so many nodes in the place of their own, or as they
    are; computed once for a graph. A sparse matrix has to have the given numbers of sources and targets.
    """
    if type(edge_index) is Tensor and edge_index.layout is torch.strided and not edge_index.is_nested:
        return CallEdges(edge_index) if loops is None else _looped(edge_index, loops)
    if isinstance(edge_index, Tensor) and edge_index.layout is torch.sparse_coo:
        edge_index = coalesced(edge_index)
    given: Any = layout(edge_index, flow, features=True)
    if given.ends is None:
        check_edges(edge_index)  # which rejects it
    if not given.kind:
        (plain,) = given.tensors
        return CallEdges(plain) if loops is None else _looped(plain, loops)
    for name, wanted, found in zip(("sources", "targets"), size, given.shape, strict=True):
        if wanted is not None and wanted != found:
            fix = "pass the transposed adjacency of shape (N, M)"
            reject("edge_index", f"a sparse matrix with {wanted} {name}, as x has rows", found, fix)
    if loops is not None:
        return _EDGES.get(given.tensors, (given.form, "loops"), lambda: _matrix_with_loops(edge_index))
    index = _EDGES.get(given.indices, given.form, lambda: torch.stack(given.ends()))
    return CallEdges(index, given.values, edge_index)


def is_matrix(edge_index: Any) -> bool:
    """Whether the edges are a transposed adjacency matrix in a sparse layout."""
    return isinstance(edge_index, SparseTensor) or is_torch_sparse_tensor(edge_index)


def with_features(call: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call whose adjacency matrix has the features of edges as its values, as PyG reads them."""
    edges = call["edge_index"]
    if not is_matrix(edges):
        return call
    if call.get("edge_attr") is not None:
        fix = "give the edges in their order, or the features as the values of the matrix"
        reject("edge_index", "(2, E) beside edge_attr", type(edges).__name__, fix)
    source, target = pair(call["x"])
    read = read_edges(edges, size=(source.shape[-2], None if target is None else target.shape[-2]))
    sized = {} if isinstance(call["x"], Tensor) or call.get("size") is not None else {"size": sizes_of(edges)}
    return {**call, **sized, "edge_index": read.edge_index, "edge_attr": read.values}


def features_of(given: Tensor | None, values: Tensor | None) -> Tensor | None:
    """(E, R) the features of edges that a call has, or else the values of a sparse matrix, which PyG takes for them
    unless they are single numbers.
    """
    if given is None:
        return None if values is None or values.dim() == 1 else values
    return given.unsqueeze(-1) if given.dim() == 1 else given


def sizes_of(matrix: Any) -> tuple[int, int]:
    """The numbers of sources and targets of a transposed adjacency matrix."""
    return matrix.size(1), matrix.size(0)


def _matrix_with_loops(matrix: Any) -> CallEdges:
    """The adjacency matrix with one loop for each node in the place of its own."""
    if isinstance(matrix, SparseTensor):
        values = matrix.storage.value()
        if values is not None and values.dim() > 1:
            fix = "drop them with .set_value(None)"
            reject("edge_index", "a SparseTensor with one value per edge where loops are added", "several", fix)
        looped = torch_sparse.set_diag(matrix)
    else:
        looped = add_self_loops(remove_self_loops(matrix)[0])[0]
    found: Any = layout(looped, features=True)
    return CallEdges(torch.stack(found.ends()), found.values, looped)


def _looped(edges: Tensor, count: int) -> CallEdges:
    """See `_with_loops`; computed once, which `once` would take longer to find out."""
    return _EDGES.get((edges,), count, lambda: _with_loops(edges, count))


def _with_loops(edges: Tensor, count: int) -> CallEdges:
    """The edges without their loops, followed by one loop for each node."""
    if edges.dtype is not torch.int64 or edges.dim() != 2 or edges.shape[0] != 2:  # others need no second look
        check_edges(edges)
    nodes = torch.arange(count, dtype=edges.dtype, device=edges.device)
    kept = (edges[0] != edges[1]).nonzero().squeeze(1)
    return CallEdges(torch.cat([edges.index_select(1, kept), nodes.expand(2, count)], 1), kept=kept)


def count_targets(edge_index: Any, source: Tensor) -> int:
    """The number of targets, where neither features nor a size tell it."""
    return int(sizes_of(edge_index)[1] if is_matrix(edge_index) else source.shape[-2])


@once
def count_edges(edges: Tensor, N: int, dtype: torch.dtype, flow: str, kind: Tensor | None = None, K: int = 1) -> Tensor:
    """(N, K) the number of edges of each type into each target."""
    into = targets_of(edges, flow).long()
    return tally(into if kind is None else into * K + kind, N * K).to(dtype).view(N, K)


def sums_of(A: BoundBasis, x: Tensor) -> Tensor:
    r"""(K, \*, N, 1) the sums of the entries into each target, :math:`A_k^\top 1`, for features of the sources x."""
    return A.expand(torch.ones(*x.shape[:-1], 1, dtype=x.dtype, device=x.device))


def counts(conv: Any, x: Tensor, edges: Tensor, size: tuple[int, int], kind: Tensor | None = None) -> Tensor:
    """(N, K) the number of edges of each type into each target, or 1 where the layer takes their mean; of either, what
    the mask of an explainer leaves.
    """
    if conv.explain:
        graph = read_graph(edges, None, kind, size=size, dtype=x.dtype, device=x.device, flow=conv.flow)
        return sums_of(conv.basis.on(conv.masked(graph)), x.new_empty(size[0], 1)).squeeze(-1).t()
    types = () if kind is None else (kind, conv.basis.K)
    count = count_edges(edges, size[1], x.dtype, conv.flow, *types)
    return count.clamp(max=1) if conv.basis.norm == "mean" else count


def targets_of(edges: Tensor, flow: str) -> Tensor:
    """(E,) the target of each edge."""
    return edges[1 if flow == "source_to_target" else 0]


def as_returned(edges: CallEdges, given: Any, alpha: Tensor) -> Any:
    """The graph and the weights of its edges, as PyG returns them; cached tensors are copied."""
    index, matrix = edges.edge_index, edges.matrix
    if matrix is None:
        return index if index is given else index.clone(), alpha
    held = matrix if matrix is given else matrix.clone()
    if isinstance(held, SparseTensor):
        return held.set_value(alpha, layout="coo")
    return set_sparse_value(held, alpha), alpha
