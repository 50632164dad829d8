"""Mechanisms, and the scores that they compute from content."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ..content import Content
from ..entries import Entries
from ..errors import check_count, check_depth, check_made, reject
from ..kernels import Pattern, at_entries
from ..kernels.activations import Activation
from ..kernels.attend import Side
from ..kernels.op import add_optional
from ..kernels.scoring import Scoring
from ..theta.base import glorot

Tensors = Sequence[Tensor]


class Sizes(NamedTuple):
    """The sizes of parameters: K heads, the widths P of sources and P' of targets (-1 if unknown), and D of a projected
    member.

    >>> from pyg_basisconv.mechanisms import Dot
    >>> dot = Dot(4)
    >>> dot.build(Sizes(heads=2, source=8, target=8, inner=3))
    >>> dot.key.shape
    torch.Size([2, 8, 4])
    """

    heads: int
    source: int
    target: int
    inner: int


class Dots(NamedTuple):
    """A score as inner products and biases, the form of torch's attention.

    keys: (K, *, M, d) each; queries: (K, *, N, d) each; biases: (K, *, M, N) each.
    """

    keys: list[Tensor]
    queries: list[Tensor]
    biases: list[Tensor]


class Score:
    """Scores of K heads for each graph of a batch, *, evaluated on C = K x * copies of one graph.

    Args:
        tensors: the tensors that they are computed from, (K, *, ...) each.
        sides: the second axis of each tensor, see `kernels.attend`.
        evaluate: from the tensors of c copies, (c, ...) each, or of a range of targets, to the scores at the entries,
            (c, E), by target.
        dots: from all tensors to the same scores as `Dots`, if they have this form.
        ends: the terms of sources and targets, (K, *, M) and (K, *, N), if the scores are their sum.

    >>> from pyg_basisconv.mechanisms.base import node_score
    >>> score = node_score(torch.zeros(2, 3), torch.ones(2, 4))  # a term of each source, and one of each target
    >>> score.sides, (score + score).sides, (score * score).times(0.5).sides
    (('source', 'target'), ('source', 'target'), ('source', 'target', 'source', 'target'))
    """

    scoring: Scoring | None = None  # computes the scores from node-major `rows`; see `RowScore`
    rows: tuple[Tensor | None, ...] = ()

    def __init__(
        self,
        tensors: tuple[Tensor, ...],
        sides: tuple[Side, ...],
        evaluate: Callable[[Tensors, Entries], Tensor],
        dots: Callable[[Tensors, Entries], Dots] | None = None,
        ends: tuple[Tensor | None, Tensor | None] | None = None,
    ) -> None:
        self.tensors, self.sides, self.evaluate, self.dots, self.ends = tensors, sides, evaluate, dots, ends

    def __add__(self, other: "Score") -> "Score":
        if self.ends is not None and other.ends is not None:  # there are fewer nodes than entries
            return node_score(*(add_optional(a, b) for a, b in zip(self.ends, other.ends, strict=True)))
        mine, theirs = self.dots, other.dots
        if mine is None or theirs is None:
            return self.join(other, torch.add)
        split = len(self.tensors)

        def dots(t: Tensors, entries: Entries) -> Dots:
            return Dots(*(a + b for a, b in zip(mine(t[:split], entries), theirs(t[split:], entries), strict=True)))

        return self.join(other, torch.add, dots)

    def __mul__(self, other: "Score") -> "Score":
        return self.join(other, torch.mul)

    def join(
        self,
        other: "Score",
        operation: Callable[[Tensor, Tensor], Tensor],
        dots: Callable[[Tensors, Entries], Dots] | None = None,
    ) -> "Score":
        """The scores of both, combined entry by entry by an operation."""
        split, tensors, sides = len(self.tensors), self.tensors + other.tensors, self.sides + other.sides
        return Score(
            tensors, sides, lambda t, e: operation(self.evaluate(t[:split], e), other.evaluate(t[split:], e)), dots
        )

    def map(self, function: Activation) -> "Score":
        """The scores under a function."""
        inner = self.evaluate
        return Score(self.tensors, self.sides, lambda t, entries: function(inner(t, entries)))

    def snapshot(self) -> "Score":
        """The same scores, independent of later changes of parameters."""
        return self

    @property
    def has_dots(self) -> bool:
        """Whether it has the form of `dots`; found without computing anything."""
        return self.dots is not None

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient passes through the scores."""
        return any(t is not None and t.requires_grad for t in self.rows or self.tensors)

    def times_heads(self, factor: Tensor) -> "Score | None":
        """The scores times a number for each head, (K,); None where that is done entry by entry."""
        return None

    def times(self, factor: float) -> "Score":
        """The scores times a number."""
        inner = self.dots

        def dots(t: Tensors, entries: Entries) -> Dots:
            assert inner is not None
            keys, queries, biases = inner(t, entries)
            return Dots([factor * key for key in keys], queries, [factor * bias for bias in biases])

        return Score(
            self.tensors, self.sides, lambda t, e: factor * self.evaluate(t, e), None if inner is None else dots
        )


