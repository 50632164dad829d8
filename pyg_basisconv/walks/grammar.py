"""The grammar of sorts of walks: from a text to sequences of steps."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple, NoReturn

from ..errors import DEPTH, reject
from .vocabulary import IDS, Vocabulary
from .wording import shown

Step = tuple[tuple[int, bool], ...]
Located = tuple[Step, int | None]  # a step, and its column in the text

MOST = LONGEST = 10_000  # sequences of a sort, and steps in all of them, at most
_SIGNS = r".|^(){},<>"
_TOKEN = re.compile(rf"<(?P<quoted>(?:[^>]|>>)*)>(?!>)|(?P<name>[^\s{_SIGNS}]+)|\S")


@dataclass(frozen=True)
class Sort:
    """A sort of walks: all walks that follow one of its sequences of steps.

    Args:
        text: its expression.
        sequences: sequences of steps; a step is the relations that it may follow, as (id, whether it is inverse). The
            empty sequence stays at its node.

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


class _Part(NamedTuple):
    """A part of a sort.

    text: in canonical form.
    sequences: of its steps.
    repeatable: whether it needs no parentheses before {n}.
    alternatives: of a choice.
    """

    text: str
    sequences: list[tuple[Located, ...]]
    repeatable: bool = True
    alternatives: tuple["_Part", ...] = ()


def _step(id: int, inverse: bool, column: int | None, words: Vocabulary) -> _Part:
    return _Part("^" * inverse + quoted(words.shown(id)), [((((id, inverse),), column),)])


def _chain(parts: list[_Part], source: str) -> _Part:
    """Parts in sequence."""
    if len(parts) == 1:
        return parts[0]
    return _Part(".".join(p.text for p in parts), _product((p.sequences for p in parts), source), repeatable=False)


def _choice(parts: list[_Part], source: str) -> _Part:
    """A choice of parts; choices among the parts are flattened."""
    flat = tuple(one for part in parts for one in (part.alternatives or (part,)))
    if len(flat) == 1:
        return flat[0]
    text = "(" + "|".join(p.text for p in flat) + ")"
    return _Part(text, _sum([p.sequences for p in flat], source), alternatives=flat)


def _repeated(part: _Part, least: int, most: int, source: str) -> _Part:
    """A part, repeated `least` to `most` times."""
    if least == most == 1:
        return part
    times = str(least) if least == most else f"{least},{most}"
    text = part.text if part.repeatable else f"({part.text})"
    return _Part(f"{text}{{{times}}}", _powers(part.sequences, least, most, source), repeatable=False)


def quoted(name: str) -> str:
    """A name as it is written in a sort: in <> if it contains a blank or a sign.

    >>> quoted("characterIn"), quoted("part of"), quoted("a->b")
    ('characterIn', '<part of>', '<a->>b>')
    """
    match = _TOKEN.fullmatch(name)
    return name if match and match["name"] else "<" + name.replace(">", ">>") + ">"


class _Token(NamedTuple):
    """A name (`quoted` if it was in <>), a sign, or the end ('')."""

    text: str
    column: int
    is_name: bool = False
    quoted: bool = False


