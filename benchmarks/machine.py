"""Describes the machine of the measurements."""

import platform
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch_geometric.typing import WITH_TORCH_SPARSE

import pyg_basisconv


def machine(device: str) -> dict[str, Any]:
    """The processor, the versions and the threads, without host names."""
    return {
        "processor": processor(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "torch_sparse": WITH_TORCH_SPARSE,
        "pyg_basisconv": pyg_basisconv.__version__,
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
