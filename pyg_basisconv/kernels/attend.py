"""Sums under weights that are computed on the way: piece by piece, and again where their gradient is asked for."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..portable import portable
from .op import derivative
from .pattern import Pattern
from .products import sddmm_raw, spmm, spmm_raw
from .segments import collect, exponentials, lift, segment_softmax

Side = Literal["source", "target", "entry", "copy"]


class Piece(NamedTuple):
    """Some copies of a graph, or a run of targets of one copy, with all entries into them.

    copies, targets, entries: where they are; pattern: of the piece, c copies of M x n.
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
    """Of the entries of a piece, (c E,) by target: values, or scores for a softmax into each target; and factors."""

    values: Tensor
    factor: Tensor | None

    def normalised(self, softmax: bool, pattern: Pattern) -> Tensor:
        """The weights themselves."""
        weight = segment_softmax(self.values, pattern.at_target) if softmax else self.values
        return weight if self.factor is None else weight * self.factor


Weigh = Callable[[Piece, Sequence[Tensor]], Weights]


class _Attend(torch.autograd.Function):
    """See `attend`. Nothing that is as long as a piece is kept.

    A softmax divides the sums of each target, not the weights of its entries. With w the weights before that, f their
    factors, g the gradient of y, and what is at a target divided by its sum, the gradient of the score of an entry is
    w (f <z, g> - <y, g>), and that of its factor is w <z, g>.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weigh: Weigh,
        softmax: bool,
        pieces: list[Piece],
        whole: Pattern,
        sides: Sequence[Side],
        z: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        C, _, W = z.shape
        wide = torch.promote_types(z.dtype, torch.float32)
        # Copies lie side by side at each target: that is how the features of heads are laid out.
        y = z.new_empty(whole.N, C, W).transpose(0, 1)
        inverse = torch.empty(C, whole.N, 1, dtype=wide, device=z.device) if softmax else None
        for copies, group in _by_copies(pieces):
            rows = z[copies].reshape(-1, W).to(wide).contiguous()  # (c M, W)
            local = [t[copies].contiguous() for t in tensors]
            for piece in group:
                here, pattern = (copies, piece.targets), piece.pattern
                cuts = [piece.cut(t, side) for t, side in zip(local, sides, strict=True)]
                values, factor = weigh(piece, cuts)
                alone = all(values.untyped_storage()._cdata != t.untyped_storage()._cdata for t in cuts)
                weight = exponentials(values, pattern.at_target, within=alone) if softmax else values
                weighted = weight if factor is None else weight * factor
                part = spmm_raw(rows, weighted.to(wide), None, pattern.one_way).view(y[here].shape)
                if inverse is not None:
                    total = collect(weight, pattern.at_target).view(inverse[here].shape)
                    inverse[here] = total.reciprocal().masked_fill_(total == 0, 0)
                    part = part.mul_(inverse[here])
                y[here] = part
        ctx.weigh, ctx.pieces, ctx.whole, ctx.sides = weigh, pieces, whole, sides
        ctx.save_for_backward(y if softmax else None, inverse, z, *tensors)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, inverse, z, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled() or portable():

            def plain(z: Tensor, *tensors: Tensor) -> Tensor:
                return _plain(ctx.weigh, inverse is not None, ctx.pieces, z, tensors, ctx.sides)

            return None, None, None, None, None, *derivative(plain, (z, *tensors), grad)
        W, sides, wide = z.shape[2], ctx.sides, torch.promote_types(z.dtype, torch.float32)
        needs_z, needs = ctx.needs_input_grad[5], ctx.needs_input_grad[6:]
        grad_z = torch.empty_like(z) if needs_z else None
        grads = [
            (torch.zeros_like(t) if side in ("source", "copy") else torch.empty_like(t)) if needed else None
            for t, side, needed in zip(tensors, sides, needs, strict=True)
        ]
        for copies, group in _by_copies(ctx.pieces):
            rows, mean = z[copies].reshape(-1, W).to(wide).contiguous(), None
            down = grad[copies].to(wide, memory_format=torch.contiguous_format)  # (c, N, W)
            local = [t[copies].contiguous() for t in tensors]
            if inverse is not None:
                down = down * inverse[copies]
                mean = (down * y[copies]).sum(-1)  # (c, N)
                ahead = F.pad(rows, (0, 1), value=1.0)
            kept = []
            for piece in group:
                pattern = piece.pattern
                cuts = [piece.cut(t, side).detach() for t, side in zip(local, sides, strict=True)]
                leaves = [t.requires_grad_(needed) for t, needed in zip(cuts, needs, strict=True)]
                with torch.enable_grad():
                    values, factor = ctx.weigh(piece, leaves)
                scores, factors = values.detach(), None if factor is None else factor.detach()
                weight = scores if mean is None else exponentials(scores, pattern.at_target)
                if needs_z:
                    kept.append(weight if factors is None else weight * factors)
                ends = [t for t in (values, factor) if t is not None and t.requires_grad]
                if not ends:
                    continue
                left, right = rows, down[:, piece.targets].reshape(-1, W)
                if mean is not None and factors is None:
                    # <z, g> - <y, g> as one inner product, of (z, 1) and (g, -<y, g>).
                    left, right = ahead, torch.cat([right, -mean[:, piece.targets].reshape(-1, 1)], 1)
                inner = sddmm_raw(left, right, pattern.one_way)
                outward = []
                if values.requires_grad:
                    own = inner if factors is None else inner * factors
                    if mean is not None and factors is not None:
                        own = own.sub_(lift(mean[:, piece.targets].reshape(-1), pattern.at_target))
                    outward.append((own if mean is None else own.mul_(weight)).to(values.dtype))
                if factor is not None and factor.requires_grad:
                    outward.append((inner * weight).to(factor.dtype))
                wanted = [leaf for leaf in leaves if leaf.requires_grad]
                found = iter(torch.autograd.grad(ends, wanted, outward, allow_unused=True, materialize_grads=True))
                for whole, side in zip(grads, sides, strict=True):
                    if whole is not None:
                        part = piece.cut(whole[copies], side)
                        part.copy_(next(found)) if side in ("target", "entry") else part.add_(next(found))
            if grad_z is not None:
                pattern = ctx.whole.copies(len(z[copies]))
                _, _, t_ptr, t_index, _, t_back = pattern.both_ways_and_across
                weight = (kept[0] if len(kept) == 1 else torch.cat(kept)).index_select(0, t_back).to(wide)
                back = spmm_raw(down.reshape(-1, W), weight, None, [t_ptr, t_index])
                grad_z[copies] = back.view(grad_z[copies].shape)
        return None, None, None, None, None, grad_z, *grads


def _by_copies(pieces: list[Piece]) -> Iterator[tuple[slice, list[Piece]]]:
    for _, group in groupby(pieces, key=lambda piece: piece.copies.start):
        some = list(group)
        yield some[0].copies, some


def _plain(
    weigh: Weigh, softmax: bool, pieces: list[Piece], z: Tensor, tensors: Sequence[Tensor], sides: Sequence[Side]
) -> Tensor:
    """By operations that have any derivatives; all weights are held."""
    parts = []
    for copies, group in _by_copies(pieces):
        rows, local = z[copies].flatten(0, 1), [t[copies] for t in tensors]
        targets = []
        for piece in group:
            cuts = [piece.cut(t, side) for t, side in zip(local, sides, strict=True)]
            weight = weigh(piece, cuts).normalised(softmax, piece.pattern)
            targets.append(spmm(rows, weight.to(z.dtype), piece.pattern).unflatten(0, (len(z[copies]), -1)))
        parts.append(targets[0] if len(targets) == 1 else torch.cat(targets, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend(
    weigh: Weigh,
    softmax: bool,
    pieces: list[Piece],
    whole: Pattern,
    z: Tensor,
    tensors: Sequence[Tensor],
    sides: Sequence[Side],
) -> Tensor:
    r"""The sums :math:`y_n = \sum_{e: target(e) = n} w_e z_{source(e)}` of C copies, under weights that are computed.

    With one piece, what its gradient needs is kept. With several, none is: the gradient computes the weights again, so
    that nothing is held that is as long as C times the entries, but by derivatives of the gradient.

    Args:
        weigh: of a piece and its part of the tensors, the weights of its entries.
        softmax: whether these are scores.
        pieces: all copies, copy after copy, and of each all targets in order.
        whole: the pattern of a copy, M x N.
        z: (C, M, W).
        tensors: (C, ...) each.
        sides: what their second axis is: sources, targets, entries by target; or 'copy' for none of these.

    Returns:
        (C, N, W).
    """
    if len(pieces) > 1:
        y: Tensor = _Attend.apply(weigh, softmax, pieces, whole, sides, z, *tensors)
        return y
    pattern = pieces[0].pattern
    weight, W = weigh(pieces[0], tensors).normalised(softmax, pattern), z.shape[2]
    rows = z.reshape(z.shape[0] * z.shape[1], W)
    return spmm(rows, weight.to(z.dtype), pattern).view(z.shape[0], whole.N, W)
