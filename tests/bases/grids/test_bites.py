"""The checks of grids can fail: families with one thing wrong do not pass them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pyg_basisconv import bases
from pyg_basisconv.bases import Basis, BoundBasis, EdgeList
from pyg_basisconv.graph import Graph
from pyg_basisconv.typed_edges import explicit
from tests.bases.grids import oracle as grids, test_groups, test_sites
from tests.bases.grids.cases import SWEEP, Config
from tests.bases.grids.oracle import Position, Site
from tests.bases.grids.test_grids import (
    CONV,
    SAMPLES,
    SHIFTS,
    check_against_torch,
    check_edges,
    check_matrices,
    check_shifts,
    check_sizes,
    some,
)
from tests.bases.test_bites import HalfGradient

PATHS = ("auto", "phi", "theta_first", "a_first")  # of families written out, which have no kernel of their own
Change = Callable[[EdgeList, Config], EdgeList]
Check = Callable[[], None]


class Wrong(Basis):
    """A family on a grid after something was done to its edges."""

    needs_edges = False

    def __init__(self, basis: Basis, change: Callable[[EdgeList], EdgeList]) -> None:
        super().__init__(basis.K)
        self.part, self.change, self.axes = basis, change, basis.axes

    def sized(self, *args: Any) -> tuple[int | None, int | None]:
        return self.part.sized(*args)

    def changed(self, bound: BoundBasis) -> BoundBasis:
        wrong = explicit(bound.K, bound.M, bound.N, self.change(bound.edges()), bound.dtype)
        wrong.target_grid = bound.target_grid
        for name in ("sites", "site_batch", "space"):
            if hasattr(bound, name):
                setattr(wrong, name, getattr(bound, name))
        return wrong

    def build(self, graph: Graph) -> BoundBasis:
        return self.changed(self.part.build(graph))


class Halved(Wrong):
    """Right values and a wrong gradient of x."""

    def changed(self, bound: BoundBasis) -> BoundBasis:
        half = HalfGradient(bound)
        half.target_grid = bound.target_grid
        return half


class Stale(Wrong):
    """Keeps the first grid that it is bound to."""

    def build(self, graph: Graph) -> BoundBasis:
        if not hasattr(self, "_kept"):
            self._kept = self.part.build(graph)
        return self._kept


def unravel(index: Tensor, shape: Position) -> list[Tensor]:
    return list(torch.unravel_index(index, shape))


def ravel(along: list[Tensor], shape: Position) -> Tensor:
    total = torch.zeros_like(along[0])
    for place, size in zip(along, shape, strict=True):
        total = total * size + place
    return total


def same(e: EdgeList, c: Config) -> EdgeList:
    return e


def flipped(e: EdgeList, c: Config) -> EdgeList:
    return e._replace(type=c.K - 1 - e.type)


def first_axis_fastest(e: EdgeList, c: Config) -> EdgeList:
    along = unravel(e.type, c.kernel)
    return e._replace(type=ravel(along[::-1], c.kernel[::-1]))


def off_by_one(e: EdgeList, c: Config) -> EdgeList:
    """Each target sees what lies one place further along the last axis."""
    along = unravel(e.source, c.shape)
    along[-1] = along[-1] + 1
    inside = along[-1] < c.shape[-1]
    return EdgeList(e.type[inside], ravel([p[inside] for p in along], c.shape), e.target[inside], e.weight[inside])


def targets_off_by_one(e: EdgeList, c: Config) -> EdgeList:
    along = unravel(e.target, c.grid)
    along[-1] = along[-1] + 1
    inside = along[-1] < c.grid[-1]
    return EdgeList(e.type[inside], e.source[inside], ravel([p[inside] for p in along], c.grid), e.weight[inside])


def sources_turned(e: EdgeList, c: Config) -> EdgeList:
    """The positions numbered with the first axis fastest."""
    return e._replace(source=ravel(unravel(e.source, c.shape)[::-1], c.shape[::-1]))


def targets_turned(e: EdgeList, c: Config) -> EdgeList:
    return e._replace(target=ravel(unravel(e.target, c.grid)[::-1], c.grid[::-1]))


def one_lost(e: EdgeList, c: Config) -> EdgeList:
    return EdgeList(*(t[1:] for t in e))


def weights_off(e: EdgeList, c: Config) -> EdgeList:
    return e._replace(weight=e.weight * torch.linspace(1, 1.001, len(e.weight), dtype=e.weight.dtype))


def turned_round(e: EdgeList, c: Config) -> EdgeList:
    return e._replace(source=e.target, target=e.source)


SQUARE = some(kind="conv", axes=2, groups=1, mode="zeros").but(
    shape=(5, 5), kernel=(3, 2), stride=(1, 1), padding="same", dilation=(1, 1), P=2, Q=2
)
FLAT = Config("conv", (4, 5), (2, 3), (1, 2), (1, 1), (2, 1), P=2, Q=3)
UP = Config("convT", (3, 4), (3, 2), (2, 2), (1, 0), (1, 1), output_padding=(1, 0), P=2, Q=3)
POOL = some(kind="avgpool", axes=2, include_pad=False)
CHANGES: dict[str, tuple[Change, Config]] = {
    "flipped": (flipped, FLAT),
    "flipped-transposed": (flipped, UP),
    "first axis fastest": (first_axis_fastest, FLAT),
    "padding off by one": (off_by_one, FLAT),
    "targets off by one": (targets_off_by_one, UP),
    "sources turned": (sources_turned, FLAT),
    "targets turned": (targets_turned, SQUARE),
    "axes swapped": (lambda e, c: targets_turned(sources_turned(e, c), c), SQUARE),
    "an edge lost": (one_lost, FLAT),
    "weights off": (weights_off, POOL),
    "turned round": (turned_round, SQUARE),
}


def window_of(c: Config, shape: Position | None = None, **changes: Any) -> bases.Window:
    return bases.Window(shape, c.kernel, **{**c.arguments, **changes})


def on_images(change: Change, c: Config, kind: type[Wrong] = Wrong) -> Check:
    return lambda: check_against_torch(c, kind(c.window(), lambda e: change(e, c)), PATHS)


def of_matrices(change: Change, c: Config) -> Check:
    return lambda: check_matrices(c, Wrong(c.window(c.shape), lambda e: change(e, c)))


def of_edges(change: Change, c: Config) -> Check:
    return lambda: check_edges(c, Wrong(c.window(c.shape), lambda e: change(e, c)))


class Regrouped(Config):
    """Groups of channels the other way round."""

    def weight(self, weight: Tensor) -> Tensor:
        return super().weight(weight).flip(1)


class Transposed(Config):
    """P and Q exchanged."""

    def weight(self, weight: Tensor) -> Tensor:
        return super().weight(weight.transpose(0, 1))


class TapsFlipped(Config):
    """Torch's kernel flipped, as in a convolution that is no correlation."""

    def weight(self, weight: Tensor) -> Tensor:
        return super().weight(weight).flip(0)


