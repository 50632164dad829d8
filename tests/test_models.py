"""BasisGNN against PyG's models with the same parameters."""

import copy
import pickle
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GraphSAGE, RGCNConv

from pyg_basisconv import bases, theta
from pyg_basisconv.mechanisms import Additive, Dot
from pyg_basisconv.models import BasisGNN
from tests.peers import copy_parameters

DOUBLE = torch.float64
N, E, P, HIDDEN, Q = 12, 40, 5, 6, 3
SAMPLER = "ignore:Using 'NeighborSampler' without a 'pyg-lib' installation:UserWarning"
GCN_BASIS = bases.Adjacency("sym", self_loops=True)
SAGE_BASIS = bases.Adjacency("mean") + bases.Identity()


def gat_basis() -> bases.Basis:
    score = Additive(projected=True).then(nn.LeakyReLU(0.2))
    return bases.Attention(2, score, bases.Adjacency(self_loops=True, existing="replace"))


def graph() -> tuple[Tensor, Tensor]:
    return torch.randn(N, P, dtype=DOUBLE, requires_grad=True), torch.randint(N, (2, E))


KINDS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {  # PyG's model, its options, and ours
    "gcn": (GCN, {}, {"basis": GCN_BASIS}),
    "sage": (GraphSAGE, {}, {"basis": SAGE_BASIS}),
    "gat": (GAT, {"heads": 2}, {"basis": gat_basis(), "theta": theta.Heads(), "out_theta": theta.Heads("mean")}),
}


def pair(kind: str, *args: Any, **kwargs: Any) -> tuple[BasisGNN, nn.Module]:
    """A BasisGNN and PyG's model, with the same parameters."""
    make, theirs, ours = KINDS[kind]
    model, peer = BasisGNN(*args, **kwargs, **ours).double(), make(*args, **kwargs, **theirs).double()
    with torch.no_grad():
        for conv, other in zip(model.convs, peer.convs, strict=True):
            for bias in (parameter for name, parameter in other.named_parameters() if name.endswith("bias")):
                nn.init.normal_(bias)
            copy_parameters(conv, other)
    for name in ("norms", "jk", "lin"):
        if hasattr(peer, name):
            getattr(model, name).load_state_dict(getattr(peer, name).state_dict())
    return model, peer


