"""Conversion of layers with attention: PyG's on graphs, torch's on sequences; forward and all gradients."""

import copy
import io
import itertools
import pickle
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric import EdgeIndex, seed_everything
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csr_tensor

from pyg_basisconv import BasisConv, convert
from pyg_basisconv.convert.registry import convertible
from pyg_basisconv.verify import (
    ATTENTION,
    Case,
    N,
    P,
    Q,
    attending,
    attention_cases,
    drawn,
    features,
    forget,
    graph,
)
from pyg_basisconv.verify.heads import WEIGHTS, E, R, called, extras
from tests.convert.conversion import agree, left_of

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
SWEEP = [
    pytest.param(kind, options, id="-".join([kind, *(f"{k}={v}" for k, v in options.items())]))
    for kind, sweep in ATTENTION.items()
    for options in sweep
]
FIRST = [pytest.param(kind, sweep[1] if kind == "RGATConv" else sweep[0], id=kind) for kind, sweep in ATTENTION.items()]


@pytest.mark.parametrize(("kind", "options"), SWEEP)
def test_options(kind: str, options: dict) -> None:
    for case in attention_cases(kind, options):
        agree(case)
        forget(case.reference)
        modules = [copy.deepcopy(f).float() for f in (case.ours, case.reference)]
        agree(Case(*modules, [leaf.float() for leaf in case.leaves], case.call), 2e-4)


@pytest.mark.parametrize(("kind", "options"), FIRST)
def test_the_result_is_made_of_basis_convs(kind: str, options: dict) -> None:
    modules = list(convert(attending(kind, options)).modules())
    assert any(isinstance(m, BasisConv) for m in modules)
    assert not any(map(convertible, modules))


# --- layouts ---


def simple_graph() -> Tensor:
    """Without parallel edges, by target; with two loops."""
    edge_index, _ = graph((2, 5))
    return torch.unique(edge_index.flip(0), dim=1).flip(0)


def types(kind: str, edge_index: Tensor) -> dict[str, Any]:
    return {"edge_type": torch.randint(0, 3, edge_index.shape[1:])} if kind == "RGATConv" else {}


@pytest.mark.parametrize("layout", ["csr", "coo", "EdgeIndex"])
@pytest.mark.parametrize(("kind", "options"), FIRST)
def test_layouts(kind: str, options: dict, layout: str) -> None:
    reference = attending(kind, options)
    edge_index = simple_graph()
    if layout == "EdgeIndex":
        edges: Any = EdgeIndex(edge_index.contiguous(), sparse_size=(N, N), sort_order="col")
    else:
        to = to_torch_csr_tensor if layout == "csr" else to_torch_coo_tensor
        weight = torch.ones(edge_index.shape[1], dtype=torch.float64)
        edges = to(edge_index.flip(0), weight, size=(N, N), is_coalesced=True)
    given = extras(kind, options, edge_index.shape[1], N)
    leaves = [features(N, P), *given.values()]
    agree(Case(convert(reference), reference, leaves, called(edges, tuple(given), **types(kind, edge_index))))


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_weights_in_the_layout_of_the_graph(kind: str, layout: str) -> None:
    reference = attending(kind, {"heads": 1, **({} if kind == "TransformerConv" else {"add_self_loops": True})})
    edge_index = simple_graph()
    to = to_torch_csr_tensor if layout == "csr" else to_torch_coo_tensor
    adj_t = to(edge_index.flip(0), torch.ones(edge_index.shape[1], dtype=torch.float64), size=(N, N))
    x = features(N, P)
    (y, (ours, *alpha)), (z, (theirs, *beta)) = (
        (out, held if isinstance(held, tuple) else (held,))
        for out, held in (f(x, adj_t, return_attention_weights=True) for f in (convert(reference), reference))
    )
    torch.testing.assert_close(y, z)
    torch.testing.assert_close(alpha, beta)
    assert type(ours) is type(theirs)
    assert ours.layout == theirs.layout


# --- two sides ---


def two_sides() -> Tensor:
    return torch.stack([torch.randint(0, 7, (20,)), torch.randint(0, 4, (20,))])


