"""What evaluations cost, in plain integers: said by the families, weighed by the plan."""

from typing import Literal, NamedTuple

Direction = Literal["expand", "combine", "each"]
Side = Literal["source", "target"]


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
