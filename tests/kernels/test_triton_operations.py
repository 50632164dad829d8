"""How many operations a GPU is told to start in a training step of a layer that is warm, with the kernels in Triton.

There a small graph takes as long as its operations take to start. The kernels themselves are not run here: what is
counted does not depend on numbers.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch_geometric import nn as pyg

from pyg_basisconv import backends, convert
from pyg_basisconv.backend import uses_triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if not uses_triton(DEVICE):
    pytest.skip(f"triton: {backends()['triton']}", allow_module_level=True)

from pyg_basisconv.kernels.triton import launch  # noqa: E402 - only where it is installed

KERNEL = "kernel in Triton"
# Operations that make views or room, or that only call others.
FREE = re.compile(
    "aten::(_reshape_alias|_to_copy|_unsafe_view|alias|as_strided|chunk|clone|contiguous|detach|diagonal|empty.*|expand.*"
    "|flatten|lift_fresh|linear|mT|matmul|movedim|narrow|new_empty.*|new_zeros|numpy_T|ones_like|permute|reshape|resize_"
    "|resolve_.*|select|slice|split.*|squeeze|stack|t|to|transpose|unbind|unflatten|unsqueeze|view.*|zeros.*)"
)


def operations(run: Callable[[], object]) -> list[str]:
    """The names of those that start: kernels of ours, and operations of torch that are not part of another."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()

    def starts(event: Any) -> bool:
        return event.name == KERNEL or (event.name.startswith("aten::") and not FREE.fullmatch(event.name))

    def parents(event: Any) -> Iterator[Any]:
        while event.cpu_parent is not None:
            event = event.cpu_parent
            yield event

    return [e.name for e in seen.events() if starts(e) and not any(map(starts, parents(e)))]


# The layers, and the most operations of a forward pass and of a step, with the three of a sum of all numbers.
LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], int, int]] = {
    "GCN": (lambda: pyg.GCNConv(4, 4), 3, 10),
    "SAGE": (lambda: pyg.SAGEConv(4, 4), 2, 8),
    "GAT": (lambda: pyg.GATConv(4, 3, heads=2), 3, 14),
    "GAT, residual": (lambda: pyg.GATConv(4, 3, heads=2, residual=True), 5, 17),
    "GATv2": (lambda: pyg.GATv2Conv(4, 3, heads=2), 5, 17),
    "Transformer": (lambda: pyg.TransformerConv(4, 3, heads=2), 7, 18),
    "Transformer, two sets": (lambda: pyg.TransformerConv((4, 4), 3, heads=2), 10, 25),
    "RGCN": (lambda: pyg.RGCNConv(64, 64, 474), 5, 17),
}


@pytest.mark.parametrize("name", LAYERS)
def test_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, of_forward, of_step = LAYERS[name]
    layer, (M, E, K), P = convert(make()).to(DEVICE), (1000, 400, 474), 64 if name == "RGCN" else 4
    x, y = (torch.randn(M, P, device=DEVICE, requires_grad=True) for _ in range(2))
    edges, kinds = torch.randint(M, (2, E), device=DEVICE), torch.randint(K, (E,), device=DEVICE)
    given = (((x, y) if "two" in name else x), edges, *([kinds] if name == "RGCN" else []))

    def run(*args: Any, **options: Any) -> None:
        with record_function(KERNEL):
            pass

    monkeypatch.setattr(launch.RowLists, "run", run)

    def step() -> None:
        layer(*given).sum().backward()
        for t in (x, y, *layer.parameters()):
            t.grad = None

    for _ in range(3):
        step()
    found = operations(lambda: layer(*given)), operations(step)
    print(name, *map(len, found), *found, sep="\n")
    assert len(found[0]) <= of_forward
    assert len(found[1]) <= of_step


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", ""])
@pytest.mark.parametrize("kind", [pyg.GATConv, pyg.TransformerConv])
def test_results_may_be_written_to(kind: Callable[..., torch.nn.Module], bias: bool, grad: bool) -> None:
    """Though the backward pass reads them; in the first call, and in those that are replayed."""
    torch.manual_seed(0)
    more = {} if kind is pyg.GATConv else {"root_weight": bias}
    layer = convert(kind(4, 2, heads=2, bias=bias, **more)).double().to(DEVICE)
    x = torch.randn(5, 4, dtype=torch.float64, device=DEVICE, requires_grad=True)
    edges = torch.randint(5, (2, 12), device=DEVICE)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            found, expected = layer(x, edges).mul_(2).relu_(), (2 * layer(x, edges)).relu()
            torch.testing.assert_close(found, expected)
            if grad:
                torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x) for y in (found, expected)))
