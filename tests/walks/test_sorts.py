"""Sorts of walks: what is written, what it means, what is refused, and how many walks there are."""

import itertools
import re
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch_geometric.data import HeteroData

from pyg_basisconv.walks import Sort, Vocabulary, counting, parse
from pyg_basisconv.walks.counting import Instances
from tests.contract import tensors
from tests.oracle import Graph
from tests.walks import oracle as kg
from tests.walks.test_properties import R, Written, brief, graphs, sorts

ABC = ["a", "b", "c"]
A, B, C = ((0, False),), ((1, False),), ((2, False),)
Ai, Bi, Ci = ((0, True),), ((1, True),), ((2, True),)
AB = ((0, False), (1, False))
TYPED = Vocabulary(
    ["played", "characterIn", "genre", "any"],
    [("Actor", "Character"), ("Character", "Work"), ("Work", "Genre"), None],
)


@pytest.mark.parametrize(
    ("sort", "text", "sequences"),
    [
        ("a", "a", [[A]]),
        ("a.b", "a.b", [[A, B]]),
        (" a . b\t", "a.b", [[A, B]]),
        ("<a>.b", "a.b", [[A, B]]),
        ("^a", "^a", [[Ai]]),
        ("^^a", "a", [[A]]),
        ("^(a.b)", "^b.^a", [[Bi, Ai]]),
        ("^(a.^b)", "b.^a", [[B, Ai]]),
        ("^(a|b.c)", "(^a|^c.^b)", [[Ai], [Ci, Bi]]),
        ("(a)", "a", [[A]]),
        ("((a.b)).c", "a.b.c", [[A, B, C]]),
        ("(a|b)", "(a|b)", [[AB]]),
        ("(b|a)", "(b|a)", [[AB]]),
        ("a|b", "(a|b)", [[AB]]),
        ("(a|^a)", "(a|^a)", [[((0, False), (0, True))]]),
        ("(a|(b|c))", "(a|b|c)", [[((0, False), (1, False), (2, False))]]),
        ("(a|b).c", "(a|b).c", [[AB, C]]),
        ("a.b|c", "(a.b|c)", [[C], [A, B]]),
        ("(a|b|a.c)", "(a|b|a.c)", [[AB], [A, C]]),
        ("a{2}", "a{2}", [[A, A]]),
        ("a{1}", "a", [[A]]),
        ("a{1,1}", "a", [[A]]),
        ("a{ 1 , 3 }", "a{1,3}", [[A], [A, A], [A, A, A]]),
        ("a{0,2}", "a{0,2}", [[], [A], [A, A]]),
        ("a{0,1}.b", "a{0,1}.b", [[B], [A, B]]),
        ("^a{2}", "^a{2}", [[Ai, Ai]]),
        ("(a.b){2}", "(a.b){2}", [[A, B, A, B]]),
        ("((a|b).c){2}", "((a|b).c){2}", [[AB, C, AB, C]]),
        ("^(a.b){2}", "(^b.^a){2}", [[Bi, Ai, Bi, Ai]]),
        ("(a{2}){2}", "(a{2}){2}", [[A] * 4]),
        ("(a|b){2}", "(a|b){2}", [[AB, AB]]),
        ("(a{0,1}|b)", "(a{0,1}|b)", [[B], [], [A]]),
        ("(a|a)", "(a|a)", [[((0, False), (0, False))]]),
    ],
)
def test_meaning(sort: str, text: str, sequences: list[Any]) -> None:
    found = parse(sort, ABC)
    assert found.text == str(found) == text
    assert found.sequences == tuple(tuple(s) for s in sequences)
    assert parse(found.text, ABC) == found
    lengths = [len(s) for s in sequences]
    assert found.lengths == (min(lengths), max(lengths))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Genre_2-x:y", "Genre_2-x:y"),
        ("七人の侍", "七人の侍"),
        ("Сталкер", "Сталкер"),
        ("পাঁচালী", "পাঁচালী"),
        ("/film/film/genre", "/film/film/genre"),
        ("place of birth", "<place of birth>"),
        ("a.b", "<a.b>"),
        ("a|b{2}^(c)", "<a|b{2}^(c)>"),
        ("a->b", "<a->>b>"),
        (">", "<>>>"),
        (">>", "<>>>>>"),
        ("<a", "<<a>"),
        ("1", "1"),
    ],
)
def test_names(name: str, written: str) -> None:
    found = parse(f"{written}.x", [name, "x"])
    assert (found.text, found.sequences) == (f"{written}.x", ((A, B),))


