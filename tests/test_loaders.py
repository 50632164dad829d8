"""PyG's loaders: a new graph at every step, which never meets what was kept of another one."""

import copy
import gc
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.loader import (
    ClusterData,
    ClusterLoader,
    DataLoader,
    GraphSAINTRandomWalkSampler,
    NeighborLoader,
    ShaDowKHopSampler,
)
from torch_geometric.nn import ChebConv, GraphConv
from torch_geometric.nn.models import GAT, GCN, GraphSAGE
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE
from torch_geometric.utils import get_laplacian, to_dense_adj, trim_to_layer

from benchmarks import __main__ as command
from pyg_basisconv import BasisConv, bases, convert
from tests import oracle
from tests.test_cache import CACHES

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib' installation:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # of workers
]
P, Q = 5, 3
DOUBLE = torch.float64
MODELS = {
    "GCN": lambda: GCN(P, 8, 2, Q),
    "GAT": lambda: GAT(P, 8, 2, Q, heads=2),
    "GraphSAGE": lambda: GraphSAGE(P, 8, 2, Q),
}


class Net(nn.Module):
    """Two layers of several bases; the matrices depend on nothing but the edges into each node."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            BasisConv(*widths, bases.Identity() + bases.Adjacency("mean") + bases.Adjacency())
            for widths in ((P, 8), (8, Q))
        )

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        num_sampled_nodes_per_hop: list[int] | None = None,
        num_sampled_edges_per_hop: list[int] | None = None,
    ) -> Tensor:
        for i, conv in enumerate(self.convs):
            if num_sampled_nodes_per_hop is not None:
                x, edge_index, _ = trim_to_layer(i, num_sampled_nodes_per_hop, num_sampled_edges_per_hop, x, edge_index)
            x = conv(x, edge_index).relu()
        return x


def network(N: int = 120, E: int = 700) -> Data:
    """A graph with features, labels and weights, without repeated edges."""
    edge_index = torch.unique(torch.randint(N, (2, E)), dim=1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    weight = torch.rand(edge_index.shape[1], dtype=DOUBLE) + 0.5
    return Data(torch.randn(N, P, dtype=DOUBLE), edge_index, edge_weight=weight, y=torch.randint(Q, (N,)))


def neighbours(data: Data, numbers: list[int], **options: Any) -> NeighborLoader:
    pytest.importorskip("torch_sparse")
    return NeighborLoader(data, numbers, **({"batch_size": 16, "shuffle": True} | options))


def hops(batch: Data) -> tuple[list[int], list[int]]:
    """How many nodes and edges each hop has added; which pyg_lib would say, and no other sampler."""
    (source, target), nodes, edges = batch.edge_index, [batch.batch_size], []
    assert (target.diff() >= 0).all()
    while sum(edges) < target.numel():
        before = target < sum(nodes)
        edges.append(int(before.sum()) - sum(edges))
        nodes.append(max(int(source[before].max()) + 1 - sum(nodes), 0))
    return nodes, edges


def twins(kind: str) -> tuple[nn.Module, nn.Module]:
    """PyG's model, and what it is converted to."""
    reference = MODELS[kind]().double()
    return reference, convert(reference)


# --- sampled neighbourhoods ---

