"""Conversion of torch's layers between taps and channels: any windows, any leading axes, and what is refused."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pyg_basisconv import convert
from pyg_basisconv.verify import Case, features
from tests.convert.conversion import agree, left_of


def test_any_fold_and_unfold() -> None:
    draw, compared = random.Random(0), 0
    while compared < 12:
        size, kernel, stride, padding, dilation = (
            tuple(draw.randint(*ends) for _ in range(2)) for ends in ((1, 9), (1, 3), (1, 3), (0, 2), (1, 3))
        )
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        unfold, image = nn.Unfold(kernel, **options), features(2, 3, *size)
        try:
            x = unfold(image)
        except RuntimeError:  # a window that does not fit
            assert "does not fit" in left_of(nn.Fold(size, kernel, **options))[""]
            continue
        reference = nn.Fold(size, kernel, **options)
        agree(Case(convert(reference), reference, [x]))
        agree(Case(convert(unfold), unfold, [image]))
        compared += 1


def test_folding_what_was_unfolded_counts_the_windows() -> None:
    window = {"kernel_size": 3, "stride": 2, "padding": 1}
    x, ones = features(2, 4, 6, 7), torch.ones(1, 1, 6, 7)
    both = nn.Sequential(convert(nn.Unfold(**window)), convert(nn.Fold((6, 7), **window)))
    torch.testing.assert_close(both(x), x * both(ones))


@pytest.mark.parametrize("lead", [(), (0,), (2, 3)], ids=str)
def test_pixels_of_any_batch(lead: tuple[int, ...]) -> None:
    reference = nn.PixelShuffle(3)
    x = features(*lead, 18, 2, 5)
    assert torch.equal(convert(reference)(x), reference(x))


REFUSED: dict[str, Callable[[], object]] = {
    "6 x 7 patches, got 41": lambda: convert(nn.Fold((8, 9), 3))(torch.ones(2, 18, 41)),
    "a multiple of 9 channels, one for each tap, got 10": lambda: convert(nn.Fold((8, 9), 3))(torch.ones(2, 10, 42)),
    "a multiple of 4 channels, one for each tap, got 6": lambda: convert(nn.PixelShuffle(2))(torch.ones(2, 6, 3, 3)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refused(said: str) -> None:
    with pytest.raises(ValueError, match=f"^input: expected {said}; "):
        REFUSED[said]()
