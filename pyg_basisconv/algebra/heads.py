"""Inspects attention: how much of each head lies in the span of known matrices."""

from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..bases.bound_attention import BoundAttention
from ..bases.concat import BoundConcat
from ..basis import Basis, BoundBasis, bound_basis
from ..conv import BasisConv
from ..convert import convert
from ..errors import reject
from .gram import Gram, Places, written

_BINDS = ("edge_weight", "edge_type", "batch", "lambda_max", "grid")  # the arguments of a call that a basis reads
_TERMS = 4  # printed of a sum


@dataclass(frozen=True, eq=False)
class HeadReport:
    r"""How H heads of attention lie in the span of K matrices :math:`A_k`; made by `explain_head`.

    `print(report)` shows a row for each head, and which of the :math:`A_k` depend on others.

    Attributes:
        coefficients: (H, K) c of the :math:`\sum_k c_k A_k` nearest to the matrix B of a head, the mean over the batch.
        r2: (H,) :math:`1 - |B - \sum_k c_k A_k|^2 / |B|^2`, where each graph of the batch has its own c; the mean.
        r2_std: (H,) its standard deviation over the batch.
        r2_fixed: (H,) the same with the one mean c for all graphs, which is what a fixed matrix could replace.
        each: (H, \*, K) c of each graph of the batch.
        gram: of the :math:`A_k`.
        attention: the heads, bound.
        basis: the :math:`A_k`, bound.

    >>> from pyg_basisconv import BasisConv, bases, explain_head, mechanisms
    >>> conv = BasisConv(8, 8, bases.Attention(2, mechanisms.Dot(4), bases.Causal()))
    >>> report = explain_head(conv, torch.randn(3, 10, 8), bases.Shifts(None, range(4)))
    >>> report.each.shape, bool((report.r2 >= report.r2_fixed).all())
    (torch.Size([2, 3, 4]), True)
    """

    coefficients: Tensor
    r2: Tensor
    r2_std: Tensor
    r2_fixed: Tensor
    each: Tensor
    gram: Gram
    attention: tuple[BoundAttention, ...]
    basis: BoundBasis

    def matrices(self, index: int | tuple[int, ...] = 0) -> tuple[Tensor, Tensor]:
        """The heads of one graph of the batch as dense matrices, and the nearest ones in the span: (H, M, N) each.

        Args:
            index: of the graph in the batch; ignored without a batch.
        """
        one = index if isinstance(index, tuple) else (index,)
        batch = self.attention[0].batch
        known = all(type(i) is int for i in one)
        inside = known and len(one) == len(batch) and all(0 <= i < n for i, n in zip(one, batch, strict=True))
        if not (inside if batch else known):
            reject("index", f"a place in a batch of {batch}", index, "give one number for each of its axes")
        parts = [part[one] if batch else part for part in self.attention]
        heads = torch.cat([part.to_dense().detach().cpu().double() for part in parts])
        c = self.each.movedim(0, -2)[one] if batch else self.each  # (H, K)
        kind, source, target, weight = (t.cpu() for t in self.basis.edges())
        H, M, N = heads.shape
        nearest = heads.new_zeros(H, M * N)
        nearest.index_add_(1, source.long() * N + target.long(), c[:, kind.long()] * weight.double())
        return heads, nearest.view(H, M, N)

    def __str__(self) -> str:
        basis, batch = self.basis, self.attention[0].batch
        count = f"{prod(batch)} graphs of " if batch else ""
        lines = [
            f"{len(self.r2)} heads, {count}M = {basis.M}, N = {basis.N}, in the span of {basis.K} matrices",
            f"  {'head':<4}  {'R2':>12}  {'R2, fixed':>9}  nearest, on average",
        ]
        for h, c in enumerate(self.coefficients):
            r2 = f"{self.r2[h]:.2f} ± {self.r2_std[h]:.2f}" if batch else f"{self.r2[h]:.2f}"
            lines.append(f"  {h:<4}  {r2:>12}  {self.r2_fixed[h]:>9.2f}  {_sum(c)}")
        return "\n".join([*lines, *self.gram.dependent])


