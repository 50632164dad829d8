"""Wrong grids, windows, sites and groups are refused at the door, with the argument, what was expected, and the fix."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pyg_basisconv import BasisConv, GridConv, bases, theta
from tests.bases.grids.test_grids import close
from tests.contract import refused

IMAGE = torch.ones(2, 3, 4, 5)
SITES = torch.tensor([[0, 0], [1, 2], [3, 4]])
ROWS = torch.ones(3, 3)
C3 = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
C2 = [[0, 1], [1, 0]]
EYE = [[1, 0], [0, 1]]


def window(shape: Any = None, kernel: Any = (3, 3), **kwargs) -> bases.Window:
    return bases.Window(shape, kernel, **kwargs)


def conv(basis: bases.Basis | None = None, P: int = 3, Q: int = 2, kind: theta.Theta | None = None) -> GridConv:
    return GridConv(P, Q, window(padding=1) if basis is None else basis, kind)


def flat(basis: bases.Basis, **kwargs) -> BasisConv:
    return BasisConv(3, 2, basis, **kwargs)


def sites(**kwargs) -> bases.Window:
    return window((4, 5), **{"padding": 1, "sites": SITES} | kwargs)


def group(table: Any, action: Any = None, **kwargs) -> bases.Group:
    return bases.Group(table if action is None else bases.FiniteGroup(table, action), **kwargs)


def without(table: list[list[int]], a: int, b: int, value: int) -> list[list[int]]:
    return [[value if (i, j) == (a, b) else n for j, n in enumerate(row)] for i, row in enumerate(table)]


# A loop of five elements: an identity and inverses, and every row and column a permutation, but (1 1) 2 is not 1 (1 2).
LOOP = [[0, 1, 2, 3, 4], [1, 0, 3, 4, 2], [2, 4, 0, 1, 3], [3, 2, 4, 0, 1], [4, 3, 1, 2, 0]]


CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    # what is wrong: (the argument that the message names, the call)
    # resampling
    "resampling of four axes": ("axes", lambda: bases.Resampling(None, 4, size=2)),
    "resampling of another mode": ("mode", lambda: bases.Resampling(None, 2, size=2, mode="cubic")),
    "resampling to no size": ("size", lambda: bases.Resampling(None, 2, size=(3, 0))),
    "resampling to three sizes": ("size", lambda: bases.Resampling(None, 2, size=(3, 3, 3))),
    "resampling with corners": ("align_corners", lambda: bases.Resampling(None, 2, 3, align_corners=True)),
    "resampling by size and scale": ("scale", lambda: bases.Resampling(None, 2, 3, 2.0, "linear")),
    "resampling averages by scale": ("scale", lambda: bases.Resampling(None, 2, scale=2.0)),
    "resampling by one scale of two": ("scale", lambda: bases.Resampling(None, 2, scale=(2.0,), mode="linear")),
    "resampling by a negative scale": ("scale", lambda: bases.Resampling(None, 1, scale=-1.0, mode="linear")),
    "resampling by no number": ("scale", lambda: bases.Resampling(None, 2, scale=(None, 2.0), mode="linear")),
    "resampling by text": ("scale", lambda: bases.Resampling(None, 2, scale="ab", mode="linear")),
    "resampling to nothing": ("scale", lambda: bases.Resampling((2,), 1, scale=0.3, mode="linear")),
    "resampling of nothing": ("grid", lambda: bases.Resampling((4, 0), 2, size=3)),
    # images
    "image of other channels": ("image", lambda: conv()(torch.ones(2, 4, 4, 5))),
    "image of other size": ("", lambda: conv(window((4, 4), padding=1))(IMAGE)),
    "image transposed": ("", lambda: conv(window((5, 4), padding=1))(IMAGE)),
    "image without channels": ("image", lambda: conv()(torch.ones(4, 5))),
    "image of one axis": ("image", lambda: conv()(torch.ones(4))),
    "image of two axes for three": ("image", lambda: conv(window(None, (3, 3, 3)))(torch.ones(3, 4, 5))),
    "image of too many axes": ("image", lambda: conv()(torch.ones(2, 3, 4, 5, 4))),
    "image integer": ("", lambda: conv()(IMAGE.long())),
    "image bool": ("", lambda: conv()(IMAGE.bool())),
    "image complex": ("", lambda: conv()(IMAGE.cfloat())),
    "image float64": ("", lambda: conv()(IMAGE.double())),
    "image half": ("", lambda: conv()(IMAGE.half())),
    "image elsewhere": ("", lambda: conv()(IMAGE.to("meta"))),
    "image a list": ("image", lambda: conv()(IMAGE.tolist())),
    "image None": ("image", lambda: conv()(None)),
    "image smaller than the kernel": ("kernel_size", lambda: conv(window())(torch.ones(2, 3, 2, 5))),
    "image smaller than the dilated kernel": ("kernel_size", lambda: conv(window(dilation=2))(IMAGE)),
    "image too narrow for reflection": (
        "padding",
        lambda: conv(window(padding=2, padding_mode="reflect"))(torch.ones(2, 3, 2, 5)),
    ),
    "image too narrow to go round": (
        "padding",
        lambda: conv(window(padding=3, padding_mode="circular"))(torch.ones(2, 3, 2, 5)),
    ),
    "image too narrow for reflection, same": (
        "padding",
        lambda: conv(window(None, (5, 1), padding="same", padding_mode="reflect"))(torch.ones(2, 3, 2, 5)),
    ),
    "image all of which is cut off": (
        "padding",
        lambda: conv(window(None, (1, 1), transposed=True, padding=3))(IMAGE),
    ),
    "image and grid": ("grid", lambda: conv()(IMAGE, grid=(4, 4))),
    "image of a sequence, of a grid": ("image", lambda: conv(window(None, (3, 3)))(torch.ones(2, 3, 5)[0])),
    "image without sheets": ("image", lambda: conv(bases.Group("p4", window()))(torch.ones(3, 4, 5))),
    "image of other sheets": ("", lambda: conv(bases.Group("p4", window()))(torch.ones(2, 3, 8, 4, 5))),
    "image of sheets to be lifted": (
        "image",
        lambda: conv(bases.Group("p4", window(), lift=True))(torch.ones(2, 3, 4, 4, 4)),
    ),
    # flat rows
    "grid missing": ("grid", lambda: flat(window())(torch.ones(2, 20, 3))),
    "grid missing, shifts": ("grid", lambda: flat(bases.Shifts(None, [(0, 1)]))(torch.ones(2, 20, 3))),
    "grid missing, bound": ("grid", lambda: window().bind()),
    "grid missing, edges": ("grid", lambda: window().edges()),
    "grid missing, group": ("grid", lambda: flat(bases.Group("p4", window()))(torch.ones(2, 80, 3))),
    "rows that are not the grid": ("x", lambda: flat(window(padding=1))(torch.ones(2, 21, 3), grid=(4, 5))),
    "rows that are not the shape": ("x", lambda: flat(window((4, 5), padding=1))(torch.ones(2, 21, 3))),
    "rows that are not the group": ("x", lambda: flat(group(C3))(torch.ones(2, 4, 3))),
    "grid that is not the shape": (
        "grid",
        lambda: flat(window((4, 5), padding=1))(torch.ones(2, 20, 3), grid=(5, 4)),
    ),
    "grid of other axes": ("grid", lambda: flat(window())(torch.ones(2, 20, 3), grid=(4, 5, 1))),
    "grid a number for two axes": ("grid", lambda: flat(window())(torch.ones(2, 20, 3), grid=20)),
    "grid of floats": ("grid", lambda: flat(window())(torch.ones(2, 20, 3), grid=(4.0, 5.0))),
    "grid negative": ("grid", lambda: flat(window())(torch.ones(2, 20, 3), grid=(-4, -5))),
    "grid a word": ("grid", lambda: flat(window())(torch.ones(2, 20, 3), grid="4x5")),
    "grid empty": ("grid", lambda: flat(window())(torch.ones(2, 20, 3), grid=())),
    "grid beside a bound window": (
        "grid",
        lambda: flat(window())(torch.ones(2, 20, 3), window((4, 5)).bind(), grid=(4, 5)),
    ),
    "size that the window does not have": (
        "size",
        lambda: flat(window((4, 5)))(torch.ones(2, 20, 3), size=(20, 20)),
    ),
    "bound of another grid": ("edge_index", lambda: flat(window())(torch.ones(2, 20, 3), window((5, 5)).bind())),
    "bound of another kernel": (
        "edge_index",
        lambda: flat(window())(torch.ones(2, 20, 3), window((4, 5), (2, 2)).bind()),
    ),
    # groups of channels
    "groups that do not divide P": ("groups", lambda: conv(P=3, Q=4, kind=theta.Grouped(2))),
    "groups that do not divide Q": ("groups", lambda: conv(P=4, Q=3, kind=theta.Grouped(2))),
    "groups that do not divide the first image": (
        "groups",
        lambda: GridConv(-1, 4, window(padding=1), theta.Grouped(2))(IMAGE),
    ),
    "groups 0": ("groups", lambda: theta.Grouped(0)),
    "groups float": ("groups", lambda: theta.Grouped(2.0)),
    "depthwise of other widths": ("out_channels", lambda: conv(P=3, Q=4, kind=theta.Depthwise())),
    "scales of another number": ("scale", lambda: conv(P=3, Q=3, kind=theta.Pass(scale=[1.0, 2.0]))),
    # windows
    "kernel_size 0": ("kernel_size", lambda: window((4, 5), (3, 0))),
    "kernel_size negative": ("kernel_size", lambda: window((4, 5), -3)),
    "kernel_size float": ("kernel_size", lambda: window((4, 5), 3.0)),
    "kernel_size True": ("kernel_size", lambda: window((4, 5), True)),
    "kernel_size of other axes": ("kernel_size", lambda: window((4, 5), (3, 3, 3))),
    "kernel_size a word": ("kernel_size", lambda: window((4, 5), "3")),
    "kernel_size empty": ("", lambda: window(None, ())),
    "kernel_size larger than the grid": ("kernel_size", lambda: window((4, 2), 3)),
    "kernel_size larger, dilated": ("kernel_size", lambda: window((4, 5), 3, dilation=3, padding=1)),
    "stride 0": ("stride", lambda: window((4, 5), stride=0)),
    "stride 0 on one axis": ("stride", lambda: window((4, 5), stride=(1, 0))),
    "stride negative": ("stride", lambda: window((4, 5), stride=-1)),
    "stride float": ("stride", lambda: window((4, 5), stride=1.5)),
    "stride of other axes": ("stride", lambda: window((4, 5), stride=(1, 1, 1))),
    "stride None": ("stride", lambda: window((4, 5), stride=None)),
    "dilation 0": ("dilation", lambda: window((4, 5), dilation=0)),
    "dilation negative": ("dilation", lambda: window((4, 5), dilation=(1, -1))),
    "dilation float": ("dilation", lambda: window((4, 5), dilation=1.0)),
    "padding negative": ("padding", lambda: window((4, 5), padding=-1)),
    "padding float": ("padding", lambda: window((4, 5), padding=0.5)),
    "padding of other axes": ("padding", lambda: window((4, 5), padding=(1,))),
    "padding a word": ("padding", lambda: window((4, 5), padding="full")),
    "padding 'same' with a stride": ("padding", lambda: window((4, 5), padding="same", stride=2)),
    "padding 'same' with a stride of one axis": ("padding", lambda: window((4, 5), padding="same", stride=(1, 2))),
    "padding 'same' transposed": ("", lambda: window((4, 5), padding="same", transposed=True)),
    "padding_mode": ("padding_mode", lambda: window((4, 5), padding=1, padding_mode="mirror")),
    "padding_mode None": ("padding_mode", lambda: window((4, 5), padding=1, padding_mode=None)),
    "padding wider than reflection allows": (
        "padding",
        lambda: window((4, 2), padding=2, padding_mode="reflect"),
    ),
    "padding wider than the grid goes round": (
        "padding",
        lambda: window((4, 2), padding=3, padding_mode="circular"),
    ),
    "transposed and circular": ("", lambda: window((4, 5), transposed=True, padding=1, padding_mode="circular")),
    "transposed and ceil_mode": ("", lambda: window((4, 5), transposed=True, ceil_mode=True)),
    "ceil_mode and reflect": (
        "(ceil_mode|padding_mode)",
        lambda: window((3, 3), 5, stride=4, padding=2, ceil_mode=True, padding_mode="reflect"),
    ),
    "ceil_mode and circular": (
        "(ceil_mode|padding_mode)",
        lambda: window((3, 3), 3, stride=2, padding=1, ceil_mode=True, padding_mode="circular"),
    ),
    "ceil_mode a number": ("ceil_mode", lambda: window((4, 5), ceil_mode=1)),
    "transposed a word": ("transposed", lambda: window((4, 5), transposed="yes")),
    "transposed and norm": ("", lambda: window((4, 5), transposed=True, norm="mean")),
    "transposed to nothing": ("padding", lambda: window((1, 1), 1, transposed=True, padding=1)),
    "output_padding without transposed": ("output_padding", lambda: window((4, 5), stride=2, output_padding=1)),
    "output_padding too large": (
        "output_padding",
        lambda: window((4, 5), stride=2, transposed=True, output_padding=2),
    ),
    "output_padding too large on one axis": (
        "output_padding",
        lambda: window((4, 5), stride=(2, 1), transposed=True, output_padding=(1, 1)),
    ),
    "output_padding of the least stride": (
        "output_padding",
        lambda: window((4, 5), transposed=True, output_padding=1),
    ),
    "output_padding negative": (
        "output_padding",
        lambda: window((4, 5), stride=2, transposed=True, output_padding=-1),
    ),
    "norm": ("norm", lambda: window((4, 5), norm="max")),
    "norm and circular": ("norm", lambda: window((4, 5), padding=1, padding_mode="circular", norm="mean")),
    "shape of floats": ("shape", lambda: window((4.0, 5.0), 3)),
    "shape negative": ("shape", lambda: window((4, -5), 3)),
    "shape a word": ("shape", lambda: window("4x5", 3)),
    "shape of another dimension": ("", lambda: window((4, 5), (3,))),
    # shifts
    "offsets none": ("offsets", lambda: bases.Shifts(None, [])),
    "offsets not a sequence": ("offsets", lambda: bases.Shifts(None, 1)),
    "offsets in place of the shape": ("offsets", lambda: bases.Shifts([0, 1], None)),
    "offsets of floats": ("offsets", lambda: bases.Shifts((4, 5), [(0, 1.0)])),
    "offsets a float": ("offsets", lambda: bases.Shifts(4, [0.5])),
    "offsets True": ("offsets", lambda: bases.Shifts(4, [True])),
    "offsets twice": ("offsets", lambda: bases.Shifts((4, 5), [(0, 1), (1, 0), (0, 1)])),
    "offsets twice, as a number and a tuple": ("offsets", lambda: bases.Shifts(4, [1, (1,)])),
    "offsets of other lengths": ("offsets", lambda: bases.Shifts((4, 5), [(0, 1), (1,)])),
    "offsets of three for two axes": ("", lambda: bases.Shifts((4, 5), [(0, 1, 0)])),
    "offsets numbers for two axes": ("", lambda: bases.Shifts((4, 5), [1, 2])),
    "offsets empty tuples": ("offsets", lambda: bases.Shifts(None, [()])),
    "offsets words": ("offsets", lambda: bases.Shifts(4, ["1"])),
    "padding_mode of shifts": ("padding_mode", lambda: bases.Shifts(4, [1], padding_mode="mirror")),
    "offsets too long for reflection": ("offsets", lambda: bases.Shifts(4, [4], padding_mode="reflect")),
    "offsets too long for the reflection of an image": (
        "offsets",
        lambda: conv(bases.Shifts(None, [(0, 5)], padding_mode="reflect"))(IMAGE),
    ),
    "size other than the shifts under reflection": (
        "size",
        lambda: bases.Shifts(None, [1], padding_mode="reflect").bind(size=(3, 9)),
    ),
    "size other than the circular shifts": (
        "size",
        lambda: bases.Shifts(None, [1], padding_mode="circular").bind(size=(3, 9)),
    ),
    # sites
    "sites twice": ("sites", lambda: flat(sites(sites=SITES[[0, 1, 0]]))(ROWS)),
    "sites twice in a sample": (
        "sites",
        lambda: flat(sites(sites=SITES[[0, 1, 0]]))(ROWS, batch=torch.tensor([1, 0, 1])),
    ),
    "sites beyond the grid": ("sites", lambda: sites(sites=torch.tensor([[4, 0]]))),
    "sites beyond the last axis": ("sites", lambda: sites(sites=torch.tensor([[0, 5]]))),
    "sites negative": ("sites", lambda: sites(sites=torch.tensor([[0, -1]]))),
    "sites sparse": ("sites", lambda: sites(sites=SITES.to_sparse())),
    "sites of more samples than 62 bits can number": (
        "shape",
        lambda: flat(bases.Window((2**31 - 1,) * 2, 3, sites=SITES))(ROWS, batch=torch.tensor([0, 1, 1])),
    ),
    "sites floats": ("sites", lambda: sites(sites=SITES.float())),
    "sites bool": ("sites", lambda: sites(sites=SITES.bool())),
    "sites a list": ("sites", lambda: sites(sites=SITES.tolist())),
    "sites of three columns": ("sites", lambda: sites(sites=torch.zeros(3, 3).long())),
    "sites of one column": ("sites", lambda: sites(sites=torch.zeros(3, 1).long())),
    "sites 1d": ("sites", lambda: sites(sites=torch.zeros(2).long())),
    "sites 3d": ("sites", lambda: sites(sites=SITES[None])),
    "sites without a shape": ("shape", lambda: window(None, (3, 3), padding=1, sites=SITES)),
    "sites and norm": ("", lambda: sites(norm="mean")),
    "sites and circular": ("", lambda: sites(padding_mode="circular")),
    "sites later beyond the grid": ("sites", lambda: sites().at(torch.tensor([[0, 7]]))),
    "rows that are not the sites": ("x", lambda: flat(sites())(torch.ones(4, 3))),
    "rows of the whole grid": ("x", lambda: flat(sites())(torch.ones(20, 3))),
    "size of other sites": ("size", lambda: flat(sites())(ROWS, size=(3, 4))),
    "batch of other sites": ("batch", lambda: flat(sites())(ROWS, batch=torch.tensor([0, 0]))),
    "batch of floats": ("batch", lambda: flat(sites())(ROWS, batch=torch.zeros(3))),
    "batch negative": ("batch", lambda: flat(sites())(ROWS, batch=torch.tensor([0, -1, 0]))),
    "batch a list": ("batch", lambda: flat(sites())(ROWS, batch=[0, 0, 1])),
    "batch of a bound window": (
        "batch",
        lambda: flat(sites())(ROWS, sites().bind(), batch=torch.tensor([0, 0, 0])),
    ),
    "grid of other sites": ("grid", lambda: flat(sites())(ROWS, grid=(5, 5))),
    "order compacted of a graph": (
        "order",
        lambda: flat(bases.Adjacency(), order="compacted")(torch.ones(2, 3), torch.tensor([[0], [1]])),
    ),
    "order native of sites": ("order", lambda: flat(sites(), order="native")(ROWS)),
    "order native of four axes": (
        "order",
        lambda: GridConv(3, 2, window(None, (1, 2, 1, 2)), order="native")(torch.ones(1, 3, 2, 2, 2, 2)),
    ),
    # groups
    "group a name": ("group", lambda: group("p6")),
    "group a number": ("group", lambda: group(4)),
    "group None": ("group", lambda: group(None)),
    "group not square": ("group", lambda: group([[0, 1, 2], [1, 2, 0]])),
    "group 1d": ("group", lambda: group([0, 1, 2])),
    "group empty": ("group", lambda: group([])),
    "group ragged": ("group", lambda: group([[0, 1], [1]])),
    "group of floats": ("group", lambda: group([[0.0, 1.0], [1.0, 0.0]])),
    "group out of range": ("group", lambda: group(without(C3, 1, 1, 3))),
    "group negative": ("group", lambda: group(without(C3, 1, 1, -1))),
    "group without identity": ("group", lambda: group([[1, 0], [1, 0]])),
    "group without an identity on one side": ("group", lambda: group([[0, 1], [0, 1]])),
    "group without inverses": ("group", lambda: group([[0, 1], [1, 1]])),
    "group not associative": ("group", lambda: group(LOOP)),
    "action of other elements": ("action", lambda: group(C3, window=window(), action=[EYE, EYE])),
    "action of other axes": (
        "",
        lambda: group(C2, window=window(), action=[[[1]], [[-1]]]),
    ),
    "action not square": ("action", lambda: group(C2, window=window(), action=torch.ones(2, 2, 3).long())),
    "action no permutation": (
        "action",
        lambda: group(C2, window=window(), action=[EYE, [[1, 1], [0, 1]]]),
    ),
    "action twice as large": ("action", lambda: group(C2, window=window(), action=[EYE, [[2, 0], [0, 2]]])),
    "action singular": ("action", lambda: group(C2, window=window(), action=[EYE, [[1, 0], [1, 0]]])),
    "action of halves": (
        "action",
        lambda: group(C2, window=window(), action=torch.tensor([EYE, [[0.5, 0], [0, 1]]])),
    ),
    "action no homomorphism": (
        "action",
        lambda: group(C2, window=window(), action=[EYE, [[0, -1], [1, 0]]]),
    ),
    "action of the identity moves": (
        "action",
        lambda: group(C2, window=window(), action=[[[0, 1], [1, 0]], EYE]),
    ),
    "window not square": ("window", lambda: group("p4", window=window(None, (3, 2)))),
    "window dilated otherwise": ("window", lambda: group("p4m", window=window(dilation=(1, 2)))),
    "window of one axis": ("window", lambda: group("p4", window=window(None, (3,)))),
    "window of three axes": ("window", lambda: group("p4", window=window(None, (3, 3, 3)))),
    "window a number": ("window", lambda: group("p4", window=3)),
    "window a basis": ("window", lambda: group("p4", window=bases.Shifts(None, [(0, 1)]))),
    "window on sites": ("window", lambda: group("p4", window=sites())),
    "lift a word": ("lift", lambda: group("p4", window=window(), lift="no")),
    "lift without a window": ("window", lambda: group(C3, lift=True)),
}


@pytest.mark.parametrize(("argument", "call"), CALLS.values(), ids=CALLS)
def test_refused(argument: str, call: Callable[[], Any]) -> None:
    refused(argument, call, longest=500)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ([[0, 1, 2], [1, 2, 0]], "table"),
        (without(C3, 1, 1, 3), "elements"),
        ([[1, 0], [1, 0]], "identity"),
        ([[0, 1], [1, 1]], "inverse"),
        (LOOP, "associative"),
    ],
    ids=["not square", "out of range", "identity", "inverse", "associative"],
)
def test_says_what_a_group_lacks(table: list[list[int]], word: str) -> None:
    with pytest.raises(ValueError, match=rf"^group: expected .*{word}"):
        group(table)


def test_refused_calls_change_nothing() -> None:
    """After a refusal the same layer works, and every time again it refuses."""
    layer = conv()
    right = layer(IMAGE)
    for _ in range(2):
        for wrong in (torch.ones(2, 4, 4, 5), torch.ones(4, 5), IMAGE.long()):
            with pytest.raises(ValueError, match=r"^(image|x): "):
                layer(wrong)
        close(layer(IMAGE), right)
    twice = flat(sites(sites=SITES[[0, 1, 0]]))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^sites: "):
            twice(ROWS)
        assert twice(ROWS, batch=torch.tensor([0, 0, 1])).shape == (3, 2)


def test_open_width_after_a_refusal() -> None:
    """A first call that is refused leaves the width open."""
    layer = GridConv(-1, 4, window(), theta.Full())
    with pytest.raises(ValueError, match=r"^kernel_size: "):
        layer(torch.ones(2, 3, 2, 2))
    with pytest.raises(ValueError, match=r"^image: "):
        layer(torch.ones(4, 5))
    assert layer(torch.ones(2, 6, 4, 5)).shape == (2, 4, 2, 3)


def test_fine_after_all() -> None:
    """Near misses that are right."""

    def out(basis: bases.Basis, image: Tensor = IMAGE) -> tuple[int, ...]:
        return tuple(conv(basis)(image).shape[2:])

    assert out(window(None, (4, 5))) == (1, 1)
    assert out(window(None, (6, 7), padding=1)) == (1, 1)
    assert out(window(padding=3, padding_mode="reflect")) == (8, 9)
    assert out(window(padding=4, padding_mode="circular")) == (10, 11)
    assert out(window(padding=9, padding_mode="replicate")) == (20, 21)
    assert out(window(stride=9)) == (1, 1)
    assert out(window(stride=[1, 2], padding=[0, 1])) == (2, 3)
    assert out(window(padding="valid")) == (2, 3)
    assert out(window(padding="valid", stride=2)) == (1, 2)
    assert out(window(None, (2, 4), padding="same")) == (4, 5)
    assert out(window(stride=2, transposed=True, output_padding=1)) == (10, 12)
    assert out(window(dilation=2, transposed=True, output_padding=1)) == (9, 10)
    assert out(window(padding=1, norm="mean")) == (4, 5)
    assert out(window([4, 5], [3, 3])) == (2, 3)
    assert out(bases.Shifts(None, [(0, 9), (0, -9)])) == (4, 5)
    assert out(bases.Shifts([4, 5], [[0, 1], [1, 0]])) == (4, 5)
    assert conv()(IMAGE[0]).shape == (2, 4, 5)
    assert conv()(IMAGE[:0]).shape == (0, 2, 4, 5)
    assert flat(window())(torch.ones(2, 20, 3), grid=[4, 5]).shape == (2, 6, 2)
    assert flat(window((4, 5)))(torch.ones(20, 3), grid=(4, 5), size=(20, 6)).shape == (6, 2)
    assert flat(sites(sites=SITES[:0]))(ROWS[:0]).shape == (0, 2)
    assert flat(sites())(ROWS, batch=torch.tensor([5, 0, 5])).shape == (3, 2)
    assert group([[0]]).bind().N == 1
    assert out(group(C3, window=window(None, (3, 2)), lift=True)) == (3, 2, 4)
    assert out(group("p4", window=window(None, (2, 2)), lift=True)) == (4, 3, 4)
    assert out(group("p4m", window=window(dilation=2, padding=1), lift=True)) == (8, 2, 3)
