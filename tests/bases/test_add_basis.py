"""The edges of a basis as attributes of data, through all that PyG does to data."""

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import ClusterData, ClusterLoader, DataLoader, NeighborLoader, RandomNodeLoader
from torch_geometric.transforms import Compose, LaplacianLambdaMax, ToSparseTensor
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_basisconv import BasisConv, bases, mechanisms
from pyg_basisconv.transforms import AddBasis, InducedBasis
from tests.bases.test_properties import graphs
from tests.cases import CASES, CONSTANT
from tests.contract import DOUBLE, bind, draw, make, tensors

NAMES = ("basis_edge_index", "basis_edge_weight", "basis_edge_type")
SQUARE = [
    name
    for name, case in CASES.items()
    if name in CONSTANT and case.graph().M == case.graph().N and not case.basis().pools
    # What is difficult in a graph, is so for one family of each kind.
    if not name.endswith(("none", "ones", "one-node", "no-node"))
    or name.startswith(("Chebyshev(4)", "Sum", "Walks(row)"))
]
BASES = {
    "Chebyshev": bases.Chebyshev(3),
    "rw.T": bases.Adjacency("rw").T,
    "Sum": bases.Identity() + bases.Diffusion(2),
    "Product": bases.Laplacian("rw") @ bases.Powers(2),
    "Mix": bases.Mix([[0.5, 0.0, 2.0], [0.0, 0.0, 0.0]], bases.Powers(3)),
    "Complete": bases.Complete(),
    "Causal": bases.Causal(),
    "Shifts": bases.Shifts(None, [-1, 0, 2]),
    "Edges": bases.Edges(),
}
SAMPLED = ("edge_index", "edge_weight", "edge_type")


def data_of(g, **more) -> Data:
    """A graph as PyG has it."""
    arguments = tensors(g)
    return Data(x=draw(g.M, 3), num_nodes=g.M, **arguments, **more)


def parts(data: Data, names: tuple[str, ...] = NAMES) -> list[Tensor]:
    return [data[name] for name in names]


def matrices(data: Data, K: int, names: tuple[str, ...] = NAMES) -> Tensor:
    """(K, N, N) what the attributes say."""
    return bases.Edges(K).bind(*parts(data, names), size=data.num_nodes).to_coo().to_dense()


def rounding(data: Data) -> float:
    """How far apart two sums of some of the weights may be that are added up in different orders.

    Edges between the same nodes are sorted to be added up, in an order that is another one on another processor.
    """
    weight = data.basis_edge_weight
    return torch.finfo(weight.dtype).eps * weight.numel() * float(weight.abs().sum())


def large(N: int = 40, E: int = 200, **more) -> Data:
    generator = torch.Generator().manual_seed(3)
    edge_index = torch.randint(N, (2, E), generator=generator)
    weight = torch.rand(E, generator=generator, dtype=DOUBLE) + 0.5
    return Data(x=draw(N, 3), edge_index=edge_index, edge_weight=weight, y=torch.arange(N), **more)


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.sweep(15)
def test_a_layer_on_the_attributes_is_the_layer_on_the_basis(name):
    case = CASES[name]
    basis, g = case.basis(), case.graph()
    data = data_of(g)
    found = AddBasis(basis)(data)
    assert found is not data
    assert not set(data.keys()) & set(NAMES)
    assert all(found[key] is data[key] for key in data.keys())  # noqa: SIM118
    assert found.basis_edge_index.dtype == found.basis_edge_type.dtype == torch.int64
    assert found.basis_edge_weight.dtype == DOUBLE
    torch.testing.assert_close(matrices(found, basis.K), case.matrices(g), rtol=1e-10, atol=1e-10)
    with_basis, on_edges = make(basis), make(bases.Edges(basis.K))
    expected = with_basis(found.x, **tensors(g))
    torch.testing.assert_close(on_edges(found.x, *parts(found)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in SQUARE if name.endswith(("random", "typed", "steps", "no-node"))])
