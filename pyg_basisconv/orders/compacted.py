"""The order that multiplies only the nonzero rows of each member: for typed edges, walks and sparse grids."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..backend import on_gpu
from ..content import Inputs
from ..costs import MACHINES, Estimate, Problem, Tally, Work
from ..kernels import gather_matmul, matmul
from ..kernels.dense import from_diagonal_blocks
from ..kernels.joined import joins
from ..portable import with_plain
from ..theta.base import AT_ONCE
from .base import MESSAGES, Contracted, Order

# Rows up to which the search for nonzero ones costs more than it saves; and if it is certain that most are zero.
_FEW_ROWS = 1 << 15
_FEW_OF_MANY, _MANY = 1 << 12, 4
_WIDE = 32  # channels from which on products of fewer rows outweigh a call for each member, with several threads too

End = Literal["source", "target"]
Side = Literal["source", "target", "at once"]


class Compaction(NamedTuple):
    """The cost of an evaluation that multiplies only the nonzero rows of each member.

    side: whose rows are multiplied, 'target' (of the A_k^T x) or 'source' (of x), a few at a time; or 'at once', for
    those of the A_k^T x in one step, see `kernels.nonzero`; gather, scatter: the work before and after the products,
    per unit of width; rows: how many are multiplied; products: how many dense products; launches: by how many calls;
    tiled: whether one product multiplies the rows of all members side by side, tile by tile and batch entry by batch
    entry.
    """

    side: Side
    gather: Work
    rows: int
    scatter: Work
    products: int
    launches: int
    tiled: bool = False


class Compact(NamedTuple):
    """Such an evaluation: a function of x, (*, M, P), and the diagonal blocks of Theta, (K, g, P / g, Q / g), to
    (*, N, Q); its cost; and whether the function takes a bias as well, which it adds in one of its products.
    """

    run: Callable[..., Tensor]
    sizes: Compaction
    adds_bias: bool = False


class Offer(NamedTuple):
    """What `measure` returns: the possible evaluations, and H if the matrices of Theta are mixtures of H."""

    sizes: tuple[Compaction, ...]
    mixtures: int | None


class Compacted(Order):
    """A_k^T x Theta_k on the nonzero rows of each member, of its sources or of its targets.

    The backward pass gathers the rows again instead of storing them, but for those that are multiplied at once.
    """

    name, measures, always, reads_numbers = "compacted", True, ("at once",), True

    @with_plain(lambda *_: None)
    def measure(self, family: Any, inputs: Inputs, messages: bool, forced: bool) -> Offer | None:
        theta, x = inputs.theta, inputs.x
        if messages or theta.reference is None or not theta.sums or x.layout != torch.strided:
            return None
        sizes = []
        wide = forced or min(x.shape[-1], theta.Q) >= _WIDE
        if x.dim() == 2 and wide and theta.step(AT_ONCE) is not None:
            sizes += _at_once(family)
        if forced or _may_pay(family):
            sizes += [one.sizes for one in (family.compact("target"), family.compact("source")) if one is not None]
        if not sizes:
            return None
        mixtures = None if theta.mixtures is None or family.mixing is None else theta.mixtures
        return Offer(tuple(sizes), mixtures)

    def estimate(self, p: Problem, offer: Offer | None) -> Estimate:
        if p.sparse_x:
            return self.refuse("x is sparse, and its rows are gathered as they are")
        if p.messages:
            return self.refuse(MESSAGES)
        if not p.learns:
            return self.refuse("there is no parameter to multiply with")
        if offer is None or not offer.sizes:
            return self.refuse("this is for several members that are summed, of typed edges, walks or sparse grids")
        estimates = (
            self._estimate_at_once(p, one) if one.side == "at once" else self._estimate_one(p, one, offer.mixtures)
            for one in offer.sizes
        )
        return min(estimates, key=lambda e: e.seconds)

    def _estimate_at_once(self, p: Problem, c: Compaction) -> Estimate:
        """As `AFirst.estimate`, with the products of fewer rows in a call each, and what is between these."""
        t = Tally(MACHINES[p.device], p.itemsize)
        each = -(-c.rows // max(1, c.products))
        t.sparse(c.gather, p.P, p.M)
        t.product(each, p.P, p.Q, c.products)
        t.sparse(c.scatter, p.Q, c.rows)
        t.seconds += t.machine.small
        if p.grad_x or p.grad_theta:
            t.sparse(c.scatter, p.Q, p.N)
            t.seconds += t.machine.small
        if p.grad_theta:
            t.product(p.P, each, p.Q, c.products)
        if p.grad_x:
            t.product(each, p.Q, p.P, c.products)
            t.copy(c.rows * p.P)
            t.sparse(c.gather, p.P, c.rows)
        return t.estimate(self.name, c.rows * (p.P + p.Q) + p.N * p.Q, form=c.side)

    def _estimate_one(self, p: Problem, c: Compaction, mixtures: int | None) -> Estimate:
        t = Tally(MACHINES[p.device], p.itemsize)
        each = -(-c.rows // max(1, c.products))
        beside = 1 if c.tiled else p.B  # batch entries are evaluated one by one, or side by side

        def gather(work: Work, width: int, table: int) -> None:
            if c.tiled:
                t.gather_cached(work.entries, width)
            else:
                t.sparse(work, width * beside, table)

        def product(width: int, other: int) -> None:
            t.product(each * beside, width * (p.K if c.tiled else 1), other, c.products, c.launches)
            t.seconds += 2 * t.machine.dense * c.launches + (0 if c.tiled else 2 * t.machine.small)

        gather(c.gather, p.P, p.M)
        product(p.P, p.Q)
        gather(c.scatter, p.Q, p.N)
        if p.grad_x or p.grad_basis:
            gather(c.gather if c.tiled else c.scatter, p.Q, p.N)
            product(p.Q, p.P)
            gather(c.scatter if c.tiled else c.gather, p.P, p.M)
        if p.grad_theta:
            if not (c.tiled and p.grad_x):
                gather(c.gather, p.P, p.M)
            product(p.P, p.Q)
            gather(c.scatter, p.Q, p.N)
        t = t.times(p.B if c.tiled else 1)
        held = 0 if c.tiled else min(each * beside * (p.P + p.Q), 3 << 20)
        if mixtures is not None:  # all K matrices of Theta are computed
            t.product(p.K, mixtures, p.P * p.Q, 3 if p.grad_theta else 1)
            held += p.K * p.P * p.Q * (2 if p.grad_theta else 1)
        return t.estimate(self.name, held + (p.B * p.M * p.P if p.grad_x else 0) + p.B * p.N * p.Q, form=c.side)

    def grounds(self, p: Problem, offer: Any) -> str:
        return "only the rows that a member touches are multiplied"

    def run(self, family: Any, inputs: Inputs, bias: Tensor | None, form: str, cached: bool) -> Contracted:
        compact: Compact | None = family.compact("target" if form == "at once" else form)
        assert compact is not None  # `estimate` refuses otherwise
        x = inputs.theta.lift(inputs.x)
        weight = inputs.theta.diagonal(x.shape[-1]).to(x)
        if bias is not None and compact.adds_bias and on_gpu(x) and joins(x, bias):
            return Contracted(compact.run(x, weight, bias), biased=True)
        return Contracted(compact.run(x, weight))


def _may_pay(family: Any) -> bool:
    """Whether the search for nonzero rows is worth its time."""
    rows = family.K * max(family.M, family.N)
    if rows > _FEW_ROWS or rows <= _FEW_OF_MANY:
        return bool(rows > _FEW_ROWS)
    return bool(rows >= _MANY * family.work("expand").entries)


def _at_once(family: Any) -> list[Compaction]:
    """For a family that knows the nonzero rows of its products."""
    if not family.takes_rows or family.K * max(family.M, family.N) > _FEW_ROWS:
        return []
    found = family.nonzero_rows
    if found is None:
        return []
    rows, E = found.targets.numel(), found.enter.E
    return [Compaction("at once", Work(E, rows, 1), rows, Work(rows, family.N), family.K, family.K)]


def tiled(family: Any, side: End) -> Compact | None:
    """The tiled evaluation, for members with at most one entry per row and column; see `BoundBasis.matchings`."""
    pairs = family.matchings
    if pairs is None or not pairs.is_dense or side == "source":
        return None

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return gather_matmul(x[..., : pairs.M, :], from_diagonal_blocks(weight), pairs)

    return Compact(run, Compaction(side, Work(pairs.N * family.K), pairs.N, Work(), 1, 1, tiled=True))


def on_all_rows(family: Any, side: End) -> Compact:
    """The evaluation of a part of a sum that has no `compact` of its own: all its rows are multiplied."""
    if side == "target":
        sizes = Compaction(side, family.work("expand"), family.K * family.N, Work(), family.K, family.K)
    else:
        sizes = Compaction(side, Work(), family.K * family.M, family.work("combine"), family.K, family.K)

    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        blocks = from_diagonal_blocks(weight)
        matrices = blocks.unbind(0) if len(blocks) > 1 else [blocks.squeeze(0)]  # whose gradient is not copied
        if side == "source":
            combined: Tensor = family.combine([matmul(x, matrix) for matrix in matrices])
            return combined
        biases = [bias, *[None] * (len(matrices) - 1)]
        products = [matmul(u, W, b) for u, W, b in zip(family.iterate(x), matrices, biases, strict=True)]
        return products[0] if len(products) == 1 else torch.stack(products).sum(0)

    return Compact(run, sizes, adds_bias=side == "target")
