"""Configurations of walks: what they give, and every mistake in them."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.datasets
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from pyg_basisconv import BasisConv, bases, load_walks
from pyg_basisconv.__main__ import main

FACTS = "Nimoy\tplayed\tSpock\nSpock\tcharacter in\tStar Trek\nStar Trek\tgenre\tScience fiction\n"
GRAPH = '[graph]\ntriples = "facts.tsv"\n'
SORTS = '[sorts]\nroles = "played"\n'


def write(folder: Path, toml: str | bytes, **files: str | bytes) -> Path:
    """A configuration, with the files beside it whose names have _ for the dot."""
    for name, text in {"walks_toml": toml, "facts_tsv": FACTS, **files}.items():
        data = text if isinstance(text, bytes) else text.encode()
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder / "walks.toml"


def triples(knowledge: Any) -> list[tuple[str, str, str]]:
    heads, tails = knowledge.edge_index.tolist()
    names, relations = knowledge.entities, knowledge.relations.names
    return [
        (names[h], relations[r], names[t]) for h, r, t in zip(heads, knowledge.edge_type.tolist(), tails, strict=True)
    ]


def test_all_tables(tmp_path: Path) -> None:
    toml = """
        [graph]
        triples = ["facts.tsv", "more.tsv"]
        labels = "labels.tsv"
        [relations]
        characterIn = "character in"
        [types]
        characterIn = ["Character", "Work"]
        genre = ["Work", "Genre"]
        [sorts]
        "genres of roles" = "played.characterIn.genre"
        back = ["^genre", "^character in"]
        [walks]
        norm = "row"
        per = "step"
        binary = false
        memory_limit = 2_097_152
    """
    more = "Quinto\tplayed\tSpock\nNimoy\tplayed\tSpock\n"
    k = load_walks(write(tmp_path, toml, more_tsv=more, labels_tsv="Nimoy\tLeonard Nimoy\nnobody\tNobody\n"))
    assert k.identifiers == ["Nimoy", "Spock", "Star Trek", "Science fiction", "Quinto"]
    assert k.entities == ["Leonard Nimoy", "Spock", "Star Trek", "Science fiction", "Quinto"]
    assert k.num_nodes == 5
    assert k.edge_index.tolist() == [[0, 1, 2, 4], [1, 2, 3, 1]], "a triple that comes again is the same"
    assert k.edge_type.tolist() == [0, 1, 2, 0]
    assert k.edge_index.dtype == k.edge_type.dtype == torch.long
    assert k.relations.names == ("played", "character in", "genre")
    assert k.relations.ends == (None, ("Character", "Work"), ("Work", "Genre"))
    assert k.types == (None, "Character", "Work", "Genre", None)
    assert isinstance(k.basis, bases.Walks)
    assert k.basis.names == ("genres of roles", "back")
    assert [s.text for s in k.basis.sorts] == ["played.characterIn.genre", "^genre.^characterIn"]
    assert (k.basis.norm, k.basis.per, k.basis.binary, k.basis.memory_limit) == ("row", "step", False, 2 << 20)
    assert k.entity("Leonard Nimoy") == k.entity("Nimoy") == 0
    y = BasisConv(3, 2, k.basis)(torch.ones(5, 3), k.edge_index, edge_type=k.edge_type)
    assert y.shape == (5, 2)


def test_only_what_must_be(tmp_path: Path) -> None:
    k = load_walks(str(write(tmp_path, GRAPH + SORTS)))
    assert triples(k) == [tuple(line.split("\t")) for line in FACTS.splitlines()]
    assert (k.types, k.relations.ends, k.basis.norm, k.basis.memory_limit) == (None, None, None, 1 << 30)


def test_texts_of_all_sorts(tmp_path: Path) -> None:
    """A byte order mark, lines of Windows, empty lines, blanks around names, other scripts, separators of Unicode."""
    facts = (
        "\ufeff三船 敏郎\tplayed\t菊千代\r\n\r\n  \n Сталкер \tзнает\tпуть\u2028\x85 туда\r\nপথের পাঁচালী\tplayed\t#hash"
    )
    toml = f'\ufeff{GRAPH}[sorts]\r\n"七" = "знает"\r\n"2" = "played"'.replace("\n", "\r\n").replace("\r\r", "\r")
    k = load_walks(write(tmp_path, toml, facts_tsv=facts))
    assert triples(k) == [
        ("三船 敏郎", "played", "菊千代"),
        ("Сталкер", "знает", "путь\u2028\x85 туда"),
        ("পথের পাঁচালী", "played", "#hash"),
    ]
    assert k.basis.names == ("七", "2")


def test_quotes_are_letters(tmp_path: Path) -> None:
    k = load_walks(write(tmp_path, GRAPH + SORTS, facts_tsv='"Heroes"@en\tplayed\t"\n'))
    assert k.entities == ['"Heroes"@en', '"']


def test_no_facts(tmp_path: Path) -> None:
    """The file of triples is named, and not what would have a relation of it."""
    for text in (GRAPH + SORTS, GRAPH + "[relations]\nin = 'character in'\n" + SORTS):
        with pytest.raises(
            ValueError,
            match=r"facts\.tsv: expected triples, got an empty file; write head<tab>relation<tab>tail$",
        ):
            load_walks(write(tmp_path, text, facts_tsv="\n"))
    several = GRAPH.replace('"facts.tsv"', '["facts.tsv", "more.tsv"]') + SORTS
    with pytest.raises(ValueError, match=r"facts\.tsv and .*more\.tsv: expected triples, got an empty file"):
        load_walks(write(tmp_path, several, facts_tsv="", more_tsv=""))
    assert load_walks(write(tmp_path, several, more_tsv="")).num_nodes == 4, "one of them has facts"


def films() -> HeteroData:
    data = HeteroData()
    data["actor"].num_nodes = 2
    data["actor"].names = ["Leonard Nimoy", "Zachary Quinto"]
    data["film"].x = torch.ones(3, 4)
    data["actor", "in", "film"].edge_index = torch.tensor([[0, 0, 1, 1], [0, 1, 2, 2]])
    data["genre"].num_nodes = 2
    data["film", "of", "genre"].edge_index = torch.tensor([[0, 2], [0, 1]])
    return data


def test_hetero(tmp_path: Path) -> None:
    data, allowed = films(), set(torch.serialization.get_safe_globals())
    torch.save(data, tmp_path / "films.pt")
    k = load_walks(write(tmp_path, '[graph]\nhetero = "films.pt"\n[sorts]\na = "in.of"\nb = "actor__in__film"'))
    assert set(torch.serialization.get_safe_globals()) == allowed
    assert k.entities == ["Leonard Nimoy", "Zachary Quinto", "film 0", "film 1", "film 2", "genre 0", "genre 1"]
    assert k.identifiers[:2] == ["actor 0", "actor 1"]
    assert k.types == ("actor",) * 2 + ("film",) * 3 + ("genre",) * 2
    assert k.edge_index.tolist() == [[0, 0, 1, 1, 2, 4], [2, 3, 4, 4, 5, 6]], "edges that repeat stay"
    assert k.edge_type.tolist() == [0, 0, 0, 0, 1, 1]
    assert k.relations.ends == (("actor", "film"), ("film", "genre"))
    homogeneous = data.to_homogeneous()
    assert torch.equal(homogeneous.edge_index, k.edge_index)
    assert torch.equal(homogeneous.edge_type, k.edge_type)


def test_hetero_without_edges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = films()
    for kind in data.edge_types:
        data[kind].edge_index = torch.empty(2, 0, dtype=torch.long)
    data["genre"].num_nodes = 0
    torch.save(data, tmp_path / "films.pt")
    path = write(tmp_path, '[graph]\nhetero = "films.pt"\n[sorts]\na = "in.of"')
    assert load_walks(path).num_nodes == 5
    assert main(["walks", str(path)]) == 0
    assert "instances  0" in capsys.readouterr().out


class _Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)

    folder = ""


def test_nothing_is_executed(tmp_path: Path) -> None:
    """A pickle that would make a folder is refused, and makes none."""
    harm, folder = _Harm(), tmp_path / "harm"
    harm.folder = str(folder)
    path = write(tmp_path, '[graph]\nhetero = "films.pt"\n' + SORTS)
    for save in (torch.save, lambda o, f: f.write_bytes(pickle.dumps(o))):
        save(harm, tmp_path / "films.pt")
        with pytest.raises(
            ValueError, match=r"films\.pt: expected a HeteroData that torch\.load\(weights_only=True\) reads"
        ):
            load_walks(path)
        assert not folder.exists()


def broken(change: Callable[[HeteroData], Any]) -> HeteroData:
    data = films()
    change(data)
    return data


def set_edges(edges: Any) -> Callable[[HeteroData], Any]:
    return lambda data: setattr(data["film", "of", "genre"], "edge_index", edges)


def nodes(number: Any) -> Callable[[HeteroData], Any]:
    return lambda data: setattr(data["genre"], "num_nodes", number)


HETERO = {
    "another object": (lambda: Data(x=torch.ones(2, 2)), "expected a HeteroData, got Data"),
    "a number": (lambda: 3, "expected a HeteroData, got int"),
    "no edges": (lambda: broken(set_edges(None)), "expected an edge_index for the edge type ('film', 'of', 'genre')"),
    "edges of floats": (lambda: broken(set_edges(torch.ones(2, 2))), "expected integers in edge_index"),
    "edges of three rows": (lambda: broken(set_edges(torch.ones(3, 2).long())), "of shape [2, num_edges]"),
    "sparse edges": (lambda: broken(set_edges(torch.eye(2).long().to_sparse())), "data.validate() accepts"),
    "edges out of range": (lambda: broken(set_edges(torch.tensor([[3], [0]]))), "larger source indices than the"),
    "edges below zero": (lambda: broken(set_edges(torch.tensor([[0], [-1]]))), "negative indices"),
    "nodes of a string": (lambda: broken(nodes("2")), "data.validate() accepts, got TypeError"),
    "nodes of a fraction": (lambda: broken(nodes(2.5)), "data.validate() accepts, got TypeError"),
    "nodes below zero": (lambda: broken(nodes(-2)), "larger destination indices than the"),
    "very many nodes": (lambda: broken(nodes(10**13)), "at most 100,000,000 nodes of each type"),
    "nodes of no number": (lambda: broken(lambda d: d["genre"].pop("num_nodes")), "data.validate() accepts"),
    "features of no nodes": (
        lambda: broken(lambda d: setattr(d["film"], "x", torch.tensor(1.0))),
        "data.validate() accepts, got IndexError",
    ),
    "too few names": (lambda: broken(lambda d: setattr(d["film"], "names", ["a"])), "a list of 3 strings"),
    "names of numbers": (lambda: broken(lambda d: setattr(d["actor"], "names", [1, 2])), "a list of 2 strings"),
}


@pytest.mark.parametrize(("make", "words"), HETERO.values(), ids=HETERO)
def test_hetero_refused(tmp_path: Path, make: Callable[[], Any], words: str) -> None:
    torch.save(make(), tmp_path / "films.pt")
    with pytest.raises(ValueError, match=r"films\.pt: expected .*, got .*; .+") as caught:
        load_walks(write(tmp_path, '[graph]\nhetero = "films.pt"\n[sorts]\na = "in"'))
    assert words in str(caught.value)


def test_dataset(tmp_path: Path) -> None:
    """PyG's own class, from raw files that lie where it keeps them."""
    raw = tmp_path / "fb" / "raw"
    raw.mkdir(parents=True)
    for name, text in (
        ("train", "m1\t/f/g\tm2\nm2\t/f/h\tm3\n"),
        ("valid", "m4\t/f/g\tm2\n"),
        ("test", "m1\t/f/h\tm3\n"),
    ):
        (raw / f"{name}.txt").write_text(text)
    toml = (
        '[graph]\ndataset = "FB15k_237"\nroot = "fb"\nlabels = "labels.tsv"\n{}[relations]\ng = "0"\n[sorts]\na = "g.1"'
    )
    k = load_walks(write(tmp_path, toml.format(""), labels_tsv="0\tone\n"))
    assert k.entities == ["one", "1", "2", "3"]
    assert k.edge_index.tolist() == [[0, 1], [1, 2]]
    assert k.relations.names == ("0", "1")
    assert k.basis.sorts[0].text == "g.1"
    k = load_walks(write(tmp_path, toml.format('options = { split = "test" }\n'), labels_tsv=""))
    assert k.edge_index.tolist() == [[0], [2]]