@pytest.mark.sweep(24)
def test_in_the_place_of_the_edges(name):
    """The same by the names that loaders sample, and nothing is left of the old edges."""
    case = CASES[name]
    basis, g = case.basis(), case.graph()
    old = {"edge_attr": torch.ones(g.E, 2), "e_id": torch.arange(g.E)}
    found = AddBasis(basis, replace=True)(data_of(g, **old, y=torch.ones(1)))
    kept = {"x", "y", "num_nodes"} | (tensors(g).keys() & {"batch", "lambda_max"})
    assert set(found.keys()) == kept | {"edge_index", "edge_type", "edge_weight"}
    assert found.num_nodes == g.N
    assert found.validate() or not g.N
    in_place = matrices(found, basis.K, SAMPLED)
    torch.testing.assert_close(in_place, case.matrices(g), rtol=1e-10, atol=1e-10)


@settings(max_examples=30)
@given(several=st.lists(graphs().filter(lambda g: g.M == g.N), min_size=1, max_size=4), name=st.sampled_from([*BASES]))
def test_a_batch_is_block_diagonal(several, name):
    basis = BASES[name]
    several = [g if g.weight is not None else g.but(weight=torch.ones(g.E, dtype=DOUBLE)) for g in several]
    single = [AddBasis(basis)(data_of(g)) for g in several]
    batch = next(iter(DataLoader(single, batch_size=len(single))))
    blocks = [matrices(data, basis.K) for data in single]
    expected = torch.stack([torch.block_diag(*members) for members in zip(*blocks, strict=True)])
    torch.testing.assert_close(matrices(batch, basis.K), expected, rtol=0, atol=rounding(batch))
    for data, again in zip(single, batch.to_data_list(), strict=True):
        for name in NAMES:
            torch.testing.assert_close(again[name], data[name], rtol=0, atol=0)


def test_graphs_of_a_batch_have_scales_of_their_own():
    """As a layer does that is given lambda_max and batch."""
    chebyshev = bases.Chebyshev(4, None)
    scaled = Compose([LaplacianLambdaMax(None), AddBasis(chebyshev, weight=None)])
    batch = Batch.from_data_list([scaled(large(N, 60, num_nodes=N)) for N in (9, 12)])
    conv = make(chebyshev)
    expected = conv(batch.x, batch.edge_index, lambda_max=batch.lambda_max.to(DOUBLE), batch=batch.batch)
    found = make(bases.Edges(4))(batch.x, *parts(batch))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    again = AddBasis(chebyshev, weight=None)(batch)  # of the batch as a whole
    torch.testing.assert_close(matrices(again, 4), matrices(batch, 4), rtol=1e-6, atol=1e-6)


class Kept(InMemoryDataset):
    """Some graphs, saved with the attributes."""

    def __init__(self, root: str, several: list[Data]) -> None:
        self.several = several
        super().__init__(root, pre_transform=AddBasis(BASES["Chebyshev"]))
        self.load(self.processed_paths[0])

    @property
    def processed_file_names(self) -> str:
        return "data.pt"

    def process(self) -> None:
        self.save([self.pre_transform(data) for data in self.several], self.processed_paths[0])


def test_a_data_set_keeps_them(tmp_path):
    several = [large(N, 3 * N) for N in (5, 9, 2)]
    dataset = Kept(str(tmp_path), several)
    assert len(dataset) == 3
    for data, found in zip(several, dataset, strict=True):
        expected = AddBasis(BASES["Chebyshev"])(data)
        for name in NAMES:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)
    batch = next(iter(DataLoader(dataset.shuffle(), batch_size=3)))
    y = make(BASES["Chebyshev"])(batch.x, batch.edge_index, batch.edge_weight, lambda_max=2.0)
    assert y.shape == make(bases.Edges(3))(batch.x, *parts(batch)).shape


def through_a_file(data: Data) -> Data:
    """As PyG saves a data set: what is loaded are plain values."""
    stream = io.BytesIO()
    torch.save(data.to_dict(), stream)
    stream.seek(0)
    return Data.from_dict(torch.load(stream, weights_only=True))


