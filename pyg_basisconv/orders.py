"""The orders of contraction of A, x and Theta: chosen for a call by what plan.py says that they cost, and evaluated."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from .basis import BoundBasis, Compaction, Side
from .content import Inputs
from .errors import reject
from .plan import Plan, Problem, plan
from .portable import faked, portable
from .sparse_input import condensed

_FEW_ROWS = 1 << 15
LINKED = "theta_first"  # the order in which only what is linked meets, and which is always possible


def a_first(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """(A_k^T x) Theta_k: sparse products at width P."""
    return inputs.theta.contract(basis.iterate(inputs.theta.lift(inputs.x)))


def theta_first(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """A_k^T (x Theta_k): sparse products at width Q; x may be sparse."""
    return inputs.theta.gather(basis, inputs.projected)


def phi(basis: BoundBasis, inputs: Inputs) -> Tensor:
    """X (A o Theta): the operator, once, for the whole batch."""
    x, theta = inputs.theta.lift(inputs.x), inputs.theta
    A = basis.dense  # (K, M, N)
    weight = theta.dense(x.shape[-1]).to(x)  # (K, P, Q)
    M, N, P, Q = basis.M, basis.N, weight.shape[1], weight.shape[2]
    operator = A.flatten(1).t() @ weight.flatten(1)  # (M N, P Q)
    operator = operator.view(M, N, P, Q).transpose(1, 2).reshape(M * P, N * Q)
    batch = x.shape[:-2]
    y = x.reshape(prod(batch), M * P) @ operator
    return y.view(*batch, N, Q)


def compacted(basis: BoundBasis, inputs: Inputs, side: Side) -> Tensor:
    """A_k^T x Theta_k on the rows of each member where there is something, of its sources or of its targets."""
    compact = basis.compact(side)
    assert compact is not None  # the plan refuses it otherwise
    x = inputs.theta.lift(inputs.x)
    return compact.run(x, inputs.theta.diagonal(x.shape[-1]).to(x))


def mixed(basis: BoundBasis, inputs: Inputs, then: Callable[[BoundBasis, Inputs], Tensor]) -> Tensor:
    """(sum_k c_hk A_k)^T x W_h: the members are mixed as the parameter says, and then H matrices are applied."""
    coefficients, matrices = inputs.theta.unmixed
    return then(basis.mixed(coefficients), Inputs(inputs.x, matrices))


ORDERS: dict[str, Callable[[BoundBasis, Inputs], Tensor]] = {
    "a_first": a_first,
    "theta_first": theta_first,
    "phi": phi,
    "compacted, source": partial(compacted, side="source"),
    "compacted, target": partial(compacted, side="target"),
    "mixed, a_first": partial(mixed, then=a_first),
    "mixed, theta_first": partial(mixed, then=theta_first),
}


class Contracted(NamedTuple):
    """What an order gives.

    y: the result; kept: arrays that are kept for later calls, and that y may share its memory with; biased: whether the
    bias is in it.
    """

    y: Tensor
    kept: tuple[Tensor, ...] = ()
    biased: bool = False


def contract(chosen: Plan, basis: BoundBasis, inputs: Inputs, bias: Tensor | None) -> Contracted:
    """The result in the order that was chosen."""
    cached = chosen.problem.cached
    if chosen.order == "native":
        native = basis.native(inputs.theta, inputs.x.size(-1))
        assert native is not None  # the plan refuses it otherwise
        return Contracted(native.run(inputs, bias), biased=True)
    if chosen.order == "a_first" and cached:
        kept = basis.expansions(inputs.x)
        return Contracted(inputs.theta.contract(kept), kept)
    if chosen.order == "theta_first" and cached:
        inputs = Inputs(_sparsest(inputs.x, cached), inputs.theta)
    return Contracted(ORDERS[chosen.chosen.name](basis, inputs))


def spreads(chosen: Plan, y: Tensor) -> bool:
    """Whether a dense product may have brought what is not finite to all nodes, by zeros: only what is linked may have
    it.
    """
    return chosen.order == "phi" and not _finite(y)


def _finite(y: Tensor) -> bool:
    """Whether all numbers are finite, where there are numbers to look at."""
    if portable() or faked() or (y.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    return bool(y.detach().isfinite().all())


def _sparsest(x: Tensor, cached: bool) -> Tensor:
    """x, or the sparse copy of it that is kept for one that does not change and is mostly zeros."""
    copy = condensed(x) if cached and x.dim() == 2 else None
    return x if copy is None else copy


def measured(inputs: Inputs, family: BoundBasis, order: str, cached: bool, messages: bool) -> Problem:
    """The sizes of a call.

    Args:
        inputs: the features and the parameter.
        family: that reads them.
        order: that is asked for.
        cached: whether what follows from the features alone is kept.
        messages: whether messages are passed as PyG does.
    """
    x, theta, grad = inputs.x, inputs.theta, torch.is_grad_enabled()
    weight, P, H = theta.reference, x.size(-1), theta.mixtures
    features, native = _sparsest(x, cached), family.native(theta, P)
    rows = theta.sums and weight is not None and not messages and x.layout == torch.strided and not portable()
    mixing = None if messages or H is None else family.mixing
    problem = Problem(
        K=family.K,
        M=family.M,
        N=family.N,
        P=P,
        Q=theta.outputs(P),
        B=1 if x.dim() == 2 else prod(x.shape[:-2]),
        inner=P if theta.Q < 0 else theta.inner,
        expand=family.work("expand"),
        gather=family.work("combine" if theta.sums else "each"),
        nnz=-1 if features.layout == torch.strided else features._nnz(),
        grad_x=grad and x.requires_grad,
        grad_theta=grad and weight is not None and weight.requires_grad,
        grad_basis=grad and family.requires_grad,
        itemsize=x.element_size(),
        device="cuda" if x.is_cuda else "cpu",
        cached=cached,
        learns=weight is not None,
        messages=messages,
        native=None if native is None else native[1:5],
        compact=_compactions(family, order) if rows else (),
        mixing=None if mixing is None or H is None else (H, mixing),
        batched=bool(family.batch),
    )
    return problem.of_example if portable() else problem


def _compactions(family: BoundBasis, order: str) -> tuple[Compaction, ...]:
    """What evaluations on the rows that are touched cost, where one is asked for, or may pay: where rows are many."""
    if order != "compacted" and family.K * max(family.M, family.N) <= _FEW_ROWS:
        return ()
    found = (family.compact("target"), family.compact("source"))
    return tuple(one.sizes for one in found if one is not None)


def planned(problem: Problem, order: str) -> Plan:
    """The plan, of an order that looks at no values where there are none."""
    if portable() and order == "compacted":
        reject("order", "one that looks at no values, under torch.export and torch.func", repr(order), "use 'auto'")
    chosen = plan(problem, order)
    if portable() and order == "auto" and chosen.order == "phi":  # whose result would have to be looked at
        chosen = plan(problem, LINKED)
    return chosen
