"""Sums under weights that are computed on the way: piece by piece, and again where their gradient is asked for."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..portable import portable
from .multihead import (
    by_node,
    heads,
    inner_products,
    plain_attention,
    raw_attention,
    rows,
    softmax,
    transposed_sums,
)
from .op import derivative, wide
from .pattern import Pattern
from .segments import exponentials

Side = Literal["source", "target", "entry", "copy"]


class Piece(NamedTuple):
    """Some copies of a graph, or a run of targets of one copy, with all entries into them.

    copies, targets, entries: where they are; pattern: of each of the c copies, M x n.
    """

    copies: slice
    targets: slice
    entries: slice
    pattern: Pattern

    def cut(self, t: Tensor, side: Side) -> Tensor:
        """The part of (c, ...), of these copies, that the piece reads."""
        if side == "target":
            return t[:, self.targets]
        return t[:, self.entries] if side == "entry" else t


class Weights(NamedTuple):
    """Of the entries of a piece, (c, E) by target: values, or scores for a softmax into each target; and factors."""

    values: Tensor
    factor: Tensor | None

    def normalised(self, is_score: bool, pattern: Pattern) -> Tensor:
        """The weights themselves."""
        weight = softmax(self.values, pattern.at_target) if is_score else self.values
        return weight if self.factor is None else weight * self.factor


Weigh = Callable[[Piece, Sequence[Tensor]], Weights]


class _Attend(torch.autograd.Function):
    """See `attend` and `multihead.attention`. Nothing that is as long as a piece is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        weigh: Weigh,
        normalised: bool,
        pieces: list[Piece],
        whole: Pattern,
        sides: Sequence[Side],
        z: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        C, _, W = z.shape
        y = z.new_empty(whole.N, C, W)  # copies side by side at each target: as the features of heads are laid out
        totals = torch.empty(whole.N, C, dtype=wide(z), device=z.device) if normalised else None
        for copies, group in _by_copies(pieces):
            table, local = by_node(z[copies]), [_by_node(t[copies]) for t in tensors]
            for piece in group:
                cuts = [piece.cut(t, side) for t, side in zip(local, sides, strict=True)]
                values, factor = weigh(piece, cuts)
                alone = all(values.untyped_storage()._cdata != t.untyped_storage()._cdata for t in cuts)
                part, _, total = raw_attention(
                    rows(values), None if factor is None else rows(factor), table, normalised, piece.pattern, alone
                )
                y[piece.targets, copies] = part.view(part.shape[0], values.shape[0], W)
                if totals is not None and total is not None:
                    totals[piece.targets, copies] = total
        ctx.weigh, ctx.pieces, ctx.whole, ctx.sides = weigh, pieces, whole, sides
        ctx.save_for_backward(y if normalised else None, totals, z, *tensors)
        return y.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, totals, z, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled() or portable():

            def plain(z: Tensor, *tensors: Tensor) -> Tensor:
                return _plain(ctx.weigh, totals is not None, ctx.pieces, z, tensors, ctx.sides)

            return None, None, None, None, None, *derivative(plain, (z, *tensors), grad)
        W, sides = z.shape[2], ctx.sides
        needs_z, needs = ctx.needs_input_grad[5], ctx.needs_input_grad[6:]
        grad_z = z.new_empty(z.shape[1], z.shape[0], W).transpose(0, 1) if needs_z else None
        grads = [
            (torch.zeros_like(t) if side in ("source", "copy") else torch.empty_like(t)) if needed else None
            for t, side, needed in zip(tensors, sides, needs, strict=True)
        ]
        for copies, group in _by_copies(ctx.pieces):
            one, mean = z[copies].to(wide(z)), None
            c, left = one.shape[0], rows(one).contiguous()
            down = grad[copies].to(one.dtype)  # (c, N, W)
            if totals is not None:
                # <z, g> - <y, g> as one inner product, of (z, 1) and (g, -<y, g>).
                down = down / totals.t()[copies].unsqueeze(-1)
                mean = (down * y.transpose(0, 1)[copies]).sum(-1, keepdim=True)  # (c, N, 1)
                ahead = rows(F.pad(one, (0, 1), value=1.0))
            local = [_by_node(t[copies]) for t in tensors]
            kept = []
            for piece in group:
                pattern = piece.pattern
                cuts = [piece.cut(t, side).detach() for t, side in zip(local, sides, strict=True)]
                leaves = [t.requires_grad_(needed) for t, needed in zip(cuts, needs, strict=True)]
                with torch.enable_grad():
                    values, factor = ctx.weigh(piece, leaves)
                scores, factors = rows(values.detach()), None if factor is None else rows(factor.detach())
                weight = scores if mean is None else exponentials(scores.contiguous(), pattern.at_target)
                if needs_z:
                    kept.append(weight if factors is None else weight * factors)
                ends = [t for t in (values, factor) if t is not None and t.requires_grad]
                if not ends:
                    continue
                right, at = down[:, piece.targets], None if mean is None else mean[:, piece.targets]
                if at is not None and factors is None:
                    found = inner_products(ahead, rows(torch.cat([right, -at], -1)), c, pattern)
                else:
                    found = inner_products(left, rows(right), c, pattern)
                outward = []
                if values.requires_grad:
                    own = found if factors is None else found * factors
                    if at is not None and factors is not None:
                        own = own.sub_(rows(at).index_select(0, pattern.row))
                    outward.append((own if at is None else own.mul_(weight)).t().to(values.dtype))
                if factor is not None and factor.requires_grad:
                    outward.append((found * weight).t().to(factor.dtype))
                wanted = [leaf for leaf in leaves if leaf.requires_grad]
                back = iter(torch.autograd.grad(ends, wanted, outward, allow_unused=True, materialize_grads=True))
                for total, side in zip(grads, sides, strict=True):
                    if total is not None:
                        part = piece.cut(total[copies], side)
                        part.copy_(next(back)) if side in ("target", "entry") else part.add_(next(back))
            if grad_z is not None:
                weight = kept[0] if len(kept) == 1 else torch.cat(kept)
                grad_z[copies] = heads(transposed_sums(rows(down), weight, ctx.whole), c)
        return None, None, None, None, None, grad_z, *grads


