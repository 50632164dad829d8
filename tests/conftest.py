"""The same numbers in every run, in every order of the tests."""

import gc
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# Among other numbers, those in the sources of all modules that happen to be loaded are drawn: other tests load more.
providers._get_local_constants = lambda: providers._local_constants

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("long", deadline=None, max_examples=6_000, print_blob=True)
settings.load_profile("ci")


# Without a device `torch.manual_seed` takes longer than most tests: for each kind of device it keeps a stack trace.
seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    seed(0)
    threads = torch.get_num_threads()
    yield
    if torch.get_num_threads() != threads:  # the commands of the examples set it
        torch.set_num_threads(threads)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Modules and collected tests live to the end: the garbage collector need not look through them again and again."""
    gc.collect()
    gc.freeze()
