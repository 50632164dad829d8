"""Wrong attention is refused at the door: nothing is broadcast, nothing is guessed, and nothing comes out NaN."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyg_basisconv import BasisConv, bases, mechanisms, theta
from pyg_basisconv.mechanisms import MLP, Additive, Bilinear, Cosine, Dot, Edge, Mechanism, Perceptron, Relative, Tap
from tests.contract import refused

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]])
X, Y = torch.ones(5, 4), torch.ones(3, 4)
BATCHED = torch.ones(2, 5, 4)


def gat() -> Mechanism:
    return Additive(projected=True).then(nn.LeakyReLU(0.2))


def attention(a: Mechanism | None = None, mask: bases.Basis | None = None, heads: int = 2, **kwargs: Any) -> BasisConv:
    """A layer with the options of the basis; from 4 channels to 4."""
    widths = kwargs.pop("widths", 4)
    kind = kwargs.pop("theta", None) or theta.Heads()
    order = kwargs.pop("order", "auto")
    family = bases.Attention(heads, Dot(3) if a is None else a, mask, **kwargs)
    return BasisConv(widths, 4, family, kind, order=order)


def on_graph(a: Mechanism | None = None, **kwargs: Any) -> BasisConv:
    return attention(a, bases.Adjacency(), **kwargs)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(*shape, dtype=dtype)


def weights_of_a_batch() -> Any:
    return on_graph()(BATCHED, EDGES, return_attention=True)[1]


CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    # what is wrong: (the argument that the message names, the call)
    "edges of a batch": ("batch", lambda: weights_of_a_batch().edges()),
    "weights by edge of a batch": ("batch", lambda: weights_of_a_batch().weights_by_edge(4)),
    "two numbers for one axis of a batch": ("index", lambda: weights_of_a_batch()[0, 1]),
    "features of another batch": ("x", lambda: on_graph()(ones(3, 5, 4), weights_of_a_batch())),
    "features without the batch": ("x", lambda: on_graph()(X, weights_of_a_batch())),
    "projected Dot with a bias": ("projected", lambda: Dot(projected=True, bias=True)),
    "projected Dot with an edge": ("projected", lambda: Dot(projected=True, edge_dim=2)),
    "weights of a mask of several matrices": (
        "weighted",
        lambda: bases.Attention(2, Dot(3), bases.Edges(2), weighted=True),
    ),
    "features of edges in a mask of other pairs": (
        "mask",
        lambda: attention(Edge(2), bases.Adjacency() @ bases.Adjacency())(X, EDGES, edge_attr=ones(4, 2)),
    ),
    "features of edges in a mask of two types": (
        "mask",
        lambda: attention(Edge(2), bases.Edges(2))(X, EDGES, edge_type=EDGES[0] % 2, edge_attr=ones(4, 2)),
    ),
    "heads 0": ("heads", lambda: bases.Attention(0, Dot(3))),
    "heads negative": ("heads", lambda: bases.Attention(-1, Dot(3))),
    "heads float": ("heads", lambda: bases.Attention(2.0, Dot(3))),
    "heads True": ("heads", lambda: bases.Attention(True, Dot(3))),
    "heads that do not divide": ("out_channels", lambda: attention(heads=3)),
    "heads that do not split": ("in_channels", lambda: attention(heads=3, theta=theta.Split())),
    "heads under Split, other width": (
        "out_channels",
        lambda: BasisConv(4, 6, bases.Attention(2, Dot(3)), theta.Split()),
    ),
    "mechanism a name": ("mechanism", lambda: bases.Attention(2, "dot")),
    "mechanism a class": ("mechanism", lambda: bases.Attention(2, Dot)),
    "mechanism None": ("mechanism", lambda: bases.Attention(2, None)),
    "mechanism a module": ("mechanism", lambda: bases.Attention(2, nn.Linear(4, 4))),
    "mask a tensor": ("mask", lambda: bases.Attention(2, Dot(3), torch.ones(5, 5))),
    "mask a name": ("mask", lambda: bases.Attention(2, Dot(3), "causal")),
    "mask a class": ("mask", lambda: bases.Attention(2, Dot(3), bases.Causal)),
    "mask of content": ("mask", lambda: bases.Attention(2, Dot(3), bases.Attention(2, Dot(3)))),
    "mask of content in a sum": (
        "mask",
        lambda: bases.Attention(2, Dot(3), bases.Identity() + bases.Attention(2, Dot(3))),
    ),
    "normalize typo": ("normalize", lambda: bases.Attention(2, Dot(3), normalize="sources")),
    "normalize softmax": ("normalize", lambda: bases.Attention(2, Dot(3), normalize="softmax")),
    "normalize an axis": ("normalize", lambda: bases.Attention(2, Dot(3), normalize=0)),
    "normalize True": ("normalize", lambda: bases.Attention(2, Dot(3), normalize=True)),
    "dropout 1.5": ("dropout", lambda: bases.Attention(2, Dot(3), dropout=1.5)),
    "dropout negative": ("dropout", lambda: bases.Attention(2, Dot(3), dropout=-0.1)),
    "dropout nan": ("dropout", lambda: bases.Attention(2, Dot(3), dropout=float("nan"))),
    "dropout a word": ("dropout", lambda: bases.Attention(2, Dot(3), dropout="half")),
    "dropout True": ("dropout", lambda: bases.Attention(2, Dot(3), dropout=True)),
    "dim of Dot missing": ("dim", lambda: Dot()),
    "dim of Dot 0": ("dim", lambda: Dot(0)),
    "dim of Dot float": ("dim", lambda: Dot(3.0)),
    "dim of Dot True": ("dim", lambda: Dot(True)),
    "dim of Dot beside projected": ("dim", lambda: Dot(3, projected=True)),
    "mix": ("mix", lambda: Dot(3, edge_dim=2, mix="all")),
    "scale a word": ("scale", lambda: Dot(3, scale="sqrt")),
    "scale nan": ("scale", lambda: Dot(3, scale=float("nan"))),
    "edge_dim of Dot negative": ("edge_dim", lambda: Dot(3, edge_dim=-1)),
    "edge_dim of MLP float": ("edge_dim", lambda: MLP(3, edge_dim=1.5)),
    "edge_dim of Perceptron negative": ("edge_dim", lambda: Perceptron(3, Dot(2), edge_dim=-2)),
    "dim of MLP missing": ("dim", lambda: MLP()),
    "dim of MLP 0": ("dim", lambda: MLP(0)),
    "dim of MLP True": ("dim", lambda: MLP(True)),
    "dim of MLP beside projected": ("dim", lambda: MLP(3, projected=True)),
    "gated with a target": ("gated", lambda: MLP(3, gated=True)),
    "gated with an edge": ("gated", lambda: MLP(3, gated=True, target=None, edge_dim=2)),
    "target of MLP": ("target", lambda: MLP(3, target="other")),
    "target shared where nothing is projected": ("target", lambda: MLP(3, target="shared")),
    "target of Additive": ("target", lambda: Additive(target="both")),
    "activation of MLP": ("activation", lambda: MLP(3, activation="tanh")),
    "activation with parameters": ("activation", lambda: MLP(3, activation=nn.PReLU())),
    "then a name": ("activation", lambda: Dot(3).then("relu")),
    "then a mechanism": ("activation", lambda: Dot(3).then(Additive())),
    "window and period": ("window", lambda: Relative((-1, 1), 3)),
    "window missing": ("window", lambda: Relative()),
    "window turned": ("window", lambda: Relative((2, -2))),
    "window a number": ("window", lambda: Relative(3)),
    "window floats": ("window", lambda: Relative((-1.0, 1.0))),
    "period 0": ("period", lambda: Relative(period=0)),
    "period float": ("period", lambda: Relative(period=2.5)),
    "offsets of Tap none": ("offsets", lambda: Tap([])),
    "offsets of Tap twice": ("offsets", lambda: Tap([0, 0])),
    "offsets of Tap floats": ("offsets", lambda: Tap([0.5])),
    "offsets of Shifts none": ("offsets", lambda: bases.Shifts(None, [])),
    "offsets of Shifts twice": ("offsets", lambda: bases.Shifts(None, [1, 1])),
    "offsets of Shifts floats": ("offsets", lambda: bases.Shifts(None, [1.0])),
    "dim of Edge 0": ("dim", lambda: Edge(0)),
    "inner of Edge 0": ("inner", lambda: Edge(2, inner=0)),
    "dim of Perceptron 0": ("dim", lambda: Perceptron(0, Dot(3))),
    "Perceptron of nothing": ("mechanisms", lambda: Perceptron(3)),
    "Perceptron of a name": ("mechanisms", lambda: Perceptron(3, "dot")),
    "align": ("align", lambda: bases.Causal("middle")),
    "norm of Bags": ("norm", lambda: bases.Bags("sum")),
    "dim of LowRank": ("dim", lambda: theta.LowRank(0)),
    "shared that does not divide": (
        "in_channels",
        lambda: BasisConv(4, 4, bases.Shifts(None, [0, 1]), theta.Depthwise(shared=3)),
    ),
    "shared 0": ("shared", lambda: theta.Depthwise(shared=0)),
    "normalize of Depthwise": ("normalize", lambda: theta.Depthwise(normalize="sum")),
    "Depthwise of other width": (
        "out_channels",
        lambda: BasisConv(4, 6, bases.Shifts(None, [0, 1]), theta.Depthwise(shared=2)),
    ),
    "mechanism of another layer": ("mechanism", lambda: shared_mechanism()),
    "Cosine of two widths": ("in_channels", lambda: attention(Cosine(), widths=(4, 3))),
    "Additive shared of two widths": ("x", lambda: attention(gat(), widths=(4, 3))((X, ones(3, 3)))),
    "x_dst of another width": ("x", lambda: attention(widths=(4, 3))((X, Y))),
    "x_dst of another width than x": ("x", lambda: attention()((X, ones(3, 3)))),
    "x_dst missing": ("x", lambda: attention(widths=(4, 3))(X)),
    "x_dst None": ("x", lambda: attention()((X, None), size=(5, 3))),
    "x_dst None, MLP": ("x", lambda: attention(MLP(3))((X, None), size=(5, 3))),
    "x_dst of another batch": ("x", lambda: attention()((BATCHED, Y))),
    "x_dst of a batch of one": ("x", lambda: attention()((BATCHED, ones(1, 3, 4)))),
    "x_dst of another dtype": ("x", lambda: attention()((X, Y.double()))),
    "x_dst 1d": ("x", lambda: attention()((X, ones(4)))),
    "x of another width": ("x", lambda: attention()(ones(5, 3))),
    "causal, M > N": ("basis", lambda: attention(mask=bases.Causal())((X, Y))),
    "causal, M < N": ("basis", lambda: attention(mask=bases.Causal())((Y, X))),
    "taps of other offsets": ("mask", lambda: attention(Tap([0, 1]), bases.Shifts(None, [0, 1, 2]))(X)),
    "taps of all pairs": ("mask", lambda: attention(Tap([0, 1]))(X)),
    "Bags without batch": ("batch", lambda: attention(MLP(3, target=None), bases.Bags())(X)),
    "Bags with a short batch": (
        "batch",
        lambda: attention(MLP(3, target=None), bases.Bags())(X, batch=torch.zeros(4).long()),
    ),
    "Bags with a negative batch": (
        "batch",
        lambda: attention(MLP(3, target=None), bases.Bags())(X, batch=torch.tensor([0, 0, -1, 0, 0])),
    ),
    "Bags with a float batch": (
        "batch",
        lambda: attention(MLP(3, target=None), bases.Bags())(X, batch=torch.zeros(5)),
    ),
    "Bags whose targets are scored": (
        "x",
        lambda: attention(Dot(3), bases.Bags())(X, batch=torch.zeros(5).long()),
    ),
    "pooling itself without batch": ("batch", lambda: BasisConv(4, 4, bases.Bags())(X)),
    "edge_index missing": ("edge_index", lambda: on_graph()(X)),
    "edge_attr missing": ("edge_attr", lambda: on_graph(Edge(2))(X, EDGES)),
    "edge_attr missing, Dot": ("edge_attr", lambda: on_graph(Dot(3, edge_dim=2))(X, EDGES)),
    "edge_attr missing, MLP": ("edge_attr", lambda: on_graph(MLP(3, edge_dim=2))(X, EDGES)),
    "edge_attr missing, Perceptron": ("edge_attr", lambda: on_graph(Perceptron(3, Dot(3), edge_dim=2))(X, EDGES)),
    "edge_attr of no use": ("edge_attr", lambda: on_graph()(X, EDGES, edge_attr=ones(4, 2))),
    "edge_attr of no use to a fixed basis": (
        "edge_attr",
        lambda: BasisConv(4, 4, bases.Adjacency())(X, EDGES, edge_attr=ones(4, 2)),
    ),
    "edge_attr too short": ("edge_attr", lambda: on_graph(Edge(2))(X, EDGES, edge_attr=ones(3, 2))),
    "edge_attr of one row": ("edge_attr", lambda: on_graph(Edge(2))(X, EDGES, edge_attr=ones(1, 2))),
    "edge_attr too wide": ("edge_attr", lambda: on_graph(Edge(2))(X, EDGES, edge_attr=ones(4, 3))),
    "edge_attr of width one": ("edge_attr", lambda: on_graph(Edge(2))(X, EDGES, edge_attr=ones(4, 1))),
    "edge_attr 1d": ("edge_attr", lambda: on_graph(Edge(1))(X, EDGES, edge_attr=ones(4))),
    "edge_attr (M, N, R) of another size": ("edge_attr", lambda: attention(Edge(2))(X, edge_attr=ones(5, 4, 2))),
    "edge_attr (1, N, R)": ("edge_attr", lambda: attention(Edge(2))(X, edge_attr=ones(1, 5, 2))),
    "edge_attr (N, M, R)": ("edge_attr", lambda: attention(Edge(2))((X, Y), edge_attr=ones(3, 5, 2))),
    "edge_attr (E, R) of all pairs": ("(mask|edge_attr)", lambda: attention(Edge(2))(X, edge_attr=ones(4, 2))),
    "edge_attr float64": ("edge_attr", lambda: on_graph(Edge(2))(X, EDGES, edge_attr=ones(4, 2).double())),
    "edge_attr integer": ("edge_attr", lambda: on_graph(Edge(2))(X, EDGES, edge_attr=ones(4, 2).long())),
    "edge_attr list": ("edge_attr", lambda: on_graph(Edge(2))(X, EDGES, edge_attr=[[1.0, 1.0]] * 4)),
    "edge_attr elsewhere": ("edge_attr", lambda: on_graph(Edge(2))(X, EDGES, edge_attr=ones(4, 2).to("meta"))),
    "edge_weight too short": ("edge_weight", lambda: on_graph(weighted=True)(X, EDGES, ones(3))),
    "mask (N, M)": ("mask", lambda: attention()((X, Y), mask=ones(3, 5).bool())),
    "mask (M, 1)": ("mask", lambda: attention()(X, mask=ones(5, 1).bool())),
    "mask (1, N)": ("mask", lambda: attention()(X, mask=ones(1, 5).bool())),
    "mask (M,)": ("mask", lambda: attention()(X, mask=ones(5).bool())),
    "mask (1, M, N)": ("mask", lambda: attention()(X, mask=ones(1, 5, 5).bool())),
    "mask of other heads": ("mask", lambda: attention()(X, mask=ones(3, 5, 5).bool())),
    "mask (1, M, N) of a batch": ("mask", lambda: attention()(BATCHED, mask=ones(1, 5, 5).bool())),
    "mask (*, 1, M, N)": ("mask", lambda: attention()(BATCHED, mask=ones(2, 1, 5, 5).bool())),
    "mask of integers": ("mask", lambda: attention()(X, mask=ones(5, 5).long())),
    "mask of float64": ("mask", lambda: attention()(X, mask=ones(5, 5).double())),
    "mask a list": ("mask", lambda: attention()(X, mask=[[True] * 5] * 5)),
    "mask elsewhere": ("mask", lambda: attention()(X, mask=ones(5, 5).bool().to("meta"))),
    "mask of a fixed basis": ("mask", lambda: BasisConv(4, 4, bases.Causal())(X, mask=ones(5, 5).bool())),
    "valid (N,)": ("valid", lambda: attention()((X, Y), valid=ones(3).bool())),
    "valid (1,)": ("valid", lambda: attention()(X, valid=ones(1).bool())),
    "valid (M, 1)": ("valid", lambda: attention()(X, valid=ones(5, 1).bool())),
    "valid (M,) of a batch": ("valid", lambda: attention()(BATCHED, valid=ones(5).bool())),
    "valid (1, M) of a batch": ("valid", lambda: attention()(BATCHED, valid=ones(1, 5).bool())),
    "valid float": ("valid", lambda: attention()(X, valid=ones(5))),
    "valid integer": ("valid", lambda: attention()(X, valid=ones(5).long())),
    "valid a list": ("valid", lambda: attention()(X, valid=[True] * 5)),
    "valid of a fixed basis": ("valid", lambda: BasisConv(4, 4, bases.Causal())(X, valid=ones(5).bool())),
    "native of a graph": ("order", lambda: on_graph(gat(), order="native")(X, EDGES)),
    "native of tanh": ("order", lambda: attention(order="native", normalize="tanh")(X)),
    "order unknown": ("order", lambda: attention(order="flash")),
    "attention in Powers": ("operator", lambda: bases.Powers(2, bases.Attention(1, Dot(3)))),
    "turned attention, M != N": ("basis", lambda: BasisConv(4, 4, bases.Attention(1, Dot(3)).T)((X, Y))),
    "width that is found in the first call": ("in_channels", lambda: attention(widths=-1)),
}


def shared_mechanism() -> None:
    a = Bilinear()
    attention(a)
    attention(a, widths=(4, 3))


@pytest.mark.parametrize(("argument", "call"), CALLS.values(), ids=CALLS)
def test_refused(argument: str, call: Callable[[], Any]) -> None:
    refused(argument, call)


class Own(Mechanism):
    """A mechanism of a user's, whose scores are what a function of the content gives."""

    def __init__(self, given: Callable[[Any], Any]) -> None:
        super().__init__()
        self.given = given

    def score(self, content: Any, entries: Any) -> Any:
        return self.given(content)


