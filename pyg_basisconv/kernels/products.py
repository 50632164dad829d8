"""The two products of a sparse matrix: with a dense one, and sampled at its entries. Each is the other's derivative."""

import warnings
from typing import Any

import torch
from torch import Tensor

from .op import primitive
from .pattern import Pattern

# Up to this width torch's CSR product is the faster one on CPU, beyond it the embedding bag.
_NARROW = 8
_CHUNK = 1 << 22  # numbers held at a time where no vendor kernel applies

# torch announces once per process that its compressed sparse layout may change; users of this library chose neither
# the layout nor the announcement.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1))


def _spmm(
    x: Tensor,  # (M, W)
    weight: Tensor | None,  # (E,) by target
    ptr: Tensor,
    index: Tensor,
    back: Tensor | None,
    t_ptr: Tensor | None,
    t_index: Tensor | None,
    t_back: Tensor | None,
    t_weight: Tensor | None,
) -> Tensor:
    N = ptr.numel() - 1
    M, W = x.shape
    if not index.numel() or not W:
        return x.new_zeros(N, W)
    x = x.contiguous()
    if x.is_cuda:
        csr = W == 1  # wider ones are not summed in a fixed order by cuSPARSE
    else:
        csr = x.dtype == torch.float64 or (x.dtype == torch.float32 and W <= _NARROW)
    if csr:
        values = x.new_ones(index.numel()) if weight is None else weight
        return torch.sparse_csr_tensor(ptr, index, values, (N, M)) @ x
    # A weighted sparse-dense product is a weighted sum of embeddings: entries are the words, targets the bags.
    return torch._embedding_bag_forward_only(x, index, ptr, False, 0, False, weight, True, -1)[0]


def _spmm_fake(x: Tensor, weight: Tensor | None, ptr: Tensor, *_: Any) -> Tensor:
    return x.new_empty(ptr.numel() - 1, x.shape[1])


def _spmm_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *rest = inputs
    # x is only needed for the gradient of the weights: where they are fixed it is not kept alive.
    ctx.learns = weight is not None and ctx.needs_input_grad[1]
    ctx.save_for_backward(x if ctx.learns else None, weight, *rest)


def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, ptr, index, back, t_ptr, t_index, t_back, t_weight = ctx.saved_tensors
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        if t_weight is None and weight is not None:
            t_weight = weight.index_select(0, t_back)
        grad_x = spmm_raw(grad, t_weight, t_ptr, t_index, t_back, ptr, index, back, weight)
    if ctx.learns:
        grad_weight = sddmm_raw(x, grad, ptr, index, back, t_ptr, t_index, t_back)
    return grad_x, grad_weight, None, None, None, None, None, None, None


spmm_raw = primitive(
    "spmm(Tensor x, Tensor? weight, Tensor ptr, Tensor index, Tensor? back, Tensor? t_ptr, Tensor? t_index, "
    "Tensor? t_back, Tensor? t_weight) -> Tensor",
    _spmm,
    _spmm_fake,
    _spmm_context,
    _spmm_backward,
)


def spmm(x: Tensor, weight: Tensor | None, pattern: Pattern, t_weight: Tensor | None = None) -> Tensor:
    r"""Sparse-dense product :math:`y_n = \sum_{e: target(e) = n} weight_e \, x_{source(e)}`.

    Deterministic, differentiable in `x` and `weight` (twice), and nothing of size E x W is made, in either direction.

    Args:
        x: (M, W) dense.
        weight: (E,) in the order of `pattern.by_target`, or None for ones.
        pattern: where the entries are.
        t_weight: (E,) the same weights in the order of `pattern.by_source`, where they are fixed and at hand.

    Returns:
        (N, W), of the dtype of x.

    >>> pattern = Pattern(torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1]), 3, 2)
    >>> spmm(torch.tensor([[1.], [2.], [4.]]), None, pattern)
    tensor([[4.],
            [3.]])
    """
    ptr, index, _ = pattern.by_target
    learns = weight is not None and weight.requires_grad
    if not (torch.is_grad_enabled() and (learns or x.requires_grad)):
        return spmm_raw(x, weight, ptr, index, None, None, None, None, None)
    t_ptr, t_index, _ = pattern.by_source
    back = t_back = None
    if weight is not None and (learns or t_weight is None):
        back, t_back = pattern.target_to_source, pattern.source_to_target
    return spmm_raw(x, weight, ptr, index, back, t_ptr, t_index, t_back, None if learns else t_weight)


def _sddmm(
    x: Tensor,  # (M, W)
    y: Tensor,  # (N, W)
    ptr: Tensor,
    index: Tensor,
    back: Tensor | None,
    t_ptr: Tensor | None,
    t_index: Tensor | None,
    t_back: Tensor | None,
) -> Tensor:
    E, W = index.numel(), x.shape[1]
    if not E or not W:
        return x.new_zeros(E)
    native = x.is_cuda or torch.backends.mkl.is_available()
    if native and x.dtype in (torch.float32, torch.float64):
        zeros = torch.zeros(E, dtype=x.dtype, device=x.device)
        pattern = torch.sparse_csr_tensor(ptr, index, zeros, (y.shape[0], x.shape[0]))
        return torch.sparse.sampled_addmm(pattern, y.contiguous(), x.contiguous().t(), beta=0.0).values()
    row = torch.repeat_interleave(ptr.diff(), output_size=E)
    step = max(1, _CHUNK // W)
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    parts = [
        (x.index_select(0, i).to(wide) * y.index_select(0, r).to(wide)).sum(-1)
        for i, r in zip(index.split(step), row.split(step), strict=True)
    ]
    return torch.cat(parts).to(x.dtype)


def _sddmm_fake(x: Tensor, y: Tensor, ptr: Tensor, index: Tensor, *_: Any) -> Tensor:
    return x.new_empty(index.numel())


def _sddmm_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _sddmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, y, ptr, index, back, t_ptr, t_index, t_back = ctx.saved_tensors
    grad_x = grad_y = None
    if ctx.needs_input_grad[0]:
        t_grad = grad.index_select(0, t_back)
        grad_x = spmm_raw(y, t_grad, t_ptr, t_index, t_back, ptr, index, back, None)
    if ctx.needs_input_grad[1]:
        grad_y = spmm_raw(x, grad, ptr, index, back, t_ptr, t_index, t_back, None)
    return grad_x, grad_y, None, None, None, None, None, None


sddmm_raw = primitive(
    "sddmm(Tensor x, Tensor y, Tensor ptr, Tensor index, Tensor? back, Tensor? t_ptr, Tensor? t_index, "
    "Tensor? t_back) -> Tensor",
    _sddmm,
    _sddmm_fake,
    _sddmm_context,
    _sddmm_backward,
)


def sddmm(x: Tensor, y: Tensor, pattern: Pattern) -> Tensor:
    r"""Sampled product :math:`s_e = \langle x_{source(e)}, y_{target(e)} \rangle`, in the order of `pattern.by_target`.

    Args:
        x: (M, W).
        y: (N, W).
        pattern: where to sample.

    Returns:
        (E,), of the dtype of x.

    >>> pattern = Pattern(torch.tensor([1, 0]), torch.tensor([0, 0]), 2, 1)
    >>> sddmm(torch.tensor([[1.], [2.]]), torch.tensor([[3.]]), pattern)
    tensor([6., 3.])
    """
    ptr, index, _ = pattern.by_target
    t_ptr, t_index, _ = pattern.by_source
    return sddmm_raw(x, y, ptr, index, pattern.target_to_source, t_ptr, t_index, pattern.source_to_target)
