"""Attention on all pairs, sequences and bags, against the formulas."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .. import bases
from ..conv import BasisConv
from ..convert import convert
from ..mechanisms import MLP, Additive, Bilinear, Dot, Perceptron, Relative, Tap
from ..theta import Depthwise, Heads, LowRank, Pass, Split
from .comparison import Case, formula, system
from .data import E, H, L, M, P, Q, drawn, features
from .matrices import applied

D, R = 3, 3  # the width of a head, and of the features of edges


def softmax_of(score: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Column-wise, over m for each n: (..., M, N)."""
    return (score if allowed is None else score.masked_fill(~allowed, -torch.inf)).softmax(-2)


def _sides(source: Tensor, target: Tensor) -> Tensor:
    """(*, K, M, N) the sums of the terms (*, M, K) of sources and (*, N, K) of targets."""
    return source.mT.unsqueeze(-1) + target.mT.unsqueeze(-2)


def _heads(m: Any, value: Tensor, x: Tensor) -> Tensor:
    """(*, K, N, D) the heads of scaled dot products, by torch."""
    q, k, v = (torch.einsum("...mp,kpd->...kmd", x, w) for w in (m.query, m.key, value))
    return F.scaled_dot_product_attention(q, k, v)


def _joined(heads: Tensor) -> Tensor:
    """(*, N, K D) the heads side by side."""
    return heads.movedim(-3, -2).flatten(-2)


def _pair(f: Any, x: Tensor, y: Tensor, *rest: Tensor) -> Tensor:
    return f((x, y), *rest)


def _causal(M: int) -> Tensor:
    return torch.ones(M, M, dtype=torch.bool).triu()


def _relative(M: int, N: int) -> Tensor:
    """(M, N) the differences m - n."""
    return torch.arange(M)[:, None] - torch.arange(N)


@system("bi-affine", "x L y + l.x + m.y + xi, dense")
def _biaffine() -> Iterator[Case]:
    def score(c: Any, x: Tensor, y: Tensor) -> Tensor:
        bilinear, additive = c.basis.mechanism.parts
        sides = _sides(x @ additive.source.t() + additive.bias, y @ additive.target.t())
        return torch.einsum("...mp,kpr,...nr->...kmn", x, bilinear.weight, y) + sides

    def dense(c: Any, x: Tensor, y: Tensor, allowed: Tensor | None = None) -> Tensor:
        return applied(x, softmax_of(score(c, x, y), allowed), c.theta.weight) + c.bias

    for lead in ((), (3,)):
        conv = BasisConv((P, 4), Q, bases.Attention(H, Bilinear() + Additive(bias=True)))
        yield formula(conv, dense, [features(*lead, M, P), features(*lead, L, 4)], _pair)
    causal = BasisConv(P, Q, bases.Attention(H, Bilinear() + Additive(bias=True), bases.Causal()))
    yield formula(causal, lambda c, x: dense(c, x, x, _causal(M)), [features(2, M, P)])


def sequences(**options: Any) -> tuple[nn.Module, nn.Module]:
    """The conversion of torch's attention, and the original."""
    reference = drawn(nn.MultiheadAttention(E, H, batch_first=True, **options))
    return convert(reference), reference


@system("Transformer, self", "torch.nn.MultiheadAttention(x, x, x)")
def _self() -> Iterator[Case]:
    for options in ({}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}):
        for shape in ((M, E), (2, M, E)):
            yield Case(*sequences(**options), [features(*shape)], lambda f, x: f(x, x, x)[0])