class Mechanism(nn.Module):
    """Scores pairs (m, n) by their content. Mechanisms can be added, multiplied, scaled, and passed to activations.

    A subclass defines `make(sizes)`, which registers its parameters by `self.parameter(name, *shape)`, and
    `score(content, entries)`.

    >>> from pyg_basisconv.mechanisms import Additive, Dot
    >>> 0.5 * Dot(8) + Additive().then(nn.Tanh())
    Dot(8) * 0.5 + Additive().then(Tanh())
    """

    sizes: Sizes | None = None
    edge_dim = 0  # the width of the features of edges that it reads, 0 for none
    depth = 1  # the nesting depth, see `check_depth`
    is_zero = False  # whether all scores are zero
    changes = 0  # the number of times that an attribute was set

    if TYPE_CHECKING:  # parameters

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "training":
            self.__dict__["changes"] = self.changes + 1

    def build(self, sizes: Sizes) -> None:
        """Creates the parameters, once."""
        if self.sizes is not None:
            if self.sizes != sizes:
                reject("mechanism", f"one made for {sizes}", self.sizes, "give each layer its own")
            return
        self.make(sizes)
        self.sizes = sizes

    def make(self, sizes: Sizes) -> None:
        """Registers the parameters for these sizes, and draws them."""

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        for parameter in self.parameters(recurse=False):
            draw(parameter)
        for part in self.children():
            if isinstance(part, Mechanism):
                part.reset_parameters()

    def score(self, content: Content, entries: Entries) -> Score:
        r"""The scores of a content at the entries of a mask, by `node_score`, `inner_score` and `entry_score`.

        Args:
            content: what the scores are computed from: `x`, (\*, M, P), of the sources; `target_features`, (\*, N, P');
                `projected`, (K, \*, M, D), the sources' :math:`x \Theta_k`; `batch`, the leading dimensions \*.
            entries: the pairs that are scored; `content.edge_rows_at(entries)`, (E, R), has their features of edges.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no score(content, entries)")

    def parameter(self, name: str, *shape: int) -> None:
        """Registers a parameter with a given shape, (H, ...)."""
        if any(n < 0 for n in shape):
            fix = "give in_channels, or score what is projected"
            reject("in_channels", f"a positive integer, which {self} needs", -1, fix)
        setattr(self, name, nn.Parameter(torch.empty(shape)))
        draw(getattr(self, name))

    @property
    def reads_edges(self) -> bool:
        """Whether it, or a part of it, reads features of edges."""
        return any(part.edge_dim > 0 for part in self.modules() if isinstance(part, Mechanism))

    def then(self, activation: Activation) -> "Mechanism":
        """The scores under an elementwise function without parameters."""
        return Then(self, activation)

    def __add__(self, other: Any) -> "Mechanism":
        return Sum(self, other) if isinstance(other, Mechanism) else NotImplemented

    def __mul__(self, other: Any) -> "Mechanism":
        if isinstance(other, Mechanism):
            return Times(self, other)
        return Scaled(self, float(other)) if isinstance(other, int | float) else NotImplemented

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


def check_width(name: str, value: Any, least: int = 1) -> None:
    """Rejects an argument that is not a width from `least` on."""
    check_count(name, value, least, most=1 << 20)


def draw(parameter: Tensor) -> None:
    """Initialises weights (H, P, D) or (H, D), and biases (H,) with zeros."""
    if parameter.dim() < 2:
        nn.init.zeros_(parameter)
    else:
        glorot(parameter, parameter.shape[-2] if parameter.dim() > 2 else 1, parameter.shape[-1])


class Combination(Mechanism):
    """A mechanism that is made of others."""

    def __init__(self, *parts: Mechanism) -> None:
        super().__init__()
        for part in parts:
            check_made("mechanism", "a Mechanism", part)
        self.depth = check_depth("mechanism", *parts, calls=4)
        self.parts = nn.ModuleList(parts)

    def make(self, sizes: Sizes) -> None:
        for part in self.parts:
            part.build(sizes)  # type: ignore[operator]

    def reset_parameters(self) -> None:
        for part in self.parts:
            part.reset_parameters()  # type: ignore[operator]

    def scores(self, content: Content, entries: Entries) -> list[Score]:
        """The scores of the parts."""
        parts: Any = self._modules["parts"]
        return [part.score(content, entries) for part in parts._modules.values()]


class Sum(Combination):
    """`a + b`."""

    def score(self, content: Content, entries: Entries) -> Score:
        first, second = self.scores(content, entries)
        return first + second

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


class Times(Combination):
    """`a * b`, entry by entry."""

    def score(self, content: Content, entries: Entries) -> Score:
        first, second = self.scores(content, entries)
        return first * second

    def __repr__(self) -> str:
        return " * ".join(f"({part!r})" if isinstance(part, Sum) else repr(part) for part in self.parts)


class Scaled(Combination):
    """`2.5 * a`."""

    def __init__(self, part: Mechanism, factor: float) -> None:
        super().__init__(part)
        self.factor = factor

    def score(self, content: Content, entries: Entries) -> Score:
        return self.scores(content, entries)[0].times(self.factor)

    def __repr__(self) -> str:
        part = self.parts[0]
        return f"({part!r}) * {self.factor}" if isinstance(part, Sum) else f"{part!r} * {self.factor}"


class Then(Combination):
    """`a.then(activation)`."""

    def __init__(self, part: Mechanism, activation: Activation) -> None:
        super().__init__(part)
        self.activation = elementwise(activation)

    def score(self, content: Content, entries: Entries) -> Score:
        return self.scores(content, entries)[0].map(self.activation)

    def __repr__(self) -> str:
        part = self.parts[0]
        shown = f"({part!r})" if isinstance(part, Sum | Times | Scaled) else repr(part)
        return f"{shown}.then({getattr(self.activation, '__name__', self.activation)})"


def elementwise(activation: Any) -> Activation:
    """Checks an activation."""
    if not callable(activation) or isinstance(activation, Mechanism):
        reject("activation", "an elementwise function", repr(activation), "such as torch.nn.LeakyReLU(0.2)")
    if getattr(activation, "inplace", False):
        reject("activation", "one that leaves its input as it is", repr(activation), "leave inplace=True out")
    if isinstance(activation, nn.Module) and next(activation.parameters(), None) is not None:
        reject("activation", "one without parameters", repr(activation), "its parameters would get no gradient")
    return activation  # type: ignore[no-any-return]


def check_score(score: object, mechanism: Mechanism, heads: int, content: Content, entries: Entries) -> None:
    """Rejects what is no score, and terms of other heads, batches or nodes, which would be broadcast or misread."""
    if not isinstance(score, Score):
        fix = "return node_score(...), inner_score(...), entry_score(...), or a sum or product of these"
        reject("score", f"a Score of {mechanism}", type(score).__name__, fix)
    sizes = {"source": content.x.shape[-2], "target": entries.N, "entry": entries.E}
    for term, side in zip(score.tensors, score.sides, strict=True):
        shape = heads, *content.batch, *((sizes[side],) if side in sizes else ())
        if not isinstance(term, Tensor) or term.shape[: len(shape)] != shape or not term.is_floating_point():
            got = f"{tuple(term.shape)} of {term.dtype}" if isinstance(term, Tensor) else type(term).__name__
            fix = "expand it to the heads and the batch, content.batch"
            reject("score", f"numbers of {mechanism} for heads, batch and each {side}, {shape}", got, fix)


def upcast(t: Tensor) -> Tensor:
    """The tensor in float32 at least, the dtype of scores."""
    return t if t.dtype in (torch.float32, torch.float64) else t.float()


def copies(t: Tensor, content: Content, heads: int) -> Tensor:
    """(H, *, ...) with axes of size 1 expanded to the heads and the batch of a content."""
    lead = (heads, *content.batch)
    return t.expand(*lead, *t.shape[len(lead) :])


def per_copy(parameter: Tensor, content: Content) -> Tensor:
    """(K, ...) -> (K, *, ...), the same for every graph of a batch."""
    lead = len(content.batch)
    return copies(parameter[(slice(None), *[None] * lead)], content, parameter.shape[0])


def node_score(source: Tensor | None, target: Tensor | None) -> Score:
    """The score :math:`s_{km} + t_{kn}` of a term of each end, for `Mechanism.score`.

    Args:
        source: s, (K, *, M), or None.
        target: t, (K, *, N), or None; not both.

    >>> score = node_score(torch.zeros(2, 5), None)  # 2 heads, 5 sources, nothing of the targets
    >>> score.sides
    ('source',)
    """
    tensors: tuple[Tensor, ...]
    sides: tuple[Side, ...]
    if source is None or target is None:
        given = target if source is None else source
        if given is None:
            reject("source", "a term of the sources, or of the targets", None, "give one of them; Uniform() has none")
        tensors, sides = (given,), ("target" if source is None else "source",)
    else:
        tensors, sides = (source, target), ("source", "target")

    def ends(t: Tensors) -> tuple[Tensor | None, Tensor | None]:
        return None if source is None else t[0], None if target is None else t[-1]

    def evaluate(t: Tensors, entries: Entries) -> Tensor:
        return at_entries(*ends(t), entries.pattern)

    def dots(t: Tensors, entries: Entries) -> Dots:
        s, r = ends(t)
        lead = t[0].shape[:-1]
        if s is not None and r is None:
            return Dots([], [], [s.unsqueeze(-1).expand(*lead, entries.M, entries.N)])
        one = t[0].new_ones(1)
        s = s if s is not None else t[0].new_zeros(*lead, entries.M)
        r = r if r is not None else t[0].new_zeros(*lead, entries.N)
        key = torch.stack([s, one.expand_as(s)], -1)
        return Dots([key], [torch.stack([one.expand_as(r), r], -1)], [])

    return Score(tensors, sides, evaluate, dots, ends=(source, target))


def table_score(table: Tensor, pattern: Callable[[Entries], Pattern], places: Callable[[Entries], Tensor]) -> Score:
    """The score that each entry reads from the table of its copy, (K, *, S), by the pattern from the table to the
    entries; places: (M, N) the index of each pair in the table.
    """

    def evaluate(t: Tensors, entries: Entries) -> Tensor:
        return at_entries(t[0], None, pattern(entries))

    def dots(t: Tensors, entries: Entries) -> Dots:
        place = places(entries)
        return Dots([], [], [t[0].index_select(-1, place.flatten()).unflatten(-1, place.shape)])

    return Score((table,), ("copy",), evaluate, dots)


def entry_score(values: Tensor) -> Score:
    """The score of each entry as it is given, for `Mechanism.score`.

    Args:
        values: (K, *, E), in the order in which `content.edge_rows_at(entries)` has features of edges: by target.

    >>> from pyg_basisconv import BasisConv, bases
    >>> class First(Mechanism):
    ...     "The first of the features of an edge."
    ...     edge_dim = 2  # how many it reads
    ...     def score(self, content, entries):
    ...         z = content.edge_rows_at(entries)  # (E, 2)
    ...         return entry_score(z[:, 0].expand(self.sizes.heads, *content.batch, -1))
    >>> conv = BasisConv(8, 6, bases.Attention(1, First(), bases.Adjacency()))
    >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [2, 2]]), edge_attr=torch.randn(2, 2)).shape
    torch.Size([3, 6])
    """
    return Score((values,), ("entry",), lambda t, entries: t[0])
