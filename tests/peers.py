"""Layers of the library beside PyG's own, with the same parameters."""

from typing import Any

from pyg_basisconv import BasisConv
from pyg_basisconv.convert.registry import apply_rule


def copy_parameters(conv: BasisConv, peer: Any) -> None:
    """Gives a layer the parameters of one of PyG, as its recipe maps them, whatever hooks it has."""
    ours = apply_rule(peer, type(peer))
    state, own = getattr(ours, "conv", ours).state_dict(), conv.state_dict()
    conv.load_state_dict(own | {name: value for name, value in state.items() if name in own})
