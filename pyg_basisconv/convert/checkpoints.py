"""Loads checkpoints of the original layers into converted ones."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ..errors import reject


class Original:
    """A hook before `load_state_dict` that translates a checkpoint of the layer that was converted.

    A checkpoint of the converted module itself passes unchanged.

    Args:
        layer: of PyG, or of torch.
        rebuild: converts it.
    """

    def __init__(self, layer: nn.Module, rebuild: Callable[[Any], nn.Module]) -> None:
        # The layer is kept without its numbers and caches.
        memo: dict[int, object] = {
            id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
            for p in layer.parameters()
            if not isinstance(p, UninitializedParameter)
        }
        for part in layer.modules():
            for name, value in vars(part).items():
                if name.startswith("_cached") or (isinstance(value, Tensor) and not value.is_leaf):
                    memo[id(value)] = None
        self.layer, self.rebuild = deepcopy(layer, memo), rebuild

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        theirs, ours = list(self.layer.state_dict()), list(module.state_dict())
        there = [all(prefix + name in state for name in names) for names in (theirs, ours)]
        if not there[0] or (ours and there[1]):
            return
        for name, constant in self.layer.named_buffers():
            if not torch.equal(state[prefix + name].to(constant), constant):
                reject(prefix + name, f"{constant}, as when it was converted", state[prefix + name], "convert it again")
        layer = deepcopy(self.layer)
        layer.load_state_dict({name: state.pop(prefix + name).detach() for name in theirs}, assign=True)
        state.update({prefix + name: value for name, value in self.rebuild(layer).state_dict().items()})
