"""What is said of attention heads, beside dense least squares."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, TransformerConv

from pyg_basisconv import BasisConv, bases, explain_head, theta
from pyg_basisconv.algebra import heads
from pyg_basisconv.bases import bound_attention
from pyg_basisconv.basis import BoundBasis
from pyg_basisconv.mechanisms import Additive, Dot, Relative

STEPS = bases.Shifts(None, range(4))
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 1, 1, 6, 2, 2], [1, 2, 3, 4, 5, 0, 0, 2, 6, 0, 0]])  # two are twice there


def sequence(mask=None, heads=3, **kwargs):
    attention = bases.Attention(heads, Dot(4), mask, **kwargs)
    return BasisConv(6, 6, attention, theta.LowRank(2)).double()


def of_graph(mask, **kwargs):
    score = Additive(projected=True).then(nn.LeakyReLU(0.2))
    return BasisConv(6, 6, bases.Attention(3, score, mask, **kwargs), theta.Heads()).double()


CASES = {
    "all pairs": (sequence, (4, 9, 6), STEPS, {}),
    "causal": (lambda: sequence(bases.Causal()), (4, 9, 6), STEPS, {}),
    "one sequence": (lambda: sequence(bases.Causal()), (9, 6), STEPS, {}),
    "two batch dimensions": (lambda: sequence(bases.Causal()), (2, 3, 9, 6), STEPS, {}),
    "a band": (lambda: sequence(bases.Shifts(None, [-1, 0, 2])), (4, 9, 6), bases.Shifts(None, [-1, 1, 2, 3]), {}),
    "a call's mask": (sequence, (4, 9, 6), STEPS, {"mask": torch.ones(9, 9).triu() > 0}),
    "sigmoid": (lambda: sequence(normalize="sigmoid"), (4, 9, 6), STEPS, {}),
    "over heads": (lambda: sequence(normalize="heads"), (4, 9, 6), STEPS, {}),
    "dependent matrices": (sequence, (4, 9, 6), bases.Mix([[1.0, 0], [0, 2], [1, 1]], bases.Shifts(None, [0, 1])), {}),
    "a grid": (sequence, (4, 12, 6), bases.Window(None, (3, 3), padding=1), {"grid": (3, 4)}),
    "beside shifts": (
        lambda: BasisConv(6, 6, bases.Attention(2, Dot(4)) + STEPS + bases.Attention(1, Dot(2))).double(),
        (4, 9, 6),
        bases.Shifts(None, [1, 2]),
        {},
    ),
    "a graph": (
        lambda: of_graph(bases.Adjacency(self_loops=True)),
        (7, 6),
        bases.Powers(3, bases.Adjacency("rw")),
        {"edge_index": EDGES},
    ),
    "all pairs, and a graph": (sequence, (7, 6), bases.Powers(3, bases.Adjacency("rw")), {"edge_index": EDGES}),
    "edges in any order": (
        lambda: of_graph(bases.Adjacency()),
        (7, 6),
        bases.Relations(2),
        {"edge_index": torch.tensor([[6, 0, 3, 5, 1, 4], [2, 2, 0, 2, 0, 2]]), "edge_type": torch.arange(6) % 2},
    ),
    "weights of edges": (
        lambda: of_graph(bases.Adjacency(), weighted=True),
        (2, 7, 6),
        bases.Identity() + bases.Adjacency(),
        {"edge_index": EDGES, "edge_weight": torch.rand(11, dtype=torch.float64)},
    ),
    "relations": (
        lambda: of_graph(bases.Adjacency()),
        (7, 6),
        bases.Relations(3),
        {"edge_index": EDGES, "edge_type": torch.arange(11) % 3},
    ),
}


def least_squares(A, B):
    """The nearest matrices in the span and the shares of them, of dense A (H, b, M, N) and B (K, M, N)."""
    columns = B.flatten(1).t()
    c = torch.linalg.pinv(columns) @ A.flatten(2).unsqueeze(-1)  # (H, b, K, 1)
    left = A.flatten(2) - (columns @ c).squeeze(-1)
    return c.squeeze(-1), 1 - left.square().sum(-1) / A.square().sum((-1, -2))


@pytest.mark.parametrize("name", CASES)
def test_coefficients_and_shares_are_those_of_dense_least_squares(name):
    make, shape, basis, given = CASES[name]
    layer, x = make(), torch.randn(*shape, dtype=torch.float64)
    report = explain_head(layer, x, basis, **given)
    own = {k: v for k, v in given.items() if k != "edge_type" and (k != "edge_index" or layer.basis.needs_edges)}
    with torch.no_grad():
        _, bound = layer(x, **own, return_attention=True)
    A = bound.to_dense()
    if name == "beside shifts":
        A = torch.cat([part.to_dense() for part in bound.parts if part.batch])
    B = basis.bind(
        given.get("edge_index"),
        given.get("edge_weight"),
        given.get("edge_type"),
        grid=given.get("grid"),
        size=shape[-2],
        dtype=torch.float64,
    ).to_dense()
    H, (M, N), batch = len(A), A.shape[-2:], A.shape[1:-2]
    A = A.reshape(H, -1, M, N)
    c, r2 = least_squares(A, B)
    assert report.each.shape == (H, *batch, basis.K)
    torch.testing.assert_close(report.each, c.view(H, *batch, -1))
    torch.testing.assert_close(report.coefficients, c.mean(1))
    torch.testing.assert_close(report.r2, r2.mean(1))
    torch.testing.assert_close(report.r2_std, r2.std(1, correction=0))
    left = A - torch.einsum("hk,kmn->hmn", c.mean(1), B).unsqueeze(1)
    share = 1 - left.square().sum((-1, -2)) / A.square().sum((-1, -2))
    torch.testing.assert_close(report.r2_fixed, share.mean(1))
    last = tuple(size - 1 for size in batch)
    heads, nearest = report.matrices(last)
    at = -1 if batch else 0
    torch.testing.assert_close(heads, A[:, at])
    torch.testing.assert_close(nearest, torch.einsum("hk,kmn->hmn", c[:, at], B))


@pytest.mark.parametrize("block", [1, 40], ids=["runs of targets", "some copies"])
def test_pieces_make_no_difference(monkeypatch, block):
    layer, x = sequence(bases.Causal()), torch.randn(4, 9, 6, dtype=torch.float64)
    whole = explain_head(layer, x, STEPS)
    monkeypatch.setattr(bound_attention, "BLOCK", block)
    monkeypatch.setattr(bound_attention, "TARGETS_BLOCK", (block, block))
    assert len(layer(x, return_attention=True)[1].pieces) > 3
    parts = explain_head(layer, x, STEPS)
    for name in ("each", "r2", "r2_std", "r2_fixed"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_nothing_is_written_out_that_is_not_there(monkeypatch):
    def refuse(bound):
        raise AssertionError(f"{bound} was written out")

    monkeypatch.setattr(BoundBasis, "to_dense", refuse)
    report = explain_head(sequence(bases.Shifts(None, [0, 1])), torch.randn(5000, 6).double(), STEPS)
    torch.testing.assert_close(report.r2, torch.ones(3, dtype=torch.float64), rtol=0, atol=0.9)


def test_a_head_that_is_a_shift_is_found():
    layer = BasisConv(6, 6, bases.Attention(2, Relative(window=(-2, -1)), bases.Causal()))
    layer.basis.mechanism.weight.data.copy_(torch.tensor([[30.0, 0.0], [0.0, 30.0]]))
    report = explain_head(layer, torch.randn(5, 64, 6), bases.Shifts(None, range(1, 4)))
    # The first place sees itself alone, and the second one has nobody two steps before it: it sees both alike.
    expected = torch.tensor([(62 + 0.5**2 / 63) / (62 + 1 + 0.5), 63 / 64], dtype=torch.float64)
    torch.testing.assert_close(report.r2, expected)
    torch.testing.assert_close(report.r2_std, torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(report.r2_fixed, report.r2)
    expected = torch.tensor([[0.5 / 63, 1, 0], [1, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(report.coefficients, expected)


def test_heads_that_differ_between_sequences_are_not_fixed():
    """Content says how far back a head looks: within a sequence it is a shift, in the batch it is not."""
    layer = BasisConv(2, 2, bases.Attention(1, Dot(2), bases.Causal()), theta.LowRank(1)).double()
    mechanism = layer.basis.mechanism
    x = torch.zeros(2, 30, 2, dtype=torch.float64)
    x[..., 0] = 1
    x[0, :, 1] = torch.arange(30)
    nn.init.zeros_(mechanism.key)
    nn.init.zeros_(mechanism.query)
    mechanism.key.data[0, 1, 0] = mechanism.query.data[0, 0, 0] = 8.0
    report = explain_head(layer, x, bases.Shifts(None, [0]))
    assert report.each[0, 0, 0] > 0.99  # the largest key is the last one
    assert report.each[0, 1, 0] < 0.2  # all are alike
    assert report.r2_fixed < report.r2 - 0.1
    assert report.r2_std > 0.4


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "sequence first"])
def test_the_attention_of_torch(batch_first):
    layer = nn.MultiheadAttention(6, 3, batch_first=batch_first).double()
    x, y = torch.randn(4, 9, 6, dtype=torch.float64), torch.randn(4, 5, 6, dtype=torch.float64)
    later = torch.ones(9, 9).triu(1) > 0
    given = (t if batch_first else t.transpose(0, 1) for t in (x, y))
    key, query = given
    report = explain_head(layer, key, STEPS, attn_mask=later)
    _, weights = layer(key, key, key, attn_mask=later, average_attn_weights=False)  # (B, H, N, M)
    c, r2 = least_squares(weights.detach().permute(1, 0, 3, 2), STEPS.bind(size=9).to_dense().double())
    torch.testing.assert_close(report.coefficients, c.mean(1))
    torch.testing.assert_close(report.r2, r2.mean(1))
    across = explain_head(layer, (key, query), STEPS)
    _, weights = layer(query, key, key, average_attn_weights=False)
    c, _ = least_squares(weights.detach().permute(1, 0, 3, 2), STEPS.bind(size=(9, 5)).to_dense().double())
    torch.testing.assert_close(across.coefficients, c.mean(1))


def test_a_model_with_one_layer_of_attention():
    layer = nn.TransformerEncoderLayer(6, 3, 8, batch_first=True, dtype=torch.float64).eval()
    x = torch.randn(4, 9, 6, dtype=torch.float64)
    found, of_attention = (explain_head(one, x, STEPS) for one in (layer, layer.self_attn))
    torch.testing.assert_close(found.each, of_attention.each)


@pytest.mark.parametrize("kind", [GATConv, TransformerConv])
def test_a_layer_of_pyg_is_converted(kind):
    layer, x = kind(6, 2, heads=3).double(), torch.randn(7, 6, dtype=torch.float64)
    basis = bases.Identity() + bases.Adjacency()
    report = explain_head(layer, x, basis, EDGES)
    _, (edges, alpha) = layer(x, EDGES, return_attention_weights=True)
    A = torch.zeros(3, 7, 7, dtype=torch.float64)
    A.index_put_((torch.arange(3)[:, None], edges[0], edges[1]), alpha.detach().t(), accumulate=True)
    c, r2 = least_squares(A.unsqueeze(1), basis.bind(EDGES, size=7).to_dense().double())
    torch.testing.assert_close(report.coefficients, c.squeeze(1))
    torch.testing.assert_close(report.r2, r2.squeeze(1))


def test_a_basis_may_be_bound_before():
    layer, x = sequence(), torch.randn(4, 9, 6, dtype=torch.float64)
    before, after = (explain_head(layer, x, basis) for basis in (STEPS.bind(size=9), STEPS))
    torch.testing.assert_close(before.each, after.each)
    with torch.no_grad():
        _, A = layer(x[0], return_attention=True)
    itself = explain_head(layer, x[0], A)
    torch.testing.assert_close(itself.coefficients, torch.eye(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"got 9 x 9 for each of a batch of \(4,\)"):
        explain_head(layer, x, layer(x, return_attention=True)[1])


def test_a_head_without_entries_is_explained():
    layer, x = of_graph(bases.Adjacency()), torch.randn(3, 6, dtype=torch.float64)
    report = explain_head(layer, x, bases.Identity(), torch.empty(2, 0, dtype=torch.long))
    assert report.r2.tolist() == report.r2_fixed.tolist() == [1, 1, 1]
    assert str(report).splitlines()[2].split() == ["0", "1.00", "1.00", "0"]
    assert report.coefficients.tolist() == [[0], [0], [0]]


@pytest.mark.cuda
def test_on_cuda():
    layer, x = sequence(bases.Causal()), torch.randn(4, 9, 6, dtype=torch.float64)
    here = explain_head(layer, x, STEPS)
    there = explain_head(layer.cuda(), x.cuda(), STEPS)
    torch.testing.assert_close(there.each, here.each)
    torch.testing.assert_close(there.r2_fixed, here.r2_fixed)
    for one, other in zip(there.matrices(1), here.matrices(1), strict=True):
        torch.testing.assert_close(one, other)


def test_the_layer_is_left_as_it_was():
    layer, x = sequence(bases.Causal()), torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    explain_head(layer, x, STEPS)
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks
    assert layer(x).requires_grad
    assert x.grad is None


def test_the_report_is_a_table():
    layer, x = sequence(bases.Causal()), torch.randn(4, 9, 6, dtype=torch.float64)
    basis = bases.Mix([[1.0, 0], [0, 2], [1, 1]], bases.Shifts(None, [0, 1]))
    report = explain_head(layer, x, basis)
    first, _, *rows = str(report).splitlines()
    assert first == "3 heads, 4 graphs of M = 9, N = 9, in the span of 3 matrices"
    assert len(rows) == 3 + len(report.gram.dependent) == 4
    assert "±" in rows[0]
    assert f"{report.r2[0]:.2f}" in rows[0]
    assert heads._sum(torch.tensor([0.1, -0.9, 0.001, 0.2, 0.3, 0.05])) == (
        "-0.9 A_1 + 0.3 A_4 + 0.2 A_3 + 0.1 A_0 + ..."
    )
    assert heads._sum(torch.tensor([0.0, 1.0, -0.25])) == "A_1 - 0.25 A_2"


@pytest.mark.parametrize(
    ("layer", "basis", "said"),
    [
        (sequence(), sequence().basis, "basis: expected a bound one, where it is computed from features"),
        (sequence(), "shifts", "basis: expected a Basis"),
        (sequence(), bases.Adjacency(), r"basis: expected the edges that Adjacency\(\) needs"),
        (sequence(), bases.Shifts(8, [0]), r"x: expected 8 rows, the grid \(8,\), got 9"),
        (sequence(), STEPS.bind(size=(9, 8)), "basis: expected matrices of 9 x 9, got 9 x 8"),
        (sequence(), bases.Window(9, 3), "size: expected N = 7"),
        (BasisConv(6, 6, STEPS).double(), STEPS, "layer: expected one with attention, got a BasisConv with 0"),
        (nn.Linear(6, 6).double(), STEPS, "layer: expected one with attention, got a Linear with 0"),
        (
            BasisConv(6, 6, bases.Mix([1.0, 1.0], bases.Attention(2, Dot(4)))).double(),
            STEPS,
            "layer: expected bases.Attention, or a sum with it",
        ),
    ],
    ids=[
        "of content",
        "no basis",
        "no edges",
        "other sources",
        "bound otherwise",
        "other targets",
        "no attention",
        "no layer",
        "a mixture",
    ],
)
def test_what_is_wrong_is_said(layer, basis, said):
    with pytest.raises(ValueError, match=said):
        explain_head(layer, torch.randn(9, 6, dtype=torch.float64), basis)


def test_an_empty_batch_and_a_wrong_place_are_said():
    with pytest.raises(ValueError, match="x: expected at least one graph"):
        explain_head(sequence(), torch.randn(0, 9, 6, dtype=torch.float64), STEPS)
    report = explain_head(sequence(), torch.randn(2, 9, 6, dtype=torch.float64), STEPS)
    for index in (2, -1, (0, 0)):
        with pytest.raises(ValueError, match="index: expected a place in a batch of"):
            report.matrices(index)


def test_a_head_of_nan_explains_nothing():
    layer = sequence()
    layer.basis.mechanism.key.data.fill_(float("nan"))
    assert explain_head(layer, torch.randn(2, 9, 6, dtype=torch.float64), STEPS).r2.isnan().all()


def test_dropout_is_not_measured():
    edge_index = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])
    layer = GATConv(6, 4, heads=2, dropout=0.6).double()
    x, basis = torch.randn(4, 6, dtype=torch.float64), bases.Identity() + bases.Adjacency()
    first, again = (explain_head(layer, x, basis, edge_index).r2 for _ in range(2))
    assert layer.training
    assert torch.equal(first, again)
    assert torch.equal(first, explain_head(layer.eval(), x, basis, edge_index).r2)


def test_attention_to_features_of_several_sizes_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = sequence()

        def forward(self, x):
            return self.layer(self.layer(x)[:, :5])

    with pytest.raises(ValueError, match="layer: expected one that attends to features of one size"):
        explain_head(Twice(), torch.randn(3, 9, 6, dtype=torch.float64), STEPS)
