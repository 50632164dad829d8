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


def test_an_end_before_the_last_index() -> None:
    """Of torch, the mean is over the indices behind it, too, and the sum is not."""
    bags = convert(nn.EmbeddingBag(10, 3, mode="sum", include_last_offset=True))
    with pytest.raises(ValueError, match=r"^offsets: expected 0 first, .*, and 4 as the last"):
        bags(torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2, 3]))


@pytest.mark.parametrize("last", [True, False])
def test_offsets_that_are_none(last: bool) -> None:
    bags, held = convert(nn.EmbeddingBag(10, 3, mode="sum", include_last_offset=last)), torch.tensor([1, 2, 4, 5])
    y = bags(held, torch.tensor([0, 2, 2, 4]))
    torch.testing.assert_close(y.sum(0), bags.weight[held].sum(0))
    assert y.shape[0] == 4 - last
    for wrong in ([0, 3, 2, 4], [0, 5], [1, 2], [-1, 2], [0, -1], [0.0, 2.0], [[0, 2]], []):
        with pytest.raises(ValueError, match=r"^offsets: expected "):
            pytest.fail(f"{wrong}: {bags(held, torch.tensor(wrong))}")
    for wrong in (held.view(2, 2), held.double(), held + 5, -held):
        with pytest.raises(ValueError, match=r"^(input|edge_index): expected "):
            bags(wrong, torch.tensor([0, 4]))


def test_weights_of_bags() -> None:
    held, offsets = torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2])
    for mode, weights in (("mean", torch.rand(4)), ("sum", torch.rand(4, 1)), ("sum", torch.rand(3))):
        with pytest.raises(ValueError, match=r"^per_sample_weights: expected "):
            convert(nn.EmbeddingBag(10, 3, mode=mode))(held, offsets, weights)


def test_the_padding_learns_nothing() -> None:
    bags = convert(nn.EmbeddingBag(5, 3, padding_idx=1))
    bags(torch.tensor([[0, 1], [1, 1]])).sum().backward()
    assert bags.weight.grad.count_nonzero(1).tolist() == [3, 0, 0, 0, 0]


def test_the_drop_in_of_linear_is_pygs_own() -> None:
    assert ours.Linear is pyg.Linear
