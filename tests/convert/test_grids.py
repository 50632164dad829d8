"""Conversion of torch's layers on grids: the same function, whatever the options, the memory format and the model."""

import copy
import pickle
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from pyg_basisconv import convert, theta
from pyg_basisconv.verify import GRIDS, Case, features, made
from pyg_basisconv.verify.recipes import B, dimensions, grid_of, is_grid
from tests.bases.grids.cases import _chosen, _config
from tests.convert.conversion import FIRST, OPTIONS, agree

P, Q = 4, 6  # channels
GRIDDED = {kind: sweep for kind, sweep in OPTIONS.items() if is_grid(kind)}
KINDS = [p for p in FIRST if is_grid(p.values[0])]
FORMATS = {1: [torch.contiguous_format], 2: [torch.contiguous_format, torch.channels_last]}
FORMATS[3] = [torch.contiguous_format, torch.channels_last_3d]


def image(kind: str, *lead: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*lead, P, *grid_of(kind), dtype=dtype)


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d"])
def test_the_weight_is_that_of_torch(kind: str) -> None:
    for options in ({}, {"groups": 2}, {"groups": P, "out_channels": P}, {"groups": P, "out_channels": 2 * P}):
        reference = made(kind, options)
        kernel = convert(reference).theta
        assert type(kernel) is theta.Kernel
        assert torch.equal(kernel.weight, reference.weight)
        assert (kernel.groups, kernel.transposed) == (reference.groups, kind == "ConvTranspose2d")


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch, of its own way to pad
@pytest.mark.parametrize("n", GRIDS)
def test_padding_on_one_side(n: int) -> None:
    for options in ({"kernel_size": 4}, {"kernel_size": 2, "dilation": 3}, {"kernel_size": (4, 3, 2)[-n:]}):
        for mode in ("zeros", "circular", "reflect", "replicate"):
            given = {**options, "padding": "same", "padding_mode": mode, "groups": 2}
            reference = made(f"Conv{n}d", given)
            agree(Case(convert(reference), reference, [image(f"Conv{n}d", B)]))


def test_a_mode_that_is_set_later() -> None:
    reference = made("Conv2d", {"padding": 1})
    reference.padding_mode = "circular"  # torch reads it in each call
    agree(Case(convert(reference), reference, [image("Conv2d", B)]))


@pytest.mark.parametrize("n", [1, 2])  # of three axes torch asks for room
def test_a_window_larger_than_the_grid_that_is_cut_off(n: int) -> None:
    for options in ({"count_include_pad": True}, {"count_include_pad": False}):
        reference = made(f"AvgPool{n}d", {"kernel_size": 2, "stride": 3, "ceil_mode": True} | options)
        agree(Case(convert(reference), reference, [features(B, P, *([4] * (n - 1)), 1)]))


@pytest.mark.parametrize(("kind", "n"), [(kind, n) for kind in ("conv", "convT", "avgpool") for n in GRIDS], ids=str)
@pytest.mark.sweep(2)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch, of its own way to pad
def test_any_options(kind: str, n: int) -> None:
    rng = np.random.default_rng(n)
    configs = (c for c in (_config(kind, n, rng) for _ in range(10_000)) if _chosen(c))
    for c in islice(configs, 12):
        reference = c.torch()
        agree(Case(convert(reference), reference, [c.image()]))


# torch's PixelUnshuffle gives a batch without images the shape of its input.
@pytest.mark.parametrize(("kind", "options"), [p for p in KINDS if p.values[0] != "PixelUnshuffle"])
def test_no_images(kind: str, options: dict) -> None:
    reference = made(kind, options)
    x = image(kind, 0)
    assert convert(reference)(x).shape == reference(x).shape


def test_upsampling_takes_images_of_its_axes() -> None:
    with pytest.raises(ValueError, match=r"^input: expected images of 2d, got \(2, 3, 4\)"):
        convert(torch.nn.Upsample(scale_factor=(2, 3)))(torch.ones(2, 3, 4))


def test_grids_of_many_sizes_for_one_layer() -> None:
    reference = made("Conv2d", {"stride": 2, "padding": 1})
    ours = convert(reference)
    for shape in ((6, 7), (7, 6), (3, 3), (1, 9), (6, 7)):
        agree(Case(ours, reference, [features(B, P, *shape)]))


@pytest.mark.parametrize("kind", ["AvgPool1d", "AvgPool2d", "AvgPool3d", "Unfold"])
def test_layers_without_parameters_take_any_width(kind: str) -> None:
    reference = made(kind, GRIDDED[kind][1])
    ours = convert(reference)
    for width in (1, 5, 3):
        agree(Case(ours, reference, [features(B, width, *GRIDS[dimensions(kind)])]))


# --- the call ---


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_the_input_by_name(kind: str, options: dict) -> None:
    reference = made(kind, options)
    x = image(kind, B)
    torch.testing.assert_close(convert(reference)(input=x), reference(input=x))


@pytest.mark.parametrize("n", GRIDS)
def test_every_output_size(n: int) -> None:
    grid = GRIDS[n]
    for options in ({"stride": 3, "padding": 1}, {"stride": (3, 1, 2)[-n:], "groups": 2}, {"groups": P, "stride": 2}):
        reference = made(f"ConvTranspose{n}d", {"out_channels": P} | options)
        ours = convert(reference)
        x = features(B, P, *grid)
        least = list(reference(x).shape[2:])
        for more in range(max(reference.stride)):
            size = [m + min(more, s - 1) for m, s in zip(least, reference.stride, strict=True)]
            agree(Case(ours, reference, [x], lambda f, x, size=size: f(x, output_size=size)))
            agree(Case(ours, reference, [x[0]], lambda f, x, size=size: f(x, torch.Size(size))))
            agree(Case(ours, reference, [x], lambda f, x, size=size: f(x, [B, P, *size])))
        wrong = ([least[0] - 1, *least[1:]], [least[0] + max(reference.stride), *least[1:]], [*least, 1], least * 4)
        for size in wrong:
            for f in (ours, reference):
                with pytest.raises(ValueError, match=r"output.size"):
                    f(x, output_size=size)
        agree(Case(ours, reference, [x]))