class _Reader:
    """A recursive descent parser of one sort: alternatives of chains of repeats of relations.

    After ^, `inverse` is True: relations are inverted, and chains reversed.
    """

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.text, self.vocabulary = text, vocabulary
        self._tokens = [*map(self._token, _TOKEN.finditer(text)), _Token("", len(text) + 1)]
        self._at = 0
        self._depth = 0

    def read(self) -> _Part:
        """The whole text."""
        part = self._choice(inverse=False)
        if self._now.text:
            self._expected("'.', '|' or the end")
        return part

    def _fail(self, expected: str, got: str, column: int, fix: str) -> NoReturn:
        """Rejects the sort, with the column of the mistake."""
        reject("sorts", expected, f"{got} at column {column} of {shown(self.text)}", fix)

    def _token(self, match: re.Match[str]) -> _Token:
        text, column = match.group(), match.start() + 1
        if text == "<":
            self._fail("'>' behind a name in <>", "'<' without it", column, "close the name by >")
        if text == "<>":
            self._fail("a name in <>", "'<>'", column, "name a relation")
        if match["quoted"] is not None:
            return _Token(match["quoted"].replace(">>", ">"), column, is_name=True, quoted=True)
        return _Token(text, column, is_name=match["name"] is not None)

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, sign: str) -> bool:
        """Consumes the token if it is this sign."""
        found = not self._now.is_name and self._now.text == sign
        self._at += found
        return found

    def _expected(self, what: str) -> NoReturn:
        token = self._now
        got = shown(token.text) if token.text else "the end"
        rest = self.text[token.column - 1 :]
        meant = [fix for sign, fix in _MEANT.items() if rest.startswith(sign)]
        if what == _TIMES:
            meant = ["write relation{2}, or relation{0,2}"]
        elif token.is_name and what.startswith("'.'"):  # two names beside each other
            meant.append(_MEANT["/"])
        meant.append("write steps as relation.relation, ^inverse, (this|that), twice{2}")
        self._fail(what, got, token.column, meant[0])

    def _choice(self, inverse: bool) -> _Part:
        parts = [self._chain(inverse)]
        while self._take("|"):
            parts.append(self._chain(inverse))
        return _choice(parts, self.text)

    def _chain(self, inverse: bool) -> _Part:
        parts = [self._repeat(inverse)]
        while self._take("."):
            parts.append(self._repeat(inverse))
        return _chain(parts[::-1] if inverse else parts, self.text)

    def _repeat(self, inverse: bool) -> _Part:
        part = self._part(inverse)
        brace = self._now
        if not self._take("{"):
            return part
        least = self._number()
        most = self._number() if self._take(",") else least
        if not self._take("}"):
            self._expected("'}' or ','")
        if most < least or most == 0:
            times = f"{{{least},{most}}}" if most != least else f"{{{least}}}"
            fix = f"write {{{most},{least}}}" if most else "leave the part out"
            self._fail("{n} or {m,n} with n >= 1, m <= n", times, brace.column, fix)
        if self._now.text == "{" and not self._now.is_name:
            self._fail("one repeat", "a second", self._now.column, "put the first into parentheses")
        return _repeated(part, least, most, self.text)

    def _number(self) -> int:
        token = self._now
        if not (token.is_name and not token.quoted and token.text.isascii() and token.text.isdecimal()):
            self._expected(_TIMES)
        self._at += 1
        if len(token.text.lstrip("0")) > len(str(LONGEST)) or int(token.text) > LONGEST:
            self._fail(f"at most {LONGEST:,} times", shown(token.text), token.column, "repeat less often")
        return int(token.text)

    def _part(self, inverse: bool) -> _Part:
        while self._take("^"):
            inverse = not inverse
        bracket = self._now
        if not self._take("("):
            return self._name(inverse)
        self._depth += 1
        if self._depth > DEPTH:
            self._fail(f"at most {DEPTH} open parentheses", "one more", bracket.column, "nest less deeply")
        part = self._choice(inverse)
        if not self._take(")"):
            if not self._now.text:
                self._fail("')' for every '('", "'(' without it", bracket.column, "close the parenthesis")
            self._expected("')', '|' or '.'")
        self._depth -= 1
        return part

    def _name(self, inverse: bool) -> _Part:
        token = self._now
        if not token.is_name:
            self._expected("a relation")
        self._at += 1
        id = self.vocabulary.find(token.text)
        if id is None:
            self._fail("a relation of the graph", shown(token.text), token.column, self._meant(token.text))
        return _step(id, inverse, token.column, self.vocabulary)

    def _meant(self, name: str) -> str:
        """What to write instead of a name that no relation has."""
        for sign, fix in _MEANT.items():
            if name.startswith(sign) or (sign in name and sign not in "-~"):
                return fix
        for known in self.vocabulary.names:
            if known.startswith(f"{name} "):
                return f"a name with a blank in it is written in <>: <{known}>"
        return self.vocabulary.suggestion(name)


_TIMES = "a number of times"

# Signs of other languages in the place of ours, and what to write.
_MEANT = {
    "*": "a repeat has an end: write relation{0,3}",
    "+": "a repeat has an end: write relation{1,3}",
    "?": "write relation{0,1}",
    "/": "steps are joined by dots: relation.relation",
    "->": "steps are joined by dots: relation.relation",
    ">": "steps are joined by dots: relation.relation",
    '"': "a name with a blank in it is written in <>, others without quotes",
    "'": "a name with a blank in it is written in <>, others without quotes",
    "-": "the inverse is written ^relation",
    "~": "the inverse is written ^relation",
    "^-": "the inverse is written ^relation",
}


