"""The example of scattering: what its features are, that they are stable, and its command line."""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from examples import scattering
from examples.scattering import (
    FEATURES,
    MEAN,
    NETWORK,
    TESTS,
    Graphs,
    Network,
    Scattering,
    as_graphs,
    as_tested,
    neighbours,
    pixels,
    powers,
    turned,
)
from pyg_basisconv import bases
from tests import oracle

DOUBLE = torch.float64
SYM = bases.Adjacency("sym")
LAZY = bases.Mix([0.5, 0.5], bases.Identity() + SYM)


@pytest.fixture
def few(monkeypatch):
    """A tenth of the digits."""
    images, y = pixels()
    monkeypatch.setattr(scattering, "pixels", lambda: (images[::10], y[::10]))
    monkeypatch.setattr(scattering, "FIT", 90)


def digits(count: int) -> Graphs:
    return as_graphs(pixels()[0][:count].double())


def by_definition(A: Tensor, x: Tensor, depth: int, moments: int) -> Tensor:
    """The features of one graph, path after path: A (K, N, N), x (N, P)."""
    paths, layer = [x], [x]
    for _ in range(depth):
        layer = [torch.cat([(A_k.t() @ u).abs() for A_k in A], 1) for u in layer]
        paths += layer
    u = torch.cat(paths, 1)
    return torch.stack([u[:, i].pow(q).sum() / len(x) for q in range(1, moments + 1) for i in range(u.shape[1])])


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_scattering_is_wavelets_and_modulus_again_and_again(depth: int):
    g, found = digits(3), Scattering(bases.Wavelets(3, low_pass=False), depth)(digits(3))
    assert found.shape == (3, 4 * sum(3**layer for layer in range(depth + 1)))
    for i in range(3):
        mine = (g.edge_index[0] // 64) == i
        pairs = [(int(m) % 64, int(n) % 64) for m, n in g.edge_index[:, mine].t()]
        A = oracle.wavelets(oracle.adjacency(oracle.Graph(64, 64, pairs), "rw"), 3, low_pass=False)
        x = g.x[g.batch == i]
        torch.testing.assert_close(found[i], by_definition(A, x, depth, 4), rtol=1e-10, atol=1e-12)
    assert not list(Scattering(bases.Wavelets(3), depth).parameters())


def test_the_powers_are_those_whose_differences_the_wavelets_are():
    g = digits(1)
    bind = {"edge_index": g.edge_index, "size": 64, "dtype": DOUBLE}
    found, wavelets = powers(5).bind(**bind).to_dense(), bases.Wavelets(5).bind(**bind).to_dense()
    torch.testing.assert_close(found[:-1] - found[1:], wavelets[1:5], rtol=0, atol=1e-14)
    torch.testing.assert_close(found[-1], wavelets[5], rtol=0, atol=1e-14)


def test_the_mean_is_taken_before_all():
    g, basis = digits(3), bases.Wavelets(3, low_pass=False)
    assert pixels()[0].mean() == pytest.approx(MEAN, abs=5e-4)
    less = g._replace(x=g.x - MEAN)
    torch.testing.assert_close(Scattering(basis, centre=MEAN)(g), Scattering(basis)(less), rtol=0, atol=0)
    assert not torch.allclose(Scattering(basis, centre=MEAN)(g), Scattering(basis)(g))


def test_the_modulus_does_nothing_to_powers_of_the_ink_but_to_those_of_the_centred_ink():
    g, family = digits(20), Scattering(powers(5))
    for x, least in (g.x, 1.0), (g.x - MEAN, 0.3):
        members = family.members(x, g.edge_index)
        same = (family.cascade(x, g.edge_index)[:, 1:6] == members).double().mean(0)
        assert (same == 1).all() if least == 1 else ((least < same) & (same < 0.7)).all()
    twice = family.cascade(g.x, g.edge_index)[:, 6:].view(-1, 5, 5)
    torch.testing.assert_close(twice, twice.mT)  # T^a T^b = T^b T^a: no new feature


def test_the_numbers_of_nodes_make_no_difference():
    """But to pixels in order."""
    g = digits(8)
    place = torch.randperm(64 * 8, generator=torch.Generator().manual_seed(0))
    x, batch = torch.empty_like(g.x), torch.empty_like(g.batch)
    x[place], batch[place] = g.x, g.batch
    renamed = Graphs(x, place[g.edge_index], batch)
    for name, features in FEATURES.items():
        same = torch.allclose(features(renamed), features(g), rtol=1e-9, atol=1e-12)
        assert same == (name != "pixels in order"), name
    net = Network().double().eval()
    torch.testing.assert_close(net(renamed), net(g))


def test_digits_are_graphs():
    assert neighbours().shape == (2, 2 * 7 * 8 + 2 * 7 * 7)
    g = digits(5)
    assert g.edge_index.shape == (2, 5 * 420)
    assert (g.edge_index[0] // 64 == g.edge_index[1] // 64).all()
    row, column = g.edge_index % 64 // 8, g.edge_index % 8
    assert (row.diff(dim=0).abs().maximum(column.diff(dim=0).abs()) == 1).all()
    less = as_graphs(pixels()[0][:200], 0.05, torch.Generator().manual_seed(1)).edge_index
    assert abs(less.shape[1] / (200 * 420) - 0.95) < 0.01
    there = {tuple(edge) for edge in less.t().tolist()}
    assert there == {(n, m) for m, n in there}


def test_every_symmetry_of_the_square_comes_about():
    image = torch.arange(64).view(1, 8, 8)
    found = turned(image.expand(100, 8, 8), torch.Generator().manual_seed(0))
    assert len(found.flatten(1).unique(dim=0)) == 8
    assert (found.flatten(1).sort(1).values == image.flatten()).all()


def test_a_device_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        scattering.main(["--quick", "--device", "abacus"])
    assert "--device abacus" in capsys.readouterr().err


def test_the_command_line_trains_and_reports(capsys, few):
    scattering.main(["--quick"])
    shown = capsys.readouterr().out
    rows = dict(re.findall(r"^(\S.*?)  +([\d,]+(?:  +[\d.]+)+)$", shown, re.MULTILINE))
    assert list(rows) == [*FEATURES, NETWORK]
    figures = {name: [float(cell.replace(",", "")) for cell in row.split()] for name, row in rows.items()}
    assert [figures[name][0] for name in FEATURES] == [4, 124, 24, 124, 124, 64]
    for name in FEATURES:
        _, plain, other, lost, _ = figures[name]
        assert (plain == other) == (name != "pixels in order"), name  # which alone sees places
        assert (plain == lost) == (name in ("pixels in order", "moments of the ink")), name  # which see no edges
    assert figures["centred scattering"][1] > figures["centred powers"][1] > figures["moments of the ink"][1]


def test_the_tests_of_a_seed_are_of_the_same_digits():
    images = pixels()[0][:50].double()
    (plain, other, lost), again, next_seed = as_tested(images, 0), as_tested(images, 0), as_tested(images, 1)
    assert len(TESTS) == 3
    assert plain.x.equal(images.view(-1, 1))
    assert lost.x.equal(plain.x)
    assert other.edge_index.equal(plain.edge_index)
    assert other.x.view(50, 64).sort(1).values.equal(plain.x.view(50, 64).sort(1).values)
    assert 0 < lost.edge_index.shape[1] < plain.edge_index.shape[1]
    for i in (1, 2):
        assert all(a.equal(b) for a, b in zip((plain, other, lost)[i], again[i], strict=True))
        assert not all(a.equal(b) for a, b in zip(again[i], next_seed[i], strict=True))


@pytest.mark.slow
def test_the_network_learns_and_is_judged_on_the_tests_that_it_is_given(few, monkeypatch):
    monkeypatch.setattr(scattering, "BATCH", 10)
    plain, other, _ = as_tested(scattering.pixels()[0].double(), 0)
    blank = plain._replace(x=torch.zeros_like(plain.x))
    run = scattering.network([plain, other, blank], 0, 12)
    assert run.accuracies[0] == run.accuracies[1] > 30
    assert run.accuracies[2] < 20  # one digit for all


# The stability of scattering. F. Gama, A. Ribeiro and J. Bruna (arXiv:1806.08829) bound the change of the transform by
# the diffusion distance between two graphs, times what depends on the spectral gap 1 - beta and the number of layers,
# and not on the number of scales. What is tested is a bound of that form with constants that can be proved in a few
# lines, for T = (I + S) / 2 of the symmetric S, beta its second eigenvalue, and eps = |T - T'| (spectral norms):
#
# 1. |U_m - U'_m| <= m |Psi - Psi'| |x|, since the modulus and Psi never lengthen:
#    |U_{l+1} - U'_{l+1}| <= |Psi U_l - Psi' U'_l| <= |Psi - Psi'| |U_l| + |Psi'| |U_l - U'_l|.
# 2. |Psi - Psi'| <= C(beta) eps, where both graphs have the same degrees: then they have the same first eigenvector,
#    which all wavelets annul; on what is orthogonal to it |T^n - T'^n| <= n beta^(n-1) eps, so that
#    C^2 = 1 + sum_{j >= 1} (a beta^(a-1) + b beta^(b-1))^2 with a = 2^(j-1), b = 2^j, whatever the number of scales.
#
# Powers have no such C: each of them adds the first eigenvector once more, and of a walk that is not lazy an eigenvalue
# near -1 does not die out. What changes is the absolute distance: powers are longer, too, by that eigenvector, which
# says nothing of x but its mean; by their length, they change no more than wavelets do on most of the graphs below.


def grid(side: int) -> Tensor:
    """(2, E) the pairs of pixels that share a side: two sorts of them, black and white, and -1 is an eigenvalue."""
    place = torch.arange(side * side).view(side, side)
    across, down = (
        torch.stack([a.flatten(), b.flatten()]) for a, b in ((place[:, :-1], place[:, 1:]), (place[:-1], place[1:]))
    )
    return torch.cat([across, down], 1)


def near(N: int, reach: float) -> Tensor:
    """(2, E) the pairs of points, drawn by lot in a square, that are near each other."""
    points = torch.rand(N, 2, generator=torch.Generator().manual_seed(0))
    return (torch.cdist(points, points) < reach).triu(1).nonzero().t()


def family(basis: bases.Basis, pairs: Tensor, weight: Tensor) -> Tensor:
    """(K, N, N) on an undirected graph."""
    both = torch.cat([pairs, pairs.flip(0)], 1)
    return basis.bind(both, weight.repeat(2), size=int(pairs.max()) + 1).to_dense()


def norm(A: Tensor) -> float:
    """Of all of a family: (K, N, N) as one matrix from x to the A_k^T x."""
    return float(torch.linalg.matrix_norm(A.transpose(1, 2).flatten(0, 1), 2))


def layers(A: Tensor, x: Tensor, depth: int) -> Iterator[Tensor]:
    for _ in range(depth):
        x = torch.einsum("kmn,mp->nkp", A, x).abs().flatten(1)
        yield x


def signal(N: int) -> Tensor:
    x = torch.randn(N, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    return x / x.norm()


Pairs = tuple[Tensor, Tensor]  # and their weights


def with_other_weights(pairs: Tensor, by: float) -> tuple[Pairs, Pairs]:
    ones = torch.ones(pairs.shape[1], dtype=DOUBLE)
    noise = torch.randn(len(ones), dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    return (pairs, ones), (pairs, ones * (1 + by * noise))


def with_another_edge(pairs: Tensor, weight: float) -> tuple[Pairs, Pairs]:
    """From the first node to one diagonally off, which on a grid is of its own sort."""
    ones = torch.ones(pairs.shape[1], dtype=DOUBLE)
    return (pairs, ones), (
        torch.cat([pairs, torch.tensor([[0], [9]])], 1),
        torch.cat([ones, ones.new_tensor([weight])]),
    )


def exchanged(pairs: Tensor, by: float) -> tuple[Pairs, Pairs]:
    """Of two edges a-b and c-d some weight goes to a-d and c-b: all degrees stay."""
    ones = torch.ones(pairs.shape[1], dtype=DOUBLE)
    (a, b), (c, d) = pairs[:, 3].tolist(), pairs[:, -4].tolist()
    less = ones.clone()
    less[[3, -4]] -= by
    return (pairs, ones), (
        torch.cat([pairs, torch.tensor([[a, c], [d, b]])], 1),
        torch.cat([less, ones.new_full((2,), by)]),
    )


CHANGES: dict[str, Callable[[], tuple[Pairs, Pairs]]] = {
    "grid, other weights": lambda: with_other_weights(grid(8), 0.02),
    "grid, another edge": lambda: with_another_edge(grid(8), 0.2),
    "grid, exchanged": lambda: exchanged(grid(8), 0.3),
    "points, other weights": lambda: with_other_weights(near(80, 0.25), 0.02),
    "points, another edge": lambda: with_another_edge(near(80, 0.25), 0.5),
    "points, exchanged": lambda: exchanged(near(80, 0.25), 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_cascade_changes_as_its_wavelets_do_at_most_once_per_layer(change: str):
    before, after = CHANGES[change]()
    wavelets = bases.Wavelets(4, SYM, low_pass=False)
    A, B = family(wavelets, *before), family(wavelets, *after)
    assert norm(A) <= 1 + 1e-12
    x = signal(A.shape[1])
    for m, (u, v) in enumerate(zip(layers(A, x, 3), layers(B, x, 3), strict=True), 1):
        assert 0 < float((u - v).norm()) <= m * norm(A - B) * float(x.norm())


@pytest.mark.parametrize("change", ["grid, exchanged", "points, exchanged"])
def test_wavelets_change_as_the_walk_does_however_many_scales(change: str):
    """By |Psi - Psi'| <= C(beta) eps; C does not know of J, and is far from being reached."""
    before, after = CHANGES[change]()
    T, S = family(LAZY, *before)[0], family(LAZY, *after)[0]
    eps = float(torch.linalg.matrix_norm(T - S, 2))
    beta = max(float(torch.linalg.eigvalsh(walk)[-2]) for walk in (T, S))
    C = (1 + sum((a * beta ** (a - 1) + b * beta ** (b - 1)) ** 2 for a, b in pairwise(2**j for j in range(40)))) ** 0.5
    for J in range(1, 8):
        A, B = (family(bases.Wavelets(J, SYM, low_pass=False), *one) for one in (before, after))
        assert 0 < norm(A - B) <= C * eps
        assert norm(A - B) <= 2 * eps


def growth(basis: Callable[[int], bases.Basis], before: Pairs, after: Pairs) -> list[float]:
    """How much the cascades of depth 2 change, for 2, 3, 4 and 5 scales, by how much they do for 2."""
    found = []
    for J in range(2, 6):
        A, B = (family(basis(J), *one) for one in (before, after))
        u, v = (torch.cat([*layers(one, signal(A.shape[1]), 2)], 1) for one in (A, B))
        found.append(float((u - v).norm()))
    return [change / found[0] for change in found]


def powers_of(walk: bases.Basis) -> Callable[[int], bases.Basis]:
    """As many steps as the wavelets walk."""
    return lambda J: bases.Powers(2 ** (J - 1) + 1, walk)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.sweep(2)
def test_the_scattering_is_stable_where_powers_are_not(change: str):
    """With more scales the change stays about what it was; that of powers, lazy or not, grows on."""
    before, after = CHANGES[change]()
    scattered = growth(lambda J: bases.Wavelets(J, SYM, low_pass=False), before, after)
    assert max(scattered) < 1.35
    for walk in (SYM, LAZY):
        grown = growth(powers_of(walk), before, after)
        assert grown == sorted(grown)
        assert grown[-1] > 1.25 * scattered[-1]
    steep = growth(powers_of(bases.Adjacency()), before, after)
    assert steep[-1] > 1e4
