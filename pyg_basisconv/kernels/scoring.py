"""How scores of c heads are computed at the entries of a pattern: by torch's operations, and by the compiled kernels.

Everything here is node-major: the values of all c heads at a node, or at an entry, stand side by side in its row; see
`multihead`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from .activations import Activation, ActivationCode, activation_code
from .multihead import (
    block_columns,
    group_sums,
    inner_products,
    plain_inner,
    sum_channels,
    to_heads,
    to_rows,
    transposed_sums,
    weighted_sums,
)
from .op import Backward, Grads, recorded
from .pattern import Pattern

Tensors = Sequence[Tensor | None]

# How scores are computed, as `Kind` in the kernels.
TERMS, PROJECTED, HIDDEN, PRODUCTS = range(4)
_GATES = 4  # channels from which on the kernels of gates fill their vectors


class ScoreForm(NamedTuple):
    """How the kernels compute scores.

    kind: one of the above.
    inner: the width of a head's terms.
    activation: of the terms.
    slots: the positions of the given tensors among the kernels' five: terms of sources, of targets, of entries, and two
    vectors per head. Of products the third are features of entries, and the fourth what maps them to keys.
    listed: whether the terms of entries stand in the order in which the pattern was given, and not by target.
    """

    kind: int
    inner: int
    activation: ActivationCode
    slots: slice
    listed: bool = False

    def in_slots(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """All five tensors, None for those that are not given."""
        found: list[Tensor | None] = [None] * 5
        found[self.slots] = tensors
        return found


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


class Sums(NamedTuple):
    """What weighted sums are made with.

    scoring: computes the scores; normalised: whether the weights are their softmax over the entries of each target, or
    the scores themselves; pattern: of the entries; c: the number of heads.
    """

    scoring: Scoring
    normalised: bool
    pattern: Pattern
    c: int

    def are_gates(self, form: ScoreForm, width: int) -> bool:
        """Whether each channel is a head of its own, without normalisation."""
        return form.kind == TERMS and not self.normalised and width == self.c >= _GATES


class Valued(NamedTuple):
    """Values of entries, by their features u, (E, F) by target, and the map V, (c, F, W), that makes u V_k of them."""

    features: Tensor
    map: Tensor

    @classmethod
    def of_last(cls, features: Tensor, map: Tensor) -> "Valued":
        """Values by the last features, as many as the map reads."""
        skipped = features.shape[-1] - map.shape[1]
        return cls(features[..., skipped:] if skipped else features, map)

    @property
    def tensor(self) -> Tensor:
        """(E, c W) the values of all heads."""
        c, F, W = self.map.shape
        return self.features @ self.map.transpose(0, 1).reshape(F, c * W)


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
        u = _sum_of_terms((*torch.bmm(z.expand(2, *z.shape), columns), None), pattern)
        return _activate(self.activation, u), (columns, u)

    def backward(self, given: "ScoreGrad") -> Tensors:
        z, _, (columns, u), grad, pattern, needs, d_z = given
        c, grad = grad.shape[1], activation_grad(self.activation, u, grad)
        at_ends = [group_sums(grad, end) for end in (pattern.at_source, pattern.at_target)]
        if d_z is not None:
            for at, vectors in zip(at_ends, columns.mT.unbind(0), strict=True):
                d_z.addmm_(at, vectors)
        if not any(needs):
            return None, None
        own = (z.t() @ torch.cat(at_ends, 1)).view(c, -1, 2, c)  # one product: a GPU cuts the rows of no batched one
        return own.diagonal(dim1=0, dim2=3).permute(1, 2, 0).contiguous().unbind(0)

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


def _backward(given: Backward) -> Grads:
    grad, needs, (scoring, _, pattern), tensors, kept = given
    return scoring.backward(ScoreGrad(grad, tensors, kept, grad, pattern, needs, None))  # whose z is not read


# (E, c) the scores alone, of a scoring that reads no rows that are summed: of it, c, the pattern, and its tensors.
scores_alone = recorded(
    3,
    lambda scoring, c, pattern, *tensors: scoring.score(None, tensors, c, pattern),
    _backward,
    lambda scoring, c, pattern, *tensors: scoring.plain(None, tensors, c, pattern).t(),
)


def at_entries(source: Tensor | None, target: Tensor | None, pattern: Pattern) -> Tensor:
    """(c, M), (c, N) -> (c, E) at each entry, the value of its source plus that of its target; one may be None.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> at_entries(torch.tensor([[1., 2., 3.], [4., 5., 6.]]), torch.tensor([[10., 20.], [0., 0.]]), pattern)
    tensor([[13., 21., 22.],
            [ 6.,  4.,  5.]])
    """
    # Along the rows of memory: of columns, index_select takes many times as long.
    terms = [None if t is None else t.t().contiguous() for t in (source, target)]
    c = next(t.shape[1] for t in terms if t is not None)
    return scores_alone(TermScores(), c, pattern, *terms, None, None).t()


def inner(source: Tensor, target: Tensor, pattern: Pattern) -> Tensor:
    """(c, M, W), (c, N, W) -> (c, E) at each entry, the inner product of the rows of its source and target.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> inner(torch.tensor([[[1.], [2.], [3.]]] * 2), torch.tensor([[[10.], [20.]]] * 2), pattern)
    tensor([[30., 20., 40.],
            [30., 20., 40.]])
    """
    c = len(source)
    if c < 2:
        return plain_inner(source, target, pattern)
    return scores_alone(ProductScores(), c, pattern, to_rows(source), to_rows(target)).t()


def rows_of_sources(table: Tensor, pattern: Pattern) -> Tensor:
    """(M, W) -> (E, W) the row of each entry's source; differentiable any number of times."""
    return scores_alone(TermScores(), table.shape[1], pattern, table, None, None, None)


def _present(terms: Tensors, pattern: Pattern) -> list[tuple[Tensor, Tensor | None]]:
    """The terms that are not None, with the index by which entries read them; None for terms of entries."""
    return [(t, end) for t, end in zip(terms, (*pattern.ends, None), strict=True) if t is not None]


def _sum_of_terms(terms: Tensors, pattern: Pattern) -> Tensor:
    """The sum of the terms at each entry."""
    total: Tensor | None = None
    for t, end in _present(terms, pattern):
        here = t if end is None else t.index_select(0, end)
        total = here if total is None else total.add_(here)
    assert total is not None
    return total


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
