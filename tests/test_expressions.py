"""Expressions of bases, parameters and mechanisms mean what Python makes of them, and nothing else."""

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from pyg_basisconv import BasisConv, bases, mechanisms, theta
from pyg_basisconv.expressions import read

SCOPE: dict[str, Any] = {**vars(nn), **vars(bases), **vars(theta), **vars(mechanisms)}
WRITTEN = [
    "Chebyshev(K=3)",
    "Identity() + Adjacency('mean') + Laplacian()",
    "Powers(2, Adjacency('rw')) @ (Identity() + Diffusion(2, direction='both'))",
    "(Adjacency('rw') @ Adjacency()).T",
    "0.5 * Powers(2) - Identity() @ (-Powers(2))",
    "Mix([[1.0, -0.5, 0.25], [0, 0, 1]], Powers(3))",
    "Attention(8, 0.5 * Dot(8) + Additive().then(LeakyReLU(0.2)), Adjacency(self_loops=True), dropout=0.5)",
    "Window((4, 4), (3, 3), padding=1)",
    "Relations(4, norm='mean', inverse=True)",
    "Wavelets(3, Adjacency('sym'), low_pass=False)",
    "Separable(H=4, depthwise=True)",
    "Heads('mean')",
    "Pass(scale=[1, 0.5])",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_as_python_has_it(text: str):
    found, expected = read(text), eval(text, SCOPE)
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)
    if isinstance(found, bases.Basis):
        assert repr(read(repr(found))) == repr(found)  # what a basis prints is read again


def test_each_reading_is_another():
    first, second = (BasisConv(4, 6, read(WRITTEN[5]), read("LowRank(2)")) for _ in range(2))
    assert not {id(p) for p in first.parameters()} & {id(p) for p in second.parameters()}
    assert first(torch.randn(3, 4), torch.tensor([[0], [1]])).shape == (3, 6)


BAD = {
    "a function": "open('secrets')",
    "a module": "__import__('os')",
    "an attribute": "Identity().__class__",
    "a method": "Identity().bind(size=10)",
    "a function of torch": "Tensor(3)",
    "a name": "Identity",
    "an index": "[Identity()][0]",
    "a generator": "[Identity() for _ in range(3)]",
    "a lambda": "Additive().then(lambda t: t)",
    "arguments in a list": "Mix(*[1, 2])",
    "a statement": "K = 3",
    "a product of strings": "'a' * 1000000000",
    "a power": "Chebyshev(10 ** 10)",
    "nothing": "",
    "half an expression": "Chebyshev(",
    "an argument that is not there": "Chebyshev(k=3)",
    "an argument too few": "Mix()",
    "an argument that cannot be": "Chebyshev(0)",
    "a sum of two kinds": "Identity() + Dot(3)",
    "the activation of a basis": "Identity().then(ReLU())",
    "the transpose of a number": "(3).T",
    "deep brackets": "(" * 5000 + ")" * 5000,
    "many signs": "-" * 20000 + "1",
    "a product of many": "@".join(["Identity()"] * 500),
    "a basis turned round again and again": "Identity()" + ".T" * 3000,
    "half a letter": "Identity()\ud800",
    "an argument twice": "Chebyshev(K=3, K=4)",
    "arguments in a dict": "Chebyshev(**{'K': 3})",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_read(name: str):
    with pytest.raises(ValueError, match=r"expected .*, got .*; "):
        read(BAD[name])


@pytest.mark.parametrize("text", [None, 5, b"Identity()"], ids=["nothing", "a number", "bytes"])
def test_what_is_no_text(text: Any):
    with pytest.raises(ValueError, match="expected an expression"):
        read(text)


def test_messages_are_short():
    with pytest.raises(ValueError, match="expected an expression") as caught:
        read("+".join(["Identity()"] * 5000))
    assert len(str(caught.value)) < 500


def test_near_names_are_offered():
    with pytest.raises(ValueError, match="did you mean 'Adjacency'"):
        read("Adjacancy()")


PIECES = ["Identity()", "Adjacency", "Dot", "(", ")", "+", "@", "*", ".T", "[", "]", ",", "3", "'"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_read_or_refused(text: str):
    with contextlib.suppress(ValueError):
        assert isinstance(read(text), nn.Module | int | str | list | tuple)
