"""Stores the edges of a basis as attributes of data, and finds those among a sample of nodes."""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from ..basis import Basis, BoundBasis, check_bases
from ..errors import check_flags, reject
from ..kernels.pattern import in_range
from ..reading import read_graph

_PARTS = ("edge_index", "edge_type", "edge_weight")
_OF_OLD_EDGES = ("edge_attr", "adj_t", "e_id")
_Edges = tuple[Tensor, Tensor, Tensor]  # (2, E) ends, (E,) types and weights


class AddBasis(BaseTransform):
    r"""Adds the matrices of a basis to data, as typed weighted edges.

    `BasisConv(P, Q, bases.Edges(basis.K))` on these edges is the same layer as `BasisConv(P, Q, basis)` on the graph.
    PyG saves, moves and batches them like other attributes.

    Loaders that sample nodes of one large graph do not sample a second list of edges. With `replace=True`, the basis
    becomes the graph that is sampled: each sampled edge keeps its type and weight. Otherwise the graph is sampled, and
    `InducedBasis` finds the edges of the basis among the sampled nodes.

    Args:
        basis: one that reads no features, unlike `bases.Attention`, and has as many targets as sources, unlike pooling.
        attr: the prefix of the attributes.
        weight: the name of the weights that are read; None for ones. A missing 'edge_weight' means ones, too.
        replace: whether to replace `edge_index`, `edge_type` and `edge_weight`. Then edge_attr, adj_t and e_id are
            deleted; delete other attributes of the old edges before.

    A batch keeps its graphs apart. As with PyG's transforms, `to_data_list` does not split edges that were added to a
    batch: to take graphs out again, give the transform to the data set.

    Reads edge_index (or adj_t), edge_type, batch, lambda_max and grid, where data have them. The dtype is that of the
    weights, or else that of x.

    Shapes:
        - basis_edge_index: (2, E'); basis_edge_type: (E',) from 0 to K-1; basis_edge_weight: (E',)

    >>> from pyg_basisconv import BasisConv, bases
    >>> chebyshev = bases.Chebyshev(3)
    >>> data = AddBasis(chebyshev)(Data(x=torch.randn(3, 8), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])))
    >>> data
    Data(x=[3, 8], edge_index=[2, 4], basis_edge_index=[2, 19], basis_edge_type=[19], basis_edge_weight=[19])
    >>> conv = BasisConv(8, 4, bases.Edges(chebyshev.K))
    >>> conv(data.x, data.basis_edge_index, data.basis_edge_weight, data.basis_edge_type).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, basis: Basis, attr: str = "basis", weight: str | None = "edge_weight", replace: bool = False
    ) -> None:
        check_bases(basis)
        if basis.reads_content:
            fix = "its weights change with the features: use it in a layer"
            reject("basis", "one that needs no content", basis, fix)
        if basis.pools:
            fix = "use it in a layer, with batch: a list of edges in data is between its nodes"
            reject("basis", "as many targets as sources, for edges in data", basis, fix)
        check_prefix(attr)
        if weight is not None and (not isinstance(weight, str) or not weight):
            reject("weight", "the name of an attribute of the data, or None", repr(weight), "such as 'edge_attr'")
        check_flags(replace=replace)
        self.basis, self.attr, self.weight, self.replace = basis, attr, weight, replace

    def forward(self, data: Data) -> Data:
        check_data(data)
        edges = self._edges(data)
        if self.replace:
            data.num_nodes = data.num_nodes  # new edges may not reach the last node
            for name in {*_OF_OLD_EDGES} & {*data.keys()}:
                del data[name]
        for name, value in zip(names("" if self.replace else self.attr), edges, strict=True):
            data[name] = value
        return data

    def _edges(self, data: Data) -> _Edges:
        bound = self._bind(data)
        if not bound.M == bound.N == data.num_nodes:
            fix = "use the basis in a layer: a list of edges in data is between its nodes"
            reject("basis", f"matrices of {data.num_nodes} x {data.num_nodes}", f"{bound.M} x {bound.N}", fix)
        kind, source, target, weight = bound.edges()
        device = data.x.device if isinstance(data.x, Tensor) else weight.device  # of a grid there may be no tensor
        ends = torch.stack([source.long(), target.long()])
        return ends.to(device), kind.long().to(device), weight.to(device)

    def _bind(self, data: Data) -> BoundBasis:
        edges = data.get("adj_t") if data.get("edge_index") is None else data.edge_index
        if edges is None and self.basis.needs_edges:
            reject("data.edge_index", f"the edges that {self.basis} needs", None, "set it")
        weight = None if self.weight is None else data.get(self.weight)
        if weight is None and self.weight not in (None, "edge_weight"):
            reject("weight", "an attribute of the data", repr(self.weight), f"there are {sorted(data.keys())}")
        x, grid = data.get("x"), data.get("grid")
        with x.device if isinstance(x, Tensor) else nullcontext():  # of a basis without edges nothing else says it
            return self.basis.bind(
                edges,
                weight,
                data.get("edge_type"),
                size=data.num_nodes,
                dtype=x.dtype if weight is None and isinstance(x, Tensor) and x.is_floating_point() else None,
                batch=data.get("batch"),
                lambda_max=data.get("lambda_max"),
                grid=grid.tolist() if isinstance(grid, Tensor) else grid,
            )

    def __repr__(self) -> str:
        options = f"attr={self.attr!r}, weight={self.weight!r}, replace={self.replace}"
        return f"{type(self).__name__}({self.basis}, {options})"


class InducedBasis(BaseTransform):
    r"""Adds to a sample of a graph's nodes the edges of the graph's basis among them, with their weights in the whole
    graph: the rows and columns of its matrices at the sampled nodes.

    It is the `transform` of loaders that sample a graph. `NeighborLoader` and its like set the numbers of the nodes,
    `n_id`. For others (`ClusterLoader`, the `GraphSAINT` samplers, `RandomNodeLoader`) set
    `data.n_id = torch.arange(data.num_nodes)` before; where a loader takes no `transform`, call it on the batches. It
    overwrites the attributes that a loader has sampled itself.

    Args:
        data: the whole graph, with the attributes of `AddBasis`.
        attr: their prefix.

    Shapes:
        - n_id: (n,) the number of each sampled node in the whole graph. Where a batch holds several samples
          (`disjoint=True`), its `batch` has the sample of each node, and edges stay within a sample.

    >>> from pyg_basisconv import bases
    >>> edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    >>> graph = AddBasis(bases.Powers(3))(Data(x=torch.randn(4, 8), edge_index=edge_index))
    >>> induced = InducedBasis(graph)  # NeighborLoader(data, [10, 10], transform=induced)
    >>> batch = induced(Data(x=graph.x[[2, 0]], n_id=torch.tensor([2, 0])))
    >>> batch.basis_edge_index, batch.basis_edge_type
    (tensor([[0, 1, 1, 0],
            [0, 0, 1, 1]]), tensor([0, 2, 0, 2]))
    """

    def __init__(self, data: Data, attr: str = "basis") -> None:
        check_data(data)
        check_prefix(attr)
        (source, target), kind, weight = _read(data, attr)
        target, order = torch.sort(target, stable=True)
        count = torch.bincount(target, minlength=data.num_nodes)
        self.attr, self.num_nodes = attr, data.num_nodes
        self._first, self._count = count.cumsum(0) - count, count  # (N,) the range of the edges into each node
        self._source, self._type, self._weight = source[order], kind[order], weight[order]

    def forward(self, data: Data) -> Data:
        check_data(data)
        for name, value in zip(names(self.attr), self._among(*self._read(data)), strict=True):
            data[name] = value
        return data

    def _read(self, data: Data) -> tuple[Tensor, Tensor]:
        """The number in the graph, and the sample, of each node of a batch."""
        n_id, sample = data.get("n_id"), data.get("batch")
        if not isinstance(n_id, Tensor):
            fix = "set data.n_id = torch.arange(data.num_nodes) before it is sampled"
            reject("data.n_id", "the number of each node in the whole graph", type(n_id).__name__, fix)
        integers = _whole(n_id) and n_id.shape == (data.num_nodes,)
        if not (integers and in_range(n_id, self.num_nodes)):
            expected = f"integers from 0 to {self.num_nodes - 1} of shape ({data.num_nodes},)"
            fix = "give InducedBasis the graph that is sampled"
            reject("data.n_id", expected, f"{n_id.dtype} {tuple(n_id.shape)}", fix)
        n_id = n_id.long().to(self._source.device)
        if sample is None:
            return n_id, torch.zeros_like(n_id)
        if not isinstance(sample, Tensor) or sample.shape != n_id.shape or not _whole(sample):
            got = f"{sample.dtype} {tuple(sample.shape)}" if isinstance(sample, Tensor) else type(sample).__name__
            reject("data.batch", f"the sample of each node, ({n_id.numel()},) integers", got, "leave it out")
        return n_id, sample.long().to(n_id.device)

    def _among(self, n_id: Tensor, sample: Tensor) -> _Edges:
        """The edges between the nodes of each sample."""
        known, order = torch.sort(sample * self.num_nodes + n_id)
        if bool((known[1:] == known[:-1]).any()):
            twice = int(n_id[order[1:]][known[1:] == known[:-1]][0])
            reject("data.n_id", "each node once in a sample", f"{twice} twice", "number the samples in data.batch")
        count = self._count[n_id]
        target = torch.repeat_interleave(count)
        edge = torch.arange(target.numel(), device=target.device) - (count.cumsum(0) - count)[target]
        edge += self._first[n_id][target]
        wanted = sample[target] * self.num_nodes + self._source[edge]
        place = torch.searchsorted(known, wanted).clamp_(max=max(known.numel() - 1, 0))
        there = (known[place] == wanted).nonzero().squeeze(1)
        edge = edge[there]
        ends = torch.stack([order[place[there]], target[there]])
        return ends, self._type[edge], self._weight[edge]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<{self.num_nodes} nodes>, attr={self.attr!r})"


def names(attr: str) -> tuple[str, ...]:
    """The names of the ends, types and weights in data.

    >>> names("basis"), names("")
    (('basis_edge_index', 'basis_edge_type', 'basis_edge_weight'), ('edge_index', 'edge_type', 'edge_weight'))
    """
    return tuple(f"{attr}_{part}".lstrip("_") for part in _PARTS)


def _read(data: Data, attr: str) -> _Edges:
    """The typed weighted edges of data, checked: a wrong index would be a node of another sample."""
    for name in names(attr):
        if not isinstance(data.get(name), Tensor):
            fix = "add the attributes first, AddBasis(basis)(data)"
            reject(f"data.{name}", "a tensor, as AddBasis makes it", type(data.get(name)).__name__, fix)
    ends, kind, weight = (data[name] for name in names(attr))
    read_graph(ends, weight, kind, size=data.num_nodes)  # which checks them
    return ends, kind, weight


def _whole(numbers: Tensor) -> bool:
    """Whether a tensor has integers that can be read."""
    integers = numbers.dtype in (torch.int64, torch.int32)
    return integers and numbers.layout == torch.strided and not numbers.is_meta


def check_prefix(attr: object) -> None:
    """Rejects prefixes to which PyG gives a meaning: it adds offsets to attributes that are called an index."""
    if not isinstance(attr, str) or not attr.isidentifier() or "batch" in attr or "index" in attr:
        fix = "such as 'basis'; PyG gives names with 'batch' or 'index' in them a meaning"
        reject("attr", "how the names of the attributes begin", repr(attr), fix)


def check_data(data: object) -> None:
    """Rejects data other than a homogeneous graph."""
    if not isinstance(data, Data):
        fix = "make it one with data.to_homogeneous(), whose edge_type bases.Relations and bases.Walks read"
        reject("data", "torch_geometric.data.Data", type(data).__name__, fix)
    if data.num_nodes is None:
        reject("data.num_nodes", "the number of nodes", None, "set it, or x")