# Of two heads of five nodes, or of a batch of two graphs; each would be broadcast or misread somewhere.
SCORES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "no heads": ("score", lambda c: mechanisms.node_score(c.x.sum(-1), None)),
    "one head": ("score", lambda c: mechanisms.node_score(c.x.sum(-1)[None], None)),
    "three heads": ("score", lambda c: mechanisms.node_score(c.x.sum(-1).expand(3, *c.x.shape[:-1]), None)),
    "too many sources": ("score", lambda c: mechanisms.node_score(ones(2, *c.batch, 6), None)),
    "too few targets": ("score", lambda c: mechanisms.node_score(None, ones(2, *c.batch, 4))),
    "a number too much": ("score", lambda c: mechanisms.node_score(c.x.expand(2, *c.x.shape)[..., :1].mT, None)),
    "integers": ("score", lambda c: mechanisms.node_score(ones(2, *c.batch, 5).long(), None)),
    "a list": ("score", lambda c: mechanisms.node_score([1.0], None)),
    "no ends": ("source", lambda c: mechanisms.node_score(None, None)),
    "keys of no heads": ("score", lambda c: mechanisms.inner_score(c.x, c.x)),
    "queries of another width": (
        "query",
        lambda c: mechanisms.inner_score(ones(2, *c.batch, 5, 3), ones(2, *c.batch, 5, 4)),
    ),
    "entries of one head": ("score", lambda c: mechanisms.entry_score(ones(1, *c.batch, 4))),
    "a tensor": ("score", lambda c: ones(2, *c.batch, 5)),
    "nothing": ("score", lambda c: None),
}


