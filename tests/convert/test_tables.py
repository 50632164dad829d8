"""Conversion of torch's layers on rows: what is left, and what a wrong call says."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import pyg_basisconv.nn as ours
from pyg_basisconv import convert
from tests.convert.conversion import left_of


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "max"}, "mode='max' is not linear"),
        ({"max_norm": 1.0}, "max_norm=1.0"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq=True"),
        ({"sparse": True}, "sparse=True"),
    ],
)
def test_bags_that_are_left(options: dict, reason: str) -> None:
    assert left_of(nn.EmbeddingBag(5, 3, **options)) == {"": f"EmbeddingBag: {reason}"}


def test_one_axis_without_offsets_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^input: expected \(B, N\) indices"):
        convert(nn.EmbeddingBag(5, 3))(torch.tensor([0, 1]))


def test_the_padding_learns_nothing() -> None:
    bags = convert(nn.EmbeddingBag(5, 3, padding_idx=1))
    bags(torch.tensor([[0, 1], [1, 1]])).sum().backward()
    assert bags.weight.grad.count_nonzero(1).tolist() == [3, 0, 0, 0, 0]


def test_the_drop_in_of_linear_is_pygs_own() -> None:
    assert ours.Linear is pyg.Linear
