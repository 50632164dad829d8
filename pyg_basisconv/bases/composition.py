"""The basis of two layers in sequence."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..basis import Basis, BoundBasis, Direction, EdgeList, Work, check_bases
from ..bound import Derived
from ..errors import reject
from ..graph import Counts, Graph
from ..kernels.grids import Ints
from .composed import Composed
from .product import Product, bind_in_sequence


class Constants(NamedTuple):
    """Which constants two layers in sequence have.

    shift: whether the first has a bias; of_first, of_second: whether their values have biases, see `theta.LowRank`.
    """

    shift: bool = False
    of_first: bool = False
    of_second: bool = False


class BoundComposition(Derived):
    """The family of two layers in sequence, and the weights with which their constants reach the targets; first is
    None if the only constant of the first layer is its bias.
    """

    def __init__(self, family: BoundBasis, first: BoundBasis | None, second: BoundBasis, constants: Constants) -> None:
        self.family, self.first, self.second, self._constants = family, first, second, constants
        self.parts = (family,)
        self.K, self.M, self.N = family.K, family.M, family.N
        self.dtype, self.device = family.dtype, family.device
        self.source_grid, self.target_grid = family.source_grid, family.target_grid

    @property
    def matrices(self) -> BoundBasis:
        return self.family

    @property
    def constant_weights(self) -> Tensor:
        """(J, N) the weight of each constant at each target."""
        return self.keep("constants", self._numbers).clone()

    def _numbers(self) -> Tensor:
        constants = self._constants
        entering = _inner_constants(self.first, constants.of_first, self.second.M, self)  # (J, N')
        if constants.shift:
            entering = torch.cat([entering.new_ones(1, self.second.M), entering])
        through = self.second.expand(entering.t())  # (K'', N, J)
        own = _inner_constants(self.second, constants.of_second, self.N, self)
        return torch.cat([own, through.permute(2, 0, 1).flatten(0, 1)])

    def edges(self) -> EdgeList:
        return self.family.edges()

    def iterate(self, x: Tensor) -> Iterable[Tensor]:
        return self.family.iterate(x)

    def combine(self, z: Tensor | Sequence[Tensor | None]) -> Tensor:
        return self.family.combine(z)

    def each(self, z: Tensor) -> Tensor:
        return self.family.each(z)

    def remake(self, parts: Sequence[BoundBasis]) -> BoundBasis:
        return parts[0]  # the constants are not those of a transposed or changed family

    def work(self, direction: Direction) -> Work:
        return self.family.work(direction)

    def moved(self, device: torch.device) -> "BoundComposition":
        first = None if self.first is None else self.first.moved(device)
        return BoundComposition(self.family.moved(device), first, self.second.moved(device), self._constants)


def _inner_constants(bound: BoundBasis | None, values: bool, N: int, like: BoundBasis) -> Tensor:
    """(J, N) the weights of the constants within one of the layers."""
    rows = [bound.constant_weights] if isinstance(bound, BoundComposition) else []
    if values and bound is not None:
        ones = torch.ones(bound.M, 1, dtype=bound.dtype, device=bound.device)
        rows.append(bound.expand(ones).squeeze(-1))
    return torch.cat(rows) if rows else torch.ones(0, N, dtype=like.dtype, device=like.device)


class Composition(Composed):
    r"""The family of two layers in sequence, with the weights of their constants.

    The second layer maps the first one's bias b' to :math:`\sum_l (A''^\top_l 1) \, b' \Theta''_l`, which differs from
    target to target. `compose` makes this basis, together with the parameter `theta.Chain`, which has the constants.

    Args:
        first: of the first layer, from the sources.
        second: of the second layer.
        constants: which constants there are.
        family: of all products :math:`A'_k A''_l`, or one whose mixtures they are; `first @ second` if None.

    >>> from pyg_basisconv import bases
    >>> both = Composition(bases.Adjacency(), bases.Adjacency(), Constants(shift=True))
    >>> both.bind(torch.tensor([[0, 1], [1, 2]]), size=3).constant_weights
    tensor([[0., 1., 1.]])
    """

    def __init__(self, first: Basis, second: Basis, constants: Constants, family: Basis | None = None) -> None:
        check_bases(first, second)
        family = Product(first, second) if family is None else family
        super().__init__(family.K, family, first, second)
        self.constants, self.variance_gain, self.reads_target = constants, family.variance_gain, family.reads_target

    @property
    def target_axes(self) -> int | None:
        return self.parts[0].target_axes

    def sized(self, M: int | None, N: int | None, batch: Any, grid: Ints | None) -> Counts:
        return self.parts[0].sized(M, N, batch, grid)

    def target_shape(self, grid: Ints) -> Ints | None:
        return self.parts[0].target_shape(grid)

    def build(self, graph: Graph) -> BoundBasis:
        family, first, second = self.parts
        together = family.on(graph)
        nested = isinstance(first, Composition) or isinstance(second, Composition)
        if together.factors is not None and self._is_product and not nested:
            before, behind = together.factors
            return BoundComposition(together, before, behind, self.constants)
        if graph.grid is None and second.needs_edges and not (nested or self.constants.of_first):
            return BoundComposition(together, None, second.on(graph.from_intermediate), self.constants)
        return BoundComposition(together, *bind_in_sequence(first, second, graph), self.constants)

    @property
    def _is_product(self) -> bool:
        """Whether the family is the product of the two layers' families."""
        family, *layers = self.parts
        own = [part.parts[0] if isinstance(part, Composition) else part for part in layers]
        factors = family.factors
        return factors is not None and all(a is b for a, b in zip(factors, own, strict=True))

    def accept(self, bound: BoundBasis) -> BoundBasis:
        both = self.as_composition(bound)
        if both is None:
            fix = "pass basis.bind(edges), or bound @ bound"
            reject("edge_index", f"what {self} was bound to", type(bound).__name__, fix)
        return both

    def as_composition(self, bound: BoundBasis) -> BoundComposition | None:
        """A bound family as one of this basis: one bound from it, or a product of two bound families; else None."""
        if isinstance(bound, BoundComposition):
            return bound
        if bound.factors is None or not self._is_product or self.parts[0].is_reordered(bound):  # type: ignore[operator]
            return None
        parts: list[Any] = list(self.parts)[1:]
        each = zip(parts, bound.factors, strict=True)
        before, after = (part.as_composition(one) if isinstance(part, Composition) else one for part, one in each)
        return None if before is None or after is None else BoundComposition(bound, before, after, self.constants)

    def __repr__(self) -> str:
        family, first, second = self.parts
        how = "" if self._is_product else f", family={family!r}"
        return f"Composition({first!r}, {second!r}{how})"

    @property
    def extra_key(self) -> Hashable:
        return self.constants, super().extra_key
