"""The data of the examples: citation networks, from a folder or by PyG's download, handwritten digits, and files."""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.datasets import DBLP, FB15k_237, Planetoid
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import coalesce

T = TypeVar("T")
CITATIONS = ("Cora", "CiteSeer", "PubMed")
SPLIT = ("train_mask", "val_mask", "test_mask")
PATIENCE = 10.0  # seconds without a new byte, after which a download is given up
SOURCES = {**dict.fromkeys(CITATIONS, Planetoid.url), "FB15k-237": FB15k_237.url, "DBLP": DBLP.url}
_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")

# What a saved Data consists of, for torch.load.
torch.serialization.add_safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage])


class Mistake(ValueError):
    """A mistake of the user, not of the files."""


def load(name: str, root: Path) -> tuple[str, Data]:
    """A graph whose nodes are to be classified, and what it is called.

    Args:
        name: 'digits'; a file NAME.pt, see `from_file`; or a network with raw files in root/name/raw, as `Planetoid`
            of PyG keeps them: one of `CITATIONS`, which are downloaded, or another.
        root: where networks are.
    """
    path = Path(name).expanduser()
    if path.suffix == ".pt":
        return path.stem, from_file(path)
    if name == "digits":
        return name, digits()
    if name not in CITATIONS and not (root / name / "raw").is_dir():
        known = ", ".join((*CITATIONS, "digits"))
        raise Mistake(
            f"--dataset {name}: expected one of {known}, a file that ends in .pt, or a network with the raw files of a "
            f"Planetoid in {root / name / 'raw'}, which is no folder"
        )
    return name, planetoid(name, root, normalised=False)


def planetoid(name: str, root: Path, normalised: bool = True) -> Data:
    """A citation network from the raw files in root/name/raw, which are downloaded if they are missing.

    Each node's features are divided by their sum if `normalised`.
    """
    files, transform = [f"ind.{name.lower()}.{part}" for part in _PARTS], NormalizeFeatures() if normalised else None
    return in_a_copy(name, files, root, lambda scratch: Planetoid(str(scratch), name, transform=transform)[0])


def from_file(path: Path) -> Data:
    """A graph of your own, a `Data` of PyG's that `torch.save` wrote.

    It needs x, y and edge_index. A split is three masks, `train_mask`, `val_mask` and `test_mask`, (N,) or (N, S) for
    S splits. Nodes without a label have a negative y.
    """
    if not path.is_file():
        raise Mistake(f"--dataset {path}: there is no such file")
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle and zipfile raise all kinds of errors for other files
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Mistake(f"--dataset {path}: expected a graph, saved by torch.save(data, path), got {reason}") from error
    if not isinstance(data, Data):
        raise Mistake(f"--dataset {path}: expected a Data of PyG's, got {type(data).__name__}: save data itself")
    return _checked(data, path)


def _checked(data: Data, path: Path) -> Data:
    """The same with x, y, edge_index and masks as the models read them."""

    def check(fits: bool, name: str, expected: str, got: Any) -> None:
        if not fits:
            raise Mistake(f"--dataset {path}: expected data.{name} to be {expected}, got {got}")

    def form(t: Any) -> Any:
        return f"{t.dtype} of shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__

    x, y, edges = data.x, data.y, data.edge_index
    check(isinstance(x, Tensor) and x.layout == torch.strided and x.dim() == 2, "x", "(N, P) dense features", form(x))
    N = len(x)
    y = y.squeeze(1) if isinstance(y, Tensor) and y.dim() == 2 and y.shape[1] == 1 else y
    whole = isinstance(y, Tensor) and not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    check(whole and y.shape == (N,), "y", f"({N},) numbers of classes, as x has rows", form(y))
    check(int(y.max()) > 0, "y", "of two classes at least", f"labels up to {int(y.max())}")
    whole = isinstance(edges, Tensor) and edges.dtype in (torch.int64, torch.int32)
    check(whole and edges.dim() == 2 and len(edges) == 2, "edge_index", "(2, E) numbers of nodes", form(edges))
    ends = (int(edges.min()), int(edges.max())) if edges.numel() else (0, 0)
    check(ends[0] >= 0 and ends[1] < N, "edge_index", f"numbers from 0 to {N - 1}, as x has rows", ends)
    for name in SPLIT:
        mask = data.get(name)
        if mask is None:
            continue
        fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() in (1, 2) and len(mask) == N
        check(fits, name, f"({N},) or ({N}, S) truth values", form(mask))
        check(bool(mask.any(0).all()), name, "True for some nodes", "a split with none")
        unknown = mask.view(N, -1).any(1) & (y < 0)
        check(not unknown.any(), name, "False where y is negative", f"{int(unknown.sum())} nodes without a label")
    masks = {name: data[name] for name in SPLIT if name in data}
    return Data(x=x.float(), y=y.long(), edge_index=edges.long(), **masks)


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
