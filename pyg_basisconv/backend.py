"""Loads the compiled kernels if they were built, and says which kernels are in use.

Every compiled kernel has an equivalent in torch or numpy operations, which replaces it where it was not built.
"""

import os
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from .errors import reject

_NAME = "BASISCONV_KERNELS"  # 'compiled', 'triton' or 'torch' forces these
_WANTED = os.environ.get(_NAME, "")
TRITON = _WANTED == "triton"  # not by default, until a GPU has run its kernels as they are
# Triton runs its kernels on the CPU in numpy, slowly, if this is set before it is imported.
_INTERPRETED = TRITON and os.environ.get("TRITON_INTERPRET") == "1"
_CAPABILITY = 7, 0  # of the oldest GPU that Triton compiles for

# Whether a tensor is on a GPU, where an operation takes longer to start than a small one to run, and who looks at
# numbers waits; where Triton is interpreted, the CPU is taken for one. In C, as small calls on the CPU ask it.
on_gpu: Callable[[torch.Tensor], bool] = attrgetter("is_cuda")
if _INTERPRETED:
    on_gpu = attrgetter("is_cpu")


def _load() -> tuple[Any, str]:
    """The compiled kernels, or None; and their status."""
    if _WANTED not in ("", "compiled", "triton", "torch"):
        reject(_NAME, "'compiled', 'triton' or 'torch'", repr(_WANTED), "set it to one of them, or not at all")
    if _WANTED == "torch":
        return None, f"not used: {_NAME} is 'torch'"
    try:
        kernels = import_module("pyg_basisconv._kernels")
    except ImportError as error:
        fix = "install a C++ compiler and the package again (in a clone: pip install -e .)"
        if _WANTED == "compiled":
            reject(_NAME, "compiled kernels that can be loaded", error, f"{fix}, or unset it")
        return None, f"not built: {error}; {fix}"
    if _sources() not in (None, getattr(kernels, "sources", "")):  # the first kernels did not say
        fix = "build them again: python setup.py build_ext --inplace"
        if _WANTED == "compiled":
            reject(_NAME, "kernels that are built from csrc/ as it is", "older ones", fix)
        return None, f"not used: csrc/ has changed since they were built; {fix}"
    return kernels, "in use"


def _sources() -> str | None:
    """The fingerprint of the sources beside the package, by which setup.py marks what it builds; None without them."""
    root = Path(__file__).parents[1]
    sources = sorted((root / "csrc").glob("*.[ch]*"))
    if not sources or not (root / "setup.py").is_file():  # installed
        return None
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


KERNELS, _STATUS = _load()


@cache
def _triton_status(index: int | None) -> str:
    """Of the GPU of an index, or of torch's current one."""
    if _WANTED == "torch":
        return f"not used: {_NAME} is 'torch'"
    if find_spec("triton") is None:
        return "not installed"
    if _INTERPRETED:
        return "in use, interpreted on the CPU"
    if not torch.cuda.is_available():
        return "not used: no CUDA device"
    capability = torch.cuda.get_device_capability(index)
    if capability < _CAPABILITY:
        return "not used: compute capability {}.{} is below {}.{}".format(*capability, *_CAPABILITY)
    return "in use" if TRITON else f"not used: no GPU has run it as it is; {_NAME} = 'triton' asks for it"


def uses_triton(device: torch.device) -> bool:
    """Whether the kernels in Triton are used for tensors of a device."""
    if not TRITON:
        return False
    if device.type == "cpu":
        return _INTERPRETED
    return device.type == "cuda" and _triton_status(device.index) == "in use"


def is_watched() -> bool:
    """Whether a dispatch mode or `torch.jit.trace` follows the operations of torch: neither sees what kernels write."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state())


def starts_triton(device: torch.device) -> bool:
    """The same in this call: what traces it, and dispatch modes, do not see the kernels, and get torch's operations."""
    return uses_triton(device) and not (torch.compiler.is_compiling() or is_watched())


if _WANTED == "triton" and not _triton_status(None).startswith("in use"):
    reject(_NAME, "kernels in Triton that can be run", _triton_status(None), "install triton, find a GPU, or unset it")


def backends() -> dict[str, str]:
    """Which kernels are in use, compiled ones on the CPU and those in Triton on GPUs, and why others are not.

    The environment variable BASISCONV_KERNELS, 'compiled', 'triton' or 'torch', demands one of them; by default the
    compiled ones are used if they were built. With 'triton' and TRITON_INTERPRET=1 these kernels are interpreted on the
    CPU, for tests.

    Raises:
        ValueError: when the package is imported, if that variable asks for kernels that cannot be loaded.

    >>> sorted(backends())
    ['compiled', 'torch', 'triton']
    """
    triton = _triton_status(None)
    alone = KERNELS is None and not triton.startswith("in use")
    rest = "in use" if alone else "in use for all that others do not do"
    return {"compiled": _STATUS, "triton": triton, "torch": rest}
