"""Attention on the entries of a pattern: scores, their softmax and the weighted sums in one step; see `scoring`.

What is summed and what that depends on is given in this order: z, the rows of sources; the factors of weights; of
values of entries their numbers, or features and the map of these; and the tensors that scores are computed from.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..backend import uses_triton
from ..portable import with_plain
from .memory import room
from .multihead import (
    HELD,
    group_sums,
    inner_products,
    plain_attention,
    raw_attention,
    softmax,
    to_heads,
    to_rows,
    transposed_sums,
)
from .onepass import Attend, precision, supports
from .op import (
    Backward,
    Grads,
    acc_dtype,
    add_optional,
    derivative,
    differentiated_again,
    needs_gradient,
    raw_apply,
    recorded,
)
from .pattern import Pattern
from .scoring import PRODUCTS, ScoreForm, ScoreGrad, Sums, Tensors, TermScores, Valued


def _table(z: Tensor) -> Tensor:
    """Contiguous rows in the accumulation dtype."""
    return z.to(acc_dtype(z.dtype)).contiguous()


def _attention(sums: Sums, z: Tensor, factor: Tensor | None, *tensors: Tensor | None) -> tuple[Tensor, Tensors]:
    """See `scored_attention`; by torch's operations, and without values of entries."""
    scoring, normalised, pattern, c = sums
    table = _table(z)
    score, kept = scoring.score(table, tensors, c, pattern)
    y, weight, total = raw_attention(score, factor, table, normalised, pattern)
    return y.to(z.dtype), (weight, table, total, *kept)


