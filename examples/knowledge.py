"""Knowledge graphs some of whose nodes have classes: FB15k-237 and a small world of films by genre, DBLP by field."""

import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch_geometric.datasets
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from examples.data import Mistake, in_a_copy
from pyg_basisconv import Knowledge, load_walks

HERE = Path(__file__).parent.parent / "datasets"
FILES = {
    "FB15k-237": ("train.txt", "valid.txt", "test.txt"),
    "DBLP": (
        *("adjM.npz", "features_0.npz", "features_1.npz", "features_2.npy", "labels.npy"),
        *("node_types.npy", "train_val_test_idx.npz"),
    ),
}
DATASETS = (*FILES, "films")
FIELDS = ("database", "data mining", "artificial intelligence", "information retrieval")
GENRES, FEWEST = 20, 4  # the number of classes at most, and of films in each at least
# The relation from films to genres, and others that reveal genres; no model may see them.
GENRE = {"FB15k-237": "/film/film/genre", "films": "genre"}
TELLING = ("/media_common/netflix_genre/titles",)


class Task(NamedTuple):
    """Nodes to classify from the structure of a graph.

    knowledge: without the edges that say the classes; items: (n,) nodes; y: (n, C), 1 where one is of a class.
    """

    name: str
    knowledge: Knowledge
    items: Tensor
    y: Tensor
    classes: list[str]

    def split(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """The positions of training, validation and test items: 60, 20 and 20 percent."""
        n = len(self.items)
        order = torch.from_numpy(np.random.RandomState(seed).permutation(n))
        first, second, third = order.tensor_split([int(0.6 * n), int(0.8 * n)])
        return first, second, third


def load(name: str, root: Path, config: Path | None = None) -> Task:
    """The task. The paths of the configuration of walks, datasets/NAME.toml by default, start at the root; those of the
    films at its own folder.
    """
    if name != "films":
        work = partial(fb15k_237 if name == "FB15k-237" else dblp, config or HERE / f"{name}.toml")
        return in_a_copy(name, FILES[name], root, work, beside=["names.tsv"])
    return genres("films", load_walks(config or HERE / "films.toml"))


def parts(name: str, folder: Path) -> list[Data | HeteroData]:
    """What PyG makes of the files in a folder: the three parts of FB15k-237, or DBLP."""
    if name == "DBLP":
        return [torch_geometric.datasets.DBLP(str(folder))[0]]
    return [torch_geometric.datasets.FB15k_237(str(folder), split)[0] for split in ("train", "val", "test")]


def _configured(config: Path, root: Path) -> Knowledge:
    try:
        shutil.copyfile(config, root / config.name)
    except OSError as error:
        raise Mistake(f"--config {config}: {error.strerror}") from error
    try:
        return load_walks(root / config.name)
    except ValueError as error:
        raise Mistake(str(error).replace(str(root / config.name), str(config))) from None


def fb15k_237(config: Path, root: Path) -> Task:
    """The films of root/FB15k-237 by genre, with the names of the raw files, in the numbering of PyG's dataset."""
    all_parts = parts("FB15k-237", root / "FB15k-237")
    knowledge = _configured(config, root)
    same = torch.equal(knowledge.edge_index, torch.cat([part.edge_index for part in all_parts], 1))
    if not same or not torch.equal(knowledge.edge_type, torch.cat([part.edge_type for part in all_parts])):
        raise Mistake(f"{config}: its graph is not that of FB15k_237: name the three files, in PyG's order")
    return genres("FB15k-237", knowledge)


def genres(name: str, knowledge: Knowledge) -> Task:
    """All films with a genre, in the order of their identifiers; the classes are the most frequent genres."""
    relation = knowledge.relations.id(GENRE[name])
    films, labels = knowledge.edge_index[:, knowledge.edge_type == relation].tolist()
    most = [label for label, count in Counter(labels).most_common(GENRES) if count >= FEWEST]
    items = sorted(set(films), key=lambda film: knowledge.identifiers[film])
    row, column = {film: i for i, film in enumerate(items)}, {label: j for j, label in enumerate(most)}
    y = torch.zeros(len(items), len(most))
    for film, label in zip(films, labels, strict=True):
        if label in column:
            y[row[film], column[label]] = 1
    hidden = {relation, *(knowledge.relations.find(telling) for telling in TELLING)}
    names = [knowledge.entities[label] for label in most]
    return Task(name, without(knowledge, hidden), torch.tensor(items), y, names)


def without(knowledge: Knowledge, hidden: set[int | None]) -> Knowledge:
    """The graph without the edges of some relations, which no sort may use."""
    for title, sort in zip(knowledge.basis.names, knowledge.basis.sorts, strict=True):
        for relation in {relation for sequence in sort.sequences for step in sequence for relation, _ in step}:
            if relation in hidden:
                raise Mistake(f"sort {title}: the relation {knowledge.relations.names[relation]} tells the classes")
    kept = ~torch.isin(knowledge.edge_type, torch.tensor([relation for relation in hidden if relation is not None]))
    return Knowledge(
        edge_index=knowledge.edge_index[:, kept],
        edge_type=knowledge.edge_type[kept],
        **{part: getattr(knowledge, part) for part in ("num_nodes", "entities", "identifiers", "relations", "basis")},
    )


def dblp(config: Path, root: Path) -> Task:
    """The authors by field, from the structure alone, without words and features."""
    (data,) = parts("DBLP", root / "DBLP")
    knowledge = _configured(config, root)
    items = torch.tensor([i for i, kind in enumerate(knowledge.types or ()) if kind == "author"])
    y = torch.nn.functional.one_hot(data["author"].y, len(FIELDS)).float()
    return Task("DBLP", knowledge, items, y, list(FIELDS))
