"""Mechanisms that are inner products of vectors of source and target."""

import math
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..content import Content
from ..entries import Entries
from ..errors import check_choice, check_flags, reject
from ..kernels import Affine, EdgeProductScores, Pattern, ProductScores, Valued, edge_products, hidden, inner
from ..kernels.activations import Activation
from ..kernels.multihead import HELD, to_heads
from ..kernels.onepass import one_pass_fits
from ..portable import portable
from ..theta.base import param, project
from .base import Dots, Mechanism, Score, Sizes, Tensors, check_width, copies, entry_score, upcast
from .edges import edge_rows, rows_of_copies
from .rows import RowScore, TermRows


def inner_score(key: Tensor, query: Tensor) -> Score:
    """The inner product of a key of the source and a query of the target, for `Mechanism.score`.

    Args:
        key: (K, *, M, d).
        query: (K, *, N, d).

    >>> import torch
    >>> score = inner_score(torch.randn(2, 5, 4), torch.randn(2, 3, 4))  # 2 heads, 5 sources, 3 targets
    >>> score.sides
    ('source', 'target')
    """
    if key.shape[-1] != query.shape[-1]:
        reject("query", f"vectors as long as the keys, {key.shape[-1]}", query.shape[-1], "map both to one width")

    def evaluate(t: Tensors, entries: Entries) -> Tensor:
        return inner(upcast(t[0]), upcast(t[1]), entries.pattern)

    def dots(t: Tensors, entries: Entries) -> Dots:
        return Dots([t[0]], [t[1]], [])

    return Score((key, query), ("source", "target"), evaluate, dots)


