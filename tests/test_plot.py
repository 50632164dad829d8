"""Pictures: what is drawn, without a look at pixels."""

import sys

import pytest
import torch
from matplotlib.colors import to_rgba

from pyg_basisconv import BasisConv, bases, explain_head, plot, theta
from pyg_basisconv.mechanisms import Dot

RING = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def pictures(figure):
    return [axes.get_images()[0].get_array().data for axes in figure.axes]


def report(*lead, heads=2):
    conv = BasisConv(6, 6, bases.Attention(heads, Dot(4), bases.Causal()), theta.LowRank(2)).double()
    return explain_head(conv, torch.randn(*lead, 9, 6, dtype=torch.float64), bases.Shifts(None, [0, 1, 2]))


@pytest.mark.parametrize("bound", [True, False], ids=["bound", "to be bound"])
def test_spy_draws_the_matrices(bound):
    basis = bases.Identity() + bases.Adjacency("rw") + bases.Powers(3, bases.Adjacency())
    figure = plot.spy(basis.bind(RING, size=4)) if bound else plot.spy(basis, RING, size=4)
    torch.testing.assert_close(
        torch.stack([torch.tensor(picture) for picture in pictures(figure)]),
        basis.bind(RING, size=4).to_dense().double(),
    )


def test_spy_draws_those_that_are_asked_for():
    figure = plot.spy(bases.Shifts(10, range(-3, 4)), members=[6, 0])
    assert [axes.get_title() for axes in figure.axes] == ["$A_{6}$", "$A_{0}$"]
    assert pictures(figure)[0].argmax(1).tolist()[:7] == [3, 4, 5, 6, 7, 8, 9]
    assert len(plot.spy(bases.Shifts(40, range(-20, 20))).axes) == plot.MEMBERS


@pytest.mark.parametrize(("members", "columns", "rows"), [(1, 1, 1), (5, 5, 1), (6, 3, 2), (10, 4, 3)])
def test_spy_breaks_lines(members, columns, rows):
    size = plot.spy(bases.Shifts(12, range(members))).get_size_inches()
    assert size.tolist() == pytest.approx([1.7 * columns, 1.9 * rows])


def test_pictures_grow_with_what_they_show():
    for heads in (2, 3):
        figure = plot.heads(report(heads=heads))
        assert figure.get_size_inches().tolist() == pytest.approx([1.5 * heads + 0.4, 4.9])
        names = [axes.get_ylabel() for axes in figure.axes]
        assert names == [name for row in ("head", "projection", "rest") for name in (row, *[""] * (heads - 1))]
    plan = BasisConv(64, 4, bases.Chebyshev(K=3)).plan(torch.randn(50, 64), torch.randint(50, (2, 400)))
    bars = sum(not e.refused for e in plan.estimates)
    figure = plot.costs(plan)
    assert figure.get_size_inches().tolist() == pytest.approx([9, 0.8 + 0.4 * bars])
    for axes in figure.axes:
        assert axes.get_xlim() == pytest.approx((0, 1.25 * max(bar.get_width() for bar in axes.patches)))
        assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first order stands at the top
        assert [text.get_text() for text in axes.texts] == [f"{bar.get_width():.3g}" for bar in axes.patches]
        assert [name for name, spine in axes.spines.items() if spine.get_visible()] == ["left"]


@pytest.mark.parametrize(
    ("size", "shape"), [((6, 2), 3), ((2, 6), 1 / 3), ((20, 2), 3), ((4, 6), 2 / 3), ((0, 0), 1 / 3)]
)
def test_matrices_are_drawn_in_their_shape(size, shape):
    (axes,) = plot.spy(bases.Complete(), size=size).axes
    (image,) = axes.get_images()
    assert axes.get_box_aspect() == pytest.approx(shape)
    assert image.get_clim() == (-1, 1)
    assert not [*axes.get_xticks(), *axes.get_yticks()]
    assert (image.get_cmap().name, image.get_interpolation()) == ("RdBu", "none")


def test_spy_sums_what_shares_a_cell():
    size = 4 * plot.CELLS
    (picture,) = pictures(plot.spy(bases.Identity(), size=size))
    torch.testing.assert_close(torch.tensor(picture), 4 * torch.eye(plot.CELLS, dtype=torch.float64))
    wide = plot.spy(bases.Complete(), size=(3, size))
    torch.testing.assert_close(torch.tensor(pictures(wide)[0]), torch.full((3, plot.CELLS), 4, dtype=torch.float64))
    assert len(plot.spy(bases.Identity(), size=0).axes) == 1


