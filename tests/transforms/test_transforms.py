"""ToGrid against GridConv on whole grids, and against torch's dense convolutions where pixels are missing."""

import pickle

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import BaseTransform, Cartesian, Compose, Distance, ToDevice

from pyg_basisconv import BasisConv, GridConv, bases, theta
from pyg_basisconv.transforms import ToGrid

DOUBLE = torch.float64
WINDOWS = {
    "3x3": bases.Window(None, (3, 3), padding=1),
    "shape": bases.Window((5, 6), (3, 3), padding=1),
    "oblong": bases.Window(None, (1, 4), padding="same"),
    "dilated": bases.Window(None, (3, 3), padding=2, dilation=2),
    "circular": bases.Window(None, (3, 3), padding=1, padding_mode="circular"),
    "reflect": bases.Window(None, (5, 3), padding="same", padding_mode="reflect"),
    "replicate": bases.Window(None, (3, 3), padding=1, padding_mode="replicate"),
    "mean": bases.Window(None, (3, 3), padding=1, norm="mean"),
    "padded": bases.Window(None, (3, 3), padding=1, norm="padded"),
    "shifts": bases.Shifts(None, [(0, 0), (2, -1), (-1, 3)]),
    "round": bases.Shifts(None, [(0, 0), (2, -1), (-1, 3)], padding_mode="circular"),
}


def image(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def pair(window, P: int = 3, Q: int = 4) -> tuple[GridConv, BasisConv]:
    """The layer on images and that on edges, with the same parameters."""
    grid, graph = GridConv(P, Q, window).double(), BasisConv(P, Q, bases.Edges(window.K)).double()
    nn.init.normal_(grid.bias)
    graph.load_state_dict(grid.state_dict())
    return grid, graph


def on(conv: BasisConv, data: Data) -> torch.Tensor:
    return conv(data.x, data.edge_index, data.edge_weight, data.edge_type)


def rows(x: torch.Tensor) -> torch.Tensor:
    """(P, *shape) -> (M, P)."""
    return x.flatten(1).t()


@pytest.mark.parametrize("name", WINDOWS)
def test_a_whole_grid_is_the_layer_on_images(name):
    window = WINDOWS[name]
    grid, graph = pair(window)
    x = image(3, 5, 6)
    data = ToGrid(window)(Data(x=x, y=7))
    torch.testing.assert_close(on(graph, data), rows(grid(x)), rtol=1e-10, atol=1e-10)
    assert data.y == 7
    assert data.num_nodes == 30
    assert torch.equal(data.x, rows(x))
    assert torch.equal(x[:, *data.pos.long().t()], data.x.t())
    assert data.edge_index.dtype == data.edge_type.dtype == torch.int64
    assert ("edge_weight" in data) == (name in ("mean", "padded"))


@pytest.mark.parametrize(("axes", "kernel"), [(1, (3,)), (3, (3, 1, 3))])
def test_any_number_of_axes(axes, kernel):
    window = bases.Window(None, kernel, padding="same")
    grid, graph = pair(window)
    x = image(3, *(4, 5, 3)[:axes])
    data = ToGrid(window)(Data(x=x))
    torch.testing.assert_close(on(graph, data), rows(grid(x)), rtol=1e-10, atol=1e-10)
    assert data.pos.shape == (x[0].numel(), axes)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "reflect", "replicate"])
def test_pixels_that_are_missing_are_zeros_of_a_dense_convolution(padding_mode):
    window = bases.Window(None, (3, 5), padding=(1, 2), padding_mode=padding_mode)
    conv = nn.Conv2d(3, 4, (3, 5), padding=(1, 2), padding_mode=padding_mode).double()
    graph = BasisConv(3, 4, bases.Edges(15)).double()
    graph.load_state_dict({"theta.weight": conv.weight.permute(2, 3, 1, 0).flatten(0, 1), "bias": conv.bias})
    x, mask = image(3, 6, 7), torch.rand(6, 7) > 0.4
    data = ToGrid(window)(Data(x=x.where(mask, torch.nan), mask=mask))
    expected = conv((x * mask)[None])[0]
    torch.testing.assert_close(on(graph, data), expected[:, mask].t(), rtol=1e-10, atol=1e-10)
    assert torch.equal(data.x, x[:, mask].t())
    assert torch.equal(data.pos, mask.nonzero().double())
    assert "mask" not in data
    assert 0 < data.num_nodes < 42


