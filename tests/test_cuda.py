"""The contract on a GPU."""

import pytest
import torch
from torch.autograd import grad
from torch.testing import assert_close

from pyg_basisconv import BasisConv, bases
from tests import oracle
from tests.cases import CASES, Case
from tests.contract import DOUBLE, ORDERS, call, draw, expected, layers, tensors

pytestmark = pytest.mark.cuda

NAMES = [
    "GCN-random",
    "Adjacency(mean)-M>N",
    "Adjacency(rw)-none",
    "Edges(1)-no-node",
    "Edges(3)-typed",
    "Edges(3)-shared",
    "Chebyshev(4)-random",
    "Chebyshev(4)-lambda-per-graph",
    "Diffusion(3)-random",
    "Wavelets(3)-random",
    "Sum-random",
    "Product-random",
    "Product.T-random",
    "Mix-random",
]
TOLERANCE = {DOUBLE: 1e-10, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 5e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("c", [pytest.param(CASES[name], id=name) for name in NAMES])
def test_contract_on_device(c: Case, dtype: torch.dtype) -> None:
    """Every order and the message path, values and gradients, against the oracle on the CPU; the same bits twice."""
    g = c.graph()
    weight = None if g.weight is None else g.weight.to(dtype).requires_grad_()
    A = c.matrices(g if weight is None else g.but(weight=weight))
    for path, conv in layers(c.basis(), paths=(*ORDERS, "message"), dtype=dtype):
        x = draw(2, g.M, 3, dtype=dtype).requires_grad_()
        leaves = [x, *conv.parameters(), *([] if weight is None else [weight])]
        reference = expected(conv, A, x)
        theirs = grad(reference.square().sum(), leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        there = BasisConv.to(conv, "cuda")
        runs = []
        for _ in range(2):
            xd = x.detach().cuda().requires_grad_()
            arguments = tensors(g, dtype, "cuda")
            if weight is not None:
                arguments["edge_weight"] = weight.detach().cuda().requires_grad_()
            y = call(there, xd, g, **arguments)
            assert (y.dtype, y.device.type) == (dtype, "cuda")
            inputs = [xd, *there.parameters(), *([] if weight is None else [arguments["edge_weight"]])]
            runs.append([y, *grad(y.square().sum(), inputs, allow_unused=True, materialize_grads=True)])
        for a, b in zip(runs[0], [reference, *theirs], strict=True):
            scale = max(1.0, float(b.detach().abs().max())) if b.numel() else 1.0
            assert_close(a.cpu().double() / scale, b.double() / scale, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        if path != "message":
            assert_close(runs[0], runs[1], rtol=0, atol=0)
        conv.cpu()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_larger_graph(dtype: torch.dtype) -> None:
    """Widths on both sides of what the kernels tell apart, hubs, and empty rows; forward and backward, same bits."""
    M, E = 700, 9000
    edge_index = torch.randint(M // 2, (2, E))
    edge_index[1, : E // 3] = 0
    weight = (torch.rand(E) + 0.1).to(dtype)
    for P, Q in ((1, 1), (3, 40), (64, 7), (130, 130)):
        for order in ("a_first", "theta_first"):
            conv = BasisConv(P, Q, bases.Identity() + bases.Adjacency("rw"), order=order).to("cuda", dtype)
            x = torch.randn(M, P).to(dtype)
            wide = BasisConv(P, Q, conv.basis).double()
            wide.load_state_dict({k: v.double().cpu() for k, v in conv.state_dict().items()})
            results = []
            for _ in range(2):
                leaf, learnt = x.cuda().requires_grad_(), weight.cuda().requires_grad_()
                y = conv(leaf, edge_index.cuda(), learnt)
                results.append([y, *grad(y.square().mean(), [leaf, learnt, conv.weight])])
            assert_close(results[0], results[1], rtol=0, atol=0)
            leaf, learnt = x.double().requires_grad_(), weight.double().requires_grad_()
            y = wide(leaf, edge_index, learnt)
            reference = [y, *grad(y.square().mean(), [leaf, learnt, wide.weight])]
            for a, b in zip(results[0], reference, strict=True):
                scale = float(b.detach().abs().max())
                assert_close(a.cpu().double() / scale, b / scale, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_sparse_features_on_device() -> None:
    conv = BasisConv(20, 3, bases.Adjacency("mean")).cuda()
    edge_index = torch.randint(30, (2, 100)).cuda()
    x = torch.randn(30, 20).cuda() * (torch.rand(30, 20).cuda() > 0.7)
    y = conv(x, edge_index)
    for sparse in (x.to_sparse_csr(), x.to_sparse_csc(), x.to_sparse_coo()):
        assert_close(conv(sparse, edge_index), y, rtol=1e-4, atol=1e-4)


def test_degrees_are_looked_at_once() -> None:
    """Those of the first call with a graph; in later ones a negative degree gives NaN."""
    conv, edge_index, x = (
        BasisConv(3, 2, bases.GCN()).cuda(),
        torch.tensor([[0, 1], [1, 0]]).cuda(),
        torch.ones(2, 3).cuda(),
    )
    good, bad = (torch.tensor([1.0, w]).cuda().requires_grad_() for w in (1.0, -9.0))
    with pytest.raises(ValueError, match=r"^edge_weight: "):
        conv(x, edge_index.clone(), bad)
    assert conv(x, edge_index, good).isfinite().all()
    for later in (bad, bad.detach()):
        assert conv(x, edge_index, later).isnan().any()


def test_devices_are_not_mixed() -> None:
    edge_index, x = torch.tensor([[0], [1]]), torch.ones(2, 3)
    conv = BasisConv(3, 2, bases.Adjacency()).cuda()
    for arguments, name in (((x, edge_index.cuda()), "x"), ((x.cuda(), edge_index), "edge_index")):
        with pytest.raises(ValueError, match=f"^{name}: "):
            conv(*arguments)


def test_a_bound_basis_moves() -> None:
    c = CASES["Mix+Product-random"]
    g = c.graph()
    bound = c.basis().bind(**tensors(g, torch.float32), size=(g.M, g.N))
    x = draw(g.M, 2).float()
    assert_close(bound.to("cuda").expand(x.cuda()).cpu(), bound.expand(x), rtol=1e-4, atol=1e-4)


def test_autocast_on_device() -> None:
    g = CASES["Sum-random"].graph()
    for _, conv in layers(CASES["Sum-random"].basis(), dtype=torch.float32):
        conv.cuda()
        x = draw(g.M, 3).float()
        reference = oracle.apply(CASES["Sum-random"].matrices(g), x, conv.weight.cpu(), conv.bias.cpu())
        with torch.autocast("cuda", torch.bfloat16):
            y = call(conv, x.cuda(), g, **tensors(g, torch.float32, "cuda"))
        assert_close(y.cpu().double(), reference, rtol=5e-2, atol=5e-2)
