"""The world of films in datasets/films: its facts, and every count of its sorts, by loops over its lines."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from pyg_basisconv import load_walks
from pyg_basisconv.walks.config import Knowledge

FOLDER = Path(__file__).parents[2] / "datasets" / "films"
FACTS = [tuple(line.split("\t")) for line in (FOLDER / "triples.tsv").read_text("utf-8").splitlines()]
Pairs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def films() -> Knowledge:
    return load_walks(FOLDER / "walks.toml")


def facts(*relations: str) -> Pairs:
    return [(head, tail) for head, relation, tail in FACTS if relation in relations]


def back(pairs: Pairs) -> Pairs:
    return [(tail, head) for head, tail in pairs]


def then(some: Pairs, *others: Pairs) -> Pairs:
    """The ends of every walk along the first pairs, then the second..."""
    for other in others:
        some = [(a, d) for a, b in some for c, d in other if b == c]
    return some


ACTED, DIRECTED, GENRE = facts("acted in"), facts("directed"), facts("genre")
BOTH = ACTED + DIRECTED
COSTARS = then(ACTED, back(ACTED))

# Per sort: the ends of all walks by loops, and how many there are, counted by hand for the short ones.
SORTS: dict[str, tuple[Pairs, int]] = {
    "genres_of_roles": (then(facts("played"), facts("character in"), GENRE), 132),
    "genres_directed": (then(DIRECTED, GENRE), 47),
    "same_role": (then(facts("played"), back(facts("played"))), 72),
    "costars": (COSTARS, 224),
    "acquaintances": (COSTARS + then(COSTARS, COSTARS), 1922),
    "colleagues": (then(BOTH, back(BOTH)), 387),
    "works_of_same_people": (then(back(BOTH), BOTH), 287),
    "same_franchise": (then(facts("part of"), back(facts("part of"))), 57),
    "birthplaces_of_casts": (then(DIRECTED, back(ACTED), facts("born in")), 40),
    "abroad": (then(back(facts("born in")), ACTED, facts("country")), 55),
    "genres_by_directors": (then(back(GENRE), back(DIRECTED), DIRECTED, GENRE), 135),
}


def test_facts() -> None:
    assert len(FACTS) == len(set(FACTS)) == 375
    assert all(len(fact) == 3 and all(name == name.strip() and name for name in fact) for fact in FACTS)
    assert Counter(relation for _, relation, _ in FACTS) == {
        "played": 60,
        "character in": 71,
        "acted in": 72,
        "directed": 31,
        "genre": 48,
        "country": 38,
        "born in": 38,
        "part of": 17,
    }
    for fact in (
        ("Leonard Nimoy", "played", "Spock"),
        ("Spock", "character in", "Star Trek"),
        ("Star Trek", "genre", "Science fiction"),
        ("Leonard Nimoy", "directed", "Star Trek III: The Search for Spock"),
        ("黒澤明", "directed", "七人の侍"),
        ("Анатолий Солоницын", "played", "Писатель"),
    ):
        assert fact in FACTS


def test_facts_agree() -> None:
    """Who acted in a work plays somebody who is in it, and every role of a work has an actor."""
    plays = then(facts("played"), facts("character in"))
    assert set(ACTED) <= set(plays)
    assert {work for _, work in facts("character in")} == {work for _, work in ACTED}
    works = {work for work, _ in GENRE}
    assert works == {work for work, _ in facts("country")}
    assert works >= {work for _, work in BOTH} | {work for work, _ in facts("part of")}
    people = {person for person, _ in facts("played", "directed")}
    assert {person for person, _ in facts("born in", "acted in")} <= people


def test_sizes(films: Knowledge) -> None:
    assert films.num_nodes == len({name for head, _, tail in FACTS for name in (head, tail)}) == 192
    assert films.edge_index.shape == (2, 375)
    assert films.entities == films.identifiers
    assert films.types is not None
    assert Counter(films.types) == {
        "Person": 65,
        "Character": 54,
        "Work": 33,
        "Genre": 15,
        "Country": 17,
        "Franchise": 8,
    }
    assert films.types[films.entity("七人の侍")] == "Work"
    assert (films.basis.norm, films.basis.memory_limit) == ("row", 10**9)


@pytest.mark.parametrize(("name", "pairs", "number"), [(name, *rest) for name, rest in SORTS.items()], ids=SORTS)
def test_counts(films: Knowledge, name: str, pairs: Pairs, number: int) -> None:
    k = films.basis.names.index(name)
    bound = films.basis.bind(films.edge_index, edge_type=films.edge_type, size=films.num_nodes, dtype=torch.float64)
    assert bound.count(k) == len(pairs) == number
    starts, ends = bound.ends_of(k)
    assert starts.tolist() == [Counter(a for a, _ in pairs)[e] for e in films.entities]
    assert ends.tolist() == [Counter(b for _, b in pairs)[e] for e in films.entities]
    expected = torch.zeros(films.num_nodes, films.num_nodes, dtype=torch.float64)
    for a, b in pairs:
        expected[films.entity(a), films.entity(b)] += 1
    expected /= expected.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(bound.to_coo().to_dense()[k], expected)


def test_every_sort_is_counted(films: Knowledge) -> None:
    assert films.basis.names == tuple(SORTS)


def test_readme_says_what_there_is(films: Knowledge) -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    for relation, number in Counter(relation for _, relation, _ in FACTS).items():
        assert any(line.startswith(f"| {relation} |") and line.endswith(f"| {number} |") for line in text.splitlines())
    assert "375 facts about 33 films and series" in text
    assert (
        "192 entities: 65 persons, 54 characters, 33 works, 15 genres, 17 countries and 8 franchises"
        in text.replace("\n", " ")
    )