class TapsLast(Config):
    """The taps in torch's place, not moved to the front."""

    def weight(self, weight: Tensor) -> Tensor:
        return weight.reshape(self.K, self.P, self.Q)


def as_a(kind: type[Config], c: Config) -> Config:
    return kind(**{name: getattr(c, name) for name in c.__dataclass_fields__})


ROUND = Config("conv", (4, 5), (3, 3), (1, 1), (1, 1), (1, 1), "circular", P=2, Q=2)
CEIL = Config("avgpool", (5, 6), (2, 4), (3, 3), (1, 2), (1, 1), ceil_mode=True, P=2, Q=2, bias=False)
ARGUMENTS: dict[str, tuple[Config, dict[str, Any]]] = {
    # a window of other arguments, on which the targets are as many
    "zeros for circular": (ROUND, {"padding_mode": "zeros"}),
    "reflect for circular": (ROUND, {"padding_mode": "reflect"}),
    "replicate for reflect": (ROUND.but(mode="reflect"), {"padding_mode": "replicate"}),
    "stride for dilation": (FLAT.but(stride=(1, 1), padding="same"), {"dilation": (1, 2)}),
    "mean for padded": (CEIL, {"norm": "mean"}),
    "no norm for padded": (CEIL, {"norm": None}),
    "padded for mean": (CEIL.but(include_pad=False), {"norm": "padded"}),
}