def explain_head(
    layer: nn.Module, x: Any, basis: Basis | BoundBasis, edge_index: Any = None, **kwargs: Any
) -> HeadReport:
    r"""How much of each head of attention lies in the span of given matrices: shifts, powers, relations.

    The matrix B of a head is compared with the :math:`\sum_k c_k A_k` that is nearest to it in least squares,

    .. math:: \sum_l \langle A_k, A_l \rangle c_l = \langle A_k, B \rangle,
        \qquad R^2 = 1 - |B - \textstyle\sum_k c_k A_k|^2 / |B|^2,

    for each graph of the batch. The squares are not centred: no mean is subtracted. Where some :math:`A_k` depend on
    others, c is the solution of least norm.

    Args:
        layer: a `BasisConv` over `bases.Attention` or a sum with it; a layer that `convert` turns into one, such as
            `nn.MultiheadAttention` or `GATConv`; or a module that contains one of these. It is called in eval mode.
        x: the features, as the layer takes them; for `nn.MultiheadAttention`, a pair is (key, query), and the values
            are the keys.
        basis: the family, on the same sources and targets, such as `bases.Shifts(None, range(4))` for the steps of a
            sequence; bound already, or to be bound to the same graph.
        edge_index: the graph.
        **kwargs: of the call; edge_weight, edge_type, batch, lambda_max and grid are passed to the basis, too. The
            layer may do without the edges and their types. (Bind the basis before if it reads something else that the
            layer does not take.)

    Raises:
        ValueError: for a layer without attention, and a basis that is computed from content or has other sizes.

    >>> from pyg_basisconv import BasisConv, bases, mechanisms
    >>> conv = BasisConv(4, 4, bases.Attention(2, mechanisms.Relative(window=(-1, -1)), bases.Causal()))
    >>> _ = conv.basis.mechanism.weight.data.copy_(torch.tensor([[0.], [9.]]))  # uniform, and mostly the previous step
    >>> print(explain_head(conv, torch.randn(20, 4), bases.Shifts(None, range(3))))
    2 heads, M = 20, N = 20, in the span of 3 matrices
      head            R2  R2, fixed  nearest, on average
      0             0.35       0.35  0.18 A_0 + 0.14 A_1 + 0.12 A_2
      1             0.95       0.95  A_1 + 0.05 A_0
    """
    with torch.no_grad():
        attention = _attention(layer, x, edge_index, kwargs)
        first = attention[0]
        bound = _bind(basis, first, edge_index, kwargs)
        places = Places.of(bound)
        found = [_products(part, places) for part in attention]
        products, norms = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))  # (H, b, K), (H, b)
        known = places.gram
        c = known.solve(products.movedim(-1, 0).to(first.device)).movedim(0, -1).cpu()  # (H, b, K)
        mean = c.mean(1)
        across = 2 * (products @ mean.unsqueeze(-1)).squeeze(-1)
        fixed = across - ((mean @ known.matrix.cpu()) * mean).sum(-1, keepdim=True)
        r2 = _share((products * c).sum(-1), norms)
    return HeadReport(
        coefficients=mean,
        r2=r2.mean(1),
        r2_std=r2.std(1, correction=0),
        r2_fixed=_share(fixed, norms).mean(1),
        each=c.view(len(c), *first.batch, bound.K),
        gram=known,
        attention=tuple(attention),
        basis=bound,
    )


def _bind(basis: Basis | BoundBasis, heads: BoundAttention, edge_index: Any, kwargs: dict[str, Any]) -> BoundBasis:
    """The family, bound to the graph of the heads."""
    if isinstance(basis, BoundBasis):
        bound = bound_basis(basis)
    else:
        given = {name: kwargs[name] for name in _BINDS if kwargs.get(name) is not None}
        if isinstance(basis, Basis) and not basis.reads_types:
            given.pop("edge_type", None)  # of the layer alone
        edges = [] if edge_index is None else [edge_index]
        with heads.device:  # of a basis that takes no edges nothing else says it
            bound = bound_basis(basis, *edges, size=(heads.M, heads.N), **given)
    if (bound.M, bound.N, bound.batch) != (heads.M, heads.N, ()):
        got = f"{bound.M} x {bound.N}" + (f" for each of a batch of {bound.batch}" if bound.batch else "")
        reject("basis", f"matrices of {heads.M} x {heads.N}", got, "give a family of the same sources and targets")
    return bound if bound.device == heads.device else bound.to(heads.device)


