"""The checks of attention can fail: layers with one thing wrong do not pass them."""

from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from pyg_basisconv import BasisConv
from tests.mechanisms import test_attention as contract
from tests.mechanisms.cases import CASES, Case, dot, layer, leaf
from tests.mechanisms.oracle import Mechanism
from tests.mechanisms.test_attention import DROPPED, EQUIVARIANT, GRADCHECKS, MASKED, Make

Forward = Callable[..., Any]
Change = Callable[..., Any]


def told(**changes: Any) -> Make:
    """A layer that was asked for something else."""
    return lambda c: layer(c, **changes)


def changed(change: Change, dropout: float = 0.0) -> Make:
    """A layer whose call is change(conv, its call, *args, **kwargs)."""

    def make(c: Case) -> tuple[BasisConv, Mechanism]:
        conv, a = layer(c, dropout=dropout)
        right = conv.forward
        conv.forward = MethodType(lambda self, *args, **kwargs: change(self, right, *args, **kwargs), conv)
        return conv, a

    return make


def nothing(conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **kwargs)


def without(*names: str) -> Change:
    """Ignores what the call says."""
    return lambda conv, forward, *args, **kwargs: forward(*args, **{k: v for k, v in kwargs.items() if k not in names})


def drop_edge(conv: BasisConv, forward: Forward, x: Any, edges: Tensor, edge_weight: Tensor, **kwargs: Any) -> Any:
    if "edge_attr" in kwargs:
        kwargs["edge_attr"] = kwargs["edge_attr"][1:]
    return forward(x, edges[:, 1:], edge_weight=edge_weight[1:], **kwargs)


def merge_repeats(conv: BasisConv, forward: Forward, x: Any, edges: Tensor, edge_weight: Tensor, **kwargs: Any) -> Any:
    places = list({(m, n): e for e, (m, n) in enumerate(edges.t().tolist())}.values())
    return forward(x, edges[:, places], edge_weight=edge_weight[places], **kwargs)


def turn(conv: BasisConv, forward: Forward, x: Any, edges: Tensor, **kwargs: Any) -> Any:
    return forward(x, edges.flip(0), **kwargs)


def mask_transposed(conv: BasisConv, forward: Forward, *args: Any, mask: Tensor, **kwargs: Any) -> Any:
    return forward(*args, mask=mask.mT, **kwargs)


def mask_detached(conv: BasisConv, forward: Forward, *args: Any, mask: Tensor, **kwargs: Any) -> Any:
    return forward(*args, mask=mask.detach(), **kwargs)


def attributes_shuffled(conv: BasisConv, forward: Forward, *args: Any, edge_attr: Tensor, **kwargs: Any) -> Any:
    return forward(*args, edge_attr=edge_attr.flip(0), **kwargs)


