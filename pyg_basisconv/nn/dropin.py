"""Drop-in layers: subclasses of PyG's own layers whose calls are evaluated as a `BasisConv`."""

import functools
import threading
from copy import copy
from typing import Any

from torch import nn
from torch._C import _are_functorch_transforms_active, _get_tracing_state, _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from ..convert.checkpoints import is_lazy
from ..convert.registry import METHODS, Unchanged, share_rule
from ..errors import reject
from .evaluator import Evaluator, Moved

_UNWATCHED = ("training", "_")  # how names begin of attributes that change no evaluation, or that each call reads


class _Evaluators(threading.local):
    """The evaluator of a layer, one for each thread, since a call writes the current parameters into it.

    found: the evaluator; None where PyG's forward computes the layer.
    known: whether `found` has been decided.
    """

    found: Evaluator | None = None
    known = False

    def __reduce__(self) -> tuple[type["_Evaluators"], tuple[()]]:
        return _Evaluators, ()  # a copy of a layer makes evaluators of its own


class DropIn(nn.Module):
    """What a drop-in adds to the layer that it replaces.

    >>> from pyg_basisconv.nn import GCNConv
    >>> isinstance(GCNConv(8, 4), DropIn)
    True
    """

    original: type[nn.Module]  # the class that it replaces
    _evaluators: _Evaluators
    _unchecked = False  # True from the constructor on until its options are known to be covered: of lazy layers, later

    def _evaluator(self) -> Evaluator | None:
        """A new evaluator, as there is none or the layer has changed; None where PyG's own forward computes it, as
        always for subclasses with messages of their own. Rejects options that no rule covers, if they are unchecked.
        """
        kept = self._evaluators
        if kept.found is None and (kept.known or is_lazy(self)):
            return None
        try:
            kept.found = None if _overrides(type(self)) else Evaluator(self, self.original)
        except Unchanged as reason:  # an option was changed after the constructor
            if self._unchecked:
                of = "torch.nn" if self.original.__module__.startswith("torch.") else "torch_geometric.nn"
                fix = f"import this one from {of}"
                reject(type(self).__name__, "options that its recipe covers", f"others: {reason}", fix)
            kept.found = None
        kept.known, self._unchecked = True, False
        return kept.found

    def _changed(self) -> None:
        vars(self)["_evaluators"] = _Evaluators()

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._changed()  # a shallow copy has tables of its own

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if not name.startswith(_UNWATCHED):
            self._changed()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._changed()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._changed()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._changed()
        super()._load_from_state_dict(*args, **kwargs)

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Uses the module that PyG generated for the original class."""
        of: Any = super() if _overrides(type(self)) else self._original()
        of._set_jittable_templates(raise_on_error)

    def __prepare_scriptable__(self) -> nn.Module:
        """The layer that TorchScript compiles."""
        return self._original()

    def _original(self) -> nn.Module:
        """The original layer, which shares the parameters of this one."""
        plain = object.__new__(self.original)
        held = {name: value for name, value in vars(self).items() if name != "_evaluators"}
        if "inspector" in held:
            held["inspector"] = copy(self.inspector)
            held["inspector"]._cls = self.original
        vars(plain).update(held)
        return plain


def _overrides(cls: type) -> bool:
    """Whether a subclass has messages of its own."""
    own: Any = cls
    methods = METHODS - {"forward"}  # a forward may call the original one
    return any(getattr(own, name, None) is not getattr(own.original, name, None) for name in methods)


def drop_in(kind: type[nn.Module], module: str = __name__) -> type[nn.Module]:
    """The drop-in class of a layer that has a rule: of PyG, of torch, or your own.

    Args:
        kind: the class of the layer.
        module: that has the drop-in under the same name, so that it can be pickled.

    >>> from torch_geometric.nn import GCNConv
    >>> layer = drop_in(GCNConv)(8, 4)
    >>> layer
    GCNConv(8, 4)
    >>> isinstance(layer, GCNConv)
    True
    """
    own_forward, own_init = kind.forward, kind.__init__

    @functools.wraps(own_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        vars(self)["_evaluators"] = _Evaluators()
        own_init(self, *args, **kwargs)
        self._unchecked = True
        self._evaluator()

    @functools.wraps(own_forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _plain(self):
            return own_forward(self, *args, **kwargs)
        evaluator = self._evaluators.found
        if evaluator is None or not evaluator.current:
            evaluator = self._evaluator()
        if evaluator is None or evaluator.observed or (self.training and evaluator.draws_otherwise(args, kwargs)):
            kept = self._evaluators
            y = own_forward(self, *args, **kwargs)
            if kept.known:
                vars(self)["_evaluators"] = kept  # what it sets, as SuperGATConv what its loss is made of, is no option
            else:  # which waits where a type of nodes that this call had none of leaves its width unknown
                self._evaluator()
            return y
        try:
            return evaluator(self, args, kwargs)
        except Moved:
            self._changed()
            return own_forward(self, *args, **kwargs)

    about = {"__init__": __init__, "forward": forward, "original": kind}
    about |= {"__module__": module, "__qualname__": kind.__name__, "__doc__": kind.__doc__}
    made: type[nn.Module] = type(kind.__name__, (DropIn, kind), about)
    share_rule(kind, made)
    return made


def _plain(layer: Any) -> bool:
    """Whether a call is an ordinary one, without compiler, explainer, transform of torch.func, or tracing."""
    own = vars(layer)
    return not (
        is_compiling()
        or own.get("_explain")
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or _get_tracing_state()
        or own.get("_is_replica")
    )
