"""Bound bases of several graphs as one, and what is done to a bound basis: moved, copied, pickled."""

import copy
import io
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from pyg_basisconv import BasisConv, bases, mechanisms
from pyg_basisconv.bases import BoundBasis, EdgeList
from pyg_basisconv.bases.bound_walks import BoundWalks
from pyg_basisconv.bases.composition import Constants
from pyg_basisconv.bases.concat import BoundConcat
from pyg_basisconv.bases.identity import BoundIdentity
from pyg_basisconv.bases.mix import BoundMix
from pyg_basisconv.bases.polynomial import BoundPolynomial
from pyg_basisconv.bases.product import BoundProduct
from pyg_basisconv.batching import block_diagonal
from pyg_basisconv.typed_edges import SharedEdges
from tests.bases.test_properties import graphs
from tests.cases import CASES, CONSTANT
from tests.contract import DOUBLE, bind, close, draw, make

STRUCTURED = (BoundPolynomial, BoundConcat, BoundProduct, BoundMix, BoundWalks, BoundIdentity, SharedEdges)
# One of each class of basis, and of what it is made of: the last, with all the graphs that there are for it.
_BASES = {name: CASES[name].basis() for name in CONSTANT}
_PRINTED = {name: repr(basis) for name, basis in _BASES.items()}
_LAST = {repr([type(part) for part in basis.modules()]): _PRINTED[name] for name, basis in _BASES.items()}
FAMILIES = {basis: [name for name, printed in _PRINTED.items() if printed == basis] for basis in _LAST.values()}
_TRIVIAL = ("-none", "-no-node", "-one-node", "N=0", "M=0")
KINDS = [next(name for name in names if not name.endswith(_TRIVIAL)) for names in FAMILIES.values()]


def several(names: list[str]) -> tuple[list[BoundBasis], Tensor]:
    """Some families, and the matrices of their disjoint union."""
    cases = [CASES[name] for name in names]
    bounds = [bind(case.basis(), case.graph()) for case in cases]
    blocks = [case.matrices(case.graph()) for case in cases]
    return bounds, torch.stack([torch.block_diag(*members) for members in zip(*blocks, strict=True)])


def test_weights_that_learn_stay_in_the_graph_of_autograd() -> None:
    """Of features of edges; pickle and deepcopy take no such tensors, as of attention."""
    basis = bases.Gaussians(2, 3).double()
    edges = torch.tensor([[0, 1, 2], [1, 2, 2]])
    z = draw(3, 3).requires_grad_()
    one, two = (basis.bind(edges, size=3, dtype=DOUBLE, edge_attr=a) for a in (z, 2 * z))
    joined = block_diagonal([one, two])
    close(
        joined.to_dense(), torch.stack([torch.block_diag(*m) for m in zip(one.to_dense(), two.to_dense(), strict=True)])
    )
    joined.expand(draw(6, 2)).sum().backward()
    assert z.grad is not None
    assert basis.mean.grad is not None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sweep(10)
def test_the_members_of_a_batch_are_block_diagonal(family):
    names = FAMILIES[family]
    bounds, A = several(names + names[:1])
    joined = block_diagonal(bounds)
    K = A.shape[0]
    kinds = {type(bound) for bound in bounds}
    if len(kinds) == 1 and kinds <= {*STRUCTURED}:
        assert type(joined) in kinds
    for b, a in ((joined, A), (joined.T, A.transpose(1, 2))):
        assert (b.K, b.M, b.N, b.dtype, b.batch) == (K, *a.shape[1:], DOUBLE, ())
        x, z = draw(2, a.shape[1], 3), draw(K, 2, a.shape[1], 2, seed=1)
        close(b.expand(x), torch.einsum("kmn,bmp->kbnp", a, x))
        one_by_one = torch.einsum("kmn,kbmq->kbnq", a, z)
        close(b.each(z), one_by_one)
        close(b.combine(z), one_by_one.sum(0))
        close(b.to_coo().to_dense(), a)
    assert all(bound.to_dense().shape == (K, bound.M, bound.N) for bound in bounds)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sweep(10)
