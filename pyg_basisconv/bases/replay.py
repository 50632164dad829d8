"""Attention on a small graph, replayed: a call like an earlier one goes from its features to the kernel at once.

What a mechanism makes of a content is written for all contents. On a small graph the way there supports longer than the
arithmetic, and in every call it ends alike: the same parameters are multiplied with the features, and the kernel is
given the same columns of the product. These are recorded here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import Parameter, functional as F

from ..content import Content
from ..entries import Entries
from ..kernels import Affine
from ..kernels.dense import can_join
from ..kernels.onepass import supports
from ..kernels.scored import Scoring, one_pass
from ..mechanisms import Mechanism
from ..theta import Theta

_PLAIN = (Tensor, Parameter)
_TRIES = 4  # records of one program, where attributes of the basis change between its calls
_OWN = __name__.partition(".")[0]
_ACTIVATIONS = "torch.nn.modules.activation"


class _Read(NamedTuple):
    """A parameter by its name, and the shape that it has to have; None where there is none under this name."""

    parameters: dict[str, Any]
    name: str
    shape: torch.Size | None


class _Map(NamedTuple):
    """A map of features: the numbers of its weight and its bias among the parameters, how many columns it gives, and
    their factor.
    """

    weight: int
    bias: int | None
    width: int
    scale: float


class _Product:
    """The columns of several maps of the same features, in one product."""

    def __init__(self, maps: Sequence[_Map], parameters: Sequence[Tensor]) -> None:
        self.weights, self.widths = [m.weight for m in maps], [m.width for m in maps]
        self.scales = [(i, m.scale) for i, m in enumerate(maps) if m.scale != 1]
        self.alike = len({_turned(parameters[i]).shape[1:] for i in self.weights}) == 1  # heads of one width
        self.biases = [m.bias for m in maps] if any(m.bias is not None for m in maps) else []
        self.zeros = [parameters[m.weight].detach().new_zeros(m.width) for m in maps]

    def of(self, x: Tensor, parameters: Sequence[Any]) -> list[Tensor]:
        """(M, P) -> (M, K D) of each map."""
        P = x.shape[1]
        parts = [_turned(parameters[i]) for i in self.weights]
        flat = [z if i is None else parameters[i].view(-1) for i, z in zip(self.biases, self.zeros, strict=False)]
        if len(parts) == 1:
            found = [F.linear(x, parts[0].reshape(-1, P), flat[0] if flat else None)]
        else:
            parts = parts if self.alike else [part.reshape(-1, P) for part in parts]
            y = F.linear(x, torch.cat(parts).view(-1, P), torch.cat(flat) if flat else None)
            found = [*y.split_with_sizes(self.widths, 1)]
        for i, scale in self.scales:
            found[i] = found[i] * scale
        return found


def _turned(weight: Tensor) -> Tensor:
    """(K, P), or (K, P, D) as (K, D, P)."""
    return weight if weight.dim() == 2 else weight.mT


class Replay:
    """A call, as it was recorded: what the kernel is given, and what it is made of.

    Args:
        basis: that was evaluated.
        entries: of its mask.
        scoring: what makes scores of the rows.
        reads: the parameters.
        products: of the sources' features, Theta's columns first, and of the targets', if these are others.
        rows: of each of the rows that are scored, its number among all columns; or ~i for parameter i; or None.
    """

    def __init__(
        self,
        basis: Any,
        entries: Entries,
        scoring: Scoring,
        reads: Sequence[_Read],
        products: Sequence[_Product | None],
        rows: Sequence[int | None],
    ) -> None:
        self.K, self.normalize, self.pattern = basis.K, basis.normalize, entries.pattern
        self.scoring, self.reads, self.products, self.rows = scoring, reads, products, rows
        self.of_weights = basis.weighted
        mechanism = basis.mechanism
        self.modules = [(m._modules, [*m._modules.values()]) for m in (basis, *mechanism.modules()) if m._modules]
        self.changes = [(m, m.changes) for m in mechanism.modules() if isinstance(m, Mechanism)]

    def __call__(self, basis: Any, theta: Theta, x: Tensor, target: Tensor, bias: Tensor | None) -> Tensor | None:
        """The result; None where something has changed, so that it might be another one."""
        if basis.normalize != self.normalize or basis.weighted != self.of_weights:
            return None
        if basis.training and basis.dropout:
            return None
        for modules, those in self.modules:
            if [*modules.values()] != those:
                return None
        for mechanism, changes in self.changes:
            if mechanism.changes != changes:
                return None
        given = []
        for parameters, name, shape in self.reads:
            t = parameters.get(name)
            if t is None:
                if shape is not None:
                    return None
            elif t.shape != shape or t.dtype is not x.dtype or type(t) not in _PLAIN:
                return None
            given.append(t)
        columns: list[Tensor] = []
        for product, features in zip(self.products, (x, target), strict=True):
            if product is not None:
                columns += product.of(features, given)
        rows = [None if i is None else columns[i] if i >= 0 else given[~i] for i in self.rows]
        form = self.scoring.form(rows, self.K)
        if form is None:
            return None
        y = one_pass(form, self.scoring, rows, columns[0], self.K, self.normalize == "source", self.pattern)
        return theta.join(y, bias)


class Replays:
    """The record of a program's calls, once there is one."""

    def __init__(self) -> None:
        self._replay: Replay | None = None
        self._tries = 0

    def __call__(self, basis: Any, theta: Theta, x: Tensor, target: Tensor, bias: Tensor | None) -> Tensor | None:
        """The result of a call; None where it is to be evaluated, and maybe recorded."""
        replay = self._replay
        y = None if replay is None else replay(basis, theta, x, target, bias)
        if y is None:
            self._replay = None
        return y

    def record(self, basis: Any, content: Content, weighing: Any, entries: Entries) -> None:
        """Records a call that was just evaluated, if it is of the kind that can be."""
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
    sides: list[list[tuple[Affine, Tensor]]] = [[(cast(Affine, theta.affine), z)], []]
    for one, of_target, y in content.made:
        sides[of_target and content.target is not x].append((one, y))
    products = []
    for features, made in zip((x, content.target), sides, strict=True):
        maps = [m for m in (parameters.map(one) for one, _ in made) if m is not None]
        if len(maps) < len(made) or (made and not can_join(cast(Tensor, features), [one for one, _ in made])):
            return None
        products.append(_Product(maps, parameters.tensors) if maps else None)
    columns = [id(y) for made in sides for _, y in made]
    rows: list[int | None] = []
    for t in tensors:
        number = None
        if t is not None:
            number = columns.index(id(t)) if id(t) in columns else parameters.inverted(t)
            if number is None:
                return None
        rows.append(number)
    parameters.expect_none(theta, "value_bias")
    return Replay(basis, entries, scoring, parameters.reads, products, rows)


