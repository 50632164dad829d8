"""Real processes: the example, the wrappers of torch around the layer, and PyG's partitioned data."""

import copy
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_geometric.distributed as partitioned
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import ProcessException
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.distributed import dist_neighbor_sampler
from torch_geometric.loader import ClusterData
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import WITH_METIS, WITH_PYG_LIB

from examples import distributed
from examples.distributed import Shards, Training, arguments, main, planted, processes, sampled
from pyg_basisconv import BasisConv, bases, nn as drop_in, theta
from pyg_basisconv.mechanisms import Additive
from tests.processes import TIMEOUT, together, two

SMALL = ["--nodes", "300", "--hidden", "8", "--batch-size", "40", "--device", "cpu"]


def grouped(work: Callable[..., Any], *args: Any) -> Any:
    """In a group of processes, which must outlive what work wraps, or destructors may wait for each other."""
    with processes("cpu"):
        return work(*args)


def trained(sample: bool) -> tuple[list[int], dict[str, Tensor]]:
    """Two epochs in float64 with all neighbours and without dropout: nothing is left to chance."""
    distributed.DROPOUT = 0.0
    if not sample:
        distributed.sampled = lambda: False
    data = planted(301)  # 151 of them to train
    data.x = data.x.double()
    training = Training(data, arguments().parse_args([*SMALL, "--neighbors", "-1", "-1"]), "cpu")
    shares = [len(share) for share in training.shards]
    for _ in range(2):
        for _ in training.steps():
            pass
    return shares, training.net.module.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("sample", [False, True], ids=["k_hop_subgraph", "NeighborLoader"])
def test_two_processes_take_the_steps_of_one(sample, monkeypatch):
    if sample and not sampled():
        pytest.skip("needs pyg-lib or torch_sparse")
    for name in ("DROPOUT", "sampled"):
        monkeypatch.setattr(distributed, name, getattr(distributed, name))
    sizes, alone = grouped(trained, sample)
    (shares, first), (others, second) = two(grouped, trained, sample)
    assert sizes == [38, 38, 38, 37]
    assert (shares, others) == ([19, 19, 19, 19], [19, 19, 19, 18])
    assert alone.keys() == first.keys()
    for name, value in alone.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value, rtol=1e-9, atol=1e-12)


