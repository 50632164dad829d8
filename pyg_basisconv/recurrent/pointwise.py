"""What a gated step does number by number, and its derivative, in few passes over memory.

What is kept for the derivative are the opened gates, and not what they were computed from. They are results, so that
the derivative itself has one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels.op import autocasting
from ..portable import portable


def reset_and_update(x: Tensor, u: Tensor, h: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    r""":math:`r \odot h`, z and :math:`x_n`, with :math:`r, z = \sigma(x_{r, z} + u_{r, z})`.

    Args:
        x: the gates r, z, n of the input, blocks along an axis.
        u: r, z of the state.
        h: the state.
        axis: that of the blocks.
    """
    if _plainly(x, u, h):
        r, z, n = x.chunk(3, axis)
        u_r, u_z = u.chunk(2, axis)
        return (r + u_r).sigmoid() * h, (z + u_z).sigmoid(), n
    after_reset, z, n, _ = _ResetAndUpdate.apply(axis, x, u, h)
    return after_reset, z, n


def blend(z: Tensor, x: Tensor, u: Tensor, h: Tensor) -> Tensor:
    r""":math:`z \odot h + (1 - z) \odot \tanh(x + u)`."""
    if _plainly(z, x, u, h):
        n = (x + u).tanh()
        return n + z * (h - n)
    y: Tensor = _Blend.apply(z, x, u, h)[0]
    return y


def remember(x: Tensor, u: Tensor, c: Tensor, peephole: Tensor | None, axis: int) -> tuple[Tensor, Tensor]:
    """The new h and c of a long short-term memory.

    Args:
        x: the gates i, f, g, o of the input, blocks along an axis.
        u: the same of the state.
        c: the cell state.
        peephole: (3, ...) what i, f and o have of c, or None.
        axis: that of the blocks.
    """
    if _plainly(x, u, c):
        i, f, g, o = (x + u).chunk(4, axis)
        if peephole is not None:
            i, f = i + peephole[0] * c, f + peephole[1] * c
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        if peephole is not None:
            o = o + peephole[2] * c
        return o.sigmoid() * c.tanh(), c
    h, c, _ = _Remember.apply(axis, x, u, c, peephole)
    return h, c


def _plainly(*given: Tensor) -> bool:
    """Whether torch is to see each operation: where it compiles or transforms them, or dtypes meet."""
    watched = portable() or torch.compiler.is_compiling() or autocasting(given[0].device)
    return watched or any(t.dtype != given[0].dtype for t in given)


class _ResetAndUpdate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, axis: int, x: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        x_r, x_z, x_n = x.chunk(3, axis)
        u_r, u_z = u.chunk(2, axis)
        r, z = torch.add(u_r, x_r).sigmoid_(), torch.add(u_z, x_z).sigmoid_()
        ctx.axis = axis
        ctx.save_for_backward(h, r, z)
        ctx.set_materialize_grads(False)
        return r * h, z, x_n, r

    @staticmethod
    def backward(
        ctx: Any, of_reset: Tensor | None, of_z: Tensor | None, of_n: Tensor | None, of_r: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        h, r, z = ctx.saved_tensors
        of_reset, of_z, of_n = (torch.zeros_like(h) if grad is None else grad for grad in (of_reset, of_z, of_n))
        room, (for_r, for_z, for_n) = _room(r, ctx.axis, 3)
        parts = [
            _by_sigmoid(_plus(of_reset * h, of_r), r, for_r),
            _by_sigmoid(of_z, z, for_z),
            of_n if for_n is None else for_n.copy_(of_n),
        ]
        of_x = torch.cat(parts, ctx.axis) if room is None else room
        return None, of_x, of_x.narrow(ctx.axis, 0, 2 * r.shape[ctx.axis]), of_reset * r


class _Blend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, x: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        n = torch.add(u, x).tanh_()
        ctx.save_for_backward(z, h, n)
        ctx.set_materialize_grads(False)
        return torch.lerp(n, h, z), n

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_n: Tensor | None) -> tuple[Tensor | None, ...]:
        z, h, n = ctx.saved_tensors
        grad = torch.zeros_like(h) if grad is None else grad
        if grad.stride() != n.stride() and not torch.is_grad_enabled():  # all that follows would be laid out as it is
            grad = torch.empty_like(n).copy_(grad)
        of_h = grad * z
        of_pre = _by_tanh(_plus(grad - of_h, of_n), n)
        return (h - n) * grad, of_pre, of_pre, of_h


class _Remember(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, axis: int, x: Tensor, u: Tensor, c: Tensor, peephole: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        gates = torch.add(u, x)
        i, f, g, o = gates.chunk(4, axis)
        if peephole is not None:
            i.addcmul_(peephole[0], c)
            f.addcmul_(peephole[1], c)
        i.sigmoid_()
        f.sigmoid_()
        c_new = torch.mul(f, c).addcmul_(i, g.tanh_())
        if peephole is not None:
            o.addcmul_(peephole[2], c_new)
        h_new = torch.tanh(c_new).mul_(o.sigmoid_())
        ctx.axis = axis
        ctx.save_for_backward(c, peephole, gates, c_new)
        ctx.set_materialize_grads(False)
        return h_new, c_new, gates

    @staticmethod
    def backward(
        ctx: Any, of_h: Tensor | None, of_c: Tensor | None, of_gates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        c, peephole, gates, c_new = ctx.saved_tensors
        of_h = torch.zeros_like(c) if of_h is None else of_h
        i, f, g, o = gates.chunk(4, ctx.axis)
        of_i, of_f, of_g, of_o = (None,) * 4 if of_gates is None else of_gates.chunk(4, ctx.axis)
        room, (for_i, for_f, for_g, for_o) = _room(c_new, ctx.axis, 4)
        t = c_new.tanh()
        pre_o = _by_sigmoid(_plus(of_h * t, of_o), o, for_o)
        total = _plus(_by_tanh(of_h * o, t), of_c)
        if peephole is not None:
            total = total + pre_o * peephole[2]
        pre_i = _by_sigmoid(_plus(total * g, of_i), i, for_i)
        pre_f = _by_sigmoid(_plus(total * c, of_f), f, for_f)
        pre_g = _by_tanh(_plus(total * i, of_g), g, for_g)
        before, of_peephole = total * f, None
        if peephole is not None:
            before = before + pre_i * peephole[0] + pre_f * peephole[1]
            met = ((pre_i, c), (pre_f, c), (pre_o, c_new))
            of_peephole = torch.stack([(pre * state).sum_to_size(peephole.shape[1:]) for pre, state in met])
        of_x = torch.cat([pre_i, pre_f, pre_g, pre_o], ctx.axis) if room is None else room
        return None, of_x, of_x, before, of_peephole


def _room(like: Tensor, axis: int, count: int) -> tuple[Tensor | None, Sequence[Tensor | None]]:
    """An empty tensor of so many blocks, and the blocks; none where a derivative is to be had of what is written."""
    if torch.is_grad_enabled():
        return None, (None,) * count
    shape, order = list(like.shape), sorted(range(like.dim()), key=like.stride, reverse=True)
    shape[axis] *= count
    room = torch.empty_permuted(shape, order, dtype=like.dtype, device=like.device)
    return room, room.chunk(count, axis)


def _plus(grad: Tensor, other: Tensor | None) -> Tensor:
    return grad if other is None else grad + other


def _by_sigmoid(grad: Tensor, y: Tensor, room: Tensor | None = None) -> Tensor:
    """The gradient before a sigmoid whose result is y."""
    if room is None:
        return torch.ops.aten.sigmoid_backward(grad, y)
    return torch.ops.aten.sigmoid_backward.grad_input(grad, y, grad_input=room)


def _by_tanh(grad: Tensor, y: Tensor, room: Tensor | None = None) -> Tensor:
    """The gradient before a tanh whose result is y."""
    if room is None:
        return torch.ops.aten.tanh_backward(grad, y)
    return torch.ops.aten.tanh_backward.grad_input(grad, y, grad_input=room)