def test_a_layer_on_a_batch_is_the_layer_on_each(name):
    case = CASES[name]
    bounds = [bind(case.basis(), case.graph()) for _ in range(3)]
    xs = [draw(bound.M, 3, seed=seed) for seed, bound in enumerate(bounds)]
    conv = make(case.basis())
    square = bounds[0].M == bounds[0].N
    y = conv(torch.cat(xs) if square else (torch.cat(xs), None), block_diagonal(bounds))
    close(y, torch.cat([conv(x if square else (x, None), bound) for x, bound in zip(xs, bounds, strict=True)]))


@settings(max_examples=40)
@given(gs=st.lists(graphs(), min_size=1, max_size=4), K=st.integers(1, 3), ones=st.lists(st.booleans(), min_size=4))
def test_typed_edges_of_any_graphs(gs, K, ones):
    """Some weighted and some not, empty, bipartite."""
    gs = [
        g.but(type=[(7 * e + 1) % K for e in range(g.E)], weight=None if one else g.weight)
        for g, one in zip(gs, ones, strict=False)
    ]
    bounds = [bind(bases.Edges(K), g) for g in gs]
    blocks = [bound.to_coo().to_dense() for bound in bounds]
    expected = torch.stack([torch.block_diag(*members) for members in zip(*blocks, strict=True)])
    close(block_diagonal(bounds).to_dense(), expected)


@pytest.mark.parametrize(
    "name", ["Adjacency(sym)-random", "Chebyshev(4)-random", "Product-random", "Edges(3)-shared", "Walks(row)-steps"]
)
def test_weights_learn_through_a_batch(name):
    case = CASES[name]
    weights = [case.graph().weight.clone().requires_grad_() for _ in range(2)]
    bounds = [bind(case.basis(), case.graph(), edge_weight=weight) for weight in weights]
    x = draw(2 * bounds[0].M, 3)
    y = block_diagonal(bounds).expand(x)
    down = draw(*y.shape, seed=1)
    mine = torch.autograd.grad((y * down).sum(), weights, retain_graph=True)
    apart = torch.cat([bound.expand(part) for bound, part in zip(bounds, x.chunk(2), strict=True)], -2)
    theirs = torch.autograd.grad((apart * down).sum(), weights)
    for a, b in zip(mine, theirs, strict=True):
        close(a, b)


def test_of_what_differs_it_is_written_out():
    """Families of one K, of different kinds: any will do."""
    g = CASES["Edges(3)-typed"].graph()
    kinds = [
        bases.Chebyshev(3),
        bases.Powers(3),
        bases.Edges(3),
        bases.Identity() + bases.Diffusion(1),
        bases.Shifts(None, [0, 1, 2]),
        bases.Window(None, 3, padding=1),
    ]
    bounds = [bind(basis, g if basis.reads_types else replace(g, type=None)) for basis in kinds]
    blocks = [bound.to_coo().to_dense() for bound in bounds]
    expected = torch.stack([torch.block_diag(*members) for members in zip(*blocks, strict=True)])
    close(block_diagonal(bounds).to_dense(), expected)
    assert isinstance(block_diagonal(bounds[:1]), BoundPolynomial)


def test_each_graph_keeps_its_own_scale():
    """As a layer does that is given lambda_max for each graph of a batch."""
    g = CASES["Chebyshev(4)-lambda-per-graph"].graph()
    cut = g.batch.count(0)
    inside = [e for e, (m, _) in enumerate(g.edges) if m < cut]
    other = [e for e in range(g.E) if e not in inside]
    first = g.but(M=cut, N=cut, edges=[g.edges[e] for e in inside], weight=g.weight[inside])
    second = g.but(
        M=g.M - cut,
        N=g.N - cut,
        edges=[(g.edges[e][0] - cut, g.edges[e][1] - cut) for e in other],
        weight=g.weight[other],
    )
    bounds = [
        bind(bases.Chebyshev(4), one.but(batch=None, lambda_max=float(scale)))
        for one, scale in zip((first, second), g.lambda_max, strict=True)
    ]
    close(block_diagonal(bounds).to_dense(), bind(bases.Chebyshev(4), g).to_dense())


