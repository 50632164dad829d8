"""Attention on the entries of a pattern: scores, their softmax and the weighted sums in one step.

Everything here is node-major: the values of all c heads at a node, or at an entry, stand side by side in its row; see
`multihead`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from ..backend import uses_triton
from ..portable import with_plain
from .activations import ActivationCode, activation_code
from .memory import room
from .multihead import (
    HELD,
    at_entries,
    block_columns,
    gather_sums,
    group_sums,
    inner_products,
    plain_attention,
    plain_inner,
    raw_attention,
    scale_rows,
    softmax,
    sum_channels,
    to_heads,
    to_rows,
    transposed_sums,
    weighted_sums,
)
from .onepass import HIDDEN, PRODUCTS, PROJECTED, TERMS, Attend, ScoreForm, is_gate, precision, supports
from .op import acc_dtype, derivative, differentiated_again, needs_gradient, raw_apply, recorded
from .pattern import Pattern

Activation = Callable[[Tensor], Tensor]
Tensors = Sequence[Tensor | None]


class Scoring(Protocol):
    """Computes scores of c heads at the entries of a pattern from some tensors, and their gradients.

    Scores may read the rows that are summed, too: z, (M, c W).
    """

    def score(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(E, c) the scores, without autograd, and the tensors to save for `backward`."""
        ...

    def backward(self, given: "ScoreGrad") -> Tensors:
        """The gradients of the tensors that need one."""
        ...

    def plain(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> Tensor:
        """(c, E) the scores, by differentiable torch operations."""
        ...

    def form(self, tensors: Tensors, c: int) -> ScoreForm | None:
        """How the compiled kernels compute the scores; None if they cannot."""
        ...


class ScoreGrad(NamedTuple):
    """The arguments of `Scoring.backward`.

    z, tensors: the arguments of `score`; kept: the tensors that it saved; grad: (E, c) the gradient of the scores, may
    be overwritten; pattern: of the entries; needs: which of the tensors need a gradient; d_z: the gradient of z, to
    which that of the scores is added, or None if it is not needed.
    """

    z: Tensor
    tensors: Tensors
    kept: Sequence[Tensor]
    grad: Tensor
    pattern: Pattern
    needs: Sequence[bool]
    d_z: Tensor | None


class TermScores(NamedTuple):
    r"""The sum u of terms of the source, the target and the entry, under an activation.

    The tensors are these terms, (M, c D), (N, c D) and (E, c D) by target, each may be None; and the vectors a, (c, D),
    of a hidden layer, :math:`s_h = a_h \cdot act(u_h)`, or None for :math:`s_h = act(u_h)` with D = 1. With
    `listed`, the terms of entries stand in the order in which the pattern was given.
    """

    activation: Activation | None = None
    listed: bool = False

    def _by_target(self, terms: Tensors, pattern: Pattern) -> Tensors:
        """The terms, those of entries by target."""
        source, target, entry = terms
        order = pattern.by_target.order if self.listed else None
        return source, target, entry if entry is None or order is None else entry.index_select(0, order)

    def score(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> tuple[Tensor, tuple[Tensor, ...]]:
        *terms, out = tensors
        u = _sum_of_terms(self._by_target(terms, pattern), pattern)
        if out is not None:  # u is (E, c D), too large to be saved
            return sum_channels(_activate(self.activation, u) * out.reshape(-1), c), ()
        return (u, ()) if self.activation is None else (self.activation(u), (u,))

    def backward(self, given: "ScoreGrad") -> Tensors:
        _, (*terms, out), kept, grad, pattern, needs, _ = given
        d_out = None
        if out is not None:
            d, u = grad.unsqueeze(-1), _sum_of_terms(self._by_target(terms, pattern), pattern)
            d_out = (_activate(self.activation, u).view(-1, *out.shape) * d).sum(0) if needs[3] else None
            grad = activation_grad(self.activation, u, (d * out).view(u.shape))
        elif kept:
            grad = activation_grad(self.activation, kept[0], grad)
        at_entry = grad if needs[2] else None
        place = pattern.as_given if self.listed else None
        if at_entry is not None and place is not None:
            at_entry = at_entry.index_select(0, place)
        if needs[0] and needs[1] and grad.numel() <= HELD:
            return *_to_ends(grad, pattern).split([pattern.M, pattern.N]), at_entry, d_out
        at_source = group_sums(grad, pattern.at_source) if needs[0] else None
        at_target = group_sums(grad, pattern.at_target) if needs[1] else None
        return at_source, at_target, at_entry, d_out

    def plain(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> Tensor:
        *terms, out = tensors
        present = _present(self._by_target(terms, pattern), pattern)
        found = [t if end is None else t.index_select(0, end) for t, end in present]
        v = _activate(self.activation, sum(found[1:], found[0]))
        return v.t() if out is None else (v.view(v.shape[0], *out.shape) * out).sum(-1).t()

    def form(self, tensors: Tensors, c: int) -> ScoreForm | None:
        out, activation = tensors[3], activation_code(self.activation)
        if activation is None:
            return None
        kind, inner = (TERMS, 1) if out is None else (HIDDEN, out.shape[1])
        return ScoreForm(kind, inner, activation, slice(0, 4), self.listed)


class ProjectedScores(NamedTuple):
    """The sum of <a_h, z_h> at the source and <b_h, z_h> at the target, under an activation.

    Sources and targets are the same nodes. The tensors are a and b, (c, D).
    """

    activation: Activation | None = None

    def score(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> tuple[Tensor, tuple[Tensor, ...]]:
        columns = block_columns(torch.stack(cast(tuple[Tensor, Tensor], tensors)))
        u = _from_ends(torch.bmm(z.expand(2, *z.shape), columns).view(-1, c), pattern)
        return _activate(self.activation, u), (columns, u)

    def backward(self, given: "ScoreGrad") -> Tensors:
        z, _, (columns, u), grad, pattern, needs, d_z = given
        c = grad.shape[1]
        at_ends = _to_ends(activation_grad(self.activation, u, grad), pattern).view(2, pattern.M, c)
        if d_z is not None:
            for at, vectors in zip(at_ends.unbind(0), columns.mT.unbind(0), strict=True):
                d_z.addmm_(at, vectors)
        if not any(needs):
            return None, None
        own = torch.bmm(z.t().expand(2, *z.t().shape), at_ends).view(2, c, -1, c)
        return own.diagonal(dim1=1, dim2=3).transpose(1, 2).contiguous().unbind(0)

    def plain(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> Tensor:
        heads = z.view(z.shape[0], c, z.shape[1] // c)
        terms = [(heads * vectors).sum(-1) for vectors in tensors if vectors is not None]
        return TermScores(self.activation).plain(z, (*terms, None, None), c, pattern)

    def form(self, tensors: Tensors, c: int) -> ScoreForm | None:
        activation = activation_code(self.activation)
        if activation is None or tensors[0] is None or tensors[1] is None:  # the kernel would read from no address
            return None
        return ScoreForm(PROJECTED, 1, activation, slice(3, 5))


class ProductScores(NamedTuple):
    """Inner products of keys of sources, (M, c D), and queries of targets, (N, c D)."""

    def score(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> tuple[Tensor, tuple[Tensor, ...]]:
        key, query = cast(tuple[Tensor, Tensor], tensors)
        return inner_products(key, query, c, pattern), ()

    def backward(self, given: "ScoreGrad") -> Tensors:
        grad, pattern, needs = given.grad, given.pattern, given.needs
        key, query = cast(tuple[Tensor, Tensor], given.tensors)
        at_source = transposed_sums(query, grad, pattern) if needs[0] else None
        return at_source, weighted_sums(key, grad, *pattern.one_way) if needs[1] else None

    def plain(self, z: Tensor, tensors: Tensors, c: int, pattern: Pattern) -> Tensor:
        key, query = cast(tuple[Tensor, Tensor], tensors)
        return plain_inner(to_heads(key, c), to_heads(query, c), pattern)

    def form(self, tensors: Tensors, c: int) -> ScoreForm | None:
        return ScoreForm(PRODUCTS, cast(Tensor, tensors[0]).shape[1] // c, ActivationCode(0), slice(0, 2))


def rows_of_sources(table: Tensor, pattern: Pattern) -> Tensor:
    """(M, W) -> (E, W) the row of each entry's source; differentiable any number of times."""
    return at_entries(table.t(), None, pattern).t()


def _from_ends(table: Tensor, pattern: Pattern) -> Tensor:
    """At each entry, the row of its source plus that of its target: (M + N, W) -> (E, W)."""
    ptr, index = pattern.ends_to_entries
    return gather_sums(table, index, ptr)


def _to_ends(table: Tensor, pattern: Pattern) -> Tensor:
    """The sums over the entries of each source and of each target: (E, W) -> (M + N, W)."""
    ptr, index = pattern.entries_to_ends
    return gather_sums(table, index, ptr)


def _present(terms: Tensors, pattern: Pattern) -> list[tuple[Tensor, Tensor | None]]:
    """The terms that are not None, with the index by which entries read them; None for terms of entries."""
    return [(t, end) for t, end in zip(terms, (*pattern.ends, None), strict=True) if t is not None]


def _sum_of_terms(terms: Tensors, pattern: Pattern) -> Tensor:
    """The sum of the terms at each entry."""
    source, target, entry = terms
    if source is not None and target is not None and pattern.E * source.shape[1] <= HELD:
        found = _from_ends(torch.cat([source, target]), pattern)
        return found if entry is None else found.add_(entry)
    total: Tensor | None = None
    for t, end in _present(terms, pattern):
        here = t if end is None else t.index_select(0, end)
        total = here if total is None else total.add_(here)
    assert total is not None
    return total


def _table(z: Tensor) -> Tensor:
    """Contiguous rows in the accumulation dtype."""
    return z.to(acc_dtype(z.dtype)).contiguous()


def _activate(activation: Activation | None, u: Tensor) -> Tensor:
    return u if activation is None else activation(u)


def activation_grad(activation: Activation | None, u: Tensor, grad: Tensor) -> Tensor:
    """The gradient of u, given that of activation(u)."""
    if activation is None:
        return grad
    if type(activation) is nn.LeakyReLU:  # most graph attention: recording it for autograd takes longer than it does
        return torch.ops.aten.leaky_relu_backward(grad, u, activation.negative_slope, False)  # type: ignore[no-any-return]
    if activation is torch.sigmoid:
        return torch.ops.aten.sigmoid_backward(grad, u.sigmoid())  # type: ignore[no-any-return]
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        v = activation(u)
    return torch.autograd.grad(v, u, grad)[0]


Fixed = tuple[Scoring, bool, Pattern, int]  # the first arguments of the functions below


class Valued(NamedTuple):
    """Values of entries, by their features u, (E, F) by target, and the map V, (c, F, W), that makes u V_k of them."""

    features: Tensor
    map: Tensor

    @property
    def tensor(self) -> Tensor:
        """(E, c W) the values of all heads."""
        c, F, W = self.map.shape
        return self.features @ self.map.transpose(0, 1).reshape(F, c * W)


def _attention(
    keep: bool,
    scoring: Scoring,
    normalised: bool,
    pattern: Pattern,
    c: int,
    z: Tensor,
    factor: Tensor | None,
    *tensors: Tensor | None,
) -> tuple[Tensor, Tensors]:
    """See `scored_attention`; by torch's operations, and without values of entries."""
    table = _table(z)
    score, kept = scoring.score(table, tensors, c, pattern)
    y, weight, total = raw_attention(score, factor, table, normalised, pattern)
    return y.to(z.dtype), (weight, table, total, *kept)


def _attention_backward(
    grad: Tensor, needs: Sequence[bool], fixed: Fixed, given: Sequence[Any], further: Sequence[Any]
) -> Tensors:
    """A softmax divides the sums of each target, and not the weights of its entries. With w the weights before
    division, f their factors and g the gradient of y divided by the sum of its target, the gradient of a score is
    w (f <z, g> - <y, g>), and that of a factor is w <z, g>.
    """
    (scoring, _, pattern, c), (z, factor, *tensors), (weight, table, total, *kept) = fixed, given, further
    needs_z, needs_factor, *needs = needs
    few = weight.shape[0] * table.shape[1] <= HELD
    scaled_grad = grad.to(table.dtype)
    if total is not None:
        scaled_grad = (scaled_grad.reshape(scaled_grad.shape[0], c, z.shape[1] // c) / total.unsqueeze(-1)).view(
            scaled_grad.shape
        )
    weighted = weight if factor is None else weight * factor
    right = scaled_grad.index_select(0, pattern.row) if few else None
    if right is not None:
        found = sum_channels(table.index_select(0, pattern.ends[0]).mul_(right), c)
    else:
        found = inner_products(table, scaled_grad, c, pattern)
    d_factor = (found * weight).to(factor.dtype) if needs_factor else None
    if total is not None:
        found = found.mul_(weighted)
        mean = group_sums(found, pattern.at_target).div_(total).index_select(0, pattern.row)
        found.sub_(mean.mul_(weight))
    elif factor is not None:
        found = found.mul_(factor)
    if not needs_z:
        d_z = None
    elif right is not None:
        _, _, t_ptr, _, _, t_back = pattern.both_ways_and_across
        d_z = gather_sums(scale_rows(right, weighted), t_back, t_ptr)
    else:
        d_z = transposed_sums(scaled_grad, weighted, pattern)
    d_tensors = scoring.backward(ScoreGrad(table, tensors, kept, found, pattern, needs, d_z))
    return None if d_z is None else d_z.to(z.dtype), d_factor, *d_tensors


def _plain(
    scoring: Scoring,
    normalised: bool,
    pattern: Pattern,
    c: int,
    z: Tensor,
    factor: Tensor | None,
    *tensors: Tensor | None,
) -> Tensor:
    """The same by differentiable torch operations."""
    return _plain_with_values(scoring, normalised, pattern, c, z, factor, None, None, None, *tensors)


def _plain_with_values(
    scoring: Scoring,
    normalised: bool,
    pattern: Pattern,
    c: int,
    z: Tensor,
    factor: Tensor | None,
    values: Tensor | None,
    features: Tensor | None,
    map: Tensor | None,
    *tensors: Tensor | None,
) -> Tensor:
    """The same with values of entries: as they are, or as features and the map that makes them."""
    score = scoring.plain(z, tensors, c, pattern)
    factor = None if factor is None else factor.t()
    y = plain_attention(score, factor, to_heads(z, c), normalised, pattern)
    if features is not None and map is not None:
        values = Valued(features, map).tensor
    if values is not None:  # as if each entry had a source of its own
        y = y + plain_attention(score, factor, to_heads(values, c), normalised, pattern.of_entries)
    return to_rows(y)


def _plain_weights(
    scoring: Scoring, normalised: bool, pattern: Pattern, c: int, z: Tensor, *tensors: Tensor | None
) -> Tensor:
    """(E, c) the weights without factors, by differentiable torch operations."""
    score = scoring.plain(z, tensors, c, pattern)
    return (softmax(score, pattern.at_target) if normalised else score).t()


def _weights_backward(
    scoring: Scoring,
    normalised: bool,
    pattern: Pattern,
    c: int,
    z: Tensor,
    tensors: Tensors,
    weights: Tensor,
    grad: Tensor,
    needs: Sequence[bool],
    d_z: Tensor | None,
) -> Tensors:
    """The gradients of the tensors, given that of the weights (E, c) without factors; that of z is added to d_z."""
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
        ctx: Any,
        form: ScoreForm,
        scoring: Scoring,
        normalised: bool,
        pattern: Pattern,
        c: int,
        observed: bool,
        z: Tensor,
        factor: Tensor | None,
        values: Tensor | None,
        features: Tensor | None,
        map: Tensor | None,
        *tensors: Tensor | None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        weights = room(z, pattern.E, c) if observed else None
        of_rows = z, factor, values, features, map
        y, saved = _one_pass(form, normalised, pattern, c, of_rows, tensors).forward(True, weights)
        ctx.save_for_backward(*of_rows, *saved, weights, *tensors)
        ctx.given = form, scoring, normalised, pattern, c
        if weights is None:
            return y
        ctx.set_materialize_grads(False)
        return y, weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_weights: Tensor | None = None) -> tuple[Tensor | None, ...]:
        held = ctx.saved_tensors  # once: a checkpoint unpacks them a single time
        of_rows, saved, weights, tensors = held[:5], held[5:9], held[9], held[10:]
        z = held[0]
        form, *about = ctx.given
        scoring, normalised, pattern, c = about
        needs = ctx.needs_input_grad[6:]
        found: list[Tensor | None] = [None] * len(needs)
        again = differentiated_again()
        if grad is not None and again:
            found = [*derivative(_plain_with_values, (*about, *of_rows, *tensors), grad)[4:]]
        elif grad is not None:
            call = _one_pass(form, normalised, pattern, c, of_rows, tensors)
            needed = [bool(need) for need in form.in_slots(needs[5:])]
            d_rows, d_terms = call.backward(saved, grad.resolve_neg().contiguous(), needs[:5], needed)
            found = [*d_rows, *d_terms[form.slots]]
        if of_weights is not None:
            if again:
                d_z, *of_tensors = derivative(_plain_weights, (*about, z, *tensors), of_weights)[4:]
            else:
                d_z = torch.zeros_like(z) if needs[0] else None
                given = _table(z), tensors, weights, of_weights, needs[5:], d_z
                of_tensors = [*_weights_backward(scoring, normalised, pattern, c, *given)]
            more = d_z, None, None, None, None, *of_tensors
            found = [b if a is None else a if b is None else a + b for a, b in zip(found, more, strict=True)]
        return None, None, None, None, None, None, *found


def _one_pass(
    form: ScoreForm, normalised: bool, pattern: Pattern, c: int, of_rows: Tensors, tensors: Tensors
) -> Attend:
    """Of z, the factors, values of entries, features of entries and their map; and the tensors of scores."""
    z, (factor, *of_entries, map) = cast(Tensor, of_rows[0]), of_rows[1:]
    source, target, entry, *vectors = form.in_slots(tensors)
    terms = [t if t is None or t.stride(1) == 1 else t.contiguous() for t in (source, target, entry, *of_entries)]
    terms[3:], (values, features) = [None if v is None else _of_heads(v) for v in vectors], terms[3:]
    kind = Attend
    if uses_triton(z.device):
        from .triton.attention import TritonAttend as kind
    about = form, normalised, c, pattern, z.contiguous(), factor, terms, values
    return kind(*about, (features, None if map is None else _of_heads(map)))


def _of_heads(t: Tensor) -> Tensor:
    """Vectors or matrices of heads, of which each is contiguous; matrices may be one and the same."""
    return t if t.dim() == 3 and t[0].is_contiguous() else t.contiguous()


_record = recorded(4, _attention, _attention_backward, _plain)
_record_one_pass: Callable[..., Any] = raw_apply(_OnePass)


def one_pass(
    form: ScoreForm, scoring: Scoring, normalised: bool, pattern: Pattern, c: int, z: Tensor, *given: Tensor | None
) -> Tensor:
    """`scored_attention` by the compiled kernels, of what they support; given: all that follows z."""
    if torch.is_grad_enabled() and needs_gradient(z, *given):
        return _record_one_pass(form, scoring, normalised, pattern, c, False, z, *given)
    return _one_pass(form, normalised, pattern, c, (z, *given[:4]), given[4:]).forward(False)[0]


def _plain_observed_attention(
    scoring: Scoring,
    tensors: Tensors,
    z: Tensor,
    c: int,
    normalised: bool,
    pattern: Pattern,
    factor: Tensor | None = None,
    values: Valued | None = None,
) -> tuple[Tensor, Tensor]:
    weights = _plain_weights(scoring, normalised, pattern, c, z, *tensors)
    weights = weights if factor is None else weights * factor
    written = None, None, weights, None
    return scored_attention(TermScores(), written, z, c, False, pattern, None, values), weights


@with_plain(_plain_observed_attention)
def observed_attention(
    scoring: Scoring,
    tensors: Tensors,
    z: Tensor,
    c: int,
    normalised: bool,
    pattern: Pattern,
    factor: Tensor | None = None,
    values: Valued | None = None,
) -> tuple[Tensor, Tensor]:
    """`scored_attention`, and the weights that it applies, (E, c) by target, with their factors; they are stored.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> terms = torch.tensor([[0.], [2.], [1.]]), torch.tensor([[1.], [1.]]), None, None
    >>> observed_attention(TermScores(torch.relu), terms, torch.tensor([[2.], [4.], [8.]]), 1, False, pattern)[1]
    tensor([[2.],
            [1.],
            [3.]])
    """
    form = scoring.form(tensors, c)
    given = kernels_take(form, normalised, c, pattern, z, factor, values, tensors)
    if form is None or given is None or uses_triton(z.device) or is_gate(form, normalised, c, z.shape[1]):
        return _plain_observed_attention(scoring, tensors, z, c, normalised, pattern, factor, values)
    if torch.is_grad_enabled() and needs_gradient(z, *given):
        y, weights = _record_one_pass(form, scoring, normalised, pattern, c, True, z, *given)
    else:
        weights = room(z, pattern.E, c)
        y = _one_pass(form, normalised, pattern, c, (z, *given[:4]), tensors).forward(False, weights)[0]
    return y, weights if factor is None else weights * factor


def of_entries(
    values: Valued | None, form: ScoreForm, normalised: bool, c: int, width: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """What the compiled kernels read of values: the numbers of all entries, or features and their map."""
    if values is not None and is_gate(form, normalised, c, width):
        return values.tensor, None, None
    return None, *(values or (None, None))


def kernels_take(
    form: ScoreForm | None,
    normalised: bool,
    c: int,
    pattern: Pattern,
    z: Tensor,
    factor: Tensor | None,
    values: Valued | None,
    tensors: Tensors,
) -> Tensors | None:
    """The factors, values of entries, features of entries and their map, and all tensors of scores, as the compiled
    kernels take them; None if they do not.
    """
    if form is None or (form.listed and not (uses_triton(z.device) or is_gate(form, normalised, c, z.shape[1]))):
        return None
    if values is not None:
        of_keys = form.in_slots(tensors)[2] if form.kind == PRODUCTS else None
        if of_keys is not None and of_keys is not values.features:  # the kernels read one table of features
            return None
    found = factor, *of_entries(values, form, normalised, c, z.shape[1]), *tensors
    return found if supports(form, found, z, c, pattern) else None


@with_plain(
    lambda scoring, tensors, z, c, normalised, pattern, factor=None, values=None: _plain_with_values(
        scoring, normalised, pattern, c, z, factor, None, *(values or (None, None)), *tensors
    )
)
def scored_attention(
    scoring: Scoring,
    tensors: Tensors,
    z: Tensor,
    c: int,
    normalised: bool,
    pattern: Pattern,
    factor: Tensor | None = None,
    values: Valued | None = None,
) -> Tensor:
    r"""The sums :math:`y_n = \sum_{e: target(e) = n} w_e f_e z_{source(e)}` of c heads, with weights w from scores.

    Args:
        scoring: computes the scores from the tensors.
        tensors: its arguments.
        z: (M, c W).
        c: the number of heads.
        normalised: whether w is the softmax of the scores over the entries of each target, or the scores themselves.
        pattern: of the entries.
        factor: (E, c) f, by target, or None for ones.
        values: of the entries, added to the rows of z; or None. The kernels of gates read their numbers, (E, c W), the
            others sum their features, and apply their map to the sums.

    Returns:
        (N, c W).

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> terms = torch.tensor([[0.], [2.], [1.]]), torch.tensor([[1.], [1.]]), None, None
    >>> scored_attention(TermScores(torch.relu), terms, torch.tensor([[2.], [4.], [8.]]), 1, False, pattern)
    tensor([[16.],
            [14.]])
    """
    form, table = scoring.form(tensors, c), z
    if z.dtype != precision(z):
        table = z.to(precision(z))
    given = kernels_take(form, normalised, c, pattern, table, factor, values, tensors)
    if form is not None and given is not None:
        y = one_pass(form, scoring, normalised, pattern, c, table, *given)
        return y if y.dtype == z.dtype else y.to(z.dtype)
    if values is not None:
        table = z.to(acc_dtype(z.dtype))
        return _plain_with_values(scoring, normalised, pattern, c, table, factor, None, *values, *tensors).to(z.dtype)
    return _record(scoring, normalised, pattern, c, z, factor, *tensors)


@with_plain(plain_attention)
def attention(values: Tensor, factor: Tensor | None, z: Tensor, normalised: bool, pattern: Pattern) -> Tensor:
    r"""`scored_attention` with given weights or scores, heads first.

    Args:
        values: (c, E) the weights w; or their scores.
        factor: (c, E) f, or None for ones.
        z: (c, M, W).
        normalised: whether w is the softmax of the values over the entries of each target.
        pattern: of the entries.

    Returns:
        (c, N, W), in memory of order (N, c, W).

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
    given = None, None, values.t(), None
    factor = None if factor is None else factor.t()
    return to_heads(scored_attention(TermScores(), given, to_rows(z), c, normalised, pattern, factor), c)
