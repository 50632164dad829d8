"""Weighted sums whose weights are computed piece by piece, and recomputed in the backward pass."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .multihead import inner_products, plain_attention, raw_attention, softmax, to_heads, to_rows, transposed_sums
from .op import Backward, Grads, acc_dtype, recorded
from .pattern import Pattern
from .segments import exponentials

Side = Literal["source", "target", "entry", "copy"]


class Piece(NamedTuple):
    """Some copies of a graph, or a range of targets of one copy, with all entries into them.

    copies, targets, entries: their ranges; pattern: of each of the c copies, M x n.
    """

    copies: slice
    targets: slice
    entries: slice
    pattern: Pattern

    def cut(self, t: Tensor, side: Side) -> Tensor:
        """The slice of a tensor (c, ...) of these copies that the piece reads."""
        if side == "target":
            return t[:, self.targets]
        return t[:, self.entries] if side == "entry" else t


class Weights(NamedTuple):
    """Weights at the entries of a piece, (c, E) by target: values, or scores of a softmax; times optional factors."""

    values: Tensor
    factor: Tensor | None

    def normalised(self, is_score: bool, pattern: Pattern) -> Tensor:
        """The weights, with the softmax over the entries of each target taken where values are scores."""
        weight = softmax(self.values, pattern.at_target) if is_score else self.values
        return weight if self.factor is None else weight * self.factor


Weigh = Callable[[Piece, Sequence[Tensor]], Weights]


class Pieces(NamedTuple):
    """How weighted sums of C copies are made.

    weigh: computes the weights of a piece's entries from its part of some tensors; normalised: whether these are scores
    of a softmax; pieces: all copies in order, and of each all targets in order; whole: the pattern of a copy, M x N;
    sides: the second axis of each tensor: 'source', 'target', 'entry' (by target), or 'copy' for none of these.
    """

    weigh: Weigh
    normalised: bool
    pieces: list[Piece]
    whole: Pattern
    sides: Sequence[Side]

    def by_copies(self) -> Iterator[tuple[slice, list[Piece]]]:
        """The pieces of each range of copies."""
        for _, group in groupby(self.pieces, key=lambda piece: piece.copies.start):
            some = list(group)
            yield some[0].copies, some

    def cut(self, piece: Piece, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What a piece reads of tensors of its copies."""
        return [piece.cut(t, side) for t, side in zip(tensors, self.sides, strict=True)]


def _attend(made: Pieces, z: Tensor, *tensors: Tensor) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """See `attend`. Nothing of the length of a piece is saved for the backward pass."""
    weigh, normalised, _, whole, _ = made
    C, _, W = z.shape
    y = z.new_empty(whole.N, C, W)  # copies side by side at each target, the layout of heads
    totals = torch.empty(whole.N, C, dtype=acc_dtype(z.dtype), device=z.device) if normalised else None
    for copies, group in made.by_copies():
        table = to_rows(z[copies]).to(acc_dtype(z.dtype)).contiguous()
        own_tensors = [_node_major(t[copies]) for t in tensors]
        for piece in group:
            parts = made.cut(piece, own_tensors)
            values, factor = weigh(piece, parts)
            owns_memory = all(values.untyped_storage()._cdata != t.untyped_storage()._cdata for t in parts)
            factors = None if factor is None else to_rows(factor)
            part, _, total = raw_attention(to_rows(values), factors, table, normalised, piece.pattern, owns_memory)
            y[piece.targets, copies] = part.view(part.shape[0], values.shape[0], W)
            if totals is not None and total is not None:
                totals[piece.targets, copies] = total
    return y.transpose(0, 1), (y if normalised else None, totals)


