"""Sorts of walks, as sums of sequences of steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from ..errors import reject
from .syntax import LONGEST, Reader
from .tree import Choice, Concatenation, Name, Node, Repetition, join, written
from .vocabulary import IDS, Vocabulary
from .wording import brief, shown

Step = tuple[tuple[int, bool], ...]
Located = tuple[Step, int | None]

MOST = 10_000


@dataclass(frozen=True)
class Sort:
    """A sort of walks: those that follow any one of its sequences of steps.

    Args:
        text: how it is written.
        sequences: each a sequence of steps; a step is the relations that it may take, as (id, whether against it).
            The empty sequence stays where it is.

    >>> sort = parse("a.^b", ["a", "b"])
    >>> sort, sort.sequences
    (Sort(text='a.^b'), ((((0, False),), ((1, True),)),))
    """

    text: str
    sequences: tuple[tuple[Step, ...], ...] = field(repr=False)

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of steps of the shortest and of the longest sequence."""
        lengths = [len(s) for s in self.sequences]
        return min(lengths), max(lengths)

    def __str__(self) -> str:
        return self.text


def parse(sort: "str | Sequence[Any] | Sort", vocabulary: Any) -> Sort:
    r"""Reads a sort of walks.

    Steps are joined by dots: with A_r the matrix of relation r, `a.b` has :math:`A_a A_b`. `^a` goes against a relation
    (:math:`A_a^\top`), `(a|b)` takes either (:math:`A_a + A_b`), `a{3}` repeats (:math:`A_a^3`), `a{0,2}` does so up to
    twice (:math:`I + A_a + A_a^2`); all three also of a sort in parentheses. A name is written as it is where it
    consists of letters of any script, digits, _, - and :, and in <> otherwise (and > in it as >>).

    Args:
        sort: what is written; or a list with one item per step: a relation's id, its name (^ before it for the
            inverse), or an edge type (head type, name, tail type) or, where only one relation has these, (head type,
            tail type).
        vocabulary: whatever `Vocabulary.of` takes.

    Raises:
        ValueError: what is wrong, and the column where it stands: mistakes of the syntax, unknown relations, steps
            whose types do not join, and more than 10,000 sequences, or more than 10,000 steps in all of them.

    >>> parse("played.characterIn", ["played", "characterIn"]).sequences
    ((((0, False),), ((1, False),)),)
    >>> parse("(a|^b).c{0,1}", ["a", "b", "c"]).sequences
    ((((0, False), (1, True)),), (((0, False), (1, True)), ((2, False),)))
    >>> parse("^(a.b){2}", ["a", "b"]).text, parse(["a", "^b", 0], ["a", "b"]).text
    ('(^b.^a){2}', 'a.^b.a')
    >>> parse("a..b", ["a", "b"])
    Traceback (most recent call last):
    ...
    ValueError: sorts: expected a relation, got '.' at column 3 of 'a..b'; write steps as ...
    """
    if isinstance(sort, Sort):
        return sort
    words = Vocabulary.of(vocabulary)
    if isinstance(sort, str):
        tree = Reader(sort, words).read()
        source = sort
    elif isinstance(sort, Sequence) and len(sort):
        tree = join(Concatenation, [_item(item, at, words) for at, item in enumerate(sort, 1)])
        source = written(tree, words)
    else:
        reject("sorts", "a sort as a string or a list of its steps", shown(sort), "write 'relation.relation'")
    sequences = _sequences(tree, source)
    for sequence in sequences:
        _check_ends(sequence, source, words)
    return Sort(written(tree, words), tuple(tuple(step for step, _ in s) for s in sequences))


