"""Recurrent cells are their papers' formulas over any basis; `test_recipes.py` has torch's, over the identity."""

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad
from torch.testing import assert_close

from pyg_basisconv import bases, mechanisms, theta
from pyg_basisconv.bases import Basis
from pyg_basisconv.recurrent import BasisCell, BasisGRUCell, BasisLSTMCell, BasisRNNCell
from pyg_basisconv.theta import Theta
from tests import cases, contract, oracle
from tests.bases.grids import oracle as grids
from tests.bases.grids.cases import draw
from tests.recurrent import oracle as papers

DOUBLE = torch.float64
P, H = 3, 2
GRAPH = cases.graph(M=5, E=9)
TYPED = cases.typed(3, M=5, E=9)
GRID = (2, 3)
edges = torch.tensor(GRAPH.edges).t()


@dataclass(frozen=True)
class Place:
    """A basis, what a call takes beside x, and the same family from its definition."""

    basis: Callable[[], Basis]
    family: Callable[[BasisCell, str, Tensor], Tensor]  # for a part of a cell, and its features
    structure: dict[str, Any] = field(default_factory=dict)
    M: int = 5
    grid: tuple[int, ...] = ()
    theta: Callable[[], Theta] | None = None

    @property
    def images(self) -> bool:
        return bool(self.grid)

    def shape(self, batch: tuple[int, ...], width: int) -> tuple[int, ...]:
        return (*batch, width, *self.grid) if self.grid else (*batch, self.M, width)


def fixed(A: Tensor) -> Callable[[BasisCell, str, Tensor], Tensor]:
    return lambda cell, part, x: A


def attended(cell: BasisCell, part: str, x: Tensor) -> Tensor:
    a = getattr(cell, part).basis.mechanism
    return papers.attention(x, a.key, a.query)


WEIGHTED = {"edge_index": edges, "edge_weight": GRAPH.weight}
PLACES = {
    "diffusion": Place(lambda: bases.Diffusion(2), fixed(oracle.diffusion(GRAPH, 2)), WEIGHTED),
    "identity": Place(bases.Identity, fixed(oracle.identity(GRAPH))),
    "relations": Place(
        lambda: bases.Relations(3),
        fixed(oracle.edges(TYPED, 3)),
        {"edge_index": edges, "edge_weight": GRAPH.weight, "edge_type": torch.tensor(TYPED.type)},
    ),
    "Chebyshev, Separable": Place(
        lambda: bases.Chebyshev(3), fixed(oracle.chebyshev(GRAPH, 3)), WEIGHTED, theta=lambda: theta.Separable(2)
    ),
    "window, rows": Place(lambda: bases.Window(GRID, 3, padding=1), fixed(grids.window(GRID, (3, 3), padding=1)), M=6),
    "window, images": Place(
        lambda: bases.Window(None, (3, 3), padding="same"), fixed(grids.window(GRID, (3, 3), padding=1)), grid=GRID
    ),
    "diffusion, images": Place(
        lambda: bases.Diffusion(2), fixed(oracle.diffusion(GRAPH.but(M=6, N=6), 2)), WEIGHTED, M=6, grid=GRID
    ),
    "attention": Place(lambda: bases.Attention(2, mechanisms.Dot(2)), attended, M=4),
}


@dataclass(frozen=True)
class Kind:
    """A cell with its options, and its formula."""

    cell: type[BasisCell]
    formula: Callable[..., Any]
    input: str  # the gates that x has, in order
    hidden: str
    options: dict[str, Any] = field(default_factory=dict)
    peeps: str = ""  # "", "channel" or "position"

    def make(self, place: Place, **more: Any) -> BasisCell:
        options = self.options | more
        if self.peeps:
            options["peepholes"] = True if self.peeps == "channel" else place.grid or place.M
        kind = None if place.theta is None else place.theta()
        cell = self.cell(P, H, place.basis(), kind, images=place.images, **options).double()
        with torch.no_grad():
            for seed, parameter in enumerate(cell.parameters()):
                parameter.copy_(0.7 * draw(*parameter.shape, seed=seed + 40))
        return cell


