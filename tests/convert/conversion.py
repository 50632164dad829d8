"""What tests of conversion have in common."""

import warnings

import torch
import torch_geometric.nn as pyg
from torch import nn

from pyg_basisconv import convert
from pyg_basisconv.verify import Case, compare


def agree(case: Case, tolerance: float = 1e-10) -> None:
    """Forward and every gradient, relative to the largest entry."""
    for ours, theirs in zip(*compare(case), strict=True):
        scale = float(theirs.abs().max()) if theirs.numel() else 0.0
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * (scale or 1.0))


def left_of(module: nn.Module) -> dict[str, str]:
    left: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = convert(module, left)
    if left and isinstance(module, pyg.MessagePassing):
        assert ours is module
    return left