def _item(item: Any, at: int, words: Vocabulary) -> Name:
    """One step of a list."""
    where = f"{shown(item)} as item {at}"
    if isinstance(item, str):
        inverse = words.find(item) is None and item.startswith("^")
        name = item[inverse:]
        found = words.find(name)
        if found is None:
            reject("sorts", "a relation of the graph", where, words.suggestion(name))
        return Name(found, inverse, None)
    if isinstance(item, Integral) and not isinstance(item, bool):
        id, end = int(item), IDS if words.open else len(words)
        if not 0 <= id < end:
            reject("sorts", f"ids of relations, from 0 on and below {end:,}", where, "name a relation of the graph")
        return Name(id, False, None)
    if isinstance(item, tuple) and len(item) in (2, 3) and all(isinstance(t, str) for t in item):
        ids = words.edge(item)
        if len(ids) != 1:
            several = " or ".join(repr(words.shown(i)) for i in ids[:3])
            reject("sorts", "an edge type of the graph", where, f"say which: {several}" if ids else "name its relation")
        return Name(ids[0], False, None)
    reject("sorts", "ids, names or edge types of relations", where, "name one relation per step")


def _sequences(node: Node, source: str) -> list[tuple[Located, ...]]:
    match node:
        case Name(id, inverse, column):
            return [((((id, inverse),), column),)]
        case Concatenation(parts):
            return _product((_sequences(p, source) for p in parts), source)
        case Choice(parts):
            return _sum([_sequences(p, source) for p in parts], source)
        case Repetition(part, least, most, _):
            return _powers(_sequences(part, source), least, most, source)


def _product(factors: Iterable[list[tuple[Located, ...]]], source: str) -> list[tuple[Located, ...]]:
    result: list[tuple[Located, ...]] = [()]
    for f in factors:
        steps = len(f) * sum(map(len, result)) + len(result) * sum(map(len, f))
        _check_size(len(result) * len(f), steps, source)
        result = [a + b for a in result for b in f]
    return result


def _sum(alternatives: list[list[tuple[Located, ...]]], source: str) -> list[tuple[Located, ...]]:
    """Alternatives that are single steps become one step, which has a column: that of the first."""
    single = [a[0][0] for a in alternatives if len(a) == 1 and len(a[0]) == 1]
    several = [s for a in alternatives if not (len(a) == 1 and len(a[0]) == 1) for s in a]
    _check_size(len(several), sum(map(len, several)), source)
    if not single:
        return several
    step = tuple(sorted(way for step, _ in single for way in step))
    return [((step, single[0][1]),), *several]


def _powers(base: list[tuple[Located, ...]], least: int, most: int, source: str) -> list[tuple[Located, ...]]:
    _check_size(0, least * min(map(len, base)) + (most - least) * least, source)
    power: list[tuple[Located, ...]] = [()]
    square, times = base, least
    while times:
        power = _product([power, square], source) if times % 2 else power
        times //= 2
        square = _product([square, square], source) if times else square
    result = power
    for _ in range(most - least):
        power = _product([power, base], source)
        result = result + power
        _check_size(len(result), sum(map(len, result)), source)
    return result


def _check_size(sequences: int, steps: int, source: str) -> None:
    if sequences > MOST or steps > LONGEST:
        expected = f"at most {MOST:,} sequences with {LONGEST:,} steps in all"
        got = f"{sequences:,} with {steps:,}" if sequences else f"{steps:,} steps"
        reject("sorts", expected, f"{got} or more in {brief(source)}", "repeat less often, or name fewer alternatives")


def _check_ends(sequence: tuple[Located, ...], source: str, words: Vocabulary) -> None:
    """Refuses a step that starts at none of the types where the steps before it end."""
    if words.ends is None:
        return
    here: set[str] | None = None
    for at, (step, column) in enumerate(sequence, 1):
        ways = [words.ends[id][:: -1 if inverse else 1] if words.ends[id] else None for id, inverse in step]  # type: ignore[index]
        goes = [w for w in ways if w is None or here is None or w[0] in here]
        if not goes:
            names = "|".join("^" * inverse + words.shown(id) for id, inverse in step)
            starts = " or ".join(sorted({w[0] for w in ways if w}))
            place = f"at column {column}" if column else f"as step {at}"
            got = f"{brief(names)} from {starts} {place} of {brief(source)}"
            reject("sorts", f"a step from {' or '.join(sorted(here or ()))}", got, "join steps where their types meet")
        here = None if None in goes else {w[1] for w in goes if w}
