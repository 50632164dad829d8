"""Conversion of torch's layers on grids: the same function, whatever the options, the memory format and the model."""

import copy
import io
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch_geometric.explain import Explainer, GNNExplainer

from pyg_basisconv import GridConv, bases, convert, theta
from pyg_basisconv.convert.registry import convertible
from pyg_basisconv.verify import GRIDS, LAYERS, Case, drawn, features, graph, gridded, torch_layer
from pyg_basisconv.verify.grids import B, P, Q, dimensions
from tests.convert.conversion import agree, left_of

SWEEP = [
    pytest.param(kind, options, id="-".join([kind, *(f"{k}={v}" for k, v in options.items())]))
    for kind, sweep in LAYERS.items()
    for options in sweep
]
KINDS = [pytest.param(kind, sweep[0], id=kind) for kind, sweep in LAYERS.items()]
FORMATS = {1: [torch.contiguous_format], 2: [torch.contiguous_format, torch.channels_last]}
FORMATS[3] = [torch.contiguous_format, torch.channels_last_3d]


def image(kind: str, *lead: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*lead, P, *GRIDS[dimensions(kind)], dtype=dtype)


# --- options ---


@pytest.mark.parametrize(("kind", "options"), SWEEP)
def test_options(kind: str, options: dict) -> None:
    for case in gridded(kind, options):
        agree(case)
        modules = [copy.deepcopy(f).float() for f in (case.ours, case.reference)]
        assert all(f.training for f in modules)
        agree(Case(*modules, [leaf.float() for leaf in case.leaves], case.call), 1e-5)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_the_result_is_a_grid_conv(kind: str, options: dict) -> None:
    ours = convert(torch_layer(kind, options))
    assert isinstance(ours, GridConv)
    assert isinstance(ours.basis, bases.Window)
    assert not convertible(ours)


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d"])
def test_the_parameter_that_fits_the_groups(kind: str) -> None:
    made = {
        theta.Full: {},
        theta.Grouped: {"groups": 2},
        theta.Depthwise: {"groups": P, "out_channels": P},
    }
    for expected, options in made.items():
        assert type(convert(torch_layer(kind, options)).theta) is expected
    assert type(convert(torch_layer(kind, {"groups": P, "out_channels": 2 * P})).theta) is theta.Grouped


@pytest.mark.parametrize("kind", [f"Conv{n}d" for n in GRIDS])
def test_padding_that_pads_nothing(kind: str) -> None:
    for mode in ("reflect", "circular", "replicate"):
        reference = torch_layer(kind, {"padding_mode": mode})
        agree(Case(convert(reference), reference, [image(kind, B)]))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch, of its own way to pad
@pytest.mark.parametrize("n", GRIDS)
def test_padding_on_one_side(n: int) -> None:
    for options in ({"kernel_size": 4}, {"kernel_size": 2, "dilation": 3}, {"kernel_size": (4, 3, 2)[-n:]}):
        for mode in ("zeros", "circular", "reflect", "replicate"):
            given = {**options, "padding": "same", "padding_mode": mode, "groups": 2}
            reference = torch_layer(f"Conv{n}d", given)
            agree(Case(convert(reference), reference, [image(f"Conv{n}d", B)]))


def test_a_mode_that_is_set_later() -> None:
    reference = torch_layer("Conv2d", {"padding": 1})
    reference.padding_mode = "circular"  # torch reads it in each call
    agree(Case(convert(reference), reference, [image("Conv2d", B)]))


def test_sizes_for_one_axis_or_for_all() -> None:
    for reference in (nn.AvgPool2d((2,), (1,), (1,)), nn.AvgPool3d((2,), 1), nn.Unfold((2, 3), padding=1)):
        x = features(B, P, 6, 7, *([5] * isinstance(reference, nn.AvgPool3d)))
        agree(Case(convert(reference), reference, [x]))


@pytest.mark.parametrize("n", [1, 2])  # of three axes torch asks for room
def test_a_window_larger_than_the_grid_that_is_cut_off(n: int) -> None:
    for options in ({"count_include_pad": True}, {"count_include_pad": False}):
        reference = torch_layer(f"AvgPool{n}d", {"kernel_size": 2, "stride": 3, "ceil_mode": True} | options)
        agree(Case(convert(reference), reference, [features(B, P, *([4] * (n - 1)), 1)]))


