"""The names of relations, and what is said of names that are not there."""

import pickle
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from pyg_basisconv.bases import Walks
from pyg_basisconv.walks import Vocabulary
from pyg_basisconv.walks.vocabulary import NamedGraph
from pyg_basisconv.walks.wording import nearest, suggestion


def hetero(*types: tuple[str, str, str]) -> HeteroData:
    data = HeteroData()
    for t in types:
        data[t].edge_index = torch.empty(2, 0, dtype=torch.long)
    return data


def named() -> NamedGraph:
    edges, names = torch.tensor([[0], [1]]), ["x", "y"]
    return NamedGraph(edges, torch.zeros(1, dtype=torch.long), 2, names, names, Vocabulary(["a"]))


def test_ids_are_positions() -> None:
    v = Vocabulary(["played", "七人", "a b/c.d"], [("Actor", "Role"), None, ("X", "Y")], {"short": "a b/c.d"})
    assert [v.id(name) for name in ("played", "七人", "a b/c.d", "short")] == [0, 1, 2, 2]
    assert [v.shown(i) for i in range(3)] == ["played", "七人", "short"]
    assert v.find("other") is None
    assert v.ends == (("Actor", "Role"), None, ("X", "Y"))
    assert len(v) == 3
    assert repr(v) == "Vocabulary(3 relations)"


def test_it_can_be_pickled() -> None:
    v = pickle.loads(pickle.dumps(Vocabulary(["a", "b"], None, {"c": "b"})))
    assert (v.names, v.id("c")) == (("a", "b"), 1)


def test_whatever_names_relations() -> None:
    v = Vocabulary(["a"])
    assert Vocabulary.of(v) is v
    assert Vocabulary.of(["x", "y"]).names == Vocabulary.of(("x", "y")).names == ("x", "y")
    assert Vocabulary.of(3).names == Vocabulary.of(np.int64(3)).names == ("0", "1", "2")
    anything = Vocabulary.of(None)
    assert (anything.id("0"), anything.id("12345"), anything.shown(7)) == (0, 12345, "7")
    assert anything.find("a") is anything.find("-1") is anything.find("٣") is anything.find("9" * 5000) is None


def test_hetero_names_are_short_where_they_differ() -> None:
    v = Vocabulary.of(hetero(("actor", "played", "role"), ("role", "in", "film"), ("actor", "in", "film")))
    assert v.names == ("played", "role__in__film", "actor__in__film")
    assert v.id("actor__played__role") == v.id("played") == 0
    assert v.find("in") is None
    assert v.ends == (("actor", "role"), ("role", "film"), ("actor", "film"))
    assert v.edge(("role", "film")) == v.edge(("role", "in", "film")) == [1]
    assert v.edge(("role", "role")) == v.edge(("role", "out", "film")) == []


@pytest.mark.filterwarnings("ignore:There exist type names:UserWarning")
def test_hetero_name_that_is_the_long_name_of_another() -> None:
    v = Vocabulary.of(hetero(("x", "a__b__c", "y"), ("a", "b", "c")))
    assert v.names == ("x__a__b__c__y", "b")
    assert v.id("a__b__c") == 1


