"""The data of the examples: citation networks, from a folder or by PyG's download, and handwritten digits."""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch_geometric.data import Data
from torch_geometric.datasets import DBLP, FB15k_237, Planetoid
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import coalesce

T = TypeVar("T")
CITATIONS = ("Cora", "CiteSeer", "PubMed")
PATIENCE = 10.0  # seconds without a new byte, after which a download is given up
SOURCES = {**dict.fromkeys(CITATIONS, Planetoid.url), "FB15k-237": FB15k_237.url, "DBLP": DBLP.url}
_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


class Mistake(ValueError):
    """A mistake of the user, not of the files."""


def load(name: str, root: Path) -> tuple[str, Data]:
    """A citation network with its public split, or the digits; and the name of the data."""
    return name, digits() if name == "digits" else planetoid(name, root)


def planetoid(name: str, root: Path) -> Data:
    """A citation network from the raw files in root/name/raw, which are downloaded if they are missing."""
    files = [f"ind.{name.lower()}.{part}" for part in _PARTS]
    return in_a_copy(name, files, root, lambda scratch: Planetoid(str(scratch), name, transform=NormalizeFeatures())[0])


def in_a_copy(name: str, files: Sequence[str], root: Path, work: Callable[[Path], T], beside: Sequence[str] = ()) -> T:
    """Runs `work` on a temporary copy of a dataset, whose raw files PyG downloads if one is missing.

    PyG writes next to the raw files, whose folder may be read-only, and takes half a file of an interrupted download
    for the whole one. Downloaded files are copied to the root, if it is writable.

    Args:
        name: of the dataset: its raw files lie in root/name/raw.
        files: these.
        root: where data are.
        work: is given the copy of the root.
        beside: further files, copied from root/name if they are there.
    """
    raw = root / name / "raw"
    missing = [file for file in files if not (raw / file).is_file()]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        copy = Path(scratch, name, "raw")
        copy.mkdir(parents=True)
        for source in [*(raw / file for file in files), *(root / name / file for file in beside)]:
            if source.is_file():  # not the mode, which may be read-only
                shutil.copyfile(source, copy.parent / source.relative_to(root / name))
        if not missing:
            try:
                return work(Path(scratch))
            except Mistake:
                raise
            except Exception as error:  # pickle, numpy and scipy raise all kinds of errors for malformed files
                raise ValueError(
                    f"the files in {raw} cannot be read ({error}): remove them to download them"
                ) from error
        try:
            found = while_it_grows(copy, lambda: work(Path(scratch)))
        except Mistake:
            raise
        except Exception as error:  # network failures raise all kinds of errors
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            lack = f"{name} lacks {len(missing)} of its {len(files)} files in {raw}"
            there = f"put them there, from {SOURCES[name]}" if name in SOURCES else "put them there"
            raise ConnectionError(f"{lack}, and could not be downloaded ({reason}); {there}") from error
        if writable(raw):
            raw.mkdir(parents=True, exist_ok=True)
            for file in missing:
                shutil.copyfile(copy / file, raw / file)
        return found


def while_it_grows(folder: Path, work: Callable[[], T]) -> T:
    """Runs `work` while the files in the folder grow, which detects all ways in which a download can hang."""
    done: list[T | Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # raised again in the caller's thread
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    size = -1
    while thread.is_alive():
        before, size = size, sum(file.stat().st_size for file in folder.iterdir())
        if size == before:
            raise TimeoutError(f"nothing came for {PATIENCE:g} seconds")
        thread.join(PATIENCE)
    if isinstance(done[0], Exception):
        raise done[0]
    return done[0]


def writable(folder: Path) -> bool:
    """Whether files may be added; the mode counts, too, since the super-user may write anywhere."""
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def digits(neighbours: int = 8) -> Data:
    """The 1,797 handwritten digits of scikit-learn, 8 x 8 pixels, on the graph of their nearest neighbours.

    The split is as in the citation networks: 20 labels per class to train, 500 to validate, the other 1,097 to test.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels, y = torch.as_tensor(images), torch.as_tensor(labels).long()
    squares = (pixels**2).sum(1)
    # Pixels are integers, so that the squared distances are exact; with a stable sort the graph is the same everywhere.
    distance = squares[:, None] + squares - 2 * pixels @ pixels.t()
    nearest = distance.fill_diagonal_(torch.inf).argsort(dim=1, stable=True)[:, :neighbours]
    nodes = torch.arange(y.numel())
    edges = torch.stack([nodes.repeat_interleave(neighbours), nearest.flatten()])
    order = torch.randperm(y.numel(), generator=torch.Generator().manual_seed(0))
    train = torch.cat([order[y[order] == label][:20] for label in range(10)])
    rest = order[~torch.isin(order, train)]
    return Data(
        x=(pixels / 16).float(),
        y=y,
        edge_index=coalesce(torch.cat([edges, edges.flip(0)], 1)),
        train_mask=torch.isin(nodes, train),
        val_mask=torch.isin(nodes, rest[:500]),
        test_mask=torch.isin(nodes, rest[500:]),
    )