def _share(part: Tensor, total: Tensor) -> Tensor:
    """The part of a total; 1 for a head of norm 0, which is fully explained."""
    return torch.where(total == 0, 1, part / torch.where(total == 0, 1, total))


def _sum(c: Tensor) -> str:
    """The largest terms, such as 0.95 A_1 - 0.02 A_0."""
    largest = [(round(c[k].item(), 2), k) for k in c.abs().argsort(descending=True).tolist()]
    terms = [(value, k) for value, k in largest if value]
    return written(terms[:_TERMS]) + (" + ..." if len(terms) > _TERMS else "")


def _attention(layer: nn.Module, x: Any, edge_index: Any, kwargs: dict[str, Any]) -> list[BoundAttention]:
    """The parts of the layer's basis that are attention, bound in a call."""
    whole = deepcopy(layer if isinstance(layer, BasisConv) else convert(layer, left={})).eval()
    convs = [part for part in whole.modules() if isinstance(part, BasisConv) and part.basis.reads_content]
    if len(convs) != 1:
        fix = "take a BasisConv over bases.Attention, or what convert makes one of"
        reject("layer", "one with attention", f"a {type(layer).__name__} with {len(convs)}", fix)
    seen: list[BoundBasis] = []
    forward, own = convs[0].forward, convs[0].basis

    def observed(
        x: Any,
        edge_index: Any = None,
        edge_weight: Any = None,
        edge_type: Any = None,
        *,
        return_attention: bool = False,
        **given: Any,
    ) -> Any:
        edges, types = edge_index if own.takes_edges else None, edge_type if own.reads_types else None  # or for `basis`
        y, bound = forward(x, edges, edge_weight, types, return_attention=True, **given)
        seen.append(bound)
        return (y, bound) if return_attention else y

    convs[0].forward = observed  # type: ignore[method-assign]
    if isinstance(layer, nn.MultiheadAttention):
        key, query = x if isinstance(x, tuple | list) else (x, x)
        whole(query, key, key, **kwargs)
    else:
        whole(x, *([] if edge_index is None else [edge_index]), **kwargs)
    found = [part for bound in seen for part in (bound.parts if isinstance(bound, BoundConcat) else [bound])]
    attention = [part for part in found if isinstance(part, BoundAttention)]
    if not attention:
        reject("layer", "bases.Attention, or a sum with it", convs[0].basis, "explain a layer over the attention alone")
    sizes = {(part.M, part.N, part.batch) for part in attention}
    if len(sizes) > 1:
        reject("layer", "one that attends to features of one size", sorted(sizes), "explain one call of its layer")
    if not prod(attention[0].batch):
        reject("x", "at least one graph in the batch", attention[0].batch, "give some features")
    return attention


def _products(B: BoundAttention, A: Places) -> tuple[Tensor, Tensor]:
    """The inner products of each head with each A_k, (H, b, K), and the squared norms, (H, b), in float64."""
    products = torch.zeros(B.copies, A.K, dtype=torch.float64, device=B.device)
    norms, met = products.new_zeros(B.copies), dict[int, tuple[Tensor, ...]]()  # by the first target of a piece
    for piece, entries in B.pieces:
        if entries.first not in met:
            m, n = entries.pattern.ends
            place, which = (m.long() * B.N + n.long() + entries.first).unique(return_inverse=True)
            met[entries.first] = which, *A.find(place)
        which, row, there = met[entries.first]
        entry = B.weights_of(piece).double().t()  # (E, c)
        entry = entry.new_zeros(len(row), entry.shape[1]).index_add(0, which, entry)  # entries at one place are summed
        values = entry.new_zeros(A.U, entry.shape[1]).index_copy(0, row[there], entry[there])
        products[piece.copies] += A.products(values).t()
        norms[piece.copies] += torch.linalg.vector_norm(entry, dim=0).square()
    return products.view(B.K, -1, A.K), norms.view(B.K, -1)