@pytest.mark.parametrize(
    "pass_on",
    [through_a_file, copy.copy, copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data)), lambda d: d.clone()],
    ids=["saved", "copied", "deep-copied", "pickled", "cloned"],
)
def test_they_are_saved_and_copied(pass_on):
    data = AddBasis(BASES["Sum"])(large())
    found = pass_on(data)
    assert found.keys() == data.keys()
    for name in NAMES:
        torch.testing.assert_close(found[name], data[name], rtol=0, atol=0)


def test_they_are_moved():
    data = AddBasis(BASES["Sum"])(large()).to("meta")
    assert all(part.is_meta for part in parts(data))
    ones = AddBasis(bases.Shifts(None, [1]))(Data(x=torch.ones(3, 2, device="meta")))
    assert all(part.is_meta for part in parts(ones))


@pytest.mark.parametrize("name", BASES)
def test_pickled_it_is_the_same_and_small(name):
    add, data = AddBasis(BASES[name], attr="b", weight=None), large()
    size = len(pickle.dumps(add))
    expected = add(data)
    assert len(pickle.dumps(add)) <= 1.2 * size
    again = pickle.loads(pickle.dumps(add))
    assert repr(again) == repr(add) == f"AddBasis({BASES[name]}, attr='b', weight=None, replace=False)"
    torch.testing.assert_close(again(data).b_edge_weight, expected.b_edge_weight, rtol=0, atol=0)


def test_what_is_read_of_the_data():
    g = CASES["Edges(3)-typed"].graph()
    plain = data_of(g)
    weight = plain.edge_weight
    ones = AddBasis(bases.Edges(3), weight=None)(plain)
    assert torch.equal(ones.basis_edge_weight, torch.ones(g.E, dtype=DOUBLE))
    other = Data(edge_index=plain.edge_index, edge_type=plain.edge_type, strength=weight.float(), num_nodes=6)
    found = AddBasis(bases.Edges(3), weight="strength")(other)
    assert torch.equal(found.basis_edge_weight, weight.float())
    columns = torch.stack([weight, -weight], 1)
    shared = AddBasis(bases.Edges(2), weight="edge_attr")(
        Data(edge_index=plain.edge_index, edge_attr=columns, x=plain.x)
    )
    assert shared.basis_edge_index.shape == (2, 2 * g.E)
    assert torch.equal(matrices(shared, 2)[1], -matrices(shared, 2)[0])
    for dtype in (torch.float32, DOUBLE, torch.int64):
        features = Data(x=torch.ones(6, 1, dtype=dtype), edge_index=plain.edge_index)
        expected = dtype if dtype.is_floating_point else torch.get_default_dtype()
        assert AddBasis(bases.Chebyshev(2))(features).basis_edge_weight.dtype == expected


@pytest.mark.parametrize("grid", [(2, 3), [2, 3], torch.tensor([2, 3])], ids=["tuple", "list", "tensor"])
def test_a_grid_is_read(grid):
    window = bases.Window(None, (3, 3), padding=1)
    data = AddBasis(window)(Data(x=draw(6, 3), grid=grid))
    torch.testing.assert_close(matrices(data, 9), window.bind(grid=(2, 3), dtype=DOUBLE).to_dense(), rtol=0, atol=0)


def test_a_batch_is_no_grid() -> None:
    add, one = AddBasis(bases.Shifts(None, [1])), Data(x=draw(3, 2))
    assert add(Batch.from_data_list([one])).basis_edge_index.tolist() == [[0, 1], [1, 2]]
    assert Batch.from_data_list([add(one), add(one)]).basis_edge_index.tolist() == [[0, 1, 3, 4], [1, 2, 4, 5]]
    with pytest.raises(ValueError, match=r"batch: expected one grid, for Shifts\(None, \[1\]\), got several"):
        add(Batch.from_data_list([one, one]))


def test_a_sparse_matrix_is_read():
    data = large()
    sparse = ToSparseTensor(attr="edge_weight", layout=torch.sparse_csr)(data)
    assert "edge_index" not in sparse
    expected = AddBasis(BASES["Sum"])(data)
    torch.testing.assert_close(
        matrices(AddBasis(BASES["Sum"])(sparse), 5), matrices(expected, 5), rtol=1e-10, atol=1e-10
    )
    assert "adj_t" not in AddBasis(BASES["Sum"], replace=True)(sparse)


