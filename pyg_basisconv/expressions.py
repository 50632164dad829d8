"""Reads bases, parameters and mechanisms from expressions, for configuration files."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from . import bases, mechanisms, theta
from .errors import DEPTH, reject
from .walks.wording import suggestion

_ACTIVATIONS = ("ELU", "GELU", "LeakyReLU", "ReLU", "Sigmoid", "SiLU", "Softplus", "Tanh")
_KNOWN = {
    name: getattr(module, name)
    for module, names in ((bases, bases.__all__), (theta, theta.__all__), (mechanisms, mechanisms.__all__))
    for name in names
    if not isinstance(getattr(module, name), type) or issubclass(getattr(module, name), nn.Module)
} | {name: getattr(nn, name) for name in _ACTIVATIONS}
_SHOWN = 200  # characters of a text in a message
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.MatMult: operator.matmul, ast.Mult: operator.mul}


def read(text: str, others: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """The basis, parameter or mechanism that a Python expression describes, in the form in which they print.

    Nothing is executed. Names are those of this package and of activations of torch; arguments are numbers, strings,
    lists and such expressions. Allowed are `a + b`, `a - b`, `a @ b`, `2.5 * a`, `a.T`, and `a.then(f)` of a mechanism.

    Args:
        text: the expression.
        others: functions that it may call beside these, by name.

    Raises:
        ValueError: for other expressions, and for arguments that the classes reject.

    >>> read("Identity() + Adjacency('mean')")
    Identity() + Adjacency(norm='mean')
    >>> read("Attention(8, Additive().then(Tanh()), Adjacency(self_loops=True))")
    Attention(8, Additive().then(Tanh()), mask=Adjacency(self_loops=True))
    >>> read("Chebishev(3)")
    Traceback (most recent call last):
    ...
    ValueError: Chebishev(3): expected a basis, a parameter, ..., got Chebishev; did you mean 'Chebyshev'?
    """
    fix = "write it as in Python, such as \"Identity() + Adjacency('mean')\""
    shown = repr(text)[:_SHOWN]
    try:
        tree = ast.parse(text.strip(), mode="eval").body if isinstance(text, str) else None
    except (MemoryError, RecursionError, SyntaxError, UnicodeError) as error:
        reject(shown, "an expression of bases, parameters and mechanisms", str(error) or "too much of it", fix)
    if tree is None or _deeper(tree, DEPTH):
        got = type(text).__name__ if tree is None else f"one nested more than {DEPTH} times"
        reject(shown, "an expression of bases, parameters and mechanisms", got, fix)
    try:
        return _read(tree, _KNOWN | dict(others or {}))
    except (AttributeError, TypeError) as error:
        reject(shown, "an expression of bases, parameters and mechanisms", error, fix)


def _deeper(node: ast.AST, depth: int) -> bool:
    """Whether an expression is nested more deeply than this."""
    return depth < 0 or any(_deeper(child, depth - 1) for child in ast.iter_child_nodes(node))


def _read(node: ast.expr, known: Mapping[str, Callable[..., Any]]) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name not in known:
                expected = "a basis, a parameter, a mechanism or an activation"
                reject(ast.unparse(node), expected, name, suggestion(name, known, "see help(pyg_basisconv.bases)"))
            named = {str(k.arg): _read(k.value, known) for k in keywords if k.arg is not None}
            if len(named) < len(keywords):  # the last one would win
                reject(ast.unparse(node), "each argument once, by its name", "it twice, or **", "write it once")
            return known[name](*[_read(arg, known) for arg in args], **named)
        case ast.Call(func=ast.Attribute(value=inner, attr="then"), args=[activation], keywords=[]):
            return _read(inner, known).then(_read(activation, known))
        case ast.Call(func=ast.Attribute(attr=name) as func) if name in known:
            reject(ast.unparse(node), "a name without its module", ast.unparse(func), f"write {name}(...)")
        case ast.Attribute(value=inner, attr="T"):
            return _read(inner, known).T
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            operands = _read(left, known), _read(right, known)
            if any(isinstance(operand, nn.Module) for operand in operands):  # rejects arithmetic on lists and strings
                return _OPERATORS[type(op)](*operands)
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            return -_read(operand, known)
        case ast.List(elts=elements):
            return [_read(element, known) for element in elements]
    try:
        return ast.literal_eval(node)
    except ValueError:
        reject(ast.unparse(node), "a class with its arguments, or a literal", type(node).__name__, "write it out")
