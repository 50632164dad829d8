"""BasisConv in torch_geometric.nn.Sequential, and under what walks through modules."""

import copy

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv, JumpingKnowledge, Sequential, global_mean_pool, summary
from torch_geometric.profile import count_parameters, get_model_size

from pyg_basisconv import BasisConv, bases, theta

N, P, HIDDEN, Q = 8, 5, 6, 3
GCN = bases.Adjacency("sym", self_loops=True)


def graph() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(N, P), torch.randint(N, (2, 20))


@pytest.mark.parametrize("weighted", [False, True], ids=["ones", "weights"])
def test_same_as_gcn(weighted: bool):
    inputs = "x, edge_index, edge_weight" if weighted else "x, edge_index"
    peers = GCNConv(P, HIDDEN), GCNConv(HIDDEN, Q)
    convs = BasisConv(P, HIDDEN, GCN), BasisConv(HIDDEN, Q, GCN)
    ours, theirs = (
        Sequential(inputs, [(one, f"{inputs} -> x"), nn.ReLU(), (two, f"{inputs} -> x"), nn.Linear(Q, Q)])
        for one, two in (convs, peers)
    )
    with torch.no_grad():
        for conv, peer in zip(convs, peers, strict=True):
            conv.weight[0].copy_(peer.lin.weight.t())
    ours[3].load_state_dict(theirs[3].state_dict())
    args = (*graph(), torch.rand(20)) if weighted else graph()
    torch.testing.assert_close(ours(*args), theirs(*args))
    torch.testing.assert_close(copy.deepcopy(ours)(*args), ours(*args), rtol=0, atol=0)


def test_bound_basis():
    basis = bases.Chebyshev(3)
    model = Sequential(
        "x, A", [(BasisConv(P, HIDDEN, basis), "x, A -> x"), nn.ReLU(), (BasisConv(HIDDEN, Q, basis), "x, A -> x")]
    )
    x, edge_index = graph()
    bound = basis.bind(edge_index, size=N)
    torch.testing.assert_close(model(x, bound), model(x, edge_index))


def test_all_that_a_call_takes():
    conv = BasisConv(P, HIDDEN, bases.Relations(3, "mean"))
    model = Sequential(
        "x, edge_index, edge_type, batch",
        [
            (conv, "x, edge_index, edge_type=edge_type -> x1"),
            nn.Tanh(),
            (BasisConv(HIDDEN, HIDDEN, bases.Chebyshev(2)), "x1, edge_index, batch=batch -> x2"),
            (lambda x1, x2: [x1, x2], "x1, x2 -> xs"),
            (JumpingKnowledge("cat", HIDDEN, 2), "xs -> x"),
            (global_mean_pool, "x, batch -> x"),
            nn.Linear(2 * HIDDEN, Q),
        ],
    )
    x, edge_index = graph()
    edge_type = torch.randint(3, (20,))
    batch = torch.arange(N) // 4
    edge_index = edge_index % 4 + 4 * (torch.arange(20) % 2)
    assert model(x, edge_index, edge_type, batch).shape == (2, Q)


def test_order_and_pair():
    model = Sequential(
        "x, y, edge_index",
        [
            (lambda x, y: (x, y), "x, y -> pair"),
            (BasisConv(P, Q, bases.Identity() + bases.Adjacency()), "pair, edge_index -> z"),
        ],
    )
    x, y = torch.randn(N, P), torch.randn(4, P)
    assert model(x, y, torch.stack([torch.arange(N), torch.arange(N) % 4])).shape == (4, Q)


def test_profiles():
    conv = BasisConv(P, Q, bases.Powers(2), theta.Separable(2))
    assert count_parameters(conv) == 2 * 2 + 2 * P * Q + Q
    assert get_model_size(conv) > 4 * count_parameters(conv)


def test_summary():
    pytest.importorskip("tabulate")
    x, edge_index = graph()
    model = Sequential(
        "x, edge_index", [(BasisConv(P, HIDDEN, GCN), "x, edge_index -> x"), nn.ReLU(), nn.Linear(HIDDEN, Q)]
    )
    table = summary(model, x, edge_index)
    row = next(line for line in table.splitlines() if "BasisConv" in line)
    assert "[8, 5], [2, 20]" in row
    assert "[8, 6]" in row
    assert str(P * HIDDEN + HIDDEN) in row
    lazy = summary(BasisConv(-1, Q, GCN), x, edge_index, leaf_module=None)
    assert "[8, 3]" in lazy