class Films(InMemoryDataset):
    """A heterogeneous dataset; a homogeneous one; one that cannot be read."""

    def __init__(self, root: str, kind: str = "hetero") -> None:
        super().__init__(None)
        if kind == "fails":
            raise OSError("no\nnetwork")
        self.kind = kind

    def len(self) -> int:
        return 1

    def get(self, idx: int) -> Any:
        return films() if self.kind == "hetero" else Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)


def test_dataset_of_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_geometric.datasets, "DBLP", Films)
    graph = '[graph]\ndataset = "DBLP"\nroot = "x"\noptions = {{ {} }}\n[sorts]\na = "in.of"'
    assert load_walks(write(tmp_path, graph.format(""))).types == ("actor",) * 2 + ("film",) * 3 + ("genre",) * 2
    for options, words in (
        ('kind = "plain"', "expected a graph with edge_type"),
        ('kind = "fails"', "got OSError: no network; see to its files"),
        ('knid = "plain"', "unexpected keyword argument 'knid'; see to its files, and to its options"),
    ):
        with pytest.raises(ValueError, match=r"walks\.toml: \[graph\] ") as caught:
            load_walks(write(tmp_path, graph.format(options)))
        assert words in str(caught.value)


def toml(graph: str = GRAPH, sorts: str = SORTS, rest: str = "") -> str:
    return graph + rest + "\n" + sorts