def test_aliases_are_shown() -> None:
    v = Vocabulary(["/film/genre", "b"], None, {"genre": "/film/genre", "kind": "/film/genre"})
    assert parse("</film/genre>.kind.genre.b", v).text == "genre.genre.genre.b"


def test_lists() -> None:
    assert parse(["a", "^b", 2], ABC) == parse("a.^b.c", ABC)
    assert parse(("a",), ABC) == parse("a", ABC)
    assert parse([np.int64(0), "^b"], ABC) == parse("a.^b", ABC)
    assert parse([5, "7", "^7"], None).sequences == ((((5, False),), ((7, False),), ((7, True),)),)
    assert parse(["^x", "^^x"], ["^x", "x"]).sequences == ((A, Ai),), "a name as it is comes first"
    assert parse(["place of birth"], ["place of birth"]).text == "<place of birth>"
    found = parse("a", ABC)
    assert parse(found, ["other"]) is found


def test_metapaths() -> None:
    data = HeteroData()
    for t in (
        ("author", "writes", "paper"),
        ("paper", "in", "venue"),
        ("paper", "cites", "paper"),
        ("paper", "x", "paper"),
    ):
        data[t].edge_index = torch.empty(2, 0, dtype=torch.long)
    metapath = [("author", "paper"), ("paper", "cites", "paper"), ("paper", "in", "venue")]
    assert parse(metapath, data).text == "writes.cites.in"
    with pytest.raises(ValueError, match=r"item 2; say which: 'cites' or 'x'"):
        parse([("author", "paper"), ("paper", "paper")], data)
    with pytest.raises(ValueError, match="edge type of the graph"):
        parse([("author", "likes", "paper")], data)
    with pytest.raises(ValueError, match="expected a step from paper, got 'writes' from author as step 2"):
        parse([("author", "paper"), ("author", "paper")], data)


@pytest.mark.parametrize(
    ("sort", "column", "words"),
    [
        ("", 1, "a relation, got the end"),
        (" ", 2, "a relation, got the end"),
        ("a.", 3, "a relation, got the end"),
        (".a", 1, "a relation, got '.'"),
        ("a..b", 3, "a relation, got '.'"),
        ("a b", 3, "'.', '|' or the end, got 'b'"),
        ("a)", 2, "got ')'"),
        ("a.(b", 3, "')' for every '('"),
        ("(a b)", 4, "')', '|' or '.', got 'b'"),
        ("()", 2, "a relation, got ')'"),
        ("(a|)", 4, "a relation, got ')'"),
        ("(|a)", 2, "a relation, got '|'"),
        ("a|", 3, "a relation, got the end"),
        ("^", 2, "a relation, got the end"),
        ("a^b", 2, "got '^'"),
        ("a{0}", 2, "got {0}"),
        ("a{0,0}", 2, "got {0}"),
        ("a{2,1}", 2, "got {2,1} at column 2 of 'a{2,1}'; write {1,2}"),
        ("a{", 3, "a number of times"),
        ("a{}", 3, "a number of times"),
        ("a{x}", 3, "a number of times, got 'x'"),
        ("a{-1}", 3, "a number of times, got '-1'"),
        ("a{,2}", 3, "a number of times"),
        ("a{2,}", 5, "a number of times"),
        ("a{1,2,3}", 6, "'}' or ','"),
        ("a{<1>}", 3, "a number of times"),
        ("a{²}", 3, "a number of times"),
        ("a{2", 4, "'}' or ','"),
        ("a{2}{3}", 5, "one repeat"),
        ("{2}", 1, "a relation, got '{'"),
        ("a.<", 3, "'>' behind a name"),
        ("a.<b", 3, "'>' behind a name"),
        ("<b>>", 1, "'>' behind a name"),
        ("<>", 1, "a name in <>"),
        ("a.d", 3, "a relation of the graph, got 'd'"),
        ("a.<b c>", 3, "a relation of the graph, got 'b c'"),
        ("a.b/c", 3, "a relation of the graph, got 'b/c'"),
        ("a->b", 1, "a relation of the graph, got 'a-'"),
        ("a{9999999999}", 3, "at most 10,000 times"),
        ("a{10001}", 3, "at most 10,000 times"),
        ("a{" + "9" * 5000 + "}", 3, "at most 10,000 times"),
        ("(" * 5000 + "a" + ")" * 5000, 101, "at most 100 open parentheses"),
    ],
)
def test_syntax_errors(sort: str, column: int, words: str) -> None:
    with pytest.raises(ValueError, match=r"^sorts: expected .*, got .*; .+") as caught:
        parse(sort, ABC)
    message = str(caught.value)
    assert words in message
    assert f"at column {column} of " in message
    assert len(message) < 400


