"""Trains `BasisConv` on mini-batches of one large graph, in several processes.

    torchrun --nproc-per-node 2 -m examples.distributed --checkpoint run.pt --resume
    python -m examples.distributed

The batches do not depend on the number of processes: each process takes an equal share of a batch's nodes and samples
their neighbours, and `DistributedDataParallel` adds the gradients, by gloo on CPUs and by nccl on GPUs. Random numbers
depend only on the seed, the epoch and the process, so that a checkpoint of the end of an epoch continues a training
exactly. Checkpoints are written atomically.

The planted graph has nodes of eight classes, and more than half of its edges join nodes of one class. The features of a
node alone tell its class in two cases of five.
"""

import argparse
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_geometric.typing
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Sampler
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.utils import coalesce, k_hop_subgraph, to_undirected

from examples.data import CITATIONS, planetoid
from examples.models import Stack
from examples.options import add_root, at_least, check_device, parser as options_of
from pyg_basisconv import BasisConv, bases

T = TypeVar("T")
CLASSES, CHANNELS, DEGREE, SAME, SIGNAL = 8, 32, 10, 0.5, 0.2  # of the planted graph
RATE, DECAY, DROPOUT = 0.01, 5e-4, 0.5
KEPT = ("dataset", "nodes", "batch_size", "neighbors", "hidden", "seed")  # the options that a checkpoint stores


@contextmanager
def processes(device: str) -> Iterator[None]:
    """Joins the process group, which has one process without torchrun."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    store = None if "RANK" in os.environ else dist.HashStore()  # type: ignore[attr-defined]
    if device != "cpu":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl", store=store, rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def by_first(work: Callable[[], T]) -> T:
    """Runs `work` in process 0; its result or error reaches all processes."""
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            found = [work()]
        except (OSError, ValueError) as error:
            found = [error]
    dist.broadcast_object_list(found)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def planted(nodes: int, seed: int = 0) -> Data:
    """A graph that tells the classes of its nodes better than their features do; half of the nodes are for training."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (nodes,), generator=generator)
    source = torch.arange(nodes).repeat_interleave(DEGREE // 2)
    count = y.bincount(minlength=CLASSES)
    place = (torch.rand(len(source), generator=generator) * count[y[source]]).long()
    akin = y.argsort(stable=True)[(count.cumsum(0) - count)[y[source]] + place]
    anyone = torch.randint(nodes, (len(source),), generator=generator)
    target = torch.where(torch.rand(len(source), generator=generator) < SAME, akin, anyone)
    means = torch.randn(CLASSES, CHANNELS, generator=generator)
    noise = torch.randn(nodes, CHANNELS, generator=generator)
    part = torch.randperm(nodes, generator=generator) % 4
    return Data(
        x=SIGNAL * means[y] + noise,
        y=y,
        edge_index=coalesce(to_undirected(torch.stack([source, target]))),
        train_mask=part < 2,
        val_mask=part == 2,
        test_mask=part == 3,
    )


def sow(seed: int, epoch: int, rank: int = 0) -> int:
    """The seed of an epoch, for a process."""
    return (seed << 40) + (epoch << 20) + rank


class Shards(Sampler[list[int]]):
    """The shares of this process in the batches of an epoch; sizes of batches, and of shares, differ by one at most."""

    def __init__(self, nodes: int, batch_size: int, seed: int) -> None:
        self.nodes, self.seed, self.epoch = nodes, seed, 0
        steps = math.ceil(nodes / batch_size)
        if nodes // steps < dist.get_world_size():
            few = f"{nodes} nodes in {steps} batches are too few for {dist.get_world_size()} processes"
            raise ValueError(f"--batch-size {batch_size}: {few}")
        self.sizes = [len(batch) for batch in torch.arange(nodes).tensor_split(steps)]

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.nodes, generator=torch.Generator().manual_seed(sow(self.seed, self.epoch)))
        for batch in order.split(self.sizes):
            yield batch.tensor_split(dist.get_world_size())[dist.get_rank()].tolist()


class Neighbourhoods:
    """Batches with all nodes within some hops, for an installation without pyg-lib and torch_sparse."""

    def __init__(self, data: Data, nodes: Tensor, hops: int, shards: Shards) -> None:
        self.data, self.nodes, self.hops, self.shards = data, nodes, hops, shards

    def __iter__(self) -> Iterator[Data]:
        x, y, edges = self.data.x, self.data.y, self.data.edge_index
        for share in self.shards:
            nodes, edge_index, seeds, _ = k_hop_subgraph(
                self.nodes[share], self.hops, edges, relabel_nodes=True, num_nodes=len(x)
            )
            yield Data(x=x[nodes], y=y[nodes], edge_index=edge_index, seeds=seeds)


