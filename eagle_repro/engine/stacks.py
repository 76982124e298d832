"""How the phases of a cycle are launched on a device.

"eager" runs them operation by operation. "graph" captures them as CUDA graphs, once for each tree shape, length bucket
and batch, and replays them: the host then starts one graph a cycle instead of a thousand kernels. It needs neither
Triton nor a compiler. Either launches the one cycle there is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from eagle_repro.engine.accept import Accepted, Sampling
from eagle_repro.engine.cycle import Launch, State, at_once, cycle
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import DraftTree

BUCKET = 64
TIMED = 4  # cycles behind a stated time, the first thrown away
MOST_GRAPHS = 96  # of one stack: each cycle's graphs take some megabytes beside the buffers that all share
T = TypeVar("T")


def make_stack(name: str) -> Eager:
    """The stack of a resolved name."""
    return Graph() if name == "graph" else Eager()


def read_span(longest: int, slots: int) -> int:
    """Cache slots that a pass reads after `longest` committed tokens when a cycle touches `slots` more.

    Rounded up to a bucket, so that shapes repeat from cycle to cycle.
    """
    return -(-(longest + slots) // BUCKET) * BUCKET


def no_mark(phase: str) -> None:
    """The default for `mark`: phases are not timed."""


class Eager:
    """Operation by operation; nothing is kept between texts but what a cycle takes."""

    def __init__(self) -> None:
        self.capture_s = 0.0
        self.known: dict[Any, float] = {}

    def state(
        self, target: Target, head: Eagle3Head | None, batch: int, slots: int, rows: int, *, sampled: bool
    ) -> State:
        """Buffers for `batch` texts of `slots` cache slots and trees of rows - 1 levels; blank."""
        return State.blank(target, head, batch, slots, rows, sampled=sampled)

    def prepare(
        self,
        target: Target,
        head: Eagle3Head | None,
        state: State,
        shape: TreeShape | None,
        spans: Iterable[int],
        sampling: Sampling,
        *,
        apart: bool = False,
    ) -> None:
        """Make ready what cycles of these spans need, so that no clock sees it; a state comes through unchanged.

        apart: with phases that a mark is called after.
        """

    def cycle(
        self,
        target: Target,
        head: Eagle3Head | None,
        state: State,
        shape: TreeShape | None,
        span: int,
        sampling: Sampling,
        mark: Callable[[str], None] = no_mark,
        *,
        catch: bool = False,
    ) -> tuple[DraftTree, Accepted]:
        """One cycle; mark is called after each phase with its name. What it gives lasts until the next cycle."""

        def launch(phase: str, work: Callable[[], T]) -> T:
            result = work()
            mark(phase)
            return result

        return cycle(target, head, state, shape, span, sampling, launch, catch=catch)

    def seconds(
        self,
        target: Target,
        head: Eagle3Head | None,
        state: State,
        shape: TreeShape | None,
        span: int,
        sampling: Sampling,
        clock: Callable[[], float],
    ) -> float:
        """What one such cycle takes, its read-back included: the median of a few, measured once; the state comes
        through unchanged."""
        key = (id(target), id(head), shape, state.length.shape[0])
        if key not in self.known:
            start, times = clock(), []
            for _ in range(TIMED):
                with unchanged(state.small):
                    before = clock()
                    self.cycle(target, head, state, shape, span, sampling)[1].count.tolist()
                    times.append(clock() - before)
            self.known[key] = statistics.median(times[1:])
            self.capture_s += clock() - start
        return self.known[key]


class Graph(Eager):
    """Captured phases, replayed. Buffers and graphs are kept from text to text, and made anew for a larger one.

    What crosses from one phase to the next is held by its graph, so that no later capture reuses its memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._state: State | None = None
        self._graphs: dict[Any, dict[str, Recorded[Any]]] = {}
        self._pool: Any = None

    def state(
        self, target: Target, head: Eagle3Head | None, batch: int, slots: int, rows: int, *, sampled: bool
    ) -> State:
        """The kept buffers, blank again; made anew, and the graphs over them dropped, where they do not suffice."""
        kept = self._state
        if kept is None or not _fits(kept, target, head, batch, slots, rows, sampled):
            if kept is not None and kept.length.shape[0] == batch:  # they grow, so that two sizes do not take turns
                slots, rows = max(slots, kept.target_cache.capacity), max(rows, kept.features.shape[1])
            self._state, kept = None, None
            self._graphs.clear()
            self._pool = None  # a pool dies with its last graph
            self._state = State.blank(target, head, batch, slots, rows, sampled=sampled)
            return self._state
        kept.pending.fill_(1)
        kept.active.fill_(True)
        for cache in (kept.target_cache, kept.head_cache):
            if cache is not None:
                cache.kv.zero_()  # what is not finite would shine through any mask
        return kept if sampled else replace(kept, noise=None)

    def prepare(
        self,
        target: Target,
        head: Eagle3Head | None,
        state: State,
        shape: TreeShape | None,
        spans: Iterable[int],
        sampling: Sampling,
        *,
        apart: bool = False,
    ) -> None:
        for span in spans:
            self._phases(target, head, state, shape, span, sampling, apart=apart)

    def cycle(
        self,
        target: Target,
        head: Eagle3Head | None,
        state: State,
        shape: TreeShape | None,
        span: int,
        sampling: Sampling,
        mark: Callable[[str], None] = no_mark,
        *,
        catch: bool = False,
    ) -> tuple[DraftTree, Accepted]:
        apart = mark is not no_mark
        phases = self._phases(target, head, state, shape, span, sampling, catch=catch, apart=apart)
        for phase, recorded in phases.items():
            recorded()
            mark(phase)
        tree, accepted = (phases["draft"].result, phases["accept"].result) if apart else phases["cycle"].result
        return tree, accepted

    def _phases(
        self,
        target: Target,
        head: Eagle3Head | None,
        state: State,
        shape: TreeShape | None,
        span: int,
        sampling: Sampling,
        *,
        catch: bool = False,
        apart: bool = False,
    ) -> dict[str, Recorded[Any]]:
        """The graphs of a cycle: one of it all, or one a phase, so that a clock can look in between."""
        key = (id(target), id(head), shape, span, replace(sampling, seed=0), catch, apart)
        if key in self._graphs:
            self._graphs[key] = self._graphs.pop(key)  # the latest used last
            return self._graphs[key]
        start = time.perf_counter()
        while len(self._graphs) >= MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        if self._pool is None and target.device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
        phases: dict[str, Recorded[Any]] = {}

        def record(phase: str, work: Callable[[], T]) -> T:
            phases[phase] = Recorded(work, target.device, self._pool)
            return phases[phase].result

        def work(launch: Launch) -> Any:
            return cycle(target, head, state, shape, span, sampling, launch, catch=catch)

        warm_up(lambda: work(at_once), target.device, state.small)
        with unchanged(state.small):
            work(record) if apart else record("cycle", lambda: work(at_once))
        self._graphs[key] = phases
        self.capture_s += time.perf_counter() - start
        return phases


