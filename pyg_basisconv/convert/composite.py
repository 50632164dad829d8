"""Converted layers that are made of several parts."""

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.inits import reset

from ..conv import BasisConv
from ..errors import reject
from .build import parameter
from .checkpoints import original_of, tied
from .layers import Signature, pair
from .registry import Unchanged


class Composite(nn.Module):
    """A layer made of converted parts.

    The options of the layer that it replaces are its own, under their names: `self.heads`, say. A subclass makes the
    parts in its constructor, and says in `compute` what a call gives, whose arguments come by name, as `Signature.of`
    says that they are read.
    """

    rebuilt = True  # no layer that `convert` has still to convert, whatever its class
    kept: tuple[str, ...] = ()  # the parts and parameters that it takes over as they are, under their names

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, layer: Any, **reads: Any) -> None:
        self._begin()
        vars(self).update((name, value) for name, value in vars(layer).items() if self._is_option(name, value))
        self.call = Signature.of(layer, **reads)
        for name in self.kept:
            setattr(self, name, copied(getattr(layer, name, None)))

    def _begin(self) -> None:
        nn.Module.__init__(self)

    def _is_option(self, name: str, value: Any) -> bool:
        """Whether an attribute of the layer is an option that this class does not define itself."""
        own = name.startswith("_") or name in ("training", "inspector") or hasattr(type(self), name)
        return not own and not isinstance(value, Tensor)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the layer; takes what the layer takes that it replaces."""
        return self.compute(**self.call.read(args, kwargs))

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """A parameter under several names stays one where torch makes a new one of each, as `to_empty` does."""
        names = tied(self)
        super()._apply(*args, **kwargs)
        for first, *others in names:
            for owner, _, name in (other.rpartition(".") for other in others):
                self.get_submodule(owner)._parameters[name] = self.get_parameter(first)
        return self

    def compute(self, *args: Any, **call: Any) -> Any:
        """The results of a call."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draws all parameters as the layer does that it was converted from."""
        original = original_of(self)
        if original is None or not original.draw(self):
            for part in self.children():
                reset(part)


class GraphLayer(Composite, MessagePassing):
    """A layer made of converted parts that replaces one of PyG's layers of message passing.

    It is a `MessagePassing` for what looks for such layers in a model: `to_hetero` makes one of it for each type of
    edges. The messages are those of its parts.
    """

    _set_jittable_templates = BasisConv._set_jittable_templates
    __repr__ = nn.Module.__repr__

    @property
    def explain(self) -> bool:
        """False, as explainers set their masks on its parts; what is set is set for those that have edges."""
        return False

    @explain.setter
    def explain(self, explain: bool | None) -> None:
        for part in self.modules():
            if isinstance(part, BasisConv) and part.basis.needs_edges:
                part.explain = explain

    @property
    def explain_message(self) -> Any:
        """Of its parts, one for each: `GraphMaskExplainer` cannot replace it here, as it takes each for a layer."""
        return super().explain_message

    @explain_message.setter
    def explain_message(self, replaced: Any) -> None:
        fix = "explain the layer of PyG, or this one by GNNExplainer"
        reject("explain_message", "a layer that passes its own messages", f"{type(self).__name__}, made of parts", fix)

    def _begin(self) -> None:
        MessagePassing.__init__(self, aggr=None)


def _hooks_are_of_parts(self: GraphLayer, *args: Any, **kwargs: Any) -> Any:
    """Rejects a hook on messages, which would never be called."""
    parts = ", ".join(name for name, part in self.named_modules() if isinstance(part, BasisConv))
    fix = "register it there, or before `convert`, which leaves layers that have hooks, as of to_hetero_with_bases"
    reject("hook", f"a part of the layer that passes messages, {parts}", type(self).__name__, fix)


for _name in [name for name in vars(MessagePassing) if name.startswith("register_")]:
    setattr(GraphLayer, _name, _hooks_are_of_parts)


def copied(part: Any) -> Any:
    """A copy of a part of a layer, or of a parameter."""
    if isinstance(part, Tensor):
        return parameter(part)
    # A drop-in reads `clone` as the tensor itself, so that it shares the running means of a normalisation.
    memo = {id(b): b.clone() for b in part.buffers()} if isinstance(part, nn.Module) else None
    try:
        return deepcopy(part, memo)
    except Exception as error:  # of a network that holds a lock, say, or is sharded
        raise Unchanged(f"its {type(part).__name__} cannot be copied: {error}") from error


class WithRoot(GraphLayer):
    r"""The sum of what the neighbours give, after a function of their features, and what the target itself gives,
    where it has features; then a function of the sum and these.
    """

    def __init__(
        self,
        layer: Any,
        conv: BasisConv,
        root: BasisConv | None = None,
        before: nn.Module | None = None,
        after: Callable[[Tensor, Tensor | None], Tensor] | None = None,
        **reads: Any,
    ) -> None:
        super().__init__(layer, **reads)
        self.conv, self.root, self.before, self.after = conv, root, before, after

    def compute(self, x: Any, **call: Any) -> Tensor:
        source, target = pair(x)
        if self.before is not None:
            source = self.before(source)
        y: Tensor = self.conv((source, target), **call)
        if self.root is not None and target is not None:
            y = y + self.root(target)
        return y if self.after is None else self.after(y, target)


def normalized(y: Tensor, target: Tensor | None) -> Tensor:
    """Each row over its Euclidean norm."""
    return F.normalize(y, p=2.0, dim=-1)


def after_root(y: Tensor, target: Tensor | None) -> Tensor:
    """Concatenates the target's own features and the result."""
    return y if target is None else torch.cat([target, y], dim=-1)