@pytest.mark.parametrize("x", [X, BATCHED], ids=["one graph", "batch"])
@pytest.mark.parametrize("on_edges", [False, True], ids=["pairs", "edges"])
@pytest.mark.parametrize(("argument", "given"), SCORES.values(), ids=SCORES)
def test_scores_of_ones_own_that_do_not_fit(
    argument: str, given: Callable[[Any], Any], on_edges: bool, x: Tensor
) -> None:
    conv, args = (on_graph(Own(given)), (x, EDGES)) if on_edges else (attention(Own(given)), (x,))
    for _ in range(2):  # the second call, too
        refused(argument, lambda: conv(*args))


def test_heads_and_batch_of_a_score_in_the_wrong_order() -> None:
    conv = on_graph(Own(lambda c: mechanisms.node_score(ones(2, 3, 5).transpose(0, 1), None)))
    refused("score", lambda: conv(ones(3, 5, 4), EDGES))


class HalfMade(Mechanism):
    def __init__(self) -> None:
        self.dim = 3


@pytest.mark.parametrize(
    "use",
    [attention, lambda own: own + Dot(3), lambda own: own.then(torch.tanh), lambda own: 2 * own],
    ids=["layer", "sum", "activation", "multiple"],
)
def test_a_constructor_that_forgets_that_of_mechanism(use: Callable[[Mechanism], Any]) -> None:
    with pytest.raises(ValueError, match=r"^mechanism: .* a HalfMade that is half made; call super\(\)\.__init"):
        use(HalfMade())


