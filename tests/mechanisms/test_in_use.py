"""What attention does at the edges of its use: each of these was once wrong, or refused, without a word."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, RGATConv

from pyg_basisconv import BasisConv, bases, convert, mechanisms, theta
from pyg_basisconv.mechanisms import MLP, Dot, Edge, Perceptron, Relative
from tests.contract import close
from tests.kernels.test_kernels import Largest
from tests.mechanisms.cases import CASES, call, inputs, layer

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
X = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))


def attention(mask: bases.Basis | None = None, mechanism=None, **options) -> bases.Attention:
    return bases.Attention(2, mechanism or Dot(2), mask, **options)


def attended(basis: bases.Basis, *args, **kwargs):
    return BasisConv(2, 2, basis)(*args, **kwargs, return_attention=True)[1]


def test_shifts_do_not_reach_the_targets_own_rows() -> None:
    conv = BasisConv(1, 1, bases.Shifts(None, [-1]) + bases.Identity(), bias=False)
    conv.weight.data = torch.tensor([[[1.0]], [[0.0]]])
    y = conv((torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[100.0], [200.0], [300.0]])))
    assert y.flatten().tolist() == [2, 3, 0]


@pytest.mark.parametrize("mask", [None, bases.Shifts(None, [-1]), bases.Causal("start")], ids=repr)
def test_targets_are_not_sources(mask: bases.Basis | None) -> None:
    """Beside Identity, the targets' own rows stand below the sources, and are attended to by nobody."""
    A = attended(attention(mask) + bases.Identity(), (X, torch.randn(3, 2))).to_dense()
    assert A.shape == (3, 6, 3)
    assert not A[:2, 3:].any()
    assert A[:2, :3].any()


def test_no_sources() -> None:
    A = attended(attention() + bases.Identity(), (torch.zeros(0, 2), torch.randn(3, 2)))
    assert not A.to_dense()[:2].any()


@pytest.mark.parametrize("fill", [0.4, 0.5, 1.0, 1.5, 2.7, -0.6])
def test_loops_that_the_mask_adds_have_no_features(fill: float) -> None:
    family = bases.Attention(1, Edge(1), bases.Adjacency(self_loops=fill), None)
    conv = BasisConv(2, 2, family, theta.Pass())
    family.mechanism.weight.data.fill_(1.0)
    attr = torch.tensor([[7.0]])
    A = conv(torch.zeros(2, 2), torch.tensor([[0], [1]]), edge_attr=attr, return_attention=True)[1]
    assert A.to_dense()[0].tolist() == [[0, 7], [0, 0]]


def test_batch_keeps_graphs_apart() -> None:
    batch, x = torch.tensor([0, 0, 1, 1]), torch.randn(4, 2)
    same = batch[:, None] == batch
    for A in (
        attended(attention(), x, batch=batch).to_dense(),
        attended(attention() + bases.Identity(), (x, x.clone()), batch=batch).to_dense()[:2, :4],
    ):
        assert torch.equal(A != 0, same.expand(2, 4, 4))
    with pytest.raises(ValueError, match="batch"):
        attended(attention(), (x, torch.randn(3, 2)), batch=batch)


@pytest.mark.parametrize("mechanism", [lambda: MLP(2), lambda: Dot(2, edge_dim=1)], ids=["MLP", "Dot(edge)"])
def test_a_second_derivative_of_hidden_pairs(mechanism) -> None:
    conv, x = BasisConv(2, 2, attention(bases.Adjacency(), mechanism())).double(), X.double().requires_grad_()
    attr = torch.randn(3, 1).double().requires_grad_() if "edge" in repr(conv) else None
    inputs = (x,) if attr is None else (x, attr)
    assert torch.autograd.gradgradcheck(lambda x, *attr: conv(x, EDGES, edge_attr=attr[0] if attr else None), inputs)


def test_second_derivative_of_inner_products() -> None:
    conv, x = BasisConv(2, 2, attention(bases.Adjacency())).double(), X.double().requires_grad_()
    for order in ("theta_first", "a_first"):
        conv.order = order
        assert torch.autograd.gradgradcheck(lambda x: conv(x, EDGES), x)