def _attention_backward(given: Backward) -> Grads:
    """A softmax divides the sums of each target, and not the weights of its entries. With w the weights before
    division, f their factors and g the gradient of y divided by the sum of its target, the gradient of a score is
    w (f <z, g> - <y, g>), and that of a factor is w <z, g>.
    """
    grad, (needs_z, needs_factor, *needs), (sums,), (z, factor, *tensors), (weight, table, total, *kept) = given
    scoring, _, pattern, c = sums
    scaled_grad = grad.to(table.dtype)
    if total is not None:
        scaled_grad = (scaled_grad.reshape(scaled_grad.shape[0], c, z.shape[1] // c) / total.unsqueeze(-1)).view(
            scaled_grad.shape
        )
    weighted = weight if factor is None else weight * factor
    found = inner_products(table, scaled_grad, c, pattern)
    d_factor = (found * weight).to(factor.dtype) if needs_factor else None
    if total is not None:
        found = found.mul_(weighted)
        mean = group_sums(found, pattern.at_target).div_(total).index_select(0, pattern.row)
        found.sub_(mean.mul_(weight))
    elif factor is not None:
        found = found.mul_(factor)
    d_z = transposed_sums(scaled_grad, weighted, pattern) if needs_z else None
    d_tensors = scoring.backward(ScoreGrad(table, tensors, kept, found, pattern, needs, d_z))
    return None if d_z is None else d_z.to(z.dtype), d_factor, *d_tensors


def _plain(
    sums: Sums,
    z: Tensor,
    factor: Tensor | None,
    values: Tensor | None,
    features: Tensor | None,
    map: Tensor | None,
    *tensors: Tensor | None,
) -> Tensor:
    """The same by differentiable torch operations, with values of entries."""
    scoring, normalised, pattern, c = sums
    score = scoring.plain(z, tensors, c, pattern)
    factor = None if factor is None else factor.t()
    y = plain_attention(score, factor, to_heads(z, c), normalised, pattern)
    if features is not None and map is not None:
        values = Valued(features, map).tensor
    if values is not None:  # as if each entry had a source of its own
        y = y + plain_attention(score, factor, to_heads(values, c), normalised, pattern.of_entries)
    return to_rows(y)


def _plain_weights(sums: Sums, z: Tensor, *tensors: Tensor | None) -> Tensor:
    """(E, c) the weights without factors, by differentiable torch operations."""
    score = sums.scoring.plain(z, tensors, sums.c, sums.pattern)
    return (softmax(score, sums.pattern.at_target) if sums.normalised else score).t()


def _weights_backward(
    sums: Sums, z: Tensor, tensors: Tensors, weights: Tensor, grad: Tensor, needs: Sequence[bool], d_z: Tensor | None
) -> Tensors:
    """The gradients of the tensors, given that of the weights (E, c) without factors; that of z is added to d_z."""
    scoring, normalised, pattern, c = sums
    down = weights * grad if normalised else grad.clone()
    if normalised:
        mean = group_sums(down, pattern.at_target).index_select(0, pattern.row)
        down.sub_(mean.mul_(weights))
    _, kept = scoring.score(z, tensors, c, pattern)
    return scoring.backward(ScoreGrad(z, tensors, kept, down, pattern, needs, d_z))


class _OnePass(torch.autograd.Function):
    """The same by the compiled kernels, which recompute the weights in the backward pass.

    With `observed`, there is a second result, the weights without factors, (E, c). As a rule it has no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, sums: Sums, form: ScoreForm, observed: bool, read_only: bool, *given: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        weights = room(given[0], sums.pattern.E, sums.c) if observed else None
        call = _compiled(sums, form, given)
        call.read_only = read_only
        y, saved = call.forward(True, weights)
        ctx.save_for_backward(*given, *saved, weights)
        ctx.about = sums, form, form.slots.start == 0 and given[5] is given[0]
        if weights is None:
            return y
        ctx.set_materialize_grads(False)
        return y, weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_weights: Tensor | None = None) -> tuple[Tensor | None, ...]:
        held = ctx.saved_tensors  # once: a checkpoint unpacks them a single time
        given, weights = held[:-5], held[-1]
        saved = [None if t is None else t.contiguous() for t in held[-5:-1]]  # hooks may give back other strides
        (sums, form, same), needs, again = ctx.about, ctx.needs_input_grad[4:], differentiated_again()
        if same:  # under hooks on saved tensors they come back as two
            given = (*given[:5], given[0], *given[6:])
        found: list[Tensor | None] = [None] * len(given)
        if grad is not None and again:
            found = [*derivative(_plain, (sums, *given), grad)[1:]]
        elif grad is not None:
            needed = [bool(need) for need in form.in_slots(needs[5:])]
            call, grad = _compiled(sums, form, given), grad.resolve_neg().contiguous()
            d_rows, d_terms = call.backward(saved, grad, needs[:5], needed)
            found = [*d_rows, *d_terms[form.slots]]
        if of_weights is not None:
            z, tensors = given[0], given[5:]
            if again:
                d_z, *of_tensors = derivative(_plain_weights, (sums, z, *tensors), of_weights)[1:]
            else:
                d_z = torch.zeros_like(z) if needs[0] else None
                of_tensors = [*_weights_backward(sums, _table(z), tensors, weights, of_weights, needs[5:], d_z)]
            found = [*map(add_optional, found, (d_z, None, None, None, None, *of_tensors))]
        return None, None, None, None, *found


def _compiled(sums: Sums, form: ScoreForm, given: Tensors) -> Attend:
    """The evaluation by the kernels of the device."""
    kind = Attend
    if uses_triton(given[0].device):  # type: ignore[union-attr]
        from .triton.attention import TritonAttend as kind
    return kind(sums, form, given)


_record = recorded(
    1,
    _attention,
    _attention_backward,
    lambda sums, z, factor, *tensors: _plain(sums, z, factor, None, None, None, *tensors),
)
_record_one_pass: Callable[..., Any] = raw_apply(_OnePass)


def one_pass(sums: Sums, form: ScoreForm, given: Tensors, read_only: bool = False) -> Tensor:
    """`scored_attention` by the compiled kernels, of what they support; see `kernels_take`."""
    if torch.is_grad_enabled() and needs_gradient(*given):
        return _record_one_pass(sums, form, False, read_only, *given)
    return _compiled(sums, form, given).forward(False)[0]


def _plain_observed_attention(
    sums: Sums, z: Tensor, tensors: Tensors, factor: Tensor | None = None, values: Valued | None = None
) -> tuple[Tensor, Tensor]:
    weights = _plain_weights(sums, z, *tensors)
    weights = weights if factor is None else weights * factor
    written = sums._replace(scoring=TermScores(), normalised=False)
    return scored_attention(written, z, (None, None, weights, None), None, values), weights


@with_plain(_plain_observed_attention)
def observed_attention(
    sums: Sums, z: Tensor, tensors: Tensors, factor: Tensor | None = None, values: Valued | None = None
) -> tuple[Tensor, Tensor]:
    """`scored_attention`, and the weights that it applies, (E, c) by target, with their factors; they are stored.

    >>> sums = Sums(TermScores(torch.relu), False, Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2), 1)
    >>> terms = torch.tensor([[0.], [2.], [1.]]), torch.tensor([[1.], [1.]]), None, None
    >>> observed_attention(sums, torch.tensor([[2.], [4.], [8.]]), terms)[1]
    tensor([[2.],
            [1.],
            [3.]])
    """
    form = sums.scoring.form(tensors, sums.c)
    given = kernels_take(sums, form, z, tensors, factor, values)
    if form is None or given is None or uses_triton(z.device) or sums.are_gates(form, z.shape[1]):
        return _plain_observed_attention(sums, z, tensors, factor, values)
    if torch.is_grad_enabled() and needs_gradient(*given):
        y, weights = _record_one_pass(sums, form, True, False, *given)
    else:
        weights = room(z, sums.pattern.E, sums.c)
        y = _compiled(sums, form, given).forward(False, weights)[0]
    return y, weights if factor is None else weights * factor


def of_entries(sums: Sums, form: ScoreForm, z: Tensor, values: Valued | None) -> Tensors:
    """What the compiled kernels read of values: the numbers of all entries, or features and their map."""
    if values is None:
        return None, None, None
    return (values.tensor, None, None) if sums.are_gates(form, z.shape[1]) else (None, *values)


def kernels_take(
    sums: Sums, form: ScoreForm | None, z: Tensor, tensors: Tensors, factor: Tensor | None, values: Valued | None
) -> Tensors | None:
    """What the compiled kernels are given, in the order above; None if they do not take it."""
    if form is None or (form.listed and not (uses_triton(z.device) or sums.are_gates(form, z.shape[1]))):
        return None
    if values is not None and form.kind == PRODUCTS and len(tensors) > 2 and tensors[2] is not values.features:
        return None  # the kernels read one table of features
    given = z, factor, *of_entries(sums, form, z, values), *tensors
    return given if supports(sums, form, given) else None


@with_plain(
    lambda sums, z, tensors, factor=None, values=None, read_only=False: _plain(
        sums, z, factor, None, *(values or (None, None)), *tensors
    )
)
def scored_attention(
    sums: Sums,
    z: Tensor,
    tensors: Tensors,
    factor: Tensor | None = None,
    values: Valued | None = None,
    read_only: bool = False,
) -> Tensor:
    r"""The sums :math:`y_n = \sum_{e: target(e) = n} w_e f_e z_{source(e)}` of c heads, with weights w from scores.

    Args:
        sums: what they are made with.
        z: (M, c W).
        tensors: that the scores are computed from.
        factor: (E, c) f, by target, or None for ones.
        values: of the entries, added to the rows of z; or None. The kernels of gates read their numbers, (E, c W), the
            others sum their features, and apply their map to the sums.
        read_only: whether the caller does not write to the result, nor give it away.

    Returns:
        (N, c W).

    >>> sums = Sums(TermScores(torch.relu), False, Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2), 1)
    >>> terms = torch.tensor([[0.], [2.], [1.]]), torch.tensor([[1.], [1.]]), None, None
    >>> scored_attention(sums, torch.tensor([[2.], [4.], [8.]]), terms)
    tensor([[16.],
            [14.]])
    """
    form, table = sums.scoring.form(tensors, sums.c), z
    if z.dtype != precision(z):
        table = z.to(precision(z))
    given = kernels_take(sums, form, table, tensors, factor, values)
    if form is not None and given is not None:
        y = one_pass(sums, form, given, read_only)
        return y if y.dtype == z.dtype else y.to(z.dtype)
    if values is not None:
        table = z.to(acc_dtype(z.dtype))
        return _plain(sums, table, factor, None, *values, *tensors).to(z.dtype)
    return _record(sums, z, factor, *tensors)


@with_plain(plain_attention)
def attention(values: Tensor, factor: Tensor | None, z: Tensor, normalised: bool, pattern: Pattern) -> Tensor:
    r"""`scored_attention` with given weights, or scores if `normalised`, heads first.

    (c, E) the values, (c, E) the factors, or None for ones, (c, M, W) -> (c, N, W), in memory of order (N, c, W).

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> z = torch.tensor([[[2.], [4.], [8.]]] * 2)
    >>> attention(torch.tensor([[0., 1., 2.], [5., 5., 5.]]), None, z, False, pattern).squeeze(-1)
    tensor([[ 0., 10.],
            [40., 30.]])
    """
    c = z.shape[0]
    if not c:
        return plain_attention(values, factor, z, normalised, pattern)
    if c > 1 and not z.stride(0) and not normalised and pattern.E * z.shape[-1] * c > HELD:
        return plain_attention(values, factor, z, normalised, pattern)  # one table for all heads is not copied for each
    sums, terms = Sums(TermScores(), normalised, pattern, c), (None, None, values.t(), None)
    return to_heads(scored_attention(sums, to_rows(z), terms, None if factor is None else factor.t()), c)