@pytest.mark.parametrize("part", ["(a.b|b.a.a)", "(a|b.b|a.a.a)"])
@pytest.mark.parametrize("least", ["", "1,", "3,"])
def test_a_repeat_that_is_too_long_says_which_one_fits(part: str, least: str) -> None:
    with pytest.raises(ValueError, match="repeat at most") as error:
        parse(f"{part}{{{least}40}}", ["a", "b"])
    fits = int(re.search(r"repeat at most (\d+) times", str(error.value))[1])
    assert parse(f"{part}{{{least}{fits}}}", ["a", "b"]).sequences
    with pytest.raises(ValueError, match=f"repeat at most {fits} times"):
        parse(f"{part}{{{least}{fits + 1}}}", ["a", "b"])


def test_as_much_as_there_may_be() -> None:
    """10,000 steps; of what may not be repeated at all no number is said."""
    (walk,) = parse("a{10000}", ["a"]).sequences
    assert len(walk) == 10_000
    with pytest.raises(ValueError, match=r"; repeat less often, or name fewer"):
        parse("(a{5001}){2}", ["a"])


@pytest.mark.parametrize("sort", ["a{1,200}", "(a|b.c){10}", "a{5000,5001}", "(a|b.c){10000}", "(a{2}){9999}"])
def test_too_many(sort: str) -> None:
    with pytest.raises(ValueError, match=r"^sorts: expected at most 10,000 sequences with 10,000 steps"):
        parse(sort, ABC)


def test_many() -> None:
    assert len(parse("(a|b.c){9}", ABC).sequences) == 2**9
    assert parse("a{10000}", ABC).lengths == (10000, 10000)
    assert parse("(" * 100 + "a" + ")" * 100, ABC).text == "a"
    assert parse(".".join(["a"] * 10000), ABC).lengths == (10000, 10000)
    assert parse("^" * 20001 + "a", ABC).text == "^a"


@pytest.mark.parametrize(
    "sort", [[], (), None, 3, {"a": "b"}, [None], [["a"]], [True], [3], [-1], ["d"], [""], [("a", "b")], [10**5000]]
)
def test_lists_refused(sort: Any) -> None:
    with pytest.raises(ValueError, match=r"^sorts: expected .*, got .*; .+"):
        parse(sort, ABC)


@pytest.mark.parametrize("id", [10**9, 10**5000, -1], ids=["the first", "digits", "below zero"])
def test_ids_where_any_are_taken(id: int) -> None:
    assert parse([10**9 - 1], None).text == "999999999"
    with pytest.raises(ValueError, match="sorts: expected ids of relations, from 0 on and below 1,000,000,000, got "):
        parse([id], None)


@pytest.mark.parametrize(
    "sort",
    [
        "played.characterIn.genre",
        "^genre.^characterIn.^played",
        "played.any.played",
        "any.any",
        "(played|genre).characterIn",
        "(characterIn|any).played",
        "(genre.^genre){0,3}",
        "(played|characterIn|genre){3}",
    ],
)
def test_types_join(sort: str) -> None:
    assert parse(sort, TYPED).text == sort


@pytest.mark.parametrize(
    ("sort", "words"),
    [
        ("played.genre", "a step from Character, got 'genre' from Work at column 8 of 'played.genre'"),
        ("played.^genre", "a step from Character, got '^genre' from Genre at column 9"),
        ("played{2}", "a step from Character, got 'played' from Actor at column 1"),
        ("played.(genre|^genre)", "got 'genre|^genre' from Genre or Work at column 9"),
        ("(played.characterIn|genre).genre", "a step from Genre, got 'genre' from Work at column 28"),
        ("played.(characterIn|genre).^genre", "a step from Work, got '^genre' from Genre at column 29"),
        (["played", "genre"], "got 'genre' from Work as step 2 of 'played.genre'"),
    ],
)
def test_types_that_do_not_join(sort: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r"^sorts: .*join steps where their types meet") as caught:
        parse(sort, TYPED)
    assert words in str(caught.value)