def parse(sort: "str | Sequence[Any] | Sort", vocabulary: Any) -> Sort:
    r"""Reads a sort of walks.

    Steps are joined by dots: with A_r the matrix of relation r, `a.b` has :math:`A_a A_b`. `^a` goes against a relation
    (:math:`A_a^\top`), `(a|b)` takes either (:math:`A_a + A_b`), `a{3}` repeats (:math:`A_a^3`), `a{0,2}` does so up to
    twice (:math:`I + A_a + A_a^2`); all three also of a sort in parentheses. A name with a blank in it, or
    with one of the signs . | ^ ( ) { } , < >, is written in <> (and > in it as >>).

    Args:
        sort: an expression; or a list with one item per step: a relation's id, its name (with ^ for the inverse), or an
            edge type (head type, name, tail type), which may be (head type, tail type) if only one relation has it.
        vocabulary: the relations, as `Vocabulary.of` takes them.

    Raises:
        ValueError: with the column, for mistakes of the syntax, unknown relations, steps whose types do not join, more
            than 10,000 sequences, or more than 10,000 steps in all of them.

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
        found, source = _Reader(sort, words).read(), sort
    elif isinstance(sort, Sequence) and len(sort):
        found = _chain([_item(item, at, words) for at, item in enumerate(sort, 1)], "a list of steps")
        source = found.text
    else:
        reject("sorts", "a sort as a string or a list of its steps", shown(sort), "write 'relation.relation'")
    for sequence in found.sequences:
        _check_ends(sequence, source, words)
    return Sort(found.text, tuple(tuple(step for step, _ in s) for s in found.sequences))


def _item(item: Any, at: int, words: Vocabulary) -> _Part:
    """One step of a list."""
    where = f"{shown(item)} as item {at}"
    if isinstance(item, str):
        inverse = words.find(item) is None and item.startswith("^")
        name = item[inverse:]
        found = words.find(name)
        if found is None:
            reject("sorts", "a relation of the graph", where, words.suggestion(name))
        return _step(found, inverse, None, words)
    if isinstance(item, Integral) and not isinstance(item, bool):
        id, end = int(item), IDS if words.open else len(words)
        if not 0 <= id < end:
            reject("sorts", f"ids of relations, from 0 on and below {end:,}", where, "name a relation of the graph")
        return _step(id, False, None, words)
    if isinstance(item, tuple) and len(item) in (2, 3) and all(isinstance(t, str) for t in item):
        ids = words.edge(item)
        if len(ids) != 1:
            several = " or ".join(repr(words.shown(i)) for i in ids[:3])
            reject("sorts", "an edge type of the graph", where, f"say which: {several}" if ids else "name its relation")
        return _step(ids[0], False, None, words)
    fix = "name one relation per step"
    if isinstance(item, Sort):  # of what `suggest_sorts` returned
        fix = "a sort is no step: pass [one.sort for one in found]"
    reject("sorts", "ids, names or edge types of relations", where, fix)


def _product(
    factors: Iterable[list[tuple[Located, ...]]], source: str, fits: int | None = None
) -> list[tuple[Located, ...]]:
    """All sequences of one of each factor; `fits` as in `_check_size`."""
    result: list[tuple[Located, ...]] = [()]
    for f in factors:
        steps = len(f) * sum(map(len, result)) + len(result) * sum(map(len, f))
        _check_size(len(result) * len(f), steps, source, fits)
        result = [a + b for a in result for b in f]
    return result


def _sum(alternatives: list[list[tuple[Located, ...]]], source: str) -> list[tuple[Located, ...]]:
    """The sequences of alternatives; single steps become one step, with the column of the first."""
    single = [a[0][0] for a in alternatives if len(a) == 1 and len(a[0]) == 1]
    several = [s for a in alternatives if not (len(a) == 1 and len(a[0]) == 1) for s in a]
    _check_size(len(several), sum(map(len, several)), source)
    if not single:
        return several
    step = tuple(sorted(way for step, _ in single for way in step))
    return [((step, single[0][1]),), *several]


def _powers(base: list[tuple[Located, ...]], least: int, most: int, source: str) -> list[tuple[Located, ...]]:
    power: list[tuple[Located, ...]] = [()]
    result: list[tuple[Located, ...]] = []
    for times in range(most + 1):
        power = _product([power, base], source, times - 1) if times else power
        result = result + power if times >= least else result
        _check_size(len(result), sum(map(len, result)), source, times - 1)
    return result


def _check_size(sequences: int, steps: int, source: str, fits: int | None = None) -> None:
    """Rejects a sort that is too large; `fits` is how often the part may be repeated that is too large."""
    if sequences > MOST or steps > LONGEST:
        expected = f"at most {MOST:,} sequences with {LONGEST:,} steps in all"
        got = f"{sequences:,} with {steps:,}" if sequences else f"{steps:,} steps"
        often = f"repeat at most {fits} times" if fits and fits > 1 else "repeat less often"
        reject("sorts", expected, f"{got} or more in {shown(source)}", f"{often}, or name fewer alternatives")


def _check_ends(sequence: tuple[Located, ...], source: str, words: Vocabulary) -> None:
    """Rejects a step that starts at none of the types at which the steps before it end."""
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
            got = f"{shown(names)} from {starts} {place} of {shown(source)}"
            reject("sorts", f"a step from {' or '.join(sorted(here or ()))}", got, "join steps where their types meet")
        here = None if None in goes else {w[1] for w in goes if w}