def test_two_of_them_beside_each_other():
    data = Compose([AddBasis(BASES["Chebyshev"], "cheb"), AddBasis(BASES["Sum"], "walk")])(large())
    for attr, name in (("cheb", "Chebyshev"), ("walk", "Sum")):
        names = tuple(key.replace("basis", attr) for key in NAMES)
        alone = AddBasis(BASES[name])(large())
        torch.testing.assert_close(parts(data, names), parts(alone), rtol=0, atol=0)


# Samples of one large graph.


def needs_sampler(test):
    """For what PyG does with torch_sparse."""
    test = pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")(test)
    return pytest.mark.skipif(not WITH_TORCH_SPARSE, reason="needs torch_sparse")(test)


@settings(max_examples=50)
@given(
    draw_=st.data(),
    g=graphs().filter(lambda g: g.M == g.N),
    name=st.sampled_from([*BASES]),
    weighted=st.booleans(),
)
def test_a_sample_has_the_rows_and_columns_of_its_nodes(draw_, g, name, weighted):
    basis = BASES[name]
    graph = AddBasis(basis, weight="edge_weight" if weighted else None)(data_of(g))
    whole, induced = matrices(graph, basis.K), InducedBasis(graph)
    samples = draw_.draw(st.lists(st.lists(st.integers(0, g.N - 1), unique=True) if g.N else st.just([]), max_size=3))
    for one in samples:
        n_id = torch.tensor(one, dtype=torch.long)
        found = induced(Data(x=graph.x[n_id], n_id=n_id))
        expected = whole[:, n_id][:, :, n_id]
        torch.testing.assert_close(matrices(found, basis.K), expected, rtol=0, atol=rounding(graph))
    # Several at once, in which a node may be more than once.
    n_id = torch.tensor([n for one in samples for n in one], dtype=torch.long)
    number = torch.tensor([i for i, one in enumerate(samples) for _ in one], dtype=torch.long)
    order = torch.tensor(draw_.draw(st.permutations(range(n_id.numel()))), dtype=torch.long)
    n_id, number = n_id[order], number[order]
    found = matrices(induced(Data(x=graph.x[n_id], n_id=n_id, batch=number)), basis.K)
    expected = whole[:, n_id][:, :, n_id] * (number[:, None] == number)
    torch.testing.assert_close(found, expected, rtol=0, atol=rounding(graph))


def induces(batch: Data, graph: Data, K: int) -> bool:
    """Whether a sample has the rows and columns of the whole graph's matrices at its nodes."""
    torch.testing.assert_close(batch.x, graph.x[batch.n_id], rtol=0, atol=0)
    expected = matrices(graph, K)[:, batch.n_id][:, :, batch.n_id]
    torch.testing.assert_close(matrices(batch, K), expected, rtol=0, atol=rounding(graph))
    return batch.num_nodes < graph.num_nodes


@pytest.mark.parametrize("name", BASES)
def test_parts_of_nodes(name):
    """What a loader cuts from the attributes itself is put right."""
    graph = AddBasis(BASES[name])(large(n_id=torch.arange(40)))
    induced = InducedBasis(graph)
    for part in RandomNodeLoader(graph, num_parts=3):
        assert induces(induced(part), graph, BASES[name].K)


def test_edges_of_other_nodes_do_not_go_unseen():
    """A layer refuses the whole graph's edges on a sample's nodes."""
    graph = AddBasis(bases.Chebyshev(3))(large())
    for part in RandomNodeLoader(graph, num_parts=3):
        with pytest.raises(ValueError, match=r"edge_index: expected source indices below"):
            make(bases.Edges(3))(part.x, *parts(part))


