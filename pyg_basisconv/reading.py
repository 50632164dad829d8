"""Reads the user's graph, in any of PyG's layouts: checks it once and brings it to one form."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .cache import IdentityCache, Place, Witness
from .edge_set import EdgeSet
from .errors import reject
from .graph import Counts, Graph, Size, sizes
from .kernels.grids import Ints
from .kernels.lists import LIMIT, arrays_of, narrow
from .kernels.pattern import extremes, in_range, index_dtype
from .layouts import DENSE, Ends, Layout, check_form, layout
from .portable import any_seen, checked, portable

_CPU = torch.device("cpu")
_INTEGERS = (torch.int64, torch.int32)
_OTHERS = "types of edges go in edge_type=, the graphs of a batch in batch="
_STRUCTURES = IdentityCache()
_GRAPHS = IdentityCache()


def read_graph(
    edge_index: Any,
    edge_weight: Tensor | None = None,
    edge_type: Tensor | None = None,
    *,
    size: Size = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    flow: str = "source_to_target",
    batch: Tensor | None = None,
    lambda_max: Tensor | float | None = None,
    target_row: int | None = 0,
    sources: int | None = None,
    grid: Ints | None = None,
    seen: Witness | None = None,
    in_each_call: bool = False,
) -> Graph:
    """Reads a graph. The same unchanged tensors give the same `Graph`, with all that was derived from it.

    The edges are a `Layout`; or (2, E) integers, `EdgeIndex`, a sparse tensor of the transposed adjacency (N, M) as in
    PyG (`torch.sparse` COO, CSR, CSC, or `torch_sparse.SparseTensor`); or None for none. Their weights are (E,) or
    (E, K) floating point, their types (E,) integers. What `size`, (M, N) or one number for both, leaves open is
    inferred from the edges, and the dtype from the weights. All tensors have to be on the device, that of x. For the
    rest see `Graph`.

    seen: a witness of the tensors, if one was made before the call, in the order of the arguments; in_each_call:
    whether the weights are read in each call, so that nothing that depends on them is kept.

    >>> graph = read_graph(torch.tensor([[0, 1], [1, 2]]))
    >>> graph.M, graph.N, graph.target.tolist()
    (3, 3, [1, 2])
    """
    M, N = sizes(size)
    edges = edge_index if isinstance(edge_index, Layout) else layout(edge_index, flow)
    eigen = lambda_max if isinstance(lambda_max, Tensor) else None
    numbers = {"edge_weight": edge_weight, "edge_type": edge_type, "batch": batch, "lambda_max": eigen}
    if dtype is None:
        dtype = _dtype(edges.values if edge_weight is None else edge_weight)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        reject("dtype", "a floating point dtype", dtype, "matrices have real entries")
    numbers = {name: t for name, t in numbers.items() if t is not None}
    for name, t in numbers.items():
        check_form(name, t)
    given = _Arguments(edges, edge_weight, edge_type, M, N, dtype, device, batch, lambda_max, target_row, sources, grid)
    eigen_number = lambda_max if eigen is None else None
    known = (edges.form, tuple(numbers), M, N, dtype, device, eigen_number, target_row, sources, grid)
    if in_each_call:
        graph = given.read()
        return graph.holding_weight(graph.weight)
    return _GRAPHS.get((*edges.tensors, *numbers.values()), known, given.read, seen)


def read_edges(
    where: Place,
    edges: Any,
    M: int,
    N: int,
    dtype: torch.dtype,
    device: torch.device,
    target_row: int | None,
    sources: int | None,
    seen: Witness | None,
) -> Graph | None:
    """`read_graph` of edges alone, in a tensor like one that it has read: checks their number of rows, and the numbers
    in them. None for edges that are not on the CPU.
    """
    if type(edges) is not Tensor or edges.shape[0] != 2 or not edges.is_cpu or device != _CPU or max(M, N) > LIMIT:
        return None

    def read() -> Graph:
        arrays = narrow(edges, (M if sources is None else sources, N))
        if arrays is None:  # the long way says what is wrong
            given = layout(edges), None, None, M, N, dtype, device, None, None, target_row, sources, None
            return _Arguments(*given).read()
        return Graph(EdgeSet.of_arrays(arrays, None, M, N), None, dtype, None, None, target_row, sources)

    known = DENSE, (), M, N, dtype, device, None, target_row, sources, None  # as in `read_graph`, whose graphs it finds
    return _GRAPHS.get_at(where, edges, known, read, seen)


class _Arguments(NamedTuple):
    """The arguments of `read_graph`."""

    edges: Layout
    edge_weight: Tensor | None
    edge_type: Tensor | None
    M: int | None
    N: int | None
    dtype: torch.dtype
    device: torch.device | None
    batch: Tensor | None
    lambda_max: Tensor | float | None
    target_row: int | None
    sources: int | None
    grid: Ints | None

    def read(self) -> Graph:
        """Checks the arguments and makes the graph; its `EdgeSet` is cached for the same edges."""
        edges, weight, batch, lambda_max = self.edges, self.edge_weight, self.batch, self.lambda_max
        if edges.values is not None:
            if weight is not None:
                fix = "give the weights once"
                reject("edge_weight", "None beside a sparse edge_index that has values", "both", fix)
            weight = edges.values
        ends = None if edges.ends is None else edges.ends()
        M, N = (self.M, self.N) if edges.shape == (None, None) else self._sizes()
        self._check(ends, weight)
        if weight is None and batch is None and not isinstance(lambda_max, Tensor):
            structure = self._structure(ends, M, N)
        else:  # weights may change from call to call, while the structure of the same edges stays
            known = (edges.form, M, N, self.device, self.sources)
            structure = _STRUCTURES.get((*edges.indices, self.edge_type), known, lambda: self._structure(ends, M, N))
        # Cached tensors are copies, as the caller's may change or be deleted.
        weight = weight if weight is None or weight.requires_grad else weight.clone()
        batch = None if batch is None else batch.clone()
        if isinstance(lambda_max, Tensor) and not lambda_max.requires_grad:
            lambda_max = lambda_max.clone()
        graph = Graph(structure, weight, self.dtype, batch, lambda_max, self.target_row, self.sources, self.grid)
        graph.kind = edges.kind
        return graph

    def _sizes(self) -> Counts:
        """M and N, by the arguments, or by edges that have a shape."""
        M, N = self.M, self.N
        rows = M if self.sources is None else self.sources  # rows behind the sources belong to no edge
        for name, given, found in (("M", rows, self.edges.shape[0]), ("N", N, self.edges.shape[1])):
            if given is not None and found is not None and given != found:
                got, fix = f"a sparse matrix with {name} = {found}", "pass the transposed adjacency of shape (N, M)"
                reject("edge_index", f"{name} = {given} as x has rows", got, fix)
        return self.edges.shape[0] if M is None else M, self.edges.shape[1] if N is None else N

    def _check(self, ends: Ends | None, weight: Tensor | None) -> None:
        """Checks shapes, dtypes and devices."""
        index = None if ends is None else ends if isinstance(ends, Tensor) else ends[0]
        device, E = self.device, 0
        if index is not None:
            E, device = index.shape[-1], device or index.device
            check_integers("edge_index", index)
            if index.device != device:
                _check_device("edge_index", index, device)
        if weight is not None:
            _check_device("edge_weight", weight, device)
            _check_weight(weight, E, self.dtype)
        if self.edge_type is not None:
            _check_types(self.edge_type, E, device)
        if self.batch is not None:
            _check_device("batch", self.batch, device)
        if self.lambda_max is not None:
            _check_lambda_max(self.lambda_max, self.batch, device)

    def _structure(self, ends: Ends | None, M: int | None, N: int | None) -> EdgeSet:
        """Checks the values of the indices, and copies them to int32 if the sizes allow it."""
        kind = self.edge_type
        if ends is None:
            if M is None or N is None:
                reject("size", "(M, N) where there is no edge_index", (M, N), "pass size=(M, N)")
            none = torch.empty(0, dtype=torch.int32, device=self.device)
            return EdgeSet(1, M, N, None, none, none)
        sources = M if self.sources is None else self.sources
        if portable():
            if M is None or N is None or sources is None:
                reject("size", "(M, N), where indices are not looked at", (M, N), "pass size=(M, N)")
            source, target = ends
            return EdgeSet(1, M, N, kind, checked(source.long(), sources), checked(target.long(), N))
        if (ends if isinstance(ends, Tensor) else ends[0]).is_meta:
            reject("edge_index", "numbers", "a tensor on 'meta', which has none", "make it on a device")
        kind = None if kind is None else kind.clone()
        on_cpu = (ends if isinstance(ends, Tensor) else ends[0]).is_cpu
        if on_cpu and M is not None and N is not None and sources is not None and max(M, N) <= LIMIT:
            arrays = narrow(ends, (sources, N))
            if arrays is not None:
                return EdgeSet.of_arrays(arrays, kind, M, N)
        source, target = ends
        found = _num_nodes("source", source, sources), _num_nodes("target", target, N)
        if M is None and N is None:
            found = (max(found),) * 2
        M, N = found[0] if M is None else M, found[1]  # rows behind the sources belong to no edge
        dtype = index_dtype(M, N)
        if not on_cpu:
            return EdgeSet(1, M, N, kind, source.to(dtype, copy=True), target.to(dtype, copy=True))
        width, arrays = np.int32 if dtype == torch.int32 else np.int64, arrays_of(ends)
        return EdgeSet.of_arrays((arrays[0].astype(width), arrays[1].astype(width)), kind, M, N)


def check_edges(edges: Tensor, edge_type: Tensor | None = None, size: Counts = (None, None)) -> None:
    """Checks edges as `read_graph` does, for a caller that makes other edges of them.

    >>> check_edges(torch.tensor([[0], [7]]), size=(3, 3))
    Traceback (most recent call last):
    ...
    ValueError: edge_index: expected target indices below 3, the number of targets, got 7; check the edges, ...
    """
    ends = layout(edges).ends
    if ends is None:
        reject("edge_index", "the edges, (2, E)", None, "pass edge_index")
    source, target = ends()
    check_integers("edge_index", source)
    if edge_type is not None:
        _check_types(edge_type, source.shape[0], source.device)
    for name, end, count in zip(("source", "target"), (source, target), size, strict=True):
        if count is not None:
            _num_nodes(name, end, count)


def check_integers(name: str, t: Tensor) -> None:
    """Rejects indices that are no integers."""
    if t.dtype not in _INTEGERS:
        reject(name, "dtype torch.int64 or torch.int32", t.dtype, "convert it with .long()")


def _num_nodes(name: str, end: Tensor, count: int | None) -> int:
    """The number of nodes at one end of the edges: `count`, against which they are checked, or what they imply."""
    if count is not None and in_range(end, count):
        return count
    low, high = extremes(end) if end.numel() else (0, -1)
    if low < 0:
        reject("edge_index", f"{name} indices from 0 on", low, "remove the negative indices")
    if count is not None:
        fix = "check the edges, or pass x (or size) for all nodes"
        reject("edge_index", f"{name} indices below {count}, the number of {name}s", high, fix)
    return high + 1


def _dtype(weight: Tensor | None) -> torch.dtype:
    """The dtype of the weights, or torch's default if there are none."""
    if not isinstance(weight, Tensor):
        return torch.get_default_dtype()
    if not weight.dtype.is_floating_point:
        reject("edge_weight", "a floating point dtype", weight.dtype, f"{_OTHERS}; convert weights with .float()")
    return weight.dtype


