"""Windows on sparse grids are their definition, and convolutions of a dense grid that is zero elsewhere."""

import copy
import itertools
import math
import pickle
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.testing import assert_close

from pyg_basisconv import BasisConv, bases, theta
from tests import oracle
from tests.bases.grids import oracle as grids
from tests.bases.grids.cases import CONVS, DOUBLE, TRANSPOSED, draw
from tests.bases.grids.oracle import Position, Site, per_axis
from tests.bases.grids.test_grids import check_bound, close, fill, take

ORDERS = ("auto", "compacted", "a_first", "theta_first", "phi")
PATHS = (*ORDERS, "message", "message/a_first")


@dataclass(frozen=True)
class Case:
    """A window on some positions of a grid, in any order."""

    shape: Position
    sites: tuple[Position, ...]
    kernel: Position
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    transposed: bool = False
    output_padding: Any = 0
    batch: tuple[int, ...] | None = None

    @property
    def axes(self) -> int:
        return len(self.shape)

    @property
    def arguments(self) -> dict[str, Any]:
        found = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return found | ({"transposed": True, "output_padding": self.output_padding} if self.transposed else {})

    @property
    def places(self) -> Tensor:
        return torch.tensor(self.sites, dtype=torch.long).reshape(-1, self.axes)

    @property
    def call(self) -> dict[str, Tensor]:
        return {} if self.batch is None else {"batch": torch.tensor(self.batch, dtype=torch.long)}

    @property
    def window(self) -> bases.Window:
        return bases.Window(self.shape, self.kernel, **self.arguments, sites=self.places)

    def matrices(self) -> tuple[Tensor, list[Site], Position]:
        return grids.sites(self.sites, self.shape, self.kernel, **self.arguments, batch=self.batch)

    def but(self, **changes: Any) -> "Case":
        return replace(self, **changes)


def scatter(shape: Position, count: int, samples: int = 1, seed: int = 0) -> dict[str, Any]:
    """Positions drawn at random in each sample, in no order."""
    generator = torch.Generator().manual_seed(seed)
    all_ = [(b, position) for b in range(samples) for position in grids.positions(shape)]
    chosen = [all_[i] for i in torch.randperm(len(all_), generator=generator)[:count].tolist()]
    batch = {} if samples == 1 else {"batch": tuple(b for b, _ in chosen)}
    return {"shape": shape, "sites": tuple(position for _, position in chosen), **batch}


