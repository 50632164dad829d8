"""The benchmarks run, and their helpers measure what they say; nothing here depends on how fast anything is."""

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.nn import GraphConv

from benchmarks import (
    __main__ as command,
    batches,
    contest,
    data,
    fill,
    flex,
    gpu,
    gpu_rows,
    growth,
    knowledge,
    layers,
    measure,
    memcheck,
    new_graphs,
    on_device,
    orders,
    rates,
    resident,
    sequences,
    sites,
    small,
    verdicts,
    walks,
)
from benchmarks.compare import assert_same_gradients, step
from benchmarks.contest import best
from benchmarks.on_graphs import LayerRow
from benchmarks.report import Report
from benchmarks.result import Bench, Result, Row, Target, Within, one_thread
from benchmarks.rows import rows
from pyg_basisconv import convert
from pyg_basisconv.costs import MACHINES
from pyg_basisconv.plan import plan

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of the peers' layouts


def test_interleave_runs_every_work_in_every_round():
    calls: list[str] = []
    effort = measure.Effort(rounds=3, seconds=0.0, burst=0.0)
    seconds = measure.interleave([lambda: calls.append("a"), lambda: calls.append("b")], effort)
    assert [len(s) for s in seconds] == [3, 3]
    assert "".join(calls[-6:]) == "abbaab"  # each round starts one later than the last


def test_median_ratio_is_taken_round_by_round():
    assert measure.median_ratio([2, 400, 9], [1, 100, 3]) == 3


def test_memory_sees_the_peak_and_the_largest_allocation():
    x = torch.ones(1000)

    def work() -> torch.Tensor:
        y = torch.cat([x, x, x])  # 12,000 bytes
        z = x + 1  # 4,000 more
        return y[:1000] + z  # and 4,000

    found = measure.memory(work)
    assert (found.peak, found.largest) == (20_000, 12_000)


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()

    def fail() -> None:
        assert torch.get_num_threads() == before + 1
        raise KeyError

    with pytest.raises(KeyError), measure.threads(before + 1):
        fail()
    assert torch.get_num_threads() == before


def test_a_row_in_one_thread():
    class Threads:
        name, devices = "how many", ("cpu",)

        def run(self, bench: Bench) -> Result:
            return result(work=self.name, length=torch.get_num_threads())

    with measure.threads(2):
        found = one_thread(Threads()).run(Bench(quick=True))
        assert torch.get_num_threads() == 2
    assert (found.length, found.work) == (1, "how many, one thread")


def test_ceilings_are_the_slower_of_the_two():
    limits = measure.Ceilings(bandwidth=10.0, arithmetic=100.0)
    assert limits.seconds(operations=200, moved=10) == 2
    assert limits.seconds(operations=200, moved=50) == 5
    assert min(measure.ceilings(quick=True)) > 0


@pytest.mark.parametrize("undirected", [False, True], ids=["directed", "undirected"])
def test_random_graphs_have_no_loops_and_no_repeats(undirected: bool):
    graph = data.random_graph("g", 50, 200, 8, density=0.5, undirected=undirected)
    source, target = graph.edge_index
    assert graph.E == 200
    assert (source != target).all()
    assert graph.edge_index.unique(dim=1).shape[1] == 200
    edges = set(map(tuple, graph.edge_index.t().tolist()))
    assert not undirected or edges == {(n, m) for m, n in edges}
    torch.testing.assert_close(graph.sparse_x.to_dense(), graph.x)


def test_cora_is_the_dataset_where_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    if os.environ.get("BASISCONV_DATA"):
        assert data.graph("Cora").real
    monkeypatch.setenv("BASISCONV_DATA", str(tmp_path))
    found = data.graph("Cora", quick=True)
    assert not found.real
    assert "random" in str(found)


