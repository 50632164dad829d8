"""Errors about arguments, all in one form: the argument, what was expected, what came, and the fix."""

from typing import Any, NoReturn

from torch import Tensor

DEPTH = 100  # nesting allowed in an expression or composite
_CALLS = 1000  # nested calls that Python allows

_PYG_ARGUMENTS = {"aggr", "aggr_kwargs", "flow", "node_dim", "decomposed_layers"}  # arguments of PyG's `MessagePassing`
# Arguments of PyG's layers, and of torch's attention, and what takes their place here.
_REPLACED_BY = {
    "add_self_loops": "the basis says whether it adds loops: bases.Adjacency('sym', self_loops=True)",
    "attn_mask": "a call has mask=, its transpose: mask[m, n] is True where n may look at m",
    "batch_size": "the number of graphs is a size: size=(M, G)",
    "concat": "the parameter puts heads side by side, or takes their mean: theta.Heads('mean')",
    "dropout": "the attention drops: bases.GAT(heads, dropout=p), or bases.Attention(..., dropout=p)",
    "edge_dim": "a mechanism scores edges, Edge(dim): "
    "bases.Attention(heads, (Additive(projected=True) + Edge(dim)).then(nn.LeakyReLU(0.2)), bases.Adjacency())",
    "groups": "the parameter has groups: theta.Grouped(groups)",
    "heads": "the basis has a matrix for each head: bases.GAT(heads), or bases.Attention, with theta.Heads()",
    "improved": "the basis has loops: bases.Adjacency('sym', self_loops=2.0)",
    "is_causal": "the basis says so: bases.Attention(heads, mechanism, mask=bases.Causal())",
    "kernel_size": "the basis has it: bases.Window(None, (3, 3), padding=1)",
    "key_padding_mask": "a call has valid=, its contrary: True for what is no padding",
    "K": "the basis says how many there are: bases.Chebyshev(K)",
    "lengths": "pack the sequences: torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)",
    "need_weights": "return_attention=True returns (y, A), and A.to_dense() has the weights",
    "normalize": "the basis is normalised: bases.Adjacency('sym')",
    "num_bases": "the parameter shares matrices: theta.Separable(H)",
    "num_relations": "the basis has a matrix for each: bases.Relations(num_relations)",
    "padding": "the basis has it: bases.Window(None, (3, 3), padding=1)",
    "return_attention_weights": "return_attention=True returns (y, A), and A.edges() has the weights",
    "stride": "the basis has it: bases.Window(None, (3, 3), stride=2)",
    "root_weight": "it is one more matrix: bases.Identity() + bases.Adjacency('mean')",
}


def reject(argument: str, expected: str, got: object, fix: str) -> NoReturn:
    """Raises a `ValueError` that names the argument, what was expected, what came, and the fix.

    >>> reject("order", "'auto' or 'a_first'", "'fast'", "leave it out to let the plan choose")
    Traceback (most recent call last):
    ...
    ValueError: order: expected 'auto' or 'a_first', got 'fast'; leave it out to let the plan choose
    """
    raise ValueError(f"{argument}: expected {expected}, got {got}; {fix}")


def call_it(given: object, otherwise: str) -> str:
    """The fix for an argument that should be an instance: to call what came, if that makes one.

    >>> from pyg_basisconv import bases
    >>> call_it(bases.Identity, "choose a basis"), call_it(3, "choose a basis")
    ('call it: Identity()', 'choose a basis')
    """
    name = getattr(given, "__name__", "")
    return f"call it: {name}()" if name and callable(given) else otherwise


def check_made(argument: str, kind: str, part: object, arguments: str = "") -> None:
    """Rejects a module whose constructor did not call that of its base class.

    >>> from torch import nn
    >>> check_made("mechanism", "a Mechanism", nn.Module.__new__(nn.Module))
    Traceback (most recent call last):
    ...
    ValueError: mechanism: expected a Mechanism, got a Module that is half made; call super().__init__() in ...
    """
    if "_parameters" not in vars(part):  # torch would raise an AttributeError of another name
        name = type(part).__name__
        reject(argument, kind, f"a {name} that is half made", f"call super().__init__({arguments}) in {name}.__init__")


