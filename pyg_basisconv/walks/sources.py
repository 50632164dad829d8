"""Where graphs come from: files of triples, a saved `HeteroData`, PyG's datasets."""

import pickle
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_geometric.datasets
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage
from torch_geometric.typing import EdgeType

from ..errors import reject
from .document import Document
from .files import table_of
from .nearest import suggestion
from .vocabulary import Vocabulary
from .wording import brief, shown

DATASETS = (
    *("AMiner", "DBLP", "Entities", "FB15k_237", "HGBDataset", "IMDB", "LastFM", "MovieLens", "MovieLens100K"),
    *("MovieLens1M", "OGB_MAG", "RelLinkPredDataset", "Taobao", "Wikidata5M", "WordNet18", "WordNet18RR"),
)
NODES = 10**8
_PLAIN = [Data, HeteroData, DataEdgeAttr, DataTensorAttr, BaseStorage, GlobalStorage, NodeStorage, EdgeStorage]


@dataclass(frozen=True, eq=False)
class Source:
    """A graph with the names that it came with.

    edge_index: (2, E); edge_type: (E,); identifiers and names: of the nodes, by id; types: of the nodes, where known.
    """

    edge_index: Tensor
    edge_type: Tensor
    identifiers: list[str]
    names: list[str]
    relations: Vocabulary
    types: tuple[str | None, ...] | None = None


def read(document: Document) -> Source:
    """The graph that [graph] names."""
    kind = document.kind()
    if kind == "triples":
        return _of_triples(document.paths_to("triples"))
    if kind == "hetero":
        path = document.paths_to("hetero")[0]
        return _of_hetero(_load(path), str(path))
    return _of_dataset(document)


def _of_triples(paths: Iterable[Path]) -> Source:
    """Ids are given in the order in which names come; a fact that comes again is the same fact."""
    nodes: dict[str, int] = {}
    relations: dict[str, int] = {}
    found: dict[tuple[int, int, int], None] = {}
    for path in paths:
        for _, (head, relation, tail) in table_of(path, ("head", "relation", "tail"), "triples"):
            h, r = nodes.setdefault(head, len(nodes)), relations.setdefault(relation, len(relations))
            found[h, r, nodes.setdefault(tail, len(nodes))] = None
    table = torch.tensor(list(found), dtype=torch.long).view(-1, 3)
    edge_index, edge_type = table[:, ::2].t().contiguous(), table[:, 1].contiguous()
    return Source(edge_index, edge_type, list(nodes), list(nodes), Vocabulary(list(relations)))


def _load(path: Path) -> HeteroData:
    """A `HeteroData` that was saved, read without executing what a pickle may hold."""
    # What is allowed already would be forbidden at the end of the context.
    known = set(torch.serialization.get_safe_globals())
    try:
        with torch.serialization.safe_globals([c for c in _PLAIN if c not in known]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the format of a file that is then refused
            data = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
        reject(str(path), "a file with a HeteroData", reason, "give the path of a file that can be read")
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError):
        fix = "save the graph by torch.save(data, file), with tensors and plain values only"
        reject(str(path), "a HeteroData that torch.load(weights_only=True) reads", "something else", fix)
    if not isinstance(data, HeteroData):
        reject(str(path), "a HeteroData", type(data).__name__, "save a HeteroData by torch.save(data, file)")
    return data


def _of_hetero(data: HeteroData, where: str) -> Source:
    """The graph in the numbering of `data.to_homogeneous()`; nodes are called by `names` of their store."""
    found = {kind: _edges(data, kind, where) for kind in data.edge_types}
    first, names, types = _nodes(data, found, where)
    pieces = [torch.empty(2, 0, dtype=torch.long)]
    kinds = [torch.empty(0, dtype=torch.long)]
    for r, (kind, edges) in enumerate(found.items()):
        sizes = torch.tensor([[types.count(kind[0])], [types.count(kind[2])]])
        if edges.numel() and bool(((edges < 0) | (edges >= sizes)).any()):
            reject(where, f"edges of {kind} between its nodes", "others", "correct edge_index, or num_nodes")
        pieces.append(edges + torch.tensor([[first[kind[0]]], [first[kind[2]]]]))
        kinds.append(torch.full((edges.shape[1],), r))
    identifiers = [f"{t} {i - first[t]}" for i, t in enumerate(types)]
    shown = [name or identifier for name, identifier in zip(names, identifiers, strict=True)]
    return Source(torch.cat(pieces, 1), torch.cat(kinds), identifiers, shown, Vocabulary.of(data), tuple(types))