KINDS = {
    "RNN": Kind(BasisRNNCell, papers.rnn, "h", "h"),
    "RNN, relu": Kind(BasisRNNCell, partial(papers.rnn, nonlinearity="relu"), "h", "h", {"nonlinearity": "relu"}),
    "GRU": Kind(BasisGRUCell, papers.gru, "rzn", "rz"),
    "GRU, reset after": Kind(BasisGRUCell, partial(papers.gru, reset="after"), "rzn", "rzn", {"reset": "after"}),
    "LSTM": Kind(BasisLSTMCell, papers.lstm, "ifgo", "ifgo"),
    "LSTM, peepholes per channel": Kind(BasisLSTMCell, papers.lstm, "ifgo", "ifgo", peeps="channel"),
    "LSTM, peepholes per position": Kind(BasisLSTMCell, papers.lstm, "ifgo", "ifgo", peeps="position"),
}


def blocks(t: Tensor, gates: str) -> dict[str, Tensor]:
    """The blocks of as many channels by name."""
    return dict(zip(gates, t.chunk(len(gates), -1), strict=True))


def parameters(cell: BasisCell, kind: Kind, place: Place) -> papers.Parameters:
    """Those of a cell, by name."""
    p = papers.Parameters(blocks(cell.input.theta.dense(), kind.input), blocks(cell.hidden.theta.dense(), kind.hidden))
    if cell.input.bias is not None:
        p.b = blocks(cell.input.bias, kind.input)
    if cell.hidden.bias is not None:
        p.b_hidden = blocks(cell.hidden.bias, kind.hidden)
    if hasattr(cell, "candidate"):
        p.U["n"] = cell.candidate.theta.dense()
    if kind.peeps:
        per_position = kind.peeps == "position" and place.grid
        rows = grids.rows(cell.peephole, len(place.grid)) if per_position else cell.peephole
        p.V = dict(zip("ifo", rows, strict=True))
    return p


def rows_of(t: Tensor, place: Place) -> Tensor:
    """(B, M, D), from the layout of a call."""
    return grids.rows(t, len(place.grid)) if place.images else t


def stepped(kind: Kind, cell: BasisCell, place: Place, x: Tensor, state: Any) -> Any:
    """One step by the formula, sample by sample; in the layout of a call."""
    p = parameters(cell, kind, place)
    family = partial(place.family, cell)
    several = isinstance(state, tuple)
    xs, states = rows_of(x, place), [rows_of(s, place) for s in (state if several else (state,))]
    ends = []
    for b in range(len(xs)):
        before = tuple(s[b] for s in states) if several else states[0][b]
        ends.append(kind.formula(p, family, xs[b], before))
    made = tuple(map(torch.stack, zip(*ends, strict=True))) if several else torch.stack(ends)
    if not place.images:
        return made
    return tuple(grids.image(t, place.grid) for t in made) if several else grids.image(made, place.grid)