def _check_device(name: str, t: Any, device: torch.device | None) -> None:
    if not isinstance(t, Tensor):
        reject(name, "a tensor", type(t).__name__, "convert it with torch.as_tensor")
    if device is not None and t.device != device:
        reject(name, f"a tensor on {device}, where x is", t.device, "move all inputs to one device")


def _check_types(kind: Tensor, E: int, device: torch.device | None) -> None:
    _check_device("edge_type", kind, device)
    if kind.shape != (E,):
        reject("edge_type", f"one type per edge, shape ({E},)", tuple(kind.shape), "give one type per edge")
    check_integers("edge_type", kind)


def _check_weight(weight: Tensor, E: int, dtype: torch.dtype) -> None:
    if not weight.is_floating_point():
        fix = f"{_OTHERS}; convert weights with .to({dtype})"
        reject("edge_weight", "a floating point dtype", weight.dtype, fix)
    if weight.dim() not in (1, 2) or weight.shape[0] != E:
        expected, fix = f"one row per edge, shape ({E},) or ({E}, K)", "give as many weights as edge_index has columns"
        reject("edge_weight", expected, tuple(weight.shape), fix)
    if weight.dtype != dtype:
        reject("edge_weight", f"dtype {dtype}, as x", weight.dtype, f"convert it with .to({dtype})")