def command(argv: list[str], dies: int = 0) -> None:
    """The example; process 0 is killed when it has written its so manieth checkpoint, but not yet put it in place."""
    calls, replace = [], Path.replace

    def deadly(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    Path.replace = deadly
    main(argv)


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def test_a_killed_run_continues_as_if_nothing_had_happened(tmp_path):
    """Bit for bit, also where the order of a sum matters."""

    def run(name: str, epochs: int, dies: int = 0) -> dict[str, Any]:
        path = tmp_path / name
        argv = [*SMALL, "--neighbors", "4", "4", "--epochs", str(epochs), "--checkpoint", str(path), "--resume"]
        if dies:
            with pytest.raises(ProcessException):
                together(3, command, argv, dies)
        else:
            together(3, command, argv)
        return load(path)

    whole = run("whole", 5)
    killed = run("killed", 5, dies=3)
    assert len(killed["history"]) == 2
    assert killed["history"] == whole["history"][:2]
    resumed = run("killed", 5)
    assert resumed["history"] == whole["history"]
    assert resumed["settings"] == whole["settings"]
    assert resumed["optimizer"]["param_groups"] == whole["optimizer"]["param_groups"]
    for name, value in whole["model"].items():
        assert not torch.equal(value, killed["model"][name])
        assert torch.equal(value, resumed["model"][name])
    for i, moments in whole["optimizer"]["state"].items():
        assert all(torch.equal(value, resumed["optimizer"]["state"][i][name]) for name, value in moments.items())


@pytest.mark.slow
def test_two_processes_are_as_accurate_as_one(tmp_path):
    argv = ["--nodes", "2000", "--hidden", "32", "--batch-size", "100", "--neighbors", "5", "5", "--epochs", "8"]
    argv += ["--device", "cpu", "--checkpoint"]
    main([*argv, str(tmp_path / "one")])
    two(command, [*argv, str(tmp_path / "two")])
    one, both = (max(load(tmp_path / name)["history"], key=lambda epoch: epoch[1])[2] for name in ("one", "two"))
    assert one > 0.6  # the features alone tell about 0.4
    assert abs(one - both) < 0.03


@pytest.mark.slow
def test_the_command(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    checkpoint = tmp_path / "checkpoint"
    argv = ["-m", "examples.distributed", *SMALL, "--epochs", "2", "--checkpoint", str(checkpoint)]
    done = subprocess.run([*launch, *argv], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 2, loss") == 1
    assert len(re.findall(r"2 processes, 2 epochs in [\d.]+ s", done.stdout)) == 1
    _, validation, test = max(load(checkpoint)["history"], key=lambda epoch: epoch[1])
    assert f"test accuracy {100 * test:.2f} %, validation {100 * validation:.2f} %" in done.stdout


def test_what_cannot_be_continued_is_refused(tmp_path, capsys):
    path = tmp_path / "checkpoint"
    argv = [*SMALL, "--epochs", "1", "--checkpoint", str(path)]

    def refusal(*more: str) -> str:
        with pytest.raises(SystemExit):
            main([*argv, *more])
        return capsys.readouterr().err

    main(argv)
    before = path.read_bytes()
    assert "--resume continues it" in refusal()
    assert "was made with hidden 8, not 9" in refusal("--resume", "--hidden", "9")
    assert path.read_bytes() == before
    path.write_bytes(before[:100])
    assert "not a checkpoint of this script" in refusal("--resume")
    argv = SMALL
    assert "from which --checkpoint?" in refusal("--resume")
    assert "a --checkpoint is of one training" in refusal("--seeds", "2", "--checkpoint", str(path))


def test_a_finished_run_is_not_trained_further(tmp_path, capsys):
    argv = [*SMALL, "--epochs", "2", "--checkpoint", str(tmp_path / "checkpoint"), "--resume"]
    results = []
    for _ in range(2):
        main(argv)
        results.append((capsys.readouterr().out.splitlines()[-1], load(tmp_path / "checkpoint")["history"]))
    assert results[0] == results[1]


def test_several_seeds_are_the_trainings_of_each(capsys):
    argv = [*SMALL, "--epochs", "2"]
    each = []
    for seed in (3, 4):
        main([*argv, "--seed", str(seed)])
        each += re.findall(r"^test accuracy ([\d.]+) %", capsys.readouterr().out, re.MULTILINE)
    main([*argv, "--seed", "3", "--seeds", "2"])
    *found, (mean, spread) = re.findall(
        r"^test accuracy ([\d.]+)(?: ± ([\d.]+))? %", capsys.readouterr().out, re.MULTILINE
    )
    assert [accuracy for accuracy, _ in found] == each
    a, b = map(float, each)
    assert float(mean) == pytest.approx((a + b) / 2, abs=0.01)
    assert float(spread) == pytest.approx(abs(a - b) / 2**0.5, abs=0.01)


def test_without_a_sampler_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(distributed, "sampled", lambda: False)
    main([*SMALL, "--epochs", "1"])
    assert 'pip install --no-build-isolation -e ".[sparse]"' in capsys.readouterr().out


def shares() -> list[list[int]]:
    """Of epochs 0, 1 and 0."""
    with pytest.raises(ValueError, match="3 nodes in 2 batches are too few for 2 processes"):
        Shards(nodes=3, batch_size=2, seed=0)
    shards, found = Shards(nodes=23, batch_size=6, seed=0), []
    for shards.epoch in (0, 1, 0):
        found.append([node for share in shards for node in share])
    return found


def test_each_epoch_deals_out_all_nodes_in_an_order_of_its_own():
    ours, others = two(grouped, shares)
    assert all(sorted(a + b) == list(range(23)) for a, b in zip(ours, others, strict=True))
    assert ours[0] == ours[2] != ours[1]


class Stack(nn.Module):
    """Layers, some of which take the graph."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index) if isinstance(layer, MessagePassing) else layer(x)
        return x


def models() -> dict[str, Stack]:
    torch.manual_seed(0)
    mean = bases.Identity() + bases.Adjacency("mean")
    attention = bases.Attention(2, Additive(projected=True), bases.Adjacency(self_loops=True))
    unfused = BasisConv(5, 6, mean)
    unfused.fuse = False
    first = {
        "SAGE": [BasisConv(5, 6, mean)],
        "separable": [BasisConv(5, 6, mean, theta.Separable(3))],
        "GAT": [BasisConv(5, 6, attention, theta.Heads())],
        "messages": [unfused],
        "BatchNorm": [BasisConv(5, 6, mean), nn.BatchNorm1d(6)],
        "drop-in": [drop_in.GATConv(5, 3, heads=2)],
    }
    return {k: Stack(*layers, nn.Tanh(), BasisConv(6, 3, bases.Chebyshev(3))).double() for k, layers in first.items()}


def graph(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(20, (2, 60), generator=generator)


def stepped(model: nn.Module, *graphs: int) -> dict[str, Tensor]:
    """The parameters after three steps, each against the gradient of the mean over some graphs."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        optimizer.zero_grad()
        losses = [model(*graph(10 * step + i)).square().mean() for i in graphs]
        (sum(losses) / len(losses)).backward()
        optimizer.step()
    return {name.removeprefix("module."): value.detach() for name, value in model.named_parameters()}


def data_parallel(model: Stack, **options: bool) -> dict[str, Tensor]:
    net = DistributedDataParallel(model, find_unused_parameters=False, **options)
    return stepped(net, dist.get_rank())


def fully_sharded(model: Stack) -> dict[str, Tensor]:
    mesh = init_device_mesh("cpu", (2,))
    for layer in [*model.layers, model]:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    found = stepped(model, dist.get_rank())
    assert any(value.to_local().shape != value.shape for value in found.values())
    return {name: value.full_tensor() for name, value in found.items()}


WRAPPERS = {
    "DDP": data_parallel,
    "DDP, bucket views": partial(data_parallel, gradient_as_bucket_view=True),
    "DDP, static graph": partial(data_parallel, gradient_as_bucket_view=True, static_graph=True),
    "FSDP": fully_sharded,
}


def wrapped() -> dict[tuple[str, str], dict[str, Tensor]]:
    return {(kind, name): wrap(model) for kind, wrap in WRAPPERS.items() for name, model in models().items()}


@pytest.fixture(scope="module")
def both():
    return two(grouped, wrapped)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", ["SAGE", "separable", "GAT", "messages", "BatchNorm", "drop-in"])
@pytest.mark.sweep(7)
def test_wrappers_of_torch_take_the_steps_of_one_process(wrapper, name, both):
    expected = stepped(models()[name], 0, 1)
    first, second = (found[wrapper, name] for found in both)
    assert first.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(first[key], second[key])
        torch.testing.assert_close(first[key], value, rtol=1e-12, atol=1e-14)


def test_batch_norm_becomes_that_of_all_processes_and_the_layers_stay():
    model = models()["BatchNorm"]
    found = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model)).eval()
    assert isinstance(found.layers[1], nn.SyncBatchNorm)  # which torch can train on GPUs alone
    assert found.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(found(*graph(0)), model.eval()(*graph(0)), rtol=0, atol=0)


# What pyg-lib computes for PyG's distributed sampler, where it is not installed. Everything around it is PyG's: the
# partitions on disk, the stores, who asks whom for which neighbours and features, and the batches.


def sample(colptr: Tensor, row: Tensor, seeds: Tensor, k: int, *_: Any) -> tuple[Tensor, Tensor, list[int]]:
    """At most k edges into each seed: the seeds and the sources, the edges, and where those of each seed begin."""
    edges = [torch.arange(colptr[i], colptr[i + 1]) for i in seeds.tolist()]
    edges = [e if k < 0 else e[torch.randperm(len(e))[:k]] for e in edges]
    ends = torch.tensor([len(seeds), *map(len, edges)]).cumsum(0)
    return torch.cat([seeds, row[torch.cat(edges)]]), torch.cat(edges), ends.tolist()


def merge(
    nodes: list[Tensor], edges: list[Tensor], ends: list[list[int]], parts: list[int], places: list[int], *_: Any
) -> tuple[Tensor, Tensor, None, list[int]]:
    """What was sampled by several processes, in the order of the seeds: parts[i] has it as places[i]."""
    slices = [slice(*ends[part][place : place + 2]) for part, place in zip(parts, places, strict=True)]
    sources = [nodes[part][s] for part, s in zip(parts, slices, strict=True)]
    found = [edges[p][s.start - ends[p][0] : s.stop - ends[p][0]] for p, s in zip(parts, slices, strict=True)]
    return torch.cat(sources), torch.cat(found), None, [len(source) for source in sources]


def relabel(seeds: Tensor, sources: Tensor, counts: list[int], *_: Any) -> tuple[Tensor, Tensor]:
    """The edges between numbers in the batch, which are given in the order of first appearance."""
    place: dict[int, int] = {}
    for node in [*seeds.tolist(), *sources.tolist()]:
        place.setdefault(node, len(place))
    row = torch.tensor([place[node] for node in sources.tolist()], dtype=torch.long)
    return row, torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.long))