@pytest.mark.parametrize("wrong", ["value", "order"])
def test_a_wrong_gradient_is_found(wrong: str):
    def make() -> nn.Module:
        torch.manual_seed(0)
        return GraphConv(5, 3)

    graph, peer = data.random_graph("g", 20, 60, 5), make()
    ours, gradient = convert(peer), torch.randn(20, 3)
    peers, mine = (
        step(lambda m=m: m(graph.x, graph.edge_index), list(m.parameters()), gradient)[1:] for m in (peer, ours)
    )
    assert_same_gradients(make(), convert, peers, mine, "here")
    weight = [g.ndim for g in mine].index(3)
    broken = list(mine)
    broken[weight] = mine[weight].flip(0) if wrong == "order" else mine[weight] + 0.01 * mine[weight].abs().max()
    with pytest.raises(AssertionError, match="gradient of"):
        assert_same_gradients(make(), convert, peers, broken, "here")


def test_the_best_way_is_one_that_is_open():
    def build(name: str):
        if name == "bad":
            raise TypeError("no such layout")
        return lambda: None

    name, _, skipped = best(["bad", "good"], build, "cpu")
    assert (name, skipped) == ("good", {"bad": "TypeError: no such layout"})
    with pytest.raises(RuntimeError, match="no such layout"):
        best(["bad"], build, "cpu")


def test_every_layer_stands_in_the_table_on_every_small_graph():
    have = {(row.layer.name, row.size) for row in rows() if isinstance(row, LayerRow)}
    assert {(one.name, size) for one in layers.LAYERS for size in ("Cora", "PubMed-sized", "medium")} <= have


def test_every_row_has_a_name_of_its_own():
    names = [row.name for row in rows()]
    assert len(names) == len(set(names))


def test_a_band_matrix_holds_the_taps_of_its_row():
    taps = torch.arange(12.0).view(1, 4, 3) + 1
    assert sequences.band(taps, 0.0)[0].tolist() == [[2, 3, 0, 0], [4, 5, 6, 0], [0, 7, 8, 9], [0, 0, 10, 11]]


def test_the_peak_of_a_process_grows():
    before = resident.peak()
    assert 1 << 20 < before <= resident.peak()


def test_a_cloud_looks_the_same_at_every_size():
    clouds = [sites.cloud(count, 512) for count in (1_000, 20_000)]
    assert [one.sites.shape for one in clouds] == [(1_000, 3), (20_000, 3)]
    for one in clouds:
        assert len(one.sites.unique(dim=0)) == one.N
        assert one.sites.min() >= 0
        assert one.sites.max() < 512
        assert 11.3 < one.E / one.N < 11.7
    with pytest.raises(AssertionError, match="no room"):
        sites.cloud(100_000, 64)


def test_neighbours_in_a_cloud_are_counted():
    one = sites.cloud(300, 32)
    far = (one.sites[:, None] - one.sites[None]).abs().amax(-1)
    assert (far <= 1).sum() == one.E


def result(**changes: object) -> Result:
    times = {"peer_seconds": 2.0, "ours_seconds": 1.0, "ratio": 2.0, "target": ANY}
    memory = {"peer_memory": 9, "ours_memory": 8, "ours_largest": 8}
    fields = {"work": "A, large", "E": 10_000_000, "P": 8, "Q": 8, "gradients": "x", **times, **memory}
    return Result(**(fields | changes))


ANY = Target(ratio=1, group="any layer, any size")


def test_verdicts_tell_what_was_met():
    rows = [result(), result(work="B", target=Target(3)), result(work="C", ratio=0.5, ours_largest=400_000_000)]
    lines = verdicts.verdicts(rows)
    assert lines[0] == "- MISSED: B: 2 times, target >= 3"
    assert lines[1] == "- MISSED: any layer, any size: 1 of 2 rows >= 1; least: 0.5 times, C"
    assert lines[2].startswith("- MISSED: no allocation of E x Q")
    assert verdicts.verdicts([result(ratio=1.5)])[0].startswith("- met: any layer")


