"""Products of K matrices on one pattern, with their weights at an entry side by side, in one pass over the entries.

Everything is node-major: what the members have at a node stands side by side in its row. Weights are (E, K), and
entries are sorted by target.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import reject
from ..portable import few, with_plain
from .dense import Products, matmul, needs_plain_matmul, times_diagonals
from .onepass import Kernel, kernel
from .op import PLAIN, Backward, Grads, compilable, derivative, recorded
from .pattern import Pattern, extremes, select
from .products import Arrays, plain_spmm, sddmm_raw, spmm_raw

_CALL = struct.Struct("=12q")  # `SharedCall` in the kernels
_HELD = 1 << 20  # numbers of all products that are made at once; of more, those of some targets at a time
_RUN = 1 << 18  # numbers of those of some targets, which stay in a cache
_TOGETHER = 8  # members that are made at a time where they are read one by one

# `back` in what follows says that the entries are read by source: the matrices are the transposed ones.


def _read(arrays: Arrays, back: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """The pointers, the other ends, and where the weights of entries are, None for in their order."""
    return (arrays[2], arrays[3], arrays[5]) if back else (arrays[0], arrays[1], None)


def _compiled(
    name: str, K: int, W: int, y: Tensor, read: Any, x: Tensor, weight: Tensor | None, own: Tensor | None = None
) -> Tensor | None:
    """The result of a compiled kernel, written to y; None where there is none for these tensors. read: see `_read`."""
    x, *others = x.contiguous(), *(None if t is None else t.contiguous() for t in (weight, own))
    if not _takes(read, x, *others):
        return None
    _run(name, (x.shape[0], K, W), (*read, x, *others, y))
    return y


def _takes(read: Sequence[Tensor | None], x: Tensor, *others: Tensor | None) -> bool:
    """Whether the compiled kernels take these."""
    if kernel("shared_expand", x.dtype) is None or not compilable(x, *others):
        return False
    return all(t is None or t.dtype == torch.int32 for t in read)


def _run(name: str, sizes: tuple[int, int, int], tensors: tuple[Tensor | None, ...]) -> None:
    """Runs a kernel. sizes: M, K, W; tensors: ptr, index, place, x, weight, own and y, of which some may be None."""
    (M, *widths), (ptr, index, *_, y) = sizes, cast(tuple[Tensor, ...], tensors)
    run = cast(Kernel, kernel(f"shared_{name}", y.dtype))
    addresses = (0 if t is None else t.data_ptr() for t in tensors)
    if run(_CALL.pack(ptr.numel() - 1, M, index.numel(), *widths, *addresses)):
        reject("index", f"integers from 0 to {M - 1}", extremes(index), "correct the edges")


def _columns(weight: Tensor, place: Tensor | None) -> tuple[Tensor, ...]:
    """The weights of each member, in the order in which entries are read."""
    return select(weight, place).t().contiguous().unbind(0)


def _expand(back: bool, arrays: Arrays, x: Tensor, weight: Tensor) -> tuple[Tensor, tuple[()]]:
    K, W = weight.shape[1], x.shape[1]
    y = _compiled("expand", K, W, x.new_empty(_rows(arrays, back), K * W), _read(arrays, back), x, weight)
    return _expand_each(back, arrays, x, weight) if y is None else y, ()


def _expand_each(back: bool, arrays: Arrays, x: Tensor, weight: Tensor) -> Tensor:
    """The same member by member; this and the two below are differentiable in the portable path."""
    ptr, index, place = _read(arrays, back)
    return torch.cat([spmm_raw(x, w, None, [ptr, index]) for w in _columns(weight, place)], 1)


def _combine(back: bool, arrays: Arrays, z: Tensor, weight: Tensor) -> tuple[Tensor, tuple[()]]:
    K, W = weight.shape[1], z.shape[1] // weight.shape[1]
    y = _compiled("combine", K, W, z.new_empty(_rows(arrays, back), W), _read(arrays, back), z, weight)
    return _combine_each(back, arrays, z, weight) if y is None else y, ()


def _combine_each(back: bool, arrays: Arrays, z: Tensor, weight: Tensor) -> Tensor:
    (ptr, index, place), K = _read(arrays, back), weight.shape[1]
    members = z.reshape(z.shape[0], K, z.shape[1] // K).unbind(1)  # `unflatten` has no rule for batches of gradients
    pairs = zip(members, _columns(weight, place), strict=True)
    return torch.stack([spmm_raw(z_k, w, None, [ptr, index]) for z_k, w in pairs]).sum(0)


def _inner(K: int, back: bool, arrays: Arrays, x: Tensor, own: Tensor) -> tuple[Tensor, tuple[()]]:
    y = _compiled("inner", K, x.shape[1], x.new_empty(len(arrays[1]), K), _read(arrays, back), x, None, own)
    return _inner_each(K, back, arrays, x, own) if y is None else y, ()


def _inner_each(K: int, back: bool, arrays: Arrays, x: Tensor, own: Tensor) -> Tensor:
    ptr, index, place = _read(arrays, back)
    members = own.reshape(own.shape[0], K, x.shape[1]).unbind(1)
    found = torch.stack([sddmm_raw([ptr, index], x, o) for o in members], 1)
    return found if place is None else found.index_select(0, arrays[4])


def _plain_expand(x: Tensor, weight: Tensor, pattern: Pattern) -> Tensor:
    source, target = pattern.ends
    return torch.cat([plain_spmm(x, w, source, target, pattern.N) for w in weight.unbind(1)], 1)


def _plain_combine(z: Tensor, weight: Tensor, pattern: Pattern) -> Tensor:
    members = z.unflatten(1, (weight.shape[1], z.shape[1] // weight.shape[1])).unbind(1)
    pairs, (source, target) = zip(members, weight.unbind(1), strict=True), pattern.ends
    return torch.stack([plain_spmm(z_k, w, source, target, pattern.N) for z_k, w in pairs]).sum(0)


def _expand_backward(given: Backward) -> Grads:
    grad, needs, (back, arrays), (x, weight), _ = given
    d_x = combine_raw(not back, arrays, grad, weight) if needs[0] else None
    return d_x, inner_raw(weight.shape[1], back, arrays, x, grad) if needs[1] else None


def _combine_backward(given: Backward) -> Grads:
    grad, needs, (back, arrays), (z, weight), _ = given
    d_z = expand_raw(not back, arrays, grad, weight) if needs[0] else None
    return d_z, inner_raw(weight.shape[1], not back, arrays, grad, z) if needs[1] else None


def _inner_backward(given: Backward) -> Grads:
    grad, needs, (_, back, arrays), (x, own), _ = given
    d_x = combine_raw(not back, arrays, own, grad) if needs[0] else None
    return d_x, expand_raw(back, arrays, x, grad) if needs[1] else None


def _rows(arrays: Arrays, back: bool) -> int:
    return arrays[2 if back else 0].shape[0] - 1


def _all_at_once(x: Tensor, K: int, N: int) -> bool:
    """Whether K products with N rows are so few numbers that all are held at once."""
    return few(K * N * x.shape[1], _HELD)


def runs_of(x: Tensor, K: int, N: int) -> int | None:
    """How many numbers of the products are held at once where compiled kernels make those of some targets at a time."""
    if not x.is_cpu or kernel("shared_expand", x.dtype) is None or needs_plain_matmul(x):
        return None
    return None if _all_at_once(x, K, N) else _RUN


def runs_on(device: torch.device) -> bool:
    """Whether there are compiled kernels for a device, for single and double precision."""
    return device.type == "cpu" and kernel("shared_expand", torch.float32) is not None


expand_raw = recorded(2, _expand, _expand_backward, _expand_each, nested=True)
combine_raw = recorded(2, _combine, _combine_backward, _combine_each, nested=True)
inner_raw = recorded(3, _inner, _inner_backward, _inner_each, nested=True)


def _arrays(pattern: Pattern, *tensors: Tensor) -> Arrays:
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return pattern.both_ways_and_across if learns else pattern.one_way


@with_plain(_plain_expand)
def expand(x: Tensor, weight: Tensor, pattern: Pattern) -> Tensor:
    r"""All products :math:`y_{nk} = \sum_{e: target(e) = n} weight_{ek} \, x_{source(e)}`.

    Deterministic, and differentiable in `x` and `weight` any number of times. (M, W) -> (N, K W), the members side by
    side, with weights (E, K) in the order of `pattern.by_target`.

    >>> pattern = Pattern(torch.tensor([0, 1]), torch.tensor([0, 0]), 2, 1)
    >>> expand(torch.tensor([[1.], [2.]]), torch.tensor([[1., 0.], [1., 10.]]), pattern)
    tensor([[ 3., 20.]])
    """
    return expand_raw(False, _arrays(pattern, x, weight), x, weight)


@with_plain(_plain_combine)
def combine(z: Tensor, weight: Tensor, pattern: Pattern) -> Tensor:
    r"""The sum of all products, :math:`y_n = \sum_{e: target(e) = n} \sum_k weight_{ek} \, z_{source(e), k}`.

    As `expand`, but z is (M, K W), the members side by side, and y (N, W).

    >>> pattern = Pattern(torch.tensor([0, 1]), torch.tensor([0, 0]), 2, 1)
    >>> combine(torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([[1., 0.], [1., 10.]]), pattern)
    tensor([[44.]])
    """
    return combine_raw(False, _arrays(pattern, z, weight), z, weight)


class Expanded(Products):
    """The products of `expand`, (N, W) each, which are made where they are read."""

    def __init__(self, x: Tensor, weight: Tensor, pattern: Pattern) -> None:
        self.x, self.weight, self.pattern = x, weight, pattern

    def __len__(self) -> int:
        return self.weight.shape[1]

    def __iter__(self) -> Iterator[Tensor]:
        # Where nothing is saved for a gradient, a few are made at a time.
        all_of_them = torch.is_grad_enabled() or self._are_few
        for weight in self.weight.split(len(self) if all_of_them else _TOGETHER, 1):
            rows = expand(self.x, weight, self.pattern)
            yield from rows.unflatten(1, (weight.shape[1], self.x.shape[1])).unbind(1)

    @property
    def _are_few(self) -> bool:
        return _all_at_once(self.x, len(self), self.pattern.N)

    def matmul(self, theta: Tensor) -> Tensor:
        y = self._in_runs(theta)
        return matmul(expand(self.x, self.weight, self.pattern), theta.flatten(0, 1)) if y is None else y

    def times_diagonals(self, diagonals: Tensor) -> Tensor:
        y = self._in_runs(diagonals)
        return times_diagonals(iter(self), diagonals) if y is None else y

    def _in_runs(self, theta: Tensor) -> Tensor | None:
        """The sum by matrices, (K, W, Q), or diagonals, (K, W), where compiled kernels make the products of some
        targets at a time; None where they make few, or do not take them.
        """
        if self._are_few or theta.dtype != self.x.dtype or type(theta) not in PLAIN:
            return None
        x, weight, pattern = self.x.contiguous(), self.weight.contiguous(), self.pattern
        if not _takes(pattern.one_way, x, weight):
            return None
        return _record_expand_matmul(_arrays(pattern, x, weight), x, weight, theta)


def _runs(arrays: Arrays, width: int) -> Iterator[tuple[slice, Tensor]]:
    """The targets, some at a time, and their pointers."""
    ptr = arrays[0]
    step, N = max(1, _RUN // width), ptr.numel() - 1
    return ((slice(n, min(N, n + step)), ptr[n : n + step + 1]) for n in range(0, N, step))


def _expand_matmul(arrays: Arrays, x: Tensor, weight: Tensor, theta: Tensor) -> tuple[Tensor, tuple[()]]:
    """The products of some targets at a time, times theta, (K, W, Q), or diagonals, (K, W): (N, Q), or (N, W).

    The backward pass makes them again.
    """
    (M, W), K = x.shape, len(theta)
    y = x.new_empty(arrays[0].numel() - 1, theta.shape[-1])
    for targets, ptr in _runs(arrays, K * W):
        u = x.new_empty(ptr.numel() - 1, K * W)
        _run("expand", (M, K, W), (ptr, arrays[1], None, x, weight, None, u))
        if theta.dim() == 2:
            torch.sum(u.view(-1, K, W) * theta, 1, out=y[targets])
        else:
            torch.mm(u, theta.flatten(0, 1), out=y[targets])
    return y, ()


def _expand_matmul_backward(given: Backward) -> Grads:
    grad, (needs_x, needs_weight, needs_theta), (arrays,), (x, weight, theta), _ = given
    grad = grad.contiguous()
    if not _takes(arrays[:2], grad):
        return derivative(_plain_expand_matmul, (arrays, x, weight, theta), grad)[1:]
    (M, W), K, diagonal = x.shape, len(theta), theta.dim() == 2
    sizes, index = (M, K, W), arrays[1]
    d_x = torch.zeros_like(x) if needs_x else None
    d_weight = torch.empty_like(weight) if needs_weight else None
    d_theta = theta.new_zeros((K, W) if diagonal else (theta.shape[2], K * W)) if needs_theta else None
    for targets, ptr in _runs(arrays, K * W):
        here = grad[targets]
        u = x.new_empty(len(here), K * W)
        if d_theta is not None:
            _run("expand", sizes, (ptr, index, None, x, weight, None, u))
            if diagonal:
                d_theta += (u.view(-1, K, W) * here.unsqueeze(1)).sum(0)
            else:
                d_theta.addmm_(here.t(), u)
        if needs_x or needs_weight:
            if diagonal:
                torch.mul(here.unsqueeze(1), theta, out=u.view(-1, K, W))
            else:
                torch.mm(here, theta.flatten(0, 1).t(), out=u)
        if d_weight is not None:
            _run("inner", sizes, (ptr, index, None, x, None, u, d_weight))
        if d_x is not None:
            _run("scatter", sizes, (ptr, index, None, None, weight, u, d_x))
    if d_theta is not None and not diagonal:
        d_theta = d_theta.view(-1, K, W).permute(1, 2, 0)
    return d_x, d_weight, d_theta


def _plain_expand_matmul(arrays: Arrays, x: Tensor, weight: Tensor, theta: Tensor) -> Tensor:
    u = expand_raw(False, arrays, x, weight)
    if theta.dim() == 2:
        return (u.reshape(-1, *theta.shape) * theta).sum(1)
    return u @ theta.flatten(0, 1)


_record_expand_matmul = recorded(1, _expand_matmul, _expand_matmul_backward, _plain_expand_matmul)