class Recorded(Generic[T]):
    """Work captured once, and replayed by a call; its result stays where it is and is written anew.

    On a CPU, where there are no graphs, the work is done again into the same tensors.
    """

    def __init__(self, work: Callable[[], T], device: torch.device, pool: Any = None) -> None:
        self._work = work
        self._graph = torch.cuda.CUDAGraph() if device.type == "cuda" else None
        if self._graph is None:
            self.result = work()
            return
        # Other threads may use the device meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.result = work()

    def __call__(self) -> T:
        if self._graph is not None:
            self._graph.replay()
        else:
            for kept, fresh in zip(_tensors(self.result), _tensors(self._work()), strict=True):
                kept.copy_(fresh)
        return self.result


def captured(work: Callable[[], T], device: torch.device, restore: Sequence[Tensor]) -> Recorded[T]:
    """Work over static tensors, warmed up and captured; call it to do it. restore: the tensors that it changes."""
    warm_up(work, device, restore)
    with unchanged(restore):
        return Recorded(work, device)


def warm_up(work: Callable[[], Any], device: torch.device, restore: Sequence[Tensor]) -> None:
    """Do the work once and undo it: libraries make their handles and workspaces at a first call, not under capture."""
    if device.type != "cuda":
        return
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side), unchanged(restore):
        work()
    torch.cuda.current_stream(device).wait_stream(side)


@contextmanager
def unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put tensors back as they were when the block is left."""
    copies = [each.clone() for each in tensors]
    try:
        yield
    finally:
        for each, copy in zip(tensors, copies, strict=True):
            each.copy_(copy)


def _tensors(result: Any) -> Iterator[Tensor]:
    """All tensors in a nest of tuples and dataclasses."""
    if isinstance(result, Tensor):
        yield result
    elif is_dataclass(result):
        for each in fields(result):
            yield from _tensors(getattr(result, each.name))
    elif isinstance(result, tuple):
        for part in result:
            yield from _tensors(part)


def _fits(
    kept: State, target: Target, head: Eagle3Head | None, batch: int, slots: int, rows: int, sampled: bool
) -> bool:
    """Whether kept buffers serve texts of this pair, and are large enough."""
    for owner, cache in ((target, kept.target_cache), (head, kept.head_cache)):
        if owner is not None and (cache is None or not cache.like(owner.cache(0, 0))):
            return False
    enough = kept.target_cache.capacity >= slots and kept.features.shape[1] >= rows
    return enough and kept.length.shape[0] == batch and (kept.noise is not None or not sampled)
