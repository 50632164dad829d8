"""What is saved and loaded: states of layers, values, whole modules."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.testing import assert_close

from pyg_basisconv import BasisConv, GridConv, bases, convert, load_walks, mechanisms, theta
from pyg_basisconv.bases import EdgeList
from pyg_basisconv.expressions import read
from pyg_basisconv.mechanisms import MLP, Additive, Biaffine, Dot, Edge, Relative
from pyg_basisconv.serialization import PLAIN
from pyg_basisconv.verify import N, P, features, graph, made
from pyg_basisconv.walks import Vocabulary, parse
from tests.cases import CASES
from tests.contract import THETAS, KernelOfAnyLength, call, close, draw, make, widths
from tests.convert.conversion import LINEAR, OPTIONS

# One of each class of basis, and of what it is made of.
KINDS = list({repr([type(part) for part in case.basis().modules()]): name for name, case in CASES.items()}.values())


def file(value: Any, weights_only: bool = True) -> Any:
    """The value, from a file."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return torch.load(io.BytesIO(stream.getvalue()), weights_only=weights_only)


def basis_layer(name: str, **changes: Any) -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]:
    """How a layer on a case is made, and how it is called."""
    case = CASES[name]
    g = case.graph()
    return lambda: make(case.basis(), **changes), lambda conv: call(conv, draw(g.M, conv.theta.P), g)


def theta_layer(kind: str) -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]:
    return basis_layer("Chebyshev(4)-random", kind=kind, P=4)


def grid_layer(basis: Callable[[], bases.Basis]) -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]:
    return lambda: GridConv(2, 3, basis()), lambda conv: conv(draw(2, 2, 6, 6, dtype=torch.float32))


def attention_layer(
    mechanism: Callable[[], mechanisms.Mechanism], mask: bases.Basis | None, kind: Callable[[], theta.Theta]
) -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]:
    attr = {"edge_attr": draw(16, 2)} if mask is not None else {}
    edges = None if mask is None else torch.tensor(CASES["Edges(1)-random"].graph().edges[:16]).t()

    def make_it() -> nn.Module:
        return BasisConv(4, 4, bases.Attention(2, mechanism(), mask), kind()).double()

    return make_it, lambda conv: conv(draw(6, 4), edges, **(attr if conv.basis.reads_edges else {}))


def converted_layer(kind: str) -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]:
    options = OPTIONS[kind][4 if kind == "MixHopConv" else 0]
    x, (edge_index, _) = features(N, P), graph()
    return lambda: convert(made(kind, options)), lambda module: module(x, edge_index)


def taking(convolution: type[nn.Module], *args: Any) -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]:
    return lambda: convert(convolution(*args)), lambda module: module(draw(2, 4, 8, 8, dtype=torch.float32))


LAYERS = {
    **{name: basis_layer(name) for name in KINDS},
    **{f"theta-{kind}": theta_layer(kind) for kind in THETAS},
    "grid-Window": grid_layer(lambda: bases.Window(None, (3, 3), padding=1)),
    "grid-Window(shape)": grid_layer(lambda: bases.Window((6, 6), 3, stride=2)),
    "grid-Group": grid_layer(lambda: bases.Group("p4", bases.Window(None, (3, 3), padding=1), lift=True)),
    "grid-Shifts": grid_layer(lambda: bases.Shifts(None, [(0, 1), (2, 0)])),
    "attention-GAT": attention_layer(lambda: Additive(projected=True), bases.Adjacency(self_loops=True), theta.Heads),
    "attention-edges": attention_layer(lambda: MLP(3) + Edge(2), bases.Adjacency(), theta.Full),
    "attention-pairs": attention_layer(lambda: Dot(3, bias=True) + Relative((-2, 2)), None, lambda: theta.LowRank(2)),
    "attention-Biaffine": attention_layer(Biaffine, bases.Adjacency("sym"), theta.Full),
    **{f"convert-{kind}": converted_layer(kind) for kind in LINEAR},
    "convert-Conv2d": taking(nn.Conv2d, 4, 6, 3),
    "convert-ConvTranspose2d": taking(nn.ConvTranspose2d, 4, 6, 3),
    "convert-AvgPool2d": taking(nn.AvgPool2d, 2),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.sweep(30)
def test_a_state_has_parameters_only_and_is_all_there_is_to_save(name):
    make_it, run = LAYERS[name]
    used, fresh = make_it(), make_it()
    with torch.no_grad():
        for parameter in used.parameters():
            parameter.add_(0.25)
    y = run(used)
    state = used.state_dict()
    assert state.keys() == dict(used.named_parameters()).keys()
    assert fresh.load_state_dict(file(state), strict=True).missing_keys == []
    assert_close(run(fresh), y, rtol=0, atol=0)
    assert_close(dict(fresh.state_dict()), dict(state), rtol=0, atol=0)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.sweep(25)
def test_a_copy_is_the_same_is_its_own_and_carries_nothing_else(name):
    make_it, run = LAYERS[name]
    module = make_it()
    size = len(pickle.dumps(module))
    copies = [copy.deepcopy(module)]
    y = run(module)
    if y.requires_grad:
        y.sum().backward()
    module.zero_grad()
    assert len(pickle.dumps(module)) == size
    copies += [copy.deepcopy(module), file(module, weights_only=False)]
    for other in copies:
        assert type(other) is type(module)
        assert repr(other) == repr(module)
        assert_close(run(other), y, rtol=0, atol=0)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1)
    assert_close(run(module), y, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [kind for kind in THETAS if not kind.startswith("Pass")])
