"""Rows of walks in a knowledge graph: sorts of walks against the graphs of `AddMetaPaths`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData
from torch_geometric.nn import SimpleConv
from torch_geometric.transforms import AddMetaPaths

from pyg_basisconv import BasisConv, bases

from .compare import assert_close
from .contest import Contest, best, ceiling, measure, planned, value
from .knowledge import Facts, facts, random_facts
from .layers import lay_out
from .result import Bench, Result, Target

WIDTH = 64

# From films to films, by actors, authors and producers, and what they have in common.
SORTS = [
    "^played.played",
    "^directed.directed",
    "writer.^writer",
    "producer.^producer",
    "music.^music",
    "company.^company",
    "^distributed.distributed",
    "country.^country",
    "language.^language",
    "location.^location",
    "^subject.subject",
    "won.^won",
    "^nominated.nominated",
    "^played.played.prequel",
    "^played.nominee.nominated",
    "won.^nominee.played",
    "^played.nominee.^nominee.played",
    "^played.nationality.^nationality.played",
    "^played.played.^played.played",
    "writer.nominee.^nominee.^writer",
]
LONG = "^played.nominee.^nominee.nominee.^nominee.played"
MANY = 10**8  # walks of the long sort, at least

LAYOUTS = ("edge_index", "CSR", "EdgeIndex")
WAYS = [f"{layout}{where}" for layout in LAYOUTS for where in ("", ", of films")]


class Films(NamedTuple):
    """The graphs of the sorts in one of PyG's layouts; nodes: those with edges, if the others are left out."""

    graphs: list[tuple[Any, ...]]
    nodes: Tensor | None