SAME2, SAME3 = {"kernel": (3, 3), "padding": 1}, {"kernel": (3, 3, 3), "padding": 1}
CASES = {
    # submanifold
    "2d": Case(**scatter((5, 6), 11), **SAME2),
    "2d-all": Case(**scatter((3, 4), 12), **SAME2),
    "2d-batched": Case(**scatter((4, 5), 19, 3), **SAME2),
    "2d-same-even": Case(**scatter((4, 5), 9, 2), kernel=(2, 4), padding="same"),
    "2d-dilated": Case(**scatter((6, 6), 14), kernel=(3, 3), padding=2, dilation=2),
    "2d-wide": Case(**scatter((3, 3), 5), kernel=(5, 5), padding="same"),
    "2d-mixed": Case(**scatter((5, 5), 11, 2), kernel=(3, 1), padding=(1, 0)),
    "3d": Case(**scatter((4, 3, 4), 17), **SAME3),
    "3d-batched": Case(**scatter((3, 3, 4), 25, 2, seed=1), **SAME3),
    "1d": Case(**scatter((9,), 5), kernel=(3,), padding=1),
    "4d": Case(**scatter((3, 2, 3, 2), 12), kernel=(3, 1, 3, 1), padding=(1, 0, 1, 0)),
    "one-tap": Case(**scatter((4, 4), 7), kernel=(1, 1)),
    "far-apart": Case((1000, 1000, 1000), ((999, 0, 500), (0, 0, 0), (998, 1, 499), (0, 1, 1)), (3, 3, 3), padding=1),
    # to other sites
    "2d-strided": Case(**scatter((6, 6), 11), kernel=(2, 2), stride=2),
    "2d-strided-3": Case(**scatter((7, 6), 9, 2), kernel=(3, 3), stride=2, padding=1),
    "2d-valid": Case(**scatter((5, 5), 9, 2), kernel=(3, 3)),
    "2d-full": Case(**scatter((4, 4), 5), kernel=(3, 3), padding=2),
    "2d-mixed-stride": Case(**scatter((7, 6), 12), kernel=(2, 3), stride=(3, 1), padding=(1, 0), dilation=(1, 2)),
    "2d-gaps": Case(**scatter((7, 7), 12), kernel=(1, 2), stride=3),
    "3d-strided": Case(**scatter((4, 4, 5), 15, 2), kernel=(2, 2, 2), stride=2),
    "3d-strided-3": Case(**scatter((5, 4, 5), 13), kernel=(3, 3, 3), stride=2, padding=1),
    # back
    "2d-transposed": Case(**scatter((3, 3), 4, 2), kernel=(2, 2), stride=2, transposed=True),
    "2d-transposed-3": Case(
        **scatter((3, 4), 5), kernel=(3, 3), stride=2, padding=1, transposed=True, output_padding=1
    ),
    "2d-transposed-same": Case(**scatter((4, 4), 7, 2), kernel=(3, 3), padding=1, transposed=True),
    "3d-transposed": Case(**scatter((2, 3, 2), 5), kernel=(2, 3, 2), stride=(2, 1, 2), transposed=True),
    # few
    "one-site": Case((5, 5), ((2, 4),), **SAME2),
    "one-site-strided": Case((5, 5), ((2, 4),), kernel=(3, 3), stride=2),
    "one-place": Case((1, 1), ((0, 0),), **SAME2),
    "no-site": Case((5, 5), (), **SAME2),
    "no-site-strided": Case((5, 5), (), kernel=(3, 3), stride=2),
    "no-site-batched": Case((5, 5), (), **SAME2, batch=()),
    "sample-without": Case((4, 4), ((0, 0), (0, 0), (3, 1)), **SAME2, batch=(3, 0, 3)),
}
each_case = pytest.mark.parametrize("c", CASES.values(), ids=CASES)
SMALL = {name: c for name, c in CASES.items() if name != "far-apart"}  # small enough for a dense grid


def expected_far(c: Case) -> tuple[Tensor, list[Site], Position]:
    """Of a grid too large to be walked over, by pairs of sites."""
    A = torch.zeros(math.prod(c.kernel), len(c.sites), len(c.sites), dtype=DOUBLE)
    for m, source in enumerate(c.sites):
        for n, target in enumerate(c.sites):
            for k, tap in enumerate(grids.positions(c.kernel)):
                if all(s == t - c.padding + j for s, t, j in zip(source, target, tap, strict=True)):
                    A[k, m, n] += 1
    return A, [(0, position) for position in c.sites], c.shape


def expected(c: Case) -> tuple[Tensor, list[Site], Position]:
    return expected_far(c) if max(c.shape) > 100 else c.matrices()


def check_family(c: Case, window: bases.Basis | None = None) -> None:
    """The matrices, and where the targets are."""
    A, targets, grid = expected(c)
    bound = (c.window if window is None else window).bind(dtype=DOUBLE, **c.call)
    assert A.shape == (bound.K, bound.M, bound.N)
    assert bound.sites.tolist() == [list(position) for _, position in targets]
    assert bound.site_batch.tolist() == [b for b, _ in targets]
    assert tuple(bound.space) == grid
    check_bound(bound, A)


def check_layer(c: Case, window: bases.Basis | None = None, paths: tuple[str, ...] = PATHS) -> None:
    """Values and all gradients, by every order."""
    A, _, _ = expected(c)
    conv = fill(BasisConv(3, 2, c.window if window is None else window))
    for path in paths:
        for lead in ((), (2,)):
            x = draw(*lead, len(c.sites), 3).requires_grad_()
            y = take(conv, path)(x, **c.call)
            reference = oracle.apply(A, x, conv.weight, conv.bias)
            close(y, reference, what=f"y by {path}")
            leaves = {"x": x, **dict(conv.named_parameters())}
            down = draw(*y.shape, seed=3)
            theirs = grad(reference, list(leaves.values()), down)
            for name, a, b in zip(leaves, grad(y, list(leaves.values()), down), theirs, strict=True):
                close(a, b, what=f"the gradient of {name} by {path}")


@each_case
@pytest.mark.sweep(12)
def test_family(c: Case) -> None:
    check_family(c)


