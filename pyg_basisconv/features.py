"""Checks the argument x of a call: a tensor, sparse or dense, or a pair (x_src, x_dst)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.parameter import UninitializedParameter

from .basis import Basis, BoundBasis
from .errors import reject, shape_or_type
from .kernels.op import autocasting
from .layouts import check_form
from .theta import Theta

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def read_features(
    x: Any, M: int | None, N: int | None, found: int | None, theta: Theta, reads_target: bool
) -> tuple[Tensor, int, int, int | None]:
    """Checks the features of a call. M, N: of the user's `size`; found: N as the edges say it, used if neither x nor
    `size` does; reads_target: whether the basis reads the target's own features.

    Returns the rows that the basis reads, M, N, and the row of the first target's own features.
    """
    if not isinstance(x, tuple | list):
        check_features(x, "x", theta)
        rows = x.size(-2)
        for name, given in (("M", M), ("N", N)):
            if given is not None and (name == "M" or reads_target) and given != rows:
                fix = "one number stands for both: pass size=(M, N), or (x_src, x_dst)"
                reject("size", f"{name} = {rows}, the rows of x", given, fix)
        N = found if N is None and not reads_target else N
        return x, rows, rows if N is None else N, 0
    if len(x) != 2:
        reject("x", "a tensor or a pair (x_src, x_dst)", f"{len(x)} parts", "pass two")
    source, target = x
    check_form("x[1]", target, sparse=True)
    check_features(source, "x[0]", theta)
    rows = source.shape[-2]
    if M is not None and rows != M:
        reject("size", f"M = {rows}, the rows of x[0]", M, "correct size, or x")
    if target is None:
        N = found if N is None else N
        return source, rows, rows if N is None else N, None
    if not isinstance(target, Tensor) or target.dim() < 2:
        reject("x[1]", "a tensor (*, N, P), or None", shape_or_type(target), "pass (x_src, x_dst), or size=(M, N)")
    if N is not None and target.shape[-2] != N:
        reject("size", f"N = {target.shape[-2]}, the rows of x[1]", N, "correct size, or x")
    N = target.shape[-2]
    if not reads_target:
        return source, rows, N, None
    if target is source or is_head(target, source):
        return source, rows, N, 0
    check_features(target, "x[1]", theta)
    if source.layout != torch.strided or target.layout != torch.strided:
        reject("x", "a dense pair", "a sparse tensor in it", "use .to_dense(), or one sparse x for both sides")
    if source.shape[:-2] != target.shape[:-2]:
        reject("x[1]", f"batch dimensions {tuple(source.shape[:-2])}", tuple(target.shape[:-2]), "as in x[0]")
    # The family reads one matrix: the sources, followed by the targets' own features.
    return torch.cat([source, target], -2), rows + N, N, rows


def num_rows(x: Any) -> int | None:
    """The number of rows of the sources' features; None if x is malformed, which `read_features` reports."""
    source = x[0] if isinstance(x, tuple | list) and x else x
    there = isinstance(source, Tensor) and not source.is_nested and source.dim() > 1
    return source.shape[-2] if there else None


def check_features(x: Any, name: str, theta: Theta) -> None:
    """Checks features against the parameter that multiplies them, which gets its size here if it is lazy."""
    if not isinstance(x, Tensor):
        fix = "pass data.x, data.edge_index" if hasattr(x, "edge_index") else "pass a (*, M, P) tensor"
        reject(name, "a tensor of features", type(x).__name__, fix)
    check_form(name, x, sparse=True)
    if x.dtype not in _FLOATS:
        reject(name, "a floating point dtype", x.dtype, "convert it with .float()")
    if x.dim() < 2 or (x.layout != torch.strided and (x.dim() != 2 or x.dense_dim())):
        reject(name, "shape (*, M, P); (M, P) where it is sparse", tuple(x.shape), "add the missing axes")
    weight, P = theta.reference, theta.P
    if P < 0 and isinstance(weight, UninitializedParameter):
        theta.complete(x.size(-1))
        P = theta.P
    if P >= 0 and x.shape[-1] != P:
        fix = "correct x or in_channels" + "; images (*, P, *grid) are for GridConv" * (
            x.dim() > 2 and x.shape[-3] == P
        )
        reject(name, f"{P} channels (in_channels) on the last axis", x.size(-1), fix)
    if weight is not None:
        check_like(x, weight, name)


def check_like(x: Tensor, weight: Tensor, name: str = "x") -> None:
    """Checks that features have the device and dtype of a parameter."""
    if x.device != weight.device:
        reject(name, f"a tensor on {weight.device}, as the layer", x.device, "move one to the other")
    if x.dtype != weight.dtype and not autocasting(x.device):
        reject(name, f"dtype {weight.dtype}, as the layer", x.dtype, "convert one to the other's with .to()")


def check_bound(bound: BoundBasis, basis: Basis, x: Tensor, N: int | None) -> None:
    """Checks a bound basis that is given instead of a graph."""
    if N is not None and bound.N != N:
        reject("edge_index", f"a bound basis with N = {N}", f"N = {bound.N}", "bind it with size=(M, N)")
    if bound.K != basis.K or x.shape[-2] != bound.M:
        expected, fix = f"a bound basis with K = {basis.K}, M = {x.shape[-2]}", "bind this layer's basis to x's graph"
        reject("edge_index", expected, f"K = {bound.K}, M = {bound.M}", fix)
    if bound.device != x.device:
        reject("edge_index", f"a bound basis on {x.device}, as x", bound.device, "move it with .to(device)")
    if bound.dtype != x.dtype and not autocasting(x.device):
        reject("edge_index", f"a bound basis of {x.dtype}, as x", bound.dtype, f"bind it with dtype={x.dtype}")


def is_head(target: Tensor, source: Tensor) -> bool:
    """Whether target is a view of the first rows of source, and its gradient that of these rows."""
    base = target._base
    return (
        base is not None
        and (base is source or base is source._base)
        and target.storage_offset() == source.storage_offset()
        and target.stride() == source.stride()
        and target.shape[:-2] == source.shape[:-2]
        and target.shape[-1] == source.shape[-1]
        and target.shape[-2] <= source.shape[-2]
        and target.requires_grad == source.requires_grad
        and not (target.requires_grad and _has_own_gradient(target, source))
        and forward_ad._current_level < 0  # or target may have a tangent of its own
    )


def _has_own_gradient(target: Tensor, source: Tensor) -> bool:
    """Whether the gradient of a view does more than to be added to that of source."""
    node = target.grad_fn
    if node is None or node.name() != "SliceBackward0" or target._backward_hooks or target.retains_grad:
        return True
    (parent, output), *_ = node.next_functions
    origin = source.grad_fn
    if origin is None:
        return getattr(parent, "variable", None) is not source
    return parent is not origin or output != source.output_nr
