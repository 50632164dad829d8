"""Attention, replayed: later calls go from the features to the kernel at once.

Mechanisms are written for any content, and on a small graph evaluating them takes longer than the arithmetic. But every
call ends in the same way: the features are multiplied by the same parameters, and the kernel reads the same columns of
the product. A record holds which parameters and which columns these are.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..backend import on_gpu
from ..content import Content, Mapped, apply_maps, joined_sums
from ..entries import Entries
from ..kernels import Affine, Sums, Valued
from ..kernels.multihead import HELD
from ..kernels.op import PLAIN
from ..kernels.scored import kernels_take, of_entries, one_pass
from ..kernels.scoring import Scoring
from ..mechanisms import Mechanism
from ..theta import Theta
from ..theta.heads import Values

_TRIES = 4  # records that a program makes at most, if attributes of the basis change between its calls
_saved_by_hooks = torch._C._autograd._top_saved_tensors_default_hooks  # the innermost ones, or None
_OWN = __name__.partition(".")[0]
_ACTIVATIONS = "torch.nn.modules.activation"


class _Read(NamedTuple):
    """A parameter by its name, and the shape that it must have; the shape is None if there must be no parameter."""

    parameters: dict[str, Any]
    name: str
    shape: torch.Size | None


class _Map(NamedTuple):
    """An `Affine` map: the function that makes it, and of which of the parameters that are read.

    indices: of the parameters, or None; scale: of the map.
    """

    function: Callable[..., Affine]
    indices: Sequence[int | None]
    scale: float

    def of(self, given: Sequence[Tensor]) -> Affine:
        """The map itself."""
        found = self.function(*[None if i is None else given[i] for i in self.indices])
        return found if self.scale == 1 else found._replace(scale=self.scale)


class _Columns(NamedTuple):
    """What is made of some features; see `content.Mapped`."""

    side: int
    maps: Sequence[_Map]


class Replay:
    """The record of a call.

    Args:
        basis: that was evaluated.
        content: of the call.
        scoring: computes the scores from the rows.
        parameters: that are read.
        columns: what is made of the features.
        values: the indices of what is summed, and of the features that values of edges are made of or None, among the
            columns; and the map that makes them.
        rows: for each argument of the scoring, its index there, or ~i for parameter i, or None.
        listed: whether it reads the features of edges in their own order.
        adds: whether the parameter does no more to the sums than to add the bias.
    """

    def __init__(
        self,
        basis: Any,
        content: Content,
        scoring: Scoring,
        parameters: "_Parameters",
        columns: Sequence[_Columns],
        values: tuple[int, int | None, _Map | None],
        rows: Sequence[int | None],
        listed: bool,
        adds: bool,
    ) -> None:
        self.K, self.normalize, self.of_weights, self.scoring = basis.K, basis.normalize, basis.weighted, scoring
        self.reads, self.ties = parameters.reads, parameters.ties
        self.columns, self.values, self.rows, self.listed, self.adds = columns, values, rows, listed, adds
        self.edge_values, self.edge_dim, self.edge_width = content.edge_values, 0, 0
        if content.edge_attr is not None:
            self.edge_dim = content.edge_attr.shape[1]
            self.edge_width = max(
                [y.shape[1] for one in content.mapped if one.side == 2 for y in one.results], default=0
            )
        mechanism = basis.mechanism
        self.modules = [(m._modules, [*m._modules.values()]) for m in (basis, *mechanism.modules()) if m._modules]
        self.changes = [(m, m.changes) for m in mechanism.modules() if isinstance(m, Mechanism)]

    def takes(self, entries: Entries, x: Tensor, edge_attr: Tensor | None, edge_values: Theta | None) -> bool:
        """Whether the features of edges are those of a graph, and few enough to be evaluated as in the record."""
        if edge_attr is None or not self.edge_dim:
            return edge_attr is None and edge_values is None and not self.edge_dim
        known = entries.are_edges if self.listed else entries.has_edge_ids
        if not known or edge_values is not self.edge_values or entries.E * self.edge_width > HELD:
            return False
        plain = type(edge_attr) in PLAIN and edge_attr.device == x.device and not edge_attr.is_neg()
        return plain and edge_attr.dtype is x.dtype and edge_attr.shape == (entries.num_edges, self.edge_dim)

    def __call__(
        self,
        entries: Entries,
        basis: Any,
        theta: Theta,
        x: Tensor,
        target: Tensor,
        bias: Tensor | None,
        edge_attr: Tensor | None,
    ) -> Tensor | None:
        """The result; None if a change of the basis or the parameters may call for another evaluation."""
        if basis.normalize != self.normalize or basis.weighted != self.of_weights or not theta.by_rows:
            return None
        if basis.weighted and entries.has_weight:
            return None
        if basis.training and basis.dropout:
            return None
        for modules, those in self.modules:
            if [*modules.values()] != those:
                return None
        for mechanism, changes in self.changes:
            if mechanism.changes != changes:
                return None
        given: list[Any] = []
        alike = x.dtype, x.is_cpu
        for parameters, name, shape in self.reads:
            t = parameters.get(name)
            if t is None:
                if shape is not None:
                    return None
            elif t.shape != shape or (t.dtype, t.is_cpu) != alike or type(t) not in PLAIN or t.is_neg():
                return None
            given.append(t)
        for parameters, name, index in self.ties:
            if parameters.get(name) is not given[index]:
                return None
        if not x.is_cpu and any(t is not None and t.device != x.device for t in given):  # slower to ask
            return None
        features = x, target, edge_attr
        if edge_attr is not None and not self.listed:
            features = x, target, entries.rows_of_edges(edge_attr)
        found: list[Any] = []
        for side, maps in self.columns:
            of = features[side]
            found += apply_maps(of, [one.of(given) for one in maps]) if maps else [of]  # type: ignore[arg-type]
        rows = [None if i is None else found[i] if i >= 0 else given[~i] for i in self.rows]
        form = self.scoring.form(rows, self.K)
        if form is None:
            return None
        z, of_edges, map = self.values
        values = None if of_edges is None or map is None else Valued.of_last(found[of_edges], map.of(given).weight)
        sums = Sums(self.scoring, self.normalize == "source", entries.pattern, self.K)
        given_rows = found[z], None, *of_entries(sums, form, found[z], values), *rows
        if sums.normalised and on_gpu(x):
            return joined_sums(theta, one_pass(sums, form, given_rows, read_only=True), bias)
        y = one_pass(sums, form, given_rows)
        if self.adds and bias is not None and bias.dtype is y.dtype:
            return y.add_(bias)  # these sums are nobody else's
        return theta.join(y, bias)


class Replays:
    """The replay of calls, once there is a record; the same for all graphs, as it reads nothing but their entries."""

    def __init__(self) -> None:
        self._replay: Replay | None = None
        self._tries = 0

    def __call__(
        self, entries: Entries, basis: Any, theta: Theta, x: Tensor, bias: Tensor | None, call: Any
    ) -> Tensor | None:
        """The result of a call; None if the call is to be evaluated, and maybe recorded.

        Under hooks on saved tensors nothing is replayed: a checkpoint compares what a call saves with what it saves
        when it is computed again, and a replay may save it in another order.
        """
        replay, z = self._replay, call.edge_attr
        if replay is None or not replay.takes(entries, x, z, call.edge_values) or _saved_by_hooks(True):
            return None
        y = replay(entries, basis, theta, x, call.x[1] if isinstance(call.x, tuple | list) else x, bias, z)
        if y is None:
            self._replay = None
        return y

    @property
    def read_edges(self) -> bool:
        """Whether there is a record, of a call with features of edges."""
        return self._replay is not None and self._replay.edge_dim > 0

    def record(self, basis: Any, content: Content, weighing: Any, entries: Entries) -> None:
        """Records a call that was just evaluated, if it can be replayed."""
        if self._tries < _TRIES and weighing.dropout is None:
            self._tries += 1
            self._replay = _recorded(basis, content, weighing, entries)


@torch.no_grad()
def _recorded(basis: Any, content: Content, weighing: Any, entries: Entries) -> Replay | None:
    theta, x, found, z = content.inputs.theta, content.x, weighing.in_rows, content.edge_attr
    plain = content.mask is content.valid is None and not content.batch and (z is None or z.dim() == 2)
    if not plain or found is None or (weighing.weighted and entries.has_weight) or not _known(basis, theta):
        return None
    (scoring, tensors), rows, values, K = found, content.inputs.rows, content.values_at(entries), basis.K
    if rows.dtype is not x.dtype or x.layout != torch.strided:
        return None
    form, sums = scoring.form(tensors, K), Sums(scoring, basis.normalize == "source", entries.pattern, K)
    if kernels_take(sums, form, rows, tensors, None, values) is None:
        return None
    own = (theta, *basis.mechanism.modules())
    parameters = _Parameters(own if content.edge_values is None else (*own, content.edge_values))
    if parameters.overlap:
        return None
    mapped = [*content.mapped]
    if not any(y is rows for one in mapped for y in one.results):
        of_rows = () if theta.affine is None else (theta.affine,)
        mapped.append(Mapped(0, of_rows, (rows,)))
    listed = form is not None and form.listed
    if listed and (values is not None or any(one.side == 2 for one in mapped)):  # these read them by target
        return None
    if z is not None:
        z = z if listed else content.edge_rows_at(entries)
        mapped.append(Mapped(2, (), (z,)))
    columns = [id(y) for one in mapped for y in one.results]
    products = []
    for one in mapped:
        maps = [m for m in map(parameters.map, one.maps) if m is not None]
        if len(maps) < len(one.maps):
            return None
        products.append(_Columns(one.side, maps))
    indices: list[int | None] = []
    for t in tensors:
        index = None
        if id(t) in columns:
            index = columns.index(id(t))
        elif t is not None:
            index = parameters.index(t)
            if index is None:
                return None
            index = ~index
        indices.append(index)
    if theta._parameters.get("value_bias", rows) is None:  # one may be set later
        parameters.reads.append(_Read(theta._parameters, "value_bias", None))
    of_sums: tuple[int, int | None, _Map | None] = columns.index(id(rows)), None, None
    if values is not None and content.edge_values is not None:
        made = parameters.map(cast(Values, content.edge_values).map)
        if made is None:
            return None
        of_sums = of_sums[0], columns.index(id(z)), made
    adds = theta.join(rows) is rows
    return Replay(basis, content, scoring, parameters, products, of_sums, indices, listed, adds)


def _known(basis: Any, theta: Theta) -> bool:
    """Whether the scores are computed by modules of this package and by activations only, and not by code of a user."""
    if not theta.by_rows or not _is_own(basis) or not _is_own(theta):
        return False
    for m in basis.mechanism.modules():
        plain = type(m).__module__ == _ACTIVATIONS or type(m) is nn.ModuleList
        if "score" in vars(m) or not (plain or _is_own(m)):
            return False
    return True


def _is_own(module: nn.Module) -> bool:
    """Whether the class of a module is of this package."""
    return type(module).__module__.partition(".")[0] == _OWN


class _Parameters:
    """The parameters of some modules, numbered in the order in which a record asks for them.

    Attributes:
        reads: those that were asked for.
        ties: further names of these, with the index of each: either may be given another parameter.
        overlap: whether one is a view of another.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._places: dict[int, list[tuple[nn.Module, str]]] = {}
        own = [(m, name, t) for m in modules for name, t in m._parameters.items() if t is not None]
        for m, name, t in own:
            self._places.setdefault(id(t), []).append((m, name))
        self.overlap = any(id(t._base) in self._places for _, _, t in own)
        self._flat: dict[tuple[int, int], set[int]] = {}  # by the memory of those that are contiguous
        for _, _, t in own:
            if t.is_contiguous():
                self._flat.setdefault((t.data_ptr(), t.numel()), set()).add(id(t))
        self._indices: dict[int, int] = {}
        self.reads: list[_Read] = []
        self.ties: list[tuple[dict[str, Any], str, int]] = []

    def index(self, t: Tensor) -> int | None:
        """The index of a parameter, or of the parameter that t is a flat view of; None if t is neither."""
        own = id(t)
        if own not in self._places and t._base is not None and t.is_contiguous():
            alike = self._flat.get((t.data_ptr(), t.numel()), set())
            own = next(iter(alike)) if len(alike) == 1 else own
        if own not in self._places:
            return None
        if own not in self._indices:
            (module, name), *others = self._places[own]
            self._indices[own] = index = len(self.reads)
            self.reads.append(_Read(module._parameters, name, module._parameters[name].shape))  # type: ignore[union-attr]
            self.ties += [(m._parameters, other, index) for m, other in others]
        return self._indices[own]

    def map(self, one: Affine) -> _Map | None:
        """A map by the parameters that it is made of; None if these are no parameters."""
        weight, bias, scale, made = one
        function, of = made or (Affine, (weight, bias))
        index = [None if t is None else self.index(t) for t in of]
        if id(of[0]) not in self._places or any(i is None and t is not None for i, t in zip(index, of, strict=True)):
            return None
        return _Map(function, index, scale)
