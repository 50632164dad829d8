"""What every result is compared with: dense matrices from the definitions, in float64, by plain loops.

Nothing here comes from the library. `apply` takes the association that the library never takes for large inputs:
the operator A o Theta is built, entry by entry of its definition, and then applied to x.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor


@dataclass
class Graph:
    """E edges m -> n as a list of pairs, with the tensors that a call may add."""

    M: int
    N: int
    edges: list[tuple[int, int]]
    weight: Tensor | None = None  # (E,) or (E, K)
    type: list[int] | None = None
    batch: list[int] | None = None
    lambda_max: Tensor | float | None = None
    edge_attr: Tensor | None = None  # (E, D)

    @property
    def E(self) -> int:
        return len(self.edges)

    @property
    def weights(self) -> Tensor:
        return torch.ones(self.E, dtype=torch.float64) if self.weight is None else self.weight

    def but(self, **changes) -> "Graph":
        return replace(self, **changes)

    @property
    def turned(self) -> "Graph":
        return self.but(M=self.N, N=self.M, edges=[(n, m) for m, n in self.edges])


def entry(M: int, N: int, m: int, n: int) -> Tensor:
    unit = torch.zeros(M, N, dtype=torch.float64)
    unit[m, n] = 1
    return unit


def matrix(M: int, N: int, edges: list[tuple[int, int]], weight: Tensor) -> Tensor:
    """W[m, n] = the sum of the weights of the edges m -> n."""
    W = torch.zeros(M, N, dtype=torch.float64)
    for e, (m, n) in enumerate(edges):
        W = W + weight[e].double() * entry(M, N, m, n)
    return W


def power(values: Tensor, exponent: float) -> Tensor:
    """values ** exponent; what would divide by zero is zero."""
    zero = torch.zeros((), dtype=torch.float64)
    powers = [zero if not v.detach() else v**exponent for v in values]
    return torch.stack(powers) if powers else torch.zeros(0, dtype=torch.float64)


def edges(g: Graph, K: int) -> Tensor:
    if g.weight is not None and g.weight.dim() == 2:
        return torch.stack([matrix(g.M, g.N, g.edges, g.weight[:, k]) for k in range(K)])
    members = []
    for k in range(K):
        mine = [e for e in range(g.E) if g.type is None or g.type[e] == k]
        members.append(matrix(g.M, g.N, [g.edges[e] for e in mine], g.weights[mine]))
    return torch.stack(members)


def functions(g: Graph, K: int, value: Callable[[int, Tensor], Tensor], norm: str | None = None) -> Tensor:
    """A[k, m, n] = the sum of value(k, features) over the edges m -> n, times their weights; or over all into n."""
    degree = [sum(n == one for _, n in g.edges) for one in range(g.N)]
    share = torch.tensor([1 / degree[n] if norm == "mean" else 1.0 for _, n in g.edges], dtype=torch.float64)
    weights = g.weights * share
    rows = [torch.stack([value(k, z) for z in g.edge_attr]) if g.E else weights for k in range(K)]
    return torch.stack([matrix(g.M, g.N, g.edges, weights * row) for row in rows])


def splines(sizes: list[int], degree: int, is_open: list[bool]) -> Callable[[int, Tensor], Tensor]:
    """The product of the splines of each axis, by the recursion of Cox and de Boor on uniform knots."""

    def b_spline(order: int, t: Tensor) -> Tensor:
        """The spline of this degree on the knots 0, 1, ..., order + 1."""
        if order == 0:
            return torch.ones_like(t) if 0 <= t < 1 else torch.zeros_like(t)
        return (t * b_spline(order - 1, t) + (order + 1 - t) * b_spline(order - 1, t - 1)) / order

    def value(k: int, z: Tensor) -> Tensor:
        product = torch.ones((), dtype=torch.float64)
        for d, size in enumerate(sizes):
            k, one = divmod(k, size)
            v = z[d].double() * (size - degree if is_open[d] else size)
            copies = [b_spline(degree, v - one + degree + around * size) for around in range(-degree - 2, degree + 3)]
            product = product * sum(copies)
        return product

    return value


def gaussians(mean: Tensor, width: Tensor) -> Callable[[int, Tensor], Tensor]:
    def value(k: int, z: Tensor) -> Tensor:
        terms = [(z[d].double() - mean[k, d]) ** 2 / (1e-15 + width[k, d] ** 2) for d in range(len(z))]
        return torch.exp(-sum(terms) / 2)

    return value


def hidden_units(weight: Tensor, bias: Tensor) -> Callable[[int, Tensor], Tensor]:
    """tanh of an affine map, and 1 after the last of its units."""

    def value(k: int, z: Tensor) -> Tensor:
        if k == len(weight):
            return torch.ones((), dtype=torch.float64)
        return torch.tanh(sum(weight[k, d] * z[d].double() for d in range(len(z))) + bias[k])

    return value


def influences(points: list[list[float]], extent: float, kind: str) -> Callable[[int, Tensor], Tensor]:
    def value(k: int, z: Tensor) -> Tensor:
        square = sum((z[d].double() - points[k][d]) ** 2 for d in range(len(z)))
        if kind == "gaussian":
            return torch.exp(-square / (2 * extent**2))
        near = 1 - (square.sqrt() if square > 0 else 0 * square) / extent
        return near if near > 0 else 0 * near

    return value


def identity(g: Graph) -> Tensor:
    A = torch.zeros(1, g.M, g.N, dtype=torch.float64)
    for n in range(min(g.M, g.N)):
        A[0, n, n] = 1
    return A


def _loops(g: Graph, fill: float, existing: str) -> Graph:
    """The graph with one more loop per node, after `keep`, `add` or `replace`."""
    plain = [e for e, (m, n) in enumerate(g.edges) if m != n]
    pairs, weights = [g.edges[e] for e in plain], [g.weights[e].double() for e in plain]
    for node in range(g.N):
        there = [g.weights[e].double() for e, (m, n) in enumerate(g.edges) if m == n == node]
        loop = torch.tensor(fill, dtype=torch.float64)
        if there and existing == "keep":
            loop = there[-1]
        if there and existing == "add":
            loop = loop + sum(there)
        pairs.append((node, node))
        weights.append(loop)
    return g.but(edges=pairs, weight=torch.stack(weights) if weights else torch.zeros(0, dtype=torch.float64))


def adjacency(g: Graph, norm=None, self_loops=False, existing="keep", diagonal=0.0) -> Tensor:
    if self_loops is not False:
        g = _loops(g, float(self_loops), existing)
    W = matrix(g.M, g.N, g.edges, g.weights)
    if norm == "sym":
        root = power(W.sum(0), -0.5)
        W = root[:, None] * W * root[None, :]
    elif norm == "mean":
        into = torch.tensor([float(sum(n == node for _, n in g.edges)) for node in range(g.N)], dtype=torch.float64)
        W = W * power(into, -1.0)[None, :]
    elif norm == "rw":
        W = power(W.sum(1), -1.0)[:, None] * W
    if diagonal:
        W = W + diagonal * torch.diag(torch.diagonal(W))
    return W[None]


def degree(g: Graph) -> Tensor:
    W = matrix(g.M, g.N, g.edges, g.weights)
    return torch.diag(W.sum(0))[None]


def laplacian(g: Graph, norm=None) -> Tensor:
    plain = [e for e, (m, n) in enumerate(g.edges) if m != n]
    W = matrix(g.M, g.N, [g.edges[e] for e in plain], g.weights[plain])
    d, eye = W.sum(1), torch.eye(g.M, dtype=torch.float64)
    if norm is None:
        return (torch.diag(d) - W)[None]
    if norm == "sym":
        root = power(d, -0.5)
        return (eye - root[:, None] * W * root[None, :])[None]
    return (eye - power(d, -1.0)[:, None] * W)[None]


def powers(S: Tensor, K: int) -> Tensor:
    members = [torch.eye(S.shape[-1], dtype=torch.float64)]
    for _ in range(K - 1):
        members.append(members[-1] @ S[0])
    return torch.stack(members)


def diffusion(g: Graph, K: int, direction: str = "both") -> Tensor:
    out, back = (powers(adjacency(h, "rw"), K) for h in (g, g.turned))
    return {"out": out, "in": back, "both": torch.cat([out, back])}[direction]


def chebyshev(g: Graph, K: int, norm="sym", lambda_max=None) -> Tensor:
    L = laplacian(g, norm)[0]
    given = lambda_max if g.lambda_max is None else g.lambda_max
    if given is None:
        given = 2 * L.max() if g.M and L.detach().max() else 1.0
    given = torch.as_tensor(given, dtype=torch.float64)
    if given.numel() > 1:
        given = torch.stack([given[b] for b in g.batch])[:, None]
    eye = torch.eye(g.M, dtype=torch.float64)
    scaled = 2 * L / given - eye
    members = [eye, scaled]
    while len(members) < K:
        members.append(2 * scaled @ members[-1] - members[-2])
    return torch.stack(members[:K])


def wavelets(S: Tensor, J: int, low_pass: bool = True) -> Tensor:
    """psi_0 = I - T, psi_j = T^(2^(j-1)) - T^(2^j), and T^(2^(J-1)), with T = (I + S) / 2, power after power."""
    powers = [torch.eye(S.shape[-1], dtype=torch.float64)]
    while len(powers) <= 2 ** (J - 1):
        powers.append(powers[-1] @ (powers[0] + S[0]) / 2)
    scales = [0, *(2**j for j in range(J))]
    members = [powers[a] - powers[b] for a, b in pairwise(scales)]
    return torch.stack(members + [powers[-1]] * low_pass)


def shifts(g: Graph, offsets: list[int]) -> Tensor:
    A = torch.zeros(len(offsets), g.M, g.N, dtype=torch.float64)
    for k, d in enumerate(offsets):
        for m in range(g.M):
            for n in range(g.N):
                if n - m == d:
                    A[k, m, n] = 1
    return A


def complete(g: Graph) -> Tensor:
    A = torch.ones(1, g.M, g.N, dtype=torch.float64)
    for m in range(g.M if g.batch else 0):
        for n in range(g.N):
            if g.batch[m] != g.batch[n]:
                A[0, m, n] = 0
    return A


def causal(g: Graph, align: str = "start") -> Tensor:
    A = torch.zeros(1, g.M, g.N, dtype=torch.float64)
    for m in range(g.M):
        for n in range(g.N):
            if (m <= n) if align == "start" else (m - g.M <= n - g.N):
                A[0, m, n] = not g.batch or g.batch[m] == g.batch[n]
    return A


def bags(g: Graph, norm: str | None = None) -> Tensor:
    A = torch.zeros(1, g.M, g.N, dtype=torch.float64)
    for m, graph in enumerate(g.batch):
        A[0, m, graph] = 1 / g.batch.count(graph) if norm == "mean" else 1
    return A


def transpose(A: Tensor) -> Tensor:
    return A.transpose(1, 2)


def concat(*families: Tensor) -> Tensor:
    return torch.cat(families)


def product(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([a @ b for a in first for b in second])


def mix(coefficients: list[list[float]], A: Tensor) -> Tensor:
    return torch.stack([sum(c * a for c, a in zip(row, A, strict=True)) for row in coefficients])


def theta(kind: str, K: int, P: int, Q: int, parameters: dict[str, Tensor]) -> Tensor:
    """(K, P, Q) whatever the kind of parameter; with the bias of the values in a further row."""
    if kind.startswith("Pass"):
        matrices = torch.zeros(K, P, Q, dtype=torch.float64)
        for k in range(K):
            for c in range(min(P, Q)):
                left, right = (k * Q if kind == "Pass(split)" else 0), (k * P if kind == "Pass(concat)" else 0)
                matrices[k, left + c, right + c] = 1 / 3 if kind == "Pass(scale)" else 1
        return matrices
    weight = parameters["weight"].double()
    if kind == "Grouped":
        return torch.stack([torch.block_diag(*blocks) for blocks in weight])
    if kind.startswith("Kernel"):  # of two groups
        blocks = torch.zeros(K, P, Q, dtype=torch.float64)
        for k, p, q in itertools.product(range(K), range(P), range(Q)):
            if p // (P // 2) == q // (Q // 2):
                taps = weight[p, q % (Q // 2)] if kind == "Kernel(transposed)" else weight[q, p % (P // 2)]
                blocks[k, p, q] = taps.flatten()[k]
        return blocks
    if kind.startswith("Separable"):
        mix = parameters["mix"].double()
        pairs = [[(c[k], w) for c, w in zip(mix, weight, strict=True)] for k in range(K)]
        return torch.stack([sum((torch.diag(c) @ w if c.dim() else c * w) for c, w in row) for row in pairs])
    if kind == "Full":
        return weight
    if kind.startswith("Depthwise"):
        taps = weight
        if kind == "Depthwise(softmax)":
            taps = torch.stack([weight[k].exp() / sum(w.exp() for w in weight) for k in range(K)])
        return torch.stack([torch.diag(torch.cat([taps[k]] * (P // taps.shape[1]))) for k in range(K)])
    if "value_bias" in parameters:
        weight = torch.cat([weight, parameters["value_bias"].double()[:, None]], 1)
        weight = weight.expand(K, -1, -1) if kind == "Heads(shared)" else weight
        P = P + 1
    if kind == "Heads(mean)":
        return weight / K
    if kind.startswith("LowRank"):
        return torch.stack([v @ o for v, o in zip(weight, parameters["output"].double(), strict=True)])
    D = Q // K
    left = [weight.new_zeros(P, k * D) for k in range(K)]
    right = [weight.new_zeros(P, Q - (k + 1) * D) for k in range(K)]
    return torch.stack([torch.cat([left[k], weight[k], right[k]], 1) for k in range(K)])


def apply(A: Tensor, x: Tensor, Theta: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = (A o Theta) x + b, with (A o Theta)[m, p, n, q] = sum_k A[k, m, n] Theta[k, p, q]."""
    Phi = torch.zeros(*A.shape[1:], *Theta.shape[1:], dtype=torch.float64)
    for A_k, Theta_k in zip(A, Theta, strict=True):
        Phi = Phi + A_k[:, :, None, None] * Theta_k[None, None]
    y = torch.einsum("mnpq,...mp->...nq", Phi, x.double())
    return y if bias is None else y + bias.double()