class Substituted:
    """Calls with other parameters in the place of some."""

    def __init__(self, change: Callable[[str, Tensor], Tensor]) -> None:
        self.change = change

    def __call__(self, conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        values = {name: self.change(name, p) for name, p in conv.named_parameters()}
        wrong, conv.forward = conv.forward, forward
        try:
            return functional_call(conv, values, args, kwargs)
        finally:
            conv.forward = wrong


def dense(forward: Forward, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
    """The matrices of a call, and the call's result."""
    y, A = forward(*args, **kwargs | {"return_attention": True})
    return A.to_dense(), (y, A) if kwargs.get("return_attention") else y


def applied(conv: BasisConv, A: Tensor, x: Tensor) -> Tensor:
    """(K, *, M, N), (*, M, P)"""
    y = torch.einsum("k...mn,...mp,kpq->...nq", A, x, conv.theta.dense().to(x))
    return y if conv.bias is None else y + conv.bias


def stale(conv: BasisConv, forward: Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Keeps the attention of its first call."""
    if "kept" not in conv.__dict__:
        conv.__dict__["kept"] = dense(forward, x, *args, **kwargs)[0].detach()
    return applied(conv, conv.__dict__["kept"], x)


def content_detached(conv: BasisConv, forward: Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Right values; the scores pass no gradient on."""
    A, _ = dense(forward, x, *args, **kwargs)
    return applied(conv, A.detach(), x)


def first_element(conv: BasisConv, forward: Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """All elements of a batch get the attention of the first."""
    A, _ = dense(forward, x, *args, **kwargs)
    return applied(conv, A[:, :1].expand_as(A), x) if x.dim() > 2 else forward(x, *args, **kwargs)


def another_dropout_backward(conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    """Drawn again where the gradient is computed."""
    return checkpoint(forward, *args, **kwargs, use_reentrant=False, preserve_rng_state=False)


def not_a_number(conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    """What a softmax over nothing gives."""
    y = forward(*args, **kwargs)
    return torch.where((y == 0).all(-1, keepdim=True), torch.nan, y)


def bias_where_nothing_is(conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    y = forward(*args, **kwargs)
    return torch.where((y == 0).all(-1, keepdim=True), 1 / y.shape[-2], y)


def half_gradient(conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    y = forward(*args, **kwargs)
    return 0.5 * (y + y.detach())


def rough(conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    y = forward(*args, **kwargs)
    return (y * 1.07).to(y.dtype)


def noisy(conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    y = forward(*args, **kwargs)
    return y * (1 + 1e-5 * torch.rand(()))


def first_node_marked(conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    y = forward(*args, **kwargs)
    return torch.cat([2 * y[..., :1, :], y[..., 1:, :]], -2)


class Broken:
    """A returned basis that is right but for what a subclass says."""

    def __init__(self, right: Any) -> None:
        self.right = right

    def __getattr__(self, name: str) -> Any:
        return getattr(self.right, name)


class TransposeForgotten(Broken):
    @property
    def T(self) -> Any:
        return self.right


class EachFlipped(Broken):
    def each(self, z: Tensor) -> Tensor:
        return self.right.each(z).flip(0)


class EdgesLost(Broken):
    def edges(self) -> Any:
        return tuple(t[..., 1:] for t in self.right.edges())


def returned(kind: type[Broken]) -> Change:
    def change(conv: BasisConv, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        found = forward(*args, **kwargs)
        return (found[0], kind(found[1])) if kwargs.get("return_attention") else found

    return change


def on_heads(name: str, p: Tensor) -> Tensor:
    return p.flip(0) if name.startswith("theta") else p


def no_gradient(name: str, p: Tensor) -> Tensor:
    return p.detach() if name.startswith("basis") else p


def exchanged(c: Case) -> tuple[BasisConv, Mechanism]:
    """The parameters of sources and targets in each other's place."""
    conv, a = layer(c)
    leaf_ = next(m for m in conv.basis.modules() if type(m).__name__ == "Additive")
    leaf_.source.data, leaf_.target.data = leaf_.target.data, leaf_.source.data
    return conv, a


PLAIN, DENSE = CASES["GAT-graph"], CASES["dot-none-batch"]
WRONG: dict[str, tuple[Case, Make, str]] = {
    # name: (the case, the wrong layer, the checks that must fail)
    "softmax over targets": (PLAIN, told(normalize="target"), "paths family"),
    "softmax over heads": (PLAIN, told(normalize="heads"), "paths family"),
    "not normalised": (DENSE, told(normalize=None), "paths family"),
    "sigmoid for tanh": (CASES["tanh-gat-graph"], told(normalize="sigmoid"), "paths family"),
    "weights ignored": (CASES["tanh-weighted"], told(weighted=False), "paths family"),
    "weights not ignored": (PLAIN, told(weighted=True), "paths family"),
    "mask ignored": (CASES["dot-causal-batch"], told(mask="none"), "paths family"),
    "aligned at the other end": (CASES["dot-causal-end-6x3"], told(mask="causal-start"), "paths family"),
    "loops forgotten": (CASES["gat-loops"], told(mask="graph"), "paths family"),
    "mask of the call ignored": (CASES["dense-bool"], changed(without("mask")), "paths family"),
    "valid ignored": (CASES["graph-valid"], changed(without("valid")), "paths family"),
    "mask transposed": (CASES["dense-float"], changed(mask_transposed), "paths family"),
    "mask detached": (CASES["dense-float"], changed(mask_detached), "paths"),
    "scale forgotten": (DENSE, told(mechanism=lambda: dot(scale=1.0)), "paths family"),
    "activation forgotten": (PLAIN, told(mechanism=lambda: leaf("Additive", projected=True)), "paths family"),
    "keys for both": (
        CASES["Dot(edge,both)-graph"],
        told(mechanism=lambda: dot(edge_dim=2, mix="cross")),
        "paths family",
    ),
    "an edge dropped": (PLAIN, changed(drop_edge), "paths family"),
    "repeats merged": (PLAIN, changed(merge_repeats), "paths family"),
    "edges turned round": (PLAIN, changed(turn), "paths family"),
    "attributes in another order": (CASES["Edge-graph"], changed(attributes_shuffled), "paths family"),
    "sources for targets": (CASES["Additive-graph"], exchanged, "paths family"),
    "heads in another order": (PLAIN, changed(Substituted(on_heads)), "paths"),
    "attention of an earlier call": (CASES["dot-none"], changed(stale), "freshness"),
    "content detached": (CASES["dot-none"], changed(content_detached), "paths"),
    "content of the first element": (DENSE, changed(first_element), "paths batch"),
    "parameters detached": (PLAIN, changed(Substituted(no_gradient)), "paths"),
    "half a gradient": (PLAIN, changed(half_gradient), "paths"),
    "half a gradient, differences": (GRADCHECKS["gat"], changed(half_gradient), "gradcheck"),
    "another dropout backward": (
        DROPPED["gat"].but(M=3, E=4),
        changed(another_dropout_backward, dropout=0.5),
        "dropout",
    ),
    "rough": (PLAIN, changed(rough), "paths precision"),
    "not the same bits": (PLAIN, changed(noisy), "determinism"),
    "a node is marked": (EQUIVARIANT["dot-dense"], changed(first_node_marked), "equivariance paths"),
    "not a number": (MASKED["graph"], changed(not_a_number), "nothing_to_attend"),
    "the mean of nothing": (MASKED["dense"], changed(bias_where_nothing_is), "nothing_to_attend"),
    "transpose forgotten": (DENSE, changed(returned(TransposeForgotten)), "family adjoint"),
    "each flipped": (DENSE, changed(returned(EachFlipped)), "family adjoint"),
    "edges lost": (PLAIN, changed(returned(EdgesLost)), "family"),
    "edges of others": (CASES["Edge-graph"], changed(attributes_shuffled), "incidence"),
}
PAIRS = [(name, check) for name, (*_, checks) in WRONG.items() for check in checks.split()]


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{check}-{name}" for name, check in PAIRS])
@pytest.mark.sweep(21)
def test_wrong_attention_fails(name: str, check: str) -> None:
    c, make, _ = WRONG[name]
    with pytest.raises((AssertionError, GradcheckError)):
        contract.CHECKS[check](c, make)


def test_every_check_can_fail() -> None:
    assert {check for _, check in PAIRS} == set(contract.CHECKS)


@pytest.mark.parametrize("check", [*contract.CHECKS])
@pytest.mark.sweep(6)
def test_the_wrappers_are_harmless(check: str) -> None:
    """It is the change that the checks see."""
    c = MASKED["graph"] if check == "nothing_to_attend" else EQUIVARIANT["gat-graph"]
    c = PLAIN if check == "incidence" else c
    c = GRADCHECKS["gat"] if check in ("gradcheck", "dropout") else c
    for change in (nothing, returned(Broken), Substituted(lambda name, p: p)):
        contract.CHECKS[check](c, changed(change, dropout=0.5 if check == "dropout" else 0.0))
