"""Explanations of graphs with several types of edges, through HeteroBasisConv."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_hetero_masks, set_masks
from torch_geometric.nn import HeteroConv, SAGEConv

from pyg_basisconv.hetero import HeteroBasisConv

DOUBLE = torch.float64
SIZES = {"author": 4, "paper": 6}
TYPES = [("author", "writes", "paper"), ("paper", "by", "author"), ("paper", "cites", "paper")]
METADATA = (list(SIZES), TYPES)
Edges = dict[tuple[str, str, str], Tensor]


class Net(nn.Module):
    """Two layers of a kind, and the scores of papers."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.convs = nn.ModuleList([make(3, 4), make(4, 2)])

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Edges) -> Tensor:
        first, second = self.convs
        hidden = {t: y.relu() for t, y in first(x_dict, edge_index_dict).items()}
        return second(hidden, edge_index_dict)["paper"]


def nets() -> tuple[Net, Net]:
    """Ours and PyG's, with the same parameters."""
    ours = Net(lambda p, q: HeteroBasisConv(p, q, METADATA)).double()
    theirs = Net(lambda p, q: HeteroConv({t: SAGEConv((p, p), q) for t in TYPES})).double()
    with torch.no_grad():
        for conv, peer in zip(ours.convs, theirs.convs, strict=True):
            for root in conv.roots.values():
                root.weight.zero_()
            for t, one in peer.convs.items():
                conv.convs[t[0]].weight[conv.starting[t[0]].index(t)].copy_(one.lin_l.weight.t())
                conv.roots[t[2]].weight[0].add_(one.lin_r.weight.t())
                conv.bias[t[2]].add_(one.lin_l.bias)
    return ours, theirs


def graph() -> tuple[dict[str, Tensor], Edges]:
    x = {t: torch.randn(N, 3, dtype=DOUBLE) for t, N in SIZES.items()}
    return x, {t: torch.stack([torch.randint(SIZES[end], (8,)) for end in (t[0], t[2])]) for t in TYPES}


@pytest.mark.parametrize("types", [TYPES, TYPES[:1]], ids=["all types", "one type"])
def test_masks_act_on_the_edges_of_their_type(types: list[Any]):
    (ours, theirs), (x, edges) = nets(), graph()
    plain = ours(x, edges)
    outcomes = []
    for net in (ours, theirs):
        torch.manual_seed(1)
        masks = {t: nn.Parameter(torch.randn(8, dtype=DOUBLE)) for t in types}
        set_hetero_masks(net, masks, edges)
        y = net(x, edges)
        outcomes.append([y, *torch.autograd.grad(y.square().sum(), list(masks.values()))])
        clear_masks(net)
    for mine, peer in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, peer, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(outcomes[0][0], plain)
    torch.testing.assert_close(ours(x, edges), plain, rtol=0, atol=0)


def test_masks_that_are_cleared_type_by_type():
    """The layer inside was given one for all edges, which goes with them."""
    (net, _), (x, edges) = nets(), graph()
    plain = net(x, edges)
    set_hetero_masks(net, {t: nn.Parameter(torch.zeros(8, dtype=DOUBLE)) for t in TYPES}, edges)
    assert not torch.allclose(net(x, edges), plain)
    for conv in net.convs:
        for mask in conv.masks.values():
            clear_masks(mask)
    torch.testing.assert_close(net(x, edges), plain, rtol=0, atol=0)


def test_explainer():
    data = HeteroData(**{t: {"x": x.float()} for t, x in graph()[0].items()})
    writes, by, cites = TYPES
    data[writes].edge_index = torch.tensor([[0, 1, 3], [2, 3, 5]])
    data[by].edge_index = torch.tensor([[4, 1], [0, 2]])
    data[cites].edge_index = torch.tensor([[3, 4], [2, 5]])
    explainer = Explainer(
        nets()[0].float(),
        GNNExplainer(epochs=3),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    explanation = explainer(data.x_dict, data.edge_index_dict, index=2)
    # Of paper 2: what leads to it, to its author 0, and to paper 3 that cites it.
    assert {t: explanation[t].edge_mask.gt(0).tolist() for t in TYPES} == {
        writes: [True, True, False],
        by: [True, False],
        cites: [True, False],
    }


def test_other_edges_than_those_explained():
    (net, _), (x, edges) = nets(), graph()
    set_hetero_masks(net, {TYPES[0]: nn.Parameter(torch.ones(8, dtype=DOUBLE))}, edges)
    with pytest.raises(ValueError, match="edge_index_dict: expected the 8 edges that are explained, got 7"):
        net(x, edges | {TYPES[0]: edges[TYPES[0]][:, :7]})


def test_explained_without_a_mask():
    (net, _), (x, edges) = nets(), graph()
    net.convs[0].masks[TYPES[0]].explain = True
    with pytest.raises(ValueError, match="explain: expected a mask, where it is True, got None"):
        net(x, edges)


def test_one_mask_for_the_edges_of_every_type():
    """As in PyG, where a model is taken for one of one type."""
    (ours, theirs), (x, edges) = nets(), graph()
    plain, outcomes = ours(x, edges), []
    for net in (ours, theirs):
        mask = torch.linspace(-1, 1, 8, dtype=DOUBLE)
        set_masks(net, nn.Parameter(mask), edges[TYPES[0]])
        outcomes.append(net(x, edges))
        clear_masks(net)
        set_hetero_masks(net, dict.fromkeys(TYPES, mask), edges)
        outcomes.append(net(x, edges))
        clear_masks(net)
    torch.testing.assert_close(outcomes[0], outcomes[2])
    torch.testing.assert_close(outcomes[1], outcomes[3])
    torch.testing.assert_close(ours(x, edges), plain, rtol=0, atol=0)


@pytest.mark.slow
def test_compiled_layers_are_explained():
    (net, _), (x, edges) = nets(), graph()
    masks, conv = {t: torch.rand(8, dtype=DOUBLE, requires_grad=True) for t in TYPES}, net.convs[0]
    plain, compiled = conv(x, edges), torch.compile(conv, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(x, edges), plain)
    set_hetero_masks(net, masks, edges)
    outcomes = []
    for call in (conv, compiled):
        y = call(x, edges)
        loss = sum(y_t.square().sum() for y_t in y.values())
        outcomes.append([*y.values(), *torch.autograd.grad(loss, list(masks.values()))])
    torch.testing.assert_close(*outcomes)
    assert not torch.allclose(outcomes[0][0], plain["author"])
    clear_masks(net)
    torch.testing.assert_close(compiled(x, edges), plain)