STAND_INS = {"dist_neighbor_sample": sample, "merge_sampler_outputs": merge, "relabel_neighborhood": relabel}


def network() -> tuple[Data, Stack]:
    """A graph, and a model whose results at a node depend on what is two steps away, and no further."""
    torch.manual_seed(0)
    edge_index = torch.randint(31, (2, 120)).unique(dim=1)
    data = Data(x=torch.randn(31, 5, dtype=torch.float64), y=torch.randint(3, (31,)), edge_index=edge_index)
    basis = bases.Identity() + bases.Adjacency("mean")
    return data, Stack(BasisConv(5, 6, basis), nn.Tanh(), BasisConv(6, 3, basis)).double()


def partition_trained(root: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Of the nodes of this process, which has no others in its store: their numbers, first scores, and gradients."""
    # PyG 2.8 fails at saying that the module is deprecated: it misspells an argument of the warning.
    dist_neighbor_sampler.warn = lambda *_, **__: None
    if not WITH_PYG_LIB:
        for name, function in STAND_INS.items():
            setattr(torch.ops.pyg, name, function)
    data, model = network()
    rank = dist.get_rank()
    features = partitioned.LocalFeatureStore.from_partition(root, rank)
    features.labels = data.y
    assert len(features.get_tensor(group_name=None, attr_name="x")) < data.num_nodes
    loader = partitioned.DistNeighborLoader(
        (features, partitioned.LocalGraphStore.from_partition(root, rank)),
        num_neighbors=[-1, -1],
        master_addr=os.environ["MASTER_ADDR"],
        master_port=os.environ["MASTER_PORT"],
        current_ctx=partitioned.DistContext(rank, rank, 2, 2, "two"),
        input_nodes=features.get_global_id(None),
        batch_size=8,
        async_sampling=False,
    )
    net = DistributedDataParallel(model)
    nodes, scores = [], []
    for batch in loader:
        y = net(batch.x, batch.edge_index)[: batch.batch_size]
        nn.functional.cross_entropy(y, batch.y[: batch.batch_size], reduction="sum").backward()
        nodes.append(batch.n_id[: batch.batch_size])
        scores.append(y.detach())
    partitioned.rpc.shutdown_rpc()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return torch.cat(nodes), torch.cat(scores), gradients


def test_a_graph_in_two_parts_is_the_whole_graph(tmp_path, monkeypatch):
    if not WITH_METIS:  # nor is torch_sparse's compiled with METIS; the worst cut does as well
        monkeypatch.setattr(ClusterData, "_metis", lambda self, edge_index, N: torch.arange(N) % self.num_parts)
    data, model = network()
    partitioned.Partitioner(data, 2, str(tmp_path)).generate_partition()
    (nodes, scores, gradients), (others, more, same) = two(grouped, partition_trained, str(tmp_path))
    assert torch.equal(torch.cat([nodes, others]).sort()[0], torch.arange(data.num_nodes))
    y = model(data.x, data.edge_index)
    torch.testing.assert_close(scores, y[nodes])
    torch.testing.assert_close(more, y[others])
    (nn.functional.cross_entropy(y, data.y, reduction="sum") / 2).backward()  # the mean of two processes
    for name, parameter in model.named_parameters():
        assert torch.equal(gradients[name], same[name])
        torch.testing.assert_close(gradients[name], parameter.grad)
