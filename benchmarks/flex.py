"""A row of attention between blocks of positions: FlexAttention, against ours on a graph of those blocks."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from pyg_basisconv.kernels import Pattern, ProductScores, Sums, scored_attention

from .compare import assert_close
from .gpu_rows import compared
from .measure import interleave
from .result import Bench, Result, Target

HEADS, D = 8, 64


class FlexRow:
    """Each position meets those of its own block and of the two beside it.

    FlexAttention is compiled on a GPU. On the CPU it runs as it is, forward only: more it cannot do there.
    """

    name = "attention between blocks of 128 positions, against FlexAttention"
    devices = ("cuda",)

    def run(self, bench: Bench) -> Result:
        on_gpu, (T, size) = bench.device == "cuda", (256, 16) if bench.quick else (16_384, 128)
        torch.manual_seed(0)
        sides = [torch.randn(T, HEADS * D, device=bench.device, requires_grad=on_gpu) for _ in range(3)]
        mask = create_block_mask(
            lambda batch, head, n, m: (n // size - m // size).abs() <= 1,
            None, None, T, T, device=bench.device, BLOCK_SIZE=size,
        )  # fmt: skip
        target, source = blocks(T // size, size).to(bench.device)
        pattern, attend = Pattern(source, target, T, T), torch.compile(flex_attention) if on_gpu else flex_attention

        def theirs() -> Tensor:
            query, key, value = (side.view(T, HEADS, D).transpose(0, 1).unsqueeze(0) for side in sides)
            return attend(query, key, value, block_mask=mask).squeeze(0).transpose(0, 1).reshape(T, -1)

        def ours() -> Tensor:
            query, key, value = sides
            return scored_attention(Sums(ProductScores(), True, pattern, HEADS), value, [key, query * D**-0.5])

        def step(attention: object) -> tuple[Tensor, ...]:
            y = attention()
            return (y.detach(), *torch.autograd.grad(y, sides, y.detach())) if on_gpu else (y,)

        for a, b in zip(step(ours), step(theirs), strict=True):
            assert_close(a, b, self.name)
        peer, mine = interleave([lambda: step(theirs), lambda: step(ours)], bench.effort, bench.device)
        gradients = "all" if on_gpu else "none"
        return compared(self.name, peer, mine, pattern.E, HEADS * D, Target(), "FlexAttention", gradients)


def blocks(count: int, size: int) -> Tensor:
    """(2, E) the pairs of positions of which the blocks are the same or side by side, by the first of them.

    >>> blocks(2, 1).tolist()
    [[0, 0, 1, 1], [0, 1, 0, 1]]
    """
    block = torch.arange(count * size) // size
    return ((block.unsqueeze(1) - block).abs() <= 1).nonzero().t()