def shape_or_type(value: object) -> object:
    """What a message says of a value that does not fit: the shape of a tensor, None, or the type of anything else.

    >>> import torch
    >>> shape_or_type(torch.zeros(2, 3)), shape_or_type(None), shape_or_type([0.0])
    ((2, 3), None, 'list')
    """
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return None if value is None else type(value).__name__


def check_flags(**flags: object) -> None:
    """Rejects arguments that are neither True nor False.

    >>> check_flags(bias=True, cached="no")
    Traceback (most recent call last):
    ...
    ValueError: cached: expected True or False, got 'no'; give one of them
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            reject(name, "True or False", repr(value), "give one of them")


def check_choice(name: str, value: object, *choices: str | None, fix: str = "choose one") -> None:
    """Rejects an argument that is none of the choices.

    >>> check_choice("norm", "gcn", None, "sym", "mean")
    Traceback (most recent call last):
    ...
    ValueError: norm: expected None, 'sym' or 'mean', got 'gcn'; choose one
    """
    if not isinstance(value, str | None) or value not in choices:
        *others, last = map(repr, choices)
        reject(name, f"{', '.join(others)} or {last}", repr(value), fix)


def check_probability(name: str, value: object) -> None:
    """Rejects an argument that is not a number from 0 to 1, with 1 excluded.

    >>> check_probability("dropout", 1.0)
    Traceback (most recent call last):
    ...
    ValueError: dropout: expected a number from 0 to below 1, got 1.0; lower it
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        fix = "lower it" if isinstance(value, int | float) and value >= 1 else "correct it"
        reject(name, "a number from 0 to below 1", repr(value), fix)


def check_arguments(kwargs: dict[str, Any]) -> None:
    """Rejects arguments that `BasisConv` does not have, and names the replacement for those of PyG's layers.

    >>> check_arguments({"flow": "target_to_source", "root_weight": True})
    Traceback (most recent call last):
    ...
    ValueError: root_weight: expected no such argument of BasisConv, got True; it is one more matrix: ...
    """
    refuse_arguments({name: value for name, value in kwargs.items() if name not in _PYG_ARGUMENTS}, "BasisConv")


def refuse_arguments(given: dict[str, Any], of: str) -> None:
    """Rejects all these arguments, which a function does not have.

    >>> refuse_arguments({"concat": False}, "bases.GAT")
    Traceback (most recent call last):
    ...
    ValueError: concat: expected no such argument of bases.GAT, got False; the parameter puts heads side by side, ...
    """
    for name, value in given.items():
        got = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
        reject(name, f"no such argument of {of}", got, _REPLACED_BY.get(name, f"leave it out, see help({of})"))


_MAX = 1 << 31  # count for which memory suffices


def check_count(name: str, value: object, least: int = 1, most: int = _MAX) -> None:
    """Rejects an argument that is not an integer from `least` to `most`.

    >>> check_count("heads", 0)
    Traceback (most recent call last):
    ...
    ValueError: heads: expected an integer from 1 on, got 0; give a number
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        is_over = isinstance(value, int) and value > most
        expected = f"an integer from {least} {'on' if most == _MAX and not is_over else f'to {most}'}"
        reject(name, expected, repr(value), "give a number")


def check_depth(name: str, *parts: Any, calls: int = 20) -> int:
    """The nesting depth of a composite of these parts; rejects one that is too deep for Python's call stack.

    calls: the most nested calls that one level takes.

    >>> from pyg_basisconv import bases
    >>> check_depth("basis", bases.Identity(), bases.Adjacency().T)
    3
    """
    depth: int = 1 + max(getattr(part, "depth", 1) for part in parts)
    most = min(DEPTH, _CALLS // calls)
    if depth > most:
        reject(name, f"something nested at most {most} deep", depth, "make it of fewer parts; a sum of many is flat")
    return depth
