"""Additive mechanisms: sums of terms of source and target, and hidden layers over them."""

from functools import reduce
from math import prod
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..cache import cached_property
from ..content import Content
from ..entries import Entries
from ..errors import check_choice, check_flags, reject
from ..kernels import Affine, ProjectedScores, TermScores, hidden
from ..kernels.activations import Activation
from ..kernels.attend import Side
from ..kernels.multihead import HELD, block_columns, to_heads, to_rows
from ..kernels.onepass import one_pass_fits
from ..kernels.scoring import rows_of_sources
from ..portable import few, portable
from ..theta.base import param
from ..theta.heads import all_heads
from .base import Combination, Mechanism, Score, Sizes, Tensors, check_width, elementwise, entry_score, per_copy, upcast
from .edges import Feature, edge_rows, rows_of_copies
from .inner import Bilinear
from .rows import MappedRows, RowScore, TermRows

Target = Literal["shared", "own"] | None


def _check_target(target: Any, projected: bool) -> None:
    check_choice("target", target, "shared", "own", None)
    if target == "shared" and not projected:
        reject("target", "'own' or None where projected=False", "'shared'", "or score what Theta projects")


class Additive(Mechanism):
    r"""A term of the source and a term of the target, :math:`\lambda_k \cdot x_m + \mu_k \cdot y_n + \xi_k`.

    With `projected=True` it reads :math:`x_m \Theta_k` instead, as GAT does (Velickovic et al., arXiv:1710.10903):
    `Additive(projected=True).then(nn.LeakyReLU(0.2))`.

    Args:
        projected: whether to score :math:`x \Theta_k`, and not x.
        target: if projected, how the targets' features are projected: 'shared' for Theta, 'own' for a matrix of this
            mechanism; None for no term of the target. By default as the sources.
        bias: whether to add :math:`\xi`.

    >>> from pyg_basisconv import BasisConv, bases, theta
    >>> score = Additive(projected=True).then(nn.LeakyReLU(0.2))  # GAT
    >>> conv = BasisConv(8, 6, bases.Attention(2, score, bases.Adjacency()), theta.Heads())
    >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 6])
    """

    def __init__(
        self,
        projected: bool = False,
        target: Literal["shared", "own", "default"] | None = "default",
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_flags(projected=projected, bias=bias)
        if target == "default":
            target = "shared" if projected else "own"
        _check_target(target, projected)
        self.projected, self.target_kind, self.has_bias = projected, target, bias

    def make(self, sizes: Sizes) -> None:
        H, D = sizes.heads, sizes.inner
        self.parameter("source", H, D if self.projected else sizes.source)
        if self.target_kind is not None:
            self.parameter("target", H, D if self.projected else sizes.target)
        if self.projected and self.target_kind == "own":
            self.parameter("weight", H, sizes.target, D)
        if self.has_bias:
            self.parameter("bias", H)

    def score(self, content: Content, entries: Entries) -> Score:
        if not self.projected:
            of_source = Affine(param(self, "source"), param(self, "bias") if self.has_bias else None)
            of_target = Affine(param(self, "target")) if self.target_kind is not None else None
            return MappedRows(content, of_source, of_target)
        if self.target_kind == "shared" and content.target is content.x and not self.has_bias:
            return ProjectedRows(content.projected_rows, param(self, "source"), param(self, "target"), content.batch)
        if self.target_kind is None and not self.has_bias:
            mapped = content.map_of_projected(param(self, "source"))
            if mapped is not None:
                return MappedRows(content, mapped, None)
        source, target = content.projected_rows @ block_columns(self.source), None
        if self.target_kind == "shared":
            target = content.projected_target_rows @ block_columns(self.target)
        elif self.target_kind == "own":
            target = all_heads(content.target_features, self.weight) @ block_columns(self.target)
        return TermRows(source + self.bias if self.has_bias else source, target, batch=content.batch)

    def extra_repr(self) -> str:
        shown = ["projected=True"] if self.projected else []
        usual = "shared" if self.projected else "own"
        shown += [] if self.target_kind == usual else [f"target={self.target_kind!r}"]
        return ", ".join(shown + ["bias=True"] * self.has_bias)


class ProjectedRows(RowScore):
    """Terms of one set of rows, (*, M, H D), both as sources and as targets; see `kernels.ProjectedScores`."""

    def __init__(
        self, z: Tensor, source: Tensor, target: Tensor, batch: tuple[int, ...], activation: Activation | None = None
    ) -> None:
        self.given, self.activation = (z, source, target, batch), activation
        self.scoring, self.rows = ProjectedScores(activation), (source, target)

    @property
    def has_dots(self) -> bool:  # type: ignore[override]
        return self.activation is None

    @property
    def requires_grad(self) -> bool:
        return any(t.requires_grad for t in self.given[:3])

    def snapshot(self) -> Score:
        z, source, target, batch = self.given
        return ProjectedRows(z, source.clone(), target.clone(), batch, self.activation)

    @cached_property
    def _terms(self) -> TermRows:
        z, source, target, batch = self.given
        both = z @ torch.cat([block_columns(source), block_columns(target)], -1)  # in one product
        of_source, of_target = both.split(len(source), -1)  # type: ignore[no-untyped-call]
        return TermRows(of_source, of_target, activation=self.activation, batch=batch)

    def heads_first_score(self) -> Score:
        return self._terms.heads_first_score()

    def __add__(self, other: Score) -> Score:
        return self._terms + other

    def map(self, function: Activation) -> Score:
        return ProjectedRows(*self.given, function) if self.activation is None else self._terms.map(function)


def Biaffine() -> Mechanism:
    r"""Bi-affine scores, :math:`x_m \Lambda_k y_n + \mu_k \cdot x_m + \nu_k \cdot y_n + \xi_k` (Dozat and Manning,
    arXiv:1611.01734).

    >>> Biaffine()
    Bilinear() + Additive(bias=True)
    """
    return Bilinear() + Additive(bias=True)


class HiddenLayerRows(RowScore):
    """A hidden layer over terms of sources, (M, K D), targets, (N, K D), and a few entries, (E, K D), which may be
    None, with the vectors (K, D); see `kernels.TermScores`.
    """

    def __init__(self, activation: Activation, *rows: Any) -> None:
        self.activation, self.scoring, self.rows = activation, TermScores(activation), rows

    def snapshot(self) -> Score:
        *terms, out = cast(tuple[Tensor, ...], self.rows)
        return HiddenLayerRows(self.activation, *terms, out.clone())

    def heads_first_score(self) -> Score:
        names: tuple[Side, ...] = ("source", "target", "entry")
        *given, out = cast(tuple[Tensor, ...], self.rows)
        terms = {side: t for side, t in zip(names, given, strict=True) if t is not None}
        tensors = [to_heads(upcast(t), len(out)) for t in terms.values()]

        def evaluate(t: Tensors, entries: Entries) -> Tensor:
            at, pattern = {side: to_rows(one) for side, one in zip(terms, t, strict=False)}, entries.pattern
            source = at["source"]
            if "entry" in at:  # each is a source of its own
                source, pattern = rows_of_sources(source, pattern) + at["entry"], pattern.of_entries
            return hidden(self.activation, pattern, len(t[-1]), source, at.get("target"), None, None, t[-1])

        return Score((*tensors, upcast(out)), (*terms, "copy"), evaluate)


class MLP(Mechanism):
    r"""A hidden layer, :math:`a_k \cdot act(x_m W_k + y_n V_k + z_{mn} U_k + b_k)`.

    GATv2 (Brody et al., arXiv:2105.14491) is `MLP(projected=True, activation=nn.LeakyReLU(0.2))`, the attention of
    multiple instance learning (Ilse et al., arXiv:1802.04712) `MLP(dim, target=None)`, and `gated=True` its gated form,
    :math:`a_k \cdot (act(x_m W_k) \odot \sigma(x_m G_k))`.

    Args:
        dim: the width of the hidden layer; None if it is projected, for the width of a value.
        activation: elementwise; `nn.Tanh()` by default.
        projected: whether W is Theta.
        target: 'own' if V is a matrix of this mechanism, 'shared' if it is Theta, None for no such term.
        gated: whether to multiply by a gate; only without a target.
        bias: whether to add b.
        edge_dim: the width of z, `edge_attr`; 0 for none.

    >>> from pyg_basisconv import BasisConv, bases, theta
    >>> score = MLP(projected=True, activation=nn.LeakyReLU(0.2))  # GATv2
    >>> conv = BasisConv(8, 6, bases.Attention(2, score, bases.Adjacency()), theta.Heads())
    >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 6])
    """

    def __init__(
        self,
        dim: int | None = None,
        activation: Activation | None = None,
        projected: bool = False,
        target: Target = "own",
        gated: bool = False,
        bias: bool = False,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        check_flags(projected=projected, gated=gated, bias=bias)
        _check_target(target, projected)
        if (dim is None) != projected:
            expected = "the width of the hidden layer, or None if projected"
            reject("dim", expected, repr(dim), "give dim or projected=True")
        if dim is not None:
            check_width("dim", dim)
        check_width("edge_dim", edge_dim, 0)
        if gated and (target is not None or edge_dim):
            reject("gated", "False where there is a target or an edge", True, "pass target=None")
        self.dim, self.projected, self.target_kind = dim, projected, target
        self.activation = elementwise(nn.Tanh() if activation is None else activation)
        self.gated, self.has_bias, self.edge_dim = gated, bias, edge_dim

    def make(self, sizes: Sizes) -> None:
        H, D = sizes.heads, sizes.inner if self.dim is None else self.dim
        if not self.projected:
            self.parameter("source", H, sizes.source, D)
        if self.target_kind == "own":
            self.parameter("target", H, sizes.target, D)
        if self.gated:
            self.parameter("gate", H, sizes.source, D)
        if self.edge_dim:
            self.parameter("edge", H, self.edge_dim, D)
        if self.has_bias:
            self.bias = nn.Parameter(torch.zeros(H, D))
        self.parameter("out", H, D)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.has_bias:
            nn.init.zeros_(self.bias)

    def score(self, content: Content, entries: Entries) -> Score:
        out = param(self, "out")
        (H, D), bias = out.shape, param(self, "bias") if self.has_bias else None
        of_source, of_target = [], []
        if self.target_kind == "own":
            of_target, bias = [Affine(param(self, "target"), bias)], None
        if not self.projected:
            of_source = [Affine(param(self, "source"), bias)]
        terms = content.affine(of_source, of_target)
        if self.projected:
            source = content.projected_rows if bias is None else content.projected_rows + bias.flatten()
        else:
            source = terms[0]  # (*, M, H D)
        if self.target_kind is None and not self.edge_dim:
            u = self.activation(source)
            if self.gated:
                u = u * all_heads(content.x, self.gate).sigmoid()
            s = (u.unflatten(-1, (H, D)) * out).sum(-1)  # (*, M, H)
            return TermRows(s, batch=content.batch)
        target = edge = weight = None
        if self.target_kind == "shared":
            target = content.projected_target_rows
        elif self.target_kind == "own":
            target = terms[-1]
        held = few(entries.E * H * D, HELD)
        if not (content.batch or portable()) and (held or not self.edge_dim):
            of_edges = None
            if self.edge_dim:
                edge_rows(content, entries, self.edge_dim)  # checks their width
                of_edges = content.edge_products(entries, Affine(param(self, "edge")))
            in_rows = HiddenLayerRows(self.activation, source, target, of_edges, out)
            form = TermScores(self.activation).form(in_rows.rows, H)
            if held or one_pass_fits(form, source.device, entries.E):
                return in_rows
        batch = content.batch
        count = prod(batch)
        if self.edge_dim:
            edge = rows_of_copies(content, entries, self.edge_dim)
            weight = upcast(self.edge.transpose(0, 1).flatten(1))  # (R, H D)
        ends = (None if t is None else upcast(t.flatten(0, -2)) for t in (source, target))
        pattern = entries.pattern.copies(count)
        score = hidden(self.activation, pattern, H, *ends, edge, weight, upcast(out))  # (H, B E)
        return entry_score(score.view(H, *batch, entries.E))

    def extra_repr(self) -> str:
        shown = ["projected=True"] if self.projected else [f"{self.dim}"]
        shown += [f"activation={self.activation}"]
        shown += [] if self.target_kind == "own" else [f"target={self.target_kind!r}"]
        shown += ["gated=True"] * self.gated + ["bias=True"] * self.has_bias
        return ", ".join(shown + ([f"edge_dim={self.edge_dim}"] if self.edge_dim else []))


class Perceptron(Combination):
    r"""A hidden layer over scores, :math:`\sum_d \alpha'_{kd} \, act(\sum_i \alpha_{kid} s_i + (z_{mn} W_k)_d)`.

    With one inner product and features of edges this is the mixed attention of MatNet (Kwon et al., arXiv:2106.11113).

    Args:
        dim: the width of the hidden layer.
        *mechanisms: of the scores :math:`s_i`.
        edge_dim: the width of z, `edge_attr`; 0 for none.
        activation: elementwise; `nn.ReLU()` by default.

    >>> from pyg_basisconv import BasisConv, bases
    >>> from pyg_basisconv.mechanisms import Dot
    >>> BasisConv(8, 6, bases.Attention(2, Perceptron(16, Dot(4), Additive())))(torch.randn(3, 8)).shape
    torch.Size([3, 6])
    """

    def __init__(
        self, dim: int, *mechanisms: Mechanism, edge_dim: int = 0, activation: Activation | None = None
    ) -> None:
        check_width("dim", dim)
        check_width("edge_dim", edge_dim, 0)
        if not (mechanisms or edge_dim) or not all(isinstance(part, Mechanism) for part in mechanisms):
            reject("mechanisms", "mechanisms, or edge_dim", mechanisms, "say what enters the hidden layer")
        super().__init__(*mechanisms, *(Feature(edge_dim, i) for i in range(edge_dim)))
        self.dim, self.edge_dim = dim, edge_dim
        self.activation = elementwise(nn.ReLU() if activation is None else activation)

    def make(self, sizes: Sizes) -> None:
        super().make(sizes)
        self.parameter("weight", sizes.heads, len(self.parts), self.dim)
        self.parameter("out", sizes.heads, self.dim)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for parameter in self.parameters(recurse=False):
            nn.init.normal_(parameter, std=len(self.parts) ** -0.5)

    def score(self, content: Content, entries: Entries) -> Score:
        parts = self.scores(content, entries)
        tensors = (
            *(t for part in parts for t in part.tensors),
            # Clones, as scores must not change when parameters are updated in place.
            *(per_copy(t.clone(), content) for t in (self.weight, self.out)),
        )

        def evaluate(t: Tensors, entries: Entries) -> Tensor:
            *given, weight, out = t
            scores = []
            for part in parts:
                scores.append(part.evaluate(given[: len(part.tensors)], entries))
                given = given[len(part.tensors) :]

            def hidden_unit(d: int) -> Tensor:
                u = reduce(torch.add, (score * weight[:, i, d, None] for i, score in enumerate(scores)))
                return self.activation(u) * out[:, d, None]

            return reduce(torch.add, map(hidden_unit, range(self.dim)))

        sides: list[Side] = [side for part in parts for side in part.sides]
        return Score(tuple(map(upcast, tensors)), (*sides, "copy", "copy"), evaluate)

    def extra_repr(self) -> str:
        inputs = [repr(part) for part in self.parts if not isinstance(part, Feature)]
        edge = [f"edge_dim={self.edge_dim}"] if self.edge_dim else []
        return ", ".join([str(self.dim), *inputs, *edge, f"activation={self.activation}"])
