"""Sums of rows under weights that are scored on the way: scores, their softmax and the sum in one step.

Everything here is node-major: what the c heads have at a node, or at an entry, stands side by side in its row; see
`multihead`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..portable import portable
from .activations import known
from .multihead import (
    HELD,
    bags,
    block_columns,
    collected,
    heads,
    inner_products,
    needs_gradient,
    plain_attention,
    plain_inner,
    raw_attention,
    rows,
    scale,
    sum_channels,
    transposed_sums,
    weighted_sums,
)
from .onepass import HIDDEN, PRODUCTS, PROJECTED, TERMS, Attend, Form, gates, takes
from .op import derivative, wide
from .pattern import Pattern

Activation = Callable[[Tensor], Tensor]
Tensors = Sequence[Tensor | None]


class Scoring(Protocol):
    """How the scores of c heads at the entries of a pattern follow from some tensors, and what their gradients are.

    It may read the rows that are summed, too: z, (M, c W).
    """

    def score(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(E, c) the scores, without a record for gradients, and what `back` wants to be kept."""
        ...

    def back(self, down: "Down") -> Tensors:
        """The gradients of those tensors that need one."""
        ...

    def plain(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> Tensor:
        """(c, E) the scores, by operations that have any derivatives."""
        ...

    def form(self, tensors: Tensors, c: int) -> Form | None:
        """How the compiled kernels take them; None where they do not."""
        ...


class Down(NamedTuple):
    """What a gradient of scores is passed on with.

    z, tensors: what the scores were made of; kept: what `score` wanted to be kept; grad: (E, c), of the scores, which
    may be written over; pattern: of the entries; needs: which of the tensors need a gradient; d_z: that of z, to which
    what comes by the scores is added, None where it is not asked for.
    """

    z: Tensor
    tensors: Tensors
    kept: Sequence[Tensor]
    grad: Tensor
    pattern: Pattern
    needs: Sequence[bool]
    d_z: Tensor | None


class TermScores(NamedTuple):
    r"""Terms of the source, the target and the entry are added, and go through an activation.

    The tensors are these terms, (M, c D), (N, c D) and (E, c D) by target, each of them or None; and a, (c, D), where
    they are a hidden layer, :math:`s_h = a_h \cdot act(u_h)`, or None, where :math:`s_h = act(u_h)`, and D = 1.
    """

    activation: Activation | None = None

    def score(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> tuple[Tensor, tuple[Tensor, ...]]:
        *terms, out = tensors
        u = _added(terms, pattern)
        if out is not None:  # u is as long as the entries' rows, and is made again
            return sum_channels(_of(self.activation, u) * out.reshape(-1), c), ()
        return (u, ()) if self.activation is None else (self.activation(u), (u,))

    def back(self, down: "Down") -> Tensors:
        _, (*terms, out), kept, grad, pattern, needs, _ = down
        d_out = None
        if out is not None:
            d, u = grad.unsqueeze(-1), _added(terms, pattern)
            d_out = (_of(self.activation, u).view(-1, *out.shape) * d).sum(0) if needs[3] else None
            grad = through(self.activation, u, (d * out).view(u.shape))
        elif kept:
            grad = through(self.activation, kept[0], grad)
        at_entry = grad if needs[2] else None
        if needs[0] and needs[1] and grad.numel() <= HELD:
            return *_to_ends(grad, pattern).split([pattern.M, pattern.N]), at_entry, d_out
        at_source = collected(grad, pattern.at_source) if needs[0] else None
        at_target = collected(grad, pattern.at_target) if needs[1] else None
        return at_source, at_target, at_entry, d_out

    def plain(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> Tensor:
        *terms, out = tensors
        found = [t if end is None else t.index_select(0, end) for t, end in _at(terms, pattern)]
        v = _of(self.activation, sum(found[1:], found[0]))
        return v.t() if out is None else (v.view(v.shape[0], *out.shape) * out).sum(-1).t()

    def form(self, tensors: Tensors, c: int) -> Form | None:
        out, activation = tensors[3], known(self.activation)
        if activation is None:
            return None
        kind, inner = (TERMS, 1) if out is None else (HIDDEN, out.shape[1])
        return Form(kind, inner, activation, slice(0, 4))


class ProjectedScores(NamedTuple):
    """Terms <a_h, z_h> of the sources and <b_h, z_h> of the targets, which are the same nodes, added, through an
    activation. The tensors are a and b, (c, D).
    """

    activation: Activation | None = None

    def score(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> tuple[Tensor, tuple[Tensor, ...]]:
        a, b = tensors
        assert a is not None
        assert b is not None
        columns = block_columns(torch.stack([a, b]))
        u = _from_ends(torch.bmm(z.expand(2, *z.shape), columns).view(-1, c), pattern)
        return _of(self.activation, u), (columns, u)

    def back(self, down: "Down") -> Tensors:
        z, _, (columns, u), grad, pattern, needs, d_z = down
        c = grad.shape[1]
        at_ends = _to_ends(through(self.activation, u, grad), pattern).view(2, pattern.M, c)
        if d_z is not None:
            for at, vectors in zip(at_ends.unbind(0), columns.mT.unbind(0), strict=True):
                d_z.addmm_(at, vectors)
        if not any(needs):
            return None, None
        own = torch.bmm(z.t().expand(2, *z.t().shape), at_ends).view(2, c, -1, c)
        return own.diagonal(dim1=1, dim2=3).transpose(1, 2).contiguous().unbind(0)

    def plain(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> Tensor:
        terms = [(z.view(len(z), c, z.shape[1] // c) * vectors).sum(-1) for vectors in tensors if vectors is not None]
        return TermScores(self.activation).plain(z, (*terms, None, None), c, pattern)

    def form(self, tensors: Tensors, c: int) -> Form | None:
        activation = known(self.activation)
        return None if activation is None else Form(PROJECTED, 1, activation, slice(3, 5))


class ProductScores(NamedTuple):
    """Inner products of what source and target say; the tensors are (M, c D) and (N, c D)."""

    def score(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> tuple[Tensor, tuple[Tensor, ...]]:
        key, query = tensors
        assert key is not None
        assert query is not None
        return inner_products(key, query, c, pattern), ()

    def back(self, down: "Down") -> Tensors:
        _, (key, query), _, grad, pattern, needs, _ = down
        assert key is not None
        assert query is not None
        at_source = transposed_sums(query, grad, pattern) if needs[0] else None
        return at_source, weighted_sums(key, grad, *pattern.one_way) if needs[1] else None

    def plain(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> Tensor:
        key, query = tensors
        assert key is not None
        assert query is not None
        return plain_inner(heads(key, c), heads(query, c), pattern)

    def form(self, tensors: Tensors, c: int) -> Form | None:
        key, activation = tensors[0], known(None)
        assert key is not None
        assert activation is not None
        return Form(PRODUCTS, key.shape[1] // c, activation, slice(0, 2))


def _from_ends(table: Tensor, pattern: Pattern) -> Tensor:
    """The sum of what the source and the target of each entry have: (M + N, W) -> (E, W)."""
    ptr, index = pattern.gathers_ends
    return bags(table, index, ptr)


def _to_ends(table: Tensor, pattern: Pattern) -> Tensor:
    """What the entries at each source and at each target have, summed: (E, W) -> (M + N, W)."""
    ptr, index = pattern.spreads_ends
    return bags(table, index, ptr)


def _at(terms: Tensors, pattern: Pattern) -> list[tuple[Tensor, Tensor | None]]:
    """The terms that are there, and where each entry reads them; None where they are the entries' own."""
    return [(t, end) for t, end in zip(terms, (*pattern.ends, None), strict=True) if t is not None]


def _added(terms: Tensors, pattern: Pattern) -> Tensor:
    """The sum of the terms at each entry."""
    source, target, entry = terms
    if source is not None and target is not None and pattern.E * source.shape[1] <= HELD:
        found = _from_ends(torch.cat([source, target]), pattern)
        return found if entry is None else found.add_(entry)
    total: Tensor | None = None
    for t, end in _at(terms, pattern):
        here = t if end is None else t.index_select(0, end)
        total = here if total is None else total.add_(here)
    assert total is not None
    return total


def _table(z: Tensor) -> Tensor:
    """Rows in the dtype in which they are summed."""
    return z.to(wide(z)).contiguous()


def _of(activation: Activation | None, u: Tensor) -> Tensor:
    return u if activation is None else activation(u)


def through(activation: Activation | None, u: Tensor, grad: Tensor) -> Tensor:
    """The gradient of u from that of its activation."""
    if activation is None:
        return grad
    if type(activation) is nn.LeakyReLU:  # in most graph attention: a record of it would take longer than it does
        return torch.ops.aten.leaky_relu_backward(grad, u, activation.negative_slope, False)  # type: ignore[no-any-return]
    if activation is torch.sigmoid:
        return torch.ops.aten.sigmoid_backward(grad, u.sigmoid())  # type: ignore[no-any-return]
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        v = activation(u)
    return torch.autograd.grad(v, u, grad)[0]


class _Attention(torch.autograd.Function):
    """See `scored_attention`.

    A softmax divides the sums of each target, not the weights of its entries. With w the weights before that, f their
    factors, g the gradient of y, and what is at a target divided by its sum, the gradient of the score of an entry is
    w (f <z, g> - <y, g>), and that of its factor is w <z, g>.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scoring: Scoring,
        normalised: bool,
        pattern: Pattern,
        c: int,
        z: Tensor,
        factor: Tensor | None,
        *tensors: Tensor | None,
    ) -> Tensor:
        table = _table(z)
        score, kept = scoring.score(table, tensors, c, pattern)
        y, weight, total = raw_attention(score, factor, table, normalised, pattern)
        ctx.save_for_backward(z, factor, weight, table, total, *tensors, *kept)
        ctx.given = scoring, normalised, pattern, c
        return y.to(z.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, factor, weight, table, total, *rest = ctx.saved_tensors
        scoring, _, pattern, c = ctx.given
        needs = ctx.needs_input_grad[6:]
        tensors, kept = rest[: len(needs)], rest[len(needs) :]
        if torch.is_grad_enabled() or portable():
            every = derivative(_plain, (*ctx.given, z, factor, None, *tensors), grad)
            return *every[:6], *every[7:]
        *_, needs_z, needs_factor = ctx.needs_input_grad[:6]
        few = weight.shape[0] * table.shape[1] <= HELD
        down = grad.to(table.dtype)
        if total is not None:
            down = (down.reshape(down.shape[0], c, z.shape[1] // c) / total.unsqueeze(-1)).view(down.shape)
        weighted = weight if factor is None else weight * factor
        right = down.index_select(0, pattern.row) if few else None
        if right is not None:
            found = sum_channels(table.index_select(0, pattern.ends[0]).mul_(right), c)
        else:
            found = inner_products(table, down, c, pattern)
        d_factor = (found * weight).to(factor.dtype) if needs_factor else None
        if total is not None:
            found = found.mul_(weighted)
            mean = collected(found, pattern.at_target).div_(total).index_select(0, pattern.row)
            found.sub_(mean.mul_(weight))
        elif factor is not None:
            found = found.mul_(factor)
        if not needs_z:
            d_z = None
        elif right is not None:
            _, _, t_ptr, _, _, t_back = pattern.both_ways_and_across
            d_z = bags(scale(right, weighted), t_back, t_ptr)
        else:
            d_z = transposed_sums(down, weighted, pattern)
        d_tensors = scoring.back(Down(table, tensors, kept, found, pattern, needs, d_z))
        return None, None, None, None, None if d_z is None else d_z.to(z.dtype), d_factor, *d_tensors


def _plain(
    scoring: Scoring,
    normalised: bool,
    pattern: Pattern,
    c: int,
    z: Tensor,
    factor: Tensor | None,
    values: Tensor | None,
    *tensors: Tensor | None,
) -> Tensor:
    """By operations that have any derivatives."""
    score = scoring.plain(z, tensors, c, pattern)
    factor = None if factor is None else factor.t()
    y = plain_attention(score, factor, heads(z, c), normalised, pattern)
    if values is not None:  # as if each entry had a source of its own
        own = Pattern(torch.arange(pattern.E, device=z.device), pattern.row, pattern.E, pattern.N)
        y = y + plain_attention(score, factor, heads(values, c), normalised, own)
    return rows(y)


class _OnePass(torch.autograd.Function):
    """The same by the compiled kernels, which make the weights again on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        form: Form,
        scoring: Scoring,
        normalised: bool,
        pattern: Pattern,
        c: int,
        z: Tensor,
        factor: Tensor | None,
        values: Tensor | None,
        *tensors: Tensor | None,
    ) -> Tensor:
        terms, y, stats = _one_pass(form, normalised, pattern, c, z, factor, values, tensors).forward(keep=True)
        # The derivative of a softmax reads the sums, and the caller may write to what it gets.
        held = y.clone() if normalised else None
        ctx.save_for_backward(z, factor, values, terms, held, stats, *tensors)
        ctx.given = form, scoring, normalised, pattern, c
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, factor, values, *rest = ctx.saved_tensors
        made, tensors = rest[:3], rest[3:]
        form, scoring, normalised, pattern, c = ctx.given
        if torch.is_grad_enabled() or portable():
            return None, *derivative(_plain, (scoring, normalised, pattern, c, z, factor, values, *tensors), grad)
        needs = ctx.needs_input_grad[5:]
        call = _one_pass(form, normalised, pattern, c, z, factor, values, tensors)
        needed = [bool(need) for need in form.spread(needs[3:])]
        of_rows, found = call.backward(made, grad.resolve_neg().contiguous(), needs[:3], needed)
        return None, None, None, None, None, *of_rows, *found[form.slots]


def _one_pass(
    form: Form,
    normalised: bool,
    pattern: Pattern,
    c: int,
    z: Tensor,
    factor: Tensor | None,
    values: Tensor | None,
    tensors: Tensors,
) -> Attend:
    source, target, entry, *vectors = form.spread(tensors)
    terms = [t if t is None or t.stride(1) == 1 else t.contiguous() for t in (source, target, entry, values)]
    terms[3:], values = [v if v is None else v.contiguous() for v in vectors], terms[3]
    return Attend(form, normalised, c, pattern, z.contiguous(), factor, terms, values)


# What `Function.apply` does besides is for transforms of `torch.func`, under which these are not called.
_record: Callable[..., Tensor] = super(torch.autograd.Function, _Attention).apply  # type: ignore[misc]
_record_one_pass: Callable[..., Tensor] = super(torch.autograd.Function, _OnePass).apply  # type: ignore[misc]


def one_pass(
    form: Form,
    scoring: Scoring,
    tensors: Tensors,
    z: Tensor,
    c: int,
    normalised: bool,
    pattern: Pattern,
    factor: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`scored_attention` by the compiled kernels, of what they take."""
    if torch.is_grad_enabled() and needs_gradient(z, factor, values, *tensors):
        return _record_one_pass(form, scoring, normalised, pattern, c, z, factor, values, *tensors)
    return _one_pass(form, normalised, pattern, c, z, factor, values, tensors).forward(keep=False)[1]


def scored_attention(
    scoring: Scoring,
    tensors: Tensors,
    z: Tensor,
    c: int,
    normalised: bool,
    pattern: Pattern,
    factor: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    r"""The sums :math:`y_n = \sum_{e: target(e) = n} w_e f_e z_{source(e)}` of c heads, under weights that are scored.

    Args:
        scoring: what makes scores of the tensors.
        tensors: what it reads.
        z: (M, c W).
        c: how many heads there are.
        normalised: whether w is the softmax of the scores, over the entries of each target, or these themselves.
        pattern: of the entries.
        factor: (E, c) f, by target, or None for ones.
        values: (E, c W) what is added to the rows of z at each entry, by target, or None. Only kernels of
            gates add it on the way.

    Returns:
        (N, c W).

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> terms = torch.tensor([[0.], [2.], [1.]]), torch.tensor([[1.], [1.]]), None, None
    >>> scored_attention(TermScores(torch.relu), terms, torch.tensor([[2.], [4.], [8.]]), 1, False, pattern)
    tensor([[16.],
            [14.]])
    """
    if portable():
        return _plain(scoring, normalised, pattern, c, z, factor, values, *tensors)
    form, table = scoring.form(tensors, c), z
    recorded = torch.is_grad_enabled() and needs_gradient(z, factor, values, *tensors)
    if z.dtype != wide(z):
        table = z.to(wide(z))
    given = factor, values, *tensors
    if (
        form is not None
        and takes(form, given, table, c, pattern)
        and (values is None or gates(form, normalised, c, z.shape[1]))
    ):
        y = one_pass(form, scoring, tensors, table, c, normalised, pattern, factor, values)
        return y if y.dtype == z.dtype else y.to(z.dtype)
    if values is not None:
        return _plain(scoring, normalised, pattern, c, z, factor, values, *tensors)
    if recorded:
        return _record(scoring, normalised, pattern, c, z, factor, *tensors)
    table = _table(z)
    score, _ = scoring.score(table, tensors, c, pattern)
    return raw_attention(score, factor, table, normalised, pattern)[0].to(z.dtype)


def attention(values: Tensor, factor: Tensor | None, z: Tensor, normalised: bool, pattern: Pattern) -> Tensor:
    r"""The same under weights or scores that are at hand, heads first.

    Args:
        values: (c, E) w, or scores that w is the softmax of, over the entries of each target.
        factor: (c, E) f, or None for ones.
        z: (c, M, W).
        normalised: whether it is the softmax.
        pattern: of the entries.

    Returns:
        (c, N, W), node by node.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> z = torch.tensor([[[2.], [4.], [8.]]] * 2)
    >>> attention(torch.tensor([[0., 1., 2.], [5., 5., 5.]]), None, z, False, pattern).squeeze(-1)
    tensor([[ 0., 10.],
            [40., 30.]])
    """
    c = z.shape[0]
    if not c or portable():
        return plain_attention(values, factor, z, normalised, pattern)
    given = None, None, values.t(), None
    factor = None if factor is None else factor.t()
    return heads(scored_attention(TermScores(), given, rows(z), c, normalised, pattern, factor), c)
