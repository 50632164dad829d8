"""Relations and walks of a HeteroData, by node type, against one dense product for each edge type."""

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.transforms import AddMetaPaths

from pyg_basisconv import BasisConv, bases
from pyg_basisconv.hetero import split, stack

DOUBLE = torch.float64
SIZES = {"film": 5, "actor": 7, "award": 4}  # in no alphabetical order
PLACES = {"film": slice(0, 5), "actor": slice(5, 12), "award": slice(12, 16)}
PLAYED, WON, DIRECTED = ("actor", "played", "film"), ("film", "won", "award"), ("actor", "directed", "film")
SEQUEL, GIVEN = ("film", "sequel", "film"), ("award", "given", "actor")
EDGES = {PLAYED: 12, SEQUEL: 6, WON: 7, DIRECTED: 5, GIVEN: 6}


def graph(sizes: dict[str, int] = SIZES, edges: dict[tuple[str, str, str], int] = EDGES) -> HeteroData:
    """Random edges, some of which repeat."""
    data = HeteroData()
    for name, N in sizes.items():
        data[name].x = torch.randn(N, 3, dtype=DOUBLE)
    for edge_type, E in edges.items():
        source, _, target = edge_type
        ends = [torch.randint(max(1, sizes[name]), (E,)) for name in (source, target)]
        data[edge_type].edge_index = torch.stack(ends)
    return data


def dense(data: HeteroData, edge_type: tuple[str, ...]) -> Tensor:
    """(N of the sources' type, N of the targets') the edges of a type, added up."""
    source, target = data[edge_type].edge_index
    weight = data[edge_type].get("edge_weight", torch.ones(source.numel()))
    A = torch.zeros(data[edge_type[0]].num_nodes, data[edge_type[-1]].num_nodes, dtype=DOUBLE)
    return A.index_put((source, target), weight.double(), accumulate=True)


def within(A: Tensor, source: str, target: str) -> Tensor:
    """The entries between two types of nodes; there are none elsewhere."""
    part = A[PLACES[source], PLACES[target]]
    assert A.count_nonzero() == part.count_nonzero()
    return part


def per_type(conv: BasisConv, data: HeteroData) -> dict[str, Tensor]:
    """y of each node type by dense products, of Relations(inverse=True, self_loop=True) without a norm."""
    y = {name: conv.bias + data[name].x @ conv.weight[-1] for name in data.node_types}
    R = len(data.edge_types)
    for r, edge_type in enumerate(data.edge_types):
        source, _, target = edge_type
        A = dense(data, edge_type)
        y[target] = y[target] + A.t() @ data[source].x @ conv.weight[r]
        y[source] = y[source] + A @ data[target].x @ conv.weight[R + r]
    return y


def applied(conv: BasisConv, data: HeteroData) -> dict[str, Tensor]:
    whole = data.to_homogeneous()
    x = stack(data.x_dict, data)
    return split(conv(x, whole.edge_index, edge_type=whole.edge_type), data)


@pytest.mark.parametrize(
    "sizes",
    [SIZES, SIZES | {"award": 0}, SIZES | {"film": 0, "award": 0}, {"film": 4}],
    ids=["three", "one empty", "one left", "one type"],
)
def test_relations_by_node_type(sizes: dict[str, int]):
    edges = {e: E if sizes.get(e[0]) and sizes.get(e[2]) else 0 for e, E in EDGES.items() if {e[0], e[2]} <= set(sizes)}
    data = graph(sizes, edges)
    conv = BasisConv(3, 4, bases.Relations.from_hetero(data, inverse=True, self_loop=True)).double()
    assert 2 * len(edges) + 1 == conv.basis.K
    torch.nn.init.normal_(conv.bias)
    found, expected = applied(conv, data), per_type(conv, data)
    assert list(found) == list(expected) == data.node_types
    for name, y in expected.items():
        torch.testing.assert_close(found[name], y)


