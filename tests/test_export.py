"""Layers and models as exported programs and in ONNX: one program, right for graphs of other sizes."""

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch_geometric import nn as pyg

from pyg_basisconv import BasisConv, BasisGRUCell, BasisRNN, GridConv, bases, convert, theta
from pyg_basisconv.mechanisms import MLP, Additive, Dot
from tests.cases import graph
from tests.contract import close, draw

SIZES = ((9, 30), (5, 7))  # others than those of the example


class Model(nn.Module):
    """Two layers with an activation between."""

    def __init__(self, first: BasisConv, second: BasisConv) -> None:
        super().__init__()
        self.layers = nn.ModuleList([first, second])

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, edge_type: Tensor | None = None
    ) -> Tensor:
        first, second = self.layers
        return second(first(x, edge_index, edge_weight, edge_type).relu(), edge_index, edge_weight, edge_type)


class Points(nn.Module):
    """Nodes whose features are where they are."""

    def __init__(self, attn_nn: nn.Module, pos_nn: nn.Module) -> None:
        super().__init__()
        self.conv = convert(pyg.PointTransformerConv(3, 4, pos_nn, attn_nn))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, x, edge_index)


class Named(nn.Module):
    """A converted layer, whose arguments have no names of their own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = convert(layer)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        return self.layer(x, edge_index, *([] if edge_attr is None else [edge_attr]))


class Series(nn.Module):
    """A cell along a series, the steps of which are the same features times numbers."""

    def __init__(self, cell: BasisGRUCell) -> None:
        super().__init__()
        self.rnn = BasisRNN(cell)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.rnn(torch.stack([x, -x, 2 * x]), edge_index, edge_weight=edge_weight)[0]


def gat(heads: int = 2) -> bases.Basis:
    score = Additive(projected=True).then(nn.LeakyReLU(0.2))
    return bases.Attention(heads, score, bases.Adjacency(self_loops=True))


def conv(basis: bases.Basis, kind: theta.Theta | None = None, P: int = 3, Q: int = 4) -> BasisConv:
    return BasisConv(P, Q, basis, kind)


RELATIONS = bases.Relations(3, "mean", inverse=True, self_loop=True)
KINDS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    # of the call: w: edge_weight, t: edge_type, b: batch, a: edge_attr
    "Adjacency(loops)": (lambda: conv(bases.Adjacency("mean", True)), "w"),
    "Adjacency(loops,add)+(loops,replace)": (
        lambda: conv(bases.Adjacency("rw", 2.0, "add") + bases.Adjacency("mean", 2.0, "replace", diagonal=0.5)),
        "w",
    ),
    "Degree+Laplacian.T": (lambda: conv(bases.Degree() + bases.Laplacian("rw").T), "w"),
    "Chebyshev": (lambda: conv(bases.Chebyshev(3)), "w"),
    "Diffusion@Mix": (lambda: conv((bases.Diffusion(2) @ bases.Mix([[1.0, 0.0, 2.0]], bases.Powers(3))).T), ""),
    "Wavelets": (lambda: conv(bases.Wavelets(3)), "w"),
    "Edges": (lambda: conv(bases.Identity() + bases.Edges(3)), "wt"),
    "Relations": (lambda: conv(RELATIONS, theta.Separable(2)), "t"),
    "Relations(sym)": (lambda: conv(bases.Relations(3, "sym")), "wt"),
    "Walks(sym)": (lambda: conv(bases.Walks(["0.1", "^2.(0|1)"], norm="sym")), "t"),
    "Walks(mean)": (lambda: conv(bases.Walks(["0.1", "^2.(0|1)"], norm="mean")), "wt"),
    "Walks(row)-steps": (lambda: conv(bases.Walks(["0.1", "^2.(0|1)"], norm="row", per="step")), "wt"),
    "Shifts+Adjacency+Complete+Causal": (
        lambda: conv(bases.Shifts(None, [-1, 0, 2]) + bases.Adjacency() + bases.Complete() + bases.Causal()),
        "",
    ),
    "Complete(batch)": (lambda: conv(bases.Complete()), "b"),
    "Attention(graph)": (lambda: conv(gat(), theta.Heads()), ""),
    "Attention(edges)": (
        lambda: conv(bases.Attention(2, MLP(3, edge_dim=2) + Dot(2, edge_dim=2), bases.Adjacency(self_loops=True))),
        "a",
    ),
    "Attention(dense)": (lambda: conv(bases.Attention(2, Dot(4)), theta.LowRank(2)), "n"),
    "Attention(causal)": (lambda: conv(bases.Attention(2, Dot(4), bases.Causal()), theta.Heads()), "n"),
    "Attention(batch)": (lambda: conv(bases.Attention(2, Additive(), bases.Complete(), "heads")), "nb"),
    "Attention(family)": (
        lambda: conv(bases.Attention(2, Dot(2), bases.Adjacency() + bases.Identity(), "target")),
        "",
    ),
    "GCN": (lambda: Model(conv(bases.Adjacency("sym", True)), conv(bases.Adjacency("sym", True), P=4)), "w"),
    "GATConv converted": (lambda: Named(pyg.GATConv(3, 4, 2)), ""),  # takes loops away: how many, no symbol says
    "GATConv converted(edges)": (lambda: Named(pyg.GATConv(3, 4, 2, edge_dim=2)), "a"),
    "TransformerConv converted(edges)": (lambda: Named(pyg.TransformerConv(3, 4, 2, edge_dim=2)), "a"),
    "GeneralConv converted(edges)": (lambda: Named(pyg.GeneralConv(3, 4, in_edge_channels=2)), "a"),
    "PointTransformerConv converted": (lambda: Points(nn.Linear(4, 4), nn.Sequential(nn.Linear(3, 4), nn.Tanh())), ""),
    "Gaussians": (lambda: conv(bases.Gaussians(3, 2)), "a"),
    "NNConv converted": (lambda: Named(pyg.NNConv(3, 4, nn.Linear(2, 12))), "a"),
    "BasisRNN": (lambda: Series(BasisGRUCell(3, 4, bases.Diffusion(2))), "w"),
}
ONNX = ("Edges", "Attention(graph)", "Attention(dense)", "GCN")


def inputs(call: str, M: int = 6, E: int = 14, seed: int = 0) -> dict[str, Tensor]:
    """Of a call on a random graph, with loops and repeated edges; or without edges."""
    g = graph(M=M, E=E, seed=seed)
    given = {"x": draw(M, 3, seed=seed).float()}
    if "n" not in call:
        given["edge_index"] = torch.tensor(g.edges).t().contiguous()
    if "w" in call:
        given["edge_weight"] = g.weight.float()
    if "t" in call:
        given["edge_type"] = torch.arange(g.E) % 3
    if "b" in call:
        given["batch"] = torch.arange(M) % 2
    if "a" in call:
        given["edge_attr"] = draw(g.E, 2, seed=seed).float()
    return given


def dynamic(given: dict[str, Tensor]) -> dict[str, dict[int, Any]]:
    nodes, edges = Dim("nodes", min=2), Dim("edges", min=2)
    axes = {"x": {0: nodes}, "batch": {0: nodes}, "edge_index": {1: edges}}
    return {name: axes.get(name, {0: edges}) for name in given}


def exported(model: nn.Module, given: dict[str, Tensor]) -> ExportedProgram:
    return export(model, (), given, dynamic_shapes=dynamic(given))


@cache
def ready(name: str) -> tuple[nn.Module, dict[str, Tensor], ExportedProgram]:
    """A model, the inputs of its example, and what was exported with them."""
    make, call = KINDS[name]
    model, given = make().eval(), inputs(call)
    return model, given, exported(model, given)


@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.sweep(2, "Complete(batch)")
def test_export(name: str) -> None:
    model, given, found = ready(name)
    program, (_, call) = found.module(), KINDS[name]
    close(program(**given), model(**given), tolerance=1e-5)
    for seed, (M, E) in enumerate(SIZES, 1):
        other = inputs(call, M, E, seed)
        close(program(**other), model(**other), tolerance=1e-5)
    # As many edges as nodes.
    square = {name: t[..., :M] if name == "edge_index" else t[:M] for name, t in other.items()}
    close(program(**square), model(**square), tolerance=1e-5)


@pytest.mark.parametrize("name", ["Attention(graph)", "TransformerConv converted(edges)", "GATConv converted(edges)"])
def test_graphs_without_edges(name: str) -> None:
    make, call = KINDS[name]
    model, given = make().eval(), inputs(call)
    sizes = {one: {1 if one == "edge_index" else 0: Dim.AUTO} for one in given}
    program = export(model, (), given, dynamic_shapes=sizes).module()
    empty = {one: t[..., :0] if one == "edge_index" else t if one == "x" else t[:0] for one, t in given.items()}
    close(program(**empty), model(**empty), tolerance=1e-5)


@pytest.mark.parametrize(("kind", "call"), [("GeneralConv", "a"), ("MFConv", "")])
def test_one_node(kind: str, call: str) -> None:
    options = {"in_edge_channels": 2} if call else {}
    model, given = Named(getattr(pyg, kind)(3, 4, **options)).eval(), inputs(call)
    sizes = {one: {1 if one == "edge_index" else 0: Dim.AUTO} for one in given}
    program = export(model, (), given, dynamic_shapes=sizes).module()
    one = given | {"x": given["x"][:1], "edge_index": given["edge_index"] * 0}
    close(program(**one), model(**one), tolerance=1e-5)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_images_of_any_size(mode: Any) -> None:
    window = bases.Window(None, (3, 3), stride=2, padding=1)
    model = nn.Sequential(GridConv(3, 4, window), nn.ReLU(), convert(nn.AvgPool2d(2)))
    height, width = Dim("height", min=8), Dim("width", min=8)
    with mode():
        program = export(model.eval(), (torch.randn(2, 3, 20, 31),), dynamic_shapes=({2: height, 3: width},)).module()
    for size in ((8, 8), (15, 40)):
        x = torch.randn(2, 3, *size)
        close(program(x), model(x), tolerance=1e-5)


def test_images_of_any_number() -> None:
    window = bases.Window(None, (3, 3), padding=1)
    model = nn.Sequential(GridConv(3, 4, window), nn.ReLU(), GridConv(4, 2, bases.Group("p4", window, lift=True)))
    batch = Dim("batch", min=2)
    program = export(model.eval(), (torch.randn(3, 3, 6, 6),), dynamic_shapes=({0: batch},)).module()
    x = torch.randn(5, 3, 6, 6)
    close(program(x), model(x), tolerance=1e-5)


def test_saved_programs_are_loaded() -> None:
    model, _, program = ready("GCN")
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    other = inputs("w", *SIZES[0], seed=1)
    close(torch.export.load(buffer).module()(**other), model(**other), tolerance=1e-5)


def test_a_bound_basis_is_a_constant_of_the_program() -> None:
    """What needs a look at values is bound beforehand; and stays usable."""
    given = inputs("t")
    sites = torch.cartesian_prod(torch.arange(3), torch.arange(2))
    for basis, edges in (
        (bases.Walks(["0.1", "2"], binary=True), {"edge_type": given["edge_type"]}),
        (bases.Window((3, 2), 3, padding=1, sites=sites), {}),
    ):
        layer = BasisConv(3, 4, basis)
        edge_index = given["edge_index"]
        if not edges:
            with pytest.raises(ValueError, match=r"torch\.export"):
                export(layer, (given["x"], edge_index))
        bound = basis.bind(edge_index, size=6, **edges)
        expected = layer(given["x"], bound)

        class Closed(nn.Module):
            def __init__(self, layer: nn.Module, bound: Any) -> None:
                super().__init__()
                self.layer, self.bound = layer, bound

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(x, self.bound)

        program = export(Closed(layer, bound), (given["x"],)).module()
        close(program(given["x"]), expected, tolerance=1e-5)
        close(layer(given["x"], bound), expected, tolerance=1e-5)


WRONG = {
    "source": ("edge_index", (0, 3), 6),
    "target": ("edge_index", (1, 3), 6),
    "negative": ("edge_index", (0, 3), -1),
    "negative target": ("edge_index", (1, 3), -1),
    "type": ("edge_type", (3,), 3),
    "negative type": ("edge_type", (3,), -1),
}


def spoil(given: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    name, place, value = WRONG[what]
    spoilt = {key: t.clone() for key, t in given.items()}
    spoilt[name][place] = value
    return spoilt


@pytest.mark.parametrize("name", ["Edges", "Relations", "GCN", "Attention(graph)"])
@pytest.mark.sweep(1)
def test_indices_of_nothing_raise(name: str) -> None:
    _, given, found = ready(name)
    program = found.module()
    for what, (argument, *_) in WRONG.items():
        if argument in given:
            with pytest.raises((IndexError, RuntimeError), match=r"(?i)index"):
                program(**spoil(given, what))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ONNX)
@pytest.mark.slow
def test_onnx(name: str) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, given, program = ready(name)
    call, buffer = KINDS[name][1], io.BytesIO()
    torch.onnx.export(program, dynamo=True, verbose=False).save(buffer)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(buffer.getvalue(), options)
    names = [one.name for one in session.get_inputs()]

    def run(given: dict[str, Tensor]) -> Tensor:
        return torch.from_numpy(session.run(None, {key: given[key].numpy() for key in names})[0])

    for seed, (M, E) in enumerate(((6, 14), *SIZES)):
        other = inputs(call, M, E, seed)
        close(run(other), model(**other), tolerance=1e-5)
    for what, (argument, *_) in WRONG.items():
        if argument in names:
            with pytest.raises(Exception, match=r"(?i)out of data bounds|invalid indice"):
                run(spoil(given, what))