MISTAKES: dict[str, tuple[str | bytes, dict[str, str | bytes], list[str]]] = {
    "bad TOML": (GRAPH + "[sorts\n", {}, ["walks.toml: expected TOML", "line 3"]),
    "unquoted sort": (toml(sorts="[sorts]\na = played.^played # who"), {}, ["line 5", '; write a = "played.^played"']),
    "unquoted word": (toml(rest="[walks]\nnorm = row"), {}, ["line 4", '; write norm = "row"']),
    "true of Python": (toml(rest="[walks]\nbinary = True"), {}, ["line 4", "; write binary = true"]),
    "table twice": (
        toml(rest=SORTS),
        {},
        ["walks.toml: expected TOML", "; write [sorts] once, with all its keys below"],
    ),
    "quote that is open": (toml(rest='[walks]\nnorm = "row'), {}, ["line 4", "; correct the line 'norm = \"row'"]),
    "key twice": (
        toml(sorts=SORTS + 'roles = "genre"\n'),
        {},
        ["walks.toml: expected TOML", "line 6", "; write 'roles' once"],
    ),
    "alias twice": (toml(rest='[relations]\na = "played"\na = "genre"'), {}, ["walks.toml: expected TOML", "line 5"]),
    "not UTF-8": ((GRAPH + SORTS).encode() + b"# caf\xe9", {}, ["walks.toml, line 5: expected text in UTF-8", "0xe9"]),
    "unknown table": (
        toml(rest="[sort]"),
        {},
        ["walks.toml: expected a known table, got [sort]; did you mean 'sorts'?"],
    ),
    "unknown table, none near": (toml(rest="[xyz]"), {}, ["[xyz]", "there are 'graph', 'relations'"]),
    "unknown key": (
        toml(GRAPH + 'label = "x"\n'),
        {},
        ["[graph]: expected a known key, got 'label'; did you mean 'labels'?"],
    ),
    "unknown key of walks": (toml(rest="[walks]\nnrom = 'row'"), {}, ["[walks]", "'nrom'", "did you mean 'norm'?"]),
    "table that is none": ("sorts = 3\n" + GRAPH, {}, ["[sorts]: expected a table [sorts], got 3 (int)"]),
    "no graph": (SORTS, {}, ["[graph]: expected one of triples, hetero, dataset, got none of them"]),
    "two graphs": (toml(GRAPH + 'hetero = "x"\n'), {}, ["[graph]: expected one of", "got triples and hetero"]),
    "root of triples": (toml(GRAPH + 'root = "x"\n'), {}, ["[graph] root: expected it only with dataset"]),
    "triples of a number": (toml("[graph]\ntriples = 3\n"), {}, ["[graph] triples: expected a path, got 3 (int)"]),
    "triples of no files": (toml("[graph]\ntriples = []\n"), {}, ["[graph] triples: expected a path", "empty list"]),
    "triples of numbers": (toml("[graph]\ntriples = ['facts.tsv', 3]\n"), {}, ["[graph] triples: expected a path"]),
    "triples of no name": (toml("[graph]\ntriples = ''\n"), {}, ["[graph] triples: expected a path"]),
    "missing triples": (
        toml("[graph]\ntriples = 'fact.tsv'\n"),
        {},
        ["fact.tsv: expected a file with triples, got no file"],
    ),
    "triples of a folder": (toml("[graph]\ntriples = '.'\n"), {}, ["expected a file with triples, got Is a directory"]),
    "missing hetero": (
        toml("[graph]\nhetero = 'x.pt'\n"),
        {},
        ["x.pt: expected a file with a HeteroData, got no file of"],
    ),
    "hetero of text": (
        toml("[graph]\nhetero = 'facts.tsv'\n"),
        {},
        ["facts.tsv: expected a HeteroData that torch.load"],
    ),
    "hetero of text that begins as a pickle could": (
        toml("[graph]\nhetero = 'facts.tsv'\n"),
        {"facts_tsv": "a\tr\tb\n"},
        ["facts.tsv: expected a HeteroData that torch.load"],
    ),
    "missing labels": (toml(GRAPH + "labels = 'x.tsv'\n"), {}, ["x.tsv: expected a file with labels"]),
    "unknown dataset": (
        toml("[graph]\ndataset = 'FB15k237'\n"),
        {},
        ["[graph] dataset: expected", "'FB15k237'", "did you mean 'FB15k_237'"],
    ),
    "dataset of a number": (toml("[graph]\ndataset = 3\n"), {}, ["[graph] dataset: expected", "got 3 (int)"]),
    "dataset that is not one": (
        toml("[graph]\ndataset = 'os'\nroot = 'x'\n"),
        {},
        ["[graph] dataset: expected", "'os'"],
    ),
    "dataset without root": (
        toml("[graph]\ndataset = 'DBLP'\n"),
        {},
        ["[graph] root: expected the folder of DBLP, got none"],
    ),
    "options of a string": (
        toml("[graph]\ndataset = 'DBLP'\nroot = 'x'\noptions = 'a'\n"),
        {},
        ["[graph] options: expected a table, got a"],
    ),
    "two fields": (
        GRAPH + SORTS,
        {"facts_tsv": FACTS + "\na\tb\n"},
        ["facts.tsv, line 5: expected 3 fields", "got 2 in 'a\\tb'"],
    ),
    "four fields": (GRAPH + SORTS, {"facts_tsv": "a\tb\tc\td"}, ["facts.tsv, line 1: expected 3 fields", "got 4"]),
    "blanks, no tabs": (GRAPH + SORTS, {"facts_tsv": "a b c"}, ["facts.tsv, line 1", "head<tab>relation<tab>tail"]),
    "headings": (
        GRAPH + SORTS,
        {"facts_tsv": "Head\tRelation\tTail"},
        ["line 1: expected values, got a line of headings"],
    ),
    "empty field": (GRAPH + SORTS, {"facts_tsv": "a\t \tc"}, ["facts.tsv, line 1: expected 3 fields"]),
    "facts not UTF-8": (
        GRAPH + SORTS,
        {"facts_tsv": FACTS.encode() + b"caf\xe9\tb\tc"},
        ["facts.tsv, line 4: expected text in UTF-8, got the byte 0xe9"],
    ),
    "label without name": (
        toml(GRAPH + "labels = 'labels.tsv'\n"),
        {"labels_tsv": "a\tb\n\nc\n"},
        ["labels.tsv, line 3: expected 2 fields", "identifier<tab>name"],
    ),
    "two labels": (
        toml(GRAPH + "labels = 'labels.tsv'\n"),
        {"labels_tsv": "a\tb\na\tb\na\tc\n"},
        ["labels.tsv, line 3: expected one name for each identifier, got 'c' after 'b' for 'a'"],
    ),
    "alias of nothing": (
        toml(rest="[relations]\np = 'playd'"),
        {},
        ["[relations] p: expected a relation of the graph, got 'playd'; did you mean 'played'?"],
    ),
    "alias of a number": (
        toml(rest="[relations]\np = 3"),
        {},
        ["[relations] p: expected the name of a relation, got 3 (int)"],
    ),
    "alias without letters": (
        toml(rest="[relations]\n'' = 'genre'"),
        {},
        ["[relations]: expected an alias that is not empty, got ''"],
    ),
    "alias that is a relation": (
        toml(rest="[relations]\nplayed = 'genre'"),
        {},
        ["[relations] played: expected an alias that is no relation"],
    ),
    "types of nothing": (
        toml(rest="[types]\ngener = ['A', 'B']"),
        {},
        ["[types] gener: expected a relation", "did you mean 'genre'?"],
    ),
    "types of one": (
        toml(rest="[types]\ngenre = ['A']"),
        {},
        ["[types] genre: expected the types of its heads and of"],
    ),
    "types of a string": (toml(rest="[types]\ngenre = 'AB'"), {}, ["[types] genre: expected the types"]),
    "types of numbers": (toml(rest="[types]\ngenre = [1, 2]"), {}, ["[types] genre: expected the types"]),
    "types twice": (
        toml(rest="[relations]\ng = 'genre'\n[types]\ngenre = ['A', 'B']\ng = ['A', 'B']"),
        {},
        ["[types] g: expected the types of each relation once"],
    ),
    "types that contradict": (
        toml(rest="[types]\nplayed = ['Actor', 'Role']\n'character in' = ['Hero', 'Work']"),
        {},
        ["[types]: expected one type for each entity, got 'Spock' as Role by 'played' and as Hero by 'character in'"],
    ),
    "types in the wrong order": (
        toml(rest="[types]\nplayed = ['Actor', 'Role']\n'character in' = ['Work', 'Role']"),
        {},
        ["got 'Spock' as Role by 'played' and as Work by", "write the type of the heads first, then that of the tails"],
    ),
    "no sorts": (GRAPH, {}, ["[sorts]: expected at least one sort, got none"]),
    "empty sorts": (GRAPH + "[sorts]", {}, ["[sorts]: expected at least one sort, got none"]),
    "sort of a number": (
        toml(sorts="[sorts]\na = 3"),
        {},
        ["[sorts] a: expected a string or a list of steps, got 3 (int)"],
    ),
    "sort of nothing": (toml(sorts="[sorts]\na = ''"), {}, ["[sorts] a: expected a relation, got the end at column 1"]),
    "syntax": (
        toml(sorts="[sorts]\na = 'played'\nb = 'played..genre'"),
        {},
        ["[sorts] b: expected a relation, got '.' at column 8 of 'played..genre'"],
    ),
    "unknown relation": (
        toml(sorts="[sorts]\na = 'played.gener'"),
        {},
        ["[sorts] a: expected a relation of the graph", "'gener' at column 8 of 'played.gener'; did you mean 'genre'?"],
    ),
    "unknown relation in a list": (
        toml(sorts="[sorts]\na = ['played', 'gener']"),
        {},
        ["[sorts] a:", "item 2", "'genre'?"],
    ),
    "types that do not join": (
        toml(
            sorts="[sorts]\na = 'played.genre'", rest="[types]\nplayed = ['Actor', 'Role']\ngenre = ['Work', 'Genre']"
        ),
        {},
        ["[sorts] a: expected a step from Role, got 'genre' from Work at column 8 of 'played.genre'"],
    ),
    "norm": (
        toml(rest="[walks]\nnorm = 'rows'"),
        {},
        ["[walks] norm: expected 'none', 'mean', 'row' or 'sym', got 'rows'"],
    ),
    "norm of a list": (
        toml(rest="[walks]\nnorm = ['row']"),
        {},
        ["[walks] norm: expected 'none', 'mean'", "got ['row']"],
    ),
    "per": (toml(rest="[walks]\nper = 'edge'"), {}, ["[walks] per: expected 'walk' or 'step', got 'edge'"]),
    "binary": (toml(rest="[walks]\nbinary = 'yes'"), {}, ["[walks] binary: expected True or False, got 'yes'"]),
    "binary of a number": (toml(rest="[walks]\nbinary = 1"), {}, ["[walks] binary: expected True or False"]),
    "digits": (toml(sorts="[sorts]\na = " + "9" * 5000), {}, ["walks.toml: expected TOML, got", "4300 digits"]),
    "digits in types": (
        toml(rest="[types]\nplayed = [0x" + "9" * 5000 + "]"),
        {},
        ["[types] played: expected", "(list)"],
    ),
    "digits of a sort": (toml(sorts="[sorts]\na = 0x" + "9" * 5000), {}, ["[sorts] a: expected a string", "(int)"]),
    "digits in a sort": (
        toml(sorts="[sorts]\na = [0x" + "9" * 5000 + "]"),
        {},
        ["[sorts] a: expected ids of relations, from 0 on and below 3, got int as item 1"],
    ),
    "digits of a dataset": (
        toml("[graph]\ndataset = 0x" + "9" * 5000 + "\n"),
        {},
        ["[graph] dataset: expected", "(int)"],
    ),
    "a table inside of tables": (
        toml(sorts="[sorts]\n" + ".".join(["a"] * 5000) + " = 1"),
        {},
        ["[sorts] a: expected a string", "(dict)"],
    ),
    "binary steps": (toml(rest="[walks]\nbinary = true\nper = 'step'\nnorm = 'row'"), {}, ["walks.toml: [walks] per"]),
    "memory below zero": (
        toml(rest="[walks]\nmemory_limit = -1"),
        {},
        ["[walks] memory_limit: expected a number of bytes"],
    ),
    "memory of true": (
        toml(rest="[walks]\nmemory_limit = true"),
        {},
        ["[walks] memory_limit: expected a number of bytes"],
    ),
    "memory of a fraction": (
        toml(rest="[walks]\nmemory_limit = 0.5"),
        {},
        ["[walks] memory_limit: expected a number of"],
    ),
}


