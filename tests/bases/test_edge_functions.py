"""Functions of the features of edges, beyond the contract: modes, masks, what is held, and what tests would notice."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import NNConv
from torch_geometric.nn.models.schnet import CFConv

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.bases import spline
from tests import cases
from tests.contract import CHECKS, DOUBLE, close

M, P, Q, E = 6, 4, 3, 17
KINDS: dict[str, Callable[[], bases.Basis]] = {
    "Gaussians": lambda: bases.Gaussians(3, 2, "mean"),
    "EdgeNetwork": cases.network,
    "Points": lambda: bases.Points(cases.POINTS, 0.75),
    "Spline": lambda: bases.Spline((3, 4)),
    "Spline, closed": lambda: bases.Spline((4, 3), 2, (False, True)),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def layer(kind: str, Q: int = Q, **options: Any) -> BasisConv:
    torch.manual_seed(0)
    return BasisConv(P, Q, KINDS[kind](), **options).double()


def inputs(N: int = M) -> tuple[Tensor, Tensor, Tensor]:
    """x, edge_index and edge_attr."""
    g = torch.Generator().manual_seed(1)
    edges = torch.stack([torch.randint(n, (E,), generator=g) for n in (M, N)])
    return torch.randn(M, P, dtype=DOUBLE, generator=g), edges, torch.rand(E, 2, dtype=DOUBLE, generator=g)


@kinds
def test_features_of_a_call_are_not_kept(kind: str) -> None:
    """On several graphs in turn, which the layer knows."""
    conv, graphs = layer(kind), [inputs()[1] for _ in range(14)]
    x, _, z = inputs()
    seen = []
    for edges in graphs * 2:
        given = z / 2
        seen.append(weakref.ref(given))
        conv(x, edges, edge_attr=given).sum().backward()
        del given
    gc.collect()
    assert sum(one() is not None for one in seen) <= 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "EdgeNetwork"])
def test_values_are_the_entries_of_the_matrices(kind: str) -> None:
    """Where each node has one edge, which is a loop."""
    basis, z, node = layer(kind).basis, inputs()[2], torch.arange(E)
    A = basis.bind(torch.stack([node, node]), size=E, edge_attr=z, dtype=DOUBLE).to_dense()
    close(basis.values(z).t(), A.diagonal(dim1=1, dim2=2))


@kinds
def test_second_derivatives(kind: str) -> None:
    conv, (x, edges, z) = layer(kind, 2), inputs()
    leaves = x.requires_grad_(), z.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, z: conv(x, edges, edge_attr=z), leaves)
    assert torch.autograd.gradgradcheck(lambda x, z: conv(x, edges, edge_attr=z), leaves)


@kinds
def test_transforms(kind: str) -> None:
    conv, (x, edges, z) = layer(kind), inputs()

    def of(x: Tensor, z: Tensor) -> Tensor:
        return conv(x, edges, edge_attr=z, size=(M, M))

    y = conv(x, edges, edge_attr=z)
    several = torch.func.vmap(of)(torch.stack([x, 2 * x]), torch.stack([z, z / 2]))
    close(several[0], y)
    close(several[1], conv(2 * x, edges, edge_attr=z / 2))
    close(torch.func.jvp(lambda x: of(x, z), (x,), (x,))[1], y - conv.bias)
    exported = torch.export.export(conv, (x, edges), {"edge_attr": z, "size": (M, M)}).module()
    close(exported(x, edges, edge_attr=z, size=(M, M)), y)


@kinds
def test_each_call_reads_its_own(kind: str) -> None:
    """Alone, in a sum and in a product between sources and targets, whose parts are kept with the graph."""
    x, edges, z = inputs(5)
    target = torch.randn(5, 2, dtype=DOUBLE)
    families = KINDS[kind](), KINDS[kind]() + bases.Adjacency("mean"), KINDS[kind]() @ bases.Adjacency().T
    for basis, more in zip(families, (None, None, P), strict=True):
        conv = BasisConv(P, Q, basis).double()
        for factor in (1.0, 0.5, 0.5, 0.25):
            given = z * factor
            features = (x, target) if more is None else (x, None)
            size = (M, 5) if more is None else None
            if more is not None:
                given, index, features = given, edges.clamp(max=4), x
            else:
                index = edges
            y = conv(features, index, edge_attr=given, size=size)
            other = BasisConv(P, Q, basis).double()
            other.load_state_dict(conv.state_dict())
            close(y, other(features, index.clone(), edge_attr=given.clone(), size=size))


@pytest.mark.parametrize("kind", [*KINDS][:4])
def test_explained(kind: str) -> None:
    """A mask of zero is as if the edge had the weight zero."""
    conv, (x, edges, z) = layer(kind), inputs()
    mask = torch.ones(E, dtype=DOUBLE)
    mask[4] = 0
    expected = conv(x, edges, mask, edge_attr=z)
    conv.explain, conv._edge_mask, conv._apply_sigmoid = True, nn.Parameter(mask), False
    close(conv(x, edges, edge_attr=z), expected)
    config = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    algorithm, about = GNNExplainer(epochs=2), {"explanation_type": "model", "edge_mask_type": "object"}
    explained = Explainer(layer(kind, 1), algorithm, model_config=config, node_mask_type=None, **about)
    assert explained(x, edges, edge_attr=z).edge_mask.shape == (E,)


@kinds
@pytest.mark.parametrize("order", ["a_first", "theta_first"])
def test_nothing_of_edges_times_channels_is_held(kind: str, order: str) -> None:
    width, edges, z = 64, torch.randint(M, (2, 1200)), torch.rand(1200, 2)
    conv = BasisConv(width, width, KINDS[kind](), order=order)
    x, held = torch.randn(M, width, requires_grad=True), []

    def note(t: Tensor) -> Tensor:
        held.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        conv(x, edges, edge_attr=z).sum().backward()
    assert max(held) < 1200 * width


PARAMETERS: dict[str, Callable[[], theta.Theta]] = {
    "full": theta.Full,
    "depthwise": theta.Depthwise,
    "separable": lambda: theta.Separable(2),
    "pass": theta.Pass,
}


@kinds
@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=PARAMETERS)
def test_every_parameter(kind: str, parameter: Callable[[], theta.Theta]) -> None:
    """The formula, with the matrices that the call returns."""
    x, edges, z = inputs()
    conv = BasisConv(P, P, KINDS[kind](), parameter()).double()
    y, A = conv(x, edges, edge_attr=z, return_attention=True)
    close(y, torch.einsum("kmn,mp,kpq->nq", A.to_dense(), x, conv.theta.dense(P)) + conv.bias)


def test_the_filter_of_schnet() -> None:
    """PyG's CFConv: a number for each edge and channel there, one for each edge and unit here."""
    (x, edges, z), distance = inputs(), torch.rand(E, dtype=DOUBLE)
    hidden, last = nn.Sequential(nn.Linear(2, 5), nn.Tanh()), nn.Linear(5, 7)
    peer = CFConv(P, Q, 7, nn.Sequential(*hidden, last), cutoff=1.0).double()
    conv = BasisConv(7, 7, bases.EdgeNetwork(hidden, 5), theta.Depthwise(), bias=False).double()
    rows = torch.cat([last.weight.t(), last.bias.unsqueeze(0)])
    conv.theta.weight.data = rows.detach().view(conv.theta.weight.shape)
    near = 0.5 * (torch.cos(distance * math.pi) + 1)
    close(peer.lin2(conv(peer.lin1(x), edges, near, edge_attr=z)), peer(x, edges, distance, z))


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_splines_are_shares_of_one(degree: int) -> None:
    _, edges, z = inputs()
    bound = bases.Spline((5, 4), degree).bind(edges, size=M, edge_attr=z)
    assert bound.edges().weight.numel() == E * (degree + 1) ** 2
    whole = bases.Adjacency().bind(edges, size=M, dtype=DOUBLE)
    close(bound.to_dense().sum(0), whole.to_dense()[0])


