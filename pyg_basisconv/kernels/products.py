"""The two products of a sparse matrix: with a dense one, and sampled at its entries. Each is the other's derivative."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..backend import KERNELS, TRITON, starts_triton
from ..errors import reject
from ..portable import portable, with_plain
from .op import PLAIN, Backward, Grads, acc_dtype, raw_apply, recorded
from .pattern import Pattern, extremes

_NARROW = 8  # columns of x up to which torch's CSR product is faster than its sums of embeddings
_ONE_VECTOR = (1, 2, 4, 8, 16)  # columns of x that the compiled kernel takes at once
FEW = 1 << 12  # entries up to which the cost of a product is mostly its start
_CHUNK = 1 << 22  # numbers per chunk where torch has no kernel

# torch warns once per process that its compressed sparse layout is in beta. The layout is internal here, so the
# warning would only puzzle users.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1), device="cpu")


# The index tensors of a pattern: [ptr, index] by target; with gradients also [t_ptr, t_index] by source; if the
# weights require a gradient, also [back, t_back], the positions of each form in the other.
Arrays = list[Tensor]


def _transposed(arrays: Arrays) -> Arrays:
    ptr, index, t_ptr, t_index, *backs = arrays
    return [t_ptr, t_index, ptr, index, *reversed(backs)]


def in_short_lists(W: int, dtype: torch.dtype) -> bool:
    """Whether the compiled kernel, if there is one, multiplies W columns of x by few entries."""
    return dtype is torch.float64 or (dtype is torch.float32 and (W in _ONE_VECTOR or W % 4 == 0))


def spmm_rows(x: Tensor, weight: Tensor | None, ptr: Tensor, index: Tensor, *, split: int = 1, join: int = 1) -> Tensor:
    """`spmm` of compressed entries, without autograd: (M, W) -> (N, W).

    Each row of x is first split into so many, and of the result so many rows are joined, each time at no cost.
    """
    M, W = x.shape
    M, W, N, E, dtype = M * split, W // split, ptr.numel() - 1, index.numel(), x.dtype
    if not E or not W:
        return x.new_zeros(N // join, W * join)
    x = x.resolve_neg().contiguous()
    if weight is not None:
        weight = weight.resolve_neg()
        if weight.numel() != E:
            reject("weight", f"a number for each of {E} entries", weight.numel(), "pass those of these entries")
    in_triton = TRITON and _in_triton(x, weight, ptr, index)
    # In single precision, torch's sums of embeddings are quicker on large graphs with rows of more than one vector.
    quick = dtype is torch.float64 or (dtype is torch.float32 and (W in _ONE_VECTOR or (W % 4 == 0 and E <= FEW)))
    if quick and not in_triton:
        plain = type(x) in PLAIN and x.is_cpu and ptr.is_cpu and index.is_cpu
        # `is_watched`, without its call
        plain = plain and not (torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state())
        if weight is not None:
            plain = plain and weight.is_cpu and type(weight) in PLAIN
            plain = plain and weight.dtype is dtype and weight.is_contiguous()
        if plain and KERNELS is not None and ptr.dtype is index.dtype is torch.int32:
            ptr, index, y = ptr.contiguous(), index.contiguous(), x.new_empty(N // join, W * join)
            by = 0 if weight is None else weight.data_ptr()
            addresses = x.data_ptr(), by, ptr.data_ptr(), index.data_ptr(), y.data_ptr()
            if not KERNELS.spmm(*addresses, M, W, N, E, x.itemsize):
                expected = f"pointers to {E} entries, indices from 0 to {M - 1}"
                reject("index", expected, extremes(index), "correct the edges")
            return y
    multiplied = _by_triton if in_triton else _by_torch
    y = multiplied(x if split == 1 else x.view(M, W), weight, ptr, index)
    return y if join == 1 else y.view(N // join, W * join)


def _by_triton(x: Tensor, weight: Tensor | None, ptr: Tensor, index: Tensor) -> Tensor:
    from .triton.products import spmm as by_triton

    return by_triton(x, weight, ptr, index)


def _by_torch(x: Tensor, weight: Tensor | None, ptr: Tensor, index: Tensor) -> Tensor:
    """The same by operations of torch; there are entries and columns."""
    (M, W), E, dtype = x.shape, index.numel(), x.dtype
    # On the CPU torch's CSR product is faster for many narrow rows.
    csr = dtype == torch.float64 or (E > FEW and W <= _NARROW and dtype == torch.float32)
    # On CUDA it sums in no fixed order, and autocast would treat it as a dense product.
    if csr and not x.is_cuda and not torch.is_autocast_enabled(x.device.type):
        values = x.new_ones(E) if weight is None else weight
        size = (ptr.numel() - 1, M)
        return torch.sparse_csr_tensor(ptr, index, values, size, device=x.device, check_invariants=False) @ x
    # A sparse-dense product is a weighted sum of embeddings: the sources are the words, the targets the bags.
    return torch._embedding_bag_forward_only(x, index, ptr, False, 0, False, weight, True, -1)[0]


def _in_triton(x: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernels in Triton take these: plain tensors of floating point, outside of dispatch modes."""
    if not starts_triton(x.device) or not x.is_floating_point():
        return False
    return all(t is None or (type(t) in PLAIN and t.device == x.device and not t.is_neg()) for t in (x, *others))


