"""A comparison of a peer, in its fastest way, with ours: first for equality, then in time and memory."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from pyg_basisconv import BasisConv
from pyg_basisconv.nn import DropIn

from .compare import assert_close, assert_same_gradients, step
from .measure import Ceilings, Work, clock, interleave, median_ratio, memory
from .result import Bench, Result

Arguments = tuple[Any, ...]
COMPILED = ", compiled"  # ends the name of a way in which the peer is compiled


@dataclass(kw_only=True)
class Contest:
    """A peer's module and ours, its conversion.

    ways: in which the peer can run; empty if it cannot.
    reference: the way from which ours is converted.
    peer: makes the module for a way, always with the same parameters.
    arguments: of the peer's call, for a way.
    convert: converts the peer, in any of its ways.
    ours: the arguments of our call.
    inputs: tensors besides the parameters that get gradients.
    backward: whether to run the backward pass, too.
    """

    name: str
    ways: Sequence[str]
    reference: str
    peer: Callable[[str], nn.Module]
    arguments: Callable[[str], Arguments]
    convert: Callable[[nn.Module], nn.Module]
    ours: Arguments
    inputs: Sequence[Tensor] = ()
    backward: bool = True

    def run(self, bench: Bench, **fields: Any) -> Result:
        """Asserts equality, chooses the peer's fastest way, and measures."""
        ours = checked(self.convert(self.peer(self.reference)))
        with torch.no_grad():
            gradient = torch.randn_like(ours(*self.ours))

        def work(module: nn.Module, arguments: Arguments) -> Callable[[], tuple[Tensor, ...]]:
            if not self.backward:
                return lambda: value(module, arguments)
            leaves = [*self.inputs, *module.parameters()]
            return lambda: step(lambda: module(*arguments), leaves, gradient)

        mine = work(ours, self.ours)
        found = mine()

        def build(way: str) -> Work:
            plain = way.removesuffix(COMPILED)
            peer = self.peer(plain)
            if plain != way:
                torch._dynamo.reset()  # as many layers as there are rows are compiled from the same code
                peer = cast(nn.Module, torch.compile(peer))
            candidate = work(peer, self.arguments(plain))
            self._assert_same(plain, candidate(), found)
            return candidate

        theirs = None
        if self.ways:
            build(self.reference)  # a difference is an error here; other ways are skipped if they differ
            way, theirs, skipped = best(self.ways, build, bench.device)
            if bench.compiles:
                way, theirs, more = best([way, way + COMPILED], build, bench.device)
                skipped |= more
            fields |= {"way": way, "skipped": skipped}
        gradients = ["Theta"] * any(True for _ in ours.parameters()) + ["x"] * bool(self.inputs)
        with torch.set_grad_enabled(self.backward):
            plans = planned(ours, lambda: ours(*self.ours))
        fields = {
            "gradients": ", ".join(gradients) if self.backward else "none",
            "ceiling": ceiling(plans, bench.ceilings),
            "order": ", ".join(plan.order for plan in plans),
            **fields,
        }
        return measure(theirs, mine, bench, work=self.name, **fields)

    def _assert_same(self, way: str, peers: Sequence[Tensor], ours: Sequence[Tensor]) -> None:
        name, first = f"{self.name}, {way}", 1 + len(self.inputs)
        assert_close(ours[0], peers[0], f"{name}: the value")
        if self.backward:
            for a, b in zip(ours[1:first], peers[1:first], strict=True):
                assert_close(a, b, f"{name}: the gradient of x")
            assert_same_gradients(self.peer(way), self.convert, peers[first:], ours[first:], name)


def value(module: nn.Module, arguments: Arguments) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return (module(*arguments),)


def measure(peers: Work | None, ours: Work, bench: Bench, *, ceiling: float | None = None, **fields: Any) -> Result:
    """Interleaved timings, then the peak memory of one call of each; without a peer, of ours alone."""
    works = [ours] if peers is None else [ours, peers]
    times = interleave(works, bench.effort, bench.device)
    memories = [memory(work, bench.device) for work in works]
    seconds = statistics.median(times[0])
    if peers is not None:
        fields |= {
            "peer_seconds": statistics.median(times[1]),
            "ratio": median_ratio(times[1], times[0]),
            "peer_memory": memories[1].peak,
            "peer_largest": memories[1].largest,
        }
    return Result(
        ours_seconds=seconds,
        ours_memory=memories[0].peak,
        ours_largest=memories[0].largest,
        of_ceiling=None if ceiling is None else ceiling / seconds,
        **fields,
    )


def best(ways: Iterable[str], build: Callable[[str], Work], device: str) -> tuple[str, Work, dict[str, str]]:
    """The peer in its fastest way, by the best of a few calls (one, if that takes over a second).

    `build` calls it once; a way that raises is skipped, since not every layer takes every layout of a graph. The third
    part has the errors of skipped ways.
    """
    found: dict[str, tuple[float, Work]] = {}
    skipped: dict[str, str] = {}
    for way in ways:
        try:
            work = build(way)
        except Exception as error:
            skipped[way] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
            continue
        seconds = clock(work, 1, device)
        found[way] = min(seconds, clock(work, 2, device)) if seconds < 1 else seconds, work
    if not found:
        raise RuntimeError(f"the peer failed in all ways: {skipped}")
    way = min(found, key=lambda way: found[way][0])
    return way, found[way][1], skipped


def checked(ours: nn.Module) -> nn.Module:
    """Ours; an error if nothing was converted."""
    if not any(isinstance(m, BasisConv | DropIn) for m in ours.modules()):
        raise RuntimeError("nothing was converted, so there is nothing to compare")
    return ours


def planned(module: nn.Module, call: Work) -> list[Any]:
    """The estimates of the chosen orders of all BasisConvs in a call."""
    calls: list[tuple[Any, Arguments, dict[str, Any]]] = []

    def note(conv: nn.Module, args: Arguments, kwargs: dict[str, Any]) -> None:
        kwargs = {name: value for name, value in kwargs.items() if name != "return_attention"}  # not one of plan's
        calls.append((conv, args, kwargs))

    convs = [m for m in module.modules() if isinstance(m, BasisConv)]
    hooks = [conv.register_forward_pre_hook(note, with_kwargs=True) for conv in convs]
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    plans = [conv.plan(*args, **kwargs) for conv, args, kwargs in calls]
    return [plan[plan.order] for plan in plans]


def ceiling(plans: Sequence[Any], limits: Ceilings) -> float:
    return sum(limits.seconds(e.operations, e.bytes) for e in plans)