def test_inplace_activations_are_refused() -> None:
    for wrong in (lambda a: Dot(2).then(a), lambda a: MLP(2, a), lambda a: Perceptron(2, Dot(2), activation=a)):
        with pytest.raises(ValueError, match=r"^activation: .*, got LeakyReLU.*True\); leave inplace=True out"):
            wrong(nn.LeakyReLU(0.2, inplace=True))


def test_looking_at_attention_leaves_its_gradient() -> None:
    A = attended(attention(bases.Adjacency()), X, EDGES)
    with torch.no_grad():
        assert not A.edges().weight.requires_grad
        assert not A.to_dense().requires_grad
    assert A.edges().weight.requires_grad
    assert A.T.requires_grad
    assert A.to_dense().requires_grad


@pytest.mark.parametrize(
    "mechanism",
    [lambda: Perceptron(3, Dot(2)), lambda: Relative(period=2), lambda: Relative((-1, 1)), lambda: Dot(2)],
    ids=["Perceptron", "period", "window", "Dot"],
)
def test_attention_is_what_was_applied(mechanism) -> None:
    """A step of the optimizer afterwards does not change it."""
    conv = BasisConv(2, 2, attention(None, mechanism()))
    A = conv(torch.randn(4, 2), return_attention=True)[1]
    before = A.weights().clone()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert torch.equal(A.weights(), before)


@pytest.mark.parametrize(
    "compose",
    [lambda a: a + bases.Identity(), lambda a: bases.Shifts(None, [1]) + a, lambda a: a @ a, lambda a: a.T],
    ids=["+ Identity", "Shifts +", "@", ".T"],
)
def test_composed_bases_read_edges(compose) -> None:
    conv = BasisConv(2, 2, compose(attention(bases.Adjacency(), Edge(1))))
    one, other = (conv(X, EDGES, edge_attr=attr) for attr in (torch.zeros(3, 1), torch.tensor([[1.0], [-2.0], [3.0]])))
    assert one.shape == other.shape == (3, 2)


def test_relational_attention_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyg_basisconv.bases.bound_attention.BLOCK", 8)
    monkeypatch.setattr("pyg_basisconv.bases.bound_attention.TARGETS_BLOCK", (7, 7))
    reference = RGATConv(4, 3, 3, heads=2, edge_dim=2).double()
    x, edges, types = torch.randn(9, 4).double(), torch.randint(0, 9, (2, 30)), torch.randint(0, 3, (30,))
    attr = torch.randn(30, 2).double()
    close(convert(reference)(x, edges, types, attr), reference(x, edges, types, attr))


def test_mean_of_messages_with_edges() -> None:
    reference, attr = GATv2Conv(2, 2, edge_dim=1, aggr="mean").double(), torch.randn(3, 1).double()
    close(convert(reference)(X.double(), EDGES, attr), reference(X.double(), EDGES, attr))


@pytest.mark.parametrize("normalize", ["source", "target", "heads", "sigmoid", None])
@pytest.mark.parametrize("mechanism", [lambda: Dot(2), lambda: Perceptron(3, Dot(2))], ids=["Dot", "Perceptron"])
def test_an_empty_batch(normalize: str | None, mechanism) -> None:
    conv = BasisConv(2, 2, attention(None, mechanism(), normalize=normalize))
    assert conv(torch.randn(0, 3, 2)).shape == (0, 3, 2)
    assert BasisConv(2, 2, bases.Shifts(None, [0, 1]), theta.Depthwise())(torch.randn(4, 0, 2)).shape == (4, 0, 2)


def test_incidence_does_not_know_other_layers() -> None:
    with_loops = bases.Adjacency(self_loops=True)
    plain, edged = BasisConv(2, 2, attention(with_loops)), BasisConv(2, 2, attention(with_loops, Edge(1)))
    before = plain(X, EDGES, return_attention=True)[1].incidence.M
    assert edged(X, EDGES, edge_attr=torch.ones(3, 1), return_attention=True)[1].incidence.M == 3
    assert plain(X, EDGES, return_attention=True)[1].incidence.M == before == 6