def sampled() -> bool:
    """Whether PyG can sample neighbours."""
    return bool(torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE)


def batches(data: Data, neighbors: list[int], shards: Shards) -> Iterable[Data]:
    """Subgraphs around the nodes of the shares, which are the `seeds`."""

    def mark(batch: Data) -> Data:
        batch.seeds = torch.arange(batch.batch_size)
        return batch

    nodes = data.train_mask.nonzero().flatten()
    if not sampled():
        return Neighbourhoods(data, nodes, len(neighbors), shards)
    with warnings.catch_warnings():  # torch_sparse samples, too
        warnings.filterwarnings("ignore", ".*without a 'pyg-lib' installation", UserWarning)
        return NeighborLoader(data, neighbors, nodes, transform=mark, batch_sampler=shards)


def sage(P: int, hidden: int, classes: int, layers: int) -> Stack:
    """GraphSAGE: y = x Theta_0 + D^-1 A^T x Theta_1 + b."""
    widths = [P, *[hidden] * (layers - 1), classes]
    basis = bases.Identity() + bases.Adjacency("mean")
    return Stack(DROPOUT, F.relu, *(BasisConv(*ends, basis) for ends in pairwise(widths)))


class Training:
    """The model, its optimizer, and the loss, validation and test accuracy of each epoch so far."""

    def __init__(self, data: Data, options: argparse.Namespace, device: str) -> None:
        self.data, self.seed, self.device = data, options.seed, device
        torch.manual_seed(options.seed)
        model = sage(data.num_features, options.hidden, int(data.y.max()) + 1, len(options.neighbors))
        self.net = DistributedDataParallel(model.to(device, data.x.dtype), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.Adam(model.parameters(), RATE, weight_decay=DECAY)
        self.shards = Shards(int(data.train_mask.sum()), options.batch_size, options.seed)
        self.loader = batches(data, options.neighbors, self.shards)
        self.history: list[tuple[float, float, float]] = []
        # DDP rebuilds its buckets after the first backward pass, which changes the order of sums. Do this before the
        # first step, so that a continued run rounds as an uninterrupted one does.
        self.net(data.x[:1].to(device), data.edge_index[:, :0].to(device)).sum().backward()

    def steps(self) -> Iterator[None]:
        """Trains for an epoch; yields after each step."""
        epoch = self.shards.epoch = len(self.history)
        torch.manual_seed(sow(self.seed, epoch, 1 + dist.get_rank()))
        self.net.train()
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        for size, batch in zip(self.shards.sizes, self.loader, strict=True):
            batch = batch.to(self.device)
            self.optimizer.zero_grad()
            scores = self.net(batch.x, batch.edge_index)[batch.seeds]
            loss = F.cross_entropy(scores, batch.y[batch.seeds], reduction="sum")
            # The mean over the batch; the factor undoes the mean that DDP takes over the processes.
            (loss * dist.get_world_size() / size).backward()
            self.optimizer.step()
            total += loss.detach()
            yield
        dist.all_reduce(total)
        # Process 0 evaluates the whole graph, which is cheap without gradients; the others wait for its next batch.
        accuracies = self.accuracies() if dist.get_rank() == 0 else (0.0, 0.0)
        self.history.append((total.item() / self.shards.nodes, *accuracies))

    @torch.no_grad()
    def accuracies(self) -> tuple[float, float]:
        """The accuracies on the validation and the test nodes."""
        self.net.eval()
        scores = self.net.module(self.data.x.to(self.device), self.data.edge_index.to(self.device))
        right = scores.argmax(-1).cpu() == self.data.y
        return right[self.data.val_mask].double().mean().item(), right[self.data.test_mask].double().mean().item()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.net.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": self.history,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.net.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history = state["history"]


def save(state: dict[str, Any], path: Path) -> None:
    """Saves atomically: the old file stays until the new one is complete."""
    draft = path.with_name(path.name + ".part")
    with draft.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def load(options: argparse.Namespace) -> dict[str, Any] | None:
    """The checkpoint to continue from, or None."""
    path = options.checkpoint
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return None
    if not options.resume:
        raise ValueError(f"--checkpoint {path}: it is there already; --resume continues it")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        kept = state["settings"]
    except Exception as error:  # zip, pickle and torch raise all kinds of errors for other files
        raise ValueError(f"--checkpoint {path}: not a checkpoint of this script ({error})") from error
    for key, value in settings(options).items():
        if kept[key] != value:
            raise ValueError(f"--resume: {path} was made with {key.replace('_', '-')} {kept[key]}, not {value}")
    return state


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {key: getattr(options, key) for key in KEPT}


def read(options: argparse.Namespace) -> Data:
    if options.dataset == "planted":
        return planted(options.nodes)
    return planetoid(options.dataset, options.root.expanduser())


def train(options: argparse.Namespace, device: str) -> float:
    """Trains one model, which process 0 reports; the test accuracy, in percent, after the best epoch."""
    state = by_first(lambda: load(options))
    data = by_first(lambda: read(options))
    training, first, begin = Training(data, options, device), dist.get_rank() == 0, time.perf_counter()
    if state:
        training.restore(state)
    if first and not sampled():
        print("With neither pyg-lib nor torch_sparse, all neighbours are taken, for as many steps as --neighbors has")
        print('numbers. To have them sampled: pip install --no-build-isolation -e ".[sparse]"')
    steps, done = len(training.shards), len(training.history)
    epochs = max(options.epochs, done)
    text, percent = TextColumn("{task.description:44}"), TextColumn("{task.percentage:3.0f} %")
    with Progress(text, BarColumn(), percent, TimeElapsedColumn(), disable=not first) as bar:
        task = bar.add_task("", total=epochs * steps, completed=done * steps)
        for epoch in range(done, epochs):
            for _ in training.steps():
                bar.advance(task)
            loss, validation, _ = training.history[-1]
            bar.update(task, description=f"epoch {epoch + 1}, loss {loss:.3f}, validation {100 * validation:.2f} %")
            if first and options.checkpoint:
                save(training.state() | {"settings": settings(options)}, options.checkpoint)
    seconds, world = time.perf_counter() - begin, dist.get_world_size()
    best = max(range(epochs), key=lambda epoch: training.history[epoch][1])
    _, validation, test = training.history[best]
    if not first:
        return 100 * test
    print(f"\n{options.dataset}, {data.num_nodes:,} nodes, {data.num_edges:,} edges; batches of {options.batch_size}")
    print(f"{world} process{'es' * (world > 1)}, {epochs - done} epochs in {seconds:.1f} s")
    print(f"test accuracy {100 * test:.2f} %, validation {100 * validation:.2f} %, after epoch {best + 1}, its best")
    return 100 * test


def several(options: argparse.Namespace, device: str) -> None:
    """One training for each seed, and their mean."""
    seeds = range(options.seed, options.seed + options.seeds)
    found = [train(argparse.Namespace(**{**vars(options), "seed": seed}), device) for seed in seeds]
    if len(found) > 1 and dist.get_rank() == 0:
        mean, spread = statistics.mean(found), statistics.stdev(found)
        print(f"\ntest accuracy {mean:.2f} ± {spread:.2f} %, mean ± standard deviation of {len(found)} seeds")


def arguments() -> argparse.ArgumentParser:
    parser = options_of("distributed", __doc__)
    add = parser.add_argument
    add("--dataset", choices=["planted", *CITATIONS], default="planted", help="a made up graph or a citation network")
    add_root(parser, "Cora")
    add("--nodes", type=at_least(100, int), default=50_000, help="of the planted graph")
    add("--epochs", type=at_least(1, int), default=10, help="in all, with those of a checkpoint")
    add("--batch-size", type=at_least(1, int), default=1024, help="of all processes together")
    add("--neighbors", nargs="+", type=at_least(-1, int), default=[10, 10], help="per layer; -1 is all of them")
    add("--hidden", type=at_least(1, int), default=64, help="channels")
    add("--seed", type=at_least(0, int), default=0, help="of the first parameters, and of what is drawn")
    add("--seeds", type=at_least(1, int), default=1, help="number of trainings, of this seed and those after it")
    add("--checkpoint", type=Path, help="file for the state after each epoch")
    add("--resume", action="store_true", help="continue from the checkpoint, if it is there")
    add("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu", help="to train on")
    add("--threads", type=at_least(1, int), default=1, help="of torch, in each process")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    options = parser.parse_args(argv)
    if options.resume and not options.checkpoint:
        parser.error("--resume: from which --checkpoint?")
    if options.seeds > 1 and options.checkpoint:
        parser.error("--seeds: a --checkpoint is of one training")
    torch.set_num_threads(options.threads)
    device = "cpu" if options.device == "cpu" else f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    check_device(parser, device)
    with processes(device):
        try:
            several(options, device)
        except (OSError, ValueError) as error:
            if dist.get_rank() == 0:
                parser.error(str(error))
            sys.exit(2)


if __name__ == "__main__":
    main()
