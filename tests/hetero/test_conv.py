"""HeteroBasisConv against loops over edges, and against torch_geometric.nn.HeteroConv with the same parameters."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch_geometric import EdgeIndex
from torch_geometric.nn import GCNConv, GraphConv, HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from pyg_basisconv import theta
from pyg_basisconv.hetero import HeteroBasisConv
from tests.contract import alike
from tests.hetero.oracle import by_types
from tests.oracle import Graph

DOUBLE = torch.float64
Edges = dict[tuple[str, str, str], Any]
SIZES = {"author": 4, "paper": 6, "venue": 2, "topic": 3}
WIDTHS = {"author": 3, "paper": 5, "venue": 3, "topic": 2}
ONE = dict.fromkeys(SIZES, 3)
WRITES, CITES, AT = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "at", "venue")
KNOWS, HAS, OF = ("author", "knows", "author"), ("paper", "has", "topic"), ("venue", "of", "paper")
TYPES = [WRITES, CITES, AT, KNOWS, HAS, OF]
METADATA = (list(SIZES), TYPES)
NORMS = [None, "mean", "row", "sym"]


def features(widths: dict[str, int], *batch: int) -> dict[str, Tensor]:
    return {t: torch.randn(*batch, N, widths[t], dtype=DOUBLE, requires_grad=True) for t, N in SIZES.items()}


def graph(types: list[tuple[str, str, str]] = TYPES, E: int = 8) -> Edges:
    """Random edges, some of which repeat."""
    return {t: torch.stack([torch.randint(SIZES[end], (E,)) for end in (t[0], t[2])]) for t in types}


def layer(in_channels: Any, *args: Any, **kwargs: Any) -> HeteroBasisConv:
    conv = HeteroBasisConv(in_channels, 4, METADATA, *args, **kwargs).double()
    for bias in conv.bias.values():
        torch.nn.init.normal_(bias)
    return conv


def matrix(conv: HeteroBasisConv, t: tuple[str, str, str]) -> Tensor:
    """(P, Q) the matrix of a type of edges."""
    return conv.convs[t[0]].theta.dense()[conv.starting[t[0]].index(t)]


def oracle(
    conv: HeteroBasisConv, x: dict[str, Tensor], edges: Edges, norm: str | None, weight: Any
) -> dict[str, Tensor]:
    """The layer, from its definition."""
    sized = {t: (x[t[0]].shape[-2], x[t[2]].shape[-2]) for t in edges}
    graphs = {t: Graph(*sized[t], e.t().tolist(), weight.get(t), [0] * e.shape[1]) for t, e in edges.items()}
    return by_types(conv, x, graphs, norm)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], inputs: list[Tensor]) -> None:
    """The values, and all gradients."""
    assert set(found) == set(expected)
    alike(found, {t: expected[t] for t in found}, dict(enumerate(inputs)))


@pytest.mark.parametrize("weighted", [False, True], ids=["ones", "weights"])
@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("widths", [WIDTHS, ONE], ids=["widths", "one width"])
@pytest.mark.sweep(6)
def test_against_loops(widths: dict[str, int], norm: Any, weighted: bool):
    conv = layer(3 if widths is ONE else widths, norm)
    x, edges = features(widths), graph()
    weight = {t: torch.rand(8, dtype=DOUBLE) for t in TYPES[1:]} if weighted else {}
    inputs = [*conv.parameters(), *x.values()]
    assert_same(conv(x, edges, weight), oracle(conv, x, edges, norm, weight), inputs)


def test_learnt_weights():
    conv, x, edges = layer(3, None), features(ONE), graph()
    weight = {t: torch.rand(8, dtype=DOUBLE, requires_grad=True) for t in (WRITES, OF)}
    assert_same(conv(x, edges, weight), oracle(conv, x, edges, None, weight), [*weight.values(), *x.values()])


@pytest.mark.parametrize(
    "kind",
    [theta.Full(), theta.Separable(2), theta.Grouped(1), theta.Separable(depthwise=True)],
    ids=["full", "bases", "blocks", "depthwise"],
)
@pytest.mark.parametrize("widths", [WIDTHS, ONE], ids=["widths", "one width"])
@pytest.mark.sweep(3)
def test_parameters(widths: dict[str, int], kind: theta.Theta):
    conv = layer(3 if widths is ONE else widths, "mean", kind)
    x, edges = features(widths), graph()
    assert_same(conv(x, edges), oracle(conv, x, edges, "mean", {}), [*conv.parameters(), *x.values()])
    assert "weight" not in dict(kind.named_parameters())  # each operator has its own


def sage(P: tuple[int, int]) -> Any:
    return SAGEConv(P, 4)


def graph_conv(P: tuple[int, int]) -> Any:
    return GraphConv(P, 4, aggr="mean")


PEERS = {"sage": (sage, "lin_l", "lin_r"), "graph": (graph_conv, "lin_rel", "lin_root")}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("widths", [WIDTHS, ONE], ids=["widths", "one width"])
def test_against_hetero_conv(widths: dict[str, int], name: str):
    make, neighbours, root = PEERS[name]
    types = [*TYPES, ("topic", "in", "author")]  # every type is reached
    metadata = (list(SIZES), types)
    peer = HeteroConv({t: make((widths[t[0]], widths[t[2]])) for t in types}).double()
    conv = HeteroBasisConv(3 if widths is ONE else widths, 4, metadata).double()
    with torch.no_grad():
        for parameter in conv.roots.parameters():
            parameter.zero_()
        for t, one in peer.convs.items():
            matrix(conv, t).copy_(getattr(one, neighbours).weight.t())
            conv.roots[t[2]].weight[0].add_(getattr(one, root).weight.t())
            conv.bias[t[2]].add_(getattr(one, neighbours).bias)
    x, edges = features(widths), graph(types)
    assert_same(conv(x, edges), peer(x, edges), list(x.values()))
    mine = torch.autograd.grad(sum(y.square().sum() for y in conv(x, edges).values()), list(conv.convs.parameters()))
    theirs = dict(
        zip(
            peer.convs.keys(),
            torch.autograd.grad(
                sum(y.square().sum() for y in peer(x, edges).values()),
                [getattr(one, neighbours).weight for one in peer.convs.values()],
            ),
            strict=True,
        )
    )
    for types_, grad in zip(conv.starting.values(), mine, strict=True):
        torch.testing.assert_close(grad, torch.stack([theirs[t].t() for t in types_]), rtol=1e-10, atol=1e-10)


def test_gcn_within_types():
    types = [KNOWS, CITES]
    peer = HeteroConv({t: GCNConv(3, 4, add_self_loops=False) for t in types}).double()
    conv = HeteroBasisConv(3, 4, (["author", "paper"], types), "sym", root_weight=False).double()
    with torch.no_grad():
        for t, one in peer.convs.items():
            matrix(conv, t).copy_(one.lin.weight.t())
    one_way = graph(types)
    edges = {t: torch.cat([e, e.flip(0)], 1) for t, e in one_way.items()}  # in- and out-degrees agree
    weight = {t: torch.rand(8, dtype=DOUBLE).repeat(2) for t in types}
    x = {t: features(ONE)[t] for t in ("author", "paper")}
    assert_same(conv(x, edges, weight), peer(x, edges, weight), list(x.values()))


def test_types_that_have_a_result_have_a_bias():
    for root_weight, expected in ((True, ["author", "paper"]), (False, ["paper"])):
        metadata = ["author", "paper"], [WRITES]
        assert list(HeteroBasisConv(3, 4, metadata, root_weight=root_weight).bias) == expected
        assert not HeteroBasisConv(3, 4, metadata, root_weight=root_weight, bias=False).bias


@pytest.mark.parametrize("root_weight", [True, False], ids=["root", "no root"])
def test_types_that_are_not_there(root_weight: bool):
    conv, x = layer(WIDTHS, root_weight=root_weight), features(WIDTHS)
    edges = graph([WRITES, AT])
    found = conv(x, edges)
    assert list(found) == (list(SIZES) if root_weight else ["paper", "venue"])
    assert_same(found, oracle(conv, x, edges, "mean", {}), list(x.values()))
    del x["topic"]
    assert "topic" not in conv(x, edges)
    assert list(conv(x, {})) == (["author", "paper", "venue"] if root_weight else [])


def test_types_without_edges_or_nodes():
    conv, edges = layer(3), graph() | {CITES: torch.empty(2, 0, dtype=torch.long)}
    x = features(ONE)
    assert_same(conv(x, edges), oracle(conv, x, edges, "mean", {}), [*conv.parameters(), *x.values()])
    none = {t: torch.empty(2, 0, dtype=torch.long) for t in TYPES}
    assert_same(conv(x, none), oracle(conv, x, none, "mean", {}), [*conv.roots.parameters(), *x.values()])
    nobody = x | {"venue": torch.empty(0, 3, dtype=DOUBLE)}
    found = conv(nobody, none)
    assert found["venue"].shape == (0, 4)
    torch.testing.assert_close(found["paper"], conv(x, none)["paper"])


def test_it_prints_its_widths_and_relations():
    assert str(layer(WIDTHS)) == f"HeteroBasisConv({WIDTHS}, 4, num_relations=6)"


def test_batches():
    conv, x, edges = layer(WIDTHS), features(WIDTHS, 2, 3), graph()
    found = conv(x, edges)
    for i in range(2):
        one = conv({t: x_t[i, 1] for t, x_t in x.items()}, edges)
        for t, y in one.items():
            torch.testing.assert_close(found[t][i, 1], y)


def test_widths_found_in_the_first_call():
    x, edges = features(WIDTHS), graph()
    known = layer(WIDTHS)
    for open_ in (layer(-1), layer(dict.fromkeys(SIZES, -1))):
        twin = copy.deepcopy(open_)
        assert {t: tuple(y.shape) for t, y in open_(x, edges).items()} == {t: (N, 4) for t, N in SIZES.items()}
        twin.load_state_dict(known.state_dict())  # as the layer that knows them from the beginning
        for t, y in known(x, edges).items():
            torch.testing.assert_close(twin(x, edges)[t], y, rtol=0, atol=0)


LAYOUTS: dict[str, Callable[[Tensor, int, int], Any]] = {
    "csr": lambda e, M, N: torch.sparse_coo_tensor(e.flip(0), torch.ones(8, dtype=DOUBLE), (N, M)).to_sparse_csr(),
    "coo": lambda e, M, N: torch.sparse_coo_tensor(e.flip(0), torch.ones(8, dtype=DOUBLE), (N, M)).coalesce(),
    "EdgeIndex": lambda e, M, N: EdgeIndex(e, sparse_size=(M, N)),
    "int32": lambda e, M, N: e.int(),
}


def test_layouts():
    conv, x, edges = layer(3, None), features(ONE), graph()
    expected = conv(x, edges)
    for name, convert in LAYOUTS.items():
        mixed = {t: convert(e, SIZES[t[0]], SIZES[t[2]]) if t != CITES else e for t, e in edges.items()}
        for t, y in conv(x, mixed).items():
            torch.testing.assert_close(y, expected[t], msg=lambda text, name=name: f"{name}: {text}")


def test_sparse_features():
    conv, x, edges = layer(WIDTHS), features(WIDTHS), graph()
    expected = conv(x, edges)
    x["paper"] = x["paper"].detach().to_sparse_csr()
    for t, y in conv(x, edges).items():
        torch.testing.assert_close(y, expected[t])


def test_sparse_tensors():
    torch_sparse = pytest.importorskip("torch_sparse")
    conv, x, edges = layer(WIDTHS), features(WIDTHS), graph()
    weight = {t: torch.rand(8, dtype=DOUBLE) for t in TYPES}
    adj_t = {
        t: torch_sparse.SparseTensor(row=e[1], col=e[0], value=weight[t], sparse_sizes=(SIZES[t[2]], SIZES[t[0]]))
        for t, e in edges.items()
    }
    for t, y in conv(x, adj_t).items():
        torch.testing.assert_close(y, conv(x, edges, weight)[t])


def test_no_stale_edges():
    conv, x, edges = layer(3), features(ONE), graph()
    weight = {t: torch.rand(8, dtype=DOUBLE) for t in TYPES}
    conv(x, edges, weight)
    edges[CITES].copy_(torch.randint(6, (2, 8)))
    weight[WRITES].mul_(torch.rand(8))
    edges[AT] = torch.stack([torch.arange(6), torch.zeros(6, dtype=torch.long)])
    weight[AT] = torch.rand(6, dtype=DOUBLE)
    assert_same(conv(x, edges, weight), oracle(conv, x, edges, "mean", weight), list(x.values()))


def test_edges_are_read_once(monkeypatch: pytest.MonkeyPatch):
    from pyg_basisconv.hetero import edges as module

    conv, x, edges = layer(3), features(ONE), graph()
    conv(x, edges)
    monkeypatch.setattr(module, "_typed_edges", None)
    conv(x, edges)


def test_copies_and_checkpoints(tmp_path: Any):
    conv, x, edges = layer(WIDTHS, "mean", theta.Separable(2)), features(WIDTHS), graph()
    torch.save(conv.state_dict(), tmp_path / "conv.pt")
    other = layer(WIDTHS, "mean", theta.Separable(2))
    other.load_state_dict(torch.load(tmp_path / "conv.pt", weights_only=True))
    for t, y in conv(x, edges).items():
        torch.testing.assert_close(other(x, edges)[t], y, rtol=0, atol=0)
        torch.testing.assert_close(copy.deepcopy(conv)(x, edges)[t], y, rtol=0, atol=0)
    before = [parameter.clone() for parameter in conv.parameters()]
    conv.reset_parameters()
    assert not any(torch.equal(a, b) for a, b in zip(before, conv.parameters(), strict=True))


@pytest.mark.slow
def test_compiled():
    conv, counter = HeteroBasisConv(3, 4, METADATA), CompileCounterWithBackend("eager")
    compiled = torch.compile(conv, fullgraph=True, dynamic=True, backend=counter)
    for more in (10, 12):
        x = {t: torch.randn(N + more, 3, requires_grad=True) for t, N in SIZES.items()}
        edges = graph(E=20 + more)
        found, expected = compiled(x, edges), conv(x, edges)
        gradients = []
        for y_dict in (found, expected):
            for t, y in y_dict.items():
                torch.testing.assert_close(y, expected[t])
            loss = sum(y.square().sum() for y in y_dict.values())
            gradients.append(torch.autograd.grad(loss, [*x.values(), *conv.parameters()]))
        torch.testing.assert_close(*gradients)
    with pytest.raises(ValueError, match=r"edge_index: expected .*, got -1"):  # as the layer sees it
        compiled(x, edges | {WRITES: torch.full((2, 32), 16)})
    assert counter.frame_count == 1


class Plain(torch.nn.Module):
    """The layer with tensors for arguments."""

    def __init__(self, conv: HeteroBasisConv) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: list[Tensor], edges: list[Tensor]) -> list[Tensor]:
        x_dict, edge_index_dict = dict(zip(SIZES, x, strict=True)), dict(zip(TYPES, edges, strict=True))
        return list(self.conv(x_dict, edge_index_dict).values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.slow
def test_exported():
    model, E = Plain(HeteroBasisConv(WIDTHS, 4, METADATA)), {t: 20 + i for i, t in enumerate(TYPES)}

    def inputs(more: int) -> tuple[list[Tensor], list[Tensor]]:
        x = [torch.randn(N + more, WIDTHS[t]) for t, N in SIZES.items()]
        return x, [torch.randint(2 + more, (2, E[t] + more)) for t in TYPES]

    sizes = [{0: torch.export.Dim.AUTO}] * len(SIZES), [{1: torch.export.Dim.AUTO}] * len(TYPES)
    program = torch.export.export(model, inputs(10), dynamic_shapes=sizes)
    assert not [node for node in program.graph.nodes if "basisconv" in str(node.target)]
    others = inputs(7)
    torch.testing.assert_close(program.module()(*others), model(*others))
    others[1][0][0, 3] = SIZES["author"] + 7
    with pytest.raises((IndexError, RuntimeError)):  # never the first node of the next type
        program.module()(*others)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype):
    conv, edges = layer(3).to(dtype), graph()
    x = {t: x_t.detach().to(dtype) for t, x_t in features(ONE).items()}
    exact = copy.deepcopy(conv).double()({t: x_t.double() for t, x_t in x.items()}, edges)
    for t, y in conv(x, edges).items():
        assert y.dtype == dtype
        torch.testing.assert_close(y.double(), exact[t], rtol=2e-2, atol=2e-2)


def test_autocast():
    conv, edges = layer(3).float(), graph()
    x = {t: x_t.detach().float() for t, x_t in features(ONE).items()}
    with torch.autocast("cpu", torch.bfloat16):
        found = conv(x, edges)
    for t, y in conv(x, edges).items():
        torch.testing.assert_close(found[t].float(), y, rtol=3e-2, atol=3e-2)


@pytest.mark.cuda
def test_on_cuda():
    conv, edges = layer(WIDTHS), graph()
    x = features(WIDTHS)
    expected = conv(x, edges)
    found = conv.cuda()({t: x_t.cuda() for t, x_t in x.items()}, {t: e.cuda() for t, e in edges.items()})
    for t, y in expected.items():
        torch.testing.assert_close(found[t].cpu(), y, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="expected source indices from 0 to 3, got 4"):
        conv({t: x_t.cuda() for t, x_t in x.items()}, {WRITES: torch.full((2, 8), 4, device="cuda")})


def test_trimmed_to_layers():
    # One author and one paper are asked for; what stands behind them is one step, then two steps, away.
    types = [WRITES, ("paper", "by", "author")]
    nodes = {"author": [1, 2, 2], "paper": [1, 2, 2]}
    edges = {t: [3, 4] for t in types}
    whole = {
        t: torch.cat(
            [
                torch.stack([torch.randint(1, 3, (3,)), torch.zeros(3, dtype=torch.long)]),
                torch.stack([torch.randint(3, 5, (4,)), torch.randint(1, 3, (4,))]),
            ],
            1,
        )
        for t in types
    }
    convs = [HeteroBasisConv(p, q, (["author", "paper"], types)).double() for p, q in ((3, 4), (4, 2))]
    features_ = {t: torch.randn(5, 3, dtype=DOUBLE) for t in nodes}
    outcomes = []
    for trimmed in (True, False):
        x, edge_index = features_, whole
        for i, conv in enumerate(convs):
            if trimmed:
                x, edge_index, _ = trim_to_layer(i, nodes, edges, x, edge_index)
            x = conv(x, edge_index)
        outcomes.append(x)
    assert outcomes[0]["paper"].shape == (3, 2)
    for t in nodes:
        torch.testing.assert_close(outcomes[0][t][:1], outcomes[1][t][:1])


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "three lists of types": (lambda: HeteroBasisConv(3, 4, (*METADATA, [])), r"metadata: expected \(types of"),
    "metadata": (lambda: HeteroBasisConv(3, 4, [WRITES, CITES]), "metadata: expected"),
    "no edge types": (lambda: HeteroBasisConv(3, 4, (["author"], [])), "metadata: expected"),
    "an unknown node type": (lambda: HeteroBasisConv(3, 4, (["author"], [WRITES])), r"metadata: .*'writes'"),
    "a type twice": (lambda: HeteroBasisConv(3, 4, (["author"], [KNOWS, KNOWS])), "metadata: expected each type once"),
    "two names for one part": (lambda: HeteroBasisConv(3, 4, (["a.b", "a#b"], [("a.b", "to", "a#b")])), "'#' for '.'"),
    "nodes without a name": (lambda: HeteroBasisConv(3, 4, (["", "b"], [("", "to", "b")])), "metadata: expected names"),
    "a relation in numbers": (lambda: HeteroBasisConv(3, 4, (["a"], [("a", 1, "a")])), "metadata: expected triples"),
    "a width too few": (lambda: HeteroBasisConv({"author": 3}, 4, METADATA), r"in_channels: .*correct \['paper'"),
    "a width of nothing": (lambda: layer(0), "in_channels: expected"),
    "a width of nothing in a dict": (lambda: layer(WIDTHS | {"topic": 0}), "in_channels: expected"),
    "a width in words": (lambda: layer("3"), "in_channels: expected"),
    "no outputs": (lambda: HeteroBasisConv(3, 0, METADATA), "out_channels: expected"),
    "a norm": (lambda: layer(3, "left"), "norm: expected None, 'mean'"),
    "heads": (lambda: layer(3, "mean", theta.Heads()), "theta: expected theta.Full"),
    "theta": (lambda: layer(3, "mean", "full"), "theta: expected"),
    "a root that is a number": (lambda: layer(3, root_weight=1), "root_weight: expected"),
}


@pytest.mark.parametrize("name", BAD)
def test_layers_that_cannot_be(name: str):
    make, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        make()


X: dict[str, Tensor] = {t: torch.ones(N, 3, dtype=DOUBLE) for t, N in SIZES.items()}
E8 = torch.zeros(2, 8, dtype=torch.long)
CALLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "no dict": ((torch.ones(3, 3), {}), "x_dict: expected a dict"),
    "one edge_index": ((X, E8), "edge_index_dict: expected a dict"),
    "unknown nodes": ((X | {"editor": torch.ones(1, 3)}, {}), "x_dict: expected keys .*'editor'"),
    "unknown edges": ((X, {("author", "reads", "paper"): E8}), "edge_index_dict: expected keys .*'reads'"),
    "weights without edges": ((X, {WRITES: E8}, {CITES: torch.ones(8)}), "edge_weight_dict: expected weights of"),
    "no sources": (({"paper": X["paper"]}, {WRITES: E8}), "x_dict: expected features of 'author'"),
    "no targets": (({"author": X["author"]}, {WRITES: E8}), "x_dict: expected features of 'paper'"),
    "a vector": ((X | {"paper": torch.ones(6, dtype=DOUBLE)}, {}), r"x_dict\['paper'\]: expected shape"),
    "another width": ((X | {"paper": torch.ones(6, 2, dtype=DOUBLE)}, {}), r"x_dict\['paper'\]: expected 3 channels"),
    "other batches": ((X | {"paper": torch.ones(2, 6, 3, dtype=DOUBLE)}, {}), "x_dict: expected the same batch"),
    "another dtype": (({t: x.float() for t, x in X.items()}, {WRITES: E8}), "expected dtype torch.float64"),
    "indices too large": ((X, {WRITES: E8 + 4}), "'writes'.*: expected source indices from 0 to 3, got 4"),
    "targets too large": ((X, {AT: E8 + 3}), "'at'.*: expected target indices from 0 to 1, got 3"),
    "negative indices": ((X, {WRITES: E8 - 1}), "'writes'.*: expected source indices from 0 to 3, got -1"),
    "no integers": ((X, {WRITES: E8.float()}), "'writes'.*: expected dtype torch.int64"),
    "edges on end": ((X, {WRITES: E8.t()}), r"expected shape \(2, E\)"),
    "no edges": ((X, {WRITES: None}), "'writes'.*: expected edges in one of PyG's layouts"),
    "weights in integers": ((X, {WRITES: E8}, {WRITES: E8[0]}), "'writes'.*: expected a floating point dtype"),
    "weights of two dtypes": (
        (X, {CITES: E8, AT: E8}, {CITES: torch.ones(8), AT: torch.ones(8).half()}),
        "edge_weight_dict: expected weights of one dtype, such as torch.float32, got torch.float16",
    ),
    "weights elsewhere": (
        (X, {WRITES: E8}, {WRITES: torch.ones(8, dtype=DOUBLE, device="meta")}),
        "'writes'.*: expected a tensor on cpu, as the edges, got meta",
    ),
    "too few weights": ((X, {WRITES: E8}, {WRITES: torch.ones(7)}), "'writes'.*: expected one weight per edge"),
    "weights in a list": ((X, {WRITES: E8}, {WRITES: [1.0] * 8}), "'writes'.*: expected one weight per edge"),
    "float weights": ((X, {WRITES: E8}, {WRITES: torch.ones(8)}), "edge_weight: expected dtype torch.float64"),
    "weights twice": (
        (X, {WRITES: torch.eye(6, 4, dtype=DOUBLE).to_sparse_csr()}, {WRITES: torch.ones(4)}),
        "'writes'.*: expected no weights with a sparse matrix",
    ),
    "a matrix of another size": (
        (X, {WRITES: torch.eye(4, 6, dtype=DOUBLE).to_sparse_csr()}),
        "'writes'.*: expected a matrix for 4 nodes of type 'author'",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_do_not_fit(name: str):
    call, message = CALLS[name]
    with pytest.raises(ValueError, match=message):
        layer(3)(*call)