BIPARTITE = [
    *(("GATConv", o) for o in ({}, {"heads": 3, "concat": False}, {"heads": 2, "edge_dim": R, "residual": True})),
    ("GATConv", {"add_self_loops": False}),
    *(("GATv2Conv", o) for o in ({}, {"heads": 3}, {"heads": 2, "edge_dim": R, "residual": True})),
    *(("TransformerConv", o) for o in ({}, {"heads": 2, "edge_dim": R, "beta": True})),
    *(("ResGatedGraphConv", o) for o in ({}, {"edge_dim": R})),
    ("FeaStConv", {"heads": 2}),
]


@pytest.mark.parametrize("channels", [P, (P, P), (P, 3)], ids=str)
@pytest.mark.parametrize(("kind", "options"), BIPARTITE)
def test_bipartite(kind: str, options: dict, channels: Any) -> None:
    if kind == "FeaStConv" and channels != P:
        pytest.skip("has one width")
    reference = attending(kind, options, (channels, Q))
    widths = (channels, channels) if isinstance(channels, int) else channels
    edge_index = two_sides()
    given = extras(kind, options, edge_index.shape[1], 7)
    ours = convert(reference)

    def call(f: Any, x: Tensor, y: Tensor, *leaves: Tensor, **more: Any) -> Tensor:
        return f((x, y), edge_index, **dict(zip(given, leaves, strict=True)), **more)

    leaves = [features(7, widths[0]), features(4, widths[1]), *given.values()]
    agree(Case(ours, reference, leaves, call))
    if kind == "GATConv":
        agree(Case(ours, reference, leaves, lambda f, *leaves: call(f, *leaves, size=(7, 4))))


@pytest.mark.parametrize("channels", [P, (P, 3)], ids=str)
@pytest.mark.parametrize("size", [None, (7, 7), (7, 4)], ids=str)
def test_without_features_of_the_targets(channels: Any, size: Any) -> None:
    reference = attending("GATConv", {"heads": 2, "residual": True, "add_self_loops": size != (7, 4)}, (channels, Q))
    edge_index = two_sides()
    case = Case(convert(reference), reference, [features(7, P)], lambda f, x: f((x, None), edge_index, size=size))
    agree(case)


def test_one_tensor_for_both_sides_of_a_layer_of_two() -> None:
    edge_index, _ = graph()
    for kind in ("GATConv", "GATv2Conv", "TransformerConv"):
        reference = attending(kind, {"heads": 2}, ((P, P), Q))
        agree(Case(convert(reference), reference, [features(N, P)], lambda f, x: f(x, edge_index)))


# --- the call ---


def test_calls_in_order() -> None:
    edge_index, _ = graph()
    x, z, size = features(N, P), features(edge_index.shape[1], R), (N, N)
    reference = attending("GATConv", {"heads": 2, "edge_dim": R})
    for args in ((x, edge_index), (x, edge_index, z), (x, edge_index, z, size), (x, edge_index, None, None, False)):
        torch.testing.assert_close(convert(reference)(*args), reference(*args))
    reference = attending("FAConv", {"normalize": False})
    w = features(edge_index.shape[1])
    torch.testing.assert_close(convert(reference)(x, x, edge_index, w), reference(x, x, edge_index, w))
    with pytest.raises(TypeError, match="has no argument 'batch'"):
        convert(reference)(x, x, edge_index, batch=None)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_are_returned_when_pyg_returns_them(kind: str) -> None:
    edge_index, _ = graph()
    options = {"heads": 2} if kind != "FAConv" else {}
    reference = attending(kind, options)
    given = extras(kind, options, 0, N) | types(kind, edge_index)
    for asked in (None, False, True):
        ours, theirs = (
            f(features(N, P), edge_index=edge_index, return_attention_weights=asked, **given)
            for f in (convert(reference), reference)
        )
        assert type(ours) is type(theirs)
        if isinstance(ours, tuple):
            torch.testing.assert_close(ours[1][0], theirs[1][0])
            assert ours[1][1].shape == theirs[1][1].shape


