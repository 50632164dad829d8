"""The blocks against their papers' formulas in plain torch, in float64, forward and backward; and what they promise."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.blocks import (
    AttentionPooling,
    CausalAttention,
    DynamicConv,
    LightweightConv,
    RoutingBlock,
)
from tests.contract import alike


def glu(block: nn.Module, x: Tensor) -> Tensor:
    a, b = block.linear_in(x).chunk(2, -1)
    return a * b.sigmoid()


def banded(taps: Tensor, offsets: range) -> Tensor:
    """(*, N, D) the taps of each position -> (*, N, N) the matrix whose row n has tap d in column n - offsets[d]."""
    N = taps.shape[-2]
    band = taps.new_zeros(*taps.shape[:-1], N)
    for d, offset in enumerate(offsets):
        for n in range(N):
            if 0 <= n - offset < N:
                band[..., n, n - offset] = taps[..., n, d]
    return band


def by_heads(band: Tensor, h: Tensor, heads: int) -> Tensor:
    """(*, H, N, N) applied to the H groups of channels of (*, N, C), one at a time."""
    groups = h.unflatten(-1, (heads, -1)).unbind(-2)
    return torch.cat([band[..., k, :, :] @ group for k, group in enumerate(groups)], -1)


def lightweight(block: LightweightConv, x: Tensor) -> Tensor:
    weight = block.conv.weight  # (taps, H)
    taps = (weight.exp() / weight.exp().sum(0)).t()[:, None].expand(-1, x.shape[-2], -1)  # (H, N, taps)
    band = banded(taps, range(*WINDOWS[block.causal_window]))
    return block.linear_out(by_heads(band, glu(block, x), taps.shape[0]))


def dynamic(block: DynamicConv, x: Tensor) -> Tensor:
    h = glu(block, x)
    weight = block.conv.basis.mechanism.weight  # (H, C, taps)
    taps = torch.einsum("...nc,kcd->...knd", h, weight).softmax(-1)
    return block.linear_out(by_heads(banded(taps, range(*WINDOWS[block.causal_window])), h, weight.shape[0]))


def attend(x: Tensor, conv: BasisConv, hidden: Tensor | None = None) -> Tensor:
    """Multi-head attention: softmax(Q K^T / sqrt(D)) V O, for each head; hidden[n, m] is True where n sees no m."""
    a, t = conv.basis.mechanism, conv.theta
    y = 0
    for k in range(conv.basis.K):
        key, query, value = x @ a.key[k], x @ a.query[k], x @ t.weight[k]
        if hasattr(a, "key_bias"):
            key, query, value = key + a.key_bias[k], query + a.query_bias[k], value + t.value_bias[k]
        scores = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        y = y + scores.softmax(-1) @ value @ t.output[k]
    return y if conv.bias is None else y + conv.bias


def gpt(block: CausalAttention, x: Tensor) -> Tensor:
    z = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + block.norm.eps).sqrt()
    future = torch.ones(x.shape[-2], x.shape[-2]).triu(1).bool()
    return x + attend(z * block.norm.weight + block.norm.bias, block.conv, future)


def routing(block: RoutingBlock, x: Tensor) -> Tensor:
    def norm(i: int, h: Tensor) -> Tensor:
        axes = tuple(range(h.dim() - 1))
        h = (h - h.mean(axes)) / (h.var(axes, unbiased=False) + block.norms[i].eps).sqrt()
        return h * block.norms[i].weight + block.norms[i].bias

    h = norm(0, x + attend(x, block.conv))
    first, _, second = block.feed
    return norm(1, h + (h @ first.weight.t() + first.bias).relu() @ second.weight.t() + second.bias)


BATCH = torch.tensor([0, 2, 0, 2, 2, 0, 1])


def pooled(block: AttentionPooling, x: Tensor) -> Tensor:
    a = block.conv.basis.mechanism
    y = []
    for bag in range(3):
        members = x[..., bag == BATCH, :]
        hidden = (members @ a.source[0]).tanh()
        if hasattr(a, "gate"):
            hidden = hidden * (members @ a.gate[0]).sigmoid()
        weights = (hidden @ a.out[0]).softmax(-1)
        y.append((weights[..., None] * members).sum(-2))
    return torch.stack(y, -2)


WINDOWS = {"3": (-1, 2), "4": (-2, 2), "causal": (0, 3), "1": (0, 1), "long": (-5, 6)}


def windowed(kind: type[nn.Module], window: str, **options: float) -> nn.Module:
    taps = {"causal": 3, "long": 11}.get(window) or int(window)
    block = kind(6, heads=2, taps=taps, causal=window == "causal", **options)
    block.causal_window = window
    return block


BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    # name: (the block, its formula)
    **{f"LightweightConv-{w}": (lambda w=w: windowed(LightweightConv, w), lightweight) for w in WINDOWS},
    **{f"DynamicConv-{w}": (lambda w=w: windowed(DynamicConv, w), dynamic) for w in WINDOWS},
    "CausalAttention": (lambda: CausalAttention(6, heads=2), gpt),
    "CausalAttention-no-bias": (lambda: CausalAttention(6, heads=3, bias=False), gpt),
    "RoutingBlock": (lambda: RoutingBlock(6, heads=2, hidden=5), routing),
    "AttentionPooling": (lambda: AttentionPooling(6, hidden=4), pooled),
    "AttentionPooling-gated": (lambda: AttentionPooling(6, hidden=4, gated=True), pooled),
}
POOLING = ("AttentionPooling", "AttentionPooling-gated")


def make(name: str) -> nn.Module:
    """The block in float64, with every parameter drawn, the biases and the norms too."""
    block = BLOCKS[name][0]().double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.7)
    return block


def call(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, BATCH) if isinstance(block, AttentionPooling) else block(x)


def features(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.sweep(15)
def test_each_block_is_its_formula(name, lead):
    block = make(name)
    x = features(*lead, 7, 6).requires_grad_()
    y, expected = call(block, x), BLOCKS[name][1](block, x)
    alike(y, expected, {"x": x, **dict(block.named_parameters())})


def test_the_worked_example_of_a_lightweight_convolution():
    """Two heads, taps at n and n + 1, not normalised: head 1 has both taps 1, and head 2 both taps 2."""
    conv = BasisConv(4, 4, bases.Shifts(None, [0, -1]), theta.Depthwise(shared=2), bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
    x = torch.tensor([[1.0, 2, 3, 1], [3, 2, 1, 3], [4, 4, 2, 1], [0, 0, 0, 0]])
    y = torch.tensor([[4.0, 4, 8, 8], [7, 6, 6, 8], [4, 4, 4, 2]])
    torch.testing.assert_close(conv(x)[:3], y)


@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in POOLING])
@pytest.mark.parametrize("N", [1, 2])
def test_sequences_shorter_than_the_window(name, N):
    block = make(name)
    x = features(2, N, 6)
    torch.testing.assert_close(block(x), BLOCKS[name][1](block, x))


@pytest.mark.parametrize("name", ["LightweightConv-causal", "DynamicConv-causal", "CausalAttention"])
def test_the_future_does_not_change_the_past(name):
    block = make(name)
    x = features(7, 6).requires_grad_()
    for n, row in enumerate(block(x)):
        (gradient,) = torch.autograd.grad(row.sum(), x, retain_graph=True)
        reached = gradient.abs().sum(-1) > 0
        assert reached[n]
        assert not reached[n + 1 :].any()
        if n:
            assert reached[n - 1]
    other = x.detach().clone()
    other[4:] = features(3, 6)
    torch.testing.assert_close(block(other)[:4], block(x)[:4])


@pytest.mark.parametrize("name", ["LightweightConv-3", "DynamicConv-3"])
def test_the_others_see_both_sides(name):
    block = make(name)
    x = features(7, 6).requires_grad_()
    (gradient,) = torch.autograd.grad(block(x)[3].sum(), x)
    assert (gradient.abs().sum(-1) > 0).tolist() == [False, False, True, True, True, False, False]


@pytest.mark.parametrize("name", POOLING)
def test_pooling_does_not_depend_on_the_order_within_a_bag(name):
    block = make(name)
    x, order = features(7, 6), torch.tensor([3, 1, 6, 0, 5, 2, 4])
    torch.testing.assert_close(block(x[order], BATCH[order]), block(x, BATCH))
    (only,) = block(x[BATCH == 2])  # without a batch: a single bag
    torch.testing.assert_close(only, block(x, BATCH)[2])


@pytest.mark.parametrize("name", POOLING)
def test_an_empty_bag_gives_zero(name):
    y = make(name)(features(3, 6), torch.tensor([0, 2, 2]))
    assert y.shape == (3, 6)
    assert y.isfinite().all()
    assert not y[1].any()


def test_routing_takes_nodes_in_any_order_and_a_causal_layer_does_not():
    order = torch.tensor([3, 1, 6, 0, 5, 2, 4])
    x = features(2, 7, 6)
    block = make("RoutingBlock")
    torch.testing.assert_close(block(x[:, order]), block(x)[:, order])
    causal = make("CausalAttention")
    assert (causal(x[:, order]) - causal(x)[:, order]).abs().max() > 0.1


def test_routing_normalises_by_what_it_has_seen_when_it_is_not_trained():
    block = make("RoutingBlock").eval()
    with torch.no_grad():
        for i in range(2):
            block.norms[i].running_mean.normal_()
    x = features(2, 7, 6)
    torch.testing.assert_close(block(x)[:1], block(x[:1]))
    assert (block.train()(x) - block.eval()(x)).abs().max() > 0.1


def test_masks_are_those_of_the_operator():
    x = features(2, 7, 6)
    mask = torch.rand(7, 7) > 0.5
    mask |= torch.eye(7, dtype=torch.bool)
    block = make("RoutingBlock")
    h = x + attend(x, block.conv, ~mask.t())
    torch.testing.assert_close(block(x, mask=mask), block._norm(1, block._norm(0, h) + block.feed(block._norm(0, h))))
    causal = make("CausalAttention")
    valid = torch.tensor([True] * 5 + [False] * 2).expand(2, 7)
    torch.testing.assert_close(causal(x, valid=valid)[:, :5], causal(x[:, :5]))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.sweep(6)
def test_a_block_is_copied_saved_and_loaded(name):
    block, other = make(name), make(name)
    x = features(2, 7, 6)
    y = call(block, x)
    assert (call(other, x) - y).abs().max() > 1e-3
    torch.testing.assert_close(call(deepcopy(block), x), y)
    other.load_state_dict(block.state_dict())
    torch.testing.assert_close(call(other, x), y)
    assert (call(make(name), x) - y).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [LightweightConv, DynamicConv, CausalAttention])
def test_dropout_is_of_the_training_only_and_keeps_the_mean(kind):
    options = {} if kind is CausalAttention else {"taps": 3}
    block, kept = (kind(6, heads=2, dropout=p, **options).double() for p in (0.3, 0.0))
    kept.load_state_dict(block.state_dict())
    x = features(4, 6)
    torch.testing.assert_close(block.eval()(x), kept(x))
    block.train()
    with torch.no_grad():
        drawn = torch.stack([block(x) for _ in range(200)])
    assert (drawn.std(0) > 1e-3).any()
    error = (drawn.mean(0) - kept(x)).abs() / (drawn.std(0) / 200**0.5 + 1e-9)
    assert error.max() < 5


@pytest.mark.parametrize("kind", [LightweightConv, DynamicConv])
def test_dropout_of_taps_leaves_channels_of_a_head_together(kind):
    """A tap of weight one that is dropped takes all channels of its head with it, and no others."""
    torch.manual_seed(1)
    block = kind(6, heads=2, taps=1, dropout=0.5).double()
    block.linear_out = nn.Identity()
    x = features(50, 6)
    h = glu(block, x)
    kept = (block(x) / h).unflatten(-1, (2, 3))  # 0 or 2
    torch.testing.assert_close(kept, kept[..., :1].expand(-1, -1, 3))
    seen = set(kept.round(decimals=6).flatten().tolist())
    assert seen <= {0.0, 2.0}
    if kind is DynamicConv:
        assert seen == {0.0, 2.0}


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: LightweightConv(6, heads=2, taps=0), "taps"),
        (lambda: LightweightConv(6, heads=4, taps=3), "heads"),
        (lambda: LightweightConv(6, heads=2, taps=3, dropout=1.5), "dropout"),
        (lambda: DynamicConv(6, heads=2, taps=2.0), "taps"),
        (lambda: DynamicConv(6, heads=4, taps=3), "heads"),
        (lambda: DynamicConv(6, heads=2, taps=3, dropout=-1), "dropout"),
        (lambda: AttentionPooling(6, hidden=0), "dim"),
        (lambda: CausalAttention(6, heads=4), "heads"),
        (lambda: CausalAttention(6, heads=0), "heads"),
        (lambda: CausalAttention(6, heads=2, dropout=2.0), "dropout"),
        (lambda: RoutingBlock(6, heads=True, hidden=4), "heads"),
        (lambda: AttentionPooling(6, hidden=2)(torch.ones(3, 6), torch.tensor([0, 1])), "batch"),
        (lambda: AttentionPooling(6, hidden=2)(torch.ones(3, 5), torch.tensor([0, 1, 1])), "x"),
        (lambda: CausalAttention(6, heads=2)(torch.ones(3, 6).to_sparse()), "x"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, argument):
    with pytest.raises(ValueError, match=rf"^{argument}\b.*: expected .*, got .*; "):
        make()


def test_the_last_bags_may_be_empty() -> None:
    block, x = AttentionPooling(6, hidden=4), torch.randn(7, 6)
    y = block(x, BATCH, size=5)
    torch.testing.assert_close(y[:3], block(x, BATCH))
    assert y.shape == (5, 6)
    assert not y[3:].any()
