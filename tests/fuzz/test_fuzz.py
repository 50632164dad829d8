"""Anything into every public entry: what comes out is right by definition, or a ValueError or TypeError.

test_fuzz_pyg.py does so for hetero, models, transforms and blocks.

`pytest tests/fuzz/test_fuzz.py --hypothesis-profile=long` draws a hundred times as many examples.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_basisconv import BasisConv, Knowledge, bases, convert, load_walks
from pyg_basisconv.hetero import split, stack
from pyg_basisconv.mechanisms import MLP, Perceptron
from pyg_basisconv.testing import Permutation, Translation, assert_equivariant
from pyg_basisconv.theta import Pass
from pyg_basisconv.transforms import ToGrid
from pyg_basisconv.walks import Sort, parse
from tests.bases.grids.cases import call_torch
from tests.bases.grids.oracle import MODES, shifts, sites
from tests.contract import DOUBLE, close, expected, make, tensors
from tests.fuzz import attention, grids, walks
from tests.fuzz.calls import TOLERANCES, Call, calls, wrong_calls
from tests.fuzz.constructors import CONSTRUCTORS, constructions
from tests.fuzz.families import families, graphs
from tests.fuzz.layers import layers
from tests.fuzz.support import EXAMPLES, alien, anything, fuzz, junk, numbers, refused
from tests.mechanisms import cases as attention_cases


def scale(c: Call, A: Tensor) -> float:
    """How large intermediate results may be, roughly."""
    x = c.source.detach().double().nan_to_num(0, 0, 0).abs()
    theta = sum(float(p.detach().double().abs().sum()) for p in c.conv.theta.parameters()) + c.family.basis.K
    return 1 + float(A.detach().abs().sum()) * float(x.max() if x.numel() else 0) * theta


def reached(c: Call) -> Tensor:
    """(N,) which targets a walk of some steps, either way round, joins to what is not finite."""
    g = c.graph
    near = torch.eye(g.M + g.N) > 0
    for m, n in [*g.edges, *([(i, i) for i in range(g.M)] if g.M == g.N else [])]:
        near[m, g.M + n] = near[g.M + n, m] = True
    if g.M == g.N:  # sources are targets
        for m in range(g.M):
            near[m, g.M + m] = near[g.M + m, m] = True
    seen = torch.zeros(g.M + g.N, dtype=torch.bool)
    seen[: g.M] = (
        (~c.source.detach().isfinite()).flatten(0, -3).any(-1).any(0)
        if c.source.dim() > 2
        else ~c.source.isfinite().all(-1)
    )
    for _ in range(g.M + g.N):
        seen = (near & seen[:, None]).any(0) | seen
    return seen[g.M :]


def check(c: Call) -> str:
    """One valid call."""
    A = c.family.matrices(c.graph)
    y = c.run()
    assert y.dtype == c.source.dtype
    tolerance = TOLERANCES[y.dtype]
    bounds = {"rtol": tolerance, "atol": tolerance * scale(c, A)}
    if c.source.isfinite().all():
        torch.testing.assert_close(y.double(), expected(c.conv, A, c.source, c.kind).double(), **bounds)
    elif c.family.local:
        apart = ~reached(c)
        x = c.source.detach().nan_to_num(0, 0, 0)
        reference = expected(c.conv, A, x, c.kind).double()
        torch.testing.assert_close(y.double()[..., apart, :], reference[..., apart, :], **bounds)
    return "equal"


@fuzz(300, equal=1.0)
def test_layer(c: calls()) -> str:
    return check(c)


@fuzz(200, equal=0.1, refused=0.5)
def test_layer_refuses(c: wrong_calls()) -> str:
    if not c.wrong:
        return check(c)
    assert refused(c.run), "was let through"
    return "refused"


@fuzz(400, equal=0.15, refused=0.3)
def test_constructors(made: constructions()) -> str:
    """What is no argument of a class is refused when it is made; the rest is taken, and can be printed."""
    name, given, verdict = made
    make, _ = CONSTRUCTORS[name]
    if verdict is True:
        repr(make(**given))
        return "equal"
    assert refused(lambda: repr(make(**given))) or verdict is None, "was let through"
    return "refused"


@fuzz(150, equal=0.5, refused=0.15)
def test_images(data: st.data()) -> str:
    """`GridConv` is torch's own layer, by every order, on images in any layout."""
    c = data.draw(grids.configs())
    layer = c.torch()
    order = data.draw(st.sampled_from(["auto", "auto", "native", "a_first", "theta_first", "phi"]))
    conv = c.grid_conv(layer, order=order)
    if data.draw(st.integers(0, 3)) == 0:
        wrong = grids.wrong_images(c)
        name = data.draw(st.sampled_from(sorted(wrong)))
        assert refused(lambda: conv(wrong[name])), f"{name} was let through"
        return "refused"
    layouts = grids.image_layouts(c.image(data.draw(st.integers(0, 99))))
    x = layouts[data.draw(st.sampled_from(sorted(layouts)))]()
    torch.testing.assert_close(conv(x), call_torch(layer, x.detach()), rtol=1e-10, atol=1e-10)
    return "equal"