def hidden(units: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, units), nn.ReLU())


@pytest.mark.parametrize("units", [4, 64, 256])
def test_a_network_starts_at_the_scale_of_nnconv(units: int) -> None:
    """PyG draws the last Linear for the number of units, whatever the widths, as if P + Q were 6."""
    x, edges, z = (t if t.dtype == torch.long else t.float() for t in inputs())
    torch.manual_seed(0)
    root, sizes = {"root_weight": False, "bias": False}, []
    for _ in range(40):
        theirs = NNConv(P, 8, nn.Sequential(*hidden(units), nn.Linear(units, P * 8)), **root)
        ours = BasisConv(P, 8, bases.EdgeNetwork(hidden(units), units), bias=False)
        sizes.append(
            torch.stack([y.detach().square().mean() for y in (theirs(x, edges, z), ours(x, edges, edge_attr=z))])
        )
    expected, found = torch.stack(sizes).mean(0).sqrt().tolist()
    assert expected / 2 < found < expected * 2


@pytest.mark.parametrize("parameter", [theta.Full, lambda: theta.Separable(3), lambda: theta.Grouped(2)])
def test_members_that_meet_are_drawn_for_their_sum(parameter: Callable[[], theta.Theta]) -> None:
    """Those of a network, and no others, in a sum and turned round, too; open widths are drawn in the first call."""
    torch.manual_seed(0)
    network = bases.EdgeNetwork(hidden(7), 7)
    family = (bases.Identity() + network).T.T + network.T + bases.Gaussians(2, 2)
    conv = BasisConv(-1, 64, family, parameter())
    x, edges, z = torch.randn(M, 64), inputs()[1], inputs()[2].float()
    conv(x, edges, edge_attr=z)
    for _ in range(2):
        variance = torch.stack([W[W != 0].var() for W in conv.theta.dense().detach()])
        of_one = torch.tensor([1.0] + 2 * [8.0] * 8 + [1.0, 1.0]) * variance
        assert 0.6 < float(of_one[1:-2].mean() / of_one[[0, -2, -1]].mean()) < 1.6
        conv.reset_parameters()