def test_what_is_joined_in_inference_mode_can_train():
    bounds, A = several(["Chebyshev(4)-random"] * 2)
    with torch.inference_mode():
        joined = block_diagonal(bounds)
    x = draw(A.shape[1], 2).requires_grad_()
    close(torch.autograd.grad(joined.expand(x).sum(), x)[0], A.sum((0, 2))[:, None].expand(-1, 2))


def attended(*batch: int) -> tuple[Tensor, BoundBasis]:
    conv = BasisConv(4, 4, bases.Attention(2, mechanisms.Dot(3), bases.Adjacency(self_loops=True))).double()
    g = CASES["Adjacency-random"].graph()
    with torch.no_grad():
        _, A = conv(draw(*batch, g.M, 4), torch.tensor(g.edges).t(), return_attention=True)
    return A.to_dense(), A


def test_weights_of_attention():
    """Of one graph they are numbers like others; of a batch of features there is no block-diagonal family."""
    dense, A = attended()
    expected = torch.stack([torch.block_diag(one, one) for one in dense])
    close(block_diagonal([A, A]).to_dense(), expected)
    with pytest.raises(ValueError, match=r"bounds: expected families of one graph each, got one of a batch .* \(2,\)"):
        block_diagonal([attended(2)[1]] * 2)


@pytest.mark.parametrize(
    ("make_it", "said"),
    [
        (lambda: block_diagonal([]), "bounds: expected a list of bound bases"),
        (
            lambda: block_diagonal(bases.Identity().bind(size=2)),
            "bounds: expected a list of bound bases, .* BoundIdent",
        ),
        (lambda: block_diagonal([bases.Identity()]), "bounds: expected a list of bound bases, .*got .'Identity'"),
        (
            lambda: block_diagonal([bases.Powers(k).bind(torch.ones(2, 1).long()) for k in (2, 3)]),
            "bounds: expected families of one K, got 2, 3",
        ),
        (
            lambda: block_diagonal([bases.Identity().bind(size=2, dtype=t) for t in (torch.float32, DOUBLE)]),
            "bounds: expected families of one dtype",
        ),
        (
            lambda: block_diagonal([bases.Identity().bind(size=2), bases.Identity().bind(size=2).to("meta")]),
            "bounds: expected families of one device, got cpu, meta",
        ),
    ],
    ids=["none", "no list", "not bound", "K", "dtype", "device"],
)
def test_bad_input_is_named(make_it, said):
    with pytest.raises(ValueError, match="^" + said):
        make_it()


# Moved, copied, pickled.


def use(bound: BoundBasis) -> Tensor:
    """Everything that is kept of a use."""
    x = draw(bound.M, 2)
    bound.to_dense(), bound.work("expand"), bound.compact("target"), bound.compact("source"), bound.expansions(x)
    bound.T.expand(draw(bound.N, 2)), bound.explicit.to_coo(), bound.native(make(bases.Identity()).theta, 3)
    leaf = x.clone().requires_grad_()
    bound.expand(leaf).sum().backward()
    return bound.to_dense()