def tensors(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def start(kind: Kind, place: Place, batch: int = 2) -> tuple[list[Tensor], Any]:
    """Inputs of two steps, and a state before them; all with gradients."""
    x = [draw(*place.shape((batch,), P), seed=seed).requires_grad_() for seed in (1, 2)]
    state = [draw(*place.shape((batch,), H), seed=3 + i).requires_grad_() for i in range(len(kind.cell.names))]
    return x, tuple(state) if len(state) > 1 else state[0]


def check(kind: Kind, place: Place, cell: BasisCell | None = None) -> None:
    """Two steps, and all their gradients, by the cell and by its formula."""
    cell = kind.make(place) if cell is None else cell
    x, state = start(kind, place)
    mine = theirs = state
    for step in x:
        mine = cell(step, h=mine, **place.structure)
        theirs = stepped(kind, cell, place, step, theirs)
    leaves = {"x1": x[0], "x2": x[1], **{f"state {i}": s for i, s in enumerate(tensors(state))}}
    leaves |= dict(cell.named_parameters())
    contract.alike(mine, theirs, leaves)


def named(table: dict[str, Any]) -> list[Any]:
    return [pytest.param(value, id=name) for name, value in table.items()]


MEETINGS = [  # every kind on one graph, one kind everywhere, and peepholes where they are laid out otherwise
    pytest.param(KINDS[kind], PLACES[place], id=f"{kind}, {place}")
    for kind, place in (
        *((kind, "diffusion") for kind in KINDS),
        *(("GRU", place) for place in PLACES if place != "diffusion"),
        *((kind, "window, images") for kind in KINDS if kind != "GRU"),
        ("LSTM", "attention"),
    )
]
SOME_KINDS = named({name: KINDS[name] for name in ("RNN", "GRU", "LSTM, peepholes per channel")})


@pytest.mark.parametrize(("kind", "place"), MEETINGS)
@pytest.mark.sweep(6)
def test_a_cell_is_its_formula(kind: Kind, place: Place) -> None:
    check(kind, place)


@pytest.mark.parametrize("kind", named(KINDS))
def test_a_cell_without_bias_is_its_formula(kind: Kind) -> None:
    cell = kind.make(PLACES["diffusion"], bias=False)
    assert not any("bias" in name for name, _ in cell.named_parameters())
    check(kind, PLACES["diffusion"], cell)


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.sweep(1)
def test_gradients_of_edge_weights(kind: Kind) -> None:
    cell = kind.make(PLACES["diffusion"])
    x, state = start(kind, PLACES["diffusion"])
    weight = GRAPH.weight.clone().requires_grad_()
    place = Place(bases.Identity, lambda *_: oracle.diffusion(GRAPH.but(weight=weight), 2))
    y = cell(x[0], edges, state, edge_weight=weight)
    found, expected = (
        grad(tensors(t)[0].square().sum(), weight)[0] for t in (y, stepped(kind, cell, place, x[0], state))
    )
    assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_no_state_is_a_state_of_zeros(kind: Kind) -> None:
    place = PLACES["diffusion"]
    cell, (x, state) = kind.make(place), start(kind, place)
    zeros = tuple(torch.zeros_like(s) for s in tensors(state))
    y, right = cell(x[0], edges), cell(x[0], edges, zeros if len(zeros) > 1 else zeros[0])
    for a, b in zip(tensors(y), tensors(right), strict=True):
        assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("batch", [pytest.param((), id="none"), pytest.param((2, 3), id="two")])
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_batch_dimensions(kind: Kind, batch: tuple[int, ...]) -> None:
    """As many as one likes: each entry by itself."""
    cell = kind.make(PLACES["diffusion"])
    x = draw(*batch, 5, P, seed=1)
    state = tuple(draw(*batch, 5, H, seed=2 + i) for i in range(len(cell.names)))
    y = tensors(cell(x, edges, state if len(state) > 1 else state[0]))
    flat = [t.reshape(-1, 5, t.shape[-1]) for t in (x, *state)]
    for b in range(len(flat[0])):
        mine = tuple(t[b] for t in flat[1:])
        right = tensors(cell(flat[0][b], edges, mine if len(mine) > 1 else mine[0]))
        for a, t in zip(right, y, strict=True):
            assert_close(t.reshape(-1, 5, H)[b], a, rtol=1e-12, atol=1e-12)


# In use.


@pytest.mark.parametrize("kind", [BasisRNNCell, BasisGRUCell, BasisLSTMCell])
def test_sparse_features(kind: type[BasisCell]) -> None:
    """The state that a cell begins with is dense."""
    cell, x = kind(P, H, bases.Diffusion(2)).double(), draw(5, P).relu()
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        for found, expected in zip(tensors(cell(sparse, edges)), tensors(cell(x, edges)), strict=True):
            assert_close(found, expected)


def taken(cell: BasisCell) -> list[Tensor]:
    """A step from a state, and all gradients."""
    dtype = cell.hidden.weight.dtype
    x = draw(2, 5, P, seed=1).to(dtype).requires_grad_()
    state = tuple(draw(2, 5, H, seed=3 + i).to(dtype).requires_grad_() for i in range(len(cell.names)))
    weight = GRAPH.weight.to(dtype)
    y = tensors(cell(x, edges, state if len(state) > 1 else state[0], edge_weight=weight))
    down = [draw(*t.shape, seed=7 + i).to(t.dtype) for i, t in enumerate(y)]
    return [*y, *grad(y, [x, *state, *cell.parameters()], down)]


def alike(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-12) -> None:
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, rtol=tolerance, atol=tolerance, check_dtype=False)


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.sweep(1)
def test_a_compiled_cell(kind: Kind) -> None:
    cell = kind.make(PLACES["diffusion"])
    torch._dynamo.reset()
    alike(taken(torch.compile(cell, fullgraph=True, backend="aot_eager")), taken(cell))
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_copies_and_files(kind: Kind) -> None:
    cell = kind.make(PLACES["diffusion"])
    right, file = taken(cell), io.BytesIO()
    torch.save(cell.state_dict(), file)
    file.seek(0)
    other = kind.make(PLACES["diffusion"])
    other.reset_parameters()
    assert not torch.equal(taken(other)[0], right[0])
    other.load_state_dict(torch.load(file, weights_only=True))
    for one in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), other):
        assert repr(one) == repr(cell)
        alike(taken(one), right, tolerance=0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [pytest.param(torch.float32, 1e-5, id="float32"), pytest.param(torch.bfloat16, 6e-2, id="bfloat16")],
)
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_narrower_numbers(kind: Kind, dtype: torch.dtype, tolerance: float) -> None:
    cell = kind.make(PLACES["diffusion"]).to(dtype)
    found, right = taken(cell), taken(copy.deepcopy(cell).double())
    assert all(t.dtype == dtype for t in found)
    alike(
        [t.double() / (1 + r.abs().max()) for t, r in zip(found, right, strict=True)],
        [r / (1 + r.abs().max()) for r in right],
        tolerance,
    )


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_autocast_keeps_the_state_as_it_is(kind: Kind) -> None:
    cell = kind.make(PLACES["diffusion"]).float()
    right = taken(cell)
    with torch.autocast("cpu", torch.bfloat16):
        found = taken(cell)
    parts = len(cell.names)
    alike(found[:parts], right[:parts], 3e-2)
    assert all(a.dtype == b.dtype for a, b in zip(found[parts:], right[parts:], strict=True))


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_gradients_twice_and_transforms(kind: Kind) -> None:
    """Second derivatives, and a vectorised call over several sets of parameters."""
    cell = kind.make(PLACES["diffusion"])
    x = draw(5, P, seed=1).requires_grad_()
    state = tuple(draw(5, H, seed=3 + i) for i in range(len(cell.names)))
    state = state if len(state) > 1 else state[0]
    h = tensors(cell(x, edges, state))[0]
    first = grad(h.square().sum(), x, create_graph=True)[0]
    second = grad(first.square().sum(), x)[0]
    step = 1e-5
    for i in ((0, 0), (3, 2)):
        ends = []
        for sign in (1, -1):
            moved = x.detach().clone()
            moved[i] += sign * step
            moved.requires_grad_()
            y = tensors(cell(moved, edges, state))[0].square().sum()
            ends.append(grad(y, moved)[0].square().sum())
        assert_close((ends[0] - ends[1]) / (2 * step), second[i], rtol=1e-5, atol=1e-7)
    several = {name: torch.stack([p.detach(), 0.5 * p.detach()]) for name, p in cell.named_parameters()}
    found = torch.func.vmap(lambda p: tensors(torch.func.functional_call(cell, p, (x.detach(), edges, state)))[0])(
        several
    )
    with torch.no_grad():
        assert_close(found[0], h, rtol=1e-10, atol=1e-12)
        for p in cell.parameters():
            p *= 0.5
        assert_close(found[1], tensors(cell(x, edges, state))[0], rtol=1e-10, atol=1e-12)


