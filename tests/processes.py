"""Processes of one machine that work together, for tests."""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessRaisedException, set_forkserver_preload, start_processes

TIMEOUT = 300.0  # seconds, for a busy machine

# Children are copies of a process that has imported what takes long, and that runs no threads.
set_forkserver_preload(["pyg_basisconv", "examples.distributed", "torch_geometric.distributed"])


def together(n: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What work(*args) gives in each of n processes, which torchrun might have started."""
    try:
        return _together(n, work, *args)
    except ProcessRaisedException as error:
        # Gloo listens at ports that it draws, and groups of other tests start at the same time: rarely they meet.
        if "connectFullMesh failed" not in str(error):
            raise
        return _together(n, work, *args)


def _together(n: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        children = start_processes(
            _enter, (n, store.port, folder, work, args), nprocs=n, join=False, start_method="forkserver"
        )
        end = time.monotonic() + TIMEOUT
        try:
            while not children.join(max(0.0, end - time.monotonic())):
                if time.monotonic() > end:
                    raise TimeoutError(f"not done in {TIMEOUT:g} seconds")
        finally:
            for child in children.processes:
                child.kill()
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(n)]


def _enter(rank: int, n: int, port: int, folder: str, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is the parent's
    }
    torch.manual_seed(0)
    torch.save(work(*args), Path(folder, f"{rank}.pt"))


two = partial(together, 2)
