"""Which kernels are in use, and what the environment says of them; see `backends`."""

import os
import subprocess
import sys

import pytest

import pyg_basisconv
from pyg_basisconv.kernels import backend


def answer(wanted: str) -> subprocess.CompletedProcess[str]:
    program = "import pyg_basisconv; print(pyg_basisconv.backends())"
    environment = os.environ | {"BASISCONV_KERNELS": wanted}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_what_is_in_use_is_said() -> None:
    """With the environment as it is."""
    compiled = pyg_basisconv.backends()["compiled"]
    assert (compiled == "in use") == (backend.KERNELS is not None)
    if os.environ.get("BASISCONV_KERNELS") == "torch":
        assert compiled == "not used: BASISCONV_KERNELS is 'torch'"


def test_torch_alone_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_WANTED", "torch")
    assert backend._load() == (None, "not used: BASISCONV_KERNELS is 'torch'")


@pytest.mark.skipif(backend.KERNELS is None, reason=pyg_basisconv.backends()["compiled"])
def test_compiled_kernels_can_be_asked_for() -> None:
    assert "'compiled': 'in use'" in answer("compiled").stdout


def test_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(backend, "import_module", missing)
    monkeypatch.setattr(backend, "_WANTED", "compiled")
    with pytest.raises(ValueError, match=r"^BASISCONV_KERNELS: expected compiled kernels .* install a C\+\+ compiler"):
        backend._load()
    monkeypatch.setattr(backend, "_WANTED", "")
    assert backend._load() == (None, "not built: No module named 'pyg_basisconv._kernels'")


def test_another_word_is_refused() -> None:
    found = answer("fast")
    assert found.returncode
    assert "BASISCONV_KERNELS: expected 'compiled' or 'torch', got 'fast'" in found.stderr