def test_verdicts_on_memory():
    lines = verdicts.verdicts([result(target=Target(2, memory=8)), result(target=Target(resident=5), resident=4)])
    assert lines[:2] == ["- met: A, large: 2 times, target >= 2", lines[1]]
    assert lines[1] == "- MISSED: A, large: 1/1.12 of the peak memory, target <= 1/8"
    assert lines[2].startswith("- met: A, large: 4e-09 GB resident")


def test_verdicts_on_our_own_peak_and_time():
    rows = [result(target=Target(peak=9)), result(target=Target(peak=7)), result(target=Target(seconds=0.5))]
    assert verdicts.verdicts(rows)[:3] == [
        "- met: A, large: 8e-06 MB at the peak, target <= 9e-06 MB",
        "- MISSED: A, large: 8e-06 MB at the peak, target <= 7e-06 MB",
        "- MISSED: A, large: 1 s, target <= 0.5 s",
    ]
    assert str(Target(2, peak=3_000_000, seconds=0.5)) == ">= 2, peak <= 3 MB, <= 0.5 s"


def test_verdicts_on_growth():
    def series(power: float) -> list[str]:
        target = Target(slope=1.1)
        lengths = (10, 100, 1000)
        rows = [result(target=target, series="S", length=n, ours_seconds=3 * n**power, E=0) for n in lengths]
        assert verdicts.verdicts(rows[:2]) == []
        return verdicts.verdicts(rows)

    assert series(1.0) == ["- met: S: time grows with the length to the power of 1, target <= 1.1"]
    assert series(1.2)[0].startswith("- MISSED: S: time grows with the length to the power of 1.2")


def test_what_was_lost_comes_first():
    behind = result(work="behind", ratio=0.98, target=Target(0.95))
    rows = [result(work="ahead"), behind, result(work="missed", target=Target(3))]
    bench = Bench(quick=True)
    bench.quick = False  # so that targets are judged
    report = Report(bench, {}, rows, [])
    assert [line.split(",")[0] for line in report.table.splitlines()[2:]] == ["| behind", "| missed", "| ahead"]
    assert [line.split(":")[0] for line in report.targets[:2]] == ["- MISSED", "- met"]