@fuzz(150, equal=0.6, refused=0.15)
def test_attention(data: st.data()) -> str:
    """Any mechanism, mask, normalisation and parameter."""
    c = data.draw(attention.cases())
    conv, mechanism = attention_cases.layer(c)
    made = attention_cases.inputs(c)
    if data.draw(st.integers(0, 3)) == 0:
        wrong = attention.wrong(c, made)
        name = data.draw(st.sampled_from(sorted(wrong)))
        assert refused(lambda: attention_cases.call(conv, made, **wrong[name])), f"{name} was let through"
        return "refused"
    _, reference = attention_cases.reference(c, made, conv, mechanism)
    y = attention_cases.call(conv, made)
    torch.testing.assert_close(y, reference, rtol=1e-9, atol=1e-9)
    return "equal"


@fuzz(150, equal=0.4, refused=0.1)
def test_bound(data: st.data()) -> str:
    """A family bound to a graph is its matrices: applied, turned round, written out; and refuses what does not fit."""
    family = data.draw(families)
    g = data.draw(graphs(family))
    A, arguments = family.matrices(g), tensors(g) | {"size": (g.M, g.N), "dtype": DOUBLE}
    if data.draw(st.integers(0, 2)) == 0:
        name = data.draw(st.sampled_from(["edge_index", "edge_weight", "edge_type", "size", "dtype", "batch", "grid"]))
        value = data.draw(junk)
        if refused(lambda: family.basis.bind(**arguments | {name: value})):
            return "refused"
        assert name == "batch", f"{name} = {value} was let through"  # which these families do not read
    bound = family.basis.bind(**arguments)
    close(bound.to_dense(), A, 1e-9)
    close(bound.to_coo().to_dense(), A, 1e-9)
    close(bound.T.to_dense(), A.transpose(1, 2), 1e-9)
    x, z = numbers(g.M, 2), numbers(len(A), g.M, 2)
    close(bound.expand(x), A.transpose(1, 2) @ x, 1e-8)
    close(bound.combine(z), (A.transpose(1, 2) @ z).sum(0), 1e-8)
    close(bound.each(z), A.transpose(1, 2) @ z, 1e-8)
    return "equal"


@fuzz(200, equal=0.2, refused=0.3)
def test_windows(data: st.data()) -> str:
    """Arguments of a window that torch takes are its matrices, on all positions or on some; others are refused."""
    shape, arguments = data.draw(grids.windows())
    if not grids.fits(shape, arguments):
        assert refused(lambda: bases.Window(shape, **arguments).bind()), "was let through"
        return "refused"
    window = bases.Window(shape, **arguments)
    close(window.bind(dtype=DOUBLE).to_dense(), grids.matrices(shape, arguments))
    unsaid = bases.Window(None, **arguments)
    close(unsaid.bind(grid=shape, dtype=DOUBLE).to_dense(), grids.matrices(shape, arguments))
    return "equal"


@fuzz(100, equal=0.3, refused=0.1)
def test_shifts(data: st.data()) -> str:
    """Any offsets on any grid."""
    axes = data.draw(st.integers(1, 2))
    shape = data.draw(st.tuples(*[st.integers(0, 4)] * axes))
    offset = st.tuples(*[st.integers(-4, 4)] * axes)
    offsets = data.draw(st.lists(offset, min_size=1, max_size=3))
    mode = data.draw(st.sampled_from(MODES))
    far = mode == "reflect" and any(abs(o) >= max(1, n) for d in offsets for o, n in zip(d, shape, strict=True))
    if far or len(set(offsets)) < len(offsets):
        assert refused(lambda: bases.Shifts(shape, offsets, mode).bind()), "was let through"
        return "refused"
    A = shifts(shape, offsets, mode) if min(shape) else torch.zeros(len(offsets), 0, 0, dtype=DOUBLE)
    basis = bases.Shifts(shape, offsets, mode)
    close(basis.bind(dtype=DOUBLE).to_dense(), A)
    conv = make(basis, P=1, Q=2)
    x = numbers(2, A.shape[1], 1)
    close(conv(x), expected(conv, A, x), 1e-9)
    return "equal"