@needs_sampler
@pytest.mark.parametrize("options", [{}, {"subgraph_type": "bidirectional"}], ids=["directed", "both ways"])
@pytest.mark.parametrize("name", ["Chebyshev", "Edges", "Sum"])
def test_a_sample_of_neighbours(name, options):
    """Of the graph; the basis's edges among its nodes are found for each."""
    graph = AddBasis(BASES[name])(large())
    loader = NeighborLoader(graph, [3, 2], batch_size=5, transform=InducedBasis(graph), **options)
    K, count = BASES[name].K, 0
    for batch in loader:
        assert induces(batch, graph, K)
        assert torch.equal(batch.y, graph.y[batch.n_id])
        count += make(bases.Edges(K))(batch.x, *parts(batch))[: batch.batch_size].shape[0]
    assert count == 40


@needs_sampler
@pytest.mark.parametrize("name", ["Chebyshev", "Edges", "Sum"])
def test_neighbours_in_the_basis(name):
    """The basis's edges are those that are sampled: each has its type, and its weight in the whole graph."""
    basis, plain = BASES[name], large()
    graph = AddBasis(basis, replace=True)(plain)
    conv, expected = make(bases.Edges(basis.K)), make(basis)(plain.x, plain.edge_index, plain.edge_weight)
    for batch in NeighborLoader(graph, [-1], batch_size=7):  # all of them, one step far: what the layer sees
        y = conv(batch.x, *parts(batch, SAMPLED))[: batch.batch_size]
        torch.testing.assert_close(y, expected[batch.n_id[: batch.batch_size]], rtol=1e-10, atol=1e-10)
    for batch in NeighborLoader(graph, [2, 2], batch_size=7):
        assert torch.equal(batch.edge_type, graph.edge_type[batch.e_id])
        assert torch.equal(batch.edge_weight, graph.edge_weight[batch.e_id])
        assert torch.equal(batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id])


class Clusters(ClusterData):
    """With clusters that need no further package to be found."""

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        return torch.arange(num_nodes) * 7 % self.num_parts


@pytest.mark.parametrize("name", BASES)
def test_clusters(name):
    basis, numbered = BASES[name], large(n_id=torch.arange(40))
    beside, instead = AddBasis(basis)(numbered), AddBasis(basis, replace=True)(numbered)
    induced, seen = InducedBasis(beside), []
    for part in ClusterLoader(Clusters(beside, 4, log=False), batch_size=2):
        assert induces(induced(part), beside, basis.K)
        seen.append(part.n_id)
    assert torch.equal(torch.cat(seen).sort().values, numbered.n_id)
    clusters = Clusters(instead, 4, log=False)
    for part in [*clusters, *ClusterLoader(clusters, batch_size=2)]:
        torch.testing.assert_close(
            matrices(part, basis.K, SAMPLED),
            matrices(instead, basis.K, SAMPLED)[:, part.n_id][:, :, part.n_id],
            rtol=0,
            atol=0,
        )


@needs_sampler
def test_a_random_subgraph():
    from torch_geometric.loader import GraphSAINTNodeSampler

    graph = AddBasis(bases.Chebyshev(3))(large(n_id=torch.arange(40)))
    induced = InducedBasis(graph)
    for batch in GraphSAINTNodeSampler(graph, batch_size=15, num_steps=3):
        assert induces(induced(batch), graph, 3)


def test_pickled_a_sample_is_the_same():
    graph = AddBasis(bases.Chebyshev(3), "cheb")(large())
    induced = InducedBasis(graph, "cheb")
    assert repr(induced) == "InducedBasis(<40 nodes>, attr='cheb')"
    batch = Data(x=graph.x[:9], n_id=torch.arange(9))
    again = pickle.loads(pickle.dumps(induced))
    assert torch.equal(again(batch).cheb_edge_weight, induced(batch).cheb_edge_weight)


