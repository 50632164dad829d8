"""Random configurations of torch's own convolutions and poolings, and the same as layers of this library."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from pyg_basisconv import BasisConv, GridConv, bases, theta
from pyg_basisconv.bases import Basis
from pyg_basisconv.theta import Theta
from tests.bases.grids import oracle as grids
from tests.bases.grids.oracle import Position, per_axis

DOUBLE = torch.float64
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(dtype)


@dataclass(frozen=True)
class Config:
    """One convolution (conv), transposed convolution (convT) or average pooling (avgpool)."""

    kind: str
    shape: Position
    kernel: Position
    stride: Position
    padding: Position | str
    dilation: Position
    mode: str = "zeros"
    groups: int = 1
    output_padding: Position = ()
    ceil_mode: bool = False
    include_pad: bool = True
    P: int = 2
    Q: int = 2
    bias: bool = True
    B: int = 2

    @property
    def axes(self) -> int:
        return len(self.shape)

    @property
    def K(self) -> int:
        return int(np.prod(self.kernel))

    @property
    def transposed(self) -> bool:
        return self.kind == "convT"

    @property
    def name(self) -> str:
        def x(sizes: Position | str) -> str:
            return sizes if isinstance(sizes, str) else "x".join(map(str, sizes))

        parts = [f"{self.kind}{self.axes}d", x(self.shape), f"k{x(self.kernel)}", f"s{x(self.stride)}"]
        parts += [f"p{x(self.padding)}"]
        if self.kind == "avgpool":
            parts += ["ceil"] * self.ceil_mode + ["seen"] * (not self.include_pad)
            return "-".join([*parts, f"c{self.P}"])
        parts += [f"d{x(self.dilation)}"]
        parts += [f"o{x(self.output_padding)}"] * self.transposed + [self.mode] * (self.mode != "zeros")
        return "-".join([*parts, *[f"g{self.groups}"] * (self.groups > 1), f"c{self.P}x{self.Q}"])

    @property
    def depthwise(self) -> bool:
        return self.groups == self.P == self.Q > 1

    @property
    def norm(self) -> str | None:
        if self.kind != "avgpool":
            return None
        return "mean" if not self.include_pad else "padded" if self.ceil_mode else None

    @property
    def arguments(self) -> dict:
        """Of a window, for the library and for the oracle."""
        given = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "padding_mode": self.mode}
        if self.transposed:
            given |= {"transposed": True, "output_padding": self.output_padding}
        if self.kind == "avgpool":
            given |= {"ceil_mode": self.ceil_mode, "norm": self.norm}
        return given

    def window(self, shape: Position | None = None) -> bases.Window:
        return bases.Window(shape, self.kernel, **self.arguments)

    @property
    def matrices(self) -> Tensor:
        return grids.window(self.shape, self.kernel, **self.arguments)

    @property
    def grid(self) -> Position:
        a = self.arguments
        keys = ("stride", "padding", "dilation", "transposed", "output_padding", "ceil_mode")
        return grids.grid(self.shape, self.kernel, **{k: a[k] for k in keys if k in a})

    def image(self, seed: int = 0) -> Tensor:
        return draw(self.B, self.P, *self.shape, seed=seed)

    def torch(self) -> nn.Module:
        """The layer of torch, with drawn parameters."""
        if self.kind == "avgpool":
            return POOLS[self.axes](self.kernel, self.stride, self.padding, self.ceil_mode, self.include_pad)
        if self.transposed:
            args = (self.stride, self.padding, self.output_padding, self.groups, self.bias, self.dilation)
            layer = TRANSPOSED[self.axes](self.P, self.Q, self.kernel, *args)
        else:
            args = (self.stride, self.padding, self.dilation, self.groups, self.bias, self.mode)
            layer = CONVS[self.axes](self.P, self.Q, self.kernel, *args)
        for seed, parameter in enumerate(layer.parameters()):
            parameter.data = draw(*parameter.shape, seed=seed + 5)
        return layer

    def theta(self) -> Theta:
        if self.kind == "avgpool":
            return theta.Pass(scale=1 / self.K if self.norm is None else 1.0)
        if self.depthwise:
            return theta.Depthwise()
        return theta.Full() if self.groups == 1 else theta.Grouped(self.groups)

    def weight(self, weight: Tensor) -> Tensor:
        """Torch's weight, or a gradient of it, as that of the theta."""
        P, Q, g, K = self.P, self.Q, self.groups, self.K
        if self.depthwise:
            return weight.reshape(P, K).t()
        if self.transposed:
            blocks = weight.reshape(g, P // g, Q // g, K).permute(3, 0, 1, 2)
        else:
            blocks = weight.reshape(g, Q // g, P // g, K).permute(3, 0, 2, 1)
        return blocks[:, 0] if g == 1 else blocks

    def dense(self, layer: nn.Module) -> Tensor:
        """(K, P, Q), of the layer of torch."""
        P, Q, g, K = self.P, self.Q, self.groups, self.K
        if self.kind == "avgpool":
            return torch.eye(P, dtype=DOUBLE).expand(K, P, P) / (K if self.norm is None else 1)
        Theta = torch.zeros(K, P, Q, dtype=DOUBLE)
        weight = layer.weight.detach()
        for p in range(P):
            for q in range(Q):
                if p * g // P != q * g // Q:
                    continue
                own = weight[p, q % (Q // g)] if self.transposed else weight[q, p % (P // g)]
                Theta[:, p, q] = own.flatten()
        return Theta

    def fill(self, conv: BasisConv, layer: nn.Module) -> BasisConv:
        """The layer of this library with the parameters of torch's."""
        if self.kind != "avgpool":
            conv.theta.weight.data = self.weight(layer.weight.detach()).clone()
            if self.bias:
                conv.bias.data = layer.bias.detach().clone()
        return conv.double()

    def grid_conv(self, layer: nn.Module, window: Basis | None = None, order: str = "auto") -> GridConv:
        widths = (-1, -1) if self.kind == "avgpool" else (self.P, self.Q)
        bias = self.bias and self.kind != "avgpool"
        conv = GridConv(*widths, self.window() if window is None else window, self.theta(), bias=bias, order=order)
        return self.fill(conv, layer)

    def edge_conv(self, layer: nn.Module) -> BasisConv:
        widths = (-1, -1) if self.kind == "avgpool" else (self.P, self.Q)
        bias = self.bias and self.kind != "avgpool"
        return self.fill(BasisConv(*widths, bases.Edges(self.K), self.theta(), bias=bias), layer)

    def but(self, **changes) -> "Config":
        return replace(self, **changes)


def call_torch(layer: nn.Module, x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using padding='same' with even kernel lengths", UserWarning)
        return layer(x)


def _chosen(config: Config) -> bool:
    """Whether torch takes it and it is small."""
    c = config
    for i in range(c.axes):
        reach = c.dilation[i] * (c.kernel[i] - 1)
        before, after = grids.paddings(c.kernel, c.padding, c.dilation)[i]
        if c.transposed:
            if c.output_padding[i] >= max(c.stride[i], c.dilation[i]):
                return False
        elif c.shape[i] + before + after < reach + 1 and not c.ceil_mode:
            return False
        limit = {"circular": c.shape[i], "reflect": c.shape[i] - 1}.get(c.mode, c.shape[i] + 9)
        if max(before, after) > limit:
            return False
    small = np.prod(c.grid) <= 220 and min(c.grid) > 0
    return bool(small and np.prod(c.shape) <= 130)


def _config(kind: str, axes: int, rng: np.random.Generator) -> Config:
    def sizes(low: int, high: int) -> Position:
        return tuple(int(n) for n in rng.integers(low, high + 1, axes))

    def some(chance: float, low: int, high: int, otherwise: int) -> Position:
        return sizes(low, high) if rng.random() < chance else (otherwise,) * axes

    shape = sizes(3, 7) if axes < 3 else sizes(3, 5)
    kernel = sizes(1, 4) if axes < 3 else sizes(1, 3)
    stride, padding = some(0.5, 1, 3, 1), some(0.7, 0, 2, 0)
    if kind == "avgpool":
        kernel, stride = tuple(max(2, k) for k in kernel), some(0.9, 1, 3, 1)
        padding = tuple(min(p, k // 2) for p, k in zip(padding, kernel, strict=True))
        ceil_mode, include_pad = bool(rng.random() < 0.6), bool(rng.random() < 0.5)
        P = int(rng.integers(2, 5))
        more = {"ceil_mode": ceil_mode, "include_pad": include_pad, "P": P, "Q": P, "bias": False}
        return Config(kind, shape, kernel, stride, padding, (1,) * axes, **more)
    groups = int(rng.choice([1, 1, 2, 3]))
    P, Q = (groups * int(n) for n in rng.integers(1, 3 if groups > 1 else 5, 2))
    more = {"groups": groups, "P": P, "Q": Q, "bias": bool(rng.random() < 0.8)}
    dilation = some(0.4, 1, 3, 1)
    if kind == "convT":
        output_padding = some(0.5, 0, 2, 0)
        return Config(kind, shape, kernel, stride, padding, dilation, output_padding=output_padding, **more)
    mode = str(rng.choice(["zeros", "zeros", "circular", "reflect", "replicate"]))
    if rng.random() < 0.2:
        stride, padding = (1,) * axes, "same"
    elif rng.random() < 0.05:
        padding = "valid"
    return Config(kind, shape, kernel, stride, padding, dilation, mode, **more)


COUNTS = {
    ("conv", 1): 60,
    ("conv", 2): 90,
    ("conv", 3): 45,
    ("convT", 1): 25,
    ("convT", 2): 40,
    ("convT", 3): 20,
    ("avgpool", 1): 25,
    ("avgpool", 2): 35,
    ("avgpool", 3): 20,
}


def sweep(seed: int = 0) -> dict[str, Config]:
    rng = np.random.default_rng(seed)
    found: dict[str, Config] = {}
    for (kind, axes), count in COUNTS.items():
        goal = len(found) + count
        while len(found) < goal:
            config = _config(kind, axes, rng)
            if _chosen(config):
                found.setdefault(config.name, config)
    return found


SWEEP = sweep()

SHARES: dict[str, Callable[[Config], bool]] = {
    # what some of the sweep must be, for each of 1 to 3 axes
    "even 'same'": lambda c: c.padding == "same" and any(k % 2 == 0 for k in c.kernel),
    "dilated": lambda c: max(c.dilation) > 1 and max(c.kernel) > 1,
    "anisotropic": lambda c: c.axes == 1 or min(len({*sizes}) for sizes in (c.shape, c.kernel, c.stride)) > 1,
    "stride beyond the kernel": lambda c: any(s > k for s, k in zip(c.stride, c.kernel, strict=True)),
    "rest": lambda c: c.kind == "conv" and c.padding != "same" and _rest(c),
    "groups": lambda c: c.groups > 1 and not c.depthwise,
    "depthwise": lambda c: c.depthwise,
    "transposed with output_padding": lambda c: c.transposed and max(c.output_padding) > 0,
    "transposed, dilated": lambda c: c.transposed and max(c.dilation) > 1,
    "pool, ceil": lambda c: c.kind == "avgpool" and c.ceil_mode and c.grid != c.but(ceil_mode=False).grid,
    "pool of what is seen": lambda c: c.kind == "avgpool" and not c.include_pad and max(c.padding) > 0,
    "no bias": lambda c: c.kind != "avgpool" and not c.bias,
    **{
        mode: lambda c, mode=mode: c.mode == mode and (c.padding == "same" or (c.padding != "valid" and max(c.padding)))
        for mode in ("circular", "reflect", "replicate")
    },
}


def _rest(c: Config) -> bool:
    """Whether the last places of the padded grid are read by nobody."""
    padding = per_axis(0 if c.padding == "valid" else c.padding, c.axes)
    reach = [d * (k - 1) for k, d in zip(c.kernel, c.dilation, strict=True)]
    return any((s + 2 * p - r - 1) % t for s, p, r, t in zip(c.shape, padding, reach, c.stride, strict=True))