def test_a_width_that_the_first_call_tells() -> None:
    cell = BasisGRUCell(-1, H, bases.Diffusion(2))
    assert cell.in_channels == -1
    assert cell(torch.randn(5, 7), edges).shape == (5, H)
    assert cell.in_channels == 7


@pytest.mark.parametrize("kind", named(KINDS))
def test_what_is_learnt_is_each_convolution_s_own(kind: Kind) -> None:
    """One basis and one parameter may be given to many cells."""
    basis, form = bases.Attention(2, mechanisms.Dot(2)), theta.Separable(2)
    cells = [kind.cell(P, H, basis, form, **kind.options) for _ in range(2)]
    layers = [part for cell in cells for part in cell.children()]
    pointers = {p.data_ptr() for layer in layers for p in layer.parameters()}
    assert len(pointers) == sum(1 for layer in layers for _ in layer.parameters())
    assert not any(True for _ in basis.parameters())
    assert not any(True for _ in form.parameters())


def test_they_print_what_they_are() -> None:
    window = bases.Window(None, (3, 3), padding="same")
    shown = {
        "BasisRNNCell(3, 2, Identity(), Full(), nonlinearity='relu')": BasisRNNCell(
            3, 2, bases.Identity(), nonlinearity="relu"
        ),
        "BasisGRUCell(3, 2, Diffusion(K=2, direction='both'), Separable(H=2), reset='after')": BasisGRUCell(
            3, 2, bases.Diffusion(2), theta.Separable(2), reset="after"
        ),
        f"BasisLSTMCell(3, 2, {window}, Full(), images=True, peepholes=(4, 5))": BasisLSTMCell(
            3, 2, window, images=True, peepholes=(4, 5)
        ),
        "BasisLSTMCell(3, 2, Identity(), Full(), peepholes=True)": BasisLSTMCell(
            3, 2, bases.Identity(), peepholes=True
        ),
    }
    for text, cell in shown.items():
        assert repr(cell) == text