def quick(only: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
    """What the command prints and writes of the rows with one of these texts."""
    file = folder / "found.json"
    command.main(["--quick", *(word for text in only for word in ("--only", text)), "--json", str(file)])
    return capsys.readouterr().out, json.loads(file.read_text())


def test_one_row_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    printed, found = quick(("GCNConv, Cora, sparse x", "epoch of a 2-layer"), tmp_path, capsys)
    assert [row["P"] for row in found["rows"]] == [143, 143]
    assert "| GCNConv, Cora, sparse x, 143 -> 16 " in printed
    assert found["machine"]["torch"] == torch.__version__
    for row in found["rows"]:
        assert row["ratio"] > 0
        assert row["peer_memory"] > 0


# One row of each kind, with what is particular to it, and the gradients that it compares.
SMOKE = {
    "GMMConv K=25, medium": "Theta",
    "MFConv, medium, one thread": "Theta, x",
    "GATConv 8 heads, Cora, sparse x": "Theta",
    "GCNConv, large, against sparse layouts": "Theta, x",
    "GATConv 8 heads, 25M edges, in a process of its own": "Theta, x",
    "small call: GCNConv, cached, against CSR, one thread": "Theta",
    "small call: MultiheadAttention, forward, one thread": "none",
    "small call: GCNConv, forward, float64, one thread": "none",
    "new graph in every step: RGCNConv, 640 nodes, 1,280 edges, one thread": "Theta, x",
    "new graph in every step: GCNConv, 3,000 nodes, 12,000 edges, float64, one thread": "Theta, x",
    "GIN on batches of 32 small graphs: a step, one thread": "Theta",
    "GIN on batches of 32 small graphs: an epoch, loading included, one thread": "Theta",
    "no growth: 5,000 graphs of 1,280 edges, each gone when it was used": "Theta",
    "dense attention, causal, 1 x 16, 4 heads": "Theta, x",
    "LightweightConv, 31 taps, T = 512": "Theta, x",
    "Conv2d 3 x 3, 64 x 32 x 32, channels last": "Theta, x",
    "training step of a residual network of width 16, 32 images of 32 x 32": "Theta",
    "FastRGCNConv, 3 x 3 window as typed edges, 16 x 32 x 32, forward": "none",
    "edges of a 3 x 3 window, 1024 x 1024": "none",
    "submanifold 3 x 3 x 3, 10,000 sites of 64^3": "Theta, x",
    "set-up of a window 3 x 3 x 3, 10,000 sites of 512^3": "none",
    "DCRNN step of PyG's layers, 64 x 207 nodes, 2 powers both ways": "Theta, x",
    "ConvLSTM step, 3 x 3, 16 x 32 x 32": "Theta, x",
    "decompose a convolution 3 x 3, 64 x 64, as a function": "none",
    "RGCNConv on a knowledge graph, 16 blocks": "Theta, x",
    "20 sorts of walks in a knowledge graph": "Theta, x",
    "set-up of 20 sorts of walks in a knowledge graph, and an application": "none",
    "a sort of length 6 in a knowledge graph, bound and applied": "none",
    "100 sorts of length 2 in a knowledge graph, 101 nodes of the trie": "none",
}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(quick=True)


def test_every_kind_of_row_is_run() -> None:
    """Those of loaders are in `test_loaders`, the epoch is run by its command."""

    def kind(row: Row) -> str:
        return kind(row.row) if isinstance(row, Within) else f"{type(row).__module__}.{type(row).__name__}"

    run = {kind(row) for row in rows() if row.name in SMOKE}
    assert {kind(row) for row in rows()} - run == {"benchmarks.epoch.EpochRow", "benchmarks.loaders.SetUpRow"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if i % 5 == 2 else pytest.mark.slow) for i, name in enumerate(SMOKE)]
)
def test_a_row_runs(name: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # That of 25M edges shows that a process of its own works.
    monkeypatch.setattr(growth, "in_a_process", lambda module, kind, count: growth.measured(kind, count))
    (row,) = (row for row in rows() if row.name == name)
    threads = torch.get_num_threads()
    found = row.run(bench)
    assert torch.get_num_threads() == threads
    assert found.work == name
    assert found.ours_seconds > 0
    assert found.ours_memory is not None or found.resident or "loading" in name
    peers = [found.peer_seconds, found.ratio, found.way]
    assert all(peers) or not any(peers)
    assert (found.gradients, found.skipped) == (SMOKE[name], {})
    assert name in Report(bench, {}, [found], []).table


def test_a_graph_is_new_in_every_step():
    seen: list[torch.Tensor] = []

    class Watched(nn.Module):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_type: torch.Tensor) -> torch.Tensor:
            seen.extend([edge_index, edge_type])
            return 2 * x

    row = new_graphs.NewGraphRow("watched", Watched, ANY, (5, 7), new_graphs.typed)
    pool = [new_graphs.Drawn.of(5, 7, seed) for seed in range(2)]
    work = row._steps(Watched(), pool, torch.ones(5, new_graphs.WIDTH))
    for i in range(4):
        y, dx = work()
        assert torch.equal(y, 2 * pool[i % 2].x)
        assert (dx == 2).all()
        assert torch.equal(seen[2 * i], pool[i % 2].edge_index)
        assert torch.equal(seen[2 * i + 1], pool[i % 2].types)
    assert len({t.data_ptr() for t in [*seen, *(t for drawn in pool for t in drawn[1:3])]}) == 12


