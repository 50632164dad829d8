"""Families of polynomials of one matrix, evaluated by recurrence; no power is ever built."""

from collections.abc import Iterator, Sequence
from operator import mul
from typing import Literal, cast

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, Direction, EdgeList, Work
from ..bound import Derived
from ..errors import call_it, check_choice, check_depth, check_made, reject
from ..graph import Graph
from ..kernels.lists import scaled
from ..kernels.op import acc_dtype, add_times
from ..kernels.recurrence import polynomials
from ..portable import any_seen, refuse
from ..printing import arguments
from ..typed_edges import ListedEdges, TypedEdges, members
from .adjacency import Adjacency, Laplacian, check_square
from .concat import BoundConcat


class BoundPolynomial(Derived):
    r"""The polynomials :math:`p_0 = I, p_1 = S, p_{k+1} = a \, S \, p_k + c \, p_{k-1}` of a square matrix S.

    a = 1, c = 0 gives the powers and a = 2, c = -1 the Chebyshev polynomials. `expand` runs the recurrence forward at
    the width of x, `combine` backward (Horner, Clenshaw) at the width of z; both take K - 1 products with S. With
    `steps` in place of ones, of which there are K - 1, S to the power of step k leads from member k to the next.
    """

    def __init__(self, operator: BoundBasis, K: int, a: float, c: float, steps: Sequence[int] = ()) -> None:
        self.operator, self.K, self.a, self.c, self.steps = operator, K, a, c, steps or (1,) * (K - 1)
        self.parts = (operator,)
        self.M, self.N, self.dtype, self.device = operator.M, operator.N, operator.dtype, operator.device

    def _next(self, k: int, now: Tensor | None, before: Tensor | None, plus: Tensor | None = None) -> Tensor | None:
        """The recurrence p_{k+1} = plus + a S p_k + c p_{k-1}, for now = p_k and before = p_{k-1}; None is zero."""
        total = plus
        if before is not None and self.c:
            total = add_times(total, self.c, before)
        if now is not None:
            total = add_times(total, self.a if k else 1.0, self._walk(k, now))
        return total

    def _walk(self, k: int, x: Tensor) -> Tensor:
        for _ in range(self.steps[k]):
            x = self.operator.combine([x])
        return x

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        before: Tensor | None = None
        now = x
        for k in range(self.K):
            yield now
            if k < self.K - 1:
                before, now = now, cast(Tensor, self._next(k, now, before if k else None))

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        z = members(z, self.K)
        total: Tensor | None = None
        later: Tensor | None = None  # the total of one step before
        for k in reversed(range(self.K)):
            total, later = self._next(k, total, later, z[k]), total
        return cast(Tensor, total)

    def each(self, z: Tensor) -> Tensor:
        done = []
        before: Tensor | None = None
        now = z  # (K - k, *, N, D): p_k applied to the members from k on
        for k in range(self.K):
            done.append(now[0])
            if k < self.K - 1:
                before, now = now, cast(Tensor, self._next(k, now[1:], None if before is None else before[2:]))
        return torch.stack(done)

    @property
    def takes_rows(self) -> bool:
        return self.operator.takes_rows and max(self.steps, default=1) == 1

    def expand_rows(self, x: Tensor) -> Tensor:
        if self.K == 1:
            return x
        y = self._in_one_call(x, combines=False)
        if y is not None:
            return y
        rows = [x]
        for k in range(1, self.K):
            now = self.operator.expand_rows(rows[-1])
            now = now if k == 1 or self.a == 1 else now * self.a
            rows.append(now if k == 1 or not self.c else now.add_(rows[-2], alpha=self.c))
        return torch.cat(rows, 1)

    def combine_rows(self, z: Tensor) -> Tensor:
        if self.K == 1:
            return z  # not a view of it, as the caller may write to it
        y = self._in_one_call(z, combines=True)
        if y is not None:
            return y
        members = z.split(z.shape[1] // self.K, 1)
        total, later = members[-1], None
        for k in reversed(range(self.K - 1)):
            now = self.operator.combine_rows(total.contiguous())
            now = torch.add(members[k], now, alpha=self.a if k else 1.0)
            now = now if later is None or not self.c else now.add_(later, alpha=self.c)
            total, later = now, total
        return total

    def _in_one_call(self, x: Tensor, combines: bool) -> Tensor | None:
        """`combine_rows` or `expand_rows` by a compiled kernel, if it takes them."""
        S = self.operator.by_target
        return None if S is None else polynomials(x, S, self.K, self.a, self.c, combines)

    def remake(self, parts: Sequence[BoundBasis]) -> "BoundPolynomial":
        return BoundPolynomial(parts[0], self.K, self.a, self.c, self.steps)

    def edges(self) -> EdgeList:
        refuse("basis", "a family that is applied, and not written out", self)
        M, dtype = self.M, acc_dtype(self.dtype)
        nodes = torch.arange(M, device=self.device)
        ones = torch.ones(M, dtype=dtype, device=self.device)
        eye = torch.sparse_coo_tensor(torch.stack([nodes, nodes]), ones, (M, M), device=self.device).coalesce()
        S, found = torch.sparse.sum(self.operator.to_coo().to(dtype), 0), [eye]
        for k, steps in enumerate(self.steps):
            now = found[-1]
            for _ in range(steps):
                now = torch.sparse.mm(S, now)
            now = now * self.a if k else now
            found.append((now + self.c * found[-2] if k and self.c else now).coalesce())
        kinds = [torch.full((one._nnz(),), k, device=self.device) for k, one in enumerate(found)]
        source, target = torch.cat([one.indices() for one in found], 1)
        return EdgeList(torch.cat(kinds), source, target, torch.cat([one.values() for one in found]).to(self.dtype))

    def work(self, direction: Direction) -> Work:
        widths = [self.K - 1 - k if direction == "each" else 1 for k in range(self.K - 1)]
        return self.operator.work("combine").times(sum(map(mul, self.steps, widths)))


class OfSquareMatrix(Basis):
    """A family that is computed from one square matrix S, a basis of one matrix."""

    def __init__(self, K: int, operator: Basis) -> None:
        if isinstance(K, Basis):
            reject("K", "a number, before the operator", K, "write the number first, such as (3, bases.Adjacency())")
        super().__init__(K)
        if not isinstance(operator, Basis):
            fix = call_it(operator, "such as bases.Adjacency('sym')")
            reject("operator", "a basis with K = 1", repr(operator), fix)
        check_made("operator", "a Basis", operator, "K")
        if operator.K != 1:
            reject("operator", "a basis with K = 1", operator, "take powers of one matrix at a time")
        if operator.reads_content:
            reject("operator", "a basis that reads no features", operator, "multiply such bases with @: a @ a")
        self.operator, self.needs_edges, self.reads_types = operator, operator.needs_edges, operator.reads_types
        self.binds_unseen = operator.binds_unseen
        self.depth = check_depth("operator", operator)

    def bind_operator(self, graph: Graph) -> BoundBasis:
        """S on a graph."""
        operator = self.operator.on(graph)
        check_square(operator, f"for {type(self).__name__}", "use a square graph")
        return operator


class Powers(OfSquareMatrix):
    r"""The powers :math:`A_k = S^k`, k = 0 .. K - 1, of a matrix S: walks of length k.

    Args:
        K: the number of powers, the zeroth included.
        operator: S, a basis of one square matrix; by default the symmetrically normalised adjacency.

    Raises:
        ValueError: for an operator of several matrices, or one that reads features, and for one that is not square.

    >>> path = torch.tensor([[0, 1], [1, 2]])
    >>> Powers(3, Adjacency()).bind(path).to_coo().to_dense()[2]
    tensor([[0., 0., 1.],
            [0., 0., 0.],
            [0., 0., 0.]])
    """

    def __init__(self, K: int, operator: Basis | None = None) -> None:
        super().__init__(K, Adjacency("sym") if operator is None else operator)

    def build(self, graph: Graph) -> BoundBasis:
        return BoundPolynomial(self.bind_operator(graph), self.K, 1.0, 0.0)

    def extra_repr(self) -> str:
        return f"K={self.K}, operator={self.operator}"


class Diffusion(Basis):
    r"""Random walks of 0 to K - 1 steps along the edges and against them (DCRNN, Li et al., arXiv:1707.01926).

    Args:
        K: the number of powers in each direction.
        direction: 'out' for :math:`(D_O^{-1} W)^k`, 'in' for :math:`(D_I^{-1} W^\top)^k`, k = 0 .. K - 1, or 'both' for
            these 2 K matrices (with the identity in each half, as in the paper).

    >>> family = Diffusion(2)
    >>> family.K, family.bind(torch.tensor([[0, 0], [1, 2]])).to_coo().to_dense()[1, 0]
    (4, tensor([0.0000, 0.5000, 0.5000]))
    """

    reads_types = False
    binds_unseen = True

    def __init__(self, K: int, direction: Literal["both", "out", "in"] = "both") -> None:
        super().__init__(K)
        check_choice("direction", direction, "both", "out", "in")
        self.steps, self.direction = K, direction
        self.K = 2 * K if direction == "both" else K

    def build(self, graph: Graph) -> BoundBasis:
        walk = Powers(self.steps, Adjacency("rw"))
        graphs = {"out": [graph], "in": [graph.T], "both": [graph, graph.T]}[self.direction]
        parts = [walk.on(g) for g in graphs]
        return parts[0] if len(parts) == 1 else BoundConcat(parts)

    def extra_repr(self) -> str:
        return f"K={self.steps}, direction={self.direction!r}"


class Chebyshev(Basis):
    r"""Chebyshev polynomials of the scaled Laplacian, :math:`T_k(2 L / \lambda_{max} - I)`, k = 0 .. K - 1.

    Spectral filters of order K - 1 (Defferrard et al., arXiv:1606.09375). If neither the basis nor the call gives
    lambda_max, the bound 2 max(L) is used (2 for a normalised Laplacian), as in PyG.

    Args:
        K: the number of polynomials.
        norm: of the Laplacian: 'sym', 'rw' or None.
        lambda_max: the largest eigenvalue, which `torch_geometric.transforms.LaplacianLambdaMax` computes.

    Raises:
        ValueError: as `Laplacian`.

    >>> edge = torch.tensor([[0, 1], [1, 0]])
    >>> Chebyshev(2).bind(edge).to_coo().to_dense()[1]
    tensor([[ 0., -1.],
            [-1.,  0.]])
    """

    reads_types = False
    binds_unseen = True

    def __init__(self, K: int, norm: Literal["sym", "rw"] | None = "sym", lambda_max: float | None = None) -> None:
        super().__init__(K)
        if lambda_max is not None and not (isinstance(lambda_max, int | float) and 0 < lambda_max < float("inf")):
            fix = "torch_geometric.transforms.LaplacianLambdaMax computes one"
            reject("lambda_max", "a positive finite number, or None", repr(lambda_max), fix)
        self.laplacian, self.norm = Laplacian(norm), norm
        self.lambda_max = None if lambda_max is None else float(lambda_max)

    def build(self, graph: Graph) -> BoundBasis:
        lists = self.laplacian.listed(graph) if self.lambda_max is graph.lambda_max is None else None
        if lists is not None:
            operator = ListedEdges(1, graph.M, graph.N, [scaled(edges, graph.N) for edges in lists], graph.dtype)
            return BoundPolynomial(operator, self.K, 2.0, -1.0)
        structure, weight = self.laplacian.matrix(graph.masked(None))
        scale = self._lambda_max(graph.masked(None), structure.source, weight)
        if graph.mask is not None:
            _, weight = self.laplacian.matrix(graph)
        # L = 0, for a graph without edges, needs no scale.
        scale = torch.where(scale == 0, 1, scale)
        plain = weight.numel() - graph.N
        weight = 2 * weight / scale
        weight = torch.cat([weight[:plain], weight[plain:] - 1])  # the loops are the last N entries
        return BoundPolynomial(TypedEdges(structure, weight, graph.dtype), self.K, 2.0, -1.0)

    def _lambda_max(self, graph: Graph, source: Tensor, weight: Tensor) -> Tensor:
        given = self.lambda_max if graph.lambda_max is None else graph.lambda_max
        if given is None:
            return 2 * weight.max() if weight.numel() else weight.new_ones(())
        scale = torch.as_tensor(given, dtype=weight.dtype, device=weight.device)
        if scale.numel() == 1:
            return scale.reshape(())
        if graph.batch is None or graph.batch.shape != (graph.N,) or graph.batch.is_floating_point():
            got = None if graph.batch is None else f"{tuple(graph.batch.shape)}, {graph.batch.dtype}"
            reject("batch", f"integers of shape ({graph.N},), beside one lambda_max per graph", got, "pass it")
        if any_seen(graph.batch < 0):
            reject("batch", "the numbers of graphs, from 0 on", int(graph.batch.min()), "correct it")
        if any_seen(graph.batch >= scale.numel()):
            reject("lambda_max", f"{int(graph.batch.max()) + 1} values, one per graph", scale.numel(), "match batch")
        return scale.flatten().index_select(0, graph.batch.index_select(0, source))

    def extra_repr(self) -> str:
        return arguments(self, f"K={self.K}", norm="sym", lambda_max=None)