@pytest.mark.sweep(6, "Grouped", "Kernel")
def test_layers_that_wait_for_their_width(kind):
    """A state of a sized layer makes an open one sized; that of an open one leaves an open one open."""

    def open_one() -> BasisConv:
        return BasisConv(-1, widths(kind, 4, 4)[1], bases.Chebyshev(4), THETAS[kind]()).double()

    make_it, run = theta_layer(kind)
    sized = make_it()
    state, one = file(open_one().state_dict()), open_one()
    assert isinstance(state["theta.weight"], UninitializedParameter)
    one.load_state_dict(state)
    assert isinstance(one.theta.weight, UninitializedParameter)
    one.load_state_dict(file(sized.state_dict()), strict=True)
    assert_close(run(one), run(sized), rtol=0, atol=0)
    assert one.in_channels == sized.in_channels
    again = make_it()  # what an open one became, is loaded into one that was made so
    again.load_state_dict(file(one.state_dict()), strict=True)
    assert_close(run(again), run(sized), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="uninitialized parameter"):
        sized.load_state_dict(open_one().state_dict())
    for other in (
        copy.deepcopy(open_one()),
        pickle.loads(pickle.dumps(open_one())).double(),
    ):  # torch forgets its dtype
        other.load_state_dict(sized.state_dict(), strict=True)
        assert_close(run(other), run(sized), rtol=0, atol=0)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sweep(12)
def test_a_basis_is_a_plain_value(name):
    case = CASES[name]
    basis = case.basis()
    size = len(pickle.dumps(basis))
    call(make(basis), draw(case.graph().M, 3), case.graph())  # which freezes it
    assert len(pickle.dumps(basis)) == size
    g = case.graph()
    y = call(make(basis), draw(g.M, 3), g)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.Tanh]):  # of a network of the user's
        loaded = file(basis)
    for other in (loaded, copy.deepcopy(basis)):
        assert type(other) is type(basis)
        assert repr(other) == repr(basis)
        close(call(make(other), draw(g.M, 3), g), y)


def test_a_copy_of_a_bound_basis_may_be_changed():
    """A basis that has been bound is a value; a copy of it is another, that has not."""
    window = bases.Window(None, (3, 3), padding=1)
    x = draw(1, 2, 5, 5, dtype=torch.float32)
    conv = GridConv(2, 3, window)
    conv(x)
    with pytest.raises(AttributeError, match="is a value"):
        window.stride = (2, 2)
    other = copy.deepcopy(conv)
    other.basis.stride = (2, 2)
    assert other(x).shape == (1, 3, 3, 3)
    assert conv(x).shape == (1, 3, 5, 5)


@pytest.mark.parametrize("kind", THETAS)
def test_a_parameter_is_a_plain_value(kind):
    form, built = THETAS[kind](), make(bases.Powers(2), kind, P=4).theta
    with torch.serialization.safe_globals([KernelOfAnyLength]):  # a class of the tests
        assert repr(file(form)) == repr(form)
        other = file(built)
    assert repr(other) == repr(built)
    assert (other.K, other.P, other.Q) == (built.K, built.P, built.Q)
    assert_close(dict(other.state_dict()), dict(built.state_dict()), rtol=0, atol=0)