def test_a_molecule_is_connected_and_has_as_many_bonds_as_atoms():
    one = batches.molecule(20)
    assert one.edge_index.shape == (2, 40)
    assert one.is_undirected()
    reached = torch.zeros(20, dtype=torch.bool)
    reached[0] = True
    for _ in range(20):
        reached[one.edge_index[1][reached[one.edge_index[0]]]] = True
    assert reached.all()


def test_other_weights_of_attention_are_found():
    torch.manual_seed(0)
    peer, x = small.Attended(True), *small.on_sequence()
    small.assert_same_weights(peer, convert(peer), x)
    with pytest.raises(AssertionError, match="the weights of attention"):
        small.assert_same_weights(peer, small.Attended(True), x)


def test_growth_is_seen(monkeypatch: pytest.MonkeyPatch):
    kept: list[torch.Tensor] = []
    monkeypatch.setitem(growth.KINDS, "keeping", lambda conv, count: lambda i: kept.append(torch.ones(4_000_000)))
    assert growth.measured("keeping", 20)["ours_memory"] > 200_000_000  # of 288 MB; some stood empty before


def test_a_peer_has_sparse_features_where_it_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    _, found = quick(("GCNConv, Cora, sparse x", "ChebConv K=3, Cora, sparse x"), tmp_path, capsys)
    skipped = {row["work"].split()[0]: row["skipped"].keys() for row in found["rows"]}
    assert skipped["GCNConv,"] == set()
    assert {"edge_index, sparse x", "EdgeIndex, sparse x"} <= skipped["ChebConv"]


@pytest.mark.slow
def test_sections_are_filled(tmp_path: Path):
    file = tmp_path / "RESULTS.md"
    begin, end = '<!-- python -m benchmarks --only "small call: GCNConv, cached, forward" -->\n', "<!-- end -->\n"
    file.write_text(f"Before.\n\n{begin}{end}\nBetween.\n\n{begin}old\n{end}After.\n")
    fill.main([str(file), "--quick"])
    once = file.read_text()
    assert once.startswith(f"Before.\n\n{begin}\nprocessor")
    assert once.endswith(f"\n{end}After.\n")
    assert f"{end}\nBetween.\n\n{begin}" in once
    assert "old" not in once
    assert once.count("| small call: GCNConv, cached, forward, one thread, 16 -> 16 |") == 2
    fill.main([str(file), "--quick"])
    assert file.read_text().count("| small call: GCNConv") == 2


def test_every_section_of_the_results_has_rows():
    names = [row.name for row in rows()]
    sections = [fill.given(match[2]) for match in fill.SECTION.finditer(fill.RESULTS.read_text())]
    assert sections
    for asked in sections:
        assert all(any(text in name for name in names) for text in asked.only)


TRIPLES = {
    "train": "a\tlikes\tb\nb\tlikes\tc\nb\t/people/person/nationality\td\n",
    "valid": "e\tlikes\ta\n",
    "test": "",
}


def test_the_knowledge_graph_is_the_dataset_where_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("BASISCONV_DATA", str(tmp_path))
    with pytest.raises(data.Missing, match="FB15k-237"):
        knowledge.fb15k()
    raw = tmp_path / "FB15k-237" / "raw"
    raw.mkdir(parents=True)
    for part, text in TRIPLES.items():
        (raw / f"{part}.txt").write_text(text)
    found = knowledge.fb15k()
    assert (found.N, found.relations, found.real) == (5, ["likes", "nationality"], True)
    assert found.edge_index.tolist() == [[0, 1, 1], [1, 2, 3]]
    assert found.edge_type.tolist() == [0, 0, 1]
    counts = {"likes": 2, "likes.nationality": 1, "^likes.likes": 2, "likes.^nationality": 0}
    assert {sort: found.count(sort) for sort in counts} == counts