def _by_node(t: Tensor) -> Tensor:
    """The same (c, G, ...), its memory node by node: numbers of one copy are gathered from consecutive ones."""
    return t.transpose(0, 1).contiguous().transpose(0, 1)


def _by_copies(pieces: list[Piece]) -> Iterator[tuple[slice, list[Piece]]]:
    for _, group in groupby(pieces, key=lambda piece: piece.copies.start):
        some = list(group)
        yield some[0].copies, some


def _plain(
    weigh: Weigh, normalised: bool, pieces: list[Piece], z: Tensor, tensors: Sequence[Tensor], sides: Sequence[Side]
) -> Tensor:
    """By operations that have any derivatives; all weights are held."""
    parts = []
    for copies, group in _by_copies(pieces):
        local, targets = [t[copies] for t in tensors], []
        for piece in group:
            values, factor = weigh(piece, [piece.cut(t, side) for t, side in zip(local, sides, strict=True)])
            targets.append(plain_attention(values, factor, z[copies], normalised, piece.pattern))
        parts.append(targets[0] if len(targets) == 1 else torch.cat(targets, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend(
    weigh: Weigh,
    normalised: bool,
    pieces: list[Piece],
    whole: Pattern,
    z: Tensor,
    tensors: Sequence[Tensor],
    sides: Sequence[Side],
) -> Tensor:
    r"""The sums :math:`y_n = \sum_{e: target(e) = n} w_e z_{source(e)}` of C copies, under weights that are computed.

    What has the length of the entries is not kept: the gradient computes the weights again; its own derivatives hold
    them all. See `attention` for what is short enough to be kept.

    Args:
        weigh: of a piece and its part of the tensors, the weights of its entries.
        normalised: whether these are scores, for a softmax.
        pieces: all copies, copy after copy, and of each all targets in order.
        whole: the pattern of a copy, M x N.
        z: (C, M, W).
        tensors: (C, ...) each.
        sides: what their second axis is: sources, targets, entries by target; or 'copy' for none of these.

    Returns:
        (C, N, W).
    """
    return _Attend.apply(weigh, normalised, pieces, whole, sides, z, *tensors)  # type: ignore[no-any-return]
