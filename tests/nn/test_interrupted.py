"""Calls that end in their midst, as by Ctrl-C: later ones are right, and nothing is said about what is left behind."""

import linecache
import sys
from collections.abc import Callable
from contextvars import copy_context
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from pyg_basisconv import cache, convert
from tests.convert.conversion import example, like, runner


def interrupted(call: Callable[[], Any], at: int) -> int:
    """Raises at the so manieth line of the package that a call comes to, or soon after it; how many it came to.

    Not where a `with` statement is left: Python then leaves out its end, such as that of a mode of torch, and no code
    can help it. For the same reason the call has variables of a context of its own.
    """
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if "pyg_basisconv" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        if event == "line" and 0 < at <= lines:
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if not line.startswith("with "):
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        copy_context().run(call)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("make", [like, convert], ids=["drop-in", "converted"])
@pytest.mark.parametrize("warm", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize("kind", ["GCNConv", "ChebConv", "RGCNConv", "GATConv"])
@pytest.mark.sweep(6)
def test_a_call_after_an_interrupted_one(kind: str, warm: bool, make: Callable[[Any], Any]) -> None:
    case = example(kind, {})
    call = runner(case._replace(leaves=[leaf.requires_grad_() for leaf in case.leaves]))

    def found(layer: Any) -> list[Tensor]:
        y = call(layer)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), case.leaves)]

    def fresh() -> Any:
        layer = make(case.reference)
        for _ in range(2 * warm):
            found(layer)
        return layer

    expected, count = found(case.reference), interrupted(lambda: found(fresh()), -1)
    assert count > 20
    for at in range(1, count, count // 20):
        layer = fresh()
        assert interrupted(lambda layer=layer: found(layer), at) <= at + 5
        assert torch._C._len_torch_function_stack() == 0
        assert torch.is_grad_enabled()
        for _ in range(3):
            torch.testing.assert_close(found(layer), expected)


def test_a_witness_that_is_half_made_dies_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def get(self) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_COMPARED_BY_VALUE", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        cache.Witness([torch.ones(2)])