@each_case
@pytest.mark.sweep(10)
def test_layer(c: Case) -> None:
    check_layer(c)


def laid_out(c: Case, x: Tensor, P: int) -> Tensor:
    """(B, P, *shape), zeros where no site is."""
    samples = [0] * len(c.sites) if c.batch is None else c.batch
    image = torch.zeros(max(samples, default=0) + 1, P, *c.shape, dtype=x.dtype)
    for row, b, position in zip(x, samples, c.sites, strict=True):
        image[(b, slice(None), *position)] = row
    return image


DENSE = [name for name, c in SMALL.items() if c.axes <= 3]


@pytest.mark.parametrize(
    ("name", "order"),
    [*((name, "auto") for name in DENSE), *zip(DENSE, itertools.cycle(ORDERS[1:]))],
)
@pytest.mark.sweep(15)
def test_a_dense_grid_that_is_zero_elsewhere(name: str, order: str) -> None:
    """Torch's convolution, with its gradients; where no target is its result is zero, or is not asked for."""
    c = SMALL[name]
    _, targets, to = c.matrices()
    conv = fill(BasisConv(3, 2, c.window, bias=False, order=order))
    if c.transposed:
        arguments = (c.stride, c.padding, c.output_padding, 1, False, c.dilation)
        layer = TRANSPOSED[c.axes](3, 2, c.kernel, *arguments)
        layer.weight.data = conv.weight.data.reshape(*c.kernel, 3, 2).movedim((-2, -1), (0, 1)).clone()
    else:
        around = list(reversed(grids.paddings(c.kernel, c.padding, per_axis(c.dilation, c.axes))))
        layer = CONVS[c.axes](3, 2, c.kernel, c.stride, 0, c.dilation, bias=False)
        layer.weight.data = conv.weight.data.reshape(*c.kernel, 3, 2).movedim((-1, -2), (0, 1)).clone()
    x = draw(len(c.sites), 3).requires_grad_()
    own = x.detach().clone().requires_grad_()
    image = laid_out(c, own, 3)
    if not c.transposed:
        image = torch.nn.functional.pad(image, [n for pair in around for n in pair])
    full = layer(image)
    assert tuple(full.shape[2:]) == to
    y = conv(x, **c.call)
    at = [(b, slice(None), *position) for b, position in targets]
    right = torch.stack([full[place] for place in at]) if at else full.sum() * 0 + own.sum() + full.new_zeros(0, 2)
    close(y, right, what=order)
    down = draw(*y.shape, seed=3)
    gx, gw = grad(right, [own, layer.weight], down)
    gw = gw.movedim((0, 1), (-2, -1) if c.transposed else (-1, -2)).reshape(-1, 3, 2)
    for name, a, b in zip(("x", "weight"), grad(y, [x, conv.weight], down), (gx, gw), strict=True):
        close(a, b, what=f"the gradient of {name}")
    if not (to == c.shape and set(per_axis(c.stride, c.axes)) == {1}):
        rest = full.detach().clone()
        for place in at:
            rest[place] = 0
        assert not rest.any(), "what is no target sees no site"


def test_all_positions_are_the_dense_window() -> None:
    """Where every position is there, in order, it is the window without sites."""
    for arguments in ({"padding": 1}, {"stride": 2}, {"padding": 1, "stride": (2, 1)}, {"dilation": 2, "padding": 2}):
        shape = (5, 6)
        places = torch.tensor(grids.positions(shape))
        window = bases.Window(shape, 3, **arguments)
        found = window.at(places).bind(dtype=DOUBLE)
        # A dense grid has targets that see nothing.
        dense = window.bind(dtype=DOUBLE).to_dense()
        close(found.to_dense(), dense[:, :, dense.sum((0, 1)) > 0])