def test_an_output_size_goes_to_the_parameters_of_the_layer() -> None:
    ours = convert(made("ConvTranspose2d", {"stride": 2}))
    before = repr(ours)
    ours(image("ConvTranspose2d", B), output_size=(14, 16)).sum().backward()
    assert all(p.grad is not None for p in ours.parameters())
    assert repr(ours) == before


# --- memory ---


@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"groups": P, "out_channels": P}])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("n", GRIDS)
def test_theta_is_laid_out_as_the_kernel(n: int, kind: str, options: dict) -> None:
    for form in FORMATS[n]:
        reference = made(f"{kind}{n}d", options).to(memory_format=form)
        ours = convert(reference)
        for same in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours).float()):
            assert same.theta.weight.shape == reference.weight.shape
            assert same.theta.weight.stride() == reference.weight.stride()


FORMAT_CASES = [
    ("Conv2d", {}),
    ("Conv2d", {"stride": 2, "padding": 1, "bias": False}),
    ("Conv2d", {"kernel_size": 1}),
    ("Conv2d", {"in_channels": 1}),
    ("Conv2d", {"in_channels": 1, "out_channels": 1}),
    ("Conv2d", {"in_channels": 1, "kernel_size": 1}),
    ("Conv2d", {"out_channels": 1, "padding": 1}),
    ("Conv2d", {"padding": 1, "padding_mode": "reflect"}),
    ("Conv2d", {"padding": 1, "padding_mode": "circular"}),
    ("Conv2d", {"groups": 2, "padding": "same"}),
    ("Conv2d", {"groups": P, "out_channels": P, "padding": 1}),
    ("ConvTranspose2d", {}),
    ("ConvTranspose2d", {"stride": 2, "groups": P, "out_channels": P}),
    ("AvgPool2d", {"kernel_size": 2}),
    ("AvgPool2d", {"kernel_size": 2, "ceil_mode": True}),
    ("AvgPool2d", {"kernel_size": 3, "padding": 1, "count_include_pad": False}),
    ("Conv3d", {}),
    ("Conv3d", {"padding": 1, "groups": 2}),
    ("ConvTranspose3d", {"stride": 2}),
    ("AvgPool3d", {"kernel_size": 2}),
]


@pytest.mark.parametrize(("kind", "options"), FORMAT_CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.sweep(10)
def test_memory_formats(kind: str, options: dict, dtype: torch.dtype) -> None:
    forms = FORMATS[dimensions(kind)]
    for of_model in forms:
        for of_input in forms:
            reference = made(kind, options).to(dtype).to(memory_format=of_model)
            ours = convert(reference)
            width = options.get("in_channels", P)
            x = image(kind, B, dtype=dtype)[:, :width].clone().to(memory_format=of_input)
            for order in ("auto", "native"):
                ours.order = order
                y, expected = ours(x), reference(x)
                torch.testing.assert_close(y, expected)
                for form in forms:
                    assert y.is_contiguous(memory_format=form) == expected.is_contiguous(memory_format=form)
                strides = zip(y.stride(), expected.stride(), y.shape, strict=True)
                assert all(found == wanted for found, wanted, size in strides if size > 1)


# --- what carries over ---


def test_widths_are_told() -> None:
    ours = convert(nn.Conv2d(3, 8, 3, groups=1))
    assert (ours.in_channels, ours.out_channels) == (3, 8)


@pytest.mark.parametrize("form", FORMATS[2])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("Conv2d", {}), ("Conv2d", {"groups": 2, "padding": 1}), ("ConvTranspose2d", {"stride": 2}), ("AvgPool2d", {})],
)
def test_functions_of_functions(kind: str, options: dict, form: torch.memory_format) -> None:
    reference = made(kind, {"kernel_size": 2} | options).to(memory_format=form)
    ours = convert(reference)
    x = features(3, B, P, 6, 7)
    torch.testing.assert_close(vmap(ours)(x), torch.stack([reference(image) for image in x]))
    torch.testing.assert_close(*(jvp(f, (x[0],), (x[1],))[1] for f in (ours, reference)))
    seconds = []
    for f in (ours, reference):
        leaf = x[0].clone().requires_grad_()
        (first,) = torch.autograd.grad(f(leaf).tanh().square().sum(), leaf, create_graph=True)
        seconds += torch.autograd.grad(first.square().sum(), leaf)
    torch.testing.assert_close(*seconds)
    if list(ours.parameters()):
        each = vmap(lambda image: grad(lambda p: functional_call(ours, p, (image,)).square().sum())(state))
        state = dict(ours.named_parameters())
        per_image = each(x)["theta.weight"]
        for image, found in zip(x, per_image, strict=True):
            (expected,) = torch.autograd.grad(ours(image).square().sum(), ours.theta.weight)
            torch.testing.assert_close(found, expected)


def test_lazy_layers_once_they_are_called() -> None:
    lazy = nn.LazyConv2d(Q, 3)
    lazy(torch.randn(B, P, 6, 7))
    lazy = lazy.double()
    agree(Case(convert(lazy), lazy, [features(B, P, 6, 7)]))