def _known(basis: Any, theta: Theta) -> bool:
    """Whether all that makes the scores is of this package, which makes the same of each call, or an activation."""
    if not theta.by_rows or type(basis).__module__.partition(".")[0] != _OWN:
        return False
    for m in basis.mechanism.modules():
        module = type(m).__module__
        if "score" in vars(m) or not (module.startswith(_OWN) or module == _ACTIVATIONS or type(m) is nn.ModuleList):
            return False
    return True


class _Parameters:
    """The parameters of some modules that a record reads, numbered."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        own = [(m, name, t) for m in modules for name, t in m._parameters.items() if t is not None]
        self._places = {id(t): (m, name) for m, name, t in own}
        self.are_tied = len(self._places) < len(own)  # True if one has two names, of which either may change
        self.reads: list[_Read] = []
        self.tensors: list[Tensor] = []

    def number(self, t: Tensor) -> int | None:
        """The number of a parameter, or of what a view has flattened; None where it is none."""
        t = t if id(t) in self._places else t._base if t._base is not None and t.is_contiguous() else t
        if id(t) not in self._places:
            return None
        for i, other in enumerate(self.tensors):
            if other is t:
                return i
        module, name = self._places[id(t)]
        self.reads.append(_Read(module._parameters, name, t.shape))
        self.tensors.append(t)
        return len(self.tensors) - 1

    def inverted(self, t: Tensor) -> int | None:
        """~i of parameter i."""
        number = self.number(t)
        return None if number is None else ~number

    def expect_none(self, module: nn.Module, name: str) -> None:
        """Has a parameter that is not there read as well, if it is not: one may be set."""
        if module._parameters[name] is None:
            self.reads.append(_Read(module._parameters, name, None))

    def map(self, one: Affine) -> _Map | None:
        """A map by the numbers of its parameters."""
        weight = self.number(one.weight)
        bias = None if one.bias is None else self.number(one.bias)
        if weight is None or self.tensors[weight] is not one.weight or (one.bias is not None and bias is None):
            return None
        return _Map(weight, bias, one.weight.numel() // one.weight.shape[1], one.scale)