@pytest.mark.parametrize("name", ["2d-batched", "3d", "2d-strided-3", "2d-transposed"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: theta.Depthwise(),
        lambda: theta.Grouped(2),
        lambda: theta.Separable(2),
        lambda: theta.LowRank(2),
        lambda: theta.Pass(scale=0.5),
    ],
    ids=["Depthwise", "Grouped", "Separable", "LowRank", "Pass"],
)
@pytest.mark.sweep(8)
def test_parameters(name: str, make: Any) -> None:
    c = CASES[name]
    A, _, _ = c.matrices()
    conv = fill(BasisConv(4, 4, c.window, make()))
    x = draw(len(c.sites), 4).requires_grad_()
    dense = conv.theta.dense(4).double()
    reference = oracle.apply(A, x, dense, conv.bias)
    down = draw(*reference.shape, seed=3)
    leaves = [x, *conv.parameters()]
    right = grad(reference, leaves, down)
    for path in PATHS:
        if path == "compacted" and isinstance(conv.theta, theta.LowRank | theta.Pass):
            with pytest.raises(ValueError, match=r"^order: 'compacted' was asked for"):
                take(conv, path)(x, **c.call)
            continue
        y = take(conv, path)(x, **c.call)
        close(y, reference, what=path)
        for a, b in zip(grad(y, leaves, down), right, strict=True):
            close(a, b, what=path)


# Layers one after the other.


def test_a_chain_of_layers() -> None:
    """Down, on the same sites, down, and back up, as on a dense grid that is zero elsewhere."""
    shape, c = (8, 8), Case(**scatter((8, 8), 21, 2, seed=3), kernel=(3, 3), padding=1)
    steps = [
        ({"kernel_size": (3, 3), "padding": 1}, 3, 4),
        ({"kernel_size": (2, 2), "stride": 2}, 4, 3),
        ({"kernel_size": (3, 3), "padding": 1}, 3, 2),
        ({"kernel_size": (2, 2), "stride": 2}, 2, 4),
        ({"kernel_size": (2, 2), "stride": 2, "transposed": True}, 4, 2),
    ]
    sites, batch = c.places, c.call["batch"]
    x = draw(len(c.sites), 3).requires_grad_()
    y, reference = x, x
    here, samples = list(c.sites), list(c.batch)
    for step, P, Q in steps:
        window = bases.Window(shape, **step, sites=sites)
        bound = window.bind(batch=batch, dtype=DOUBLE)
        conv = fill(BasisConv(P, Q, window))
        y = conv(y, bound)
        arguments = {k: v for k, v in step.items() if k != "kernel_size"}
        A, targets, to = grids.sites(here, shape, step["kernel_size"], **arguments, batch=samples)
        reference = oracle.apply(A, reference, conv.weight, conv.bias)
        close(y, reference)
        here, samples, shape = [position for _, position in targets], [b for b, _ in targets], to
        sites, batch = bound.sites, bound.site_batch
        assert sites.tolist() == [list(position) for position in here]
        assert batch.tolist() == samples
        assert tuple(bound.space) == shape
    close(*(grad(f.square().sum(), x)[0] for f in (y, reference)))


def test_at_no_sites() -> None:
    """Without sites it is the window of the whole grid again."""
    c = CASES["2d"]
    whole = c.window.at(None)
    assert repr(whole) == repr(bases.Window(c.shape, c.kernel, padding=1))
    close(whole.bind(dtype=DOUBLE).to_dense(), grids.window(c.shape, c.kernel, padding=1))
    assert repr(whole.at(c.places)) == repr(c.window)


def test_back_to_the_sites_that_were() -> None:
    """The transposed family of a strided window brings its results back to the sites that it came from."""
    for name in ("2d-strided", "2d-strided-3", "3d-strided"):
        c = CASES[name]
        A, targets, _ = c.matrices()
        bound = c.window.bind(dtype=DOUBLE, **c.call)
        conv = fill(BasisConv(3, 2, c.window.T))
        x = draw(len(targets), 3)
        close(conv(x, bound.T), oracle.apply(A.transpose(1, 2), x, conv.weight, conv.bias))


def test_at_other_sites() -> None:
    """One layer, many sets of sites, bound or given by another basis that shares the parameters."""
    first = CASES["2d-batched"]
    conv = fill(BasisConv(3, 2, first.window))
    for seed in range(4):
        c = first.but(**scatter((4, 5), 5 + 4 * seed, 3, seed=seed + 10))
        A, _, _ = c.matrices()
        x = draw(len(c.sites), 3)
        bound = first.window.at(c.places).bind(dtype=DOUBLE, **c.call)
        for path in PATHS:
            close(take(conv, path)(x, bound), oracle.apply(A, x, conv.weight, conv.bias), what=path)
    A, _, _ = first.matrices()
    x = draw(len(first.sites), 3)
    close(conv(x, **first.call), oracle.apply(A, x, conv.weight, conv.bias))


