"""Second derivatives: gradients of gradients, as forces, penalties and meta-learning need them."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.autograd import gradgradcheck

from pyg_basisconv import BasisConv, bases, convert, mechanisms, theta

torch.manual_seed(0)
EDGES = torch.randint(7, (2, 20))


def penalty(layer: nn.Module, x: Tensor, *args: object, **kwargs: object) -> list[Tensor]:
    """The gradients of how steep a layer is, by its input and by its parameters."""
    x = x.clone().requires_grad_()
    y = layer(x, *args, **kwargs) if not isinstance(layer, nn.MultiheadAttention) else layer(x, x, x, **kwargs)
    y, *weights = y if isinstance(y, tuple) else (y,)
    total = y.tanh().square().sum() + sum(w.square().sum() for w in weights if isinstance(w, Tensor))
    (slope,) = torch.autograd.grad(total, x, create_graph=True)
    slope.square().sum().backward()
    return [x.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in layer.parameters())]


LAYERS = {
    "transformer": lambda: pyg.TransformerConv(4, 3, 2),
    "transformer, beta": lambda: pyg.TransformerConv(4, 3, 2, beta=True),
    "gat": lambda: pyg.GATConv(4, 3, 2),
    "gat, one head": lambda: pyg.GATConv(4, 3),
    "gatv2": lambda: pyg.GATv2Conv(4, 3, 2),
    "gated": lambda: pyg.ResGatedGraphConv(4, 3),
    "supergat": lambda: pyg.SuperGATConv(4, 3, 2).eval(),
}


@pytest.mark.parametrize("name", LAYERS)
def test_converted(name: str) -> None:
    peer = LAYERS[name]().double()
    layer = convert(copy.deepcopy(peer))
    x = torch.randn(7, 4, dtype=torch.float64)
    found, expected = penalty(layer, x, EDGES), penalty(peer, x, EDGES)
    torch.testing.assert_close(found[0], expected[0])
    squares = (sum(g.square().sum() for g in some[1:]) for some in (found, expected))
    torch.testing.assert_close(*squares)  # of all parameters, which stand in another order


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_multihead(weights: bool, masked: bool) -> None:
    peer = nn.MultiheadAttention(8, 2, batch_first=True).double()
    layer = convert(copy.deepcopy(peer))
    mask = torch.randn(5, 5, dtype=torch.float64) if masked else None
    options = {"need_weights": weights, "attn_mask": mask}
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # torch's own kernel cannot
        expected = penalty(peer, x, **options)
    found = penalty(layer, x, **options)
    torch.testing.assert_close(found[0], expected[0])
    squares = (sum(g.square().sum() for g in some[1:]) for some in (found, expected))
    torch.testing.assert_close(*squares)


MASKS = {"all": None, "causal": bases.Causal(), "edges": bases.Adjacency(self_loops=True)}
SCORES = {
    "dot": lambda: mechanisms.Dot(2),
    "additive": lambda: mechanisms.Additive(projected=True).then(nn.LeakyReLU(0.2)),
    "positions": lambda: mechanisms.Dot(2) + mechanisms.Relative((-1, 1)),
    "hidden": lambda: mechanisms.MLP(3),
    "both": lambda: mechanisms.Dot(2) * mechanisms.Additive(),
}


@pytest.mark.parametrize(
    ("mask", "score", "order"),
    [
        *((mask, "dot", order) for mask in MASKS for order in ("auto", "native", "theta_first", "a_first")),
        *((mask, score, "auto") for mask in MASKS for score in SCORES if score != "dot"),
        ("edges", "both", "a_first"),
        ("causal", "hidden", "theta_first"),
        ("causal", "positions", "native"),
    ],
)
@pytest.mark.sweep(2)
def test_orders(mask: str, score: str, order: str) -> None:
    basis = bases.Attention(2, SCORES[score](), MASKS[mask])
    conv = BasisConv(4, 4, basis, theta.Heads(), order=order).double()
    edges = EDGES % 5 if mask == "edges" else None
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(lambda x: conv(x, edges), (x,))


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_with_dropout(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw of the first derivative is that of the second."""
    monkeypatch.setattr("pyg_basisconv.bases.bound_attention.BLOCK", block)
    basis = bases.Attention(2, mechanisms.Dot(2), dropout=0.4)
    conv = BasisConv(4, 4, basis, theta.Heads()).double()
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)

    def same_draw(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return conv(x)

    assert gradgradcheck(same_draw, (x,))


@pytest.mark.cuda
def test_what_cannot_is_said() -> None:
    """A vendor's kernel on CUDA draws what it drops by itself, and tells nobody."""
    conv = BasisConv(8, 8, bases.Attention(2, mechanisms.Dot(4), dropout=0.4), theta.Heads(), order="native").cuda()
    x = torch.randn(7, 8, device="cuda", requires_grad=True)
    with pytest.raises(ValueError, match="order: expected one whose gradient has a derivative"):
        torch.autograd.grad(conv(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("order", ["auto", "compacted", "theta_first", "a_first"])
def test_relations_without_edges(order: str) -> None:
    conv, none = BasisConv(4, 6, bases.Relations(5), order=order).double(), torch.zeros(2, 0, dtype=torch.long)
    found = penalty(conv, torch.randn(20, 4).double(), none, edge_type=none[0])
    assert all(not g.any() for g in found)
