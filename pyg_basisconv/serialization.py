"""Registers the values that `torch.load(weights_only=True)` may load, since no code but their own class's runs.

These are descriptions: bases, parameters and mechanisms, vocabularies, sorts of walks and their configurations, lists
of edges, and plans; and torch's activations, which mechanisms hold. Of a layer, save the `state_dict`, which fits any
layer with the same arguments. Bind a bound basis again, or load it with `weights_only=False`. Register a basis or an
activation of your own by `torch.serialization.add_safe_globals([MyBasis])`.

>>> import io, torch
>>> from pyg_basisconv import bases
>>> file = io.BytesIO()
>>> torch.save({"basis": bases.Identity() + bases.Chebyshev(3), "P": 8}, file)
>>> torch.load(io.BytesIO(file.getvalue()), weights_only=True)
{'basis': Identity() + Chebyshev(K=3), 'P': 8}
"""

import torch
from torch import nn
from torch.nn.modules import activation
from torch.nn.parameter import UninitializedParameter

from . import bases, mechanisms, theta
from .bases.composition import Constants
from .basis import Compaction, EdgeList, Work
from .cache import IdentityCache
from .costs import Estimate, Problem
from .mechanisms.base import Scaled, Sum, Then
from .orders.compacted import Offer
from .orders.mixed import Mixing
from .plan import Plan
from .walks import Sort, Vocabulary
from .walks.config import Knowledge

__all__ = ["PLAIN"]

_PARTS = (IdentityCache, mechanisms.Sizes, Scaled, Sum, Then, UninitializedParameter, nn.ModuleList)
_ACTIVATIONS = [getattr(activation, name) for name in activation.__all__]
_COSTS = (Compaction, Estimate, Mixing, Offer, Problem, Work)
_VALUES = (EdgeList, Knowledge, Constants, Plan, Sort, Vocabulary, bases.FiniteGroup)
_MODULES = [getattr(module, name) for module in (bases, mechanisms, theta) for name in module.__all__]

PLAIN: tuple[type, ...] = (
    *_VALUES,
    *_PARTS,
    *_COSTS,
    *_ACTIVATIONS,
    *(kind for kind in _MODULES if isinstance(kind, type) and issubclass(kind, nn.Module)),
)

torch.serialization.add_safe_globals(list(PLAIN))
