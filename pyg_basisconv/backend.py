"""Loads the compiled kernels if they were built, and says which kernels are in use.

Every compiled kernel has an equivalent in torch or numpy operations, which replaces it where it was not built.
"""

import os
from importlib import import_module
from typing import Any

from .errors import reject

_NAME = "BASISCONV_KERNELS"  # 'compiled' or 'torch' forces these
_WANTED = os.environ.get(_NAME, "")


def _load() -> tuple[Any, str]:
    """The compiled kernels, or None; and their status."""
    if _WANTED not in ("", "compiled", "torch"):
        reject(_NAME, "'compiled' or 'torch'", repr(_WANTED), "set it to one of them, or not at all")
    if _WANTED == "torch":
        return None, f"not used: {_NAME} is 'torch'"
    try:
        kernels = import_module("pyg_basisconv._kernels")
    except ImportError as error:
        if _WANTED == "compiled":
            fix = "install a C++ compiler and the package again, or unset it"
            reject(_NAME, "compiled kernels that can be loaded", error, fix)
        return None, f"not built: {error}"
    return kernels, "in use"


KERNELS, _STATUS = _load()


def backends() -> dict[str, str]:
    """Which kernels are in use on the CPU, and why others are not.

    The environment variable BASISCONV_KERNELS, 'compiled' or 'torch', forces one of them; by default the compiled
    kernels are used if they were built.

    Raises:
        ValueError: when the package is imported, if that variable asks for kernels that cannot be loaded.

    >>> sorted(backends())
    ['compiled', 'torch']
    """
    return {"compiled": _STATUS, "torch": "in use" if KERNELS is None else "in use for all that is not compiled"}