def test_what_else_is_a_plain_value():
    edges = bases.Chebyshev(2).bind(torch.tensor([[0, 1], [1, 0]])).edges()
    assert isinstance(file(edges), EdgeList)
    assert_close(tuple(file(edges)), tuple(edges), rtol=0, atol=0)
    plan = BasisConv(3, 4, bases.Relations(2), theta.Separable(2), order="compacted").plan(
        torch.randn(5, 3), torch.tensor([[0, 1], [1, 0]]), edge_type=torch.tensor([0, 1])
    )
    assert [name for name, _ in plan.problem.offers] == ["compacted", "mixed"]
    assert file(plan) == plan
    assert str(file(plan)) == str(plan)
    words = Vocabulary(["played", "/film/genre"], [("Actor", "Role"), None], {"genre": "/film/genre"})
    assert file(words).id("genre") == 1
    assert file(parse("played.genre|^played", words)) == parse("played.genre|^played", words)
    attention = BasisConv(4, 4, bases.Attention(2, Dot(3), bases.Adjacency())).basis
    assert repr(file(attention)) == repr(attention)
    assert_close(dict(file(attention).state_dict()), dict(attention.state_dict()), rtol=0, atol=0)
    group = bases.Group("p4m", bases.Window((3, 3), 3, padding=1))
    assert repr(file(group)) == repr(group)
    assert repr(file(group.group)) == "'p4m'"


def test_a_knowledge_graph_is_a_plain_value():
    films = load_walks("datasets/films/walks.toml")
    films.entity("Leonard Nimoy")
    other = file(films)
    assert other.entity("Leonard Nimoy") == films.entity("Leonard Nimoy")
    x = torch.randn(films.num_nodes, 3)
    conv = BasisConv(3, 2, films.basis)
    twin = BasisConv(3, 2, other.basis)
    twin.load_state_dict(file(conv.state_dict()))
    expected = conv(x, films.edge_index, edge_type=films.edge_type)
    assert_close(twin(x, other.edge_index, edge_type=other.edge_type), expected, rtol=0, atol=0)


class OwnBasis(bases.Basis):
    """A basis that torch has not been told of."""

    def __init__(self) -> None:
        super().__init__(1)

    def edges(self, graph: Any) -> EdgeList:
        return bases.Identity().on(graph).edges()


def test_no_code_is_loaded_that_is_not_known():
    """Neither a basis of one's own, nor a layer; the file itself can be loaded by those who trust it."""
    bound = bases.Identity().bind(size=2)
    for value in (OwnBasis(), BasisConv(2, 2, bases.Identity()), bound):
        with pytest.raises(pickle.UnpicklingError, match="Unsupported global"):
            file(value)
        assert type(file(value, weights_only=False)) is type(value)
    with torch.serialization.safe_globals([OwnBasis]):
        assert isinstance(file(OwnBasis()), OwnBasis)


def test_known_is_what_is_public():
    for module in (bases, theta, mechanisms):
        for name in module.__all__:
            kind = getattr(module, name)
            bound = isinstance(kind, type) and issubclass(kind, bases.BoundBasis | mechanisms.Score | theta.Blocks)
            assert not isinstance(kind, type) or (kind in PLAIN) != bound


@pytest.mark.parametrize("family", ["Adjacency()", "Powers(3)", "Identity()", "Identity() + Adjacency()"])
def test_a_copy_of_a_family_has_a_number_of_its_own(family: str) -> None:
    """By which compiled graphs and programs know it."""
    bound = read(family).bind(torch.tensor([[0, 1], [1, 2]]), size=3)
    copies = [copy.copy(bound), copy.deepcopy(bound), pickle.loads(pickle.dumps(bound))]
    assert len({one.serial for one in (bound, *copies)}) == 4


@pytest.mark.parametrize(
    "basis",
    [
        bases.GAT(2),
        bases.GATv2(2),
        bases.Attention(2, Additive() + Edge(3)),
        bases.Attention(2, 2.5 * Additive()),
        bases.Attention(2, Dot(4).then(nn.GELU())),
    ],
    ids=str,
)
def test_mechanisms_are_values_whatever_they_are_combined_by(basis: bases.Basis) -> None:
    assert repr(file(basis)) == repr(basis)