@pytest.mark.parametrize("first", ["as it is", "portable"])
@pytest.mark.parametrize("self_loops", [False, True], ids=["edges", "edges and loops"])
def test_incidence_in_and_out_of_forward_mode(self_loops: bool, first: str) -> None:
    """What is kept of a graph is of another form there."""
    basis = attention(bases.Adjacency(self_loops=self_loops), Dot(2, edge_dim=1))
    A = attended(basis, X, EDGES, edge_attr=torch.ones(3, 1))

    def weights() -> list[Tensor]:
        return [A.incidence.to_dense().detach(), A.weights_by_edge(3).detach()]

    def portably() -> list[Tensor]:
        with torch.autograd.forward_ad.dual_level():
            return weights()

    found = [weights(), portably()] if first == "as it is" else [portably(), weights()]
    for a, b in zip(*found, strict=True):
        close(a, b)
    assert found[0][0].any()


def test_all_pairs_are_not_written_out_for_the_vendors_kernel() -> None:
    for mask in (None, bases.Causal()):
        conv = BasisConv(2, 2, attention(mask), order="native")
        A = conv(torch.randn(50, 2), return_attention=True)[1]
        assert "pattern" not in vars(A.entries)
        assert A.entries.E == (2500 if mask is None else 1275) == A.entries.pattern.E


def test_one_graph_of_a_sum() -> None:
    A = attended(attention() + bases.Shifts(None, [1]), torch.randn(3, 4, 2))
    close(A[1].to_dense(), A.to_dense()[:, 1], 1e-5)


def test_a_case_of_the_registry_under_no_grad() -> None:
    """What is bound without gradients trains afterwards."""
    c = CASES["GAT-graph"] if "GAT-graph" in CASES else next(iter(CASES.values()))
    made = inputs(c)
    conv, _ = layer(c)
    with torch.no_grad():
        first: Tensor = call(conv, made)
    second = call(conv, made)
    assert second.requires_grad
    close(first, second.detach())


