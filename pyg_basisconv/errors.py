"""One form for what is said at the door."""

from typing import Any, NoReturn

DEPTH = 100  # of what is written, or made, of something that is made of something
_CALLS = 1000  # within each other, of which Python allows no more

_OF_MESSAGES = {"aggr", "aggr_kwargs", "flow", "node_dim", "decomposed_layers"}  # arguments of PyG's `MessagePassing`
# Arguments of PyG's layers, and where they are in a `BasisConv`.
_ELSEWHERE = {
    "add_self_loops": "the basis has loops: bases.Adjacency('sym', self_loops=True)",
    "concat": "the parameter puts heads side by side, or takes their mean: theta.Heads('mean')",
    "dropout": "the attention drops: bases.Attention(heads, mechanism, dropout=p)",
    "edge_dim": "the attention's mechanism reads edges, see help(bases.Attention)",
    "heads": "the basis has a matrix for each head: bases.Attention(heads, mechanism), with theta.Heads()",
    "improved": "the basis has loops: bases.Adjacency('sym', self_loops=2.0)",
    "K": "the basis says how many there are: bases.Chebyshev(K)",
    "normalize": "the basis is normalised: bases.Adjacency('sym')",
    "num_bases": "the parameter shares matrices: theta.Separable(H)",
    "num_relations": "the basis has a matrix for each: bases.Relations(num_relations)",
    "root_weight": "it is one more matrix: bases.Identity() + bases.Adjacency('mean')",
}


def reject(argument: str, expected: str, got: object, fix: str) -> NoReturn:
    """Raises a `ValueError` that names the argument, what was expected, what came, and what to do.

    >>> reject("order", "'auto' or 'a_first'", "'fast'", "leave it out to let the plan choose")
    Traceback (most recent call last):
    ...
    ValueError: order: expected 'auto' or 'a_first', got 'fast'; leave it out to let the plan choose
    """
    raise ValueError(f"{argument}: expected {expected}, got {got}; {fix}")


def check_flags(**flags: object) -> None:
    """Rejects what is neither True nor False.

    >>> check_flags(bias=True, cached="no")
    Traceback (most recent call last):
    ...
    ValueError: cached: expected True or False, got 'no'; give one of them
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            reject(name, "True or False", repr(value), "give one of them")


def check_choice(name: str, value: object, *choices: str | None, fix: str = "choose one") -> None:
    """Rejects what is none of several words; None may be one of them.

    >>> check_choice("norm", "gcn", None, "sym", "mean")
    Traceback (most recent call last):
    ...
    ValueError: norm: expected None, 'sym' or 'mean', got 'gcn'; choose one
    """
    if not isinstance(value, str | None) or value not in choices:
        *others, last = map(repr, choices)
        reject(name, f"{', '.join(others)} or {last}", repr(value), fix)


def check_probability(name: str, value: object) -> None:
    """Rejects what is no probability of dropping something.

    >>> check_probability("dropout", 1.0)
    Traceback (most recent call last):
    ...
    ValueError: dropout: expected a probability below 1, got 1.0; give a number from 0 to 1
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        reject(name, "a probability below 1", repr(value), "give a number from 0 to 1")


def check_arguments(kwargs: dict[str, Any]) -> None:
    """Rejects arguments that a `BasisConv` does not have, and says where what they mean is to be found.

    >>> check_arguments({"flow": "target_to_source", "root_weight": True})
    Traceback (most recent call last):
    ...
    ValueError: root_weight: expected no such argument of BasisConv, got True; it is one more matrix: ...
    """
    for name, value in kwargs.items():
        if name not in _OF_MESSAGES:
            fix = _ELSEWHERE.get(name, "leave it out, see help(BasisConv)")
            reject(name, "no such argument of BasisConv", repr(value), fix)


_MOST = 1 << 31  # of anything, for which there is memory


def check_count(name: str, value: object, least: int = 1, most: int = _MOST) -> None:
    """Rejects what is not an integer from `least` on, and what no memory holds.

    >>> check_count("heads", 0)
    Traceback (most recent call last):
    ...
    ValueError: heads: expected an integer from 1 on, got 0; give a number
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        reject(name, f"an integer from {least} {'on' if most == _MOST else f'to {most}'}", repr(value), "give a number")


def check_depth(name: str, *parts: Any, calls: int = 20) -> int:
    """How deep something is nested that is made of these parts, rejected where it is too deep to be evaluated.

    calls: how many calls within each other one level takes, at most.

    >>> from pyg_basisconv import bases
    >>> check_depth("basis", bases.Identity(), bases.Adjacency().T)
    3
    """
    depth: int = 1 + max(getattr(part, "depth", 1) for part in parts)
    most = min(DEPTH, _CALLS // calls)
    if depth > most:
        reject(name, f"something nested at most {most} deep", depth, "make it of fewer parts; a sum of many is flat")
    return depth