SHIFTED = {name: SHIFTS[name] for name in ("1d", "2d", "3d")}


def negated(offsets: list) -> list:
    return [-d if isinstance(d, int) else tuple(-e for e in d) for d in offsets]


def swapped(offsets: list) -> list:
    return [tuple(d[::-1]) for d in offsets]


# Sites.


def misplaced(name: str) -> Callable[[EdgeList], EdgeList]:
    """The rows of sites in the order of the grid, though they came in another."""
    c = test_sites.CASES[name]
    order = torch.tensor(sorted(range(len(c.sites)), key=lambda i: c.sites[i]))
    return lambda e: e._replace(source=order[e.source])


def without_batch(name: str) -> tuple[test_sites.Case, Basis]:
    c = test_sites.CASES[name]

    class Together(Wrong):
        """Samples are not told apart: only the first is seen."""

        def build(self, graph: Graph) -> BoundBasis:
            here: dict[Site, int] = {}
            for m, (b, position) in enumerate(zip(c.batch, c.sites, strict=True)):
                here.setdefault((0 * b, position), m)
            bound = self.part.build(graph)
            lost = EdgeList(*(t.clone() for t in bound.edges()))
            for i, m in enumerate(lost.source.tolist()):
                lost.source[i] = here[(0, c.sites[m])]
            self.change = lambda e: lost
            return self.changed(bound)

    return c, Together(c.window, lambda e: e)


def sites_check(name: str, change: Callable[[EdgeList], EdgeList], layer: bool) -> Check:
    c = test_sites.CASES[name]
    wrong = Wrong(c.window, change)
    paths = ("auto", "a_first")
    return lambda: test_sites.check_layer(c, wrong, paths) if layer else test_sites.check_family(c, wrong)


# Groups.


def spoil(basis: bases.Group, change: Callable[[bases.Group], None]) -> None:
    """Changes what it does not print, so that nothing is kept of it: it would be taken for what it prints."""
    change(basis)
    vars(basis)["key"] = None


def group_check(name: str, lift: bool, change: Callable[[bases.Group], None]) -> Check:
    def check() -> None:
        basis = bases.Group(name, bases.Window(None, (3, 3), padding=1), lift=lift)
        spoil(basis, change)
        test_groups.check_images(name, "3x3", lift, ("native", "a_first"), basis)

    return check


def equivariance_check(name: str, change: Callable[[bases.Group], None]) -> Check:
    def check() -> None:
        net = test_groups.Chain(name, padding=1)
        for i in (0, 2, 4):
            spoil(net[i].basis, change)
        test_groups.check_equivariance(name, net, test_groups.draw(2, 2, 5, 5))

    return check


def taps_unpermuted(basis: bases.Group) -> None:
    basis._taps = [list(range(9)) for _ in basis._taps]


def taps_inverse(basis: bases.Group) -> None:
    basis._taps = [torch.tensor(order).argsort().tolist() for order in basis._taps]


@dataclass
class Twisted:
    """A group with another product, and everything else as it was."""

    group: bases.FiniteGroup

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    @property
    def table(self) -> list[list[int]]:
        return [list(column) for column in zip(*self.group.table, strict=True)]


def product_reversed(basis: bases.Group) -> None:
    basis.group = Twisted(basis.group)


def rolled(basis: bases.Group) -> None:
    """The taps of each element are those of the next."""
    basis._taps = basis._taps[1:] + basis._taps[:1]


def table_check(table: list[list[int]]) -> Check:
    def check() -> None:
        turned = [list(column) for column in zip(*table, strict=True)]
        found = bases.Group(turned).bind(dtype=torch.float64).to_dense()
        test_groups.close(found, grids.group(table))

    return check