NORMALIZATIONS = ("source", "sigmoid", "tanh", None)


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("hidden", ["by the score", "by an activation"])
def test_a_score_of_minus_infinity_hides_on_all_ways(hidden: str, normalize: Any) -> None:
    score = mechanisms.Additive(bias=True)
    if hidden == "by an activation":
        score = score.then(Hiding())
    basis = bases.Attention(2, score, bases.Adjacency(), normalize=normalize)
    conv = BasisConv(4, 4, basis, theta.Heads(), bias=False).double()
    if hidden == "by the score":
        with torch.no_grad():
            conv.basis.mechanism.bias[0] = -torch.inf
    x, edges = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.tensor([[0, 1, 2], [1, 2, 2]])
    leaves = [x, *conv.parameters()]
    y = conv(x, edges)
    watched, A = conv(x, edges, return_attention=True)
    assert y.isfinite().all()
    assert not y[0].any()
    if hidden == "by the score":
        assert not y[:, :2].any()
    torch.testing.assert_close(y, watched)
    torch.testing.assert_close(y, torch.func.vmap(lambda x: conv(x, edges))(x[None])[0])
    for mine, theirs in zip(*(torch.autograd.grad(t.square().sum(), leaves) for t in (y, watched)), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert A.to_dense().isfinite().all()


class Hiding(nn.Module):
    """Takes what is below zero away."""

    def forward(self, score: Tensor) -> Tensor:
        return score.masked_fill(score < 0, -torch.inf)


def test_a_basis_that_is_changed_between_calls() -> None:
    """The same graph, and one that is new, see the same."""
    edges, x = torch.randint(8, (2, 20)), torch.randn(8, 4)
    activated = mechanisms.Additive(projected=True).then(nn.LeakyReLU(0.2))
    conv, other = (
        BasisConv(4, 4, bases.Attention(2, score, bases.Adjacency()), theta.Heads())
        for score in (activated, mechanisms.Dot(2) * mechanisms.Additive())
    )
    conv(x, edges)
    for normalize in (*NORMALIZATIONS, "target", "heads"):
        conv.basis.normalize = normalize
        torch.testing.assert_close(conv(x, edges), conv(x, edges.clone()))
    conv.basis.normalize, conv.basis.mechanism = "source", other.basis.mechanism
    torch.testing.assert_close(conv(x, edges), conv(x, edges.clone()))


@pytest.mark.parametrize("mask", [None, bases.Causal()], ids=str)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_basis_over_all_pairs_that_is_changed_between_calls(before: int, mask: bases.Basis | None) -> None:
    """Torch's kernel, which evaluated the first calls, has one normalisation only."""
    dot = mechanisms.Dot(3)
    conv = BasisConv(4, 4, bases.Attention(2, dot, mask), theta.LowRank(2)).double()
    x = torch.randn(5, 4, dtype=torch.double)
    scores = torch.stack([(x @ dot.key[k]) @ (x @ dot.query[k]).t() / 3**0.5 for k in range(2)])
    seen = torch.ones(5, 5).bool() if mask is None else torch.ones(5, 5).triu().bool()
    hidden = scores.masked_fill(~seen, -torch.inf)
    weights = {
        "target": hidden.softmax(2),
        "heads": scores.softmax(0) * seen,
        "sigmoid": scores.sigmoid() * seen,
        "tanh": scores.tanh() * seen,
        None: scores * seen,
        "source": hidden.softmax(1),
    }
    for normalize, A in weights.items():
        conv.basis.normalize = "source"
        for _ in range(before):
            conv(x)
        conv.basis.normalize = normalize
        expected = sum(A[k].t() @ x @ conv.theta.dense()[k] for k in range(2)) + conv.bias
        torch.testing.assert_close(conv(x), expected)
    conv.order, conv.basis.normalize = "native", "source"
    torch.testing.assert_close(conv(x), expected)
    conv.basis.normalize = "sigmoid"
    with pytest.raises(ValueError, match="order: 'native' was asked for, but no vendor's kernel"):
        conv(x)


MASKS: dict[str, tuple[Callable[[], bases.Attention], bases.Basis, dict[str, Any]]] = {
    # the basis, its later mask, and the call
    "edges": (
        lambda: bases.Attention(2, mechanisms.Additive(), bases.Adjacency()),
        bases.Adjacency(self_loops=True),
        {"edge_index": torch.tensor([[0, 1, 2, 3, 1], [1, 2, 0, 1, 3]])},
    ),
    "all pairs": (lambda: bases.Attention(2, mechanisms.Dot(3)), bases.Causal(), {}),
    "matrices": (
        lambda: bases.Attention(2, mechanisms.Uniform(), normalize=None),
        bases.Causal(),
        {"mask": torch.arange(16.0).view(4, 4)},
    ),
}


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_is_changed_between_calls(name: str, before: int, batch: tuple[int, ...]) -> None:
    """The layer then does what one does that had this mask from the start; so it does on a graph that is new."""
    make, mask, call = MASKS[name]
    conv, fresh = (BasisConv(4, 4, make(), theta.LowRank(2)) for _ in range(2))
    fresh.load_state_dict(conv.state_dict())
    fresh.basis.mask = mask
    x = torch.randn(*batch, 4, 4)
    for _ in range(before):
        conv(x, **call)
    conv.basis.mask = mask
    again = {key: value.clone() for key, value in call.items()}
    for given in (call, again):
        torch.testing.assert_close(conv(x, **given), fresh(x, **given))
        _, weights = conv(x, **given, return_attention=True)
        torch.testing.assert_close(weights.to_dense(), fresh(x, **given, return_attention=True)[1].to_dense())


@pytest.mark.parametrize("order", ["a_first", "theta_first"])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one graph", "a batch"])
def test_matrices_of_a_call_are_multiplied_as_they_are(batch: tuple[int, ...], order: str) -> None:
    """Nothing of the size of pairs x channels is made, in the first call, a later one, or its gradient."""
    conv = BasisConv(8, 6, bases.Attention(1, mechanisms.Uniform(), normalize=None), order=order)
    x, mask = torch.randn(*batch, 50, 8).requires_grad_(), torch.rand(*batch, 50, 50)
    for _ in range(2):
        with Largest() as largest:
            conv(x, mask=mask).sum().backward()
        assert largest.numel <= mask.numel(), largest.name


def test_matrices_of_a_call_are_dropped_from_while_training() -> None:
    """As other weights are: the entries that stay are doubled here."""
    conv = BasisConv(
        1, 1, bases.Attention(1, mechanisms.Uniform(), normalize=None, dropout=0.5), theta.Pass(), bias=False
    )
    mask, seen = torch.rand(8, 8) + 1, []
    for _ in range(4):
        y = conv(torch.eye(8).unsqueeze(-1), mask=mask).squeeze(-1)  # row m has the weights of source m
        seen.append(y)
        assert ((y - 2 * mask).abs() < 1e-5).logical_or(y == 0).all()
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(seen))
    torch.testing.assert_close(conv.eval()(torch.eye(8).unsqueeze(-1), mask=mask).squeeze(-1), mask)
