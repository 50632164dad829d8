"""The same numbers in every run, in every order of the tests."""

import gc
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from itertools import groupby

import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from torch_geometric.nn import GraphConv, SAGEConv, Sequential, SimpleConv

from tests.tiers import leave_few

# Among other numbers, those in the sources of all modules that happen to be loaded are drawn: other tests load more.
providers._get_local_constants = lambda: providers._local_constants

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("long", deadline=None, max_examples=6_000, print_blob=True)
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """PyG writes a file for each layer and leaves it behind: all that is for a time is in a folder of this run."""
    if hasattr(config, "workerinput"):
        return  # a worker of a run, whose folder it has by its environment
    folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp()
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


# Without a device `torch.manual_seed` takes longer than most tests: for each kind of device it keeps a stack trace.
FORWARD = Sequential.forward
seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed

# PyG writes the code of a class for its first instance: were that one with a maximum, no later one could multiply by a
# sparse matrix.
_SUMMING = SAGEConv(1, 1), SimpleConv(), GraphConv(1, 1)


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> Iterator[None]:
    seed(0)
    Sequential.forward = FORWARD  # PyG leaves that of the last model in the class, with its arguments
    random.seed(request.node.nodeid)  # PyG draws the names of modules that it writes: two tests must not draw the same
    threads = torch.get_num_threads()
    yield
    if torch.get_num_threads() != threads:  # the commands of the examples set it
        torch.set_num_threads(threads)


@pytest.hookimpl(tryfirst=True)  # before pytest looks for `slow`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for _, cases in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        leave_few(list(cases))
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(skip)


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """What is there before a file is tested lives to the end: the garbage collector need not look through it again."""
    gc.collect()
    gc.freeze()