def test_a_mechanism_without_scores_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"^Mechanism gives no score\(content, entries\)$"):
        attention(Mechanism())(X)


@pytest.mark.parametrize("wrong", [3, "a", None, torch.ones(2)], ids=["int", "str", "None", "tensor"])
def test_only_mechanisms_are_added(wrong: Any) -> None:
    with pytest.raises(TypeError):
        Dot(3) + wrong
    if not isinstance(wrong, int):
        with pytest.raises(TypeError):
            Dot(3) * wrong


def test_a_bound_basis_of_content_is_not_bound_without_it() -> None:
    """Attention needs features: binding it to a graph alone says so."""
    with pytest.raises(ValueError, match=r"^\w+: expected .*"):
        bases.Attention(2, Dot(3), bases.Adjacency()).bind(EDGES)


def test_refused_calls_change_nothing() -> None:
    """After a refusal the same layer works, and gives what another would."""
    conv = attention()
    right = conv(X)
    for wrong in ({"mask": ones(4, 4).bool()}, {"valid": ones(4).bool()}, {"edge_attr": ones(5, 5, 2)}):
        with pytest.raises(ValueError, match=r"^\w+: "):
            conv(X, **wrong)
        torch.testing.assert_close(conv(X), right)


def test_fine_after_all() -> None:
    """Near misses that are right."""
    assert attention(heads=4)(X).shape == (5, 4)
    assert attention()((X, Y)).shape == (3, 4)
    assert attention(widths=(4, 3))((X, ones(2, 3))).shape == (2, 4)
    assert attention()(X, mask=ones(2, 5, 5).bool()).shape == (5, 4)
    assert attention()(BATCHED, mask=ones(5, 5).bool()).shape == (2, 5, 4)
    assert attention()(BATCHED, mask=ones(2, 2, 5, 5)).shape == (2, 5, 4)
    assert attention()(BATCHED, valid=ones(2, 5).bool()).shape == (2, 5, 4)
    assert attention(mask=bases.Causal("end"))((X, Y)).shape == (3, 4)
    assert attention(MLP(3, target=None))((X, None), size=(5, 3)).shape == (3, 4)
    assert attention(Edge(2))(X, edge_attr=ones(5, 5, 2)).shape == (5, 4)
    assert on_graph(Edge(2))(X, EDGES, edge_attr=ones(4, 2)).shape == (5, 4)
    assert attention(Edge(2), bases.Edges(1))(X, EDGES, edge_attr=ones(4, 2)).shape == (5, 4)
    assert on_graph()(X, EDGES[:, :0]).shape == (5, 4)
    assert attention(dropout=0)(X).shape == (5, 4)
    assert attention(Relative(window=[-1, 1]))(X).shape == (5, 4)
    assert isinstance(mechanisms.Biaffine(), Mechanism)


@pytest.mark.parametrize("normalize", ["source", "target", "heads", "sigmoid", "tanh", None])
def test_no_not_a_number_is_made(normalize: str | None) -> None:
    """Of finite inputs, however large, and with nothing to look at."""
    for conv, args in ((attention(normalize=normalize), (X,)), (on_graph(gat(), normalize=normalize), (X, EDGES))):
        for scale in (0.0, 1.0, 1e4):
            x = (args[0] * scale).requires_grad_()
            for named in ({}, {"mask": torch.zeros(5, 5).bool()}, {"valid": torch.zeros(5).bool()}):
                y = conv(x, *args[1:], **named)
                y.sum().backward()
                assert y.isfinite().all()
                assert x.grad.isfinite().all()
                assert all(p.grad.isfinite().all() for p in conv.parameters())


def test_zero_rows_have_a_cosine() -> None:
    """Features that are all zeros have no direction: the score is zero, and its gradient finite."""
    conv = attention(Cosine())
    x = X.clone()
    x[1:3] = 0
    x.requires_grad_()
    y = conv(x)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