def test_sites_that_change_in_place_are_seen() -> None:
    c = CASES["2d"]
    sites = c.places
    conv = fill(BasisConv(3, 2, bases.Window(c.shape, c.kernel, padding=1, sites=sites)))
    x = draw(len(c.sites), 3)
    close(conv(x), oracle.apply(c.matrices()[0], x, conv.weight, conv.bias))
    there = torch.tensor(scatter((5, 6), 11, seed=9)["sites"])
    conv.basis.sites.copy_(there)
    moved = c.but(sites=tuple(map(tuple, there.tolist())))
    close(conv(x), oracle.apply(moved.matrices()[0], x, conv.weight, conv.bias))


def test_batch_that_changes_is_seen() -> None:
    c = CASES["2d-batched"]
    conv = fill(BasisConv(3, 2, c.window))
    x, batch = draw(len(c.sites), 3), c.call["batch"]
    close(conv(x, batch=batch), oracle.apply(c.matrices()[0], x, conv.weight, conv.bias))
    batch += 1
    batch[::2] += 3  # samples of their own
    other = c.but(batch=tuple(batch.tolist()))
    close(conv(x, batch=batch), oracle.apply(other.matrices()[0], x, conv.weight, conv.bias))


FEW = {
    "batched": Case(**scatter((3, 3), 7, 2), **SAME2),
    "strided": Case(**scatter((4, 3), 6, 2), kernel=(3, 2), stride=2, padding=1),
    "transposed": Case(**scatter((2, 2), 3, 2), kernel=(2, 2), stride=2, transposed=True),
    "3d": Case(**scatter((2, 2, 2), 5), kernel=(3, 1, 2), padding="same"),
}


@pytest.mark.parametrize(
    ("name", "order"),
    [*((name, order) for name in ("batched", "strided") for order in ORDERS[1:]), *((name, "auto") for name in FEW)],
)
@pytest.mark.sweep(2)
def test_gradcheck(name: str, order: str) -> None:
    c = FEW[name]
    conv = fill(BasisConv(2, 1, c.window, order=order))
    x = draw(len(c.sites), 2).requires_grad_()

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(conv, {"theta.weight": weight, "bias": bias}, (x,), c.call)

    inputs = [x, *(p.detach().clone().requires_grad_() for p in (conv.weight, conv.bias))]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["2d-batched", "3d", "2d-strided", "no-site"])
@pytest.mark.sweep(7)
def test_precision(name: str, path: str) -> None:
    c = CASES[name]
    A, _, _ = c.matrices()
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-2)):
        conv = take(fill(BasisConv(3, 2, c.window)).to(dtype), path)
        x = draw(len(c.sites), 3).to(dtype).requires_grad_()
        y = conv(x, **c.call)
        leaves = [x, conv.weight, conv.bias]
        # Terms may cancel: errors are measured against the sum of the sizes of the terms.
        exact = [t.detach().double().requires_grad_() for t in leaves]
        sizes = [t.detach().double().abs().requires_grad_() for t in leaves]
        reference, total = oracle.apply(A, *exact), oracle.apply(A, *sizes)
        mine = [y, *grad(y.sum(), leaves)]
        theirs = [reference, *grad(reference.sum(), exact)]
        scales = [total, *grad(total.sum(), sizes)]
        for a, b, scale in zip(mine, theirs, scales, strict=True):
            assert a.dtype == dtype
            bound = tolerance * (float(scale.detach().max()) if scale.numel() else 1.0)
            assert_close(a.double(), b, rtol=tolerance, atol=bound)


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_bits_twice(order: str) -> None:
    c = CASES["3d-batched"]
    results = []
    for _ in range(2):
        conv = fill(BasisConv(3, 2, c.window, order=order)).float()
        x = draw(len(c.sites), 3).float().requires_grad_()
        y = conv(x, **c.call)
        results.append((y, *grad(y.square().sum(), [x, *conv.parameters()])))
    assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["2d-batched", "2d-strided-3", "2d-transposed"])