def through_a_file(bound: BoundBasis) -> BoundBasis:
    stream = io.BytesIO()
    torch.save(bound, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


WAYS = {"pickled": lambda b: pickle.loads(pickle.dumps(b)), "deep-copied": copy.deepcopy, "saved": through_a_file}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sweep(10)
def test_a_copy_is_the_same_and_carries_nothing_else(name):
    bound = bind(CASES[name].basis(), CASES[name].graph())
    size = len(pickle.dumps(bound))
    copies = [way(bound) for way in WAYS.values()]
    dense = use(bound)
    assert len(pickle.dumps(bound)) == size
    copies += [way(bound) for way in WAYS.values()]
    for other in copies:
        assert type(other) is type(bound)
        assert (other.K, other.M, other.N, other.dtype) == (bound.K, bound.M, bound.N, bound.dtype)
        close(other.to_dense(), dense)


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("name", ["Chebyshev(4)-random", "Window(sites)-random", "Walks-steps", "Edges(3)-shared"])
def test_all_protocols(name, protocol):
    bound = bind(CASES[name].basis(), CASES[name].graph())
    close(pickle.loads(pickle.dumps(bound, protocol)).to_dense(), bound.to_dense())


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
def test_attention_is_copied_as_the_weights_that_it_came_to(batch):
    dense, A = attended(*batch)
    for way in WAYS.values():
        other = way(A)
        assert (other.K, other.M, other.N, other.batch) == (A.K, A.M, A.N, A.batch)
        close(other.to_dense(), dense)
        close(way(other).to_dense(), dense)


class Own(BoundBasis):
    """A kind that gives its edges alone."""

    def __init__(self, N: int) -> None:
        self.K, self.M, self.N, self.dtype, self.device = 1, N, N, DOUBLE, torch.device("cpu")

    def edges(self) -> EdgeList:
        nodes = torch.arange(self.N)
        return EdgeList(torch.zeros_like(nodes), nodes, nodes.flip(0), torch.ones(self.N, dtype=DOUBLE))


def test_a_kind_of_ones_own():
    assert torch.equal(block_diagonal([Own(2), Own(3)]).to_dense()[0, 2:, 2:], torch.eye(3, dtype=DOUBLE).flip(0))
    for way in WAYS.values():
        assert torch.equal(way(Own(3)).to_dense(), Own(3).to_dense())
    assert Own(3).to("meta").device.type == "meta"


def tensors_of(thing: object, seen: set[int]) -> list[Tensor]:
    """All tensors that a thing holds."""
    if isinstance(thing, Tensor):
        return [thing]
    if id(thing) in seen:
        return []
    seen.add(id(thing))
    inner = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else ()
    inner = [*inner, *vars(thing).values()] if hasattr(thing, "__dict__") and not isinstance(thing, type) else inner
    return [t for part in inner for t in tensors_of(part, seen)]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sweep(
    12, "Walks(binary,sym)-steps-ones", "Window(sites)-random", "Resampling(corners)-random", "Group(C2,window)-random"
)
def test_moved_nothing_stays_behind(name):
    check_moved(bind(CASES[name].basis(), CASES[name].graph()))


COMPOSITIONS = {
    "product": bases.Composition(bases.Adjacency("rw"), bases.Adjacency(), Constants(True, True, True)),
    "polynomial": bases.Composition(bases.Powers(2), bases.Powers(2), Constants(shift=True), bases.Powers(3)),
}


@pytest.mark.parametrize("kind", COMPOSITIONS)
def test_constants_move_with_their_family(kind):
    bound = bind(COMPOSITIONS[kind], CASES["Adjacency-random"].graph())
    close(bound.cpu().constant_weights, bound.constant_weights)
    check_moved(bound)


def check_moved(bound: BoundBasis) -> None:
    """As PyG moves what is an attribute of data."""
    use(bound)
    data = Data(bound=bound, both=[bound, {"T": bound.T}]).to(torch.device("meta"))
    for moved in (data.bound, data.both[0], data.both[1]["T"]):
        assert moved.device.type == "meta"
        assert all(t.is_meta for t in tensors_of(moved, set()))
    assert bound.cpu().to_dense().equal(bound.to_dense())
    assert Data(bound=bound).cpu().bound.device.type == "cpu"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_in_the_workers_of_a_loader():
    data = []
    for name in ("Chebyshev(4)-random", "Chebyshev(4)-ones", "Chebyshev(4)-one-node"):
        case = CASES[name]
        data.append(Data(x=draw(case.graph().M, 3), bound=bind(case.basis(), case.graph())))
    expected = [make(bases.Chebyshev(4))(one.x, one.bound) for one in data]
    for workers in (0, 1):
        kwargs = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
        batch = next(iter(DataLoader(data, batch_size=3, **kwargs)))
        close(make(bases.Chebyshev(4))(batch.x, block_diagonal(batch.bound)), torch.cat(expected))
        close(batch[1].bound.to_dense(), data[1].bound.to_dense())