def test_features_of_edges_that_no_one_reads() -> None:
    edge_index, _ = graph()
    x, z = features(N, P), features(edge_index.shape[1], R)
    reference = attending("GATConv", {})
    torch.testing.assert_close(convert(reference)(x, edge_index, z), reference(x, edge_index, z))
    with pytest.raises(ValueError, match="edge_dim"):
        convert(attending("GATv2Conv", {}))(x, edge_index, z)


def test_another_graph_is_another_graph() -> None:
    reference = attending("GATConv", {"heads": 2})
    ours, x, (edge_index, _) = convert(reference), features(N, P), graph()
    for edges in (edge_index, edge_index.flip(0).contiguous(), edge_index):
        torch.testing.assert_close(ours(x, edges), reference(x, edges))
    edge_index[:, 0] = torch.tensor([4, 7])
    torch.testing.assert_close(ours(x, edge_index), reference(x, edge_index))


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv"])
def test_loops_with_features_in_a_sparse_tensor_are_implemented_nowhere(kind: str) -> None:
    torch_sparse = pytest.importorskip("torch_sparse")
    reference = attending(kind, {"edge_dim": R})
    for value in (None, torch.rand(2, dtype=torch.float64), features(2, R)):
        adj_t = torch_sparse.SparseTensor(
            row=torch.tensor([0, 1]), col=torch.tensor([1, 2]), value=value, sparse_sizes=(N, N)
        )
        for f, error in (
            (convert(reference), ValueError),
            (convert(reference), NotImplementedError),
            (reference, NotImplementedError),
        ):
            with pytest.raises(error, match="loops"):
                f(features(N, P), adj_t)


# --- what carries over ---


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv", "FAConv", "SuperGATConv", "RGATConv"])
def test_dropout(kind: str) -> None:
    reference = attending(kind, {"dropout": 0.5}).train()
    ours = convert(reference)
    (dropout,) = {m.basis.dropout for m in ours.modules() if isinstance(m, BasisConv) and hasattr(m.basis, "dropout")}
    assert dropout == 0.5
    edge_index, _ = graph()
    given = extras(kind, {}, edge_index.shape[1], N) | types(kind, edge_index)

    def run(f: nn.Module) -> Tensor:
        return f(torch.ones(N, P, dtype=torch.float64), edge_index=edge_index, **given)

    assert not torch.equal(run(ours), run(ours))
    torch.testing.assert_close(run(ours.eval()), run(reference.eval()))
    many, few = (torch.stack([run(f.train()) for _ in range(300)]).std(0).mean() for f in (ours, reference))
    torch.testing.assert_close(many, few, rtol=0.2, atol=0)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("options", [{}, {"attention_type": "SD", "is_undirected": True}], ids=str)
def test_supergat_learns_to_tell_edges(options: dict, given: bool) -> None:
    reference = attending("SuperGATConv", {"heads": 2, "edge_sample_ratio": 0.7, **options}).train()
    ours = convert(reference)
    x, (edge_index, _) = features(N, P), graph()
    negative = torch.randint(0, N, (2, 9)) if given else None
    results = []
    for f in (ours, reference):
        seed_everything(1)
        y = f(x, edge_index, negative)
        loss = f.get_attention_loss()
        weight = f.conv.theta.weight if f is ours else f.lin.weight
        grad = torch.autograd.grad(y.square().sum() + loss, weight)[0]
        results.append((y, loss, grad if f is ours else grad.view(2, Q, P).transpose(1, 2)))
    torch.testing.assert_close(*results)
    assert ours.eval().get_attention_loss() == 0


@pytest.mark.parametrize(("kind", "options"), FIRST)
def test_state(kind: str, options: dict) -> None:
    reference = attending(kind, options)
    before, generator = copy.deepcopy(reference.state_dict()), torch.get_rng_state()
    ours = convert(reference.eval())
    assert torch.equal(generator, torch.get_rng_state())
    assert not any(m.training for m in ours.modules())
    edge_index, _ = graph()
    given = extras(kind, options, edge_index.shape[1], N) | types(kind, edge_index)

    def run(f: nn.Module) -> Tensor:
        return f(torch.ones(N, P, dtype=torch.float64), edge_index=edge_index, **given)

    expected = run(ours)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    other = convert(attending(kind, options).eval())
    other.load_state_dict(torch.load(file))
    for same in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), other, convert(ours)):
        torch.testing.assert_close(run(same), expected, rtol=0, atol=0)
    ours.reset_parameters()
    assert run(ours).isfinite().all()
    assert kind == "AGNNConv" or not torch.equal(run(ours), expected)
    torch.testing.assert_close(dict(reference.state_dict()), dict(before), rtol=0, atol=0)
    frozen = convert(reference.requires_grad_(False))
    assert not any(p.requires_grad for p in frozen.parameters())
    half = convert(reference.bfloat16())
    assert {p.dtype for p in half.parameters()} <= {torch.bfloat16}