@pytest.mark.parametrize("held", [0, 1 << 20], ids=["many", "few"])
@pytest.mark.parametrize("width", [1e-1, 1e-3, 1e-5])
def test_narrow_gaussians_keep_their_digits(width: float, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of features that are much larger than the widths; those that are compared are the same numbers in both."""
    monkeypatch.setattr(bases.edge_functions, "_HELD", held)
    torch.manual_seed(0)
    basis = bases.Gaussians(3, 2)
    with torch.no_grad():
        basis.mean.uniform_(0.5, 1)
        basis.width.fill_(width)
        z = basis.mean[torch.arange(30) % 3] + width * torch.randn(30, 2)
    found, exact = basis.values(z), basis.double().values(z.double())
    torch.testing.assert_close(found.double(), exact, rtol=3e-6, atol=1e-30)


def test_points_may_be_whole_numbers() -> None:
    whole, real = bases.Points([[0, 1], [2, 0]], 3), bases.Points([[0.0, 1.0], [2.0, 0.0]], 3.0)
    z = torch.rand(7, 2)
    assert whole.points.dtype == torch.get_default_dtype()
    assert torch.equal(whole.values(z), real.values(z))


def test_what_it_prints_makes_it() -> None:
    for kind in ("Gaussians", "Spline", "Spline, closed", "Points"):
        basis = KINDS[kind]()
        assert repr(eval(repr(basis), vars(bases))) == repr(basis)
    assert repr(cases.network()).startswith("EdgeNetwork(Sequential(Linear(in_features=2, ")


@pytest.mark.parametrize("change", ["pieces", "order", "share"])
def test_the_contract_bites(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases.CASES["Spline(3,2)-attributed"]
    if change == "pieces":
        monkeypatch.setitem(spline.PIECES, 1, spline.PIECES[1][::-1])
    elif change == "order":
        case = cases.CASES["Gaussians(3)-attributed"]
        monkeypatch.setattr(bases.edge_functions, "_by_target", lambda s, z, w: (s, z.flip(0), w))
    else:
        case = cases.CASES["Gaussians(2,mean)-attributed"]
        unshared = lambda s, weight, norm, dtype: torch.ones(s.E, dtype=dtype) if weight is None else weight  # noqa: E731
        monkeypatch.setattr(bases.edge_functions, "normalise", unshared)
    with pytest.raises(AssertionError):
        CHECKS["orders"](case.basis(), case.graph(), case.matrices)
