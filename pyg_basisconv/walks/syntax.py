"""Reads what a user writes as a sort of walks."""

from dataclasses import dataclass
from typing import NoReturn

from ..errors import DEPTH, reject
from .tree import Choice, Concatenation, Name, Node, Repetition, join, plain, turned
from .vocabulary import Vocabulary
from .wording import brief

LONGEST = 10_000


@dataclass(frozen=True)
class Token:
    """A name (`quoted` where it stood in <>), one of the signs, or the end ('')."""

    text: str
    column: int
    is_name: bool = False
    quoted: bool = False


class Reader:
    """Reads one sort by descent: alternatives of chains of repeats of relations.

    Args:
        text: the sort.
        vocabulary: the relations that it may name.
    """

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.text, self.vocabulary = text, vocabulary
        self._tokens = self._split()
        self._at = 0
        self._depth = 0

    def read(self) -> Node:
        """The tree of the whole text."""
        node = self._choice()
        if self._now.text:
            self._expected("'.', '|' or the end")
        return node

    def fail(self, expected: str, got: str, column: int, fix: str) -> NoReturn:
        """Refuses the sort because of what stands at a column."""
        reject("sorts", expected, f"{got} at column {column} of {brief(self.text)}", fix)

    def _split(self) -> list[Token]:
        tokens, at = [], 0
        while at < len(self.text):
            token, after = self._token(at)
            if token is not None:
                tokens.append(token)
            at = after
        return [*tokens, Token("", len(self.text) + 1)]

    def _token(self, at: int) -> tuple[Token | None, int]:
        sign = self.text[at]
        if sign.isspace():
            return None, at + 1
        if sign == "<":
            return self._quoted(at)
        if sign in ".|^(){},":
            return Token(sign, at + 1), at + 1
        if not plain(sign):
            fix = "put names with such characters into <>" if sign != ">" else "write > inside of <> as >>"
            self.fail("a relation or one of . | ^ ( ) { }", repr(sign), at + 1, fix)
        end = at
        while end < len(self.text) and plain(self.text[end]):
            end += 1
        return Token(self.text[at:end], at + 1, is_name=True), end

    def _quoted(self, at: int) -> tuple[Token, int]:
        end = self.text.find(">", at)
        while end >= 0 and self.text.startswith(">>", end):
            end = self.text.find(">", end + 2)
        if end < 0:
            self.fail("'>' behind a name in <>", "'<' without it", at + 1, "close the name by >")
        if end == at + 1:
            self.fail("a name in <>", "'<>'", at + 1, "name a relation")
        return Token(self.text[at + 1 : end].replace(">>", ">"), at + 1, is_name=True, quoted=True), end + 1

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _take(self, *signs: str) -> bool:
        """Steps over the token if it is one of these signs."""
        found = not self._now.is_name and self._now.text in signs
        self._at += found
        return found

    def _expected(self, what: str) -> NoReturn:
        token = self._now
        got = repr(token.text) if token.text else "the end"
        self.fail(what, got, token.column, "write steps as relation.relation, ^inverse, (this|that), twice{2}")

    def _choice(self) -> Node:
        parts = [self._chain()]
        while self._take("|"):
            parts.append(self._chain())
        return join(Choice, parts)

    def _chain(self) -> Node:
        parts = [self._repeat()]
        while self._take("."):
            parts.append(self._repeat())
        return join(Concatenation, parts)

    def _repeat(self) -> Node:
        part = self._part()
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
            self.fail("{n} or {m,n} with n >= 1, m <= n", times, brace.column, fix)
        if self._now.text == "{" and not self._now.is_name:
            self.fail("one repeat", "a second", self._now.column, "put the first into parentheses")
        return part if least == most == 1 else Repetition(part, least, most, brace.column)

    def _number(self) -> int:
        token = self._now
        if not (token.is_name and not token.quoted and token.text.isascii() and token.text.isdecimal()):
            self._expected("a number of times")
        self._at += 1
        if len(token.text.lstrip("0")) > 7 or int(token.text) > LONGEST:
            self.fail(f"at most {LONGEST:,} times", brief(token.text), token.column, "repeat less often")
        return int(token.text)

    def _part(self) -> Node:
        inverse = False
        while self._take("^"):
            inverse = not inverse
        bracket = self._now
        if not self._take("("):
            return self._name(inverse)
        self._depth += 1
        if self._depth > DEPTH:
            self.fail(f"at most {DEPTH} open parentheses", "one more", bracket.column, "nest less deeply")
        node = self._choice()
        if not self._take(")"):
            if not self._now.text:
                self.fail("')' for every '('", "'(' without it", bracket.column, "close the parenthesis")
            self._expected("')', '|' or '.'")
        self._depth -= 1
        return turned(node) if inverse else node

    def _name(self, inverse: bool) -> Node:
        token = self._now
        if not token.is_name:
            self._expected("a relation")
        self._at += 1
        id = self.vocabulary.find(token.text)
        if id is None:
            fix = self.vocabulary.suggestion(token.text)
            self.fail("a relation of the graph", brief(token.text), token.column, fix)
        return Name(id, inverse, token.column)