@given(st.text("ab.|^(){},<>012 д/", max_size=14))
def test_whatever_is_written(text: str) -> None:
    """Every text is a sort whose canonical form means the same, or is refused at a column."""
    message = ""
    try:
        found = parse(text, [*ABC, "д/"])
    except ValueError as error:
        message = str(error)
    if not message:
        assert parse(found.text, [*ABC, "д/"]) == found
        return
    match = re.match(r"(?s)sorts: expected .*, got .* at column (\d+) of .*; .+", message)
    assert match is not None
    assert 1 <= int(match.group(1)) <= len(text) + 1


# Counts, against walks that are enumerated one by one.


def walks(g: Graph, sort: kg.Sort) -> list[tuple[int, ...]]:
    """The nodes of every walk."""
    found = []
    for sequence in sort:
        ends = [[n for _, _, n in kg.moves(g, step)] for step in sequence]
        for start, _, taken in kg.instances(g, sequence):
            found.append((start, *(nodes[i] for nodes, i in zip(ends, taken, strict=True))))
    return found


def instances(sort: str, facts: list[tuple[int, int, int]], N: int) -> Instances:
    table = torch.tensor(facts, dtype=torch.long).view(-1, 3)
    return Instances(parse(sort, ABC), Vocabulary(ABC), table[:, ::2].t().contiguous(), table[:, 1].contiguous(), N)


ALL = [(a, 0, b) for a, b in itertools.product(range(6), range(6))]


@settings(max_examples=60)
@given(graphs(), sorts)
def test_counts_are_those_of_walks(g: Graph, written: Written) -> None:
    assume(brief(g, [written]))
    found, M = walks(g, written[1]), g.M
    given, words = tensors(g), Vocabulary.of(R)
    counted = Instances(parse(written[0], words), words, given["edge_index"], given["edge_type"], M)
    assert counted.count == len(found)
    assert [part.tolist() for part in counted.ends] == [
        [sum(w[i] == n for w in found) for n in range(M)] for i in (0, -1)
    ]
    assert counted.pairs == (len({(w[0], w[-1]) for w in found}), True)
    for n in range(M):
        assert counted.reached(n).tolist() == [sum((w[0], w[-1]) == (n, m) for w in found) for m in range(M)]
    samples = counted.samples(3)
    assert {tuple(s) for s in samples} <= set(found)
    assert bool(samples) == bool(found)


@pytest.mark.parametrize("limit", ["PAIRS", "WORK"])
def test_a_bound_where_counting_pairs_is_dear(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, limit, 0)
    assert instances("a.a", ALL, 6).pairs == (36, False), "starts times ends, which is less than 216 walks"
    circle = [(0, 0, 1), (1, 0, 2), (2, 0, 0)]
    assert instances("a.a", circle, 3).pairs == (3, False), "walks, which are less than 3 starts times 3 ends"


def test_samples_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two walks by the one first step, one by the other: all three as often."""
    walks, random = instances("a.b", [(0, 0, 1), (0, 0, 2), (1, 1, 3), (1, 1, 4), (2, 1, 3)], 5), torch.Generator()
    monkeypatch.setattr(torch, "Generator", lambda: mock.Mock(manual_seed=lambda _: random))
    drawn = [tuple(walks.samples(1)[0]) for _ in range(1000)]
    assert set(drawn) == {(0, 1, 3), (0, 1, 4), (0, 2, 3)}
    assert min(map(drawn.count, set(drawn))) > 280


def test_counts_beyond_floating_point() -> None:
    walks = instances("a{1000}", ALL, 6)
    assert walks.count == float("inf") == walks.reached(0).sum()
    assert walks.samples(3) == []


def test_no_edges() -> None:
    assert instances("a.b", [], 3).count == 0
    assert instances("a{0,1}", [], 3).ends[0].tolist() == [1, 1, 1]
    assert instances("a{0,1}", [], 3).pairs == (3, True)


def test_a_sort_is_a_value() -> None:
    assert len({parse("a.b", ABC), parse(["a", "b"], ABC), Sort("a.b", ((A, B),))}) == 1
    with pytest.raises(AttributeError):
        parse("a", ABC).text = "b"  # type: ignore[misc]
