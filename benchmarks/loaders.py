"""Rows of training on a new graph at every step: PyG's layers against their conversions."""

import copy
import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader, NeighborLoader
from torch_geometric.nn import ChebConv, global_mean_pool
from torch_geometric.nn.models import GAT, GCN
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from pyg_basisconv import convert

from .compare import assert_close, assert_same_gradients, step
from .contest import best, checked, measure, planned
from .data import Missing
from .measure import Work, interleave, median_ratio
from .result import Bench, Result, Target

WIDTH, CLASSES = 64, 7
NEIGHBOURS = [10, 10]
SAMPLES, LOADED = 40, 10  # batches that are repeated, and that are loaded anew
LAYOUTS = ["edge_index"] + ["SparseTensor"] * WITH_TORCH_SPARSE

_to_sparse_tensor = ToSparseTensor()


class Small(nn.Module):
    """Two Chebyshev layers on many small graphs, each with a Laplacian and a largest eigenvalue of its own."""

    def __init__(self, P: int, width: int) -> None:
        super().__init__()
        self.first, self.second = ChebConv(P, width, K=3), ChebConv(width, CLASSES, K=3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, lambda_max: Tensor) -> Tensor:
        about = {"batch": batch, "lambda_max": lambda_max}
        hidden = self.first(x, edge_index, **about).relu()
        return global_mean_pool(self.second(hidden, edge_index, **about), batch)


