"""Reads graphs from files of triples, a saved `HeteroData`, or PyG's datasets."""

import operator
import warnings
from pathlib import Path

import torch
import torch_geometric.datasets
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from ..errors import reject
from .document import Document, table_of
from .vocabulary import NamedGraph, Vocabulary
from .wording import shown, suggestion

DATASETS = (
    *("AMiner", "DBLP", "Entities", "FB15k_237", "HGBDataset", "IMDB", "LastFM", "MovieLens", "MovieLens100K"),
    *("MovieLens1M", "OGB_MAG", "RelLinkPredDataset", "Taobao", "Wikidata5M", "WordNet18", "WordNet18RR"),
)
NODES = 10**8
_PLAIN = [Data, HeteroData, DataEdgeAttr, DataTensorAttr, BaseStorage, GlobalStorage, NodeStorage, EdgeStorage]


def read(document: Document) -> NamedGraph:
    """The graph that [graph] names."""
    kind = document.kind()
    if kind == "triples":
        return _of_triples(document.paths_to("triples"))
    if kind == "hetero":
        path = document.paths_to("hetero")[0]
        return _of_hetero(_load(path), str(path))
    return _of_dataset(document)


def _of_triples(paths: list[Path]) -> NamedGraph:
    """A graph of triples; ids are in the order of the names, and repeated facts count once."""
    nodes: dict[str, int] = {}
    relations: dict[str, int] = {}
    found: dict[tuple[int, int, int], None] = {}
    for path in paths:
        for _, (head, relation, tail) in table_of(path, ("head", "relation", "tail"), "triples"):
            h, r = nodes.setdefault(head, len(nodes)), relations.setdefault(relation, len(relations))
            found[h, r, nodes.setdefault(tail, len(nodes))] = None
    if not found:
        reject(" and ".join(map(str, paths)), "triples", "an empty file", "write head<tab>relation<tab>tail")
    table = torch.tensor(list(found), dtype=torch.long, device="cpu").view(-1, 3)
    edge_index, edge_type = table[:, ::2].t().contiguous(), table[:, 1].contiguous()
    return NamedGraph(edge_index, edge_type, len(nodes), list(nodes), list(nodes), Vocabulary(list(relations)))


def _load(path: Path) -> HeteroData:
    """A saved `HeteroData`, read without executing code from the pickle."""
    # The context forbids its classes when it ends, also those that were allowed before.
    known = set(torch.serialization.get_safe_globals())
    try:
        with torch.serialization.safe_globals([c for c in _PLAIN if c not in known]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the format of a file that is then rejected
            data = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        reason = "no file of this name" if isinstance(error, FileNotFoundError) else str(error.strerror)
        reject(str(path), "a file with a HeteroData", reason, "give the path of a file that can be read")
    except Exception:  # torch's unpickler raises all kinds of errors for bytes that are no pickle
        fix = "save the graph by torch.save(data, file), with tensors and plain values only"
        reject(str(path), "a HeteroData that torch.load(weights_only=True) reads", "something else", fix)
    if not isinstance(data, HeteroData):
        reject(str(path), "a HeteroData", type(data).__name__, "save a HeteroData by torch.save(data, file)")
    return data


def _of_hetero(data: HeteroData, where: str) -> NamedGraph:
    """The graph in the numbering of `data.to_homogeneous()`; `names` of the node stores name the nodes."""
    try:
        relations = Vocabulary.of(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about node types without edges
            data.validate()
        sizes = {t: operator.index(data[t].num_nodes) for t in data.node_types}
    except Exception as error:  # PyG raises all kinds of errors for malformed data
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        reject(where, "a graph that data.validate() accepts", got, "correct its edges, num_nodes or features")
    if not all(0 <= number <= NODES for number in sizes.values()):
        reject(where, f"at most {NODES:,} nodes of each type", shown(sizes), "correct num_nodes")
    dtypes = [data[kind].edge_index.dtype for kind in data.edge_types]
    if any(dtype != torch.long for dtype in dtypes):
        reject(where, "integers in edge_index", dtypes, "convert it with .long()")
    identifiers, names = list[str](), list[str]()
    for t, number in sizes.items():
        given = data[t].get("names", [""] * number)
        if not (isinstance(given, list) and len(given) == number and all(isinstance(name, str) for name in given)):
            reject(where, f"names of {t!r}: a list of {number} strings", type(given).__name__, "correct or delete it")
        identifiers += [f"{t} {i}" for i in range(number)]
        names += [name or f"{t} {i}" for i, name in enumerate(given)]
    whole = data.to_homogeneous(node_attrs=[], edge_attrs=[], add_node_type=False, dummy_values=False)
    return NamedGraph(
        edge_index=whole.edge_index if dtypes else torch.empty(2, 0, dtype=torch.long, device="cpu"),
        edge_type=whole.edge_type if dtypes else torch.empty(0, dtype=torch.long, device="cpu"),
        num_nodes=len(identifiers),
        entities=names,
        identifiers=identifiers,
        relations=relations,
        types=tuple(t for t, number in sizes.items() for _ in range(number)),
    )


def _of_dataset(document: Document) -> NamedGraph:
    graph = document.table("graph")
    name, options = graph["dataset"], graph.get("options", {})
    if name not in DATASETS:
        some = f"there are {', '.join(DATASETS)}"
        fix = suggestion(name, DATASETS, some) if isinstance(name, str) else some
        got = shown(name) if isinstance(name, str) else name
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
    except Exception as error:  # datasets raise all kinds of errors, from downloads to parsing
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        reject(where, f"{name} in {root}", got, "see to its files, and to its options")
    return _of_hetero(data, where) if isinstance(data, HeteroData) else _of_typed(data, where)


def _of_typed(data: Data, where: str) -> NamedGraph:
    """A homogeneous graph with edge types, whose names are numbers."""
    if data.edge_index is None or data.get("edge_type") is None:
        reject(where, "a graph with edge_type", type(data).__name__, "choose a dataset with relations")
    N = data.num_nodes if data.can_infer_num_nodes else int(data.edge_index.max()) + 1
    R = int(data.edge_type.max()) + 1 if data.edge_type.numel() else 0
    names = [str(i) for i in range(N)]
    return NamedGraph(data.edge_index, data.edge_type, N, names, names, Vocabulary([str(i) for i in range(R)]))