@pytest.mark.parametrize(("text", "files", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(tmp_path: Path, text: str | bytes, files: dict[str, str | bytes], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*: expected [^\n]*, got [^\n]*; [^\n]+$") as caught:
        load_walks(write(tmp_path, text, **files))
    message = str(caught.value)
    assert message.startswith(str(tmp_path)), "names the file"
    for word in words:
        assert word in message
    assert message.count(str(tmp_path)) == 1, "names it once"
    assert len(message) < 500 + len(str(tmp_path))
    assert type(caught.value) is ValueError


def test_types_of_a_graph_that_has_them(tmp_path: Path) -> None:
    torch.save(films(), tmp_path / "films.pt")
    text = '[graph]\nhetero = "films.pt"\n[types]\nin = ["a", "b"]\n[sorts]\na = "in"'
    with pytest.raises(ValueError, match=r"\[types\]: expected no types with a HeteroData"):
        load_walks(write(tmp_path, text))


def test_missing_configuration(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.toml: expected a file with TOML, got no file of this name"):
        load_walks(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="expected a file with TOML, got Is a directory"):
        load_walks(tmp_path)
    with pytest.raises(ValueError, match=r"^path: expected the path of a TOML file, got int"):
        load_walks(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a file with TOML"):
        load_walks("a\0b")


def test_entities(tmp_path: Path) -> None:
    graph = GRAPH + 'labels = "labels.tsv"\n'
    k = load_walks(write(tmp_path, graph + SORTS, labels_tsv="Nimoy\tLeonard Nimoy\nSpock\tX\nStar Trek\tX\n"))
    assert k.entity("Leonard Nimoy") == 0
    assert k.entity("Star Trek") == 2
    with pytest.raises(ValueError, match=r"'X', which 2 have; use one of Spock, Star Trek"):
        k.entity("X")
    with pytest.raises(ValueError, match=r"got 'Leonrad Nimoy'; did you mean 'Leonard Nimoy'\?"):
        k.entity("Leonrad Nimoy")
    with pytest.raises(ValueError, match="entity: expected the name of an entity, got 3; pass a string"):
        k.entity(3)  # type: ignore[arg-type]


def test_the_same_for_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths start at the file's folder, wherever one is."""
    write(tmp_path, GRAPH + SORTS)
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert load_walks("../walks.toml").num_nodes == 4
    monkeypatch.chdir(tmp_path)
    assert load_walks(Path("walks.toml")).num_nodes == 4
