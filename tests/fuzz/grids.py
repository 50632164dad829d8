"""Windows on images with drawn arguments, beside torch's layers, and what may be wrong with an image."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.bases.grids import oracle as grids
from tests.bases.grids.cases import Config, _chosen, _config

KINDS = (("conv", 1), ("conv", 2), ("conv", 2), ("convT", 1), ("convT", 2), ("avgpool", 1), ("avgpool", 2), ("conv", 3))


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """One that torch takes, and that is small."""
    kind, axes = draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    found = (_config(kind, axes, rng) for _ in range(1000))
    return next(c for c in found if _chosen(c) and np.prod(c.shape) <= 40 and np.prod(c.grid) <= 40)


def image_layouts(x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The same image in other layouts of memory, and as a parameter."""
    return {
        "plain": lambda: x,
        "channels last": lambda: x.movedim(1, -1).contiguous().movedim(-1, 1),
        "sliced": lambda: torch.stack([x, x * torch.nan], -1)[..., 0],
        "expanded": lambda: x[:1].expand(x.shape),
        "learnt": lambda: x.clone().requires_grad_(),
    }


def wrong_images(c: Config) -> dict[str, Any]:
    """What is no image for a layer of this kind."""
    x = c.image()
    wrong = {
        "None": None,
        "a list": x.tolist(),
        "numpy": x.numpy(),
        "a word": "image",
        "a pair": (x, None),
        "one axis": x.flatten(),
        "no axes": x.sum(),
        "too few axes": x[0, 0],
        "integers": x.long(),
        "bools": x > 0,
        "complex": x.to(torch.complex128),
        "sparse": x.to_sparse(),
    }
    if c.kind != "avgpool":
        wrong["channels"] = torch.cat([x, x], 1)
        wrong["float32"] = x.float()
        wrong["meta"] = x.to("meta")
    return wrong


def fits(shape: tuple[int, ...], a: dict[str, Any]) -> bool:
    """Whether torch's rules let a window have these arguments on a grid."""
    axes, kernel = len(shape), a["kernel_size"]
    stride, dilation = grids.per_axis(a["stride"], axes), grids.per_axis(a["dilation"], axes)
    more = grids.per_axis(a["output_padding"], axes)
    mode, transposed, ceil, norm = a["padding_mode"], a["transposed"], a["ceil_mode"], a["norm"]
    if transposed and (mode != "zeros" or ceil or norm or a["padding"] == "same"):
        return False
    if (ceil or norm) and mode != "zeros":
        return False
    if a["padding"] == "same" and (max(stride) > 1 or ceil):
        return False
    if any(more) and not transposed:
        return False
    if any(o and o >= max(s, d) for o, s, d in zip(more, stride, dilation, strict=True)):
        return False
    around = grids.paddings(kernel, a["padding"], dilation)
    limits = {"circular": shape, "reflect": tuple(s - 1 for s in shape)}.get(mode, (99,) * axes)
    if any(max(around[i]) > limits[i] for i in range(axes)):
        return False
    return (
        min(
            grids.grid(
                shape,
                **{k: v for k, v in a.items() if k not in ("padding_mode", "norm", "kernel_size")} | {"kernel": kernel},
            )
        )
        > 0
    )


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of a grid, and arguments of a window, which may contradict each other."""
    axes = draw(st.integers(1, 2))

    def each(low: int, high: int) -> tuple[int, ...]:
        return draw(st.tuples(*[st.integers(low, high)] * axes))

    def rarely(value: Any, *others: Any) -> Any:
        return draw(st.sampled_from([value, value, value, *others]))

    transposed = rarely(False, True)
    arguments = {
        "kernel_size": each(1, 3),
        "stride": rarely(1, 2, each(1, 3)),
        "padding": rarely(0, 1, "same", "valid", each(0, 3)),
        "dilation": rarely(1, 2, each(1, 2)),
        "padding_mode": "zeros" if transposed and draw(st.booleans()) else draw(st.sampled_from(grids.MODES)),
        "transposed": transposed,
        "output_padding": rarely(0, 1, each(0, 2)) if transposed else rarely(0, 0, 1),
        "ceil_mode": rarely(False, True),
        "norm": rarely(None, None, None, "mean", "padded"),
    }
    return each(1, 4), arguments


@st.composite
def sites(draw: st.DrawFn, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Some positions of a grid, each once, in any order; or none."""
    return draw(st.lists(st.sampled_from(grids.positions(shape)), unique=True, max_size=6))


def matrices(shape: tuple[int, ...], a: dict[str, Any]) -> Tensor:
    return grids.window(shape, **{k: v for k, v in a.items() if k != "kernel_size"} | {"kernel": a["kernel_size"]})
