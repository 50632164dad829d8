"""Everything public is documented, shows how it is used, and is typed."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import pyg_basisconv
from pyg_basisconv.nn import DropIn

# Modules whose names are for users, as the README and CONTRIBUTING.md tell them; `verify` and `kernels` are within.
MODULES = (
    "",
    ".algebra",
    ".bases",
    ".blocks",
    ".convert",
    ".hetero",
    ".mechanisms",
    ".models",
    ".nn",
    ".plot",
    ".recurrent",
    ".testing",
    ".theta",
    ".transforms",
    ".walks",
)
INNER = {"Step"}  # an alias of a type, which has no docstring of its own


def names(module: Any) -> list[str]:
    """What it exports; all that it defines, where it does not say."""
    found = getattr(module, "__all__", None)
    if found is not None:
        return list(found)
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return [name for name in own if not name.startswith("_")]


def public() -> Iterator[tuple[str, Any]]:
    for suffix in MODULES:
        module = importlib.import_module("pyg_basisconv" + suffix)
        for name in names(module):
            value = getattr(module, name)
            if inspect.isclass(value) and issubclass(value, DropIn) and value is not DropIn:
                continue  # documented by the layer that it takes the place of, see test_nn.py
            if (inspect.isclass(value) or inspect.isroutine(value)) and name not in INNER:
                yield f"{module.__name__}.{name}", value


PUBLIC = dict(public())


def test_all_public_modules_are_listed() -> None:
    found = {f".{module.name}" for module in pkgutil.iter_modules(pyg_basisconv.__path__) if module.ispkg}
    assert found - {".compiled", ".kernels", ".orders", ".verify"} <= set(MODULES)


def test_all_names_at_once_leave_those_of_torch() -> None:
    found: dict[str, Any] = {}
    exec("from torch import nn\nfrom pyg_basisconv import *", found)
    assert found["nn"] is torch.nn
    assert found["BasisConv"] is pyg_basisconv.BasisConv


@pytest.mark.parametrize("name", PUBLIC)
def test_documented(name: str) -> None:
    """A summary, an example that runs as a doctest, and every argument by name."""
    value = PUBLIC[name]
    text = inspect.getdoc(value) or ""
    assert text, f"help({name}) is empty"
    assert ">>>" in text, f"{name} has no doctest"
    if not inspect.isclass(value) or "__init__" in vars(value):
        signature = inspect.signature(value.__init__ if inspect.isclass(value) else value)
        for argument in set(signature.parameters) - {"self", "args", "kwargs"}:
            assert argument in text, f"help({name}) does not say what {argument} is"


def test_the_types_are_shipped() -> None:
    """`py.typed`, and everything that is imported, is in the package that setuptools finds."""
    from setuptools import find_packages

    root = Path(pyg_basisconv.__file__).parent
    assert (root / "py.typed").exists()
    found = find_packages(str(root.parent), include=["pyg_basisconv*"])
    folders = {str(path.parent.relative_to(root.parent)).replace("/", ".") for path in root.rglob("*.py")}
    assert folders <= set(found)


def test_values_are_frozen_and_what_holds_tensors_is_compared_by_identity() -> None:
    """All dataclasses are values but those of the first set; of two equal tensors `==` would not say yes or no."""
    kinds = {}
    for found in pkgutil.walk_packages(pyg_basisconv.__path__, "pyg_basisconv."):
        if not found.name.endswith((".graphgym", ".__main__")) and ".triton" not in found.name:
            for kind in vars(importlib.import_module(found.name)).values():
                if inspect.isclass(kind) and is_dataclass(kind) and kind.__module__ == found.name:
                    kinds[kind.__name__] = kind.__dataclass_params__
    changing = {name for name, of in kinds.items() if not of.frozen}
    assert changing == {"Tally", "Node", "Content", "Trace", "LayerCall", "_Step"}
    one_of_its_kind = {name for name, of in kinds.items() if not of.eq}
    of_tensors = {"Chunk", "Content", "Decomposition", "HeadReport", "Knowledge", "NamedGraph", "Node"}
    assert one_of_its_kind == of_tensors | {"_Step"}


def test_the_reference_has_every_name() -> None:
    """The site's pages list them; drop-in layers have a table of their own."""
    pages = (Path(__file__).parent.parent / "docs" / "reference").glob("*.md")
    listed = re.findall(
        r"^::: pyg_basisconv\.(\S+)$", "\n".join(page.read_text("utf-8") for page in pages), re.MULTILINE
    )
    missing = {name.rpartition(".")[2] for name in PUBLIC} - {name.rpartition(".")[2] for name in listed}
    assert missing == set()
    for name in listed:
        pkgutil.resolve_name(f"pyg_basisconv.{name}")
