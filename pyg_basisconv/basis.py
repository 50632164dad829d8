"""A basis, described and bound: the family A of K sparse matrices from M inputs to N outputs."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .cache import IdentityCache, cached_property, underived
from .compiled import numbered
from .errors import reject
from .graph import Graph, Size, grid_shape, sizes
from .kernels import Meetings, gather_matmul, matmul
from .portable import portable, settled

if TYPE_CHECKING:
    from .content import Inputs
    from .explicit import Explicit, TypedEdges
    from .theta import Theta

Direction = Literal["expand", "combine", "each"]
Side = Literal["source", "target"]


class EdgeList(NamedTuple):
    """A family written out: A[type, source, target] = the sum of the weights of the edges that stand there.

    type, source, target: (E,) integers; weight: (E,)

    >>> from pyg_basisconv import bases
    >>> bases.Adjacency('mean').bind(torch.tensor([[0, 1], [2, 2]])).edges().weight
    tensor([0.5000, 0.5000])
    """

    type: Tensor
    source: Tensor
    target: Tensor
    weight: Tensor


class Work(NamedTuple):
    """What one evaluation of a family costs per unit of width, in plain integers.

    entries: multiply-adds with gathered rows; rows: rows written; products: kernels launched; numbers: what is read and
    written in any case, whatever the width.
    """

    entries: int = 0
    rows: int = 0
    products: int = 0
    numbers: int = 0

    def plus(self, other: "Work") -> "Work":
        entries, rows, products, numbers = other
        return Work(self.entries + entries, self.rows + rows, self.products + products, self.numbers + numbers)

    def times(self, n: int) -> "Work":
        return Work(n * self.entries, n * self.rows, n * self.products, n * self.numbers)


def whole(blocks: Tensor) -> Tensor:
    """Matrices of their diagonal blocks: (K, g, P / g, Q / g) -> (K, P, Q)."""
    if blocks.shape[1] == 1:
        return blocks.squeeze(1)
    apart = torch.diag_embed(blocks.permute(0, 2, 3, 1))  # (K, P / g, Q / g, g, g)
    return apart.permute(0, 3, 1, 4, 2).flatten(3).flatten(1, 2)


OnImage = Callable[[Tensor, Tensor | None], Tensor]  # from an image and the bias to an image


class Native(NamedTuple):
    """An evaluation by a vendor's kernel, and what it costs for one entry of the batch.

    run: from the features, with the parameter, and the bias to the output; operations, numbers: of the kernel, numbers
    read and written; kernels: how many are launched; projects: whether x Theta is computed before, and is what the
    kernel reads; of_image: the same from images (B, P, *grid) to images (B, Q, *grid), where it takes them.
    """

    run: "Callable[[Inputs, Tensor | None], Tensor]"
    operations: int
    numbers: int
    kernels: int
    projects: bool = False
    of_image: OnImage | None = None


class Compaction(NamedTuple):
    """What an evaluation costs that multiplies only the rows of each member at which there is something.

    side: of the ends whose rows these are, 'target' (of the A_k^T x) or 'source' (of x). enter: what makes the rows,
    per unit of width; rows: how many are multiplied; leave: what sums the products, per unit of width; products: how
    many dense ones; tiled: whether the rows of all members lie side by side in one product, gathered in an order that
    keeps them in the cache, one entry of the batch after the other.
    """

    side: Side
    enter: Work
    rows: int
    leave: Work
    products: int
    tiled: bool = False


class Compact(NamedTuple):
    """Such an evaluation, from x (*, M, P) and the diagonal blocks of Theta, (K, g, P / g, Q / g), to (*, N, Q)."""

    run: Callable[[Tensor, Tensor], Tensor]
    sizes: Compaction


class BoundBasis:
    """A family of K matrices A_k, M x N, ready to be applied.

    A new kind gives `edges()`; everything else follows from it, and is overridden only to be faster.
    x may carry leading batch dimensions everywhere (written *).

    >>> from pyg_basisconv import bases
    >>> bound = bases.Powers(3, bases.Adjacency()).bind(torch.tensor([[0, 1], [1, 2]]), size=3)
    >>> bound.K, bound.expand(torch.tensor([[1.], [0.], [0.]])).squeeze(-1)
    (3, tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]]))
    >>> bound.T.combine(torch.ones(3, 3, 1)).squeeze(-1)
    tensor([3., 2., 1.])
    """

    K: int
    M: int
    N: int
    dtype: torch.dtype
    device: torch.device
    number: int  # see `numbered`
    batch: tuple[int, ...] = ()  # of a content, whose graphs have matrices of their own
    shape: tuple[int, ...] | None = None  # of the sources, where they are a grid
    grid: tuple[int, ...] | None = None  # of the targets, where they are a grid
    _explicit: "Explicit | None" = None
    _dense: Tensor | None = None
    _expansions: IdentityCache | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "BoundBasis":
        self = super().__new__(cls)
        self.number = numbered(self)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # A copy has a number of its own, and finds anew what follows from the rest.
        kept = {"number", "_explicit", "_dense", "_expansions", "_entries", "_held"}
        return {name: value for name, value in underived(self).items() if name not in kept}

    def edges(self) -> EdgeList:
        """The family as typed weighted edges, in tensors that are the caller's own."""
        raise NotImplementedError

    @property
    def explicit(self) -> "Explicit":
        """The same family with its edges written out."""
        from .explicit import explicit  # the defaults below are the explicit form's

        if self._explicit is not None:
            return self._explicit
        # What comes out of inference mode is kept; what a gradient may pass through is not, whatever the mode is now.
        grad = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            written = explicit(self.K, self.M, self.N, self.edges())
        if not self.requires_grad and not portable():
            self._explicit = written
        return written

    def iterate(self, x: Tensor) -> Iterator[Tensor]:
        """The K products A_k^T x, (*, N, P) each, one at a time."""
        return self.explicit.iterate(x)

    def expand(self, x: Tensor) -> Tensor:
        r"""All products :math:`A_k^\top x`: (*, M, P) -> (K, *, N, P)."""
        return torch.stack(list(self.iterate(x)))

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        r"""The sum :math:`\sum_k A_k^\top z_k`: (K, *, M, Q) -> (*, N, Q); in a sequence, None is a zero."""
        return self.explicit.combine(z)

    def each(self, z: Tensor) -> Tensor:
        r"""Member by member :math:`A_k^\top z_k`: (K, *, M, D) -> (K, *, N, D)."""
        return self.explicit.each(z)

    @property
    def takes_rows(self) -> bool:
        """Whether it is fixed, and is applied to rows by `expand_rows` and `combine_rows`; see `kernels.contract`."""
        return False

    def expand_rows(self, x: Tensor) -> Tensor:
        """All products side by side, without a record for gradients: (M, P) -> (N, K P)."""
        raise NotImplementedError

    def combine_rows(self, z: Tensor) -> Tensor:
        """The sum of all products, in the same way: (M, K Q) -> (N, Q)."""
        raise NotImplementedError

    @property
    def adjoint(self) -> "BoundBasis":
        """The same as `T`, made once."""
        raise NotImplementedError

    @property
    def typed(self) -> "TypedEdges | None":
        """The same family as a list of edges, where it is not much more than that."""
        return None

    @property
    def levels(self) -> Tensor | None:
        """(J, N) what the constants of two layers in one come to, see `bases.Composition`."""
        return None

    @property
    def matrices(self) -> "BoundBasis":
        """The family alone, without what comes with it, such as `levels`."""
        return self

    @property
    def meetings(self) -> Meetings | None:
        """Who meets whom, in a family of ones whose members let each source and target meet one other at most."""
        return None

    def compact(self, side: Side) -> Compact | None:
        """The sum over the members and Theta on the rows where there is something, if that may pay."""
        met = None if portable() else self.meetings
        if met is None or not met.many or side == "source":
            return None

        def run(x: Tensor, weight: Tensor) -> Tensor:
            return gather_matmul(x[..., : met.M, :], whole(weight), met)

        return Compact(run, Compaction(side, Work(met.N * self.K), met.N, Work(), 1, tiled=True))

    def of_all(self, side: Side) -> Compact:
        """The same on all rows of all members."""
        if side == "target":
            sizes = Compaction(side, self.works["expand"], self.K * self.N, Work(), self.K)
        else:
            sizes = Compaction(side, Work(), self.K * self.M, self.works["combine"], self.K)

        def run(x: Tensor, weight: Tensor) -> Tensor:
            matrices = whole(weight).unbind(0)
            if side == "source":
                return self.combine([matmul(x, matrix) for matrix in matrices])
            products = [matmul(u, matrix) for u, matrix in zip(self.iterate(x), matrices, strict=True)]
            return products[0] if len(products) == 1 else torch.stack(products).sum(0)

        return Compact(run, sizes)

    @property
    def alpha(self) -> Tensor | None:
        """(E, K) the weights of attention by the edges of the graph, and of loops behind them, where they are known."""
        return None

    @property
    def mixing(self) -> Work | None:
        """What one mixture of the members costs that is written out, where they are typed edges."""
        return None

    def mixed(self, coefficients: Tensor) -> "BoundBasis":
        r"""The H mixtures :math:`\sum_k C_{hk} A_k`, written out: (H, K) -> a family of H matrices."""
        return self.explicit.mixed(coefficients)

    @property
    def T(self) -> "BoundBasis":
        """The family of the transposed matrices."""
        return self.explicit.T

    def work(self, direction: Direction) -> Work:
        """What one evaluation costs per unit of width."""
        return self.explicit.work(direction)

    @cached_property
    def works(self) -> dict[str, Work]:
        """The work of each direction."""
        return {"expand": self.work("expand"), "combine": self.work("combine"), "each": self.work("each")}

    @property
    def natively(self) -> "BoundBasis | None":
        """The same family evaluated by a vendor's kernel, where there is one for it."""
        return None

    def native(self, theta: "Theta", width: int) -> Native | None:
        """The whole of A and Theta evaluated by a vendor's kernel, where there is one for them.

        Args:
            theta: the parameter.
            width: P.
        """
        fast = self.natively
        if fast is None:
            return None

        def run(inputs: "Inputs", bias: Tensor | None) -> Tensor:
            y = theta.gather(fast, inputs.projected)
            return y if bias is None else y + bias.to(y.dtype)

        operations, numbers, kernels = fast.kernel
        inner = theta.inner if theta.inner > 0 else width
        return Native(run, operations * inner, numbers * inner, kernels, projects=True)

    @property
    def kernel(self) -> tuple[int, int, int]:
        """Of a family that is evaluated natively: operations and numbers per unit of width; kernels. See `Native`."""
        each = self.works["each"]
        return 2 * each.entries, 2 * each.rows, each.products

    def map(self, change: "Callable[[Explicit], Explicit]") -> "BoundBasis":
        """The same family with `change` applied to every explicit part that it is made of."""
        return change(self.explicit)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "BoundBasis":
        """The same family on another device; as PyG calls it, for what is an attribute of data."""
        return self.moved(torch.device(device))

    def cpu(self) -> "BoundBasis":
        """The same family on the CPU."""
        return self.to("cpu")

    def cuda(self, device: torch.device | str | int | None = None, non_blocking: bool = False) -> "BoundBasis":
        """The same family on a CUDA device, the current one for None."""
        return self.to(torch.device("cuda", device) if isinstance(device, int) else device or "cuda")

    def moved(self, device: torch.device) -> "BoundBasis":
        """The same family on another device; what a kind overrides."""
        return self.map(lambda part: part.move(device))

    @property
    def origin(self) -> "tuple[Basis, Graph] | None":
        """The basis that it is, and the graph that this was bound to, where it was made so."""
        return _MADE.get(self)

    def masked(self, mask: Callable[[Graph], Graph]) -> "BoundBasis":
        """The same basis, bound to the same graph with its edges masked."""
        if self.origin is None:
            fix = "pass the edges, or what basis.bind(edges) gave, as it is"
            reject("edge_index", "edges that a mask can be for", f"a {type(self).__name__} made by other means", fix)
        basis, graph = self.origin
        return basis.build(mask(graph))

    def to_coo(self) -> Tensor:
        """The whole family as one sparse tensor, (K, M, N), coalesced."""
        kind, source, target, weight = self.edges()
        indices = torch.stack([kind.long(), source.long(), target.long()])
        return torch.sparse_coo_tensor(indices, weight, (self.K, self.M, self.N), is_coalesced=False).coalesce()

    def to_dense(self) -> Tensor:
        """The whole family written out, (K, *, M, N)."""
        dense = self.dense
        return dense.clone() if dense is self._dense else dense  # what is kept is not for others to write to

    @property
    def dense(self) -> Tensor:
        """The same, to be read only: kept, unless a gradient passes through it."""
        if self._dense is not None:
            return self._dense
        grad = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            eye = torch.eye(self.M, dtype=self.dtype, device=self.device)
            dense = self.expand(eye.expand(*self.batch, self.M, self.M)).transpose(-1, -2)
        if not self.requires_grad and not portable():
            self._dense = dense
        return dense

    def expansions(self, x: Tensor) -> tuple[Tensor, ...]:
        """The K products A_k^T x of an x that needs no gradient, kept for as long as x lives and stays as it is: to be
        read only.
        """
        if self._expansions is None:
            self._expansions = IdentityCache()

        def build() -> tuple[Tensor, ...]:
            # What is kept owns its memory, or x could never die.
            own = x.untyped_storage()._cdata
            return tuple(u.clone() if u.untyped_storage()._cdata == own else u for u in self.iterate(x))

        expansions: tuple[Tensor, ...] = self._expansions.get((x,), None, build)
        return expansions

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient passes through the matrices."""
        return False

    def __matmul__(self, other: "BoundBasis") -> "BoundBasis":
        """All products :math:`A'_k A''_l`, first of this family and then of another, bound to a graph of its own."""
        from .bases.composed import BoundProduct

        return BoundProduct(self, other) if isinstance(other, BoundBasis) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}(K={self.K}, M={self.M}, N={self.N}, dtype={self.dtype})"


def _parts(module: nn.Module) -> "Iterator[Basis]":
    """The bases that a module holds, without those that these hold."""
    for part in module.children():
        if isinstance(part, Basis):
            yield part
        else:
            yield from _parts(part)


# What each was bound from. A graph knows its bound bases, and nothing of them may know the graph.
_MADE: WeakKeyDictionary[BoundBasis, tuple["Basis", Graph]] = WeakKeyDictionary()


class Basis(nn.Module):
    """Says which K matrices, before any data is seen. A small value: printable, comparable by what it prints.

    To make a kind of your own, give its size to `super().__init__(K)` and its edges for a graph in `edges(graph)`;
    that is enough. Override `build(graph)` to return a faster `BoundBasis`.

    >>> from pyg_basisconv import bases
    >>> family = bases.Identity() + bases.Adjacency('mean')
    >>> family, family.K
    (Identity() + Adjacency(norm='mean'), 2)
    >>> family.bind(torch.tensor([[0, 1], [2, 2]])).to_coo().to_dense()[1]
    tensor([[0.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]])
    """

    needs_edges = True  # False where a call without edge_index makes sense
    reads_target = False  # True where, in a bipartite call, some members read the target's own features
    reads_content = False  # True where the matrices are computed from the features
    pools = False  # True where the targets are the graphs of a batch
    counts_batch = False  # True where the numbers in a batch say how many targets there are
    fan: float = 1  # how much larger the sum over all members is than one of them, in variance: see theta.Full
    axes: int | None = None  # how many its grid has, where it is on one
    depth = 1  # how many are within each other, see `check_depth`

    def __init__(self, K: int) -> None:
        super().__init__()
        if isinstance(K, bool) or not isinstance(K, int) or K < 1:
            reject("K", "an integer from 1 on", K, "a basis has at least one matrix")
        self.K = K

    @property
    def target_axes(self) -> int | None:
        """The same of the grid of the targets."""
        return self.axes

    @property
    def reads_edges(self) -> bool:
        """Whether it, or a part of it, is computed from features of edges."""
        return any(part.reads_edges for part in _parts(self))

    def complete(self, source: int, target: int, inner: int) -> None:
        """Makes the parameters of what is computed from content, for the widths of sources, targets and values."""

    def reset_parameters(self) -> None:
        """Draws the parameters anew, where there are any."""

    def sized(
        self, M: int | None, N: int | None, batch: Any, grid: tuple[int, ...] | None
    ) -> tuple[int | None, int | None]:
        """The numbers of sources and targets of a call, with those that the basis knows filled in."""
        return M, N

    def reach(self, grid: tuple[int, ...]) -> tuple[int, ...] | None:
        """The grid of the targets, for one of the sources; None where the family is not of grids."""
        return None

    def accept(self, bound: BoundBasis) -> BoundBasis:
        """A bound family that is given instead of a graph; refuses what is known to be of another basis."""
        return bound

    def edges(self, graph: Graph) -> EdgeList:
        """The family on a graph as typed weighted edges; the tensors of the graph are kept, and to be read only."""
        raise NotImplementedError(f"{type(self).__name__} gives neither edges(graph) nor build(graph)")

    def build(self, graph: Graph) -> BoundBasis:
        """Binds to a graph, anew."""
        from .explicit import explicit

        edges = self.edges(graph)
        if graph.mask is not None:
            edges = edges._replace(weight=edges.weight * self._share(graph, edges))
        return explicit(self.K, graph.M, graph.N, edges, dtype=graph.dtype)

    def _share(self, graph: Graph, edges: EdgeList) -> Tensor:
        """(E',) the mask of each entry: the graph's edges stand first, with or without loops, then the basis's own."""
        mine, theirs = (torch.stack([e.source.long(), e.target.long()]) for e in (edges, graph))
        for some in (slice(None), theirs[0] != theirs[1]):
            mask, count = cast(Tensor, graph.mask)[some], theirs[:, some].shape[1]
            if torch.equal(mine[:, :count], theirs[:, some]):
                return torch.cat([mask, torch.ones_like(edges.weight[count:])])
        fix = "multiply by graph.mask in its build(graph)"
        return reject("basis", "edges that begin with those of the graph, to be masked", self, fix)

    def on(self, graph: Graph) -> BoundBasis:
        """Binds to a graph; once for all bases of the same classes that print the same, anew for one that learns."""
        if self.key is None:
            return self._made(graph)
        bound: BoundBasis = graph.memo(self.key, lambda: self._made(graph))
        return bound

    def _made(self, graph: Graph) -> BoundBasis:
        bound = self.build(graph)
        _MADE[bound] = self, graph.bare
        return bound

    @cached_property
    def keeps(self) -> bool:
        """Whether calls that are like an earlier one may take what was bound for that one, but for a content."""
        return self.reads_content or (type(self).on is Basis.on and self.key is not None)

    @cached_property
    def key(self) -> Hashable | None:
        """What tells this basis from others, or None for one with parameters or buffers, which change.

        A class whose own body does not say what its instances print is taken to hold more than they do.
        """
        if self.reads_content or any(True for _ in chain(self.parameters(), self.buffers())):
            return None
        parts = [part for part in self.modules() if isinstance(part, Basis)]
        for part in parts:
            part._frozen = True
        return repr(self), *((type(part), part.unsaid) for part in parts)

    @property
    def unsaid(self) -> Hashable:
        """What tells it from others, beside its class and what it prints."""
        own = vars(type(self)).keys() & {"extra_repr", "__repr__"}
        says_all = bool(own) or vars(self).keys() <= vars(Basis(1)).keys() | {"_frozen", "key", "keeps"}
        return None if says_all else self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in underived(self).items() if name != "_frozen"}  # a copy may be changed

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_frozen") and name != "training" and not name.startswith("_"):
            raise AttributeError(f"{self} is a value, and has been bound with its {name}: make another")
        super().__setattr__(name, value)

    @settled
    def bind(
        self,
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        edge_type: Tensor | None = None,
        *,
        size: Size = None,
        dtype: torch.dtype | None = None,
        batch: Tensor | None = None,
        lambda_max: Tensor | float | None = None,
        grid: int | Sequence[int] | None = None,
    ) -> BoundBasis:
        """Pays once what depends on the graph: normalising and sorting.

        Args:
            edge_index: the graph in any of PyG's layouts, see `BasisConv.forward`.
            edge_weight: (E,), or (E, K) for `bases.Edges`.
            edge_type: (E,) for typed edges.
            size: (M, N), or one number for both; found from the edges where None.
            dtype: of the matrices; that of edge_weight, or torch's default, where None.
            batch: (M,) the graph that each node of a batch belongs to.
            lambda_max: for `bases.Chebyshev`, a number or one per graph of the batch.
            grid: the shape of the grid that the sources are, for `bases.Window` and its like without one.

        Raises:
            ValueError: what does not fit, with the fix.
        """
        shape = grid_shape(grid)
        size = self.sized(*sizes(size), batch, shape)
        if edge_index is None and self.axes is not None and None in size:
            reject("grid", f"the shape of the grid, for {self}", grid, "pass grid=, or make the basis with a shape")
        graph = Graph.of(
            edge_index,
            edge_weight,
            edge_type,
            size=size,
            dtype=dtype,
            device=batch.device if isinstance(batch, Tensor) else None,
            batch=batch,
            lambda_max=lambda_max,
            grid=shape,
        )
        return self.on(graph)

    @property
    def T(self) -> "Basis":
        """The family of the transposed matrices."""
        from .bases.composed import Transpose

        return Transpose(self)

    def __add__(self, other: "Basis") -> "Basis":
        from .bases.composed import Concat

        return Concat(self, other) if isinstance(other, Basis) else NotImplemented

    def __matmul__(self, other: "Basis") -> "Basis":
        from .bases.composed import Product

        return Product(self, other) if isinstance(other, Basis) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"
