"""Conversion of torch's layers on rows: what a wrong call says, and what learns."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import pyg_basisconv.nn as ours
from pyg_basisconv import convert


def test_one_axis_without_offsets_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^input: expected \(B, N\) indices"):
        convert(nn.EmbeddingBag(5, 3))(torch.tensor([0, 1]))


def test_the_padding_learns_nothing() -> None:
    bags = convert(nn.EmbeddingBag(5, 3, padding_idx=1))
    bags(torch.tensor([[0, 1], [1, 1]])).sum().backward()
    assert bags.weight.grad.count_nonzero(1).tolist() == [3, 0, 0, 0, 0]


def test_the_drop_in_of_linear_is_pygs_own() -> None:
    assert ours.Linear is pyg.Linear