@pytest.mark.sweep(1)
def test_inference_first(name: str) -> None:
    """A first call in inference mode, or without gradients, leaves nothing behind that hurts training."""
    c = CASES[name]
    A, _, _ = c.matrices()
    x = draw(len(c.sites), 3).requires_grad_()
    for path in PATHS:
        for guard in (torch.inference_mode, torch.no_grad):
            conv = take(fill(BasisConv(3, 2, c.window)), path)
            with guard():
                bound = c.window.bind(dtype=DOUBLE, **c.call)
                conv(x, **c.call), conv(x, bound)
            reference = oracle.apply(A, x, conv.weight, conv.bias)
            down = draw(*reference.shape, seed=3)
            for y in (conv(x, **c.call), conv(x, bound)):
                close(y, reference, what=path)
                leaves = [x, conv.weight]
                theirs = grad(reference, leaves, down, retain_graph=True)
                for a, b in zip(grad(y, leaves, down), theirs, strict=True):
                    close(a, b, what=path)


def test_renamed_sites() -> None:
    """Rows in another order give the same rows in that order; targets that are found come in their own."""
    for name in ("2d-batched", "3d-batched", "2d-strided-3"):
        c = CASES[name]
        order = torch.randperm(len(c.sites), generator=torch.Generator().manual_seed(5)).tolist()
        mixed = c.but(sites=tuple(c.sites[i] for i in order), batch=tuple(c.batch[i] for i in order))
        x = draw(len(c.sites), 3)
        for path in PATHS:
            y = take(fill(BasisConv(3, 2, c.window)), path)(x, **c.call)
            z = take(fill(BasisConv(3, 2, mixed.window)), path)(x[order], **mixed.call)
            close(z, y if c.stride != 1 else y[order], what=path)


def test_copied_and_pickled() -> None:
    c = CASES["2d-batched"]
    conv = fill(BasisConv(3, 2, c.window))
    x = draw(len(c.sites), 3)
    y = conv(x, **c.call)
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        close(other(x, **c.call), y)
    assert set(conv.state_dict()) == {"theta.weight", "bias"}, "the sites are data, not parameters"
    assert "sites" in repr(c.window)


def test_int32_and_strided_sites() -> None:
    c = CASES["2d-batched"]
    A, _, _ = c.matrices()
    batch = c.call["batch"]
    beside = torch.stack([*c.places.unbind(1), batch], 1)
    for sites, samples in (
        (c.places.int(), batch),
        (c.places.int(), batch.int()),
        (c.places.t().contiguous().t(), batch),
        (beside[:, :2], beside[:, 2]),
    ):
        bound = bases.Window(c.shape, c.kernel, padding=1, sites=sites).bind(batch=samples, dtype=DOUBLE)
        close(bound.to_dense(), A)
        assert bound.sites.tolist() == sites.tolist()


def test_beside_other_families() -> None:
    """A sum with the identity, and with another window on the same sites."""
    c = CASES["2d-batched"]
    A, _, _ = c.matrices()
    M = len(c.sites)
    small = bases.Window(c.shape, (1, 3), padding=(0, 1), sites=c.places)
    B = grids.sites(c.sites, c.shape, (1, 3), padding=(0, 1), batch=c.batch)[0]
    for basis, matrices in (
        (c.window + bases.Identity(), oracle.concat(A, torch.eye(M, dtype=DOUBLE)[None])),
        (c.window + small, oracle.concat(A, B)),
        (small @ c.window, oracle.product(B, A)),
        (c.window.T, oracle.transpose(A)),
    ):
        check_bound(basis.bind(size=M, dtype=DOUBLE, **c.call), matrices)
        conv = fill(BasisConv(3, 2, basis))
        x = draw(M, 3)
        for path in [p for p in PATHS if p != "compacted"]:
            close(take(conv, path)(x, **c.call), oracle.apply(matrices, x, conv.weight, conv.bias), what=path)


def test_attention_among_neighbours() -> None:
    """A window on sites as the mask of an attention."""
    from pyg_basisconv.mechanisms import Dot

    c = CASES["2d-batched"]
    A, _, _ = c.matrices()
    conv = fill(BasisConv(3, 4, bases.Attention(2, Dot(3), c.window), theta.Heads()))
    everywhere = fill(BasisConv(3, 4, bases.Attention(2, Dot(3)), theta.Heads()))
    x = draw(len(c.sites), 3)
    close(conv(x, **c.call), everywhere(x, mask=A.sum(0) > 0))


