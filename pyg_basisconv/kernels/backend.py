"""The compiled kernels, where they were built, and which kernels are in use.

Every compiled kernel has a twin in torch's or numpy's operations, which does the same where it is not there.
"""

import os
from importlib import import_module
from typing import Any

from ..errors import reject

_NAME = "BASISCONV_KERNELS"  # 'compiled' or 'torch', to have these and no others
_WANTED = os.environ.get(_NAME, "")


def _found() -> tuple[Any, str]:
    """The compiled kernels, Any for what has no types, and why they are there or not."""
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
        return None, f"not there: {error}"
    return kernels, "in use"


KERNELS, _WHY = _found()


def backends() -> dict[str, str]:
    """Which kernels are in use on the CPU, and why others are not.

    The environment variable BASISCONV_KERNELS, 'compiled' or 'torch', says which ones to use; where it is not set the
    compiled ones are used if they were built.

    Raises:
        ValueError: when the package is imported, if that variable asks for what is not there.

    >>> sorted(backends())
    ['compiled', 'torch']
    """
    return {"compiled": _WHY, "torch": "in use" if KERNELS is None else "in use for all that is not compiled"}