def test_a_row_without_its_data_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def nothing(*_: object) -> knowledge.Facts:
        raise data.Missing("it is not there")

    monkeypatch.setattr(walks, "facts", nothing)
    printed, found = quick(("20 sorts of walks in a knowledge graph, forward",), tmp_path, capsys)
    assert found["rows"] == []
    assert found["skipped"] == ["- skipped: 20 sorts of walks in a knowledge graph, forward: it is not there"]
    assert found["skipped"][0] in printed


def test_sorts_with_a_common_beginning():
    sorts = walks.shared(100, 5, 3, 100)
    beginnings = {tuple(sort.split(".")[:length]) for sort in sorts for length in range(1, 6)}
    assert (len(set(sorts)), len(beginnings)) == (100, 3 + 100 * 2)
    row = walks.TrieRow(5, 3, "nodes", ANY)
    assert row.nodes == len(beginnings)


def test_one_point_of_the_orders_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "found.json"
    orders.main(["--quick", "--only", "Chebyshev K=3, N=8, degree 3, 4 -> 4, fwd", "--json", str(file)])
    (point,) = json.loads(file.read_text())["points"]
    assert set(point["orders"]) == {"a_first", "theta_first", "phi"}
    assert point["loss"] >= 0
    assert "points lose at most 10%" in capsys.readouterr().out


def test_the_grid_of_orders_is_what_it_says():
    assert len(orders.points()) == len(set(map(str, orders.points()))) >= 60


def test_rates_are_fitted_to_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """From rates that are wrong by several times to the times that are the predictions by others."""
    start = MACHINES["cpu"]
    other = start._replace(
        arithmetic=start.arithmetic / 5, gather_cached=start.gather_cached * 3, small=start.small / 4
    )
    found = []
    for point in map(orders.shrunk, orders.points()[::8]):
        with rates.rates("cpu", other):
            possible = [e for e in plan.__wrapped__(orders.problem(point, "cpu")).estimates if not e.refused]
        found.append({"point": str(point), "orders": {e.order: {"seconds": e.seconds} for e in possible}})
    file = tmp_path / "found.json"
    file.write_text(json.dumps({"points": found, "quick": True}))
    rates.main([str(file)])
    assert MACHINES["cpu"] == start
    today, fitted, line = capsys.readouterr().out.splitlines()
    wrong = [float(text.split("factor of ")[1].split(";")[0]) for text in (today, fitted)]
    assert wrong[0] > 1.2
    assert wrong[1] < 1.03
    assert f"; {len(found)} of {len(found)} points lose at most 10%" in fitted
    assert line.startswith('- `MACHINES["cpu"] = Machine(arithmetic=')


def test_points_of_the_grid_are_rows(tmp_path: Path):
    row, bench = rates.PointRow(orders.points()[0]), Bench(quick=True)
    assert gpu.measure([row], bench, tmp_path, seconds=0) == 0
    (found,) = gpu.results([row], tmp_path)
    assert rates.fit([found], True, "cpu")[0].startswith("- today: predictions are wrong by a factor of ")


def test_peers_are_compiled_too(monkeypatch: pytest.MonkeyPatch):
    """The fastest way of a peer is run as it is and under `torch.compile`; ours is not. One that fails is skipped."""
    compiled, calls = [], count(2)
    monkeypatch.setattr(torch, "compile", lambda module: (compiled.append(module), nn.Sequential(module))[1])
    monkeypatch.setattr(nn.Sequential, "forward", lambda self, *args: self[0](*args))
    monkeypatch.setattr(contest, "clock", lambda *args: 1 / next(calls))  # the last one tried is the fastest
    bench = Bench(quick=True)
    bench.compiles = True
    row = next(row for row in rows() if isinstance(row, LayerRow) and row.layer.name == "GraphConv add")
    result = row.run(bench)
    assert result.way.endswith(", compiled")
    assert [type(module) for module in compiled] == [GraphConv]

    def refuse(module: nn.Module) -> nn.Module:
        raise RuntimeError("cannot be compiled")

    monkeypatch.setattr(torch, "compile", refuse)
    result = row.run(bench)
    assert not result.way.endswith(", compiled")
    assert result.skipped[f"{result.way}, compiled"] == "RuntimeError: cannot be compiled"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_rows_are_refused(tmp_path: Path):
    with pytest.raises(SystemExit, match="--gpu: expected a CUDA device, got none"):
        command.main(["--gpu", str(tmp_path)])
    assert not list(tmp_path.iterdir())