BAD = [
    (lambda: AddBasis("Chebyshev"), "basis: expected a Basis"),
    (lambda: AddBasis(bases.Attention(2, mechanisms.Additive())), "basis: expected one that needs no content"),
    (lambda: AddBasis(bases.Bags()), "basis: expected as many targets as sources"),
    (lambda: AddBasis(bases.Edges(), attr=""), "attr: expected"),
    (lambda: AddBasis(bases.Edges(), attr=None), "attr: expected"),
    (lambda: AddBasis(bases.Edges(), attr="index"), "attr: expected"),
    (lambda: AddBasis(bases.Edges(), attr="minibatch"), "attr: expected"),
    (lambda: AddBasis(bases.Edges(), attr="a b"), "attr: expected"),
    (lambda: AddBasis(bases.Edges(), weight=3), "weight: expected the name"),
    (
        lambda: AddBasis(bases.Edges(), weight="strong")(large()),
        "weight: expected an attribute of the data, got 's",
    ),
    (lambda: AddBasis(bases.Edges(), replace=1), "replace: expected True or False"),
    (lambda: AddBasis(bases.Edges())(HeteroData()), r"data: expected .*Data, got HeteroData; make it one with"),
    (lambda: AddBasis(bases.Edges())([large()]), "data: expected"),
    (lambda: AddBasis(bases.Edges())(Data(num_nodes=None)), "data.num_nodes: expected the number"),
    (lambda: AddBasis(bases.Edges())(Data(x=torch.ones(3, 1))), "data.edge_index: expected"),
    (lambda: AddBasis(bases.Edges(3))(large()), "edge_type: expected a type"),
    (
        lambda: AddBasis(bases.Window((4, 10), 3, stride=2, padding=1))(Data(x=draw(40, 3))),
        "size: expected N = 10|basis: expected matrices of 40 x 40, got 40 x 10",
    ),
    (lambda: AddBasis(bases.Window((4, 10), 3, padding=1))(Data(x=draw(30, 3))), "x: expected 40 rows"),
    (lambda: InducedBasis(large()), "data.basis_edge_index: expected a tensor"),
    (lambda: InducedBasis(HeteroData()), "data: expected"),
    (lambda: induced()(large()), "data.n_id: expected the number of each node"),
    (lambda: induced()(HeteroData()), "data: expected"),
    (
        lambda: induced()(Data(x=draw(2, 3), n_id=torch.tensor([0, 40]))),
        "data.n_id: expected integers from 0 to 39",
    ),
    (
        lambda: induced()(Data(x=draw(2, 3), n_id=torch.tensor([0, -1]))),
        "data.n_id: expected integers from 0 to 39",
    ),
    (lambda: induced()(Data(x=draw(2, 3), n_id=torch.tensor([0]))), r"data.n_id: expected .* of shape \(2,\)"),
    (lambda: induced()(Data(x=draw(2, 3), n_id=torch.ones(2))), "data.n_id: expected integers"),
    (
        lambda: induced()(Data(x=draw(2, 3), n_id=torch.tensor([7, 7]))),
        "data.n_id: expected each node once .* 7 twice",
    ),
    (
        lambda: induced()(Data(x=draw(3, 3), n_id=torch.tensor([5, 7, 7]))),
        "data.n_id: expected each node once .* 7 twice",
    ),
    (
        lambda: induced()(Data(x=draw(2, 3), n_id=torch.tensor([7, 7]), batch=torch.zeros(2).long())),
        "data.n_id: expected each node once in a sample, got 7 twice",
    ),
    (
        lambda: induced()(Data(x=draw(2, 3), n_id=torch.tensor([7, 8]), batch=torch.zeros(2))),
        "data.batch: expected the sample of each node",
    ),
]


@pytest.mark.parametrize(("make_it", "said"), BAD, ids=[said for _, said in BAD])
@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
def test_bad_input_is_named(make_it, said):
    with pytest.raises(ValueError, match=f"^({said})"):
        make_it()


def induced() -> InducedBasis:
    return InducedBasis(AddBasis(bases.Chebyshev(3))(large()))


def test_an_unbound_basis_is_a_bound_one():
    """What is written out is what `bind` gives, whatever the layer is that reads it."""
    case = CASES["Walks(row)-steps"]
    data = AddBasis(case.basis())(data_of(case.graph()))
    torch.testing.assert_close(matrices(data, case.basis().K), bind(case.basis(), case.graph()).to_dense())
    conv = BasisConv(3, 4, bases.Edges(case.basis().K)).double()
    assert conv(data.x, *parts(data)).shape == (data.num_nodes, 4)
