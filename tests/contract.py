"""What every basis promises, as checks that raise. `test_contract` runs them; `test_bites` shows that they can fail."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

from pyg_basisconv import BasisConv, theta as thetas
from pyg_basisconv.bases import Basis, BoundBasis
from tests import oracle
from tests.oracle import Graph

DOUBLE = torch.float64
ORDERS = ("auto", "a_first", "theta_first", "phi")
PATHS = (*ORDERS, "message", "message/a_first")


class KernelOfAnyLength(thetas.Kernel):
    """A kernel along one axis, with as many taps as the basis has matrices."""

    def __init__(self, transposed: bool = False) -> None:
        super().__init__((1,), 2, transposed)

    def build(self, K: int, P: int, Q: int) -> thetas.Theta:
        self.size = (K,)
        return super().build(K, P, Q)


THETAS: dict[str, Callable[[], thetas.Theta]] = {
    "Full": thetas.Full,
    "Heads": thetas.Heads,
    "Heads(mean)": lambda: thetas.Heads("mean"),
    "Heads(bias)": lambda: thetas.Heads(bias=True),
    "Heads(shared)": lambda: thetas.Heads(bias=True, shared=True),
    "LowRank": lambda: thetas.LowRank(2),
    "LowRank(bias)": lambda: thetas.LowRank(1, bias=True),
    "Depthwise": thetas.Depthwise,
    "Depthwise(softmax)": lambda: thetas.Depthwise(shared=1, normalize="softmax"),
    "Pass": thetas.Pass,
    "Pass(scale)": lambda: thetas.Pass(scale=1 / 3),
    "Pass(concat)": lambda: thetas.Pass(combine="concat"),
    "Pass(split)": lambda: thetas.Pass(combine="split"),
    "Grouped": lambda: thetas.Grouped(2),
    "Kernel": KernelOfAnyLength,
    "Kernel(transposed)": lambda: KernelOfAnyLength(transposed=True),
    "Separable": lambda: thetas.Separable(2),
    "Separable(depthwise)": lambda: thetas.Separable(depthwise=True),
}
Matrices = Callable[[Graph], Tensor]


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10, what: str = "") -> None:
    """The same numbers, whatever the dtype of those that are expected."""
    same(actual, expected.to(actual.dtype), tolerance, what)


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-10, what: str = "") -> None:
    """The same numbers, in the same dtype."""
    if not near(actual, expected, tolerance):
        assert_close(actual, expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}" if what else m)


def near(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    """What `assert_close` says, without a word and five times as fast; False wherever it is not as simple."""
    plain = actual.layout == expected.layout == torch.strided and actual.device == expected.device
    same = plain and actual.shape == expected.shape and actual.dtype == expected.dtype
    return same and torch.allclose(actual, expected, rtol=tolerance, atol=tolerance)


def refused(argument: str, call: Callable[[], Any], longest: int = 400) -> None:
    """A call is refused in few words: the argument, or how it begins before `_`, what was expected, what came."""
    with pytest.raises(ValueError, match=rf"(?s)^{argument}.*: ") as caught:
        call()
    message = str(caught.value)
    assert re.match(r"^[\w.\[\]]+: ", message), "begins with the argument"
    assert len(message) < longest
    if not argument.startswith("order") or "expected" in message:
        assert re.search(r": expected .*, got .*; .+", message, re.DOTALL), "says what was expected, came, and the fix"
    if argument and not argument.endswith("_"):
        assert re.match(rf"^{argument}(\[\d\])?: ", message)


def tensors(g: Graph, dtype: torch.dtype = DOUBLE, device: str = "cpu") -> dict[str, Any]:
    """The graph as the keyword arguments of a call."""
    call: dict[str, Any] = {
        "edge_index": torch.tensor(g.edges, dtype=torch.long, device=device).reshape(-1, 2).t().contiguous()
    }
    if g.weight is not None:
        call["edge_weight"] = g.weight.to(device, dtype)
    if g.edge_attr is not None:
        call["edge_attr"] = g.edge_attr.to(device, dtype)
    if g.type is not None:
        call["edge_type"] = torch.tensor(g.type, dtype=torch.long, device=device)
    if g.batch is not None:
        call["batch"] = torch.tensor(g.batch, device=device)
    if g.lambda_max is not None:
        call["lambda_max"] = g.lambda_max.to(device) if isinstance(g.lambda_max, Tensor) else g.lambda_max
    return call


def bind(basis: Basis, g: Graph, **changes: Any) -> BoundBasis:
    return basis.bind(**{**tensors(g), "size": (g.M, g.N), "dtype": DOUBLE, **changes})


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(dtype)


def widths(kind: str, K: int, P: int = 3, Q: int = 2) -> tuple[int, int]:
    """P and Q that fit the kind: Heads get K columns each, Pass gets Q = P, two groups have even widths."""
    if kind in ("Pass", "Pass(scale)") or kind.startswith("Depthwise"):
        return P, P
    return {
        "Grouped": (P + P % 2, 2 * Q),
        "Kernel": (P + P % 2, 2 * Q),
        "Kernel(transposed)": (P + P % 2, 2 * Q),
        "Pass(concat)": (P, K * P),
        "Pass(split)": (K * Q, Q),
        "Heads": (P, K * Q),
        "Heads(bias)": (P, K * Q),
        "Heads(shared)": (P, K * Q),
    }.get(kind, (P, Q))


def make(
    basis: Basis, kind: str = "Full", path: str = "auto", P: int = 3, Q: int = 2, dtype: torch.dtype = DOUBLE, **kwargs
) -> BasisConv:
    """A layer that takes the path, with a drawn bias, and the widths that fit its parameter."""
    conv = BasisConv(*widths(kind, basis.K, P, Q), basis, THETAS[kind](), **kwargs)
    for seed, parameter in enumerate(conv.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed + 5)
    return take(conv.to(dtype), path)


def take(conv: BasisConv, path: str) -> BasisConv:
    conv.fuse = not path.startswith("message")
    conv.order = path.removeprefix("message/") if "/" in path else "auto" if path == "message" else path
    return conv


def layers(basis: Basis, kind: str = "Full", paths: Sequence[str] = PATHS, **kwargs) -> Iterator[tuple[str, BasisConv]]:
    """One layer, in turn on each path."""
    conv = make(basis, kind, **kwargs)
    for path in paths:
        yield path, take(conv, path)


def call(conv: BasisConv, x: Tensor, g: Graph, **changes: Any) -> Tensor:
    features: Any = x if g.M == g.N else (x, None)
    return conv(features, **{**tensors(g, conv_dtype(conv, x)), "size": (g.M, g.N), **changes})


def conv_dtype(conv: BasisConv, x: Tensor) -> torch.dtype:
    return x.dtype if conv.weight is None else conv.weight.dtype


def expected(conv: BasisConv, A: Tensor, x: Tensor, kind: str = "Full") -> Tensor:
    Theta = oracle.theta(kind, A.shape[0], conv.theta.P, conv.theta.Q, dict(conv.theta.named_parameters()))
    if Theta.shape[1] > x.shape[-1]:  # the values have a bias: x has a column of ones
        x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
    return oracle.apply(A, x, Theta, conv.bias)


def check_members(basis: Basis, g: Graph, matrices: Matrices) -> None:
    """expand, iterate, combine and each, of the family and of its transpose."""
    A = matrices(g)
    bound = bind(basis, g)
    assert bound.K == basis.K
    batches = ((), (2, 3), (0,))
    for b, a, leads in ((bound, A, batches), (bound.T, oracle.transpose(A), batches), (bound.T.T, A, batches[:1])):
        K, M, N = a.shape
        assert (b.K, b.M, b.N, b.dtype) == (K, M, N, DOUBLE)
        for batch in leads:
            x, z = draw(*batch, M, 3), draw(K, *batch, M, 2, seed=1)
            products = torch.einsum("kmn,...mp->k...np", a, x)
            close(b.expand(x), products)
            close(torch.stack(list(b.iterate(x))), products)
            one_by_one = torch.einsum("kmn,k...mq->k...nq", a, z)
            close(b.each(z), one_by_one)
            close(b.combine(z), one_by_one.sum(0))
            close(b.combine(list(z)), one_by_one.sum(0))
            if K > 1:
                missing = [None, *z[1:]]
                close(b.combine(missing), one_by_one[1:].sum(0))


def check_written_out(basis: Basis, g: Graph, matrices: Matrices) -> None:
    """edges, to_coo and to_dense."""
    A = matrices(g)
    bound = bind(basis, g)
    for b, a in ((bound, A), (bound.T, oracle.transpose(A))):
        kind, source, target, weight = b.edges()
        summed = torch.zeros(a.shape, dtype=DOUBLE)
        for k, m, n, w in zip(kind.tolist(), source.tolist(), target.tolist(), weight, strict=True):
            summed[k, m, n] += w
        close(summed, a)
        coo = b.to_coo()
        assert coo.is_coalesced()
        close(coo.to_dense(), a)
        close(b.to_dense(), a)
        close(b.explicit.expand(draw(a.shape[1], 2)), b.expand(draw(a.shape[1], 2)))


def check_adjoint(basis: Basis, g: Graph, matrices: Matrices) -> None:
    """<expand(x), z> = <x, T.combine(z)>, and the same for each."""
    bound = bind(basis, g)
    x, z = draw(bound.M, 3), draw(bound.K, bound.N, 3, seed=1)
    close((bound.expand(x) * z).sum(), (x * bound.T.combine(z)).sum())
    xs = draw(bound.K, bound.M, 3, seed=2)
    close((bound.each(xs) * z).sum(), (xs * bound.T.each(z)).sum())


def check_orders(basis: Basis, g: Graph, matrices: Matrices) -> None:
    """All orders and both paths are the formula."""
    conv = make(basis)
    A = matrices(g)  # of its parameters, if it has any
    for batch in ((), (2,)):
        x = draw(*batch, g.M, 3)
        reference = expected(conv, A, x)
        for path in PATHS:
            close(call(take(conv, path), x, g), reference)


def alike(found: Any, expected: Any, leaves: Mapping[Any, Tensor], tolerance: float = 1e-10) -> None:
    """The tensors in two results, and their gradients of all that may learn, by name."""
    results = [tree_leaves(result) for result in (found, expected)]
    gradients = []
    for result in results:
        pairs = [(y, draw(*y.shape, seed=i)) for i, y in enumerate(result) if y.requires_grad]
        whole = sum((y * down.to(y)).sum() for y, down in pairs)
        by = list(leaves.values())
        gradients.append(grad(whole, by, allow_unused=True, materialize_grads=True, retain_graph=True))
    for a, b in zip(*results, strict=True):
        assert_close(a, b, rtol=tolerance, atol=tolerance)
    for name, a, b in zip(leaves, *gradients, strict=True):
        assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"the gradient of {n}: {m}")


def check_gradients(
    basis: Basis,
    g: Graph,
    matrices: Matrices,
    kind: str = "Full",
    paths: Sequence[str] = PATHS,
    tolerance: float = 1e-10,
) -> None:
    """Of x, Theta, bias, edge_weight and lambda_max, by every path, as by the oracle."""
    conv = make(basis, kind)
    x = draw(2, g.M, conv.in_channels).requires_grad_()
    leaves, inner = {"x": x, **dict(conv.named_parameters())}, g
    if g.weight is not None:
        leaves["edge_weight"] = g.weight.clone().requires_grad_()
        inner = inner.but(weight=leaves["edge_weight"])
    if g.edge_attr is not None:
        leaves["edge_attr"] = g.edge_attr.clone().requires_grad_()
        inner = inner.but(edge_attr=leaves["edge_attr"])
    if isinstance(g.lambda_max, Tensor):
        leaves["lambda_max"] = g.lambda_max.clone().requires_grad_()
        inner = inner.but(lambda_max=leaves["lambda_max"])
    reference = expected(conv, matrices(inner), x, kind)
    down = draw(*reference.shape, seed=3)

    def gradients(y: Tensor) -> tuple[Tensor, ...]:
        return grad(y, list(leaves.values()), down, allow_unused=True, materialize_grads=True)

    theirs = gradients(reference)
    for path in paths:
        y = call(take(conv, path), x, inner)
        close(y, reference, tolerance)
        for name, a, b in zip(leaves, gradients(y), theirs, strict=True):
            assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda m, n=name, p=path: f"{n} by {p}, {kind}: {m}")


def check_thetas(basis: Basis, g: Graph, matrices: Matrices, kinds: Iterable[str] = THETAS) -> None:
    """Values and gradients of kinds of parameter."""
    for kind in kinds:
        check_gradients(basis, g, matrices, kind, PATHS[:-1])


def check_permutation(basis: Basis, g: Graph, matrices: Matrices) -> None:
    """Renaming the nodes renames the results."""
    generator = torch.Generator().manual_seed(4)
    rename_in = torch.randperm(g.M, generator=generator)
    rename_out = rename_in if g.M == g.N else torch.randperm(g.N, generator=generator)
    if g.M != g.N and bind(basis, g).N == g.M:
        rename_result = rename_in
    else:
        rename_result = rename_out
    renamed = g.but(edges=[(int(rename_in[m]), int(rename_out[n])) for m, n in g.edges])
    if g.batch is not None:
        batch = torch.empty(g.M, dtype=torch.long)
        batch[rename_in] = torch.tensor(g.batch)
        renamed = renamed.but(batch=batch.tolist())
    for _, conv in layers(basis):
        x = draw(g.M, 3)
        moved = torch.empty_like(x)
        moved[rename_in] = x
        close(call(conv, moved, renamed)[rename_result], call(conv, x, g))


def layouts(g: Graph) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same graph in every layout that can say it."""
    plain = tensors(g)
    edge_index, weight, size = plain["edge_index"], plain.get("edge_weight"), (g.M, g.N)
    yield "int32", plain | {"edge_index": edge_index.int()}
    yield "strided", plain | {"edge_index": edge_index.t().contiguous().t()}
    kept = EdgeIndex(edge_index, sparse_size=size)
    yield "EdgeIndex", plain | {"edge_index": kept}
    yield "EdgeIndex-unsized", plain | {"edge_index": EdgeIndex(edge_index)}
    for order in ("row", "col"):
        found = kept.sort_by(order, stable=True)
        arranged = {k: plain[k][found.indices] for k in ("edge_weight", "edge_type", "edge_attr") if k in plain}
        yield f"EdgeIndex-by-{order}", plain | arranged | {"edge_index": found.values}
    if g.type is not None or g.edge_attr is not None or (weight is not None and weight.dim() == 2):
        return
    values = torch.ones(g.E, dtype=DOUBLE) if weight is None else weight
    rest = {k: v for k, v in plain.items() if k not in ("edge_index", "edge_weight")}
    coo = torch.sparse_coo_tensor(edge_index.flip(0), values, (g.N, g.M), is_coalesced=False)
    yield "COO", rest | {"edge_index": coo}
    # Compressed by hand, so that repeated entries stay apart as they may.
    for name, group, make_it in (("CSR", 1, torch.sparse_csr_tensor), ("CSC", 0, torch.sparse_csc_tensor)):
        order = torch.sort(edge_index[group], stable=True).indices
        counts = torch.bincount(edge_index[group], minlength=size[group])
        ptr = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        with_repeats = make_it(ptr, edge_index[1 - group][order], values[order], (g.N, g.M), check_invariants=False)
        yield name, rest | {"edge_index": with_repeats}
    if SparseTensor.__module__.startswith("torch_sparse"):
        order = torch.sort(
            edge_index[1] * g.M + edge_index[0], stable=True
        ).indices  # its own leaves repeats in any order
        row, col = edge_index.flip(0)[:, order]
        adj = SparseTensor(row=row, col=col, value=values[order], sparse_sizes=(g.N, g.M))
        yield "SparseTensor", rest | {"edge_index": adj}


