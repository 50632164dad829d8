"""From the parameters of an original layer to those of the converted one: of checkpoints, and drawn anew."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ..errors import reject


class Original:
    """A hook before `load_state_dict` that translates a checkpoint of the layer that was converted.

    A checkpoint of the converted module itself passes unchanged. One of the layer that lacks a key cannot be
    translated: the key is among those that `load_state_dict` calls missing. A checkpoint cannot change the constants,
    the buffers that a basis was made with.
    """

    def __init__(self, layer: nn.Module, rebuild: Callable[[Any], nn.Module], constants: Sequence[str]) -> None:
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
        self.layer, self.rebuild, self.constants = deepcopy(layer, memo), rebuild, constants

    def __call__(
        self,
        module: nn.Module,
        state: dict[str, Any],
        prefix: str,
        metadata: dict[str, Any],
        strict: bool,
        missing: list[str],
        unexpected: object,
        errors: list[str],
    ) -> None:
        self._translate(module, state, prefix, missing, errors)
        if metadata.get("assign_to_params_buffers"):  # torch makes parameters only of what is none
            for names in tied(module):
                found = [prefix + name for name in names if prefix + name in state]
                state.update(dict.fromkeys(found, nn.Parameter(state[found[0]], False)) if found else {})

    def _translate(
        self, module: nn.Module, state: dict[str, Any], prefix: str, missing: list[str], errors: list[str]
    ) -> None:
        originals, ours = self.layer.state_dict(), module.state_dict()
        theirs, lacking = list(originals), [name for name in originals if prefix + name not in state]
        if lacking or (ours and all(prefix + name in state for name in ours)):
            if any(prefix + name in state for name in originals.keys() - ours.keys()):
                missing += [prefix + name for name in lacking if name not in ours]
            return
        sizes = {name: tuple(t.shape) for name, t in originals.items() if not isinstance(t, UninitializedParameter)}
        found = {name: tuple(state[prefix + name].shape) for name in sizes}
        if found != sizes:
            wrong = (name for name in sizes if found[name] != sizes[name])
            errors += [f"size mismatch for {prefix}{name}: {found[name]}, and not {sizes[name]}." for name in wrong]
            for name in theirs:  # whose names torch would call unexpected, and ours missing
                state.pop(prefix + name)
            state.update({prefix + name: value for name, value in ours.items()})
            return
        for name in self.constants:
            constant = originals[name]
            if not torch.equal(state[prefix + name].to(constant), constant):
                reject(prefix + name, f"{constant}, as when it was converted", state[prefix + name], "convert it again")
        layer = deepcopy(self.layer)
        lazy: list[Any] = [
            part for part in layer.modules() if isinstance(part._parameters.get("weight"), UninitializedParameter)
        ]
        layer.load_state_dict({name: state.pop(prefix + name).detach() for name in theirs}, assign=True)
        for part in lazy:
            part.in_channels = -1  # matrices are one parameter only where their widths were known and equal
        state.update({prefix + name: value for name, value in self.rebuild(layer).state_dict().items()})

    def draw(self, module: nn.Module) -> bool:
        """Draws the parameters of the converted module as the layer draws its own; False where its widths were open."""
        layer: Any = deepcopy(self.layer)
        if is_lazy(layer):
            return False
        device = next((p.device for p in module.parameters()), None)
        ones = {name: torch.ones_like(p, device=device) for name, p in layer.named_parameters(remove_duplicate=False)}
        layer.load_state_dict(layer.state_dict() | ones, assign=True)
        for part in (*layer.modules(), layer):  # the layer last: some leave a network within them as it is
            again = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if callable(again):
                again()
        module.load_state_dict(self.rebuild(layer).state_dict())
        return True


def tied(module: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several.

    >>> first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> second.weight = first.weight
    >>> tied(nn.Sequential(first, second))
    [['0.weight', '1.weight']]
    """
    names: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    return [several for several in names.values() if len(several) > 1]


def is_lazy(layer: nn.Module) -> bool:
    """Whether widths are unknown before the first call."""
    return any(isinstance(p, UninitializedParameter) for p in layer.parameters())


def original_of(module: nn.Module) -> Original | None:
    """The layer that a module was converted from."""
    hooks = (getattr(hook, "hook", None) for hook in module._load_state_dict_pre_hooks.values())
    return next((hook for hook in hooks if isinstance(hook, Original)), None)