def test_plan_says_compacted() -> None:
    c = CASES["3d-batched"]
    conv = fill(BasisConv(3, 2, c.window))
    x = draw(len(c.sites), 3)
    for order in ("compacted", "a_first", "theta_first", "phi"):
        conv.order = order
        plan = conv.plan(x, **c.call)
        assert plan.order == order
        assert order in str(plan)


@pytest.mark.cuda
def test_to_a_device() -> None:
    for c in CASES.values():
        A, _, _ = expected(c)
        conv = fill(BasisConv(3, 2, c.window)).cuda()
        x = draw(len(c.sites), 3)
        right = oracle.apply(A, x, conv.weight.cpu(), conv.bias.cpu())
        call = {k: v.cuda() for k, v in c.call.items()}
        for path in PATHS:
            close(take(conv, path)(x.cuda(), **call).cpu(), right, 1e-9, path)


@st.composite
def random_cases(draw_: st.DrawFn) -> Case:
    axes = draw_(st.integers(1, 3), label="axes")

    def each(low: int, high: int, what: str) -> Position:
        return tuple(draw_(st.integers(low, high), label=what) for _ in range(axes))

    shape = each(1, 6 if axes < 3 else 4, "shape")
    kernel, dilation = each(1, 3, "kernel"), each(1, 2, "dilation")
    samples = draw_(st.integers(1, 3), label="samples")
    site = st.tuples(st.integers(0, samples - 1), st.tuples(*(st.integers(0, s - 1) for s in shape)))
    found = draw_(st.lists(site, max_size=14, unique=True), label="sites")
    arguments: dict[str, Any] = {"kernel": kernel, "dilation": dilation, "padding": "same"}
    how = draw_(st.sampled_from(["same", "strided", "transposed"]), label="how")
    if how != "same":
        arguments |= {"stride": each(1, 3, "stride"), "padding": each(0, 2, "padding")}
    if how == "transposed":
        room = [max(s, d) - 1 for s, d in zip(arguments["stride"], dilation, strict=True)]
        more = tuple(draw_(st.integers(0, r), label="output_padding") for r in room)
        arguments |= {"transposed": True, "output_padding": more}
    batch = tuple(b for b, _ in found) if samples > 1 else None
    return Case(shape, tuple(position for _, position in found), **arguments, batch=batch)


@given(c=random_cases(), path=st.sampled_from(PATHS))
def test_any_sites(c: Case, path: str) -> None:
    to = grids.grid(
        c.shape, c.kernel, per_axis(c.stride, c.axes), c.padding, c.dilation, c.transposed, c.output_padding
    )
    around = grids.paddings(c.kernel, c.padding, c.dilation)
    if min(to) < 1 or (
        not c.transposed
        and any(
            s + a + b < d * (k - 1) + 1 for s, (a, b), d, k in zip(c.shape, around, c.dilation, c.kernel, strict=True)
        )
    ):
        return
    check_family(c)
    check_layer(c, paths=(path,))


@given(c=random_cases())
def test_samples_do_not_meet(c: Case) -> None:
    """The rows of a submanifold convolution depend on their own sample alone."""
    if c.batch is None or c.padding != "same" or c.stride != 1:
        return
    conv = fill(BasisConv(2, 2, c.window))
    x = draw(len(c.sites), 2)
    y = conv(x, **c.call)
    for b in set(c.batch):
        own = torch.tensor([sample == b for sample in c.batch])
        z = conv(x * own[:, None], **c.call)
        close(z[own], y[own])
        close(z[~own], conv.bias.expand_as(z[~own]))


def test_the_cases_are_difficult_enough() -> None:
    """Sites out of order, samples of their own, and targets that are not the sources."""
    unsorted = [c for c in CASES.values() if list(c.sites) != sorted(c.sites)]
    assert len(unsorted) > 20
    grown = [c for c in SMALL.values() if len(c.matrices()[1]) > len(c.sites)]
    shrunk = [c for c in SMALL.values() if len(c.matrices()[1]) < len(c.sites)]
    assert len(grown) >= 3
    assert len(shrunk) >= 3
    gaps = CASES["2d-gaps"].matrices()[0]
    assert (gaps.sum((0, 2)) == 0).any(), "some site is seen by nobody"