# Errors at the door.


def gru(**options: Any) -> BasisGRUCell:
    return BasisGRUCell(3, 4, bases.Diffusion(2), **options)


def lstm(**options: Any) -> BasisLSTMCell:
    return BasisLSTMCell(3, 4, bases.Diffusion(2), **options)


def image_cell(padding: int = 1, **options: Any) -> BasisLSTMCell:
    return BasisLSTMCell(3, 4, bases.Window(None, (3, 3), padding=padding), images=True, **options)


X = torch.zeros(2, 5, 3)
FAULTY = {
    "hidden_channels": (lambda: BasisGRUCell(3, 0, bases.Identity()), "hidden_channels: expected an integer from 1 on"),
    "in_channels": (lambda: BasisGRUCell(-2, 3, bases.Identity()), "in_channels: expected an integer from 0 on"),
    "basis": (lambda: BasisGRUCell(3, 3, "Identity"), "basis: expected a Basis, got 'Identity'"),
    "theta": (lambda: gru(theta="full"), "theta: expected a Theta"),
    "bias": (lambda: gru(bias=None), "bias: expected True or False, got None"),
    "images": (lambda: gru(images=2), "images: expected True or False, got 2"),
    "reset": (lambda: gru(reset="never"), "reset: expected 'before' or 'after', got 'never'"),
    "nonlinearity": (
        lambda: BasisRNNCell(3, 4, bases.Identity(), nonlinearity="gelu"),
        "nonlinearity: expected 'tanh' or 'relu', got 'gelu'",
    ),
    "peepholes 0": (lambda: lstm(peepholes=0), "peepholes: expected an integer from 1 on, got 0"),
    "peepholes of a grid": (lambda: lstm(peepholes=(4, 5)), "peepholes: expected False, True, or the number of nodes"),
    "peepholes of nothing": (lambda: image_cell(peepholes=()), "peepholes: expected .* the shape of the grid"),
    "peepholes in words": (lambda: lstm(peepholes="all"), "peepholes: expected False, True, or the number of nodes"),
    "peepholes of other nodes": (
        lambda: lstm(peepholes=6)(X, edges),
        r"x: expected \(6,\) as positions, which the peepholes are for, got \(5,\)",
    ),
    "peepholes of another grid": (
        lambda: image_cell(peepholes=(5, 4))(torch.zeros(2, 3, 4, 5)),
        r"x: expected \(5, 4\) as positions.*got \(4, 5\)",
    ),
    "channels": (lambda: gru()(torch.zeros(2, 5, 4), edges), "x: expected 3 channels"),
    "x no tensor": (lambda: gru()([[1.0]], edges), "x: expected a tensor"),
    "x of one axis": (lambda: gru()(torch.zeros(3), edges), r"x: expected shape \(\*, M, P\)"),
    "a pair": (lambda: gru()((X, X), edges), "x: expected a tensor"),
    "integers": (lambda: gru()(X.long(), edges), "x: expected a floating point dtype"),
    "no edges": (lambda: gru()(X), "edge_index: expected the edges that"),
    "attention asked for": (
        lambda: gru()(X, edges, return_attention=True),
        "return_attention: expected False, got True; ask a layer for it",
    ),
    "no image": (lambda: image_cell()(torch.zeros(4, 5)), "image: expected at least 3 axes"),
    "fewer targets": (
        lambda: image_cell(padding=0)(torch.zeros(2, 3, 4, 5)),
        r"basis: expected as many targets as sources, \(4, 5\), since a state is both, got \(2, 3\)",
    ),
    "a state of another batch": (
        lambda: gru()(X, edges, torch.zeros(3, 5, 4)),
        r"h: expected shape \(2, 5, 4\), as x, got \(3, 5, 4\)",
    ),
    "a state without a batch": (lambda: gru()(X, edges, torch.zeros(5, 4)), r"h: expected shape \(2, 5, 4\)"),
    "a state of other nodes": (lambda: gru()(X, edges, torch.zeros(2, 1, 4)), r"h: expected shape \(2, 5, 4\)"),
    "a state of another width": (lambda: gru()(X, edges, torch.zeros(2, 5, 3)), r"h: expected shape \(2, 5, 4\)"),
    "a state of another kind": (
        lambda: gru()(X, edges, torch.zeros(2, 5, 4).double()),
        "h: expected dtype torch.float32",
    ),
    "a state of integers": (lambda: gru()(X, edges, torch.zeros(2, 5, 4).int()), "h: expected dtype torch.float32"),
    "a state elsewhere": (lambda: gru()(X, edges, torch.zeros(2, 5, 4, device="meta")), "h: expected a tensor on cpu"),
    "a state no tensor": (lambda: gru()(X, edges, 0), "h: expected a tensor, got int"),
    "two states for one": (lambda: gru()(X, edges, (X, X)), "h: expected a tensor, got tuple"),
    "one state for two": (lambda: lstm()(X, edges, torch.zeros(2, 5, 4)), r"h: expected a tuple \(h, c\), got Tensor"),
    "three states for two": (lambda: lstm()(X, edges, (X, X, X)), r"h: expected a tuple \(h, c\), got 3 parts"),
    "a cell state of another shape": (
        lambda: lstm()(X, edges, (torch.zeros(2, 5, 4), torch.zeros(2, 5, 3))),
        r"c: expected shape \(2, 5, 4\), as x, got \(2, 5, 3\)",
    ),
    "an image's state in rows": (
        lambda: image_cell()(torch.zeros(2, 3, 4, 5), h=(torch.zeros(2, 20, 4),) * 2),
        r"h: expected shape \(2, 4, 4, 5\), as x, got \(2, 20, 4\)",
    ),
}


@pytest.mark.parametrize(("call", "message"), [pytest.param(*row, id=name) for name, row in FAULTY.items()])
def test_errors_at_the_door(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.cuda
@pytest.mark.parametrize("place", named({name: PLACES[name] for name in ("diffusion", "window, images")}))
@pytest.mark.parametrize("kind", named(KINDS))
def test_on_a_gpu_as_on_a_processor(kind: Kind, place: Place) -> None:
    cell = kind.make(place)
    results = []
    for device in ("cpu", "cuda"):
        cell.to(device)
        x, state = start(kind, place)
        leaves = [t.detach().to(device).requires_grad_() for t in (x[0], *tensors(state))]
        structure = {name: t.to(device) for name, t in place.structure.items()}
        y = tensors(cell(leaves[0], h=tuple(leaves[1:]) if len(leaves) > 2 else leaves[1], **structure))
        down = [draw(*t.shape, seed=7 + i).to(device) for i, t in enumerate(y)]
        results.append([t.cpu() for t in (*y, *grad(y, [*leaves, *cell.parameters()], down))])
    alike(*results, tolerance=1e-9)