class ProductRows(RowScore):
    """Inner products of keys, (*, M, K d), and queries, (*, N, K d)."""

    has_dots = True

    def __init__(self, key: Tensor, query: Tensor, heads: int) -> None:
        self.scoring, self.rows, self.heads = ProductScores(), (key, query), heads

    def heads_first_score(self) -> Score:
        return inner_score(*(to_heads(cast(Tensor, t), self.heads) for t in self.rows))

    def times(self, factor: float) -> Score:
        key, query = (cast(Tensor, t) for t in self.rows)
        return ProductRows(key, query * factor, self.heads)

    def times_heads(self, factor: Tensor) -> Score:
        key, query = (cast(Tensor, t) for t in self.rows)
        of_columns = factor.repeat_interleave(query.shape[-1] // self.heads) if self.heads > 1 else factor
        return ProductRows(key, query * of_columns, self.heads)

    def __mul__(self, other: Score) -> Score:
        constant = isinstance(other, TermRows) and other.is_only_constant
        return other * self if constant else super().__mul__(other)


class EdgeProductRows(RowScore):
    """Inner products of keys, (M, K d), and queries, (N, K d); to the key each of a few entries adds (E, K d)."""

    def __init__(self, key: Tensor, query: Tensor, of_key: Valued, heads: int, pattern: Pattern) -> None:
        self.scoring, self.rows = EdgeProductScores(), (key, query, *of_key)
        self.heads, self.pattern = heads, pattern

    @property
    def _terms(self) -> TermRows:
        key, query, *of_key = (upcast(cast(Tensor, t)) for t in self.rows)
        return TermRows(entry=edge_products(self.heads, self.pattern, key, query, Valued(*of_key).tensor, None))

    def heads_first_score(self) -> Score:
        return self._terms.heads_first_score()

    def map(self, function: Activation) -> Score:
        return self._terms.map(function)


class Bilinear(Mechanism):
    r"""A bilinear form, :math:`x_m \Lambda_k y_n`, with :math:`\Lambda_k` of P x P'.

    >>> from pyg_basisconv import BasisConv, bases
    >>> BasisConv((8, 5), 6, bases.Attention(2, Bilinear()))((torch.randn(3, 8), torch.randn(4, 5))).shape
    torch.Size([4, 6])
    """

    def make(self, sizes: Sizes) -> None:
        self.parameter("weight", sizes.heads, sizes.source, sizes.target)

    def score(self, content: Content, entries: Entries) -> Score:
        query = content.target_features
        if query.layout != torch.strided:
            query = query.to_dense()
        elif content.observed:  # weights that are returned must not change when features are updated in place
            query = query.clone()
        H = self.weight.shape[0]
        return inner_score(copies(project(content.x, self.weight), content, H), copies(query[None], content, H))


class Cosine(Mechanism):
    r"""The cosine of the features, :math:`x_m \cdot y_n / (|x_m| |y_n|)`, without a parameter (AGNN, Thekumparampil et
    al., arXiv:1803.03735).

    >>> from pyg_basisconv import BasisConv, bases
    >>> BasisConv(8, 6, bases.Attention(1, 10 * Cosine()))(torch.randn(3, 8)).shape
    torch.Size([3, 6])
    """

    def make(self, sizes: Sizes) -> None:
        if -1 not in sizes[1:3] and sizes.source != sizes.target:
            reject("in_channels", "one width for sources and targets, for Cosine", sizes[1:3], "project them before")

    def score(self, content: Content, entries: Entries) -> Score:
        assert self.sizes is not None
        H, same = self.sizes.heads, content.target_features is content.x
        source = _directions(content.x)
        target = source if same else _directions(content.target_features)
        if H == 1 and not portable() and source.shape[:-2] == target.shape[:-2] == content.batch:
            return ProductRows(source, target, H)
        return inner_score(*(copies(side[None], content, H) for side in (source, target)))


def _directions(x: Tensor) -> Tensor:
    """The features, each row divided by its norm; zeros stay zeros, whose norm float16 cannot keep apart from 0."""
    return F.normalize(upcast(x if x.layout == torch.strided else x.to_dense()), dim=-1)


class Dot(Mechanism):
    r"""The inner product of a key and a query, :math:`s \, (x_m K_k + \kappa_k) \cdot (y_n Q_k + \rho_k)`.

    Scaled by :math:`s = 1 / \sqrt{dim}` this is the attention of the Transformer (Vaswani et al., arXiv:1706.03762).
    With features z of edges the key is :math:`k + z U` ('key'), and for 'both' the query is :math:`q + z V` as well;
    'cross' leaves out the product of z with itself, :math:`k \cdot q + k \cdot z V + q \cdot z U` (Henderson et al.,
    arXiv:2305.10147).

    Args:
        dim: the width of keys and queries; None if they are projected.
        scale: s; by default :math:`1 / \sqrt{dim}`.
        bias: whether keys and queries have a bias.
        projected: whether keys and queries are :math:`x \Theta_k` and :math:`y \Theta_k`.
        edge_dim: the width of z, `edge_attr`; 0 for none.
        mix: 'key', 'both' or 'cross'.

    >>> from pyg_basisconv import BasisConv, bases, theta
    >>> transformer = BasisConv(8, 8, bases.Attention(2, Dot(4, bias=True)), theta.LowRank(4, bias=True))
    >>> transformer(torch.randn(5, 3, 8)).shape
    torch.Size([5, 3, 8])
    """

    def __init__(
        self,
        dim: int | None = None,
        scale: float | None = None,
        bias: bool = False,
        projected: bool = False,
        edge_dim: int = 0,
        mix: Literal["key", "both", "cross"] = "key",
    ) -> None:
        super().__init__()
        check_flags(bias=bias, projected=projected)
        if (dim is None) != projected:
            fix = "give dim or projected=True"
            reject("dim", "the width of keys and queries, or None if projected", repr(dim), fix)
        if dim is not None:
            check_width("dim", dim)
        check_width("edge_dim", edge_dim, 0)
        if scale is not None and not (isinstance(scale, int | float) and math.isfinite(scale)):
            reject("scale", "a finite number, or None for 1 / sqrt(dim)", repr(scale), "give a number")
        if projected and (bias or edge_dim):
            reject("projected", "False where there is a bias or an edge", True, "give Theta the bias")
        check_choice("mix", mix, "key", "both", "cross")
        self.dim, self.scale, self.has_bias, self.projected = dim, scale, bias, projected
        self.edge_dim, self.mix = edge_dim, mix

    def make(self, sizes: Sizes) -> None:
        H = sizes.heads
        if self.dim is None:
            return
        self.parameter("key", H, sizes.source, self.dim)
        self.parameter("query", H, sizes.target, self.dim)
        if self.has_bias:
            self.key_bias = nn.Parameter(torch.zeros(H, self.dim))
            self.query_bias = nn.Parameter(torch.zeros(H, self.dim))
        if self.edge_dim:
            self.parameter("key_edge", H, self.edge_dim, self.dim)
            if self.mix != "key":
                self.parameter("query_edge", H, self.edge_dim, self.dim)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.has_bias and self.dim is not None:
            nn.init.zeros_(self.key_bias)
            nn.init.zeros_(self.query_bias)

    def score(self, content: Content, entries: Entries) -> Score:
        # The scale goes to the map of queries, which applies it where that is cheapest.
        assert self.sizes is not None
        H, dim = self.sizes.heads, self.sizes.inner if self.dim is None else self.dim
        scale = dim**-0.5 if self.scale is None else self.scale
        if self.projected:
            key, query = content.projected_rows, content.projected_target_rows * scale
        else:
            bias = (param(self, "key_bias"), param(self, "query_bias")) if self.has_bias else (None, None)
            maps = Affine(param(self, "key"), bias[0]), Affine(param(self, "query"), bias[1], scale)
            key, query = content.affine(maps[:1], maps[1:])
        if not portable() and key.shape[:-2] == query.shape[:-2] == content.batch:
            if not self.edge_dim:
                return ProductRows(key, query, H)
            found = None if content.batch else self._in_rows(content, entries, key, query, scale)
            if found is not None:
                return found
        key, query = to_heads(key, H), to_heads(query, H)
        score = inner_score(key, query)
        if not self.edge_dim:
            return score
        return score + self._edges(content, entries, key, query, scale)

    def _in_rows(self, content: Content, entries: Entries, key: Tensor, query: Tensor, scale: float) -> Score | None:
        """The scores node-major; None where they would store keys and queries of many entries."""
        few = entries.E * key.shape[-1] <= HELD
        if self.mix == "cross" or (self.mix == "both" and not few):
            return None
        edge_rows(content, entries, self.edge_dim)  # checks their width
        H, map = len(self.key_edge), Affine(param(self, "key_edge"))
        if self.mix == "key":
            in_rows = EdgeProductRows(key, query, content.mapped_edges(entries, map), H, entries.pattern)
            form = EdgeProductScores().form(in_rows.rows, H)
            return in_rows if few or one_pass_fits(form, key.device, entries.E) else None
        of_key = content.edge_products(entries, map)
        of_query = content.edge_products(entries, Affine(param(self, "query_edge"))) * scale
        return TermRows(entry=edge_products(H, entries.pattern, upcast(key), upcast(query), of_key, of_query))

    def _edges(self, content: Content, entries: Entries, key: Tensor, query: Tensor, scale: float) -> Score:
        """The terms with features z of edges, as <z, b_n + a_m + z G>, all of width R."""
        H, R = self.key_edge.shape[:2]
        count = math.prod(content.batch)

        def against(side: Tensor, weight: Tensor) -> Tensor:
            weight = weight.transpose(1, 2).reshape(H, *[1] * (side.dim() - 3), self.dim or 0, R)
            return upcast(side @ weight).movedim(0, -2).flatten(-2).flatten(0, -2)  # (B M, H R)

        source = square = None
        if self.mix != "key":
            source = against(key * scale, self.query_edge)
        if self.mix == "both":
            square = upcast(self.key_edge @ self.query_edge.transpose(1, 2) * scale)
            square = square.transpose(0, 1).flatten(1)  # (R, H R)
        z, target = rows_of_copies(content, entries, R), against(query, self.key_edge)
        score = hidden(lambda u: u, entries.pattern.copies(count), H, source, target, z, square, None)
        return entry_score(score.view(H, *content.batch, entries.E))

    def extra_repr(self) -> str:
        shown = ["projected=True"] if self.projected else [str(self.dim)]
        shown += [] if self.scale is None else [f"scale={self.scale}"]
        shown += ["bias=True"] * self.has_bias
        shown += [f"edge_dim={self.edge_dim}", f"mix={self.mix!r}"] if self.edge_dim else []
        return ", ".join(shown)
