"""Layers that several threads, calls within calls, and forks of a process use at once."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.testing import assert_close

from pyg_basisconv import BasisConv, GridConv, bases, mechanisms
from pyg_basisconv.cache import IdentityCache, cached_property, drop_oldest, kept, memo, without_cached
from pyg_basisconv.compiled import recording
from pyg_basisconv.content import Content
from pyg_basisconv.entries import Entries
from pyg_basisconv.mechanisms.base import Mechanism, Sizes, node_score
from pyg_basisconv.portable import fixed_mode, portable
from tests import contract

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 4], [1, 2, 3, 4, 5, 0, 3, 5, 1]])
BASES = {
    "graph": lambda: bases.Adjacency(),
    "attention": lambda: bases.Attention(2, mechanisms.Dot(4)),  # between all pairs
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Threads that take turns as often as they can, and nothing compiled by others."""
    torch._dynamo.reset()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    torch._dynamo.reset()


def layer(kind: str) -> BasisConv:
    return BasisConv(3, 4, BASES[kind]()).double()


def elsewhere(work: Callable[[], Any], seconds: float = 10.0) -> list[Any]:
    """What another thread finds, or nothing where it has to wait."""
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_threads_share_a_layer(kind: str, how: str) -> None:
    """Each has the results and the gradients that it has alone; of a compiled layer there is one graph for all."""
    conv = layer(kind)
    counter, own = CompileCounterWithBackend("aot_eager"), dict(conv.named_parameters())
    shared: Any = torch.compile(conv, dynamic=True, backend=counter) if how == "compiled" else conv

    def work(seed: int, layer: Any = shared) -> list[list[Tensor]]:
        found = []
        for _ in range(20):
            x = contract.draw(6, 3, seed=seed).requires_grad_()
            y = layer(x, EDGES.clone() if kind == "graph" else None)
            found.append([y.detach(), *torch.autograd.grad(y.square().sum(), [x, *own.values()])])
            assert all(p is own[name] for name, p in conv.named_parameters())
        return found

    work(0)
    graphs = counter.frame_count
    with ThreadPoolExecutor(4) as pool:
        for seed, found in enumerate(pool.map(work, range(4))):
            alone = work(seed, conv)[0]
            for tensors in found:
                assert_close(tensors, alone)
    assert counter.frame_count == graphs


def test_one_result_is_differentiated_by_several_threads() -> None:
    conv, x = layer("attention"), contract.draw(6, 3).requires_grad_()
    y = torch.compile(conv, backend="aot_eager")(x).sum()
    (right,) = torch.autograd.grad(y, x, retain_graph=True)
    with ThreadPoolExecutor(4) as pool:
        for (found,) in pool.map(lambda _: torch.autograd.grad(y, x, retain_graph=True), range(200)):
            assert_close(found, right)


def test_a_derivative_within_another() -> None:
    conv, x = layer("attention"), contract.draw(6, 3).requires_grad_()
    y = torch.compile(conv, backend="aot_eager")(x).sum()
    (right,) = torch.autograd.grad(y, x, retain_graph=True)
    (record,) = recording._RECORDS.values()
    inner: list[Any] = []

    def again(_: Any) -> None:
        if not inner:
            inner.append(None)
            inner[:] = torch.autograd.grad(y, x, retain_graph=True)

    handle = record.outputs[0].node.register_prehook(again)
    (found,) = torch.autograd.grad(y, x, retain_graph=True)
    handle.remove()
    assert_close([found, *inner], [right, right])


class Closed(Mechanism):
    """Knows a part of its own by a closure as well, and counts its calls."""

    def make(self, sizes: Sizes) -> None:
        self.net, self.calls = nn.Linear(3, 2), 0
        self.function = lambda x: self.net(x)

    def score(self, content: Content, entries: Entries) -> Any:
        self.calls += 1
        score = self.function(content.x).movedim(-1, 0)
        return node_score(score, torch.zeros_like(score))


def test_parts_that_know_each_other_otherwise() -> None:
    mechanism = Closed()
    conv = BasisConv(3, 4, bases.Attention(2, mechanism)).double()
    fast, x = torch.compile(conv, backend="aot_eager"), contract.draw(6, 3)
    grads = [torch.autograd.grad(call(x).square().sum(), list(conv.parameters())) for call in (conv, fast)]
    assert all(grad.abs().sum() > 0 for grad in grads[0])
    assert_close(*grads)
    assert mechanism.calls == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo asks for it