def drawn_options(kind: str, draw: random.Random) -> dict[str, Any]:
    """Options of a layer, any of them that torch takes."""
    n = dimensions(kind)
    kernel, stride, padding, dilation = (
        tuple(draw.randint(*ends) for _ in range(n)) for ends in ((1, 4), (1, 3), (0, 3), (1, 3))
    )
    options: dict[str, Any] = {"kernel_size": kernel, "stride": stride, "padding": padding}
    if kind.startswith("AvgPool"):
        flags = {name: draw.random() < 0.5 for name in ("ceil_mode", "count_include_pad")}
        return options | flags | {"padding": tuple(draw.randint(0, k // 2) for k in kernel)}
    options |= {"dilation": dilation}
    if kind == "Unfold":
        return options
    options |= {
        "groups": draw.choice((1, 1, 2, P)),
        "out_channels": draw.choice((P, 2 * P)),
        "bias": draw.random() < 0.7,
    }
    if kind.startswith("ConvTranspose"):
        most = zip(stride, dilation, strict=True)
        return options | {"output_padding": tuple(draw.randint(0, max(pair) - 1) for pair in most)}
    return options | {"padding_mode": draw.choice(("zeros", "reflect", "replicate", "circular"))}


@pytest.mark.parametrize("kind", LAYERS)
def test_any_options(kind: str) -> None:
    draw, compared = random.Random(kind), 0
    while compared < 12:
        reference = torch_layer(kind, drawn_options(kind, draw))
        x = features(B, P, *(draw.randint(1, 6) for _ in range(dimensions(kind))))
        try:
            reference(x)
        except RuntimeError:  # a window that does not fit, a padding that the grid is too small for
            continue
        agree(Case(convert(reference), reference, [x]))
        compared += 1


def test_one_channel() -> None:
    for kind in ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d"):
        for widths in ((1, 1), (1, 3), (3, 1)):
            reference = torch_layer(kind, {"in_channels": widths[0], "out_channels": widths[1], "padding": 1})
            agree(Case(convert(reference), reference, [features(B, widths[0], *GRIDS[dimensions(kind)])]))


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_no_images(kind: str, options: dict) -> None:
    reference = torch_layer(kind, options)
    x = image(kind, 0)
    assert convert(reference)(x).shape == reference(x).shape


def test_grids_of_many_sizes_for_one_layer() -> None:
    reference = torch_layer("Conv2d", {"stride": 2, "padding": 1})
    ours = convert(reference)
    for shape in ((6, 7), (7, 6), (3, 3), (1, 9), (6, 7)):
        agree(Case(ours, reference, [features(B, P, *shape)]))


@pytest.mark.parametrize("kind", ["AvgPool1d", "AvgPool2d", "AvgPool3d", "Unfold"])
def test_layers_without_parameters_take_any_width(kind: str) -> None:
    reference = torch_layer(kind, LAYERS[kind][1])
    ours = convert(reference)
    for width in (1, 5, 3):
        agree(Case(ours, reference, [features(B, width, *GRIDS[dimensions(kind)])]))


# --- the call ---


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_the_input_by_name(kind: str, options: dict) -> None:
    reference = torch_layer(kind, options)
    x = image(kind, B)
    torch.testing.assert_close(convert(reference)(input=x), reference(input=x))


@pytest.mark.parametrize("n", GRIDS)
def test_every_output_size(n: int) -> None:
    grid = GRIDS[n]
    for options in ({"stride": 3, "padding": 1}, {"stride": (3, 1, 2)[-n:], "groups": 2}, {"groups": P, "stride": 2}):
        reference = torch_layer(f"ConvTranspose{n}d", {"out_channels": P} | options)
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
    ours = convert(torch_layer("ConvTranspose2d", {"stride": 2}))
    before = repr(ours)
    ours(image("ConvTranspose2d", B), output_size=(14, 16)).sum().backward()
    assert all(p.grad is not None for p in ours.parameters())
    assert repr(ours) == before


# --- memory ---


@pytest.mark.parametrize(
    ("kind", "options", "turned"),
    [
        ("Conv", {}, lambda w: w.permute(2, 1, 0)),
        ("Conv", {"groups": 2}, lambda w: w.permute(1, 3, 2, 0)),
        ("Conv", {"groups": P, "out_channels": P}, lambda w: w.t()),
        ("ConvTranspose", {}, lambda w: w.permute(1, 2, 0)),
        ("ConvTranspose", {"groups": 2}, lambda w: w.permute(1, 2, 3, 0)),
        ("ConvTranspose", {"groups": P, "out_channels": P}, lambda w: w.t()),
    ],
)
@pytest.mark.parametrize("n", GRIDS)
def test_theta_is_laid_out_as_the_kernel(n: int, kind: str, options: dict, turned: Callable) -> None:
    for form in FORMATS[n]:
        reference = torch_layer(f"{kind}{n}d", options).to(memory_format=form)
        ours = convert(reference)
        for same in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours).float()):
            kernel = turned(same.theta.weight).unflatten(-1, reference.kernel_size)
            kernel = kernel.reshape(reference.weight.shape)
            assert kernel.data_ptr() == same.theta.weight.data_ptr()
            strides = zip(kernel.stride(), reference.weight.stride(), kernel.shape, strict=True)
            assert all(ours == theirs for ours, theirs, size in strides if size > 1)


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
def test_memory_formats(kind: str, options: dict, dtype: torch.dtype) -> None:
    forms = FORMATS[dimensions(kind)]
    for of_model in forms:
        for of_input in forms:
            reference = torch_layer(kind, options).to(dtype).to(memory_format=of_model)
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


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_state(kind: str, options: dict) -> None:
    reference = torch_layer(kind, options)
    before, generator = copy.deepcopy(reference.state_dict()), torch.get_rng_state()
    ours = convert(reference.eval())
    assert torch.equal(generator, torch.get_rng_state())
    assert not any(m.training for m in ours.modules())
    assert all(m.training for m in convert(reference.train()).modules())
    x = image(kind, B)
    expected = ours(x)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    other = convert(torch_layer(kind, options))
    other.load_state_dict(torch.load(file))
    for same in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), other, convert(ours)):
        torch.testing.assert_close(same(x), expected, rtol=0, atol=0)
    ours.reset_parameters()
    assert ours(x).isfinite().all()
    assert not list(ours.parameters()) or not torch.equal(ours(x), expected)
    torch.testing.assert_close(dict(reference.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype(dtype: torch.dtype) -> None:
    for kind, sweep in LAYERS.items():
        if kind == "AvgPool3d" and dtype.itemsize == 2:
            continue  # torch has none on a processor
        reference = torch_layer(kind, sweep[0]).to(dtype)
        ours = convert(reference)
        assert {p.dtype for p in ours.parameters()} <= {dtype}
        x = image(kind, B, dtype=dtype)
        y, expected = ours(x), reference(x)
        assert y.dtype == expected.dtype
        scale = float(expected.detach().abs().max())
        torch.testing.assert_close(y.double(), expected.double(), rtol=0, atol=4 * torch.finfo(dtype).eps * scale)


def test_device() -> None:
    for kind, sweep in LAYERS.items():
        assert {p.device.type for p in convert(torch_layer(kind, sweep[0]).to("meta")).parameters()} <= {"meta"}


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("weight", "bias")], ids=str)
def test_frozen_parameters(frozen: tuple[str, ...]) -> None:
    for kind in ("Conv2d", "ConvTranspose2d"):
        reference = torch_layer(kind, {})
        for name in frozen:
            getattr(reference, name).requires_grad_(False)
        ours = convert(reference)
        assert ours.theta.weight.requires_grad == reference.weight.requires_grad
        assert ours.bias.requires_grad == reference.bias.requires_grad