def assert_same(model: BasisGNN, peer: Any, x: Tensor, *args: Any, **kwargs: Any) -> None:
    """The values and all gradients; those of the peer's layers are brought into our form as its parameters are."""
    for one in (model, peer):
        torch.manual_seed(7)
        one.zero_grad()
        y = one(x, *args, **kwargs)
        (one.of_x,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        y.square().sum().backward(inputs=list(one.parameters()))
        one.result = y
    same = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(model.result, peer.result, **same)
    torch.testing.assert_close(model.of_x, peer.of_x, **same)
    for conv, other in zip(model.convs, peer.convs, strict=True):
        expected = copy.deepcopy(conv)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.copy_(parameter.grad)
            copy_parameters(expected, other)
        for mine, theirs in zip(conv.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs, **same)
    for name in {"norms", "jk", "lin"} & dict(peer.named_children()).keys():
        for mine, theirs in zip(getattr(model, name).parameters(), getattr(peer, name).parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, **same)


@pytest.mark.parametrize(
    ("kind", "jk", "norm"),
    CASES := [
        *product(["gcn"], [None, "last", "cat", "max", "lstm"], [None, "batch_norm"]),
        *((kind, "cat", "batch_norm") for kind in KINDS if kind != "gcn"),
    ],
    ids=[f"{kind}, jk={jk}, norm={norm}" for kind, jk, norm in CASES],
)
@pytest.mark.sweep(6)
def test_same_as_pyg(kind: str, jk: str | None, norm: str | None):
    model, peer = pair(kind, P, HIDDEN, 3, Q, jk=jk, norm=norm)
    assert_same(model, peer, *graph())


@pytest.mark.parametrize(
    "kwargs",
    [
        {"num_layers": 1, "out_channels": Q},
        {"num_layers": 1},
        {"num_layers": 2},
        {"num_layers": 2, "out_channels": Q, "act": "tanh", "act_first": True, "norm": "layer_norm"},
        {"num_layers": 2, "out_channels": Q, "act": None},
        {"num_layers": 2, "out_channels": Q, "act": "leaky_relu", "act_kwargs": {"negative_slope": 0.3}},
        {"num_layers": 2, "norm": "graph_norm", "norm_kwargs": {"eps": 1e-3}},
    ],
    ids=["one layer", "one hidden layer", "two", "act first", "no act", "leaky", "norm of graphs"],
)
def test_layers_and_activations(kwargs: dict[str, Any]):
    assert_same(*pair("gcn", P, HIDDEN, **kwargs), *graph())


def test_normalisation_reads_the_batch():
    model, peer = pair("gcn", P, HIDDEN, 2, norm="instance_norm")
    assert model.supports_norm_batch
    batch = torch.arange(N) // 4
    assert_same(model, peer, *graph(), batch=batch, batch_size=3)


@pytest.mark.parametrize("bound", [False, True], ids=["edges", "bound"])
def test_bases_read_the_batch(bound: bool):
    """Each graph is as it is by itself; what is bound knows its graphs."""
    families = {False: bases.Attention(1, Dot(4), bases.Complete()), True: bases.Complete()}
    model = BasisGNN(P, HIDDEN, 2, Q, basis=families[bound] + bases.Identity()).double()
    batch, (x, edge_index) = torch.tensor([0] * 4 + [1] * (N - 4)), graph()
    given = families[True] + bases.Identity()
    edges = given.bind(batch=batch, size=N, dtype=DOUBLE) if bound else edge_index
    apart = [model(part, edge_index[:, :0]) for part in x.split([4, N - 4])]
    torch.testing.assert_close(model(x, edges, batch=batch), torch.cat(apart))


def test_a_trimmed_batch_is_of_the_nodes_that_are_left():
    model = BasisGNN(P, HIDDEN, 2, Q, basis=SAGE_BASIS, norm="graph_norm").double().eval()
    edge_index = torch.tensor([[2, 3, 4, 5], [0, 1, 2, 3]])
    x, batch = torch.randn(6, P, dtype=DOUBLE), torch.tensor([0, 1, 0, 1, 0, 1])
    y = model(x, edge_index, batch=batch, num_sampled_nodes_per_hop=[2, 2, 2], num_sampled_edges_per_hop=[2, 2])
    assert y.shape == (4, Q)


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_dropout_draws_as_pyg_does(kind: str):
    assert_same(*pair(kind, P, HIDDEN, 3, Q, dropout=0.5), *graph())


def test_edge_weights():
    assert_same(*pair("gcn", P, HIDDEN, 2, Q), *graph(), torch.rand(E, dtype=DOUBLE))


def test_typed_edges():
    model = BasisGNN(P, HIDDEN, 2, Q, basis=bases.Relations(3, "mean", self_loop=True)).double()
    first, last = (RGCNConv(p, q, 3).double() for p, q in ((P, HIDDEN), (HIDDEN, Q)))
    with torch.no_grad():
        for conv, peer in zip(model.convs, (first, last), strict=True):
            conv.weight.copy_(torch.cat([peer.weight, peer.root.unsqueeze(0)]))
    (x, edge_index), edge_type = graph(), torch.randint(3, (E,))
    expected = last(first(x, edge_index, edge_type).relu(), edge_index, edge_type)
    torch.testing.assert_close(model(x, edge_index, edge_type=edge_type), expected, rtol=1e-10, atol=1e-10)
    bound = model.convs[0].basis.bind(edge_index, edge_type=edge_type, size=N, dtype=DOUBLE)
    torch.testing.assert_close(model(x, bound), expected, rtol=1e-10, atol=1e-10)


def test_features_of_edges():
    basis = bases.Attention(1, Dot(4, edge_dim=2), bases.Adjacency())
    model = BasisGNN(P, HIDDEN, 2, basis=basis).double()
    (x, edge_index), edge_attr = graph(), torch.randn(E, 2, dtype=DOUBLE)
    expected = model.convs[1](
        model.convs[0](x, edge_index, edge_attr=edge_attr).relu(), edge_index, edge_attr=edge_attr
    )
    torch.testing.assert_close(model(x, edge_index, edge_attr=edge_attr), expected)


@pytest.mark.parametrize("values", ["none", "weights", "types"])
def test_trimmed_to_layers(values: str):
    # Two seeds, three nodes at one step from them, four at two; edges in the order of the steps.
    nodes, edges = [2, 3, 4], [4, 6]
    one_step = torch.stack([torch.randint(2, 5, (4,)), torch.randint(2, (4,))])
    two_steps = torch.stack([torch.randint(5, 9, (6,)), torch.randint(2, 5, (6,))])
    x, edge_index = torch.randn(9, P, dtype=DOUBLE), torch.cat([one_step, two_steps], 1)
    basis = bases.Relations(2, "mean", self_loop=True) if values == "types" else SAGE_BASIS
    model = BasisGNN(P, HIDDEN, 2, Q, basis=basis).double()
    given = {
        "none": {},
        "weights": {"edge_weight": torch.rand(10, dtype=DOUBLE)},
        "types": {"edge_type": torch.randint(2, (10,)), "edge_weight": torch.rand(10, dtype=DOUBLE)},
    }[values]
    trimmed = model(x, edge_index, **given, num_sampled_nodes_per_hop=nodes, num_sampled_edges_per_hop=edges)
    assert trimmed.shape == (5, Q)  # the nodes at two steps are left out
    torch.testing.assert_close(trimmed[:2], model(x, edge_index, **given)[:2])


@pytest.mark.filterwarnings(SAMPLER)
@pytest.mark.parametrize("kind", KINDS)
def test_inference_by_layers(kind: str):
    pytest.importorskip("torch_sparse")
    from torch_geometric.loader import NeighborLoader

    model, peer = pair(kind, P, HIDDEN, 3, Q, norm="batch_norm")
    x, edge_index = graph()
    data = Data(x=x.detach(), edge_index=edge_index)
    loader = NeighborLoader(data, num_neighbors=[-1], batch_size=5)
    model.eval()
    expected = peer.eval().inference(loader)
    torch.testing.assert_close(model.inference(loader), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.inference(loader, cache=True), expected, rtol=1e-10, atol=1e-10)
    if kind != "gcn":  # whose degrees are those of the sampled graph
        torch.testing.assert_close(model(data.x, data.edge_index), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings(SAMPLER)
def test_sampled():
    pytest.importorskip("torch_sparse")
    from torch_geometric.loader import NeighborLoader

    model, peer = pair("sage", P, HIDDEN, 2, Q)
    x, edge_index = graph()
    expected, start = peer(x, edge_index), 0
    for batch in NeighborLoader(Data(x=x.detach(), edge_index=edge_index), num_neighbors=[-1, -1], batch_size=5):
        found, stop = model(batch.x, batch.edge_index)[: batch.batch_size], start + batch.batch_size
        torch.testing.assert_close(found, expected[start:stop], rtol=1e-10, atol=1e-10)
        start = stop


def test_each_layer_has_its_own():
    basis, kind = gat_basis(), theta.Heads()
    model = BasisGNN(P, HIDDEN, 3, basis=basis, theta=kind)
    assert len({id(conv.theta) for conv in model.convs}) == len({id(conv.basis) for conv in model.convs}) == 3
    assert not list(basis.parameters())
    assert not list(kind.parameters())


def test_checkpoints(tmp_path: Any):
    (x, edge_index), make = graph(), lambda P: BasisGNN(P, HIDDEN, 2, Q, **KINDS["gat"][2]).double()
    model, other, open_ = make(P), make(P), make(-1)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    for one in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        one.load_state_dict(state)
        torch.testing.assert_close(one(x, edge_index), model(x, edge_index), rtol=0, atol=0)
    assert open_(x, edge_index).shape == (N, Q)
    before = [p.clone() for p in model.parameters() if p.dim() > 1]
    model.reset_parameters()
    after = [p for p in model.parameters() if p.dim() > 1]
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_repr():
    assert repr(BasisGNN(P, HIDDEN, 2, Q, basis=GCN_BASIS)) == "BasisGNN(5, 3, num_layers=2)"


@pytest.mark.slow
def test_compiled():
    model = BasisGNN(P, HIDDEN, 2, Q, basis=SAGE_BASIS)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    x, edge_index = graph()
    x = x.detach().float()
    for n in (N, N - 2):
        edges = edge_index % n
        torch.testing.assert_close(compiled(x[:n], edges), model(x[:n], edges))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "basis: expected a Basis, got None"),
        ({"basis": "gcn"}, "basis: expected a Basis, got 'gcn'"),
        ({"basis": GCN_BASIS, "theta": "full"}, "theta: expected a Theta"),
        ({"basis": GCN_BASIS, "order": "best"}, "order: expected"),
        ({"basis": GCN_BASIS, "num_layers": 0}, "num_layers: expected an integer from 1 on"),
        ({"basis": gat_basis(), "theta": theta.Heads()}, "out_channels: expected a multiple of the 2 members"),
    ],
    ids=["no basis", "a name", "theta", "order", "no layers", "heads that do not fit"],
)
def test_models_that_cannot_be(kwargs: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        BasisGNN(P, HIDDEN, **{"num_layers": 2, "out_channels": Q} | kwargs)


def test_what_is_bound_cannot_be_trimmed():
    edge_index, model = torch.tensor([[0, 1], [1, 0]]), BasisGNN(P, HIDDEN, 2, Q, basis=GCN_BASIS)
    with pytest.raises(ValueError, match="edge_index: expected edges, from which some are left out, got ListedEdges"):
        model(
            torch.randn(2, P),
            GCN_BASIS.bind(edge_index),
            num_sampled_nodes_per_hop=[1, 1],
            num_sampled_edges_per_hop=[1, 1],
        )