def test_a_replica_has_its_gradients() -> None:
    conv = BasisConv(3, 4, bases.Adjacency(), bias=False).double()
    replica: Any = conv._replicate_for_data_parallel()
    replica.bias, replica.theta = None, conv.theta._replicate_for_data_parallel()
    replica.theta.weight = conv.theta.weight * 1.0
    x = contract.draw(6, 3)
    right, *found = (  # of the layer first, of which the replica has the programs
        torch.autograd.grad(call(x, EDGES).square().sum(), conv.theta.weight, retain_graph=True)
        for call in (conv, replica, torch.compile(replica, backend="aot_eager"))
    )
    for gradients in found:
        assert_close(gradients, right)


@pytest.mark.parametrize("other", ["export", "forward mode"])
def test_what_another_thread_traces_is_its_own(other: str) -> None:
    """A call stays on the path on which it began, whatever begins and ends beside it."""
    names = {"adjacency": bases.Adjacency(), "typed": bases.Edges(4), "powers": bases.Powers(3)}
    convs = {name: BasisConv(3, 4, basis).double() for name, basis in names.items()}
    given = (contract.draw(6, 3), EDGES)
    kinds = dict.fromkeys(names) | {"typed": torch.arange(EDGES.shape[1]).remainder(4)}
    right = {name: conv(*given, edge_type=kinds[name]) for name, conv in convs.items()}
    stop = Event()

    def trace() -> None:
        while not stop.is_set():
            if other == "export":
                torch.export.export(nn.Identity(), given[:1])
            else:
                with forward_ad.dual_level():
                    pass

    thread = Thread(target=trace)
    thread.start()
    try:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            for name, conv in convs.items():
                # By `forward`: while torch exports, its own `nn.Module.__call__` is a tracer's, in every thread.
                assert_close(conv.forward(given[0], EDGES.clone(), edge_type=kinds[name]), right[name])
    finally:
        stop.set()
        thread.join()


def test_an_export_is_of_its_own_thread() -> None:
    seen = []

    class Probe(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((portable(), elsewhere(portable)))
            return x + 1

    torch.export.export(Probe(), (torch.ones(2),), strict=False)
    assert seen
    assert all(pair == (True, [False]) for pair in seen)


def test_a_call_stays_on_its_path() -> None:
    @fixed_mode
    def begun() -> tuple[bool, bool, bool]:
        with forward_ad.dual_level():
            return portable(), fixed_mode(portable)(), elsewhere(portable)[0]

    assert begun() == (False, False, True)
    with forward_ad.dual_level():
        assert fixed_mode(portable)()


def test_what_is_kept_takes_no_lock_of_others() -> None:
    class Thing:
        def __init__(self, inner: "Thing | None" = None) -> None:
            self.inner = inner

        @kept
        def value(self) -> Any:
            inner = self.inner
            return 1 if inner is None else elsewhere(lambda: inner.value, 2.0)

    assert Thing(Thing()).value == [1]


KEYS = [torch.zeros(1) for _ in range(12)]
CACHE = IdentityCache(limit=4)
IMAGE = GridConv(1, 1, bases.Window(None, (2,)))
ASKED = {
    "of tensors": lambda i: CACHE.get((KEYS[i],), None, lambda: i),
    "of none": lambda i: CACHE.get((), i, lambda: i),
    "of grids": lambda i: IMAGE(torch.ones(1, 1, 2 + i)).shape[-1] - 1,
}


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.sweep(1)
def test_threads_share_a_cache_that_is_full(kind: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda start: [ASKED[kind]((start + i) % 12) for i in range(1000)], range(4)):
            assert [(i - found[0]) % 12 for i in found] == [i % 12 for i in range(1000)]


def test_a_thing_is_copied_while_another_thread_derives_from_it() -> None:
    names = [f"derived{i}" for i in range(50)]
    Thing: Any = type("Thing", (), {name: cached_property(lambda self: 1) for name in names})

    def derive(thing: Any) -> None:
        for name in names:
            getattr(thing, name)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(200):
            thing = Thing()
            thing.own = 2
            deriving = pool.submit(derive, thing)
            while not deriving.done():
                assert without_cached(thing) == {"own": 2}
            deriving.result()


def test_the_first_to_be_kept_stays() -> None:
    store: dict[str, int] = {}

    def build() -> int:
        store["key"] = 1  # as another thread may, in the meantime
        return 2

    assert memo(store, "key", build) == 1


def test_the_oldest_leave() -> None:
    store = dict.fromkeys(range(5))
    drop_oldest(store, 2)
    assert list(store) == [3, 4]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forks beside threads, from Python 3.12 on
def test_numbers_are_of_one_process() -> None:
    """What compiled code names is kept on disk, where another process may find it."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(write, str(bases.Identity().bind(size=1).serial).encode())
        os._exit(0)
    os.waitpid(process, 0)
    theirs, ours = int(os.read(read, 99)), bases.Identity().bind(size=1).serial
    assert abs(theirs - ours) > 1 << 20