@pytest.mark.parametrize("norm", ["mean", "row", "sym"])
def test_norms_are_those_of_an_edge_type(norm: str):
    data = graph()
    whole = data.to_homogeneous()
    basis = bases.Relations.from_hetero(data, norm=norm)
    A = basis.bind(whole.edge_index, edge_type=whole.edge_type, size=16, dtype=DOUBLE).to_coo().to_dense()
    for r, edge_type in enumerate(data.edge_types):
        one = dense(data, edge_type)
        rows, columns = one.sum(1, keepdim=True).clamp(1), one.sum(0).clamp(1)
        expected = {"mean": one / columns, "row": one / rows, "sym": one / (rows * columns).sqrt()}[norm]
        torch.testing.assert_close(within(A[r], edge_type[0], edge_type[2]), expected)


def test_ids_are_those_of_to_homogeneous():
    data = graph()
    whole = data.to_homogeneous()
    for r, (source, relation, target) in enumerate(data.edge_types):
        ends = data[source, relation, target].edge_index + torch.tensor(
            [[PLACES[source].start], [PLACES[target].start]]
        )
        assert torch.equal(whole.edge_index[:, whole.edge_type == r], ends)
    torch.testing.assert_close(stack(data.x_dict, data), whole.x, rtol=0, atol=0)
    y = torch.arange(16)[:, None]
    assert {name: part.flatten().tolist() for name, part in split(y, data).items()} == {
        "film": [0, 1, 2, 3, 4],
        "actor": [5, 6, 7, 8, 9, 10, 11],
        "award": [12, 13, 14, 15],
    }
    vocabulary = bases.Walks([[PLAYED]], data).vocabulary
    assert [vocabulary.id(name) for _, name, _ in data.edge_types] == [0, 1, 2, 3, 4]


def test_batches():
    data = graph()
    whole = data.to_homogeneous()
    conv = BasisConv(3, 4, bases.Relations.from_hetero(data, norm="mean", inverse=True)).double()
    features = {name: torch.randn(2, 3, N, 3, dtype=DOUBLE) for name, N in SIZES.items()}
    y = split(conv(stack(features, data), whole.edge_index, edge_type=whole.edge_type), data)
    assert {name: tuple(part.shape) for name, part in y.items()} == {n: (2, 3, N, 4) for n, N in SIZES.items()}
    for name in SIZES:
        data[name].x = features[name][1, 2]
    for name, one in applied(conv, data).items():
        torch.testing.assert_close(y[name][1, 2], one)


def test_gradients_reach_the_features_of_each_type():
    data = graph()
    whole = data.to_homogeneous()
    conv = BasisConv(3, 2, bases.Walks([[PLAYED, WON], [("award", "actor"), PLAYED]], data)).double()
    leaves = {name: x.requires_grad_() for name, x in data.x_dict.items()}
    y = split(conv(stack(leaves, data), whole.edge_index, edge_type=whole.edge_type), data)
    y["award"].sum().backward()  # where only the first sort ends
    A = dense(data, PLAYED) @ dense(data, WON)
    torch.testing.assert_close(leaves["actor"].grad, A.sum(1, keepdim=True) * conv.weight[0].sum(1))
    assert not leaves["award"].grad.any()
    assert not leaves["film"].grad.any()


METAPATHS = [
    [PLAYED, WON],
    [PLAYED, SEQUEL, WON, GIVEN],
    [("film", "award"), ("award", "actor"), DIRECTED],  # pairs, where one edge type joins them
    [SEQUEL, SEQUEL, SEQUEL],
]