def test_parts_that_are_frozen() -> None:
    reference = attending("GATConv", {"heads": 2})
    reference.lin.requires_grad_(False)
    ours = convert(reference)
    assert [name for name, p in ours.named_parameters() if not p.requires_grad] == ["conv.theta.weight"]


def test_same_training_curve() -> None:
    model = pyg.models.GAT(P, 8, 2, Q, heads=2, v2=True).double()
    edge_index, _ = graph()
    x, target = features(N, P), torch.randint(0, Q, (N,))
    curves = []
    for f in (convert(model), model):
        optimizer = torch.optim.SGD(f.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        curve = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(f(x, edge_index), target)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    torch.testing.assert_close(*curves, rtol=1e-9, atol=0)
    assert curves[0][-1] < curves[0][0]


# --- models ---


def test_models() -> None:
    edge_index, _ = graph()
    x = features(N, P)
    for model in (pyg.models.GAT(P, 8, 2, Q, heads=2, jk="cat"), pyg.GPSConv(P, pyg.GCNConv(P, P), heads=1)):
        model = model.double().eval()
        ours = convert(model)
        assert not any(map(convertible, ours.modules()))
        torch.testing.assert_close(ours(x, edge_index), model(x, edge_index))


@pytest.mark.parametrize("loops", [False, True])
def test_explainer_masks_reach_the_converted(loops: bool) -> None:
    edge_index, _ = graph()
    x, masks = features(N, P), []
    config = {"mode": "regression", "task_level": "node", "return_type": "raw"}
    model = pyg.models.GAT(P, 8, 2, Q, act=None, heads=2, add_self_loops=loops).double().eval()
    for f in (convert(model), model):
        explainer = Explainer(f, GNNExplainer(epochs=2), "model", config, "attributes", "object")
        torch.manual_seed(0)
        masks.append(explainer(x, edge_index, index=2).edge_mask)
    assert masks[0].any()
    torch.testing.assert_close(*masks)


def test_no_edges() -> None:
    x, edge_index = features(N, P), torch.empty(2, 0, dtype=torch.long)
    for kind, sweep in ATTENTION.items():
        reference = attending(kind, sweep[0])
        given = extras(kind, sweep[0], 0, N) | types(kind, edge_index)
        ours, theirs = (f(x, edge_index=edge_index, **given) for f in (convert(reference), reference))
        torch.testing.assert_close(ours, theirs)


def test_hetero() -> None:
    keys = [("a", "to", "b"), ("b", "of", "a")]
    kinds = {keys[0]: pyg.GATConv((P, 3), Q, add_self_loops=False), keys[1]: pyg.TransformerConv((3, P), Q, heads=1)}
    model = pyg.HeteroConv(kinds).double()
    edge_index = two_sides()
    x, edges = {"a": features(7, P), "b": features(4, 3)}, {keys[0]: edge_index, keys[1]: edge_index.flip(0)}
    torch.testing.assert_close(convert(model)(x, edges), model(x, edges))


# --- sequences ---

B, L, S, H = 3, 4, 6, 2  # a batch, the numbers of queries and of keys, heads
LAYERS = {
    "plain": {},
    "bias=False": {"bias": False},
    "kdim, vdim": {"kdim": 5, "vdim": 3},
    "vdim": {"vdim": 3},
    "add_bias_kv": {"add_bias_kv": True},
    "add_zero_attn": {"add_zero_attn": True},
    "both, kdim": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5},
    "both, bias=False": {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
}
SHAPES = {"batch_first": (True, (B,)), "batch_second": (False, (B,)), "unbatched": (False, ())}


def sides(options: dict, batch_first: bool, lead: tuple[int, ...]) -> list[Tensor]:
    """Queries, keys and values."""
    widths = (L, E), (S, options.get("kdim", E)), (S, options.get("vdim", E))
    return [features(*(lead + (n, w) if batch_first else (n, *lead, w))) for n, w in widths]


def hidden(*shape: int) -> Tensor:
    """True where not to look; never everywhere."""
    mask = torch.rand(shape) < 0.4
    mask[..., 0] = False
    return mask


def masks(lead: tuple[int, ...]) -> dict[str, dict[str, Tensor]]:
    count = H * (B if lead else 1)
    return {
        "none": {},
        "2-D": {"attn_mask": hidden(L, S)},
        "3-D": {"attn_mask": hidden(count, L, S)},
        "padding": {"key_padding_mask": hidden(*lead, S)},
        "both": {"attn_mask": hidden(count, L, S), "key_padding_mask": hidden(*lead, S)},
        "float": {"attn_mask": features(L, S)},
        "float both": {"attn_mask": features(count, L, S), "key_padding_mask": features(*lead, S)},
        "float padding": {"key_padding_mask": features(*lead, S)},
    }


def attended(f: nn.Module, *leaves: Tensor, **call: Any) -> Tensor:
    """The result, and the weights beside it."""
    y, A = f(*leaves, **call)
    return y if A is None else torch.cat([y.flatten(), A.flatten()])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", LAYERS)
def test_multihead(options: str, shape: str) -> None:
    batch_first, lead = SHAPES[shape]
    reference = drawn(nn.MultiheadAttention(E, H, batch_first=batch_first, **LAYERS[options]))
    ours = convert(reference)
    leaves = sides(LAYERS[options], batch_first, lead)
    how = itertools.cycle([{"need_weights": False}, {}, {"average_attn_weights": False}])
    for given, call in zip(masks(lead).values(), how, strict=False):
        agree(Case(ours, reference, leaves, lambda f, *t, g=given, c=call: attended(f, *t, **g, **c)))
        if leaves[1].shape == leaves[2].shape:
            agree(Case(ours, reference, leaves[:2], lambda f, q, k, g=given, c=call: attended(f, q, k, k, **g, **c)))


@pytest.mark.parametrize("options", ["plain", "bias=False", "add_bias_kv", "add_zero_attn"])
def test_multihead_self(options: str) -> None:
    reference = drawn(nn.MultiheadAttention(E, H, batch_first=True, **LAYERS[options]))
    ours = convert(reference)
    causal = torch.ones(S, S, dtype=torch.bool).triu(1)
    calls = [{}, {"attn_mask": causal}, {"attn_mask": causal, "is_causal": True, "need_weights": False}]
    if options == "add_bias_kv" or options == "add_zero_attn":
        calls.pop()  # torch's own is_causal counts the row that it adds
    for lead, call in itertools.product(((), (B,)), calls):
        agree(Case(ours, reference, [features(*lead, S, E)], lambda f, x, c=call: attended(f, x, x, x, **c)))
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        ours(features(S, E), features(S, E), features(S, E), is_causal=True)
    with torch.no_grad():
        x = features(B, S, E)
        torch.testing.assert_close(ours.eval()(x, x, x), reference.eval()(x, x, x))


def test_multihead_dropout_and_state() -> None:
    reference = drawn(nn.MultiheadAttention(E, H, dropout=0.5))
    ours = convert(reference)
    x = features(S, E)
    assert not torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    assert not convert(reference.eval()).training
    torch.testing.assert_close(ours.eval()(x, x, x), reference(x, x, x))
    same = copy.deepcopy(ours)
    same.load_state_dict(ours.state_dict())
    torch.testing.assert_close(same(x, x, x), ours(x, x, x), rtol=0, atol=0)
    ours.reset_parameters()
    assert not torch.equal(ours(x, x, x)[0], same(x, x, x)[0])
    reference.out_proj.requires_grad_(False)
    assert sorted(n for n, p in convert(reference).named_parameters() if not p.requires_grad) == [
        "conv.bias",
        "conv.theta.output",
    ]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_encoder_layer(batch_first: bool, norm_first: bool) -> None:
    options = {"dropout": 0.0, "batch_first": batch_first, "norm_first": norm_first}
    reference = drawn(nn.TransformerEncoderLayer(E, H, 9, **options))
    ours = convert(reference)
    assert not any(map(convertible, ours.modules()))
    mask = nn.Transformer.generate_square_subsequent_mask(S, dtype=torch.float64)
    padding = hidden(B, S)
    shape = (B, S, E) if batch_first else (S, B, E)
    for call in ({}, {"src_mask": mask, "is_causal": True}, {"src_key_padding_mask": padding}):
        agree(Case(ours, reference, [features(*shape)], lambda f, x, c=call: f(x, **c)))
        with torch.no_grad():  # torch then takes a path of its own
            x = features(*shape)
            torch.testing.assert_close(ours.eval()(x, **call), reference.eval()(x, **call))


def test_decoder_layer() -> None:
    reference = drawn(nn.TransformerDecoderLayer(E, H, 9, dropout=0.0, batch_first=True))
    ours = convert(reference)
    mask = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    call = {"tgt_mask": mask, "tgt_is_causal": True, "memory_key_padding_mask": hidden(B, S)}
    agree(Case(ours, reference, [features(B, L, E), features(B, S, E)], lambda f, x, y: f(x, y, **call)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [True, False])
def test_whole_transformer(training: bool) -> None:
    reference = nn.Transformer(E, H, 2, 2, 9, dropout=0.0, batch_first=True).double().train(training)
    ours = convert(reference)
    x, y, padding = features(B, S, E), features(B, L, E), torch.arange(S) >= torch.tensor([[S], [4], [2]])
    call = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    agree(Case(ours, reference, [x, y], lambda f, x, y: f(x, y, **call)))
    with torch.no_grad():  # nested tensors, in torch
        torch.testing.assert_close(ours(x, y, **call), reference(x, y, **call))
    assert left_of(reference) == {}


# --- what is left ---


class OwnAttention(nn.MultiheadAttention):
    pass


def tied() -> nn.Module:
    model = nn.ModuleList([nn.MultiheadAttention(E, H), nn.MultiheadAttention(E, H)])
    model[1].in_proj_weight = model[0].in_proj_weight
    return model[:1].append(model[1])


def hooked() -> nn.Module:
    layer = nn.MultiheadAttention(E, H)
    layer.out_proj.register_forward_hook(lambda *args: None)
    return layer


def half_frozen() -> nn.Module:
    layer = nn.MultiheadAttention(E, H, add_bias_kv=True)
    layer.bias_k.requires_grad_(False)
    return layer


LEFT = {
    "GATConv: it is lazy: call it once before": lambda: pyg.GATConv(-1, Q),
    "GATConv: dropout=1.0 drops all weights": lambda: pyg.GATConv(P, Q, dropout=1.0),
    "MultiheadAttention: dropout=1.0 drops": lambda: nn.MultiheadAttention(E, H, dropout=1.0),
    "GATConv: aggr='max' is not linear": lambda: pyg.GATConv(P, Q, aggr="max"),
    "FAConv: aggr='mean' over messages": lambda: pyg.FAConv(P, aggr="mean"),
    "RGATConv: aggr='mean' over messages": lambda: pyg.RGATConv(P, Q, 3, aggr="mean"),
    "ResGatedGraphConv: its activation has parameters": lambda: pyg.ResGatedGraphConv(P, Q, act=nn.PReLU()),
    "OwnAttention: a subclass of MultiheadAttention": lambda: OwnAttention(E, H),
    "MultiheadAttention: it has hooks": hooked,
    "MultiheadAttention: some of its matrices are frozen": half_frozen,
    "MultiheadAttention: it shares a parameter": tied,
}


@pytest.mark.parametrize("reason", LEFT)
def test_left_with_a_reason(reason: str) -> None:
    told = set(left_of(LEFT[reason]()).values())
    assert len(told) == 1
    assert told.pop().startswith(reason)