@pytest.mark.filterwarnings("ignore:There exist type names:UserWarning")
@pytest.mark.parametrize(
    ("make", "words"),
    {
        "twice": (lambda: Vocabulary(["a", "b", "a"]), ["relations: ", "'a' twice"]),
        "empty": (lambda: Vocabulary(["a", ""]), ["relations: ", "not empty"]),
        "not a string": (
            lambda: Vocabulary(["a", 3]),
            ["relations: ", "names that are strings", "got 3"],
        ),
        "digits": (lambda: Vocabulary([10**5000]), ["relations: expected names that are strings", "got int"]),
        "numbers": (lambda: Vocabulary.of([1, 2]), ["relations: expected names that are strings", "got 1"]),
        "none": (lambda: Vocabulary.of(0), ["relations: ", "a number from 1 to 1000000", "got 0"]),
        "no relations of walks": (
            lambda: Walks(["0"], relations=0),
            ["relations: ", "a number from 1 to 1000000", "got 0"],
        ),
        "digits below zero": (
            lambda: Vocabulary.of(-(10**5000)),
            ["relations: ", "a number from 1 to 1000000", "got int"],
        ),
        "a string": (lambda: Vocabulary.of("abc"), ["relations: ", "'abc'", "; pass a list of names"]),
        "a whole graph": (
            lambda: Walks(["a"], named()),
            ["got NamedGraph(2 entities", "; pass its attribute relations"],
        ),
        "negative": (lambda: Vocabulary.of(-1), ["relations: ", "-1"]),
        "True": (lambda: Vocabulary.of(True), ["relations: ", "True"]),
        "ends of others": (lambda: Vocabulary(["a"], []), ["ends: ", "1 relations", "got 0"]),
        "ends of three": (lambda: Vocabulary(["a"], [("A", "B", "C")]), ["ends: ", "(head type, tail type)"]),
        "ends of one": (lambda: Vocabulary(["a"], [3]), ["ends: ", "(head type, tail type)", "got 3"]),
        "ends of a string": (lambda: Vocabulary(["a"], ["AB"]), ["ends: ", "(head type, tail type)", "got 'AB'"]),
        "alias of no letters": (lambda: Vocabulary(["a"], None, {"": "a"}), ["relations: ", "not empty, got ''"]),
        "alias of a list": (lambda: Vocabulary(["a"], None, {"b": ["a"]}), ["relations: ", "strings", "got ['a']"]),
        "unknown, a number": (lambda: Vocabulary(["played"]).id(3), ["relations: ", "strings", "got 3"]),
        "unknown, a list": (lambda: Vocabulary(["played"]).id(["a"]), ["relations: ", "strings", "got ['a']"]),
        "alias of nothing": (lambda: Vocabulary(["played"], None, {"p": "plaid"}), ["'plaid'", "'played'"]),
        "alias of another": (lambda: Vocabulary(["a", "b"], None, {"a": "b"}), ["relations: ", "'a'"]),
        "unknown": (lambda: Vocabulary(["played", "genre"]).id("gener"), ["'gener'", "did you mean 'genre'?"]),
        "unknown, none near": (lambda: Vocabulary(["played"]).id("xyz"), ["'xyz'", "there are 'played'"]),
        "unknown of none": (lambda: Vocabulary([]).id("xyz"), ["'xyz'; the graph has no relations"]),
        "unknown of any": (
            lambda: Vocabulary.of(None).id("xyz"),
            ["'xyz'; pass their names as relations=, or name relations"],
        ),
        "two long names alike": (
            lambda: Vocabulary.of(hetero(("a", "b__c", "d"), ("a__b", "c", "d"), ("x", "c", "y"), ("x", "b__c", "y"))),
            ["'a__b__c__d' twice"],
        ),
    }.values(),
)
def test_refused(make: Any, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r": expected .*, got .*; .+") as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_nearest_names() -> None:
    assert nearest("Leonrad Nimoy", ["Spock", "Leonard Nimoy"]) == ["Leonard Nimoy"]
    assert nearest("GENRE", ["/film/film/genre", "genre"]) == ["genre", "/film/film/genre"]
    assert nearest("七人の待", ["七人の侍", "生きる"]) == ["七人の侍"]
    assert nearest("a", ["/film/a"]) == nearest("ab", ["/film/of/ab"]) == []
    assert nearest("abc", ["/film/of/abc"]) == ["/film/of/abc"]
    assert len(nearest("abc", [f"abc{i}" for i in range(9)])) == 3
    assert suggestion("q", ["xyz"], "otherwise") == "otherwise"
    assert suggestion("ab", ["abc", "abd"], "") == "did you mean 'abd' or 'abc'?"


def test_very_many_relations() -> None:
    start = time.process_time()
    v = Vocabulary.of(10**5)
    assert v.id("99999") == 99999
    assert len(v) == 10**5
    assert time.process_time() - start < 5