class OnMetaPaths(nn.Module):
    """One graph and one matrix for each sort."""

    def __init__(self, K: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(K, WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.propagate = SimpleConv("sum")
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, films: Films) -> Tensor:
        some = x if films.nodes is None else x[films.nodes]
        y = torch.zeros_like(some)
        for edges, weight in zip(films.graphs, self.weight, strict=True):
            y = y + self._sum(some, *edges) @ weight
        if films.nodes is not None:
            y = torch.zeros_like(x).index_copy(0, films.nodes, y)
        return y + self.bias

    def _sum(self, x: Tensor, edges: Any, weight: Tensor | None = None) -> Tensor:
        if isinstance(edges, EdgeIndex):
            out: Tensor = edges.matmul(x, weight, transpose=True)
        else:
            out = self.propagate(x, edges, weight)
        return out


def hetero(graph: Facts) -> HeteroData:
    """The relations of the sorts, and their inverses."""
    data = HeteroData(entity={"num_nodes": graph.N})
    for step in sorted({step for sort in SORTS for step in sort.split(".")}):
        data[_kind(step)].edge_index = torch.stack(graph.edges(step))
    return data


def _kind(step: str) -> tuple[str, str, str]:
    return ("entity", step.replace("^", "back_"), "entity")


def meta_paths(data: HeteroData) -> HeteroData:
    """One graph for each sort, with an edge for each pair of ends, weighted by the number of walks."""
    paths = [[_kind(step) for step in sort.split(".")] for sort in SORTS]
    made: HeteroData = AddMetaPaths(paths, weighted=True, drop_orig_edge_types=True, keep_same_node_type=False)(data)
    return made


def lay_out_all(made: HeteroData, way: str) -> Films:
    """The graphs of `meta_paths`, in a layout."""
    layout, _, where = way.partition(", ")
    N = made["entity"].num_nodes
    stores = [made["entity", f"metapath_{k}", "entity"] for k in range(len(SORTS))]
    edges = [(store.edge_index, store.edge_weight) for store in stores]
    nodes = None
    if where:
        there = torch.zeros(N, dtype=torch.bool, device=edges[0][0].device)
        for edge_index, _ in edges:
            there[edge_index.flatten()] = True
        nodes, place = there.nonzero().squeeze(1), there.cumsum(0) - 1
        edges = [(place[edge_index], weight) for edge_index, weight in edges]
        N = nodes.numel()
    return Films([_laid_out(*one, N, layout) for one in edges], nodes)


def _laid_out(edge_index: Tensor, weight: Tensor, N: int, layout: str) -> tuple[Any, ...]:
    if layout != "EdgeIndex":
        return lay_out(edge_index, N, layout, weight)
    sorted_index, order = EdgeIndex(edge_index, sparse_size=(N, N)).sort_by("col")
    return sorted_index.fill_cache_(), weight[order]


def walks(graph: Facts, sorts: Sequence[str] = SORTS) -> bases.Walks:
    return bases.Walks(sorts, graph.relations)


@dataclass(frozen=True)
class WalksRow:
    """Applies twenty sorts of length 2 to 4, without the set-up."""

    backward: bool
    target: Target
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        return f"{len(SORTS)} sorts of walks in a knowledge graph" + ", forward" * (not self.backward)

    def run(self, bench: Bench) -> Result:
        graph = facts(bench)
        made = meta_paths(hetero(graph)).to(bench.device)
        edge_index, edge_type = graph.edge_index.to(bench.device), graph.edge_type.to(bench.device)
        torch.manual_seed(0)
        start = OnMetaPaths(len(SORTS)).state_dict()
        x = torch.randn(graph.N, WIDTH, device=bench.device, requires_grad=self.backward)
        ready: dict[str, Films] = {}

        def peer(way: str) -> nn.Module:
            module = OnMetaPaths(len(SORTS))
            module.load_state_dict(start)
            return module.to(bench.device)

        def arguments(way: str) -> tuple[Any, ...]:
            if way not in ready:
                ready[way] = lay_out_all(made, way)
            return x, ready[way]

        def ours(module: Any) -> nn.Module:
            conv = BasisConv(WIDTH, WIDTH, walks(graph)).to(bench.device)
            with torch.no_grad():
                conv.weight.copy_(module.weight)
                conv.bias.copy_(module.bias)
            return conv

        contest = Contest(
            name=self.name,
            ways=WAYS,
            reference=WAYS[0],
            peer=peer,
            arguments=arguments,
            convert=ours,
            ours=(x, edge_index, None, edge_type),
            inputs=[x] if self.backward else [],
            backward=self.backward,
        )
        fields = {"graph": str(graph), "E": graph.E, "P": WIDTH, "Q": WIDTH}
        return contest.run(bench, target=self.target, **fields)


class SetUpRow:
    """The set-up of the twenty sorts with their first application, which may include some of it."""

    name = f"set-up of {len(SORTS)} sorts of walks in a knowledge graph, and an application"
    target = Target(10, memory=5)
    devices = ("cpu",)

    def run(self, bench: Bench) -> Result:
        graph = facts(bench)
        data = hetero(graph)
        torch.manual_seed(0)
        module, x = OnMetaPaths(len(SORTS)), torch.randn(graph.N, WIDTH)

        @torch.no_grad()
        def ours() -> object:
            conv = BasisConv(WIDTH, WIDTH, walks(graph))
            conv.weight.copy_(module.weight)
            bound = bind(conv, graph)
            return bound, conv(x, bound)

        @torch.no_grad()
        def theirs(way: str) -> tuple[object, Tensor]:
            films = lay_out_all(meta_paths(data), way)
            return films, module(x, films)

        def build(way: str) -> Callable[[], object]:
            expected, found = theirs(way)[1], ours()[1]  # type: ignore[index]
            assert_close(found, expected, f"{self.name}, {way}")
            return lambda: theirs(way)

        build(WAYS[0])  # a difference is an error here
        way, work, skipped = best(WAYS, build, bench.device)
        fields = {"work": self.name, "graph": str(graph), "way": way, "skipped": skipped, "gradients": "none"}
        return measure(work, ours, bench, P=WIDTH, Q=WIDTH, target=self.target, **fields)


def bind(conv: BasisConv, graph: Facts) -> Any:
    """Binds the basis to fresh tensors, for which nothing is cached."""
    return conv.basis.bind(graph.edge_index.clone(), edge_type=graph.edge_type.clone(), size=graph.N)


class LongRow:
    """Binds and applies a sort whose product would not fit in memory."""

    name = f"a sort of length {LONG.count('.') + 1} in a knowledge graph, bound and applied"
    target = Target(seconds=1, peak=1_000_000_000)
    devices = ("cpu",)

    def run(self, bench: Bench) -> Result:
        graph = facts(bench)
        count = graph.count(LONG)
        assert bench.quick or count > MANY, f"only {count:,.0f} walks"
        torch.manual_seed(0)
        conv, x = BasisConv(WIDTH, WIDTH, walks(graph, [LONG]), bias=False), torch.randn(graph.N, WIDTH)

        def work() -> Tensor:
            with torch.no_grad():
                y: Tensor = conv(x, bind(conv, graph))
            return y

        with torch.no_grad():
            expected = graph.walk(LONG, x) @ conv.weight[0].double()
            assert_close(work(), expected.float(), f"{self.name}: the value")
            found = bind(conv, graph).count(0)
            assert found == count, f"{found} walks instead of {count}"
        about = f"{graph}, {count:,.0f} walks of the sort"
        fields = {"work": self.name, "graph": about, "E": graph.E, "P": WIDTH, "Q": WIDTH, "gradients": "none"}
        return measure(None, work, bench, target=self.target, **fields)


def shared(count: int, length: int, common: int, relations: int) -> list[str]:
    """Different sorts of one length: they share the first `common` steps, and differ from the next step on.

    A trie of them has common + count * (length - common) nodes below its root.
    """
    start = [f"<relation {step % relations}>" for step in range(common)]
    sorts = []
    for k in range(count):
        own = [f"<relation {(k + step * step) % relations}>" for step in range(length - common)]
        sorts.append(".".join(start + own))
    assert len(set(sorts)) == count
    return sorts


@dataclass(frozen=True)
class TrieRow:
    """A hundred sorts of one length that share their first steps. series: the quantity that the time is plotted
    against."""

    length: int
    common: int
    series: str
    target: Target
    devices: tuple[str, ...] = ("cpu",)

    COUNT = 100

    @property
    def nodes(self) -> int:
        return self.common + self.COUNT * (self.length - self.common)

    @property
    def name(self) -> str:
        return f"{self.COUNT} sorts of length {self.length} in a knowledge graph, {self.nodes} nodes of the trie"

    def run(self, bench: Bench) -> Result:
        graph: Facts = bench.keep("relations", lambda: same_relations(bench.quick))
        sorts = shared(self.COUNT, self.length, self.common, len(graph.relations))
        torch.manual_seed(0)
        basis = bases.Walks(sorts, graph.relations, norm="row", per="step")
        conv = BasisConv(WIDTH, WIDTH, basis, bias=False)
        x = torch.randn(graph.N, WIDTH)
        arguments = (x, graph.edge_index, None, graph.edge_type)
        with torch.no_grad():
            some = conv.weight.double()[..., :4]  # a few channels, to save time
            parts = [probable(graph, s, x.double() @ w) for s, w in zip(sorts, some, strict=True)]
            expected = torch.stack(parts).sum(0)
            assert_close(conv(*arguments)[:, :4], expected.float(), f"{self.name}: the value")
            plans = planned(conv, lambda: conv(*arguments))
        length = self.nodes if self.series.startswith("nodes") else self.COUNT * self.length
        fields = {"work": self.name, "graph": str(graph), "E": graph.E, "P": WIDTH, "Q": WIDTH, "gradients": "none"}
        fields |= {"series": self.series, "length": length, "order": ", ".join(plan.order for plan in plans)}
        fields["ceiling"] = ceiling(plans, bench.ceilings)
        return measure(None, lambda: value(conv, arguments), bench, target=self.target, **fields)


def same_relations(quick: bool) -> Facts:
    """A hundred relations with as many edges each, so that one step costs what another does, and enough of them for
    the steps to cost more than the products with Theta."""
    found = random_facts(100, 100, 200) if quick else random_facts(1_000, 100, 24_000)
    found.relations = [f"relation {r}" for r in range(100)]
    return found


def probable(graph: Facts, sort: str, x: Tensor) -> Tensor:
    """(N, P) -> (N, P): x times the probabilities of the walks of a sort, step by step."""
    for step in sort.split("."):
        source, target = graph.edges(step.strip("<>"))
        out = torch.bincount(source, minlength=graph.N).clamp(1).unsqueeze(1)
        x = torch.zeros_like(x).index_add_(0, target, (x / out)[source])
    return x


def walks_rows() -> list[Any]:
    nodes, steps = "nodes of a trie, 500 steps", "steps of the sorts, few nodes of a trie"
    tries = [TrieRow(5, common, nodes, Target(slope=1.1)) for common in range(4, -1, -1)]
    tries += [TrieRow(length, length - 1, steps, Target(slope=0.2)) for length in (2, 4, 8, 16)]
    return [WalksRow(False, Target(3)), WalksRow(True, Target(3)), SetUpRow(), LongRow(), *tries]
