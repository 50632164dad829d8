"""The edges of a call of a layer with attention, and their weights, as PyG has them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor, torch_sparse
from torch_geometric.utils import add_self_loops, is_torch_sparse_tensor, remove_self_loops, to_edge_index
from torch_geometric.utils.sparse import set_sparse_value

from ..cache import IdentityCache
from ..errors import reject
from ..layouts import layout

_EDGES = IdentityCache()


class Ends(NamedTuple):
    """The edges of a call, (2, E), in the order in which PyG returns their weights.

    values: of a sparse layout; held: the graph in its own layout, with the loops, or None where none were added.
    """

    edges: Tensor
    values: Tensor | None = None
    held: Any = None


def by_edge(A: Any, edges: int) -> Tensor:
    """(E, K) the weight that each member gives to each edge, in the order of the edges."""
    kind, edge, _, weight = A.incidence.edges()
    place = edge.long() * A.K + kind.long()
    return weight.new_zeros(edges * A.K).index_put((place,), weight).view(edges, A.K)


def read_ends(edge_index: Any, loops: bool, count: int, flow: str = "source_to_target") -> Ends:
    """The edges of a call, with loops or without; made once for a graph."""
    if flow != "source_to_target":
        layout(edge_index, flow)  # which rejects sparse matrices
    if isinstance(edge_index, SparseTensor):
        row, col, values = edge_index.coo()
        if loops and values is not None and values.dim() > 1:
            fix = "drop them with .set_value(None)"
            reject("edge_index", "a SparseTensor with one value per edge where loops are added", "several", fix)

        def read() -> Ends:
            held = torch_sparse.set_diag(edge_index) if loops else None
            i, j, w = (edge_index if held is None else held).coo()
            return Ends(torch.stack([j, i]), w, held)

        if values is not None:
            return read()
        ends: Ends = _EDGES.get((row, col), (*edge_index.sizes(), loops), read)
        return ends
    plain = edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
    sparse = is_torch_sparse_tensor(plain)
    if not sparse and not loops:
        return Ends(plain)

    def build() -> Ends:
        if not sparse:
            return Ends(_with_loops(plain, count))
        held = add_self_loops(remove_self_loops(plain)[0], num_nodes=count)[0] if loops else None
        edges, values = to_edge_index(plain if held is None else held)
        return Ends(edges.flip(0), values.clone(), held)  # what is kept owns its memory

    found: Ends = _EDGES.get((plain,), (loops, count), build)
    return found


def _with_loops(edges: Tensor, count: int) -> Tensor:
    """The edges without their loops, and one loop of each node behind them."""
    nodes = torch.arange(count, dtype=edges.dtype, device=edges.device)
    return torch.cat([edges[:, edges[0] != edges[1]], nodes.expand(2, count)], 1)


def targets(edge_index: Any, source: Tensor) -> int:
    """How many targets there are, where nothing but the edges can say it."""
    if isinstance(edge_index, SparseTensor):
        return int(edge_index.size(0))
    sparse = isinstance(edge_index, Tensor) and is_torch_sparse_tensor(edge_index)
    return int(edge_index.shape[0] if sparse else source.shape[-2])


def returned(ends: Ends, given: Any, alpha: Tensor) -> Any:
    """The graph and the weights of its edges, as PyG returns them; of what is kept for a graph, a copy."""
    held = given if ends.held is None else ends.held.clone()
    if isinstance(given, SparseTensor):
        return held.set_value(alpha, layout="coo")
    if is_torch_sparse_tensor(given):
        return set_sparse_value(held, alpha), alpha
    return ends.edges if ends.edges is given else ends.edges.clone(), alpha