def check_layouts(basis: Basis, g: Graph, matrices: Matrices) -> None:
    """The layout of the graph makes no difference."""
    x, conv = draw(g.M, 3), make(basis)
    A = matrices(g)
    for name, arguments in layouts(g):
        features: Any = x if g.M == g.N else (x, None)
        y = conv(features, **arguments, size=(g.M, g.N))
        assert_close(y, expected(conv, A, x), rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
    turned = tensors(g)
    turned["edge_index"] = turned["edge_index"].flip(0)
    for path in ("auto", "message"):
        conv = make(basis, path=path, flow="target_to_source")
        close(call(conv, x, g, **turned), expected(conv, A, x))


def check_strides(basis: Basis, g: Graph, matrices: Matrices) -> None:
    """x may be any view."""
    views = {
        "transposed": draw(3, g.M).t(),
        "sliced": draw(2, g.M * 2, 6)[:, ::2, ::2],
        "expanded": draw(1, 3).expand(2, g.M, 3),
        "moved": draw(g.M, 2, 3).movedim(0, 1),
    }
    conv = make(basis)
    A = matrices(g).detach()
    for x in views.values():
        again = x.contiguous().detach().requires_grad_()
        reference = expected(conv, A, again)
        (gradient,) = grad(reference.sum(), again)
        for path in PATHS:
            close(call(take(conv, path), x, g), reference)
            leaf = x.detach().requires_grad_()
            close(*grad(call(conv, leaf, g).sum(), leaf), gradient)


def check_sparse_features(basis: Basis, g: Graph, matrices: Matrices, kinds: Iterable[str] = THETAS) -> None:
    """Sparse x is dense x, forward and backward."""
    A = matrices(g)
    for path in ("auto", "message"):
        for kind in kinds if path == "auto" else ("Full",):
            conv = make(basis, kind, path, P=6)
            P = conv.in_channels
            dense = draw(g.M, P) * (draw(g.M, P, seed=1) > 0)
            coo = dense.to_sparse_coo()
            doubled = torch.sparse_coo_tensor(coo.indices().repeat(1, 2), coo.values().repeat(2) / 2, dense.shape)
            forms = {"csr": dense.to_sparse_csr(), "csc": dense.to_sparse_csc(), "coo": coo, "repeated": doubled}
            for name, sparse in forms.items():
                x = sparse.detach().clone()
                learnt = name in ("coo", "repeated") and not kind.startswith("Pass")
                x.requires_grad_(learnt)
                y = call(conv, x, g)
                reference = expected(conv, A, dense, kind)
                close(y, reference)
                inputs = [*conv.parameters()]
                for a, b in zip(grad(y.sum(), inputs, retain_graph=True), grad(reference.sum(), inputs), strict=True):
                    close(a, b)
                if learnt:
                    (mine,) = grad(y.square().sum(), x)
                    leaf = dense.clone().requires_grad_()
                    (theirs,) = grad(expected(conv, A, leaf, kind).square().sum(), leaf)
                    mask = dense != 0
                    close(mine.to_dense()[mask], theirs[mask])


def check_precision(basis: Basis, g: Graph, matrices: Matrices, turn: int | None = None) -> None:
    """float32, bfloat16 and float16 come out as they went in, near the oracle; with a turn, each by some paths."""
    tolerances = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
    for i, (dtype, tolerance) in enumerate(tolerances.items()):
        paths = PATHS if turn is None else PATHS[(i + turn) % 3 :: 3]
        conv = make(basis, dtype=dtype)
        A = matrices(g).detach()
        x = draw(2, g.M, 3).to(dtype).requires_grad_()
        inputs = [x, conv.weight, conv.bias]
        reference = expected(conv, A, x)
        theirs = [reference, *grad(reference.sum(), inputs)]
        # Terms may cancel: errors are measured against the sum of the sizes of the terms.
        sizes = [t.detach().double().abs().requires_grad_() for t in inputs]
        total = oracle.apply(A.abs(), *sizes)
        scales = [total, *grad(total.sum(), sizes)]
        for path in paths:
            y = call(take(conv, path), x, g)
            for a, b, scale in zip([y, *grad(y.sum(), inputs)], theirs, scales, strict=True):
                assert a.dtype == dtype
                bound = tolerance * (float(scale.detach().max()) if scale.numel() else 1.0)
                assert_close(a.double(), b.double(), rtol=tolerance, atol=bound)


def check_determinism(basis: Basis, g: Graph, matrices: Matrices) -> None:
    """Two runs, and a run on a graph that was bound anew, give the same bits."""
    for _, conv in layers(basis, paths=ORDERS, dtype=torch.float32):
        results = []
        for _ in range(2):
            x = draw(2, g.M, 3, dtype=torch.float32).requires_grad_()
            weights = None if g.weight is None else g.weight.float().requires_grad_()
            y = call(conv, x, g, **({} if weights is None else {"edge_weight": weights}))
            leaves = [x, *conv.parameters(), *([] if weights is None else [weights])]
            gradients = grad(y.square().sum(), leaves, allow_unused=True, materialize_grads=True)
            results.append((y, *gradients))
        assert_close(results[0], results[1], rtol=0, atol=0)


def check_freshness(basis: Basis, g: Graph, matrices: Matrices, orders: Sequence[str] = ORDERS) -> None:
    """What changes in place, or is another tensor of the same shape, is seen."""
    for _, conv in layers(basis, paths=orders, cached=True):
        x, arguments = draw(g.M, 3), tensors(g)
        close(call(conv, x, g, **arguments), expected(conv, matrices(g), x))
        x.mul_(2)
        close(call(conv, x, g, **arguments), expected(conv, matrices(g), x))
        now = g
        if g.weight is not None:
            arguments["edge_weight"].mul_(torch.linspace(0.5, 1.5, g.E).view(-1, *[1] * (g.weight.dim() - 1)))
            now = now.but(weight=arguments["edge_weight"].clone())
            close(call(conv, x, now, **arguments), expected(conv, matrices(now), x))
        if g.edge_attr is not None:
            arguments["edge_attr"].mul_(0.75)
            now = now.but(edge_attr=arguments["edge_attr"].clone())
            close(call(conv, x, now, **arguments), expected(conv, matrices(now), x))
        if g.E and g.batch is None:
            arguments["edge_index"][0].copy_(arguments["edge_index"][0].roll(1))
            sources = arguments["edge_index"][0].tolist()
            now = now.but(edges=[(m, n) for m, (_, n) in zip(sources, now.edges, strict=True)])
            close(call(conv, x, now, **arguments), expected(conv, matrices(now), x))
        if g.type is not None and g.E:
            arguments["edge_type"].copy_(arguments["edge_type"].roll(1))
            now = now.but(type=arguments["edge_type"].tolist())
            close(call(conv, x, now, **arguments), expected(conv, matrices(now), x))


def check_inference(basis: Basis, g: Graph, matrices: Matrices) -> None:
    """A first call in inference mode, or without gradients, leaves nothing behind that hurts training."""
    for guard in (torch.inference_mode, torch.no_grad):
        conv, leaf = make(basis, cached=True), draw(g.M, 3).requires_grad_()
        A, parameters = matrices(g), list(conv.parameters())
        reference = expected(conv, A, leaf)
        gradients = grad(reference.sum(), parameters, retain_graph=True)
        (of_x,) = grad(reference.square().sum(), leaf)
        for path in PATHS[1:-1]:
            take(conv, path)
            x, arguments = draw(g.M, 3), tensors(g)
            bound = bind(basis, g)
            with guard():
                first = call(conv, x, g, **arguments)
                if not path.startswith("message"):
                    conv(x if g.M == g.N else (x, None), bound)
            assert not first.requires_grad
            close(first, reference.detach())
            for y in (call(conv, x, g, **arguments), conv(x if g.M == g.N else (x, None), bound)):
                close(y, reference)
                for a, b in zip(grad(y.sum(), parameters), gradients, strict=True):
                    close(a, b)
            close(grad(call(conv, leaf, g).square().sum(), leaf)[0], of_x)


CHECKS: dict[str, Callable[..., None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