def _attend_backward(given: Backward) -> Grads:
    grad, (needs_z, *needs), (made,), (z, *tensors), (y, totals) = given
    weigh, _, _, whole, sides = made
    grad_z = z.new_empty(z.shape[1], z.shape[0], z.shape[2]).transpose(0, 1) if needs_z else None
    grads = [
        (torch.zeros_like(t) if side in ("source", "copy") else torch.empty_like(t)) if needed else None
        for t, side, needed in zip(tensors, sides, needs, strict=True)
    ]
    for copies, group in made.by_copies():
        z_part, mean_grad = z[copies].to(acc_dtype(z.dtype)), None
        c, z_rows = z_part.shape[0], to_rows(z_part).contiguous()
        scaled_grad = grad[copies].to(z_part.dtype)  # (c, N, W)
        if totals is not None:
            scaled_grad = scaled_grad / totals.t()[copies].unsqueeze(-1)
            mean_grad = to_rows((scaled_grad * y.transpose(0, 1)[copies]).sum(-1)).contiguous()  # (N, c), of <y, g>
        own_tensors = [_node_major(t[copies]) for t in tensors]
        weights = []
        for piece in group:
            pattern = piece.pattern
            parts = zip(made.cut(piece, own_tensors), needs, strict=True)
            leaves = [t.detach().requires_grad_(needed) for t, needed in parts]
            with torch.enable_grad():
                values, factor = weigh(piece, leaves)
            scores, factors = to_rows(values.detach()), None if factor is None else to_rows(factor.detach())
            weight = scores if mean_grad is None else exponentials(scores.contiguous(), pattern.at_target)
            if needs_z:
                weights.append(weight if factors is None else weight * factors)
            outputs = [t for t in (values, factor) if t is not None and t.requires_grad]
            if not outputs:
                continue
            products = inner_products(z_rows, to_rows(scaled_grad[:, piece.targets]), c, pattern)
            grad_outputs = []
            if values.requires_grad:
                grad_values = products if factors is None else products * factors
                if mean_grad is not None:
                    mean = mean_grad[piece.targets].index_select(0, pattern.row)
                    grad_values = grad_values.sub_(mean).mul_(weight)
                grad_outputs.append(grad_values.t().to(values.dtype))
            if factor is not None and factor.requires_grad:
                grad_outputs.append((products * weight).t().to(factor.dtype))
            inputs = [leaf for leaf in leaves if leaf.requires_grad]
            options = {"allow_unused": True, "materialize_grads": True}
            grad_inputs = iter(torch.autograd.grad(outputs, inputs, grad_outputs, **options))
            for total, side in zip(grads, sides, strict=True):
                if total is not None:
                    part = piece.cut(total[copies], side)
                    part.copy_(next(grad_inputs)) if side in ("target", "entry") else part.add_(next(grad_inputs))
        if grad_z is not None:
            weight = weights[0] if len(weights) == 1 else torch.cat(weights)
            grad_z[copies] = to_heads(transposed_sums(to_rows(scaled_grad), weight, whole), c)
    return grad_z, *grads


def _node_major(t: Tensor) -> Tensor:
    """The same tensor (c, G, ...) in memory of order (G, c, ...), so that gathers read consecutive numbers."""
    return t.transpose(0, 1).contiguous().transpose(0, 1)


def _plain(made: Pieces, z: Tensor, *tensors: Tensor) -> Tensor:
    """The same by differentiable torch operations, which store all weights."""
    parts = []
    for copies, group in made.by_copies():
        own_tensors, targets = [t[copies] for t in tensors], []
        for piece in group:
            values, factor = made.weigh(piece, made.cut(piece, own_tensors))
            targets.append(plain_attention(values, factor, z[copies], made.normalised, piece.pattern))
        parts.append(targets[0] if len(targets) == 1 else torch.cat(targets, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


_record = recorded(1, _attend, _attend_backward, _plain)


def attend(made: Pieces, z: Tensor, *tensors: Tensor) -> Tensor:
    r"""The sums :math:`y_n = \sum_{e: target(e) = n} w_e z_{source(e)}` of C copies, with computed weights w.

    Nothing of the length of the entries is stored: the backward pass computes the weights again, and only second
    derivatives hold them all. `attention` is faster where the entries are few enough to be stored. From z, (C, M, W),
    and tensors (C, ...) to (C, N, W).
    """
    return _record(made, z, *tensors)