def _check_lambda_max(lambda_max: Any, batch: Tensor | None, device: torch.device | None) -> None:
    if not isinstance(lambda_max, Tensor | float | int):
        fix = "leave it out, or compute it by torch_geometric.transforms.LaplacianLambdaMax"
        reject("lambda_max", "a real number or a tensor", repr(lambda_max), fix)
    values = lambda_max if isinstance(lambda_max, Tensor) else torch.tensor(lambda_max, device=_CPU)
    if values.is_complex():
        reject("lambda_max", "real numbers", values.dtype, "take its real part, .real")
    if isinstance(lambda_max, Tensor) and device is not None and values.device not in (device, _CPU):
        reject("lambda_max", f"a tensor on {device}, where x is", values.device, "move all inputs to one device")
    if not values.numel():
        reject("lambda_max", "a number, or one per graph", tuple(values.shape), "leave it out")
    if values.numel() > 1 and batch is None:
        fix = "pass batch, or one lambda_max"
        reject("lambda_max", "a number where no batch is given", tuple(values.shape), fix)
    known = not isinstance(lambda_max, Tensor)
    if (known and not 0 < lambda_max < math.inf) or any_seen(~((values > 0) & torch.isfinite(values))):
        fix = "leave it out for twice the largest weight of the Laplacian"
        reject("lambda_max", "positive finite numbers", lambda_max if known else values.tolist(), fix)
