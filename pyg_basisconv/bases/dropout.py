"""Dropout of the weights of attention: their factors are 0 with probability p, else 1 / (1 - p).

Those of a call are the same when they are asked for again, as where the backward pass evaluates weights anew.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..entries import Entries
from ..kernels.grids import Ints
from ..portable import with_plain


@with_plain(lambda value, seed: torch.rand_like(value))
def _draw(value: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(value.device).manual_seed(seed)
    return torch.rand(value.shape, generator=generator, device=value.device)


@with_plain(lambda: 0)
def _new_seed() -> int:
    """From torch's generator; in the portable path none is needed."""
    return int(torch.randint(1 << 60, (), device="cpu"))


class Seeded:
    """Draws for some weights at a time, by a seed."""

    def __init__(self, p: float) -> None:
        self.p, self.seed = p, _new_seed()

    def factors(self, weights: Tensor, first: int = 0) -> Tensor:
        """Of weights, the first of which has a number among all."""
        return (_draw(weights, self.seed + first) >= self.p).to(weights.dtype).div_(1 - self.p)


class AtOnce:
    """Draws for all weights of a call at once, by torch's dropout, in the order in which the entries were given.

    So the layers of PyG draw, whose weights are (E, heads).
    """

    def __init__(self, p: float) -> None:
        self.p = p
        self._drawn: Tensor | None = None

    def factors(self, entries: Entries, K: int, dtype: torch.dtype, batch: Ints = ()) -> Tensor:
        r"""(\*, E, K) of all entries, by target."""
        if self._drawn is None:
            drawn = F.dropout(torch.ones(*batch, entries.E, K, dtype=dtype, device=entries.device), self.p)
            order = entries.pattern.by_target.order
            self._drawn = drawn if order is None else drawn.index_select(-2, order)
        return self._drawn.to(dtype)


Dropout = Seeded | AtOnce
