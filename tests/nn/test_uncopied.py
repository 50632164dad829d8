"""Layers that hold what cannot be copied, such as the lock of a logger, by their hooks or attributes."""

from threading import Lock
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.nn import GINConv

from pyg_basisconv import convert, nn as drop_in
from pyg_basisconv.verify import drawn
from tests.convert.conversion import evaluated, example, like, runner


class Logger:
    """Counts the calls of a hook."""

    def __init__(self) -> None:
        self.lock, self.calls = Lock(), 0

    def log(self, *args: Any) -> None:
        with self.lock:
            self.calls += 1


HOLDS = {
    "hook": lambda f, logger: f.register_forward_hook(logger.log),
    "hook of gradients": lambda f, logger: f.register_full_backward_hook(logger.log),
    "hook after loading": lambda f, logger: f.register_load_state_dict_post_hook(logger.log),
    "hook of a part": lambda f, logger: next(f.children()).register_forward_hook(logger.log),
    "attribute": lambda f, logger: setattr(f, "logger", logger),
    "attribute of a part": lambda f, logger: setattr(next(f.children()), "logger", logger),
}


@pytest.mark.parametrize("kind", ["GCNConv", "GATConv", "GINConv"])
@pytest.mark.parametrize("how", HOLDS)
def test_what_a_layer_holds_is_not_copied(kind: str, how: str) -> None:
    """Also where it is looked at anew, as after a change of precision; a network of the user's is then PyG's to run."""
    case, calls = example(kind, {}), []
    run = runner(case._replace(leaves=[leaf.requires_grad_() for leaf in case.leaves]))
    for module in (like(case.reference), case.reference):
        HOLDS[how](module, logger := Logger())
        for _ in range(2):
            module.double().load_state_dict(module.state_dict())
            y = run(module)
            y.sum().backward()
        calls.append((y, *[p.grad for p in module.parameters()]))
        calls.append(torch.tensor(logger.calls))
    torch.testing.assert_close(calls[:2], calls[2:])


class Recurrent(nn.Module):
    """A network that keeps its weights under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0]


def test_a_network_that_keeps_its_weights_twice_learns() -> None:
    case = example("GINConv", {})
    reference, found = drawn(GINConv(Recurrent())), []
    for module in (like(reference), reference):
        optimizer = torch.optim.SGD(module.parameters(), 0.5)
        for _ in range(3):
            optimizer.zero_grad()
            y = runner(case)(module)
            y.square().sum().backward()
            optimizer.step()
        found.append(y)
        assert module is reference or evaluated(module)
    torch.testing.assert_close(*found)


def test_a_traced_network_is_left_or_refused_with_a_reason() -> None:
    network = torch.jit.trace(nn.Linear(3, 3), torch.randn(2, 3))
    left: dict[str, str] = {}
    layer = GINConv(network)
    assert convert(layer, left) is layer
    assert left == {"": "GINConv: the forward() of its nn was replaced"}
    with pytest.raises(ValueError, match="the forward\\(\\) of its nn was replaced; import this one from torch_geo"):
        drop_in.GINConv(network)
