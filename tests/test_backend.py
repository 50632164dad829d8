"""Which kernels are in use, and what the environment says of them; see `backends`."""

import os
from hashlib import sha256
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import pyg_basisconv
from pyg_basisconv import backend


def imported_with(wanted: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file that finds the kernels, imported again while the environment asks for some."""
    monkeypatch.setenv("BASISCONV_KERNELS", wanted)
    spec = util.spec_from_file_location(f"{backend.__name__}_again", backend.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_in_use_is_said() -> None:
    """With the environment as it is."""
    compiled = pyg_basisconv.backends()["compiled"]
    assert (compiled == "in use") == (backend.KERNELS is not None)
    if os.environ.get("BASISCONV_KERNELS") == "torch":
        assert compiled == "not used: BASISCONV_KERNELS is 'torch'"


def test_torch_alone_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert imported_with("torch", monkeypatch)._load() == (None, "not used: BASISCONV_KERNELS is 'torch'")


@pytest.mark.skipif(backend.KERNELS is None, reason=pyg_basisconv.backends()["compiled"])
def test_compiled_kernels_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert imported_with("compiled", monkeypatch).backends()["compiled"] == "in use"


def test_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(backend, "import_module", missing)
    monkeypatch.setattr(backend, "_WANTED", "compiled")
    with pytest.raises(ValueError, match=r"^BASISCONV_KERNELS: expected compiled kernels .* install a C\+\+ compiler"):
        backend._load()
    monkeypatch.setattr(backend, "_WANTED", "")
    kernels, status = backend._load()
    assert kernels is None
    assert status == (
        "not built: No module named 'pyg_basisconv._kernels'; "
        "install a C++ compiler and the package again (in a clone: pip install -e .)"
    )


@pytest.mark.skipif(backend.KERNELS is None, reason=pyg_basisconv.backends()["compiled"])
def test_kernels_of_other_sources_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend._sources() in (None, backend.KERNELS.sources)
    monkeypatch.setattr(backend, "_WANTED", "")
    monkeypatch.setattr(backend, "_sources", lambda: "of before")
    kernels, status = backend._load()
    assert kernels is None
    assert status.startswith("not used: csrc/ has changed since they were built; build them again")
    monkeypatch.setattr(backend, "_WANTED", "compiled")
    with pytest.raises(ValueError, match="BASISCONV_KERNELS: expected kernels that are built from csrc/ as it is"):
        backend._load()


def test_sources_are_those_beside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone, which has the file that builds them; what is installed has none."""
    monkeypatch.setattr(backend, "__file__", str(tmp_path / "pyg_basisconv" / "backend.py"))
    (tmp_path / "csrc").mkdir()
    (tmp_path / "setup.py").touch()
    assert backend._sources() is None
    for name, text in {"b.cpp": "2", "a.h": "1", "notes.txt": "no source"}.items():
        (tmp_path / "csrc" / name).write_text(text)
    assert backend._sources() == sha256(b"12").hexdigest()
    (tmp_path / "setup.py").unlink()
    assert backend._sources() is None


@pytest.mark.parametrize(("compiled", "triton"), [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_torch_does_what_is_left(compiled: bool, triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "KERNELS", object() if compiled else None)
    monkeypatch.setattr(backend, "_triton_status", lambda index: "in use" if triton else "not installed")
    rest = " for all that others do not do" * (compiled or triton)
    assert backend.backends()["torch"] == "in use" + rest


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="BASISCONV_KERNELS: expected 'compiled', 'triton' or 'torch', got 'fast'"):
        imported_with("fast", monkeypatch)


@pytest.mark.parametrize(
    ("wanted", "installed", "capability", "status"),
    [
        ("torch", True, (9, 0), "not used: BASISCONV_KERNELS is 'torch'"),
        ("", False, (9, 0), "not installed"),
        ("", True, None, "not used: no CUDA device"),
        ("", True, (6, 1), "not used: compute capability 6.1 is below 7.0"),
        ("", True, (7, 0), "not used: no GPU has run it as it is; BASISCONV_KERNELS = 'triton' asks for it"),
        ("compiled", True, (9, 0), "not used: no GPU has run it as it is; BASISCONV_KERNELS = 'triton' asks for it"),
        ("triton", True, (7, 0), "in use"),
    ],
)
def test_whether_triton_is_used(
    wanted: str, installed: bool, capability: tuple[int, int] | None, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_WANTED", wanted)
    monkeypatch.setattr(backend, "TRITON", wanted == "triton")
    monkeypatch.setattr(backend, "_INTERPRETED", False)
    monkeypatch.setattr(backend, "find_spec", lambda _: installed or None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    backend._triton_status.cache_clear()
    try:
        assert backend.backends()["triton"] == status
        assert backend.uses_triton(torch.device("cuda")) == (status == "in use")
        assert not backend.uses_triton(torch.device("cpu"))
    finally:
        backend._triton_status.cache_clear()


@pytest.mark.skipif(pyg_basisconv.backends()["triton"].startswith("in use"), reason="there is triton, and a GPU")
def test_kernels_are_not_started_where_something_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    assert not backend.starts_triton(device)
    monkeypatch.setattr(backend, "uses_triton", lambda device: True)
    assert backend.starts_triton(device)
    with FakeTensorMode():
        assert not backend.starts_triton(device)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not backend.starts_triton(device)


def test_triton_that_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="BASISCONV_KERNELS: expected kernels in Triton that can be run, got not"):
        imported_with("triton", monkeypatch)
