"""Binds a graph by the kernels in Triton: torch sorts its edges, and one launch does what is left of each task."""

import torch
from torch import Tensor

from . import bind_jit
from .launch import of_sums

_ENTRIES = 256  # of a program


def compressed(group: Tensor, other: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """`pattern.compress`: the first entry of each group, the other ends of entries by group, and the order of these.

    Nothing waits for the device. Entries of groups that are not there are left out.
    """
    keys, order = torch.sort(group, stable=True)
    E = group.numel()
    ptr, index, by_group = (group.new_empty(size) for size in (num_groups + 1, E, E))
    with torch.cuda.device_of(group):
        bind_jit.compressed[-(-max(E, num_groups + 1) // _ENTRIES),](
            keys, order, other.contiguous(), ptr, index, by_group, E, num_groups, E.bit_length() + 1, B=_ENTRIES
        )
    return ptr, index, by_group


def over_degrees(
    source: Tensor, target: Tensor, weight: Tensor | None, out: Tensor | None, into: Tensor | None, exponent: float
) -> Tensor:
    """(E,) weights times powers of the degrees of their ends, 0 where a degree is 0, without a gradient.

    source, target: (E,). weight: (E,), or None for ones. out, into: (M,) and (N,), of the dtype of the result; one of
    them may be None, and plays no part. exponent: -1 or -0.5.
    """
    degrees = out if out is not None else into
    assert degrees is not None
    assert exponent in (-1.0, -0.5)
    result = degrees.new_empty(source.numel())
    M, N = (0 if t is None else t.numel() for t in (out, into))
    given = (None if t is None else t.resolve_neg().contiguous() for t in (source, target, weight, out, into))
    if result.numel():
        with torch.cuda.device_of(source):
            bind_jit.over_degrees[-(-source.numel() // _ENTRIES),](
                *given, result, source.numel(), M, N, B=_ENTRIES, ROOT=exponent == -0.5, ACC=of_sums(degrees.dtype)
            )
    return result