CHECKS: dict[str, Check] = {
    **{f"images: {name}": on_images(*changed) for name, changed in CHANGES.items()},
    **{f"matrices: {name}": of_matrices(*changed) for name, changed in CHANGES.items()},
    **{f"edges: {name}": of_edges(*changed) for name, changed in CHANGES.items()},
    "images: half the gradient": on_images(same, FLAT, Halved),
    "images: stale": lambda: check_sizes(CONV, Stale(CONV.window(), lambda e: e), PATHS),
    "groups of channels": lambda: check_against_torch(as_a(Regrouped, SAMPLES["conv2d-groups"])),
    "groups of channels, transposed": lambda: check_against_torch(as_a(Regrouped, SAMPLES["convT3d-groups"])),
    "P for Q": lambda: check_against_torch(as_a(Transposed, ROUND)),
    "kernel flipped": lambda: check_against_torch(as_a(TapsFlipped, FLAT)),
    "kernel flipped, transposed": lambda: check_against_torch(as_a(TapsFlipped, UP)),
    "taps last": lambda: check_against_torch(as_a(TapsLast, FLAT)),
    **{
        f"arguments: {name}": lambda c=c, changes=changes: check_against_torch(c, window_of(c, **changes))
        for name, (c, changes) in ARGUMENTS.items()
    },
    **{
        f"shifts: sign, {name}": lambda shape=shape, offsets=offsets: check_shifts(
            shape, offsets, "zeros", bases.Shifts(shape, negated(offsets))
        )
        for name, (shape, offsets) in SHIFTED.items()
    },
    "shifts: axes": lambda: check_shifts(*SHIFTED["2d"], "zeros", bases.Shifts((3, 4), swapped(SHIFTED["2d"][1]))),
    "shifts: order": lambda: check_shifts(*SHIFTED["2d"], "zeros", bases.Shifts((3, 4), SHIFTED["2d"][1][::-1])),
    "shifts: circular": lambda: check_shifts(
        *SHIFTED["2d"], "circular", bases.Shifts((3, 4), SHIFTED["2d"][1], padding_mode="replicate")
    ),
    **{
        f"sites: {what}, {name}": sites_check(name, change(name), layer)
        for name in ("2d", "3d-batched", "2d-strided-3")
        for what, layer in (("rows", False), ("rows of a layer", True))
        for change in (misplaced,)
    },
    "sites: batch": lambda: test_sites.check_family(*without_batch("2d-batched")),
    "sites: batch of a layer": lambda: test_sites.check_layer(*without_batch("2d-batched"), ("auto", "a_first")),
    "sites: taps": sites_check("2d", lambda e: e._replace(type=8 - e.type), True),
    "sites: an edge lost": sites_check("2d-strided", lambda e: EdgeList(*(t[:-1] for t in e)), True),
    "sites: other targets": lambda: test_sites.check_family(
        test_sites.CASES["2d"], bases.Window((5, 6), (3, 3), padding=2, sites=test_sites.CASES["2d"].places)
    ),
    **{
        f"group: {name}, {change.__name__}, {'lift' if lift else 'group'}": group_check(name, lift, change)
        for name in ("p4", "p4m")
        for lift in (True, False)
        for change in (taps_unpermuted, rolled, *([taps_inverse] if name == "p4" else []))
    },
    "group: p4m, product": group_check("p4m", False, product_reversed),
    **{
        f"equivariance: {name}, {change.__name__}": equivariance_check(name, change)
        for name in ("p4", "p4m")
        # Rotations that are rolled commute with rotations none the less.
        for change in (taps_unpermuted, taps_inverse, *([rolled] if name == "p4m" else []))
    },
    "equivariance: p4m, product": equivariance_check("p4m", product_reversed),
    **{f"table: {name}": table_check(test_groups.TABLES[name]) for name in ("S3", "D3", "Q8", "p4m")},
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.sweep(28)
def test_wrong_fails(name: str) -> None:
    # A bound basis of another grid is even refused.
    with pytest.raises((AssertionError, ValueError) if name == "images: stale" else AssertionError):
        CHECKS[name]()


KERNELS: dict[str, Callable[[Callable], Callable]] = {
    # of torch's own kernels as they are called: what one sees in a wrong frame, with a wrong weight
    "flipped": lambda f: lambda image, weight, *rest: f(image, weight.flip(0), *rest),
    "groups": lambda f: lambda image, weight, *rest: f(image, weight.flip(1), *rest),
    "bias lost": lambda f: lambda image, weight, bias, *rest: f(image, weight, None, *rest),
    "transposed": lambda f: lambda image, weight, *rest: f(image.transpose(-1, -2), weight, *rest),
    "weight detached": lambda f: lambda image, weight, *rest: f(image, weight.detach() + 0 * weight, *rest),
}


def evaluate_by(monkeypatch: pytest.MonkeyPatch, apply: Callable[..., Tensor]) -> None:
    """Has convolutions evaluated by `apply`, those too that go to torch's kernel by a shorter way."""
    from pyg_basisconv.bases import bound_grid

    def convolution(frame: Any, groups: int, kernel: Callable[[], Tensor]) -> Callable[..., Tensor]:
        def call(image: Tensor, bias: Tensor | None) -> Tensor:
            weight = kernel().flatten(2).unflatten(0, (groups, -1)).permute(3, 0, 2, 1)  # (K, g, P / g, Q / g)
            return apply(image, weight, bias, bound_grid.Taps(frame, None, False))

        return call

    torchs = bound_grid.grids.convolution
    own = lambda x, weight, bias, frame, groups: torchs(frame, groups, lambda: weight)(x, bias)  # noqa: E731
    monkeypatch.setattr(bound_grid.grids, "convolve", own)
    monkeypatch.setattr(bound_grid, "convolve_window", apply)
    monkeypatch.setattr(bound_grid.grids, "convolution", convolution)


def test_what_spoils_kernels_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyg_basisconv.bases import bound_grid

    evaluate_by(monkeypatch, bound_grid.convolve_window)
    for c in (SAMPLES["conv2d-groups"], SQUARE):
        check_against_torch(c, paths=("native",))


@pytest.mark.parametrize("name", KERNELS)
def test_wrong_kernels_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyg_basisconv.bases import bound_grid

    c = SAMPLES["conv2d-groups"] if name == "groups" else SQUARE
    check_against_torch(c, paths=("native",))
    evaluate_by(monkeypatch, KERNELS[name](bound_grid.convolve_window))
    with pytest.raises(AssertionError):
        check_against_torch(c, paths=("native",))


@pytest.mark.parametrize("field", ["before", "dilation"])
def test_wrong_frames_fail(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyg_basisconv.bases import bound_grid

    apply = bound_grid.convolve_window

    def wrong(image: Tensor, weight: Tensor, bias: Tensor | None, window: Any) -> Tensor:
        before, dilation = window.frame.before, window.frame.dilation
        changed = {"before": (before[0] + 1, *before[1:]), "dilation": (dilation[0] + 1, *dilation[1:])}[field]
        return apply(image, weight, bias, window._replace(frame=replace(window.frame, **{field: changed})))

    evaluate_by(monkeypatch, wrong)
    with pytest.raises(AssertionError):
        check_against_torch(SQUARE, paths=("native",))


def test_the_right_ones_pass() -> None:
    """The wrappers themselves are harmless: it is the change that the checks see."""
    for _, c in CHANGES.values():
        for check in (on_images, of_matrices, of_edges):
            check(same, c)()
    for c, _ in ARGUMENTS.values():
        check_against_torch(c)
    for kind in (FLAT, UP, ROUND, SAMPLES["conv2d-groups"], SAMPLES["convT3d-groups"]):
        check_against_torch(as_a(Config, kind))
    check_sizes(CONV, Wrong(CONV.window(), lambda e: e), PATHS)
    for name, (shape, offsets) in SHIFTED.items():
        check_shifts(shape, offsets, "zeros", Wrong(bases.Shifts(shape, offsets), lambda e, name=name: e))
    for name in ("2d", "3d-batched", "2d-strided-3"):
        for layer in (False, True):
            sites_check(name, lambda e: e, layer)()
    for name in ("p4", "p4m"):
        for lift in (True, False):
            group_check(name, lift, lambda basis: None)()
        equivariance_check(name, lambda basis: None)()


def test_most_of_the_sweep_sees_a_flipped_kernel() -> None:
    """It is no single configuration that tells: the sweep does."""
    told = 0
    some_of_it = [c for c in list(SWEEP.values())[::10] if c.K > 1 and c.kind != "avgpool"]
    for c in some_of_it:
        try:
            check_against_torch(c, Wrong(c.window(), lambda e, c=c: flipped(e, c)), ("theta_first",))
        except AssertionError:
            told += 1
    assert told == len(some_of_it) > 15
