"""Attention, replayed: later calls go from the features to the compiled kernel at once.

Mechanisms are written for any content, and on a small graph evaluating them takes longer than the arithmetic. But every
call ends in the same way: the features are multiplied by the same parameters, and the kernel reads the same columns of
the product. A record holds which parameters and which columns these are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..content import Content, Mapped, apply_maps
from ..entries import Entries
from ..kernels import Affine
from ..kernels.onepass import supports
from ..kernels.op import PLAIN
from ..kernels.scored import Scoring, one_pass
from ..mechanisms import Mechanism
from ..theta import Theta

_TRIES = 4  # records that a program makes at most, if attributes of the basis change between its calls
_OWN = __name__.partition(".")[0]
_ACTIVATIONS = "torch.nn.modules.activation"


class _Read(NamedTuple):
    """A parameter by its name, and the shape that it must have; the shape is None if there must be no parameter."""

    parameters: dict[str, Any]
    name: str
    shape: torch.Size | None


class _Map(NamedTuple):
    """An `Affine` map, with the index of its weight and bias among the parameters that are read."""

    weight: int
    bias: int | None
    scale: float


class Replay:
    """The record of a call.

    Args:
        basis: that was evaluated.
        scoring: computes the scores from the rows.
        reads: the parameters.
        products: whether the features are the targets', and the maps of them, for each product that is taken.
        values: the index of what is summed, among the results of all maps.
        rows: for each argument of the scoring, its index there, or ~i for parameter i, or None.
        adds: whether the parameter does no more to the sums than to add the bias.
    """

    def __init__(
        self,
        basis: Any,
        scoring: Scoring,
        reads: Sequence[_Read],
        products: Sequence[tuple[bool, Sequence[_Map]]],
        values: int,
        rows: Sequence[int | None],
        adds: bool,
    ) -> None:
        self.K, self.normalize = basis.K, basis.normalize
        self.scoring, self.reads, self.products, self.values, self.rows = scoring, reads, products, values, rows
        self.of_weights, self.adds = basis.weighted, adds
        mechanism = basis.mechanism
        self.modules = [(m._modules, [*m._modules.values()]) for m in (basis, *mechanism.modules()) if m._modules]
        self.changes = [(m, m.changes) for m in mechanism.modules() if isinstance(m, Mechanism)]

    def __call__(
        self, entries: Entries, basis: Any, theta: Theta, x: Tensor, target: Tensor, bias: Tensor | None
    ) -> Tensor | None:
        """The result; None if a change of the basis or the parameters may call for another evaluation."""
        if basis.normalize != self.normalize or basis.weighted != self.of_weights:
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
        for parameters, name, shape in self.reads:
            t = parameters.get(name)
            if t is None:
                if shape is not None:
                    return None
            elif t.shape != shape or t.dtype is not x.dtype or type(t) not in PLAIN or not t.is_cpu or t.is_neg():
                return None
            given.append(t)
        columns: list[Tensor] = []
        for of_target, maps in self.products:
            features = target if of_target else x
            found = [Affine(given[w], b if b is None else given[b], s) for w, b, s in maps]
            columns += apply_maps(features, found)
        rows = [None if i is None else columns[i] if i >= 0 else given[~i] for i in self.rows]
        form = self.scoring.form(rows, self.K)
        if form is None:
            return None
        normalised, z = self.normalize == "source", columns[self.values]
        y = one_pass(form, self.scoring, normalised, entries.pattern, self.K, z, None, None, *rows)
        if self.adds and bias is not None and bias.dtype is y.dtype:
            return y.add_(bias)  # these sums are nobody else's
        return theta.join(y, bias)


class Replays:
    """The replay of calls, once there is a record; the same for all graphs, as it reads nothing but their entries."""

    def __init__(self) -> None:
        self._replay: Replay | None = None
        self._tries = 0

    def __call__(
        self, entries: Entries, basis: Any, theta: Theta, x: Tensor, target: Tensor, bias: Tensor | None
    ) -> Tensor | None:
        """The result of a call; None if the call is to be evaluated, and maybe recorded."""
        replay = self._replay
        y = None if replay is None else replay(entries, basis, theta, x, target, bias)
        if y is None:
            self._replay = None
        return y

    def record(self, basis: Any, content: Content, weighing: Any, entries: Entries) -> None:
        """Records a call that was just evaluated, if it can be replayed."""
        if self._tries < _TRIES and not weighing.dropout[0]:
            self._tries += 1
            self._replay = _recorded(basis, content, weighing, entries)


def _recorded(basis: Any, content: Content, weighing: Any, entries: Entries) -> Replay | None:
    theta, x, found = content.inputs.theta, content.x, weighing.in_rows
    plain = content.edge_attr is content.mask is content.valid is None and not content.batch
    if not plain or found is None or (weighing.weighted and entries.has_weight) or not _known(basis, theta):
        return None
    (scoring, tensors), z, K = found, content.inputs.rows, basis.K
    if z.dtype is not x.dtype or x.layout != torch.strided:
        return None
    if not supports(scoring.form(tensors, K), tensors, z, K, entries.pattern):
        return None
    parameters = _Parameters((theta, *basis.mechanism.modules()))
    if parameters.are_tied:
        return None
    mapped = content.mapped
    if not any(y is z for one in mapped for y in one.results):
        mapped = [*mapped, Mapped(False, (cast(Affine, theta.affine),), (z,))]
    products = []
    for one in mapped:
        maps = [m for m in map(parameters.map, one.maps) if m is not None]
        if len(maps) < len(one.maps):
            return None
        products.append((one.of_target, maps))
    columns = [id(y) for one in mapped for y in one.results]
    rows: list[int | None] = []
    for t in tensors:
        index = None
        if id(t) in columns:
            index = columns.index(id(t))
        elif t is not None:
            index = parameters.index(t)
            if index is None:
                return None
            index = ~index
        rows.append(index)
    if theta._parameters["value_bias"] is None:  # one may be set later
        parameters.reads.append(_Read(theta._parameters, "value_bias", None))
    adds = theta.join(z) is z
    return Replay(basis, scoring, parameters.reads, products, columns.index(id(z)), rows, adds)


def _known(basis: Any, theta: Theta) -> bool:
    """Whether the scores are computed by modules of this package and by activations only, and not by code of a user."""
    if not theta.by_rows or theta.affine is None or not _is_own(basis):
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
    """The parameters of some modules, numbered in the order in which a record asks for them."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        own = [(m, name, t) for m in modules for name, t in m._parameters.items() if t is not None]
        self._places = {id(t): (m, name) for m, name, t in own}
        # One parameter, or one and a view of it, under two names, either of which may change.
        self.are_tied = len(self._places) < len(own) or any(id(t._base) in self._places for _, _, t in own)
        self._indices: dict[int, int] = {}
        self.reads: list[_Read] = []

    def index(self, t: Tensor) -> int | None:
        """The index of a parameter, or of the parameter that t is a flat view of; None if t is neither."""
        if id(t) not in self._places and t._base is not None and t.is_contiguous():
            t = t._base
        if id(t) not in self._places:
            return None
        if id(t) not in self._indices:
            module, name = self._places[id(t)]
            self._indices[id(t)] = len(self.reads)
            self.reads.append(_Read(module._parameters, name, t.shape))
        return self._indices[id(t)]

    def map(self, one: Affine) -> _Map | None:
        """A map by the indices of its parameters; None if they are not parameters."""
        weight = self.index(one.weight) if id(one.weight) in self._places else None
        bias = None if one.bias is None else self.index(one.bias)
        if weight is None or (one.bias is not None and bias is None):
            return None
        return _Map(weight, bias, one.scale)