@system("Transformer, causal", "torch.nn.MultiheadAttention, is_causal")
def _gpt() -> Iterator[Case]:
    mask = ~_causal(M).t()
    for shape in ((M, E), (2, M, E)):
        ours, reference = sequences()
        call = {"attn_mask": mask, "is_causal": True, "need_weights": False}
        yield Case(ours, reference, [features(*shape)], lambda f, x, call=call: f(x, x, x, **call)[0])

    def layer(c: Any, x: Tensor) -> Tensor:
        m, t = c.basis.mechanism, c.theta
        q, k, v = (
            torch.einsum("...mp,kpd->...kmd", x, w) + b.unsqueeze(1)
            for w, b in ((m.query, m.query_bias), (m.key, m.key_bias), (t.weight, t.value_bias))
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + torch.einsum("...knd,kdq->...nq", heads, t.output) + c.bias

    conv = BasisConv(E, E, bases.Attention(H, Dot(D, bias=True), bases.Causal()), LowRank(D, bias=True))
    yield formula(conv, layer, [features(2, M, E)], lambda f, x: x + f(x))


@system("heads, joined or summed", "[h_1 .. h_K] O, and the sum of h_k O_k")
def _combination() -> Iterator[Case]:
    def joined(c: Any, x: Tensor) -> Tensor:
        return _joined(_heads(c.basis.mechanism, c.theta.weight, x)) @ c.theta.output.flatten(0, 1)

    def summed(c: Any, x: Tensor) -> Tensor:
        heads = _heads(c.basis.mechanism, c.theta.weight, x)
        return sum(heads[..., k, :, :] @ c.theta.output[k] for k in range(H))  # type: ignore[return-value]

    for form in (joined, summed):
        for order in ("theta_first", "a_first"):
            conv = BasisConv(P, Q, bases.Attention(H, Dot(D)), LowRank(D), order=order, bias=False)
            yield formula(conv, form, [features(2, M, P)])


@system("softmax(X X') X, phi_q, phi_k, phi_v", "F.scaled_dot_product_attention")
def _slides() -> Iterator[Case]:
    conv = BasisConv(P, P, bases.Attention(1, Dot(scale=1.0, projected=True)), Pass(), bias=False)
    yield Case(conv, lambda x: F.scaled_dot_product_attention(x, x, x, scale=1.0), [features(2, M, P)])

    for heads in (1, 3):
        conv = BasisConv(P, heads * D, bases.Attention(heads, Dot(D)), Heads(), bias=False)
        yield formula(conv, lambda c, x: _joined(_heads(c.basis.mechanism, c.theta.weight, x)), [features(2, M, P)])


@system("attention pooling", "w.tanh(V x), and gated, bag by bag")
def _pooling() -> Iterator[Case]:
    batch = torch.tensor([0, 2, 2, 0, 2, 0, 2])  # the second bag is empty

    def bags(c: Any, x: Tensor) -> Tensor:
        m = c.basis.mechanism
        hidden = (x @ m.source[0]).tanh()
        if m.gated:
            hidden = hidden * (x @ m.gate[0]).sigmoid()
        score = hidden @ m.out[0]
        pooled = [score[batch == g].softmax(0) @ x[batch == g] for g in range(3)]
        return torch.stack(pooled)

    for gated in (False, True):
        mechanism = MLP(4, target=None, gated=gated)
        conv = BasisConv(P, P, bases.Attention(1, mechanism, bases.Bags()), Pass(), bias=False)
        yield formula(conv, bags, [features(M, P)], lambda f, x: f(x, batch=batch))


class Routing(nn.Module):
    """A layer of an encoder for routing: attention and a hidden layer, each with a residual and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(E, H, bias=False, batch_first=True)
        self.hidden = nn.Sequential(nn.Linear(E, 9), nn.ReLU(), nn.Linear(9, E))
        self.first, self.second = nn.BatchNorm1d(E), nn.BatchNorm1d(E)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first((x + self.attention(x, x, x, need_weights=False)[0]).flatten(0, 1))
        return self.second(h + self.hidden(h)).view_as(x)


@system("attention for routing", "nn.MultiheadAttention and nn.BatchNorm1d")
def _routing() -> Iterator[Case]:
    reference = drawn(Routing())
    yield Case(convert(reference), reference, [features(3, M, E)])


@system("by relative position and period", "an additive score and two tables, dense")
def _position() -> Iterator[Case]:
    def dense(c: Any, x: Tensor) -> Tensor:
        (content, window), period = c.basis.mechanism.parts[0].parts, c.basis.mechanism.parts[1]
        delta = _relative(M, M)
        table = F.pad(window.weight, (0, 1))[:, torch.where(delta.abs() <= 2, delta + 2, 5)]
        table = table + period.weight[:, delta % 3]
        score = _sides(x @ content.source.t(), x @ content.target.t()) + table
        return applied(x, softmax_of(score, delta.abs() <= 3), c.theta.weight) + c.bias

    mechanism = Additive() + Relative(window=(-2, 2)) + Relative(period=3)
    conv = BasisConv(P, Q, bases.Attention(H, mechanism, bases.Shifts(None, range(-3, 4))))
    for lead in ((), (2,)):
        yield formula(conv, dense, [features(*lead, M, P)])


@system("lightweight convolution", "the band matrix; the worked example")
def _lightweight() -> Iterator[Case]:
    offsets = [-2, -1, 0, 1]

    def band(c: Any, x: Tensor) -> Tensor:
        weight = c.theta.weight.softmax(0) if c.theta.normalize else c.theta.weight
        W = x.new_zeros(H, M, M)
        for k, offset in enumerate(offsets):
            W = W + weight[k, :, None, None] * (_relative(M, M) == -offset)
        return torch.einsum("hmn,...mhd->...nhd", W, x.unflatten(-1, (H, -1))).flatten(-2)

    for normalize in ("softmax", None):
        conv = BasisConv(E, E, bases.Shifts(None, offsets), Depthwise(H, normalize), bias=False)
        for order in ("auto", "a_first", "theta_first"):
            conv.order = order
            yield formula(copy.deepcopy(conv), band, [features(2, M, E)])
    x = torch.tensor([[1, 2, 3, 1], [3, 2, 1, 3], [4, 4, 2, 1], [0, 0, 0, 0]]).double()
    worked = torch.tensor([[4, 4, 8, 8], [7, 6, 6, 8], [4, 4, 4, 2], [0, 0, 0, 0]]).double()
    example = BasisConv(4, 4, bases.Shifts(None, [0, -1]), Depthwise(2), bias=False).double()
    weight = {"theta.weight": torch.tensor([[1.0, 2.0], [1.0, 2.0]]).double()}
    yield Case(
        lambda scale: functional_call(example, weight, (x * scale,)), lambda scale: worked * scale, [features(1)]
    )


@system("dynamic convolution", "a loop over steps, heads and taps")
def _dynamic() -> Iterator[Case]:
    offsets = [-1, 0, 2]

    def loop(c: Any, x: Tensor) -> Tensor:
        weight, rows = c.basis.mechanism.weight, []  # (H, P, taps)
        for n in range(M):
            heads = []
            for h, group in enumerate(x.unflatten(-1, (H, -1)).unbind(-2)):
                inside = [k for k, offset in enumerate(offsets) if 0 <= n - offset < M]
                taps = (x[n] @ weight[h][:, inside]).softmax(-1)
                heads.append(sum(tap * group[n - offsets[k]] for tap, k in zip(taps, inside, strict=True)))
            rows.append(torch.cat(heads))  # type: ignore[arg-type]
        return torch.stack(rows)

    conv = BasisConv(E, E, bases.Attention(H, Tap(offsets), bases.Shifts(None, offsets)), Split(), bias=False)
    yield formula(conv, loop, [features(M, E)])


@system("shift heads beside content heads", "the sum of the parts")
def _shift_heads() -> Iterator[Case]:
    def parts(c: Any, x: Tensor) -> Tensor:
        t = c.theta
        heads = _heads(c.basis.parts[0].mechanism, t.weight[:H], x)
        y = torch.einsum("...knd,kdq->...nq", heads, t.output[:H])
        back, ahead = F.pad(x, (0, 0, 0, 1))[..., 1:, :], F.pad(x, (0, 0, 1, 0))[..., :-1, :]
        return y + back @ t.weight[H] @ t.output[H] + ahead @ t.weight[H + 1] @ t.output[H + 1] + c.bias

    for lead in ((), (2,)):
        conv = BasisConv(P, Q, bases.Attention(H, Dot(D)) + bases.Shifts(None, [-1, 1]), LowRank(D))
        yield formula(conv, parts, [features(*lead, M, P)])


@system("mixed with edges", "(k + zU).(q + zV); k.q + k.(zV) + q.(zU); relu(k.q a + zW).a'")
def _mixed() -> Iterator[Case]:
    def score(m: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        if isinstance(m, Perceptron):
            (dot, *_), weight = m.parts, m.weight  # (K, 1 + R, D)
            plain = torch.einsum("mp,kpd,kqd,nq->kmn", x, dot.key, dot.query, y) / D**0.5
            given = torch.cat([plain.unsqueeze(-1), z.expand(H, *z.shape)], -1)
            return torch.einsum("kmnd,kd->kmn", torch.einsum("kmni,kid->kmnd", given, weight).relu(), m.out)
        k, q = torch.einsum("mp,kpd->kmd", x, m.key)[:, :, None], torch.einsum("np,kpd->knd", y, m.query)[:, None]
        u, v = (torch.einsum("mnr,krd->kmnd", z, w) for w in (m.key_edge, m.query_edge))
        if m.mix == "both":
            return ((k + u) * (q + v)).sum(-1) / D**0.5
        return (k * q + k * v + q * u).sum(-1) / D**0.5

    def dense(c: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return applied(x, softmax_of(score(c.basis.mechanism, x, y, z)), c.theta.weight @ c.theta.output) + c.bias

    mixtures = (Dot(D, edge_dim=R, mix="both"), Dot(D, edge_dim=R, mix="cross"))
    for mechanism in (*mixtures, Perceptron(4, Dot(D), edge_dim=R)):
        conv = BasisConv((P, 4), Q, bases.Attention(H, mechanism), LowRank(D))
        leaves = [features(M, P), features(L, 4), features(M, L, R)]
        yield formula(conv, dense, leaves, lambda f, x, y, z: f((x, y), edge_attr=z))
