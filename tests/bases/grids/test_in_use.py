"""Grids beside what else happens to layers: other families, autocast, tensors without numbers, deep stacks."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch_geometric.explain import Explainer, GNNExplainer

from pyg_basisconv import BasisConv, GridConv, bases, convert, theta
from pyg_basisconv.mechanisms import Dot
from tests.contract import close, draw

WINDOW = bases.Window(None, (3, 3), padding=1)
CYCLIC = [[(a + b) % 4 for b in range(4)] for a in range(4)]


def test_groups_with_one_table_and_other_actions() -> None:
    """Neither is taken for the other, nor for p4, though the first layer is kept for all that print alike."""
    turns = bases.group.p4.action
    x, layers = draw(1, 1, 5, 5), []
    for group in ("p4", CYCLIC, bases.FiniteGroup(CYCLIC, turns)):
        layer = GridConv(1, 1, bases.Group(group, WINDOW, lift=True), bias=False).double()
        layer.weight.data = draw(9, 1, 1)
        layers.append(layer)
    turned, still, again = (layer(x) for layer in layers)
    close(turned, again)
    close(still[:, :, 1], still[:, :, 0])
    assert not torch.allclose(turned[:, :, 1], turned[:, :, 0])


@pytest.mark.parametrize("masked", [False, True], ids=["all pairs", "masked"])
@pytest.mark.parametrize("name", ["normalize", "mask"])
def test_an_attention_on_images_that_is_changed_between_calls(name: str, masked: bool) -> None:
    """The program of the first calls gives way to an evaluation on the rows of the image."""
    mask, other = bases.Shifts(None, [(0, 1), (0, 0)]), bases.Shifts(None, [(1, 0), (0, 0)])
    conv = GridConv(3, 4, bases.Attention(2, Dot(4), mask if masked else None)).double()
    x = draw(2, 3, 4, 5)
    before = [conv(x) for _ in range(3)][-1]
    setattr(conv.basis, name, {"normalize": "sigmoid", "mask": other}[name])
    expected = deepcopy(conv)(x)  # a copy has no programs
    assert not torch.allclose(expected, before)
    for _ in range(2):
        close(conv(x), expected)


def test_sites_that_change_are_looked_at_again() -> None:
    sites = torch.tensor([[0, 0], [0, 3], [2, 2]])
    window = bases.Window((4, 4), 3, padding=1, sites=sites)
    assert window.bind().matchings.entries == 3
    window.sites[1] = torch.tensor([0, 1])
    assert window.bind().matchings.entries == 5
    window.sites[0] = torch.tensor([-1, 4])
    with pytest.raises(ValueError, match="sites: expected positions within the grid"):
        window.bind()


@pytest.mark.parametrize("batch", [None, torch.tensor([0, 1, 0])], ids=["one", "samples"])
def test_neighbours_are_searched_once(batch: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyg_basisconv.bases import window as module

    calls, find_sites = [], module.find_sites
    monkeypatch.setattr(module, "find_sites", lambda *args: calls.append(args) or find_sites(*args))
    conv = BasisConv(2, 2, bases.Window((4, 4), 3, padding=1, sites=torch.tensor([[0, 0], [0, 1], [2, 2]])))
    for _ in range(2):
        conv(torch.randn(3, 2), batch=batch)
    assert len(calls) == 1
    conv(torch.randn(3, 2), batch=torch.tensor([1, 0, 0]))
    assert len(calls) == 2


@pytest.mark.parametrize("scale", [1e-310, 1e-30, 1e-12, 3.0, -0.25, 0.0])
def test_means_by_any_number(scale: float) -> None:
    layer = GridConv(-1, -1, bases.Window(None, (2, 2), 2), theta.Pass(scale=scale), bias=False)
    x = draw(1, 2, 4, 4)
    close(layer(x), 4 * scale * nn.AvgPool2d(2)(x))


@pytest.mark.parametrize(
    "family",
    [
        lambda: WINDOW + bases.Identity(),
        lambda: bases.Identity() + WINDOW + bases.Window(None, (1, 5), padding=(0, 2)),
        lambda: bases.Window(None, (3, 3), 2, 1) + bases.Window(None, (1, 1), 2),
    ],
    ids=["window+identity", "identity+window+window", "strided"],
)
def test_sums_of_windows_are_one_convolution(family) -> None:
    layer, x = GridConv(2, 3, family()).double(), draw(2, 2, 5, 6).requires_grad_()
    assert not layer.plan(x)["native"].refused
    results = []
    for order in ("native", "a_first", "phi"):
        layer.order = order
        y = layer(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            close(a, b)


def test_sites_and_the_site_itself() -> None:
    sites = torch.cartesian_prod(torch.arange(3), torch.arange(3))[[0, 1, 3, 4, 8]]
    conv = BasisConv(
        2, 2, bases.Window((3, 3), 3, padding=1, sites=sites) + bases.Identity(), order="compacted"
    ).double()
    x = draw(5, 2)
    y = conv(x)
    conv.order = "theta_first"
    close(y, conv(x))


@pytest.mark.parametrize("order", ["native", "phi", "a_first", "theta_first"])
@pytest.mark.parametrize("norm", [None, "mean"])
def test_autocast_gives_one_dtype(order: str, norm: str | None) -> None:
    layer = GridConv(4, 4, bases.Window(None, (3, 3), padding=1, norm=norm), order=order)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(torch.randn(2, 4, 5, 5))
    assert y.dtype == torch.bfloat16


def test_autocast_on_sites() -> None:
    sites = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    conv, x = BasisConv(4, 4, bases.Window((3, 3), 3, padding=1, sites=sites), order="compacted"), torch.randn(9, 4)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), conv(x), rtol=2e-2, atol=2e-2)


def test_tensors_without_numbers_leave_nothing_behind() -> None:
    layer, x = GridConv(4, 4, bases.Window(None, (3, 3), padding=1, norm="mean")), torch.randn(1, 4, 7, 9)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(layer(mode.from_tensor(x)), FakeTensor)
    assert type(layer(x)) is torch.Tensor


@pytest.mark.parametrize(
    ("kind", "basis"),
    [
        (theta.Full, WINDOW),
        (lambda: theta.Grouped(4), WINDOW),
        (theta.Depthwise, WINDOW),
        (lambda: theta.Separable(depthwise=True), WINDOW),
        (theta.Full, bases.Window(None, (4, 4), 2, 1, transposed=True)),
        (theta.Full, bases.Shifts(None, [(0, 0), (0, 1), (3, -2)], padding_mode="circular")),
    ],
    ids=["full", "grouped", "depthwise", "separable", "transposed", "shifts"],
)
def test_first_parameters_keep_the_size_of_images(kind, basis) -> None:
    """The variance of Glorot and Bengio, of all the terms that a result is the sum of."""
    torch.manual_seed(0)
    layer, x = GridConv(16, 16, basis, kind()), torch.randn(4, 16, 24, 24)
    assert 0.3 < layer(x).detach().std().item() < 1.5


def test_a_bound_basis_of_another_grid_is_refused() -> None:
    layer = GridConv(1, 1, WINDOW)
    y = layer(x := torch.randn(1, 1, 4, 5))
    close(layer(x, edge_index=WINDOW.bind(grid=(4, 5))), y)
    with pytest.raises(ValueError, match=r"image: expected a grid \(5, 4\)"):
        layer(x, edge_index=WINDOW.bind(grid=(5, 4)))


def test_an_order_that_looks_at_values_is_refused_under_transforms() -> None:
    sites = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    conv = BasisConv(2, 2, bases.Window((3, 3), 3, padding=1, sites=sites), order="compacted")
    x = torch.randn(2, 9, 2)
    with pytest.raises(ValueError, match=r"torch\.func"):
        torch.func.vmap(conv)(x)
    conv.order = "auto"
    close(torch.func.vmap(conv)(x), conv(x), tolerance=1e-5)


def test_transposed_families_keep_their_grid() -> None:
    """Those that are written out, too; and the lifting of an image, whose grids have different numbers of axes."""
    x = torch.randn(2, 3, 2, 3)
    for window in (
        bases.Window((4, 6), 3, 2, 1),
        bases.Window((4, 6), 3, 2, 1, norm="mean"),
        bases.Window((4, 6), 3, 2, 1, padding_mode="circular"),
    ):
        assert GridConv(3, 2, window.T)(x).shape == (2, 2, 4, 6)
    lifted = bases.Group("p4", bases.Window((4, 4), 3, padding=1), lift=True)
    assert GridConv(3, 2, lifted.T)(torch.randn(2, 3, 4, 4, 4)).shape == (2, 2, 4, 4)


def test_a_product_has_the_grid_of_its_last_factor_on_one() -> None:
    shape = (3, 4)
    window, narrower = bases.Window(shape, 3, padding=1), bases.Window(shape, (2, 2))
    turned = bases.Resampling(shape, 2, (6, 2))  # as many points
    assert (window @ turned).bind().target_grid == (6, 2)
    assert (narrower @ bases.Identity()).bind().target_grid == (2, 3)
    gathered = (window @ bases.Adjacency()).bind(torch.tensor([[0, 11], [1, 4]]), size=(12, 5))
    assert gathered.target_grid is None


def test_sparse_images_are_refused() -> None:
    with pytest.raises(ValueError, match="image: expected a dense tensor"):
        GridConv(1, 1, WINDOW)(torch.ones(2, 1, 4, 4).to_sparse())


def test_attention_under_autocast_keeps_its_dtype() -> None:
    attention = BasisConv(4, 4, bases.Attention(2, Dot(2)), theta.LowRank(2), order="native")
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(torch.randn(2, 5, 4)).dtype == torch.bfloat16


def test_explainers_leave_grids_alone() -> None:
    """Their masks are for the edges of a graph."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.graph = GridConv(1, 1, WINDOW), BasisConv(16, 2, bases.Adjacency())

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.graph(self.image(x.view(-1, 1, 4, 4)).flatten(1), edge_index)

    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    explainer = Explainer(
        Model(), GNNExplainer(epochs=2), explanation_type="model", edge_mask_type="object", model_config=config
    )
    explanation = explainer(torch.randn(5, 16), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    assert explanation.edge_mask.shape == (4,)


class Twice(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return 2 * t


CHANGES: dict[str, Callable[[nn.Parameter, nn.Module], Any]] = {
    "in place": lambda p, owner: p.data.mul_(2),
    "other memory": lambda p, owner: setattr(p, "data", draw(*p.shape, seed=8)),
    "the same memory, read otherwise": lambda p, owner: setattr(p, "data", p.data.transpose(-1, -2)),
    "another parameter": lambda p, owner: setattr(owner, "weight", nn.Parameter(draw(*p.shape, seed=8))),
    "assigned": lambda p, owner: owner.load_state_dict({"weight": draw(*p.shape, seed=8)}, strict=False, assign=True),
    "swapped": lambda p, owner: torch.utils.swap_tensors(p, nn.Parameter(draw(*p.shape, seed=8))),
    "parametrized": lambda p, owner: parametrize.register_parametrization(owner, "weight", Twice()),
    "single precision and back": lambda p, owner: owner.float().double(),
}


@pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.sweep(10)
def test_a_kernel_that_changes_is_never_kept(change: str, groups: int, quiet: Callable[[], Any]) -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=groups, dtype=torch.float64)
    layer, image = convert(conv), draw(2, 4, 6, 5)
    for deed in (lambda *_: None, CHANGES[change], lambda p, _: p.data.mul_(3)):
        deed(layer.theta.weight, layer.theta)
        matrices = layer.theta.dense(4).detach().clone()  # (9, P, Q)
        kernel = matrices.permute(2, 1, 0).reshape(4, 4, 3, 3)
        expected = F.conv2d(image, kernel, conv.bias, padding=1).detach()
        for _ in range(3):
            with quiet():
                close(layer(image), expected)
            close(layer(image).detach(), expected)