LAYOUTS: dict[str, Callable[[Data], Any]] = {
    "edge_index": lambda batch: batch.edge_index,
    "SparseTensor": lambda batch: T.ToSparseTensor()(copy.copy(batch)).adj_t,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", MODELS)
def test_training_on_neighbourhoods_is_pygs(kind: str, layout: str) -> None:
    """Every loss of an epoch: of each batch, and of all that was learnt from those before."""
    loader = neighbours(network(), [4, 3])
    reference, ours = twins(kind)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (reference, ours)]
    losses: list[list[Tensor]] = [[], []]
    for batch in loader:
        edges = LAYOUTS[layout](batch)
        for model, optimizer, found in zip((reference, ours), optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch.x, edges)[: batch.batch_size], batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
    assert_close(*losses)
    assert losses[0][-1] != losses[0][0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", MODELS)
def test_trimmed_models_are_pygs(kind: str, layout: str) -> None:
    reference, ours = twins(kind)
    for batch in neighbours(network(), [4, 3]):
        edges = LAYOUTS[layout](batch)
        nodes, counts = hops(batch)
        y = ours(batch.x, edges, num_sampled_nodes_per_hop=nodes, num_sampled_edges_per_hop=counts)
        z = reference(batch.x, edges, num_sampled_nodes_per_hop=nodes, num_sampled_edges_per_hop=counts)
        assert_close(y[: batch.batch_size], z[: batch.batch_size])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_trimmed_away_is_not_missed(layout: str) -> None:
    net = Net().double()
    for batch in neighbours(network(), [4, 3]):
        edges = LAYOUTS[layout](batch)
        trimmed, whole = net(batch.x, edges, *hops(batch)), net(batch.x, edges)
        assert len(trimmed) < len(whole)
        assert_close(trimmed[: batch.batch_size], whole[: batch.batch_size])


def test_layers_from_all_nodes_to_some() -> None:
    """Bipartite: the nodes that a layer computes are the first of those that it reads."""
    whole, first = Net().double(), Net().double()
    first.load_state_dict(whole.state_dict())
    for batch in neighbours(network(), [4, 3]):
        x, (nodes, counts) = batch.x, hops(batch)
        for i, conv in enumerate(first.convs):
            wanted = sum(nodes[: len(nodes) - 1 - i])
            edges = batch.edge_index[:, : sum(counts[: len(counts) - i])]
            x = conv((x, x[:wanted]), edges).relu()
        assert_close(x, whole(batch.x, batch.edge_index)[: batch.batch_size])


@pytest.mark.parametrize("kind", [*MODELS, "several"])
def test_all_neighbours_give_what_the_whole_graph_gives(kind: str) -> None:
    data = network()
    model = Net().double() if kind == "several" else twins(kind)[1]
    whole = model(data.x, data.edge_index)
    for batch in neighbours(data, [-1, -1, -1], batch_size=40):  # GCN's weights need one hop more than its layers
        assert_close(model(batch.x, batch.edge_index)[: batch.batch_size], whole[batch.input_id])


@pytest.mark.parametrize("kind", ["int32", "EdgeIndex"])
def test_other_edges_from_a_loader(kind: str) -> None:
    def change(batch: Data) -> Data:
        edges = batch.edge_index
        size = (batch.num_nodes, batch.num_nodes)
        batch.edges = (
            edges.int() if kind == "int32" else EdgeIndex(edges, sparse_size=size, sort_order="col").validate()
        )
        return batch

    ours, net = twins("GCN")[1], Net().double()
    for batch in neighbours(network(), [4, 3], transform=change):
        for model in (ours, net):
            assert_close(model(batch.x, batch.edges), model(batch.x, batch.edge_index))


def test_neighbourhoods_from_workers() -> None:
    data, net = network(), Net().double()
    whole, seen = net(data.x, data.edge_index), []
    for batch in neighbours(data, [-1, -1], batch_size=40, num_workers=2, pin_memory=False):
        assert_close(net(batch.x, batch.edge_index)[: batch.batch_size], whole[batch.input_id])
        seen.append(batch.input_id)
    assert torch.cat(seen).sort().values.tolist() == list(range(data.num_nodes))


# --- parts of a graph ---


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Callable[[Data], Iterator[Data]]:
    """Batches of two of eight clusters; the cut is by number, as METIS is not everywhere."""
    monkeypatch.setattr(ClusterData, "_metis", lambda self, edges, count: torch.arange(count) % self.num_parts)
    return lambda data: iter(ClusterLoader(ClusterData(data, 8, log=False), batch_size=2, shuffle=True))


@pytest.mark.parametrize("kind", MODELS)
def test_training_on_clusters_is_pygs(kind: str, clusters: Callable[[Data], Iterator[Data]]) -> None:
    reference, ours = twins(kind)
    sizes = []
    for batch in clusters(network()):
        assert_close(ours(batch.x, batch.edge_index), reference(batch.x, batch.edge_index))
        sizes.append(batch.edge_index.shape[1])
    assert len(sizes) == 4
    assert min(sizes) > 0


def test_weights_of_clusters(clusters: Callable[[Data], Iterator[Data]]) -> None:
    conv = BasisConv(P, Q, bases.Diffusion(2)).double()
    for batch in clusters(network()):
        pairs = list(zip(*batch.edge_index.tolist(), strict=True))
        g = oracle.Graph(batch.num_nodes, batch.num_nodes, pairs, batch.edge_weight)
        expected = oracle.apply(oracle.diffusion(g, 2), batch.x, conv.weight, conv.bias)
        assert_close(conv(batch.x, batch.edge_index, batch.edge_weight), expected)


def test_training_on_random_walks_is_pygs() -> None:
    """GraphSAINT: its norms weigh the edges, and the nodes in the loss."""
    pytest.importorskip("torch_sparse")
    reference = GraphConv(P, Q).double()
    ours = convert(reference)
    loader = GraphSAINTRandomWalkSampler(network(), 20, walk_length=2, num_steps=5, sample_coverage=5, log=False)
    for batch in loader:
        weight = batch.edge_norm.double() * batch.edge_weight
        losses = []
        for model in (reference, ours):
            y = model(batch.x, batch.edge_index, weight)
            loss = (F.cross_entropy(y, batch.y, reduction="none") * batch.node_norm).sum()
            losses.append((loss, torch.autograd.grad(loss, model.parameters())[-1].abs().sum()))
        assert_close(losses[1][0], losses[0][0])


def test_subgraphs_around_each_node() -> None:
    pytest.importorskip("torch_sparse")
    reference, ours = twins("GCN")
    for batch in ShaDowKHopSampler(network(), depth=2, num_neighbors=3, batch_size=40):
        assert_close(ours(batch.x, batch.edge_index), reference(batch.x, batch.edge_index))


# --- batches of small graphs ---


def molecule(N: int) -> Data:
    """A small undirected graph with the largest eigenvalue of its own Laplacian; without edges where it is odd."""
    ends = torch.randint(N, (2, 0 if N % 2 else 3 * N))
    ends = ends[:, ends[0] != ends[1]]
    edge_index = torch.unique(torch.cat([ends, ends.flip(0)], 1), dim=1)
    edges, weight = get_laplacian(edge_index, None, "sym", DOUBLE, N)
    L = to_dense_adj(edges, edge_attr=weight, max_num_nodes=N)[0]
    largest = torch.linalg.eigvalsh(L).max().view(1)
    return Data(torch.randn(N, P, dtype=DOUBLE), edge_index, lambda_max=largest)


def molecules() -> list[Data]:
    return [molecule(N) for N in (4, 8, 6, 1, 5, 6, 8, 4, 10, 7, 12)]


@pytest.mark.parametrize("given", ["each its own", "one number", "none"])
def test_each_graph_of_a_batch_is_as_if_alone(given: str) -> None:
    graphs = molecules()
    conv = BasisConv(P, Q, bases.Chebyshev(4)).double()

    def about(data: Data) -> dict[str, Any]:
        return {"each its own": {"lambda_max": data.lambda_max}, "one number": {"lambda_max": 1.7}}.get(given, {})

    for batch in DataLoader(graphs, batch_size=5, shuffle=True):
        y = conv(batch.x, batch.edge_index, batch=batch.batch, **about(batch))
        alone = [conv(one.x, one.edge_index, **about(one)) for one in batch.to_data_list()]
        assert_close(y, torch.cat(alone))


def test_batches_of_graphs_are_pygs() -> None:
    reference = ChebConv(P, Q, K=3).double()
    ours = convert(reference)
    for batch in DataLoader(molecules(), batch_size=5):
        about = {"batch": batch.batch, "lambda_max": batch.lambda_max}
        found, expected = (
            (y := model(batch.x, batch.edge_index, **about), *torch.autograd.grad(y.square().sum(), [model.bias]))
            for model in (ours, reference)
        )
        assert_close(found, expected)


def test_batches_from_workers() -> None:
    graphs, conv = molecules(), BasisConv(P, Q, bases.Chebyshev(3)).double()
    loader = DataLoader(graphs, batch_size=5, num_workers=2, pin_memory=False)
    here = Batch.from_data_list(graphs)
    found = [conv(b.x, b.edge_index, batch=b.batch, lambda_max=b.lambda_max) for b in loader]
    assert_close(torch.cat(found), conv(here.x, here.edge_index, batch=here.batch, lambda_max=here.lambda_max))


# --- what a new graph costs ---


@pytest.mark.slow
def test_rows_of_the_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    command.main(["--quick", "--only", "GAT on sampled", "--only", "batches of small graphs", "--json", str(file)])
    found, printed = json.loads(file.read_text()), capsys.readouterr().out
    here = WITH_TORCH_SPARSE or WITH_PYG_LIB
    assert [len(found["rows"]), len(found["skipped"])] == ([5, 0] if here else [2, 3])
    assert here or "torch_sparse" in printed
    for row in found["rows"]:
        assert row["ours_seconds"] is not None
        assert row["peer_seconds"] > 0


# --- nothing stale, nothing left ---

STEPS = st.lists(
    st.tuples(st.sampled_from(["new", "same", "edges", "weights", "x", "view", "turned"]), st.integers(0, 1 << 16)),
    min_size=3,
    max_size=12,
)


class Memory:
    """A graph in arrays that are used again and again, as an allocator would, and changed in place."""

    def __init__(self) -> None:
        self.arrays = [torch.zeros(2, 40, dtype=torch.long).numpy(), torch.zeros(40).double().numpy()]
        self.x = torch.randn(8, P, dtype=DOUBLE)
        self.edges = self.weight = torch.empty(0)
        self.new(0)

    def new(self, seed: int) -> None:
        """Other edges, and maybe another number of them, at the old address."""
        generator = torch.Generator().manual_seed(seed)
        E = 5 + seed % 30
        self.edges = self.weight = torch.empty(0)  # those before are gone
        self.arrays[0][:, :E] = torch.randint(8, (2, E), generator=generator).numpy()
        self.arrays[1][:E] = torch.rand(E, generator=generator).double().numpy()
        self.edges, self.weight = (torch.from_numpy(array)[..., :E] for array in self.arrays)

    def change(self, what: str, seed: int) -> None:
        e = seed % self.edges.shape[1]
        if what == "new":
            self.new(seed)
        elif what == "edges":
            self.edges[seed % 2, e] = seed % 7
        elif what == "weights":
            self.weight[e] += 1
        elif what == "x":
            self.x.mul_(1.5)
        elif what == "view":
            self.edges, self.weight = self.edges[:, : e + 1], self.weight[: e + 1]
        elif what == "turned":
            self.edges = self.edges.flip(0)


@settings(max_examples=40)
@given(STEPS)
def test_whatever_happens_to_a_graph_is_seen(steps: list[tuple[str, int]]) -> None:
    torch.manual_seed(0)
    memory = Memory()
    convs = [BasisConv(P, Q, basis, cached=True).double() for basis in (bases.Adjacency("rw"), bases.Adjacency())]
    for what, seed in steps:
        memory.change(what, seed)
        x, edges, weight = memory.x, memory.edges, memory.weight
        W = torch.zeros(8, 8, dtype=DOUBLE).index_put(tuple(edges), weight, accumulate=True)
        degree = W.sum(1, keepdim=True)
        for conv, A in zip(convs, (torch.where(degree == 0, 0, W / degree), W), strict=True):
            assert_close(conv(x, edges, weight), A.t() @ x @ conv.weight[0] + conv.bias, rtol=1e-9, atol=1e-9)


def held() -> int:
    """Bytes of all tensors that Python holds."""
    gc.collect()
    storages = {}
    for t in gc.get_objects():
        with suppress(NotImplementedError):  # of what other tests left, some have no storage
            if type(t) is Tensor:
                storages[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
    return sum(storages.values())


def steps(model: nn.Module, batches: Iterable[Data]) -> None:
    for batch in batches:
        model(batch.x, batch.edge_index).sum().backward()


@pytest.mark.parametrize("kind", ["GAT", "several"])
@pytest.mark.slow
def test_what_is_kept_stays_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in CACHES.values():  # other tests have left graphs in them that live on
        monkeypatch.setattr(cache, "_entries", {})
    model = Net() if kind == "several" else convert(MODELS[kind]())

    def batches(count: int) -> Iterator[Data]:
        for i in range(count):
            N = 20 + i % 7
            yield Data(torch.randn(N, P), torch.randint(N, (2, 60 + i % 11)))

    steps(model, batches(20))
    before, entries = held(), sum(map(len, CACHES.values()))
    steps(model, batches(300))
    assert sum(map(len, CACHES.values())) <= entries + 2
    assert held() <= before + 100_000


def test_graphs_that_all_live_are_kept_to_a_limit() -> None:
    conv = BasisConv(P, Q, bases.Adjacency("mean"))
    graphs = [torch.randint(9, (2, 20)) for _ in range(300)]
    x = torch.randn(9, P)
    first = [conv(x, edges) for edges in graphs]
    assert max(map(len, CACHES.values())) <= 256
    assert_close([conv(x, edges) for edges in graphs], first, rtol=0, atol=0)
    assert_close([copy.deepcopy(conv)(x, edges.clone()) for edges in graphs[:3]], first[:3], rtol=0, atol=0)