def _edges(data: HeteroData, kind: EdgeType, where: str) -> Tensor:
    edges = data[kind].get("edge_index")
    got = type(edges).__name__
    if isinstance(edges, Tensor):
        got = f"{tuple(edges.shape)} of {edges.dtype}, {edges.layout}"
        if edges.dtype == torch.long and edges.layout == torch.strided and edges.dim() == 2 and edges.shape[0] == 2:
            return edges
    reject(where, f"edge_index (2, E) of {kind}, dense, of torch.int64", got, "give every edge type its edge_index")


def _nodes(
    data: HeteroData, edges: Mapping[EdgeType, Tensor], where: str
) -> tuple[dict[str, int], list[str], list[str]]:
    """Per node type the number of its first node; per node its name, '' where it has none, and its type."""
    ends = {t for src, _, dst in edges for t in (src, dst)}
    first: dict[str, int] = {}
    names: list[str] = []
    types: list[str] = []
    for t in [*data.node_types, *sorted(ends - set(data.node_types))]:
        number = _number(data, t, edges, where)
        given = data[t].get("names")
        if given is not None and not (isinstance(given, list) and len(given) == number and _are_strings(given)):
            reject(where, f"names of {t!r}: a list of {number} strings", type(given).__name__, "correct or delete it")
        first[t] = len(types)
        names += given or [""] * number
        types += [t] * number
    return first, names, types


def _are_strings(values: list[Any]) -> bool:
    return all(isinstance(v, str) for v in values)


def _number(data: HeteroData, t: str, edges: Mapping[EdgeType, Tensor], where: str) -> int:
    """How many nodes of a type there are: what its store says, or so many that all edges have their ends."""
    store = data[t]
    try:
        number = store.num_nodes if store.can_infer_num_nodes else _most(t, edges)
    except Exception as error:  # whatever PyG does with features of no shape
        number = type(error).__name__
    if not isinstance(number, int) or not 0 <= number <= NODES:
        reject(where, f"a number of nodes of {t!r}, at most {NODES:,}", shown(number), "correct num_nodes, or features")
    return number


def _most(t: str, edges: Mapping[EdgeType, Tensor]) -> int:
    ends = [pair[row] for kind, pair in edges.items() for row in (0, 1) if kind[2 * row] == t]
    return max((int(e.max()) + 1 for e in ends if e.numel()), default=0)


def _of_dataset(document: Document) -> Source:
    graph = document.table("graph")
    name, options = graph["dataset"], graph.get("options", {})
    if name not in DATASETS:
        some = f"there are {', '.join(DATASETS)}"
        fix = suggestion(name, DATASETS, some) if isinstance(name, str) else some
        got = brief(name) if isinstance(name, str) else name
        document.refuse("graph", "dataset", "the name of a dataset with relations", got, fix)
    root = document.path_to("root")
    if root is None:
        document.refuse("graph", "root", f"the folder of {name}", "none", 'write root = "folder"')
    made = getattr(torch_geometric.datasets, name)
    if not isinstance(options, dict):
        document.refuse("graph", "options", "a table", options, 'write options = { split = "train" }')
    where = f"{document.path}: [graph] dataset"
    try:
        data = made(str(root), **options)[0]
    except Exception as error:  # whatever a dataset does, from downloads to parsing
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        reject(where, f"{name} in {root}", got, "see to its files, and to its options")
    return _of_hetero(data, where) if isinstance(data, HeteroData) else _of_typed(data, where)


def _of_typed(data: Data, where: str) -> Source:
    """A graph whose names are numbers."""
    if data.edge_index is None or data.get("edge_type") is None:
        reject(where, "a graph with edge_type", type(data).__name__, "choose a dataset with relations")
    N = data.num_nodes if data.can_infer_num_nodes else int(data.edge_index.max()) + 1
    R = int(data.edge_type.max()) + 1 if data.edge_type.numel() else 0
    names = [str(i) for i in range(N)]
    return Source(data.edge_index, data.edge_type, names, list(names), Vocabulary([str(i) for i in range(R)]))
