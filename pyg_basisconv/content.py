"""The inputs of bases that are computed from content: features of sources, targets and edges, and masks."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .backend import on_gpu
from .cache import cached_property
from .entries import Entries
from .errors import reject
from .kernels import Affine, Valued, affine, contracted, spmm
from .kernels.dense import can_join
from .kernels.multihead import to_heads, to_rows
from .kernels.op import autocasting
from .layouts import check_form
from .theta import Theta
from .theta.base import Members, stacked
from .theta.heads import Values, all_heads


class Mapped(NamedTuple):
    """Affine maps of the same features that were computed in one product.

    side: 0, 1 or 2, of the sources, of the targets, or of the entries; maps: of these features, or none for the
    features themselves; results: of the maps.
    """

    side: int
    maps: Sequence[Affine]
    results: Sequence[Tensor]


class Beside:
    """A map of features whose result a layer needs beside those of its basis and its parameter.

    While it is in force, on a GPU, the next product of these features computes it as well.

    adds: whether the layer adds the result to that of its basis; added: whether it was; result: None while it is not
    computed.

    >>> with Beside(torch.ones(2, 3), Affine(torch.ones(4, 3)), True) as own:
    ...     own.result is None  # nothing was computed
    True
    """

    def __init__(self, x: Tensor, map: Affine, adds: bool) -> None:
        self.x, self.map, self.adds, self.added = x, map, adds, False
        self.result: Tensor | None = None

    def __enter__(self) -> "Beside":
        self._token = _BESIDE.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _BESIDE.reset(self._token)


_BESIDE: ContextVar[Beside | None] = ContextVar("_BESIDE", default=None)


def beside() -> Beside | None:
    """What is in force, if its result is known."""
    wanted = _BESIDE.get()
    return None if wanted is None or wanted.result is None else wanted


def joined_sums(theta: Theta, y: Tensor, bias: Tensor | None) -> Tensor:
    """What a parameter makes of the sums y of its members, which may be saved for the backward pass: in new memory."""
    found, wanted = theta.join(y, bias), beside()
    if wanted is not None and wanted.adds and not wanted.added:
        wanted.added = True
        return found + cast(Tensor, wanted.result)
    return found.clone() if y.requires_grad and (found is y or found._base is y) else found


def _with_beside(x: Tensor, maps: Sequence[Affine]) -> Sequence[Tensor] | None:
    """Affine maps of features in one product with the one that is wanted beside them; None if there is none."""
    wanted = _BESIDE.get() if on_gpu(x) else None
    if wanted is None or wanted.x is not x or wanted.result is not None or not can_join(x, (*maps, wanted.map)):
        return None
    *found, wanted.result = affine(x, (*maps, wanted.map))
    return found


def apply_maps(x: Tensor, maps: Sequence[Affine]) -> Sequence[Tensor]:
    """Affine maps of features, in one product."""
    for one in maps:
        if one.weight.device != x.device:  # with numbers on 'meta' torch's product is memory as it was
            reject("basis", f"parameters on {x.device}, where x is", one.weight.device, "move the whole layer there")
    found = _with_beside(x, maps)
    if found is not None:
        return found
    return affine(x, maps) if len(maps) > 1 else [all_heads(x, *maps[0][:3])]


def _mapped(side: int, x: Tensor, maps: Sequence[Affine]) -> list[Mapped]:
    """Affine maps of features, in one product if it is small."""
    groups = [maps] if len(maps) > 1 and can_join(x, maps) else [(one,) for one in maps]
    return [Mapped(side, group, apply_maps(x, group)) for group in groups]


class Inputs:
    """Features and the parameter that multiplies them. The products are cached, as basis and layer may both need them.

    summed: whether the layer sums these products; False if they are only scored.
    """

    def __init__(self, x: Tensor, theta: Theta, summed: bool = True) -> None:
        self.x, self.theta, self.summed = x, theta, summed

    @cached_property
    def projected(self) -> Members:
        """The K members x Theta_k, as `Theta.project` returns them."""
        return to_heads(self.rows, self.theta.K) if "rows" in vars(self) else self.theta.project(self.x)

    @cached_property
    def rows(self) -> Tensor:
        """The K members side by side, (*, M, K D)."""
        theta, x = self.theta, self.x
        if not theta.by_rows:
            return to_rows(stacked(self.projected))
        own = theta.affine if on_gpu(x) else None
        found = None if own is None else _with_beside(x, (own,))
        return theta.rows(x) if found is None else found[0]

    def affine(self, maps: Sequence[Affine], values: bool = True) -> list[Mapped]:
        """Affine maps of the features, in one product if possible, which computes `rows` before them if `values`."""
        own = self.theta.affine if values and self.summed and "rows" not in vars(self) else None
        # Not for values wider than x: an order may do without them.
        if own is not None and own.weight.shape[2] <= own.weight.shape[1] == self.x.shape[-1]:
            joined = own, *maps
            if can_join(self.x, joined):
                found = _with_beside(self.x, joined) or affine(self.x, joined)
                vars(self)["rows"] = found[0]
                return [Mapped(0, joined, found)]
        return _mapped(0, self.x, maps)


_ALL = slice(None)


@dataclass(eq=False, repr=False)
class Content:
    """The inputs of scores.

    Args:
        inputs: the sources' features x, (*, M, P), and the parameter.
        target: the targets' features y', (*, N, P'), or None.
        edge_attr: (E, R), in the order of the graph's edges, or (M, N, R) for all pairs; with the batch dimensions of x
            before it where each graph has its own.
        mask: (M, N), (*, M, N) or (*, K, M, N): boolean, or to be added to the scores.
        valid: (*, M) False for sources that are padding.
        observed: whether the caller gets the weights, which then have to be those that were applied.
        edges: E.
        asks_edges: whether the caller needs the edge of each weight.
        members: the slice of Theta's members that belongs to this basis; None within a product or a mixture, whose
            members are not Theta's.
        edge_values: the parameter of values that edges have, or None; see `BasisConv.forward`.
    """

    inputs: Inputs
    target: Tensor | None = None
    edge_attr: Tensor | None = None
    mask: Tensor | None = None
    valid: Tensor | None = None
    observed: bool = False
    edges: int = 0
    asks_edges: bool = False
    members: slice | None = field(default_factory=lambda: _ALL)
    edge_values: Theta | None = None
    _shared: dict[Any, Any] = field(default_factory=dict)  # cached results, shared by all that are made of this
    mapped: list[Mapped] = field(default_factory=list)  # all that was computed of features by maps

    def __post_init__(self) -> None:
        self.x, self.batch = self.inputs.x, tuple(self.inputs.x.shape[:-2])

    def for_members(self, start: int, stop: int) -> "Content":
        """The content of the members start .. stop - 1."""
        if self.members is None:
            return self
        first = self.members.start or 0
        return replace(self, members=slice(first + start, first + stop))

    def affine(self, of_source: Sequence[Affine], of_target: Sequence[Affine] = ()) -> Sequence[Tensor]:
        """Affine maps of the sources' features, followed by maps of the targets'; in as few products as possible."""
        inputs, values = self.inputs, self.members is not None
        if not (of_source or of_target):
            return ()
        if not of_target or self.target_features is self.x:
            made = inputs.affine((*of_source, *of_target), values)
        else:
            made = inputs.affine(of_source, values) if of_source else []
            made += _mapped(1, self.target_features, of_target)
        self.mapped += made
        found = [y for one in made for y in one.results]
        return found[len(found) - len(of_source) - len(of_target) :]  # without `inputs.rows`

    @property
    def projected(self) -> Tensor:
        """The sources' x Theta_k, (K, *, M, D)."""
        return self._own_members(stacked(self.inputs.projected))

    def map_of_projected(self, vectors: Tensor) -> Affine | None:
        """The inner products of the sources' x Theta_k with vectors, (K, D), as a map of x; None if x is wider than
        these rows, or the members are not all of Theta's.
        """
        own = self.inputs.theta.affine if self.members is _ALL else None
        if (
            own is None
            or own.made is not None
            or self.x.layout != torch.strided
            or own.weight.shape[1] > vectors.numel()
        ):
            return None
        return contracted(own.weight, vectors, own.bias)

    @property
    def projected_rows(self) -> Tensor:
        """The sources' x Theta_k side by side, (*, M, K D)."""
        return self.inputs.rows if self.members is _ALL else to_rows(self.projected)

    @property
    def projected_target_rows(self) -> Tensor:
        """The targets' y' Theta_k, side by side, (*, N, K D)."""
        return to_rows(self.projected_target)

    @property
    def projected_target(self) -> Tensor:
        """The targets' y' Theta_k, (K, *, N, D)."""
        target = self.target_features
        if target is self.x:
            return self.projected
        if "target" not in self._shared:
            theta = self.inputs.theta
            if target.shape[-1] != theta.P:
                reject("x[1]", f"{theta.P} channels, to be projected as x[0]", target.shape[-1], "use target='own'")
            self._shared["target"] = stacked(theta.project(target))
        return self._own_members(self._shared["target"])

    def _own_members(self, z: Tensor) -> Tensor:
        """The members of this basis; all of them unsliced, as the gradient of a slice is a copy."""
        if self.members is None:
            fix = "score x itself, with a mechanism that is not projected"
            reject("mechanism", "a layer's own basis, or a sum, to score what Theta projects", "a product", fix)
        return z if self.members is _ALL or self.members == slice(0, len(z)) else z[self.members]

    @property
    def target_features(self) -> Tensor:
        """The targets' features; rejects a content without them."""
        if self.target is None:
            fix = "pass x=(x_src, x_dst), or a mechanism with target=None"
            reject("x", "features of the targets, which the mechanism scores", None, fix)
        return self.target

    @property
    def edge_features(self) -> Tensor:
        """The edges' features; rejects a content without them."""
        if self.edge_attr is None:
            reject("edge_attr", "features of the edges, which the mechanism scores", None, "pass edge_attr= by name")
        return self.edge_attr

    @property
    def has_edge_rows(self) -> bool:
        """Whether `edge_attr` has a row for each edge of the graph, and not for each pair."""
        z = self.edge_attr
        return z is not None and (z.dim() == 2 or z.shape[:-1] == (*self.batch, self.edges))

    def edge_rows_at(self, entries: Entries) -> Tensor:
        """The edges' features at the entries of a mask, by target, (E, R), or (*, E, R) of each graph; cached."""
        key = "edges", entries
        if key not in self._shared:
            z, known = self.edge_features, self.has_edge_rows
            rows = z if known else z.flatten(-3, -2)
            lead = rows.shape[:-2]
            if lead:  # the graphs side by side, as further features
                rows = rows.movedim(-2, 0).flatten(1)
            found = entries.rows_of_edges(rows) if known else spmm(rows, None, entries.each_pair)
            self._shared[key] = found.unflatten(1, (*lead, z.shape[-1])).movedim(0, -2) if lead else found
        return self._shared[key]

    def edge_products(self, entries: Entries, map: Affine) -> Tensor:
        """(E, K D) the map of the edges' features at the entries, without a bias, in the dtype of scores.

        They are cached, as several scores may be made of the same matrices.
        """
        own = map.weight if map.made is None else cast(Tensor, map.made[1][0])
        key = "products", entries, id(own)
        if key not in self._shared:  # with the weight, so that no other has its address
            found = all_heads(*self.mapped_edges(entries, map))
            self.mapped.append(Mapped(2, (map,), (found,)))
            self._shared[key] = found, own
        return self._shared[key][0]

    def values_at(self, entries: Entries) -> Valued | None:
        """The values of the edges at the entries, (E, K D); None if edges have none."""
        values = cast(Values | None, self.edge_values)
        return None if values is None else self.mapped_edges(entries, values.map)

    def mapped_edges(self, entries: Entries, map: Affine) -> Valued:
        """What a map, without a bias, makes of the edges' features at the entries; in the dtype of scores."""
        rows = self.edge_rows_at(entries)
        dtype = torch.promote_types(rows.dtype, torch.float32)
        key = "features", entries, dtype
        if key not in self._shared:  # the same tensor, wherever they are read
            self._shared[key] = rows.to(dtype)
        return Valued.of_last(self._shared[key], map.weight.to(dtype))

    def check(self, M: int, N: int, K: int) -> None:
        """Rejects parts whose shapes, dtypes or devices do not fit; nothing is broadcast."""
        x, batch = self.x, self.batch
        if (self.target is None or self.target is x) and self.edge_attr is self.mask is self.valid is None:
            return
        parts = {"edge_attr": self.edge_attr, "mask": self.mask, "valid": self.valid, "x[1]": self.target}
        for name, t in parts.items():
            if t is None:
                continue
            if not isinstance(t, Tensor):
                reject(name, "a tensor", type(t).__name__, "convert it with torch.as_tensor")
            check_form(name, t, sparse=name in ("edge_attr", "x[1]"))
            if t.device != x.device:
                reject(name, f"a tensor on {x.device}, where x is", t.device, "move all inputs to one device")
            boolean = name in ("mask", "valid") and t.dtype == torch.bool
            if not boolean and (name == "valid" or not t.is_floating_point()):
                wanted = "dtype torch.bool" + " or a floating point dtype" * (name == "mask")
                fix = f"convert it with .{'bool' if name in ('mask', 'valid') else 'float'}()"
                reject(name, wanted if name in ("mask", "valid") else "a floating point dtype", t.dtype, fix)
            if not boolean and t.dtype != x.dtype and not autocasting(x.device):
                reject(name, f"dtype {x.dtype}, as x", t.dtype, f"convert it with .to({x.dtype})")
        if self.target is not None and self.target.shape[:-2] != batch:
            reject("x[1]", f"batch dimensions {batch}", tuple(self.target.shape[:-2]), "as in x[0]")
        if self.edge_attr is not None:
            shape = tuple(self.edge_attr.shape)
            if shape[:-1] not in ((self.edges,), (M, N), (*batch, self.edges), (*batch, M, N)):
                own = f"; each may come after the batch dimensions {batch}" if batch else ""
                expected = f"one row per edge, shape ({self.edges}, R), or per pair, ({M}, {N}, R){own}"
                reject("edge_attr", expected, shape, "give as many rows as edge_index has columns")
            if len(batch) == 1 and len(shape) == 3 and shape[:-1] == (M, N) == (*batch, self.edges):
                fix = f"expand features of all pairs to ({M}, {M}, {N}, R)"
                reject("edge_attr", f"a shape of pairs or of {M} graphs' edges, but not of both", shape, fix)
        if self.mask is not None:
            shapes = [(M, N), (*batch, M, N), (*batch, K, M, N)]
            if tuple(self.mask.shape) not in shapes:
                expected = "shape " + " or ".join(str(s) for s in dict.fromkeys(shapes))
                fix = "mask[..., m, n] says whether n may look at m: torch's attn_mask is its transpose"
                reject("mask", expected, tuple(self.mask.shape), fix)
        if self.valid is not None and tuple(self.valid.shape) != (*batch, M):
            reject("valid", f"shape {(*batch, M)}, one for each source", tuple(self.valid.shape), "True where it is")