@fuzz(150, equal=0.08, refused=0.3)
def test_sites(data: st.data()) -> str:
    """A window on some positions."""
    shape, arguments = data.draw(grids.windows())
    if data.draw(st.booleans()):
        arguments |= {"padding_mode": "zeros", "norm": None, "ceil_mode": False}
    at = data.draw(grids.sites(shape))
    places = torch.tensor(at, dtype=torch.long).reshape(-1, len(shape))
    plain = arguments["padding_mode"] == "zeros" and arguments["norm"] is None
    if not grids.fits(shape, arguments) or not plain:
        assert refused(lambda: bases.Window(shape, **arguments, sites=places).bind()), "was let through"
        return "refused"
    told = {name: arguments[name] for name in ("stride", "padding", "dilation", "transposed", "output_padding")}
    arguments["ceil_mode"] = False
    A, _, _ = sites(at, shape, arguments["kernel_size"], **told)
    close(bases.Window(shape, **arguments, sites=places).bind(dtype=DOUBLE).to_dense(), A)
    return "equal"


@fuzz(100, equal=0.9)
def test_convert(case: layers()) -> str:
    """A layer of PyG that is converted is the same function."""
    layer, arguments = case
    mine = convert(layer)
    assert mine is not layer
    torch.testing.assert_close(mine(*arguments), layer(*arguments), rtol=1e-9, atol=1e-9)
    return "equal"


@fuzz(30, equal=0.0, refused=0.3)
def test_convert_takes_modules(thing: anything) -> str:
    if isinstance(thing, torch.nn.Module):
        assert repr(convert(thing)) == repr(thing)
        return "equal"
    assert refused(lambda: convert(thing)), "was let through"
    return "refused"


@fuzz(150, equal=0.3, refused=0.2)
def test_sorts(text: walks.texts()) -> str:
    """What is not a sort is refused; and a sort, printed and read again, is the same."""
    found: list[Sort] = []
    if refused(lambda: found.append(parse(text, 10))):
        return "refused"
    assert parse(found[0].text, 10).sequences == found[0].sequences
    return "equal"


@fuzz(100, equal=0.15, refused=0.3)
def test_files(case: walks.files()) -> str:
    """A configuration with something out of place is refused, or is one all the same."""
    toml, table, plain = case
    with tempfile.TemporaryDirectory() as folder:
        path = walks.write(Path(folder), toml, table)
        found: list[Knowledge] = []
        if refused(lambda: found.append(load_walks(path))):
            assert not plain
            return "refused"
    k = found[0]
    bound = k.basis.bind(k.edge_index, edge_type=k.edge_type, size=k.num_nodes, dtype=DOUBLE)
    assert bound.to_dense().shape == (k.basis.K, k.num_nodes, k.num_nodes)
    if plain:
        heads, tails = k.edge_index.tolist()
        kinds = [k.relations.names[r] for r in k.edge_type.tolist()]
        read = {(k.entities[h], r, k.entities[t]) for h, r, t in zip(heads, kinds, tails, strict=True)}
        assert read == set(walks.FACTS)
    return "equal"


@fuzz(100, equal=0.4, refused=0.2)
def test_node_types(data: st.data()) -> str:
    """`split` undoes `stack`, whatever the sizes; and both refuse what is not theirs."""
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    P, lead = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([(), (2,)]))
    hetero = HeteroData({str(i): {"num_nodes": n} for i, n in enumerate(sizes)})
    x_dict = {str(i): numbers(*lead, n, P, seed=i) for i, n in enumerate(sizes)}
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(x_dict)))
        wrong = data.draw(alien)
        assert refused(lambda: stack(x_dict | {name: wrong}, hetero))
        assert refused(lambda: stack({k: v for k, v in x_dict.items() if k != name}, hetero))
        assert refused(lambda: stack(wrong, hetero))
        assert refused(lambda: stack(x_dict, wrong))
        assert refused(lambda: split(wrong, hetero))
        return "refused"
    whole = stack(x_dict, hetero)
    assert whole.shape == (*lead, sum(sizes), P)
    again = split(whole, hetero)
    assert again.keys() == x_dict.keys()
    assert all(torch.equal(again[name], x_dict[name]) for name in x_dict)
    return "equal"