def test_the_original_is_not_written_to() -> None:
    reference = torch_layer("Conv2d", {})
    before = copy.deepcopy(reference.state_dict())
    ours = convert(reference)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    torch.testing.assert_close(dict(reference.state_dict()), dict(before), rtol=0, atol=0)
    assert type(reference) is nn.Conv2d


def test_widths_are_told() -> None:
    ours = convert(nn.Conv2d(3, 8, 3, groups=1))
    assert (ours.in_channels, ours.out_channels) == (3, 8)


def test_autocast() -> None:
    reference = torch_layer("Conv2d", {"padding": 1}).float()
    x = image("Conv2d", B, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = convert(reference)(x), reference(x)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("form", FORMATS[2])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("Conv2d", {}), ("Conv2d", {"groups": 2, "padding": 1}), ("ConvTranspose2d", {"stride": 2}), ("AvgPool2d", {})],
)
def test_functions_of_functions(kind: str, options: dict, form: torch.memory_format) -> None:
    reference = torch_layer(kind, {"kernel_size": 2} | options).to(memory_format=form)
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


# --- models ---


class Residual(nn.Module):
    """Two convolutions around which the input goes, through a 1x1 where the sizes change."""

    def __init__(self, P: int, Q: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(P, Q, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(Q, Q, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(Q), nn.BatchNorm2d(Q)])
        self.shortcut = nn.Identity()
        if stride > 1 or P != Q:
            self.shortcut = nn.Sequential(nn.Conv2d(P, Q, 1, stride, bias=False), nn.BatchNorm2d(Q))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(h)) + self.shortcut(x)).relu()


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        Residual(8, 8, 1),
        Residual(8, 12, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


def mobilenet() -> nn.Module:
    def block(P: int, Q: int, stride: int) -> list[nn.Module]:
        apart = nn.Conv2d(P, P, 3, stride, padding=1, groups=P, bias=False)
        return [apart, nn.BatchNorm2d(P), nn.ReLU6(), nn.Conv2d(P, Q, 1, bias=False), nn.BatchNorm2d(Q), nn.ReLU6()]

    stem = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
    blocks = [*block(6, 8, 1), *block(8, 12, 2), *block(12, 12, 1)]
    return nn.Sequential(stem, nn.BatchNorm2d(6), *blocks, nn.AvgPool2d(2), nn.Flatten(), nn.LazyLinear(5))


class UNet(nn.Module):
    """Down, and up again to the very size, beside what was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect")]
        )
        self.bottom = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.up = nn.ModuleList([nn.ConvTranspose2d(8, 8, 2, stride=2), nn.ConvTranspose2d(8, 6, 2, stride=2)])
        self.back = nn.ModuleList([nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(12, 5, 3, padding=1)])
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for conv in self.down:
            x = conv(x).relu()
            kept.append(x)
            x = self.pool(x)
        x = self.bottom(x).relu()
        for up, back in zip(self.up, self.back, strict=True):
            skip = kept.pop()
            x = back(torch.cat([up(x, output_size=skip.shape[-2:]), skip], 1))
        return x.mean((-2, -1))


class Tokens(nn.Module):
    """The grid in one axis, after the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


def vision_transformer(patches: nn.Module) -> nn.Module:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(patches, encoder, nn.Flatten(), nn.LazyLinear(5))


def sequences() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(2),
        nn.Conv1d(3, 8, 5, dilation=2, padding="same"),
        nn.GELU(),
        nn.AvgPool1d(3, 2, 1),
        nn.Conv1d(8, 8, 4, padding="same", groups=2, padding_mode="circular"),
        nn.Tanh(),
        nn.ConvTranspose1d(8, 4, 3, 2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )


class Volumes(nn.Sequential):
    """Images as the slices of a volume."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unsqueeze(1).repeat(1, 1, 2, 1, 1))


def volumes() -> nn.Module:
    pooled = [nn.AvgPool3d(2, ceil_mode=True), nn.ConvTranspose3d(4, 4, 2, 2), nn.AdaptiveAvgPool3d(1)]
    return Volumes(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), *pooled, nn.Flatten(), nn.Linear(4, 5))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet": resnet,
    "MobileNet": mobilenet,
    "U-Net": UNet,
    "patches by a convolution": lambda: vision_transformer(nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), Tokens())),
    "patches by Unfold": lambda: vision_transformer(
        nn.Sequential(nn.Unfold(4, stride=4), Tokens(), nn.Linear(3 * 16, 8)),
    ),
    "sequences": sequences,
    "volumes": volumes,
    "DataParallel": lambda: nn.DataParallel(resnet()),
}
SIZE = (18, 22)


def model_of(name: str) -> nn.Module:
    model = MODELS[name]()
    model(torch.randn(2, 3, *SIZE))  # what is lazy is now not
    return model.double()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, training: bool) -> None:
    model = model_of(name).train(training)
    ours = convert(model)
    assert not any(map(convertible, ours.modules()))
    assert any(isinstance(m, GridConv) for m in ours.modules())
    agree(Case(ours, model, [features(4, 3, *SIZE)]))
    single, theirs = (copy.deepcopy(f).float() for f in (ours, model))
    x = torch.randn(4, 3, *SIZE)
    torch.testing.assert_close(single(x), theirs(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_same_training_curve(name: str) -> None:
    model = model_of(name)
    x, target = features(8, 3, *SIZE), torch.randint(0, 5, (8,))
    curves = []
    for f in (convert(model), model):
        optimizer = torch.optim.SGD(f.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        curve = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(f(x), target)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    torch.testing.assert_close(*curves, rtol=1e-10, atol=1e-10)
    assert curves[0][-1] < curves[0][0]


@pytest.mark.parametrize("name", ["ResNet", "MobileNet", "U-Net"])
@pytest.mark.parametrize("of_model", FORMATS[2])
@pytest.mark.parametrize("of_input", FORMATS[2])
def test_memory_format_through_a_model(name: str, of_model: Any, of_input: Any) -> None:
    model = model_of(name).to(memory_format=of_model)
    x = features(2, 3, *SIZE).to(memory_format=of_input)
    found: list[list[tuple[int, ...]]] = []
    for f in (convert(model), model):
        seen: list[tuple[int, ...]] = []
        for part in f.modules():
            if isinstance(
                part, nn.BatchNorm2d | nn.MaxPool2d | GridConv | nn.Conv2d | nn.ConvTranspose2d | nn.AvgPool2d
            ):
                part.register_forward_hook(lambda module, given, y, seen=seen: seen.append(y.stride()))
        f(x)
        found.append(seen)
    assert found[0] == found[1]


def test_a_checkpoint_is_loaded_before() -> None:
    saved, fresh = model_of("ResNet"), model_of("ResNet")
    fresh.load_state_dict(saved.state_dict())
    x = features(2, 3, *SIZE)
    torch.testing.assert_close(convert(fresh).eval()(x), saved.eval()(x), rtol=1e-10, atol=1e-10)


def test_copies_of_models() -> None:
    ours = convert(model_of("U-Net"))
    x = features(2, 3, *SIZE)
    for same in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), convert(ours)):
        torch.testing.assert_close(same(x), ours(x), rtol=0, atol=0)
        assert repr(same) == repr(ours)


def test_other_modules_stay_as_they_are() -> None:
    ours = convert(resnet())
    kinds = [type(m) for m in ours]
    assert kinds[1:4] == [nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d]
    assert kinds[6:] == [nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear]
    plain = nn.Sequential(nn.Linear(3, 3), nn.MaxPool2d(2), nn.Fold(4, 2), nn.LPPool2d(2, 2), nn.AdaptiveAvgPool1d(1))
    assert left_of(plain) == {}


class Mixed(nn.Module):
    """A GNN whose nodes are images, with a reading of both."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)
        self.gnn = pyg.GCNConv(4, 6)
        self.attention = nn.MultiheadAttention(6, heads, batch_first=True) if heads else None
        self.readout = nn.Conv1d(6, 5, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.gnn(self.conv(x.view(-1, 3, 7, 6)).relu().mean((-2, -1)), edge_index)
        if self.attention is not None:
            h = h + self.attention(h[None], h[None], h[None])[0][0]
        return self.readout(h.t()).t()


def test_graphs_and_grids_in_one_model() -> None:
    model = drawn(Mixed(heads=2))
    ours = convert(model)
    assert not any(map(convertible, ours.modules()))
    edge_index, _ = graph()
    agree(Case(ours, model, [features(12, 3, 7, 6)], lambda f, x: f(x, edge_index)))


def test_an_explainer_masks_the_graph_and_not_the_grid() -> None:
    model = drawn(Mixed(heads=0))
    edge_index, _ = graph()
    config = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    x, masks = features(12, 3 * 7 * 6), []
    for f in (convert(model), model):
        explainer = Explainer(f, GNNExplainer(epochs=2), "model", config, edge_mask_type="object")
        torch.manual_seed(0)
        masks.append(explainer(x, edge_index, index=2).edge_mask)
    ours, theirs = masks
    plain = edge_index[0] != edge_index[1]  # PyG takes all loops for its own, and masks none
    torch.testing.assert_close(ours[plain], theirs[plain])


def test_a_layer_in_several_places_stays_one() -> None:
    conv = nn.Conv2d(P, P, 3, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), conv).double()
    ours = convert(model)
    assert ours[0] is ours[2]
    agree(Case(ours, model, [features(B, P, 6, 7)]))


# --- what is left ---


class Own(nn.Conv2d):
    """Standardised weights."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


def conv() -> nn.Conv2d:
    return nn.Conv2d(P, Q, 3)


def hooked() -> nn.Module:
    layer = conv()
    layer.register_forward_hook(lambda module, inputs, output: None)
    return layer


def hooked_parameter() -> nn.Module:
    layer = conv()
    layer.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return layer


def weight_normalised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the old one, on which many checkpoints stand
        return nn.utils.weight_norm(conv())


def replaced(name: str) -> nn.Module:
    layer = conv()
    setattr(layer, name, lambda *args: args[0])
    return layer


def repadded() -> nn.Module:
    layer = nn.Conv2d(P, Q, 3, padding=1, padding_mode="circular")
    layer.padding = (2, 2)
    return layer


def bare(name: str) -> nn.Module:
    layer = conv()
    value = getattr(layer, name).detach()
    delattr(layer, name)
    setattr(layer, name, value)
    return layer


LEFT: dict[str, Callable[[], nn.Module]] = {
    "Own: a subclass of Conv2d may compute something else": lambda: Own(P, Q, 3),
    "LazyConv2d: it is lazy: call it once before": lambda: nn.LazyConv2d(Q, 3),
    "LazyConvTranspose1d: it is lazy": lambda: nn.LazyConvTranspose1d(Q, 3),
    "ParametrizedConv2d: its parameters are computed from others": lambda: weight_norm(conv()),
    "ParametrizedConv2d: its parameters are computed": lambda: spectral_norm(conv()),
    "Conv2d: it has hooks, which see": weight_normalised,
    "Conv2d: it has hooks": hooked,
    "Conv2d: it has hooks, ": hooked_parameter,
    "Conv2d: its forward() was replaced": lambda: replaced("forward"),
    "Conv2d: its _conv_forward() was replaced": lambda: replaced("_conv_forward"),
    "Conv2d: its padding was changed after it was made": repadded,
    "Conv2d: its weight or bias is not a parameter of it": lambda: bare("weight"),
    "Conv2d: its weight or bias is not a parameter": lambda: bare("bias"),
    "Conv2d: its weights are complex": lambda: nn.Conv2d(P, Q, 3, dtype=torch.complex64),
    "AvgPool2d: divisor_override=0": lambda: nn.AvgPool2d(2, divisor_override=0),
}


@pytest.mark.parametrize("reason", LEFT)
def test_left_with_a_reason(reason: str) -> None:
    layer = LEFT[reason]()
    (told,) = left_of(layer).values()
    assert told.startswith(reason)
    assert convert(layer, {}) is layer
    model = nn.Sequential(layer, nn.ReLU())
    assert left_of(model) == {"0": told}
    copied = convert(model, {})[0]
    assert type(copied) is type(layer)
    assert copied is not layer


def test_a_left_layer_with_a_computed_weight_still_learns() -> None:
    model = nn.Sequential(weight_normalised(), nn.ReLU(), nn.Conv2d(Q, P, 1))
    ours = convert(model, {})
    x = torch.randn(B, P, 6, 7)
    torch.testing.assert_close(ours(x), model(x))
    ours(x).sum().backward()
    assert ours[0].weight_g.grad is not None
    assert model[0].weight_g.grad is None


def test_lazy_layers_once_they_are_called() -> None:
    lazy = nn.LazyConv2d(Q, 3)
    lazy(torch.randn(B, P, 6, 7))
    lazy = lazy.double()
    agree(Case(convert(lazy), lazy, [features(B, P, 6, 7)]))


def test_tied_parameters_are_left() -> None:
    model = nn.ModuleList([nn.Conv2d(P, Q, 3), nn.ConvTranspose2d(Q, P, 3), nn.Conv2d(P, Q, 3)])
    model[1].weight = model[0].weight
    told = left_of(model)
    assert told == {
        "0": "Conv2d: it shares a parameter with another layer",
        "1": "ConvTranspose2d: it shares a parameter with another layer",
    }
    linear = nn.ModuleList([nn.Conv1d(P, Q, 1), nn.Linear(P, Q)])
    linear[1].bias = linear[0].bias
    assert list(left_of(linear)) == ["0"]


def test_the_warning_names_what_is_left() -> None:
    with pytest.warns(UserWarning, match=r"left 1 of 2 layers as they were\n  1: Own: a subclass of Conv2d"):
        ours = convert(nn.Sequential(conv(), Own(Q, Q, 3), nn.BatchNorm2d(Q)))
    assert isinstance(ours[0], GridConv)
    assert type(ours[1]) is Own