@dataclass(frozen=True)
class Training:
    """A model and the batches that it is trained on.

    make: makes the model, for the widths of x and of hidden layers.
    loader: yields the batches.
    layouts: of the graph, for PyG.
    called: the model's arguments, from a batch.
    least: the least hidden width.
    convert: makes ours of the model.
    """

    name: str
    make: Callable[[int, int], nn.Module]
    loader: Callable[[Bench], Iterable[Any]]
    layouts: Sequence[str]
    called: Callable[[Any], tuple[Any, ...]]
    least: int = 1
    convert: Callable[[nn.Module], nn.Module] = convert

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        y: Tensor = model(*self.called(batch))
        return F.cross_entropy(y[: batch.y.numel()], batch.y)

    def train(self, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        self.loss(model, batch).backward()
        optimizer.step()

    def steps(self, model: nn.Module, batches: Sequence[Any], layout: str = "edge_index", again: bool = False) -> Work:
        """Steps on the batches in turn; with `again`, on edges that were seen before."""
        optimizer, turn = torch.optim.Adam(model.parameters()), itertools.cycle(batches)

        def work() -> None:
            batch = next(turn)
            self.train(model, batch if again else laid_out(new(batch), layout), optimizer)

        return work

    def start(self, bench: Bench) -> tuple[Callable[[], nn.Module], Iterable[Any], list[Any]]:
        """The model, always with the same parameters, the loader, and some of its batches."""
        torch.manual_seed(0)
        loader = self.loader(bench)
        batches = list(itertools.islice(loader, 3 if bench.quick else SAMPLES))
        P = batches[0].x.shape[1]
        state = self.make(P, WIDTH).state_dict()

        def make() -> nn.Module:
            model = self.make(P, WIDTH)
            model.load_state_dict(state)
            return model

        for batch in batches[:3]:
            self.assert_same(make, batch)
        return make, loader, batches

    def assert_same(self, make: Callable[[], nn.Module], batch: Any) -> None:
        """Compares the loss and all gradients in float64, since rounding may change the sign before a ReLU."""
        peer = make()
        ours = checked(self.convert(peer))
        with torch.no_grad():
            assert_close(self.loss(ours, new(batch)), self.loss(peer, new(batch)), f"{self.name}: the loss")

        def both(model: nn.Module) -> tuple[Tensor, ...]:
            exact = new(batch)
            exact.x = batch.x.double()
            gradient = torch.tensor(1.0, dtype=torch.float64)
            return step(lambda: self.loss(model, exact), list(model.parameters()), gradient)

        found, expected = both(ours.double()), both(peer.double())
        assert_same_gradients(make().double(), self.convert, expected[1:], found[1:], self.name)

    def fields(self, batches: Sequence[Any]) -> dict[str, Any]:
        edges = round(statistics.mean(batch.edge_index.shape[1] for batch in batches))
        return {"graph": f"{edges} edges on average", "E": edges, "P": batches[0].x.shape[1], "Q": WIDTH}


def new(batch: Any) -> Any:
    """The batch with new edges, for which nothing is cached."""
    fresh = copy.copy(batch)
    fresh.edge_index = batch.edge_index.clone()
    return fresh


def laid_out(batch: Any, layout: str) -> Any:
    return batch if layout == "edge_index" else _to_sparse_tensor(batch)


def graph_of(batch: Any) -> Any:
    return batch.adj_t if "adj_t" in batch else batch.edge_index


@dataclass(frozen=True)
class StepsRow:
    """Steps of training, the graph bound in each; sampling is not counted."""

    training: Training
    target: Target
    devices: tuple[str, ...] = ("cpu",)

    @property
    def name(self) -> str:
        return f"{self.training.name}: a step"

    def run(self, bench: Bench) -> Result:
        training = self.training
        make, _, batches = training.start(bench)

        def build(layout: str) -> Work:
            work = training.steps(make(), batches, layout)
            work()
            return work

        layout, peers, skipped = best(training.layouts, build, "cpu")
        ours = training.convert(make())
        plans = planned(ours, lambda: training.loss(ours, batches[0]))
        fields = training.fields(batches) | {"order": ", ".join(plan.order for plan in plans)}
        fields |= {"work": self.name, "gradients": "Theta", "way": layout, "skipped": skipped, "target": self.target}
        return measure(peers, training.steps(ours, batches), bench.closely, **fields)


@dataclass(frozen=True)
class LoadedRow:
    """An epoch or its beginning, with the loader's work. most: the number of batches, None for all."""

    training: Training
    target: Target
    most: int | None = LOADED
    devices: tuple[str, ...] = ("cpu",)

    @property
    def name(self) -> str:
        what = "an epoch, loading included" if self.most is None else f"{self.most} batches, sampling included"
        return f"{self.training.name}: {what}"

    def run(self, bench: Bench) -> Result:
        training = self.training
        make, loader, batches = training.start(bench)

        def begin(model: nn.Module, layout: str) -> Work:
            optimizer, seeds = torch.optim.Adam(model.parameters()), itertools.count()

            def work() -> None:
                torch.manual_seed(next(seeds))  # both draw the same
                for batch in itertools.islice(loader, 2 if bench.quick else self.most):
                    training.train(model, laid_out(batch, layout), optimizer)

            return work

        layout, peers, skipped = best(training.layouts, lambda layout: begin(make(), layout), "cpu")
        ours, theirs = interleave([begin(training.convert(make()), "edge_index"), peers], bench.effort)
        return Result(
            work=self.name,
            gradients="Theta",
            way=layout,
            skipped=skipped,
            target=self.target,
            ours_seconds=statistics.median(ours),
            peer_seconds=statistics.median(theirs),
            ratio=median_ratio(theirs, ours),
            **training.fields(batches),
        )


@dataclass(frozen=True)
class SetUpRow:
    """The work that depends on the graph alone, against a whole step.

    It is the difference between steps on a new graph and on a known one, of a model with very few channels.
    """

    training: Training
    target: Target
    devices: tuple[str, ...] = ("cpu",)

    @property
    def name(self) -> str:
        return f"{self.training.name}: a step, over what it does for a new graph"

    def run(self, bench: Bench) -> Result:
        training = self.training
        make, _, batches = training.start(bench)
        thin = training.convert(training.make(1, training.least))
        works = [training.steps(thin, [narrowed(batch) for batch in batches])]
        works += [
            training.steps(thin, [narrowed(batches[0])], again=True),
            training.steps(training.convert(make()), batches),
        ]
        new, again, whole = interleave(works, bench.closely.effort)
        set_up = statistics.median(a - b for a, b in zip(new, again, strict=True))
        seconds = statistics.median(whole)
        return Result(
            work=self.name,
            gradients="Theta",
            way="the whole step, ours",
            target=self.target,
            peer_seconds=seconds,
            ours_seconds=set_up,
            ratio=seconds / set_up,
            **training.fields(batches),
        )


def narrowed(batch: Any) -> Any:
    """The batch with one feature."""
    other = copy.copy(batch)
    other.x = batch.x[:, :1].contiguous()
    return other


def sampled(bench: Bench) -> Iterable[Any]:
    """Neighbourhoods in a large graph."""
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        raise Missing("PyG samples neighbours with pyg_lib or torch_sparse, and neither is there")
    graph = bench.graph("large")
    data = Data(x=graph.x, edge_index=graph.edge_index, y=graph.y)
    return NeighborLoader(data, NEIGHBOURS, batch_size=32 if bench.quick else 512, shuffle=True, transform=of_seeds)


def of_seeds(batch: Data) -> Data:
    """Only the seed nodes have labels."""
    batch.y = batch.y[: batch.batch_size]
    return batch


def molecules(bench: Bench) -> Iterable[Any]:
    """Graphs of the size of molecules, 128 to a batch."""
    sizes = torch.randint(10, 30, (256 if bench.quick else 2048,)).tolist()
    return DataLoader([molecule(nodes) for nodes in sizes], batch_size=128, shuffle=True)


def molecule(nodes: int) -> Data:
    ends = torch.randint(nodes, (2, 2 * nodes))
    edge_index, largest = torch.cat([ends, ends.flip(0)], 1), 1.5 + torch.rand(1)
    return Data(x=torch.randn(nodes, 16), edge_index=edge_index, y=torch.randint(CLASSES, (1,)), lambda_max=largest)


def of_graph(batch: Data) -> tuple[Any, ...]:
    return batch.x, graph_of(batch)


def of_graphs(batch: Batch) -> tuple[Any, ...]:
    return batch.x, batch.edge_index, batch.batch, batch.lambda_max


def gcn(P: int, width: int) -> nn.Module:
    return GCN(P, width, 2, CLASSES)


def gat(P: int, width: int) -> nn.Module:
    return GAT(P, width, 2, CLASSES, heads=8)


ON_SAMPLES = [
    Training("GCN on sampled subgraphs", gcn, sampled, LAYOUTS, of_graph),
    Training("GAT on sampled subgraphs", gat, sampled, LAYOUTS, of_graph, least=8),
]
ON_MOLECULES = Training("ChebConv on batches of small graphs", Small, molecules, ["edge_index"], of_graphs)


def loader_rows() -> list[StepsRow | LoadedRow | SetUpRow]:
    no_slower, little = Target(ratio=1), Target(ratio=6.67)  # set-up is less than 15 % of the step
    return [
        *(StepsRow(one, no_slower) for one in [*ON_SAMPLES, ON_MOLECULES]),
        *(LoadedRow(one, no_slower) for one in ON_SAMPLES),
        *(SetUpRow(one, little) for one in ON_SAMPLES),
        SetUpRow(ON_MOLECULES, Target()),
    ]
