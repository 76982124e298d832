"""How the phases of a cycle are launched on a device.

"eager" runs them operation by operation. "graph" captures them as CUDA graphs, once for each tree shape, length bucket
and batch, and replays them: the host then starts one graph a cycle instead of a thousand kernels. It needs neither
Triton nor a compiler. "compiled" captures the same cycle, whose small operations have become fewer kernels: by
torch.compile, and by kernels of our own where it does not find a fast form. Each launches the one cycle there is.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from eagle_repro.engine.accept import Accepted, Sampling
from eagle_repro.engine.capture import Recorded, captured, side_stream, unchanged, warm_up
from eagle_repro.engine.compiled import compiling
from eagle_repro.engine.cycle import Launch, State, at_once, cycle
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.shape import TreeShape, read_span, slots_of
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import DraftTree

TIMED, MOST, ENOUGH = 3, 12, 0.03  # least and most cycles behind a stated time, and the seconds that are enough
FEW_GRAPHS, GRAPH_BYTES = 96, 10**8  # a stack keeps as many graphs, or one for so many bytes of the card's memory
T = TypeVar("T")


def make_stack(name: str) -> Eager:
    """The stack of a resolved name."""
    return {"eager": Eager, "graph": Graph, "compiled": Compiled}[name]()


def most_graphs(device: torch.device) -> int:
    """Graphs that a stack keeps: each cycle's take some megabytes beside the buffers that all share."""
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return max(FEW_GRAPHS, memory // GRAPH_BYTES)


def no_mark(phase: str) -> None:
    """The default for `mark`: phases are not timed."""


@dataclass(frozen=True)
class Batch:
    """Texts under way: what all their cycles have in common. head None where nothing is ever drafted."""

    target: Target
    head: Eagle3Head | None
    state: State
    sampling: Sampling

    def cycle(self, shape: TreeShape | None, span: int, launch: Launch, *, catch: bool) -> tuple[DraftTree, Accepted]:
        return cycle(self.target, self.head, self.state, shape, span, self.sampling, launch, catch=catch)


class Eager:
    """Operation by operation; nothing is kept between texts but what a cycle takes."""

    def __init__(self) -> None:
        self.capture_s = 0.0
        self.compile_s = 0.0  # the part of it that went by before anything was captured: warm-up, and compiling
        self.known: dict[Any, float] = {}

    def taken(self) -> AbstractContextManager[Any]:
        """Held while texts are written. Raises RuntimeError where other texts are being written over kept buffers."""
        return nullcontext()

    def state(
        self, target: Target, head: Eagle3Head | None, batch: int, slots: int, rows: int, *, few: int, sampled: bool
    ) -> State:
        """Buffers for `batch` texts of `slots` cache slots, `rows` features and trees of few - 1 levels; blank."""
        return State.blank(target, head, batch, slots, rows, few=few, sampled=sampled)

    def prepare(
        self,
        batch: Batch,
        shape: TreeShape | None,
        spans: Iterable[int],
        *,
        apart: bool = False,
        catch: bool | None = None,
    ) -> None:
        """Make ready what cycles of these spans need, so that no clock sees it; a state comes through unchanged.

        apart: with phases that a mark is called after. catch: see cycle; by default plain steps of both kinds.
        """

    def cycle(
        self,
        batch: Batch,
        shape: TreeShape | None,
        span: int,
        mark: Callable[[str], None] = no_mark,
        *,
        catch: bool = False,
    ) -> tuple[DraftTree, Accepted]:
        """One cycle; mark is called after each phase with its name. What it gives lasts until the next cycle."""

        def launch(phase: str, work: Callable[[], T]) -> T:
            result = work()
            mark(phase)
            return result

        return batch.cycle(shape, span, launch, catch=catch)

    def launched(self, work: Callable[[], T], device: torch.device) -> Callable[[], T]:
        """Work over static tensors, to be called as often as wanted; its result lasts until the next call."""
        return work

    def seconds(
        self,
        batch: Batch,
        shape: TreeShape | None,
        length: int,
        clock: Callable[[], float],
    ) -> float:
        """What one such cycle takes after `length` tokens, its read-back included: the median of a few; the state comes
        through unchanged.

        Measured once for lengths between two powers of 2, of all shapes at the same: a cycle grows slowly with what it
        reads, and all alike.
        """
        span = read_span(length, slots_of(shape))
        size = (batch.state.length.shape[0], (read_span(length, 0) - 1).bit_length())
        key = (batch.target, batch.head, shape, *size, replace(batch.sampling, seed=0))
        if key not in self.known:
            start, before = clock(), self.capture_s
            times: list[float] = []
            while len(times) <= TIMED or (len(times) <= MOST and sum(times[1:]) < ENOUGH):
                with unchanged(batch.state.small):
                    began = clock()
                    self.cycle(batch, shape, span)[1].told.tolist()
                    times.append(clock() - began)
            self.known[key] = statistics.median(times[1:])  # in the first a capture may have come between
            self.capture_s = before + clock() - start
        return self.known[key]


class Graph(Eager):
    """Captured phases, replayed. Buffers and graphs are kept from text to text, and made anew for a larger one.

    What crosses from one phase to the next is held by its graph, so that no later capture reuses its memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._state: State | None = None
        self._owners: tuple[Target, Eagle3Head | None] | None = None
        self._graphs: dict[Any, dict[str, Recorded[Any]]] = {}
        self._pool: Any = None
        self._side: Any = None
        self._lock = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "texts are being written on this pair's buffers already: wait for them, load a second pair, or load it "
                'with stack="eager"'
            )
        try:
            yield
        finally:
            self._lock.release()

    def state(
        self, target: Target, head: Eagle3Head | None, batch: int, slots: int, rows: int, *, few: int, sampled: bool
    ) -> State:
        """The kept buffers, blank again; made anew, and the graphs over them dropped, where they do not suffice."""
        kept = self._state
        most = most_graphs(target.device)
        while len(self._graphs) > most:  # between texts: one in the middle of a text would be missed there
            del self._graphs[next(iter(self._graphs))]
        if kept is None or not self._fits(kept, target, head, batch, slots, rows, sampled):
            if kept is not None and kept.length.shape[0] == batch:  # they grow, so that two sizes do not take turns
                slots, rows = max(slots, kept.target_cache.capacity), max(rows, kept.features.shape[1])
            self._state, kept = None, None
            self._graphs.clear()
            self._pool = None  # a pool dies with its last graph
            self._state = State.blank(target, head, batch, slots, rows, few=few, sampled=sampled)
            self._owners = target, head
            return self._state
        # A pass of the head reads as many waiting features as these texts may have, not as the largest ever had.
        features, followers = kept.features[:, :rows], kept.followers[:, :rows]
        kept.pending.fill_(1)
        kept.active.fill_(True)
        caches = (cache for cache in (kept.target_cache, kept.head_cache) if cache is not None)
        for buffer in (kept.features, *(cache.kv for cache in caches)):
            buffer.zero_()  # what is not finite would shine through any mask
        noise = kept.noise if sampled else None
        return replace(kept, features=features, followers=followers, few=few, noise=noise)

    def prepare(
        self,
        batch: Batch,
        shape: TreeShape | None,
        spans: Iterable[int],
        *,
        apart: bool = False,
        catch: bool | None = None,
    ) -> None:
        kinds = (False, True) if shape is None and batch.head is not None else (False,)
        for span in spans:
            for kind in kinds if catch is None else (catch,):
                self._phases(batch, shape, span, catch=kind, apart=apart)

    def cycle(
        self,
        batch: Batch,
        shape: TreeShape | None,
        span: int,
        mark: Callable[[str], None] = no_mark,
        *,
        catch: bool = False,
    ) -> tuple[DraftTree, Accepted]:
        apart = mark is not no_mark
        phases = self._phases(batch, shape, span, catch=catch, apart=apart)
        for phase, recorded in phases.items():
            recorded()
            mark(phase)
        tree, accepted = (phases["draft"].result, phases["accept"].result) if apart else phases["cycle"].result
        return tree, accepted

    def launched(self, work: Callable[[], T], device: torch.device) -> Callable[[], T]:
        return captured(self.inside(work), device, ())

    def inside(self, work: Callable[[], T]) -> Callable[[], T]:
        """The work as this stack does it, once or recorded."""
        return work

    def _phases(
        self,
        batch: Batch,
        shape: TreeShape | None,
        span: int,
        *,
        catch: bool = False,
        apart: bool = False,
    ) -> dict[str, Recorded[Any]]:
        """The graphs of a cycle: one of it all, or one a phase, so that a clock can look in between."""
        room = batch.state.few, batch.state.features.shape[1]
        key = (batch.target, batch.head, shape, span, replace(batch.sampling, seed=0), catch, apart, room)
        if key in self._graphs:
            self._graphs[key] = self._graphs.pop(key)  # the latest used last
            return self._graphs[key]
        start, device = time.perf_counter(), batch.target.device
        if self._pool is None and device.type == "cuda":
            self._pool, self._side = torch.cuda.graph_pool_handle(), self._side or side_stream(device)
        phases: dict[str, Recorded[Any]] = {}

        def record(phase: str, work: Callable[[], T]) -> T:
            phases[phase] = Recorded(self.inside(work), device, self._side, self._pool)
            return phases[phase].result

        def work(launch: Launch) -> Any:
            return batch.cycle(shape, span, launch, catch=catch)

        warm_up(self.inside(lambda: work(at_once)), device, self._side, batch.state.small)
        self.compile_s += time.perf_counter() - start
        with unchanged(batch.state.small):
            work(record) if apart else record("cycle", lambda: work(at_once))
        self._graphs[key] = phases
        self.capture_s += time.perf_counter() - start
        return phases

    def _fits(
        self, kept: State, target: Target, head: Eagle3Head | None, batch: int, slots: int, rows: int, sampled: bool
    ) -> bool:
        """Whether the kept buffers serve texts of this pair, and are large enough."""
        if self._owners is None or self._owners[0] is not target or head not in (None, self._owners[1]):
            return False
        enough = kept.target_cache.capacity >= slots and kept.features.shape[1] >= rows
        return enough and kept.length.shape[0] == batch and (kept.noise is not None or not sampled)


class Compiled(Graph):
    """Captured phases of fewer kernels, see compiled.py. Prompts are read as the other stacks read them: they come in
    all lengths, and a long pass gains little."""

    def inside(self, work: Callable[[], T]) -> Callable[[], T]:
        def compiled() -> T:
            with compiling():
                return work()

        return compiled
