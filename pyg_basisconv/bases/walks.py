"""One matrix for each sort of walk on a knowledge graph."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

from ..basis import Basis, BoundBasis
from ..errors import check_choice, check_flags, reject
from ..graph import Graph
from ..portable import refuse, with_plain
from ..printing import arguments
from ..walks import Sort, Vocabulary, parse
from .bound_walks import BoundWalks, Steps
from .relations import NORMS, Norm
from .stepwise import stepwise


class Walks(Basis):
    r"""One matrix for each sort of walks over the relations of a knowledge graph: :math:`A_{k,mn}` counts the walks of
    sort k from m to n. The sort `played.characterIn.genre` goes along a relation `played`, then `characterIn`, then
    `genre`; its matrix is the product of theirs. See `pyg_basisconv.walks.parse` for how sorts are written.

    With edge weights a walk counts as the product of those of its edges. Let C be the matrix of the sort, and
    :math:`r_m = \sum_n C_{mn}`, :math:`c_n = \sum_m C_{mn}`; division by zero gives zero:

    | norm | :math:`A_{mn}` |
    | --- | --- |
    | None | :math:`C_{mn}` |
    | `'row'` | :math:`C_{mn} / r_m`: the probability that a walk from m, drawn uniformly, ends in n |
    | `'mean'` | :math:`C_{mn}` over the number of walks that end in n |
    | `'sym'` | :math:`C_{mn} / \sqrt{r_m c_n}` |

    Products are not built: factors that sorts share at their beginning, or at their end, are applied once, and only to
    the nodes that their walks reach. A product is built if that is no more work. A norm of the whole walk is a factor
    of each sort of its own, which ends sharing on its side: 'row' at the beginning, 'mean' at the end, 'sym' at both.

    Args:
        sorts: strings or lists of steps; or a dict of them, by name.
        relations: the names of relations: in the order of the edge types, or their number, a `Vocabulary`, or a
            `HeteroData`; None for numbers.
        norm: one of the table.
        per: 'walk'; or 'step' to normalise the matrix of each step, as in `Relations`, and not the product: at each
            node the walk takes an edge of the step at random. A step with alternatives is one matrix.
        binary: whether several walks from m to n count as one; this builds the products.
        memory_limit: the most bytes of a product that has to be built.

    Attributes:
        sorts: as they were parsed.
        names: of the sorts.
        vocabulary: of the relations.

    Raises:
        ValueError: for sorts that `pyg_basisconv.walks.parse` refuses; and on first use, for a product beyond
            `memory_limit`, more walks than can be normalised, and other numbers of sources than of targets.

    >>> import torch
    >>> family = Walks(["likes.likes", "^likes"], ["likes"])
    >>> family.bind(torch.tensor([[0, 0, 1, 2], [1, 2, 3, 3]]), size=4).to_coo().to_dense()[0, 0]
    tensor([0., 0., 0., 2.])
    """

    def __init__(
        self,
        sorts: Sequence[Any] | Mapping[str, Any],
        relations: Any = None,
        norm: Norm = None,
        per: Literal["walk", "step"] = "walk",
        binary: bool = False,
        memory_limit: int = 1 << 30,
    ) -> None:
        if isinstance(sorts, str) or not isinstance(sorts, Sequence | Mapping) or not len(sorts):
            reject("sorts", "a list of sorts, or a dict of them", repr(sorts), "write ['played.characterIn']")
        check_choice("norm", norm, *NORMS, fix="see the table in help(bases.Walks)")
        check_choice("per", per, "walk", "step")
        check_flags(binary=binary)
        if binary and per == "step" and norm is not None:
            reject("per", "'walk' where binary=True", repr(per), "the matrix of ones has no steps")
        if isinstance(memory_limit, bool) or not isinstance(memory_limit, int) or memory_limit < 0:
            reject("memory_limit", "a number of bytes", repr(memory_limit), "such as 1073741824")
        self.vocabulary = Vocabulary.of(relations)
        found = list(sorts.values() if isinstance(sorts, Mapping) else sorts)
        super().__init__(len(found))
        self.sorts: tuple[Sort, ...] = tuple(parse(sort, self.vocabulary) for sort in found)
        most = max((r for sort in self.sorts for walk in sort.sequences for step in walk for r, _ in step), default=-1)
        if not self.vocabulary.open and most >= len(self.vocabulary):
            fix = "read the sorts with the same relations"
            reject("sorts", f"relations from 0 to {len(self.vocabulary) - 1}", most, fix)
        self.names = tuple(map(str, sorts)) if isinstance(sorts, Mapping) else tuple(sort.text for sort in self.sorts)
        self.norm, self.per, self.binary, self.memory_limit = norm, per, binary, memory_limit

    def build(self, graph: Graph) -> BoundBasis:
        if graph.M != graph.N:
            fix = "give the nodes of all types one numbering, as data.to_homogeneous() does"
            reject("graph", "as many sources as targets, for walks", (graph.M, graph.N), fix)
        norm = self.norm if self.per == "walk" else None
        return self._of(graph, norm, self.norm if self.per == "step" else None)

    def _stepwise(self, graph: Graph, norm: Norm, each: Norm) -> BoundBasis:
        if self.binary:
            refuse("binary", "False", True)
        return stepwise(graph, [sort.sequences for sort in self.sorts], norm, each)

    @with_plain(_stepwise)
    def _of(self, graph: Graph, norm: Norm, each: Norm) -> BoundBasis:
        """The walks, of which each is normalised, or each step."""
        steps = Steps(graph, len(self.vocabulary) or None, each)
        sorts = [[tuple((step, False) for step in sequence) for sequence in sort.sequences] for sort in self.sorts]
        return BoundWalks(sorts, steps, [sort.text for sort in self.sorts], self.memory_limit, norm, self.binary)

    def extra_repr(self) -> str:
        sorts = [sort.text for sort in self.sorts]
        shown = [repr(dict(zip(self.names, sorts, strict=True)) if list(self.names) != sorts else sorts)]
        shown += [f"relations=<{len(self.vocabulary)} names>"] if len(self.vocabulary) else []
        return arguments(self, *shown, norm=None, per="walk", binary=False, memory_limit=1 << 30)

    @property
    def extra_key(self) -> Hashable:
        # The printed names may belong to other relations in another vocabulary.
        sequences = tuple(sort.sequences for sort in self.sorts)
        return sequences, len(self.vocabulary), super().extra_key