def test_layers_follow_one_another_where_zeros_are_set_again():
    """A network on the edges is the dense one that forgets, after each layer, what it wrote where no pixel is."""
    window = bases.Window(None, (3, 3), padding=1)
    (first, one), (second, two) = pair(window, 1, 4), pair(window, 4, 2)
    x, mask = image(1, 8, 8), torch.rand(8, 8) > 0.2
    data = ToGrid(window)(Data(x=x, mask=mask))
    expected = second(first(x * mask).relu() * mask)[:, mask].t()
    data.x = on(one, data).relu()
    torch.testing.assert_close(on(two, data), expected, rtol=1e-10, atol=1e-10)


def test_sites_are_the_same_thing():
    window = bases.Window((6, 7), (3, 3), padding=1)
    _, graph = pair(window)
    data = ToGrid(window)(Data(x=image(3, 6, 7), mask=torch.rand(6, 7) > 0.4))
    sparse = BasisConv(3, 4, window.at(data.pos.long())).double()
    sparse.load_state_dict(graph.state_dict(), strict=False)
    torch.testing.assert_close(sparse(data.x), on(graph, data), rtol=1e-10, atol=1e-10)


def test_a_mean_is_taken_of_the_pixels_that_are_there():
    window = bases.Window(None, (3, 3), padding=1, norm="mean")
    pool = BasisConv(-1, -1, bases.Edges(9), theta.Pass(), bias=False)
    x, mask = image(2, 5, 6), torch.rand(5, 6) > 0.4
    data = ToGrid(window)(Data(x=x, mask=mask))
    total, count = (nn.functional.avg_pool2d(v, 3, 1, 1) for v in (x * mask, mask.to(DOUBLE)[None]))
    torch.testing.assert_close(on(pool, data), (total / count)[:, mask].t(), rtol=1e-10, atol=1e-10)
    padded = ToGrid(bases.Window(None, (3, 3), padding=1, norm="padded"))(Data(x=x, mask=mask))
    torch.testing.assert_close(on(pool, padded), total[:, mask].t(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("masked", [False, True])
def test_images_of_different_shapes_are_one_batch(masked):
    window = bases.Window(None, (3, 3), padding=1)
    grid, graph = pair(window)
    to_grid = ToGrid(window)
    images = [image(3, *shape) for shape in ((5, 6), (8, 3), (1, 1), (5, 6), (6, 5))]
    masks = [torch.rand(x.shape[1:]) > (0.4 if masked else -1) for x in images]
    data = [Data(x=x, y=i) for i, x in enumerate(images)]
    if masked:
        data = [Data(x=one.x, y=one.y, mask=mask) for one, mask in zip(data, masks, strict=True)]
    expected = [grid(x * mask)[:, mask].t() for x, mask in zip(images, masks, strict=True)]
    batch = Batch.from_data_list([to_grid(one) for one in data])
    torch.testing.assert_close(on(graph, batch), torch.cat(expected), rtol=1e-10, atol=1e-10)
    assert batch.y.tolist() == [0, 1, 2, 3, 4]

    found = []
    for batch in DataLoader([to_grid(one) for one in data], batch_size=2):
        y = on(graph, batch)
        found += [y[batch.batch == i] for i in range(batch.num_graphs)]
    for y, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(y, wanted, rtol=1e-10, atol=1e-10)


class Pictures(torch.utils.data.Dataset):
    """Pairs of an image and a label, made to data and transformed on the way out, in a worker's process."""

    def __init__(self, transform: BaseTransform) -> None:
        self.images, self.transform = image(6, 3, 4, 5), transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Data:
        return self.transform(Data(x=self.images[i], y=i))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_in_the_workers_of_a_loader():
    window = bases.Window(None, (3, 3), padding=1)
    grid, graph = pair(window)
    pictures = Pictures(Compose([ToGrid(window), ToDevice("cpu")]))
    batches = list(DataLoader(pictures, batch_size=3, num_workers=1, multiprocessing_context="fork"))
    found = torch.cat([on(graph, batch) for batch in batches])
    expected = grid(pictures.images).flatten(2).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_pickled_it_is_the_same_and_small():
    to_grid = ToGrid(bases.Window(None, (3, 3), padding=1), attr="image", mask="there")
    size = len(pickle.dumps(to_grid))
    data = Data(image=image(2, 40, 40), there=torch.rand(40, 40) > 0.5)
    expected = to_grid(data)
    assert len(pickle.dumps(to_grid)) < 1.2 * size
    found = pickle.loads(pickle.dumps(to_grid))(data)
    assert repr(pickle.loads(pickle.dumps(to_grid))) == repr(to_grid)
    assert found.keys() == expected.keys()
    for key in expected.keys():  # noqa: SIM118
        assert torch.equal(found[key], expected[key])


def test_the_data_that_came_are_left_as_they_were_and_the_others_are_kept():
    x, mask, place = image(2, 4, 5), torch.ones(4, 5, dtype=torch.bool), torch.randn(3)
    data = Data(picture=x, present=mask, y=torch.tensor([3]), place=place, x=None)
    found = ToGrid(bases.Window(None, (3, 3), padding=1), attr="picture", mask="present")(data)
    assert data.picture is x
    assert data.present is mask
    assert {"picture", "present"}.isdisjoint(found.keys())
    assert found.place is place
    assert found.y is data.y
    assert found.x.shape == (20, 2)


def test_edges_are_computed_once_for_a_shape(monkeypatch):
    window = bases.Window(None, (3, 3), padding=1)
    to_grid, bound = ToGrid(window), []
    on_grid = type(window).on_grid
    monkeypatch.setattr(type(window), "on_grid", lambda self, grid, *a: bound.append(grid) or on_grid(self, grid, *a))
    first, second = (to_grid(Data(x=image(1, 4, 5))) for _ in range(2))
    to_grid(Data(x=image(1, 4, 5), mask=torch.rand(4, 5) > 0.5))
    assert bound == [(4, 5)]
    assert first.edge_index is second.edge_index
    assert to_grid(Data(x=image(1, 5, 4))).edge_index is not first.edge_index
    for n in range(1, 40):
        to_grid(Data(x=image(1, n, 1)))
    assert len(to_grid._grids) == 16
    assert torch.equal(to_grid(Data(x=image(1, 4, 5))).edge_index, first.edge_index)
    assert bound.count((4, 5)) == 2


@pytest.mark.parametrize("there", [0, 1])
def test_hardly_anything_there(there):
    window = bases.Window(None, (3, 3), padding=1)
    _, graph = pair(window)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[2, 3 : 3 + there] = True
    data = ToGrid(window)(Data(x=image(3, 4, 5), mask=mask))
    assert data.x.shape == (there, 3)
    assert data.pos.tolist() == [[2, 3]] * there
    assert data.edge_index.shape == (2, there)
    assert data.edge_type.tolist() == [4] * there  # of the centre
    assert on(graph, data).shape == (there, 4)


def test_the_image_is_differentiated_and_keeps_its_dtype():
    window = bases.Window(None, (3, 3), padding=1)
    grid, graph = pair(window)
    x = image(3, 4, 5).requires_grad_()
    weights = torch.randn(4, 4, 5, dtype=DOUBLE)
    mask = torch.rand(4, 5) > 0.3
    data = ToGrid(window)(Data(x=x, mask=mask))
    (found,) = torch.autograd.grad((on(graph, data) * weights[:, mask].t()).sum(), x)
    (expected,) = torch.autograd.grad((grid(x * mask) * weights * mask).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    norm = ToGrid(bases.Window(None, (3, 3), padding=1, norm="mean"))
    for dtype in (torch.float32, torch.bfloat16):
        data = norm(Data(x=x.detach().to(dtype), mask=mask))
        assert data.x.dtype == data.edge_weight.dtype == dtype


def test_weights_and_coordinates_are_floating():
    x, mask = torch.randint(256, (2, 3, 700)), torch.rand(3, 700) > 0.4
    there = mask.nonzero()
    for norm in ("mean", "padded"):
        to_grid = ToGrid(bases.Window(None, (3, 3), padding=1, norm=norm))
        expected = to_grid(Data(x=x.double(), mask=mask))
        for dtype in (torch.uint8, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.float16):
            data = to_grid(Data(x=x.to(dtype), mask=mask))
            floating = dtype if dtype.is_floating_point else torch.get_default_dtype()
            assert data.x.dtype == dtype
            assert data.edge_weight.dtype == floating
            assert torch.equal(data.edge_weight, expected.edge_weight.to(floating))
            assert data.pos.dtype == (DOUBLE if dtype == DOUBLE else torch.float32)
            assert torch.equal(data.pos.long(), there)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, DOUBLE])
@pytest.mark.parametrize("transform", [Distance, Cartesian])
def test_transforms_of_positions_follow(dtype, transform):
    to_grid = Compose([ToGrid(bases.Window(None, (3, 3), padding=1)), transform(norm=False)])
    data = to_grid(Data(x=torch.ones(1, 4, 5, dtype=dtype)))
    source, target = data.pos[data.edge_index]
    apart = source - target
    expected = apart.norm(dim=-1, keepdim=True) if transform is Distance else apart
    torch.testing.assert_close(data.edge_attr, expected)


def test_what_tells_of_another_graph_goes():
    old = {
        "edge_index": torch.tensor([[0], [1]]),
        "edge_type": torch.zeros(1, dtype=torch.int64),
        "edge_weight": torch.ones(1),
        "edge_attr": torch.ones(1, 2),
        "adj_t": torch.eye(2).to_sparse(),
        "num_nodes": 77,
        "pos": torch.ones(2, 3),
    }
    window = bases.Window(None, (3, 3), padding=1)
    x, name = image(1, 5, 6), torch.arange(3)
    found, expected = (ToGrid(window)(Data(x=x, y=3, name=name, **more)) for more in (old, {}))
    assert set(found.keys()) == {"x", "y", "name", "pos", "edge_index", "edge_type"}
    for key in ("x", "pos", "edge_index", "edge_type"):
        assert torch.equal(found[key], expected[key])
    assert (found.y, found.name, found.num_nodes) == (3, name, 30)
    assert Batch.from_data_list([found, found]).batch.bincount().tolist() == [30, 30]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ToGrid(bases.Adjacency()), "window: expected bases.Window or bases.Shifts"),
        (lambda: ToGrid(3), "window: expected"),
        (lambda: ToGrid(bases.Window((4, 5), 3, padding=1, sites=torch.tensor([[0, 0]]))), "window: expected one on"),
        (lambda: ToGrid(WINDOWS["3x3"], attr=""), "attr: expected"),
        (lambda: ToGrid(WINDOWS["3x3"], mask=None), "mask: expected"),
        (lambda: ToGrid(WINDOWS["3x3"])(HeteroData()), "data: expected"),
        (lambda: ToGrid(WINDOWS["3x3"])((image(1, 4, 4), 3)), "data: expected"),
        (
            lambda: ToGrid(WINDOWS["3x3"])(Batch.from_data_list([Data(x=image(1, 4, 4))] * 2)),
            "data: expected one image, got DataBatch; give the transform to the data set",
        ),
        (lambda: ToGrid(WINDOWS["3x3"])(Data(x=image(1, 4, 4).to_sparse())), "data.x: expected a dense tensor"),
        (lambda: ToGrid(WINDOWS["3x3"])(Data(y=3)), r"data.x: expected an image \(P, \*shape\) with 2 axes"),
        (lambda: ToGrid(WINDOWS["3x3"])(Data(x=image(4, 4))), r"data.x: expected an image .*got \(4, 4\); add an axis"),
        (lambda: ToGrid(WINDOWS["3x3"])(Data(x=image(1, 3, 4, 4))), "data.x: expected an image"),
        (lambda: ToGrid(WINDOWS["3x3"], attr="img")(Data(x=image(1, 4, 4))), "data.img: expected an image"),
        (
            lambda: ToGrid(WINDOWS["3x3"])(Data(x=image(1, 4, 4), mask=torch.ones(4, 4))),
            "data.mask: expected a boolean",
        ),
        (
            lambda: ToGrid(WINDOWS["3x3"])(Data(x=image(1, 4, 4), mask=torch.ones(4, 5, dtype=torch.bool))),
            r"data.mask: expected a boolean tensor \(4, 4\)",
        ),
        (lambda: ToGrid(WINDOWS["3x3"])(Data(x=image(1, 4, 4), mask=[True])), "data.mask: expected a boolean"),
        (lambda: ToGrid(WINDOWS["shape"])(Data(x=image(1, 6, 5))), "grid: expected"),
        (lambda: ToGrid(bases.Window(None, (3, 3)))(Data(x=image(1, 6, 5))), "window: expected as many targets"),
        (
            lambda: ToGrid(bases.Window(None, (3, 3), stride=2, padding=1))(Data(x=image(1, 6, 5))),
            r"window: expected as many targets as sources on the grid \(6, 5\)",
        ),
        (
            lambda: ToGrid(bases.Window(None, (2, 2), stride=2, transposed=True))(Data(x=image(1, 6, 5))),
            "window: expected as many targets",
        ),
    ],
)
def test_bad_input_is_named(make, said):
    with pytest.raises(ValueError, match="^" + said):
        make()