class Counted:
    """A row that counts its runs; the one called 'wrong' fails."""

    devices = ("cuda",)

    def __init__(self, name: str) -> None:
        self.name, self.runs = name, 0

    def run(self, bench: Bench) -> Result:
        self.runs += 1
        if self.name == "wrong":
            raise RuntimeError("out of memory")
        return gpu_rows.compared(self.name, [2.0, 4.0], [1.0, 1.0], 10, 3, Target(ratio=2), "a way")


def test_rows_of_a_gpu_are_measured_in_parts(tmp_path: Path):
    todo = [Counted(name) for name in ("first, 1 / 2", "wrong", "last")]
    bench = Bench(quick=True)
    assert [gpu.measure(todo, bench, tmp_path, seconds=0) for _ in range(4)] == [2, 1, 0, 0]
    assert [row.runs for row in todo] == [1, 1, 1]
    first, wrong, last = gpu.results(todo, tmp_path)
    assert wrong == "- failed: wrong: RuntimeError: out of memory"
    assert isinstance(first, Result)
    assert isinstance(last, Result)
    assert (first.work, first.ratio, first.target, last.work) == ("first, 1 / 2", 3.0, Target(ratio=2), "last")


def test_a_row_that_ends_its_process_is_not_measured_again(tmp_path: Path):
    class Ends(Counted):
        def run(self, bench: Bench) -> Result:
            super().run(bench)
            raise SystemExit

    row, bench = Ends("last"), Bench(quick=True)
    with pytest.raises(SystemExit):
        gpu.measure([row], bench, tmp_path, seconds=0)
    assert (gpu.measure([row], bench, tmp_path, seconds=0), row.runs) == (0, 1)
    assert list(gpu.results([row], tmp_path)) == ["- failed: last: it ended its process"]


MARKED = """
import os, pytest
pytestmark = pytest.mark.cuda
def test_a(): pass
def test_b(): os._exit(3)
def test_c(): assert False
def test_d(): pytest.skip()
def test_e(): pass
"""


@pytest.mark.slow
def test_the_tests_of_a_gpu_resume(tmp_path: Path):
    """One ends its process; of those behind it, the first part does not run any, and the last is without time."""
    some, file = tmp_path / "test_some.py", tmp_path / "found" / "tests.0.jsonl"
    some.write_text(MARKED)
    left = []
    for seconds in (60, 0, 60):
        call = f"pathlib.Path({str(file)!r}), {seconds}, 0, 1, {str(some)!r}"
        command = [sys.executable, "-c", f"import pathlib, benchmarks.on_device as d; print(d.run({call}))"]
        done = subprocess.run(
            command, cwd=Path(gpu.__file__).parent.parent, capture_output=True, text=True, check=False
        )
        left.append(done.stdout.splitlines()[-1] if not done.returncode else done.returncode)
    assert left == [3, "2", "0"]
    found = {name.partition("::")[2]: outcome for name, outcome in on_device.outcomes(file).items()}
    assert list(found) == ["test_a", "test_b", "test_c", "test_d", "test_e"]
    assert list(found.values()) == ["passed", "ended its process", "failed", "skipped", "passed"]
    told = gpu.told(file.parent)
    assert told.startswith("tests: 1 ended its process, 1 failed, 2 passed, 1 skipped")
    assert told.count("\n") == 2


SANITIZER = """#!/bin/sh
while [ "$1" != "--log-file" ]; do shift; done
echo "========= ERROR SUMMARY: 3 errors" > "$(echo "$2" | sed s/%p/$$/)"
shift 2
"$@"
exit 86
"""