def test_heads_draws_heads_projections_and_what_is_left():
    of = report(2, heads=3)
    drawn = torch.stack([torch.tensor(picture) for picture in pictures(plot.heads(of, 1))]).view(3, 3, 9, 9)
    heads, nearest = of.matrices(1)
    torch.testing.assert_close(drawn, torch.stack([heads, nearest, heads - nearest]))
    limits = {axes.get_images()[0].get_clim() for axes in plot.heads(of, 1).axes}
    largest = float(max(heads.max(), nearest.max()))
    assert limits == {(-largest, largest)}  # one scale
    titles = [axes.get_title() for axes in plot.heads(report()).axes]
    assert len([title for title in titles if title]) == 2


def test_the_titles_have_the_shares_of_the_graph_that_is_shown():
    of = report()
    titles = [axes.get_title() for axes in plot.heads(of).axes[:2]]
    assert titles == [f"{h}: $R^2$ = {of.r2[h]:.2f}" for h in range(2)]


def test_costs_draws_every_order_that_is_possible():
    conv = BasisConv(64, 4, bases.Chebyshev(K=3))
    plan = conv.plan(torch.randn(50, 64), torch.randint(50, (2, 400)))
    figure = plot.costs(plan)
    possible = [e for e in plan.estimates if not e.refused]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [e.name for e in possible]
    for axes, values in zip(figure.axes, ("seconds", "bytes", "memory"), strict=True):
        widths = torch.tensor([bar.get_width() for bar in axes.patches], dtype=torch.float64)
        expected = torch.tensor([getattr(e, values) for e in possible], dtype=torch.float64)
        torch.testing.assert_close(widths / widths.sum(), expected / expected.sum())
        colours = [bar.get_facecolor() for bar in axes.patches]
        assert [colour == to_rgba(plot._CHOSEN) for colour in colours] == [e.order == plan.order for e in possible]


def test_figures_are_saved_without_a_window_and_without_pyplot(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for name, figure in {
        "spy.png": plot.spy(bases.Powers(3), RING, size=4),
        "heads.svg": plot.heads(report()),
        "costs.svg": plot.costs(BasisConv(4, 4, bases.Powers(2)).plan(torch.randn(4, 4), RING)),
    }.items():
        figure.savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_what_is_wrong_is_said():
    bound = bases.Powers(3).bind(RING, size=4)
    with pytest.raises(ValueError, match="members: expected an integer from 0 to 2, got 3"):
        plot.spy(bound, members=[3])
    with pytest.raises(ValueError, match=r"members: expected numbers of matrices, got 2; such as \[0, 2\]"):
        plot.spy(bases.Shifts(10, [0, 1, 2]), members=2)
    with pytest.raises(ValueError, match="members: expected at least one"):
        plot.spy(bound, members=[])
    with pytest.raises(ValueError, match="basis: expected a Basis, where it is to be bound"):
        plot.spy(bound, RING)
    with pytest.raises(ValueError, match="basis: expected a Basis"):
        plot.spy("shifts")


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot.spy(bases.Powers(3), RING, size=4)


def test_large_heads_are_summed_in_cells():
    conv = BasisConv(6, 6, bases.Attention(1, Dot(4)))
    known = explain_head(conv, torch.randn(300, 6), bases.Shifts(None, [0, 1]))
    head = known.matrices()[0][0]
    cells = torch.arange(300) * plot.CELLS // 300
    expected = torch.zeros(plot.CELLS, plot.CELLS, dtype=torch.float64)
    expected.index_put_((cells[:, None], cells[None]), head, accumulate=True)
    torch.testing.assert_close(torch.tensor(pictures(plot.heads(known))[0]), expected)


def test_heads_of_nothing():
    conv = BasisConv(6, 6, bases.Attention(1, Dot(4)))
    panels = plot.heads(explain_head(conv, torch.randn(0, 6), bases.Shifts(None, [0, 1]))).axes
    assert [axes.get_images()[0].get_clim() for axes in panels] == [(-1, 1)] * 3