class _Spmm(torch.autograd.Function):
    """See `spmm_raw`; x is only saved for the gradient of weights that learn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, t_weight: Tensor | None, arrays: Arrays) -> Tensor:
        ctx.arrays, ctx.learns = arrays, weight is not None and ctx.needs_input_grad[1]
        if ctx.learns:
            ctx.save_for_backward(x, weight)
        else:
            ctx.fixed = weight, t_weight
        return spmm_rows(x, weight, *arrays[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, t_weight = (*ctx.saved_tensors, None) if ctx.learns else (None, *ctx.fixed)
        grad_x = None
        if ctx.needs_input_grad[0]:
            if t_weight is None and weight is not None:
                t_weight = weight.index_select(0, ctx.arrays[5])
            grad_x = spmm_raw(grad, t_weight, weight, _transposed(ctx.arrays))
        return grad_x, sddmm_raw(ctx.arrays, x, grad) if ctx.learns else None, None, None


def rows_of(ptr: Tensor, index: Tensor) -> Tensor:
    """(E,) the group of each entry."""
    return torch.repeat_interleave(ptr.diff(), output_size=index.numel())


def plain_spmm(x: Tensor, weight: Tensor | None, source: Tensor, target: Tensor, N: int) -> Tensor:
    """`spmm` of entries in any order by differentiable torch operations, which store the rows of all entries."""
    rows = x.index_select(0, source).to(acc_dtype(x.dtype))
    if weight is not None:
        rows = rows * weight.unsqueeze(1)
    return rows.new_zeros(N, x.shape[1]).index_add(0, target, rows).to(x.dtype)


def plain_sddmm(x: Tensor, y: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """`sddmm` by differentiable torch operations; see `plain_spmm`."""
    return (x.index_select(0, source).to(acc_dtype(x.dtype)) * y.index_select(0, target)).sum(-1).to(x.dtype)


_record_spmm: Callable[..., Tensor] = raw_apply(_Spmm)


@with_plain(lambda x, weight, _, a: plain_spmm(x, weight, a[1], rows_of(*a[:2]), a[0].numel() - 1))
def spmm_raw(x: Tensor, weight: Tensor | None, t_weight: Tensor | None, arrays: Arrays) -> Tensor:
    """`spmm` with the arrays of a pattern."""
    if torch.is_grad_enabled():
        return _record_spmm(x, weight, t_weight, arrays)
    return spmm_rows(x, weight, *arrays[:2])


def spmm(x: Tensor, weight: Tensor | None, pattern: Pattern, t_weight: Tensor | None = None) -> Tensor:
    r"""Sparse-dense product :math:`y_n = \sum_{e: target(e) = n} weight_e \, x_{source(e)}`.

    (M, W) -> (N, W), in the dtype of x. Deterministic, twice differentiable in `x` and `weight`, and without arrays of
    size E x W, forward and backward. The weights, (E,), or None for ones, are in the order of `pattern.by_target`; if
    they are constants, `t_weight` may have them in that of `pattern.by_source`.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> spmm(torch.tensor([[1.], [2.], [4.]]), None, pattern)
    tensor([[4.],
            [3.]])
    """
    if x.size(0) != pattern.M:
        reject("x", f"{pattern.M} rows, one for each source", x.size(0), "pass the features of this very graph")
    if portable():
        return plain_spmm(x, weight, *pattern.ends, pattern.N)
    learns = weight is not None and weight.requires_grad
    if not (torch.is_grad_enabled() and (learns or x.requires_grad)):
        return spmm_raw(x, weight, None, pattern.one_way)
    if learns:
        return spmm_raw(x, weight, None, pattern.both_ways_and_across)
    if t_weight is None and weight is not None:
        return spmm_raw(x, weight, None, pattern.both_ways_and_across)
    return spmm_raw(x, weight, t_weight, pattern.both_ways)


def sddmm_rows(x: Tensor, y: Tensor, arrays: Arrays) -> Tensor:
    """`sddmm` with the arrays of a pattern, without autograd."""
    ptr, index = arrays[:2]
    E, W = index.numel(), x.shape[1]
    if not E or not W:
        return x.new_zeros(E)
    if _in_triton(x, y, *arrays):
        from .triton.products import sddmm as by_triton

        return by_triton(x, y, ptr, index)
    native = (x.is_cuda or torch.backends.mkl.is_available()) and x.dtype in (torch.float32, torch.float64)
    if native and x.shape[0] * y.shape[0] >= E:  # torch refuses more entries than M N
        # Written into its own input, which torch would copy otherwise; zeros, as torch reads it even with beta = 0.
        values, size = x.new_zeros(E), (y.shape[0], x.shape[0])
        sampled = torch.sparse_csr_tensor(ptr, index, values, size, device=x.device, check_invariants=False)
        torch.sparse.sampled_addmm(sampled, y.contiguous(), x.contiguous().t(), beta=0.0, out=sampled)
        return values
    row = rows_of(ptr, index)
    step = max(1, _CHUNK // W)
    parts = [plain_sddmm(x, y, i, r) for i, r in zip(index.split(step), row.split(step), strict=True)]
    return torch.cat(parts)


def _sddmm_backward(given: Backward) -> Grads:
    grad, needs, (arrays,), (x, y), _ = given
    grad_x = grad_y = None
    if needs[0]:
        grad_x = spmm_raw(y, grad.index_select(0, arrays[5]), grad, _transposed(arrays))
    if needs[1]:
        grad_y = spmm_raw(x, grad, None, arrays)
    return grad_x, grad_y


sddmm_raw = recorded(
    1,
    lambda arrays, x, y: (sddmm_rows(x, y, arrays), ()),
    _sddmm_backward,
    lambda arrays, x, y: plain_sddmm(x, y, arrays[1], rows_of(*arrays[:2])),
    nested=True,
)


@with_plain(lambda x, y, pattern: plain_sddmm(x, y, *pattern.ends))
def sddmm(x: Tensor, y: Tensor, pattern: Pattern) -> Tensor:
    r"""Sampled product :math:`s_e = \langle x_{source(e)}, y_{target(e)} \rangle`, in the order of `pattern.by_target`.

    (M, W), (N, W) -> (E,), in the dtype of x.

    >>> pattern = Pattern(torch.tensor([1, 0]), torch.tensor([0, 0]), 2, 1)
    >>> sddmm(torch.tensor([[1.], [2.]]), torch.tensor([[3.]]), pattern)
    tensor([6., 3.])
    """
    return sddmm_raw(pattern.both_ways_and_across, x, y)