@pytest.mark.slow
@pytest.mark.parametrize("found", [True, False], ids=["found", "not found"])
def test_tests_of_kernels_run_under_a_sanitizer(found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The other tests are done; one of these is behind, and what it tells of itself is that it saw no cache."""
    some, tool = tmp_path / "test_some.py", tmp_path / "compute-sanitizer"
    some.write_text(
        "import os, pytest\n@pytest.mark.cuda\ndef test_a(): assert os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING']\n"
    )
    if found:
        tool.write_text(SANITIZER)
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(on_device, "KERNELS", (str(some),))
    monkeypatch.setattr(gpu, "PROCESSES", 1)
    home = tmp_path / "home"
    home.mkdir()
    assert not gpu.all_tested(home, until=0)
    (home / "tests.done").touch()
    assert gpu.all_tested(home, monotonic() + 60)
    told = memcheck.told(home)
    if found:
        (log,) = home.glob("memcheck.*.log")
        assert told == f"memcheck: 3 errors\n- {log.name}: 3"
        assert list(on_device.outcomes(home / "memcheck.0.jsonl").values()) == ["passed"]
    else:
        assert told == "memcheck: nothing was checked; compute-sanitizer was not found, which comes with CUDA's toolkit"


def test_a_process_is_ended_with_those_that_it_has_begun(tmp_path: Path):
    """Its child has the pipe, and would be waited for."""
    begun = monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        gpu.alone(["sh", "-c", "sleep 60 & wait"], dict(os.environ), seconds=0.2)
    assert monotonic() - begun < 30


@pytest.mark.parametrize("begun", [True, False])
def test_a_check_that_cannot_begin_is_given_up(begun: bool, tmp_path: Path):
    if begun:
        (tmp_path / "memcheck.0.jsonl").touch()
    assert gpu.untested(tmp_path, "memcheck", 0, 60, prefix=["false"]) == begun


@pytest.mark.slow
def test_each_test_is_in_one_of_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    some, home = tmp_path / "test_some.py", tmp_path / "home"
    some.write_text("import pytest\n@pytest.mark.cuda\n@pytest.mark.parametrize('i', range(7))\ndef test_a(i): pass\n")
    monkeypatch.setattr(on_device, "KERNELS", (str(some),))
    monkeypatch.setattr(memcheck, "sanitizer", lambda: "env")
    monkeypatch.setattr(memcheck, "prefix", lambda *_: ["env"])
    monkeypatch.setattr(gpu, "PROCESSES", 3)
    home.mkdir()
    (home / "tests.done").touch()
    assert gpu.all_tested(home, monotonic() + 60)
    ran = [on_device.outcomes(file) for file in sorted(home.glob("memcheck.*.jsonl"))]
    assert [len(one) for one in ran] == [3, 2, 2]
    assert len(set().union(*ran)) == 7


def test_a_process_that_ended_before_it_was_checked_is_told_of(tmp_path: Path):
    (tmp_path / "memcheck.1.log").write_text("========= COMPUTE-SANITIZER\n")
    (tmp_path / "memcheck.2.log").write_text("========= ERROR SUMMARY: 0 errors\n")
    assert memcheck.told(tmp_path) == "memcheck: 0 errors\n- memcheck.1.log: ended early"


ON_DEVICE = [row for row in [*gpu_rows.gpu_rows(), flex.FlexRow()] if not isinstance(row, gpu_rows.CapturedRow)]


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[pytest.mark.slow] * isinstance(row, gpu_rows.CompiledRow)) for row in ON_DEVICE],
    ids=lambda row: row.name,
)
def test_rows_of_a_gpu_run_on_the_cpu(row: Any):
    result = row.run(Bench(quick=True))
    assert result.ours_seconds > 0
    assert result.work.startswith(row.name)
