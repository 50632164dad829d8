"""The layouts of edges that PyG knows, brought to one form. No other file asks which layout it is."""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.masked import MaskedTensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

from .cache import constituents
from .errors import reject

Ends = Tensor | tuple[Tensor, Tensor]  # the sources and the targets; of a tensor, its rows
DENSE, _REVERSED = "edge_index", "reversed edge_index"  # forms of tensors of edges
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def check_form(name: str, t: Any, sparse: bool = False) -> None:
    """Rejects a tensor that is nested, masked or of mkldnn; and a sparse one, unless `sparse` is True.

    >>> check_form("edge_weight", torch.ones(2).to_sparse())
    Traceback (most recent call last):
    ...
    ValueError: edge_weight: expected a dense tensor, got torch.sparse_coo; convert it with .to_dense()
    """
    if t is None or (type(t) is Tensor and t.layout is torch.strided and not t.is_nested):
        return
    if not isinstance(t, Tensor):
        return
    if t.is_nested:
        got, fix = "a nested one", "pad it with torch.nested.to_padded_tensor, or pass one part after the other"
    elif isinstance(t, MaskedTensor):
        got, fix = "a masked one", "fill what is masked with .to_tensor(0)"
    elif t.layout is torch.strided or (sparse and t.layout in _SPARSE):
        return
    else:
        got, fix = str(t.layout), "convert it with .to_dense()"
    reject(name, "a dense or sparse tensor" if sparse else "a dense tensor", got, fix)


class Layout(NamedTuple):
    """Edges as the user gave them.

    Args:
        form: how to read the tensors: a CSR matrix and the CSC matrix of its transpose have the same ones.
        tensors: identify the edges with their values, as keys of a cache.
        indices: the same without the values.
        values: the weights, for layouts that hold them.
        shape: (M, N), for layouts that hold it.
        ends: returns the sources and targets, (E,) both; None if there are no edges.
    """

    form: Hashable
    tensors: tuple[Tensor | None, ...]
    indices: tuple[Tensor | None, ...]
    values: Tensor | None
    shape: tuple[int | None, int | None]
    ends: Callable[[], Ends] | None

    @property
    def kind(self) -> str:
        """The layouts that PyG's layers distinguish: 'sparse' for `torch.sparse`, 'sparse_tensor', '' for others."""
        first = self.form[0] if isinstance(self.form, tuple) else None
        return "sparse" if isinstance(first, torch.layout) else "sparse_tensor" if first == "SparseTensor" else ""


def layout(edge_index: Any, flow: str = "source_to_target", features: bool = False) -> Layout:
    """The layout of a user's edges.

    Args:
        edge_index: the edges.
        flow: 'target_to_source' turns them round, which a sparse matrix is not.
        features: whether a sparse matrix may have several numbers for each edge.

    >>> edges = layout(torch.tensor([[0., 2.], [0., 0.]]).to_sparse_csr())
    >>> edges.shape, edges.ends()
    ((2, 2), (tensor([1]), tensor([0])))
    """
    reverse = flow != "source_to_target"
    if type(edge_index) is Tensor and edge_index.layout is torch.strided and not edge_index.is_nested:  # the usual case
        return _dense(edge_index, reverse)
    if edge_index is None:
        return Layout(None, (), (), None, (None, None), None)
    check_form("edge_index", edge_index, sparse=True)
    if isinstance(edge_index, EdgeIndex):
        plain, shape = edge_index.as_tensor(), edge_index.sparse_size()
        shape = shape[::-1] if reverse else shape
        return Layout(("EdgeIndex", shape, reverse), (plain,), (plain,), None, shape, lambda: _rows(plain, reverse))
    if isinstance(edge_index, Tensor) and edge_index.layout == torch.strided:
        return _dense(edge_index, reverse)
    if reverse:
        got, fix = f"a {type(edge_index).__name__} in a sparse layout", "pass the transposed matrix, without flow"
        reject("edge_index", "a (2, E) tensor with flow='target_to_source'", got, fix)
    if isinstance(edge_index, SparseTensor):
        target, source, values = edge_index.coo()
        shape = (edge_index.size(1), edge_index.size(0))
        return Layout(
            ("SparseTensor", shape), (target, source, values), (target, source), values, shape, lambda: (source, target)
        )
    if not isinstance(edge_index, Tensor):
        expected = "a (2, E) tensor, EdgeIndex, sparse tensor, SparseTensor or bound basis"
        fix = "convert lists and arrays with torch.as_tensor"
        if isinstance(getattr(edge_index, "edge_index", None), Tensor):
            fix = "pass its edge_index, and its edge_type where the basis reads types"
        elif hasattr(edge_index, "tocoo"):
            fix = "convert it with torch_geometric.utils.from_scipy_sparse_matrix"
        reject("edge_index", expected, type(edge_index).__name__, fix)
    return _sparse(edge_index, features)


def _dense(edge_index: Tensor, reverse: bool) -> Layout:
    here = (edge_index,)
    form = _REVERSED if reverse else DENSE
    return Layout(form, here, here, None, (None, None), lambda: _rows(edge_index, reverse))


def _rows(edge_index: Tensor, reverse: bool) -> Ends:
    shape = edge_index.shape
    if len(shape) != 2 or shape[0] != 2:
        reject("edge_index", "shape (2, E), sources above targets", tuple(shape), _as_edges(shape))
    return (edge_index[1], edge_index[0]) if reverse else edge_index


def _as_edges(shape: torch.Size) -> str:
    """How a tensor of some other shape becomes an edge_index."""
    if len(shape) == 2 and shape[1] == 2:
        return "transpose it"
    if len(shape) == 2 and shape[0] == 3:
        return "pass a third row as edge_type= or edge_weight="
    if len(shape) == 2 and shape[0] == shape[1]:
        return "make edges of a matrix with torch_geometric.utils.dense_to_sparse"
    if len(shape) == 1:
        return "stack sources and targets; the graphs of a batch are passed by name, batch="
    return "stack sources and targets"


def _sparse(adjacency: Tensor, features: bool) -> Layout:
    """The layout of a transposed adjacency matrix, (N, M), of `torch.sparse`."""
    readers: dict[torch.layout, Callable[[], Ends]] = {
        torch.sparse_coo: lambda: (adjacency._indices()[1], adjacency._indices()[0]),
        torch.sparse_csr: lambda: (adjacency.col_indices(), _uncompress(adjacency.crow_indices())),
        torch.sparse_csc: lambda: (_uncompress(adjacency.ccol_indices()), adjacency.row_indices()),
    }
    if adjacency.layout not in readers:
        reject("edge_index", "a COO, CSR or CSC layout", adjacency.layout, "convert it with to_sparse_csr()")
    width = adjacency.dense_dim()
    if adjacency.dim() - width != 2 or (width and not features):
        reject("edge_index", "a sparse (N, M) matrix", tuple(adjacency.shape), "one value per entry, two axes")
    if adjacency.layout == torch.sparse_coo and adjacency.requires_grad and not adjacency.is_coalesced():
        reject("edge_index", "a coalesced tensor, where it requires a gradient", "an uncoalesced one", "coalesce() it")
    *indices, values = constituents(adjacency)
    form = (adjacency.layout, adjacency.shape)
    shape = (adjacency.shape[1], adjacency.shape[0])
    return Layout(form, (adjacency,), tuple(indices), values, shape, readers[adjacency.layout])


def _uncompress(pointers: Tensor) -> Tensor:
    """The row (or column) of each entry, from the pointers of a compressed layout."""
    return torch.repeat_interleave(pointers.diff())