@pytest.mark.parametrize("weights", [False, True], ids=["counts", "weights"])
def test_metapaths_are_sorts(weights: bool):
    data = graph()
    whole = data.to_homogeneous()
    weight = None
    if weights:
        weight = torch.rand(whole.num_edges, dtype=DOUBLE)
        for edge_type, part in zip(data.edge_types, weight.split(list(EDGES.values())), strict=True):
            data[edge_type].edge_weight = part
    basis = bases.Walks([*METAPATHS[:3], "sequel{3}"], data)
    bound = basis.bind(whole.edge_index, weight, edge_type=whole.edge_type, size=16, dtype=DOUBLE)
    made = AddMetaPaths(METAPATHS, weighted=True)(data)
    assert [made.metapath_dict[e] for e in made.edge_types[5:]] == METAPATHS
    A = bound.to_coo().to_dense()
    for k, edge_type in enumerate(made.edge_types[5:]):
        expected = dense(made, edge_type)
        torch.testing.assert_close(within(A[k], edge_type[0], edge_type[2]), expected)
        assert weights or bound.count(k) == float(expected.sum())


def test_a_metapath_graph_propagates_as_its_sort():
    data = graph()
    whole = data.to_homogeneous()
    conv = BasisConv(3, 4, bases.Walks(METAPATHS, data, norm="row")).double()
    y = split(conv(stack(data.x_dict, data), whole.edge_index, edge_type=whole.edge_type), data)
    made = AddMetaPaths(METAPATHS, weighted=True)(data)
    expected = {name: conv.bias.expand(N, 4) for name, N in SIZES.items()}
    for k, edge_type in enumerate(made.edge_types[5:]):
        A, (source, _, target) = dense(made, edge_type), edge_type
        A = A / A.sum(1, keepdim=True).clamp(1)
        expected[target] = expected[target] + A.t() @ data[source].x @ conv.weight[k]
    for name in SIZES:
        torch.testing.assert_close(y[name], expected[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"director": torch.zeros(2, 3)}, r"x_dict: .*'director'"),
        ({"film": None}, r"x_dict\['film'\]: expected \(\*, 5, P\), got None"),
        ({"film": torch.zeros(6, 3, dtype=DOUBLE)}, r"x_dict\['film'\]: expected \(\*, 5, P\), got \(6, 3\)"),
        ({"film": torch.zeros(5, dtype=DOUBLE)}, r"x_dict\['film'\]: .* got \(5,\)"),
        ({"film": torch.zeros(5, 4, dtype=DOUBLE)}, r"one width.*linear layer"),
        ({"film": torch.zeros(2, 5, 3, dtype=DOUBLE)}, r"same batch dimensions"),
        ({"film": torch.zeros(5, 3)}, r"one dtype, .*got .*torch.float32"),
        ({"film": torch.zeros(5, 3, dtype=DOUBLE).to_sparse()}, r"all of them dense or torch.sparse_coo"),
        ({"film": torch.zeros(5, 3, dtype=DOUBLE).to_sparse_csr()}, r"all of them dense or torch.sparse_coo"),
    ],
)
def test_what_does_not_stack(change: dict[str, Tensor | None], message: str):
    data = graph()
    with pytest.raises(ValueError, match=message):
        stack(data.x_dict | change, data)  # type: ignore[arg-type]


def test_of_a_graph_without_nodes_nothing_is_stacked():
    with pytest.raises(ValueError, match="data: expected a HeteroData with nodes"):
        stack({}, HeteroData())


def test_what_lacks_a_type_does_not_stack():
    data = graph()
    with pytest.raises(ValueError, match=r"features of the node types .*'award'"):
        stack({name: x for name, x in data.x_dict.items() if name != "award"}, data)


def test_what_does_not_split():
    data = graph()
    with pytest.raises(ValueError, match=r"y: expected \(\*, 16, Q\), got \(15, 2\)"):
        split(torch.zeros(15, 2), data)
    with pytest.raises(ValueError, match=r"y: .* got \(16,\)"):
        split(torch.zeros(16), data)
    with pytest.raises(ValueError, match="data: expected a HeteroData, got Data"):
        split(torch.zeros(16, 2), data.to_homogeneous())  # type: ignore[arg-type]
    data["studio"].name = "without a size"
    with pytest.raises(ValueError, match="num_nodes of type 'studio'"), pytest.warns(UserWarning, match="num_nodes"):
        split(torch.zeros(16, 2), data)
