"""Scores of a hidden layer at the entries of a pattern, in chunks: nothing of size E x width is ever stored."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from .activations import Activation
from .multihead import block_columns, gather_sums, segment_sums
from .op import Backward, Grads, recorded
from .pattern import Pattern, split_groups

_CHUNK = 1 << 20  # numbers per chunk


def _chunks(pattern: Pattern, width: int) -> Iterator[tuple[slice, slice]]:
    """Ranges of targets and of the entries into them, in chunks of about `_CHUNK` numbers."""
    if pattern.E * width <= _CHUNK:
        if pattern.E:
            yield slice(0, pattern.N), slice(0, pattern.E)
        return
    start = 0
    for first, last, end in split_groups(pattern.by_target.ptr, max(1, _CHUNK // max(1, width))):
        if end > start:
            yield slice(first, last), slice(start, end)
        start = end


def _hidden(activation: Activation, pattern: Pattern, heads: int, *tensors: Tensor | None) -> tuple[Tensor, tuple[()]]:
    source, target, edge, weight, out = tensors
    like = next(t for t in (source, target, edge) if t is not None)
    last, parts = None if out is None else block_columns(out).t(), []
    for _, e in _chunks(pattern, _hidden_width(heads, edge, out)):
        v = activation(_preactivation(pattern, e, source, target, edge, weight))
        if last is None:
            found = (v.view(v.shape[0], heads, -1) * cast(Tensor, edge)[e].unsqueeze(1)).sum(-1)  # (c, H)
        else:
            found = (last @ v.t()).t()
        parts.append(found.to(like.dtype))  # autocast narrows products
    return (parts[0] if len(parts) == 1 else torch.cat(parts) if parts else like.new_empty(0, heads)).t(), ()


def _hidden_backward(given: Backward) -> Grads:
    grad, needs, (activation, pattern, H), (source, target, edge, weight, out), _ = given  # grad is (H, E)
    width, ptr = _hidden_width(H, edge, out), pattern.by_target.ptr
    last = None if out is None else block_columns(out)
    d_source, d_target, d_edge, d_weight, d_last = (
        torch.zeros_like(t) if t is not None and needed else None
        for t, needed in zip((source, target, edge, weight, last), needs, strict=False)
    )
    for n, e in _chunks(pattern, width):
        u, d = _preactivation(pattern, e, source, target, edge, weight), grad[:, e].t()  # (c, H D), (c, H)
        dv = (d.unsqueeze(-1) * edge[e].unsqueeze(1)).flatten(1) if last is None else d @ last.t()
        v, du = _activate_with_grad(activation, u, dv)
        if d_last is not None:
            d_last += v.t() @ d
        if d_source is not None:
            _add_to_sources(d_source, du, pattern, e)
        if d_target is not None:
            d_target[n] = segment_sums(du, ptr[n.start : n.stop + 1] - e.start)
        if d_edge is not None:
            if weight is not None:
                d_edge[e] += du @ weight.t()
            if last is None:
                d_edge[e] += (v.view(*d.shape, -1) * d.unsqueeze(-1)).sum(1)
        if d_weight is not None:
            d_weight += edge[e].t() @ du
    if d_last is not None:
        d_last = d_last.view(*out.shape, H).diagonal(dim1=0, dim2=2).t()
    return d_source, d_target, d_edge, d_weight, d_last


def _add_to_sources(total: Tensor, rows: Tensor, pattern: Pattern, entries: slice) -> None:
    """Adds the rows of some entries, or of all, to those of their sources, in a fixed order."""
    source, rows = pattern.by_target.other[entries], rows.to(total.dtype)
    if len(rows) == pattern.E:
        _, _, t_ptr, _, _, t_back = pattern.both_ways_and_across
        total += gather_sums(rows, t_back, t_ptr)
    elif rows.is_cuda:
        total.index_put_((source.long(),), rows, accumulate=True)
    else:
        total.index_add_(0, source, rows)


def _plain(activation: Activation, pattern: Pattern, heads: int, *tensors: Tensor | None) -> Tensor:
    """The same by differentiable torch operations, which store the hidden values of all entries."""
    *ends, edge, weight, out = tensors
    terms = [rows.index_select(0, end) for rows, end in zip(ends, pattern.ends, strict=True) if rows is not None]
    if edge is not None and weight is not None:
        terms.append(edge @ weight)
    v = activation(sum(terms[1:], terms[0])).unflatten(-1, (heads, -1))  # (E, H, D)
    return (v * (cast(Tensor, edge).unsqueeze(1) if out is None else out)).sum(-1).t()


def _hidden_width(heads: int, edge: Tensor | None, out: Tensor | None) -> int:
    if out is not None:
        return out.numel()
    assert edge is not None
    return heads * edge.shape[1]


def _preactivation(
    pattern: Pattern,
    e: slice,
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    weight: Tensor | None,
) -> Tensor:
    """The input of the activation at some entries, (c, H D)."""
    u: Tensor | None = None
    for rows, end in zip((source, target), pattern.ends, strict=True):
        if rows is not None:
            found = rows.index_select(0, end[e])
            u = found if u is None else u.add_(found)
    if edge is not None and weight is not None:
        u = edge[e] @ weight if u is None else u.addmm_(edge[e], weight)
    assert u is not None
    return u


def _activate_with_grad(activation: Activation, u: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden values, and the gradient of the activation's input."""
    with torch.enable_grad():
        u.requires_grad_()
        v = activation(u)
    (du,) = torch.autograd.grad(v, u, dv)
    return v.detach(), du


_record = recorded(3, _hidden, _hidden_backward, _plain)


def hidden(activation: Activation, pattern: Pattern, heads: int, *tensors: Tensor | None) -> Tensor:
    r"""Scores of a perceptron: :math:`s_{he} = a_h \cdot act(l_{h,source(e)} + r_{h,target(e)} + f_e U_h)`.

    Deterministic, and differentiable in all tensors. The backward pass computes the hidden values again, chunk by
    chunk; second derivatives store them all.

    The tensors are l, (M, H D); r, (N, H D); f, (E, R) by target; and U, (R, H D), or None; a, (H, D), or None for f
    itself, of width D = R; the result is (H, E), by target.

    >>> pattern = Pattern(torch.tensor([0, 1]), torch.tensor([0, 0]), 2, 1)
    >>> l, r, a = torch.tensor([[1.], [-3.]]), torch.tensor([[1.]]), torch.tensor([[10.]])
    >>> hidden(torch.relu, pattern, 1, l, r, None, None, a)
    tensor([[20.,  0.]])
    """
    return _record(activation, pattern, heads, *tensors)
