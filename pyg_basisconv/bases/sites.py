"""Sparse grids: features at some positions (sites) only, whose neighbours are found by sorting."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..basis import BoundBasis, Compact, Direction, EdgeList, End, Work
from ..errors import reject
from ..kernels import Matchings
from ..kernels.grids import Ints
from .bound_grid import Lattice


class Sites(NamedTuple):
    """The sites of sources and targets, and for each member of the family the pairs of them that it links.

    sources, targets: (M, r), (N, r) positions; source_batch, target_batch: (M,), (N,) the sample of each.
    """

    sources: Tensor
    source_batch: Tensor
    targets: Tensor
    target_batch: Tensor
    matchings: Matchings

    def are_of(self, sites: Tensor, batch: Tensor) -> bool:
        """Whether these are the sources and their samples."""
        pairs = (self.sources, sites), (self.source_batch, batch)
        alike = all((mine.dtype, mine.device, mine.shape) == (t.dtype, t.device, t.shape) for mine, t in pairs)
        return alike and all(torch.equal(mine, t) for mine, t in pairs)

    @property
    def T(self) -> "Sites":
        return Sites(self.targets, self.target_batch, self.sources, self.source_batch, self.matchings.T)


class BoundSites(BoundBasis):
    """A window on a sparse grid: `sites`, (N, r), are the positions of the targets, `site_batch`, (N,), their samples,
    and `space` is the shape of their grid.
    """

    def __init__(self, places: Sites, space: Ints, M: int, dtype: torch.dtype) -> None:
        self.places, self.space = places, space
        self.sites, self.site_batch = places.targets, places.target_batch
        self.K, self.M, self.N = len(places.matchings.pairs), M, places.targets.shape[0]
        self.dtype, self.device = dtype, places.sources.device

    @property
    def matchings(self) -> Matchings:
        return self.places.matchings

    def compact(self, side: End) -> Compact | None:
        return super().compact(side) or self.explicit.compact(side)

    def edges(self) -> EdgeList:
        pairs = self.matchings.pairs
        kinds = [torch.full_like(source, k) for k, (source, _) in enumerate(pairs)]
        source, target = (torch.cat(ends) for ends in zip(*pairs, strict=True))
        weight = torch.ones(source.numel(), dtype=self.dtype, device=self.device)
        return EdgeList(torch.cat(kinds), source, target, weight)

    @property
    def T(self) -> BoundBasis:
        if self.places.sources.shape[0] < self.M:
            return self.explicit.T
        return BoundSites(self.places.T, self.space, self.N, self.dtype)

    def work(self, direction: Direction) -> Work:
        return Work(self.matchings.entries, self.N if direction == "combine" else self.K * self.N, 1)

    def moved(self, device: torch.device) -> "BoundSites":
        return BoundSites(Sites(*(t.to(device) for t in self.places)), self.space, self.M, self.dtype)  # type: ignore[arg-type]


def find_sites(sites: Tensor, batch: Tensor | None, lattice: Lattice, offsets: list[Ints]) -> Sites:
    """Finds the sites that are linked at each offset, and the targets if they are not the sources, of positions (M, r)
    in any order, and the sample of each, (M,), or None for one.
    """
    M, device = sites.shape[0], sites.device
    if batch is None:
        batch = torch.zeros(M, dtype=torch.int64, device=device)
    integers = isinstance(batch, Tensor) and batch.dtype in (torch.int64, torch.int32) and batch.device == device
    if not integers or batch.shape != (M,) or (M and int(batch.min()) < 0):
        expected = f"the sample of each site, ({M},) integers from 0 on, on {device}"
        reject("batch", expected, tuple(batch.shape) if integers else batch, "one for each")
    samples = int(batch.max()) + 1 if M else 1
    if samples * max(math.prod(lattice.sources), math.prod(lattice.targets)) >= 1 << 62:
        reject("shape", "a grid whose positions can be numbered in 62 bits", lattice.sources, "use a smaller grid")
    sites, batch = sites.clone(), batch.clone()  # the caller's may change
    keys = _keys(sites.long(), batch.long(), lattice.sources)
    # Sorted in the order of the grid, so that lookups of shifted keys are local.
    keys, order = keys.sort()
    if M and bool((keys[1:] == keys[:-1]).any()):
        twice = sites[order[1:][keys[1:] == keys[:-1]][0]].tolist()
        reject("sites", "each position once in a sample", f"{twice} twice", "merge the sites that repeat")
    positions, sample = sites.long()[order], batch.long()[order]
    same = lattice.sources == lattice.targets and set(lattice.stride + lattice.upsampling) == {1}
    shifted = {} if same else {o: _shifted_keys(positions, sample, lattice, o) for o in offsets}
    known = keys if same else torch.cat([keys[:0], *(target for _, target in shifted.values())]).unique()
    pairs: dict[Ints, tuple[Tensor, Tensor]] = {}
    for offset in offsets:
        back = tuple(-o for o in offset)
        if same and back in pairs:  # the opposite offset has the reversed pairs
            pairs[offset] = pairs[back][::-1]
            continue
        source, wanted = _shifted_keys(positions, sample, lattice, offset) if same else shifted[offset]
        found = torch.searchsorted(known, wanted)
        if same:
            found = found.clamp(max=max(M - 1, 0))
            hit = known[found] == wanted if M else found.bool()
            source, found = source[hit], order[found[hit]]
        pairs[offset] = order[source], found
    targets = (sites, batch) if same else _positions(known, lattice.targets)
    matchings = Matchings([pairs[offset] for offset in offsets], M, targets[0].shape[0])
    return Sites(sites, batch, *targets, matchings)


def _shifted_keys(positions: Tensor, sample: Tensor, lattice: Lattice, offset: Ints) -> tuple[Tensor, Tensor]:
    """The sources whose target at an offset is within the grid, and the keys of these targets."""
    stride, targets = (positions.new_tensor(v) for v in (lattice.stride, lattice.targets))
    place = positions * positions.new_tensor(lattice.upsampling) - positions.new_tensor(offset)
    inside = ((place >= 0) & (place < targets * stride)).all(1)
    if max(lattice.stride) > 1:
        inside &= (place % stride == 0).all(1)
    source = inside.nonzero().squeeze(1)
    return source, _keys(place[source] // stride, sample[source], lattice.targets)


def _keys(positions: Tensor, sample: Tensor, shape: Ints) -> Tensor:
    """One integer for each position of each sample, in the order of samples and of the grid."""
    key = sample
    for axis, size in enumerate(shape):
        key = key * size + positions[:, axis]
    return key


def _positions(keys: Tensor, shape: Ints) -> tuple[Tensor, Tensor]:
    """The positions, (N, r), and the samples of keys; the inverse of `_keys`."""
    along = []
    for size in reversed(shape):
        along.append(keys % size if size else keys)
        keys = keys // size if size else keys
    return torch.stack(along[::-1], 1), keys
