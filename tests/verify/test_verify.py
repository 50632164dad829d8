"""The table of `python -m pyg_basisconv verify`, and that it tells wrong from right."""

import runpy
import sys

import pytest
import torch
import torch_geometric.nn as pyg

from pyg_basisconv import BasisConv, GridConv, bases, compose, convert, fold, theta, verify
from pyg_basisconv.__main__ import main
from pyg_basisconv.convert.registry import arguments_of
from pyg_basisconv.verify import (
    GRIDS,
    SYSTEMS,
    TOLERANCE,
    Case,
    P,
    System,
    compare,
    made,
    relative_error,
    table,
)
from pyg_basisconv.verify.recipes import of_torch, typed_graph
from tests.convert.conversion import OPTIONS


def test_a_verification_repeats_and_leaves_the_generator() -> None:
    state = torch.get_rng_state()
    first, second = (verify.verify(SYSTEMS["GCN"]) for _ in range(2))
    assert first == second
    assert torch.equal(state, torch.get_rng_state())


def test_relations_are_compared_with_a_loop_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pyg_lib, too, which is not asked for anything."""
    monkeypatch.setattr("torch_geometric.typing.WITH_SEGMM", True)
    monkeypatch.setattr("torch_geometric.nn.conv.rgcn_conv.pyg_lib", None)
    for case in verify.cases("RGCNConv", {}):
        compare(case)


def wrong_forward():
    edge_index, weight = verify.graph()
    ours = BasisConv(5, 5, bases.Adjacency("mean"), theta.Pass(), bias=False)
    reference = BasisConv(5, 5, bases.Adjacency("rw"), theta.Pass(), bias=False)
    yield Case(ours, reference, [verify.features(verify.N, 5), weight], lambda f, x, w: f(x, edge_index, w))


def wrong_gradient():
    yield Case(lambda x: x * x.detach(), lambda x: x * x, [verify.features(3)])


def not_finite():
    yield Case(lambda x: x / 0, lambda x: x, [verify.features(3)])


def turned_kernel():
    reference = made("Conv2d", {"padding": 1})
    ours = convert(reference)
    ours.theta.weight.data = ours.theta.weight.data.flip(0)
    yield Case(ours, reference, [verify.features(2, reference.in_channels, 5, 6)])


def other_padding():
    reference = made("Conv1d", {"padding": 1, "padding_mode": "circular"})
    ours = convert(reference)
    ours.basis = bases.Window(None, 3, padding=1)
    yield Case(ours, reference, [verify.features(2, reference.in_channels, 9)])


def turned_back():
    """Rotations in the other order: only what is not symmetric tells."""
    layer = verify.drawn(GridConv(2, 3, bases.Group("p4", bases.Window((5, 5), 3, padding=1), lift=True)))

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.rot90(1, (-2, -1))

    yield Case(lambda x: layer(turned(x)), lambda x: turned(layer(x)).roll(-1, -3), [verify.features(2, 2, 5, 5)])


def other_norm():
    reference, edges = made("RGCNConv"), typed_graph()
    ours = convert(reference)
    ours.basis = bases.Relations(5, self_loop=True)
    yield Case(ours, reference, [verify.features(verify.N, P)], lambda f, x: f(x, *edges))


def other_relation():
    reference, (edge_index, kind) = made("FastRGCNConv"), typed_graph()
    ours = convert(reference)
    ours.theta.weight.data = ours.theta.weight.data[[1, 0, 2, 3, 4, 5]]
    yield Case(ours, reference, [verify.features(verify.N, P)], lambda f, x: f(x, edge_index, kind))


def other_statistics():
    model = verify.drawn(torch.nn.Sequential(torch.nn.Conv2d(5, 4, 3), torch.nn.BatchNorm2d(4))).eval()
    folded = fold(model)
    model[1].running_mean += 0.1
    yield Case(lambda x: folded(x), lambda x: model(x), [verify.features(2, 5, 9, 11)])


def other_order():
    first, second = (verify.drawn(BasisConv(5, 5, basis)) for basis in (bases.Adjacency(), bases.Powers(2)))
    (edge_index, weight), both = verify.graph(), compose(second, first)
    call = [verify.features(verify.N, 5), weight]
    yield Case(lambda x, w: both(x, edge_index, w), lambda x, w: second(first(x, edge_index, w), edge_index, w), call)


@pytest.mark.parametrize(
    "cases",
    [
        wrong_forward,
        wrong_gradient,
        not_finite,
        turned_kernel,
        other_padding,
        turned_back,
        other_norm,
        other_relation,
        other_statistics,
        other_order,
    ],
)
def test_what_differs_fails(cases, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(SYSTEMS, "wrong", System("wrong", "right", cases))
    assert main(["verify", "--only", "wrong"]) == 1
    assert "FAILS" in capsys.readouterr().out


def test_an_error_fails_its_row_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken():
        yield Case(lambda x: x @ x, lambda x: x, [verify.features(2, 3)])

    monkeypatch.setitem(SYSTEMS, "broken", System("broken", "right", broken))
    assert main(["verify", "--only", "broken", "--only", "APPNP"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "RuntimeError" in lines[2]
    assert lines[3].endswith("ok")


def test_a_parameter_without_counterpart_is_an_error() -> None:
    linear = torch.nn.Linear(3, 2)
    other = torch.nn.Linear(3, 2)
    with pytest.raises(LookupError, match="no counterpart"):
        compare(Case(linear, other, [torch.randn(4, 3)]))


def test_parameters_are_found_by_their_numbers() -> None:
    class Turned(torch.nn.Module):
        """A Linear whose matrix lies otherwise, one column of which has another gradient."""

        def __init__(self, linear: torch.nn.Linear, factor: float) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList([linear.bias.detach(), *linear.weight.detach().t()])
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bias, *rows = self.parts
            y = x @ torch.stack([*rows]) + bias
            return y + (self.factor - 1) * (rows[0] - rows[0].detach())

    linear, x = torch.nn.Linear(3, 2).double(), verify.features(4, 3)
    for factor, right in ((1.0, True), (1.5, False)):
        ours, theirs = compare(Case(Turned(linear, factor), linear, [x]))
        errors = [relative_error(*pair) for pair in zip(ours, theirs, strict=True)]
        assert (max(errors) < TOLERANCE) == right


def test_errors_are_relative_to_the_reference() -> None:
    assert relative_error(torch.tensor([100.0, 1.0]), torch.tensor([100.0, 2.0])) == 0.01
    assert relative_error(torch.tensor([0.5]), torch.tensor([0.0])) == 0.5
    assert relative_error(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")
    assert relative_error(torch.ones(2), torch.ones(3)) == float("inf")


def test_list_and_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(SYSTEMS) + 2
    assert main(["verify", "--only", "GCN", "--only", "APPNP"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["GCN", "APPNP"]
    assert all(line.endswith("ok") for line in lines[2:])
    assert main(["verify", "--list", "--only", "GATConv", "--only", "Upsample"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["GAT", "upsampling"]
    with pytest.raises(SystemExit) as stop:
        main(["verify", "--only", "nothing"])
    assert stop.value.code == 2
    assert "no system or layer is called 'nothing'" in capsys.readouterr().err


def test_rows_name_layers_that_exist() -> None:
    for system in SYSTEMS.values():
        source, _, names = system.reference.rpartition("nn.")
        home = torch.nn if source == "torch." else pyg
        for name in names.split(", "):
            assert any(hasattr(home, name.replace("Nd", f"{axes}d")) for axes in (1, 2, 3)), system.reference
            assert name.endswith("Nd") == (not hasattr(home, name))


def test_rows_name_what_they_are_compared_with() -> None:
    found = [SYSTEMS[name].reference for name in ("GATv2", "CNN, 2-D", "CNN, transposed", "SAGE")]
    assert found == [
        "torch_geometric.nn.GATv2Conv",
        "torch.nn.Conv2d",
        "torch.nn.ConvTransposeNd",
        "torch_geometric.nn.SAGEConv",
    ]


def test_the_module_is_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["pyg_basisconv", "verify", "--only", "APPNP"])
    monkeypatch.delitem(sys.modules, "pyg_basisconv.__main__")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("pyg_basisconv", run_name="__main__")
    assert not ended.value.code
    assert "APPNP" in capsys.readouterr().out


def test_tables_line_up() -> None:
    assert table([("a", "b"), ("long", "c")]) == "a     b\n-------\nlong  c"


# What changes no result, or is random, or is asked for by all layers of a kind.
ALWAYS = {"device", "dtype", "kwargs", "dropout", "in_channels", "out_channels", "channels", "kernel_size", "metadata"}
ALWAYS |= {"num_relations", "embed_dim", "num_heads", "return_indices", "batch_first", "nn", "alpha", "edge_dim"}
ALWAYS |= {"input_size", "hidden_size", "mode"}
EXCEPT = {
    "SuperGATConv": {"neg_sample_ratio", "edge_sample_ratio", "is_undirected"},  # of training
    "GMMConv": {"dim", "separate_gaussians", "root_weight"},  # a width, what is left, and what fails in PyG
    "PDNConv": {"hidden_channels"},
    "HEATConv": {"num_node_types", "num_edge_types", "edge_type_emb_dim", "edge_attr_emb_dim"},  # numbers and widths
    "Upsample": {"recompute_scale_factor"},  # what is left
    "EmbeddingBag": {
        "num_embeddings",
        "embedding_dim",
        "_weight",
        "max_norm",
        "norm_type",
        "sparse",
    }  # widths, what is left
    | {"scale_grad_by_freq"},
    "RNN": {"proj_size"},  # which torch gives the LSTM alone
    "GRU": {"proj_size"},
    **{f"ConvTranspose{n}d": {"padding_mode"} for n in GRIDS},  # torch takes none but zeros
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_option_of_a_layer_is_compared(kind: str) -> None:
    given = {name for options in OPTIONS[kind] for name in options}
    layer = getattr(torch.nn if of_torch(kind) else pyg, kind)
    assert arguments_of(layer).keys() - ALWAYS - EXCEPT.get(kind, set()) <= given


@pytest.mark.parametrize("n", GRIDS)
def test_every_padding_is_compared(n: int) -> None:
    modes = {options.get("padding_mode", "zeros") for options in OPTIONS[f"Conv{n}d"]}
    assert modes == {"zeros", "reflect", "replicate", "circular"}
    assert {"same", "valid"} <= {options.get("padding", 0) for options in OPTIONS[f"Conv{n}d"]}