@fuzz(60, equal=0.4, refused=0.2)
def test_pixels(data: st.data()) -> str:
    """The graph of an image's pixels is the image, to a layer of edges; or the image is refused."""
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    window = data.draw(
        st.sampled_from(
            [bases.Window(None, (3, 3), padding=1), bases.Shifts(None, [(0, 1), (-1, 0)], padding_mode="circular")]
        )
    )
    x = numbers(2, *shape)
    there = torch.rand(shape, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 9)))) > 0.3
    transform = ToGrid(window)
    if data.draw(st.integers(0, 2)) == 0:
        name, wrong = data.draw(st.sampled_from(["x", "mask"])), data.draw(junk)
        if name == "mask" and isinstance(wrong, torch.Tensor) and wrong.dtype == torch.bool and wrong.shape == shape:
            wrong = None
        changed = {"x": x, "mask": there} | {name: wrong}
        assert (name == "mask" and wrong is None) or refused(lambda: transform(Data(**changed)))
        return "refused"
    graph = transform(Data(x=x, mask=there))
    layer = make(bases.Edges(window.K), P=2, Q=2)
    y = layer(graph.x, graph.edge_index, edge_type=graph.edge_type)
    A = window.bind(grid=shape, dtype=DOUBLE).to_dense()
    every = expected(layer, A * there.flatten()[:, None], x.flatten(1).t())
    close(y, every[there.flatten()])
    return "equal"


@fuzz(60, equal=0.4, refused=0.2)
def test_actions(data: st.data()) -> str:
    """Renaming nodes, moving and turning images; and what is no action."""
    M = data.draw(st.integers(0, 5))
    order = data.draw(st.permutations(range(M)))
    x, edges = (
        numbers(M, 2),
        data.draw(st.lists(st.tuples(*[st.integers(0, max(M - 1, 0))] * 2), max_size=6 if M else 0)),
    )
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
    if data.draw(st.booleans()):
        wrong = data.draw(alien)
        assert refused(lambda: Permutation(order).input(wrong))
        assert refused(lambda: assert_equivariant(make(bases.Adjacency(), P=2), wrong, x, edge_index))
        assert refused(lambda: Permutation([0, 0, *order]))
        assert refused(lambda: Translation(1).input(wrong))
        return "refused"
    if M:
        assert_equivariant(make(bases.Chebyshev(3), P=2), Permutation(order), x, edge_index)
    (moved,), _ = Permutation(order).arguments((edge_index,), {})
    assert [(order[m], order[n]) for m, n in moved.t().tolist()] == edges
    return "equal"


EDGES = torch.tensor([[0, 1], [1, 0]])
POOLING = BasisConv(6, 6, bases.Attention(1, MLP(4, target=None), bases.Bags()), Pass(), bias=False).double()
FOUND: dict[str, Callable[[], Any]] = {
    "relations without number": lambda: bases.Walks(["0"], 2**63),
    "edges of a hidden layer": lambda: Perceptron(2, edge_dim=2**70),
    "matrices elsewhere": lambda: bases.Mix(torch.ones(2, device="meta"), bases.Powers(2)),
    "action elsewhere": lambda: bases.FiniteGroup([[0]], torch.ones(1, 1, 1, device="meta")),
    "sparse rows of nodes": lambda: split(torch.ones(1, 2).to_sparse(), HeteroData(a={"num_nodes": 1})),
    "features beside a mechanism's": lambda: POOLING(torch.ones(3, 6), batch=torch.tensor([0, 0, 1])),
    "bags elsewhere": lambda: POOLING(
        torch.ones(3, 6, dtype=DOUBLE), batch=torch.zeros(3, dtype=torch.long, device="meta")
    ),
    "dtype by name": lambda: bases.Adjacency().bind(EDGES, dtype="float32"),
    "more targets than sources": lambda: bases.Identity().bind(size=(2, 5)),
    "x elsewhere, no parameter": lambda: BasisConv(1, 1, bases.Adjacency(), Pass(), bias=False)(
        torch.ones(2, 1, device="meta"), EDGES, torch.ones(2)
    ),
    "no module": lambda: convert(3),
    "sparse image": lambda: Translation(1).input(torch.ones(1, 2).to_sparse()),
}


@pytest.mark.parametrize("name", FOUND)
def test_found_before(name: str) -> None:
    assert refused(FOUND[name])


def test_a_nan_stays_where_it_is() -> None:
    """Also where the plan takes a dense product, in which 0 * nan would reach every node."""
    x = torch.ones(4, 3)
    x[0, 0] = torch.nan
    conv = BasisConv(3, 2, bases.Chebyshev(3))
    assert conv.plan(x, EDGES).order == "phi"
    assert conv(x, EDGES).isfinite().all(1).tolist() == [False, False, True, True]


@pytest.mark.parametrize("order", ["auto", "native", "a_first"])
def test_shifts_beyond_the_whole(order: str) -> None:
    for size, offset in ((1, 2), (1, -3), (2, 5)):
        conv = BasisConv(2, 2, bases.Shifts(None, [offset]), order=order)
        assert not conv(torch.randn(size, 2)).any()


def test_there_are_enough_examples() -> None:
    assert sum(EXAMPLES.values()) >= 2000
