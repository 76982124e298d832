"""Cycles watched one by one: the wall time of each, what the device takes of it, and in other cycles its phases.

Nothing is waited for inside a cycle: events are noted on the device and read after the text, so that a cycle takes as
long as it does when nobody watches (but for a few microseconds an event). Phases are looked at in cycles of their own,
for a stack may launch a whole cycle at once. On the stack "eager" the device waits for the host to launch each
operation, and a phase then holds that waiting too; captured phases are what the kernels take.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import fields
from typing import Any, cast

import numpy as np
import torch

from eagle_repro.api import Pair, generate
from eagle_repro.engine.cycle import State
from eagle_repro.engine.generate import Generation
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import Batch, Eager, no_mark
from eagle_repro.experiments.rows import Row
from eagle_repro.measure.timing import clock

Rows = Sequence[list[int]]
PHASES = ("draft", "verify", "accept", "commit")
SPREAD = (0.1, 0.9)  # quantiles of the cycles that cycle_low and cycle_high are


class Watched:
    """A stack that notes when a cycle begins and ends, or when its phases end (apart); all else is the stack's own.

    buffer_bytes: of the state that cycles work on. graph_bytes: what the device set aside while graphs were made.
    """

    def __init__(self, stack: Eager, device: torch.device, *, apart: bool) -> None:
        self.stack, self.device, self.apart = stack, device, apart
        self.begun: list[float] = []
        self.moments: list[dict[str, Any]] = []
        self.buffer_bytes = self.graph_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stack, name)

    def state(self, *given: Any, **named: Any) -> State:
        state = self.stack.state(*given, **named)
        self.buffer_bytes = _bytes(state)
        return state

    def prepare(self, batch: Batch, shape: TreeShape | None, spans: Iterable[int], **_: Any) -> None:
        before = self._reserved()
        self.stack.prepare(batch, shape, spans, apart=self.apart)
        self.graph_bytes += self._reserved() - before

    def cycle(self, batch: Batch, shape: TreeShape | None, span: int, _: Any = None, *, catch: bool = False) -> Any:
        moments: dict[str, Any] = {}
        self.begun.append(time.perf_counter())
        self.moments.append(moments)
        moments[""] = self._now()

        def mark(phase: str) -> None:
            moments[phase] = self._now()

        result = self.stack.cycle(batch, shape, span, mark if self.apart else no_mark, catch=catch)
        moments["end"] = self._now()
        return result

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _reserved(self) -> int:
        if self.device.type != "cuda":
            return 0
        torch.cuda.empty_cache()  # a capture begins so, and what was merely kept by the allocator would count as less
        return torch.cuda.memory_reserved(self.device)


def watch(pair: Pair, shape: TreeShape | None, batches: Sequence[Rows], tokens: int, cycles: int) -> tuple[Row, Row]:
    """At least `cycles` cycles of a tree (None: plain steps), `tokens` tokens a text, batch after batch of prompts.

    Gives medians in seconds and the cycles' mean context (host_s: what a cycle takes beyond its time on the device),
    and what was made ready: capture_s, buffer_bytes, graph_bytes of the whole cycle, and compile_s, the part of
    capture_s in which work was run for the first time and compiled. The first text is a warm-up and thrown away: it
    pays for that. Raises ValueError where every text is so short that one cycle writes it.
    """
    whole, walls, contexts, made = _look(pair, shape, batches, tokens, cycles, apart=False)
    device = [_seconds(moments[""], moments["end"]) for moments in whole]
    parts, *_ = _look(pair, shape, batches, tokens, cycles, apart=True)
    low, high = np.quantile(walls, SPREAD)
    row = {
        "cycles": len(walls),
        "context": float(np.mean(contexts)),
        "cycle_s": float(np.median(walls)),
        "cycle_low": float(low),
        "cycle_high": float(high),
        "host_s": float(np.median(np.array(walls) - np.array(device))),
    }
    for before, phase in zip(("", *PHASES), PHASES, strict=False):
        row[f"{phase}_s"] = float(np.median([_seconds(moments[before], moments[phase]) for moments in parts]))
    return row, made


def _look(
    pair: Pair, shape: TreeShape | None, batches: Sequence[Rows], tokens: int, cycles: int, *, apart: bool
) -> tuple[list[dict[str, Any]], list[float], list[int], Row]:
    """Moments, wall seconds and contexts of cycles, and what was made ready for them."""
    ready = Watched(pair.launcher, pair.target.device, apart=apart)
    compiled = pair.launcher.compile_s
    warm = _write(pair, ready, shape, batches[0], tokens)
    made: Row = {"capture_s": warm[0].capture_s, "compile_s": pair.launcher.compile_s - compiled}
    made |= {"buffer_bytes": ready.buffer_bytes, "graph_bytes": ready.graph_bytes}
    found: list[dict[str, Any]] = []
    walls: list[float] = []
    contexts: list[int] = []
    place = 0
    while len(walls) < cycles:
        stack = Watched(pair.launcher, pair.target.device, apart=apart)
        texts = _write(pair, stack, shape, batches[place % len(batches)], tokens)
        place += 1
        clock(pair.device)()  # the last events have happened
        # The wall time of a cycle ends where the next one begins, so that a text's last cycle has none.
        walls += [after - before for before, after in zip(stack.begun, stack.begun[1:], strict=False)]
        found += stack.moments[: len(stack.begun) - 1]
        longest = max(texts, key=lambda text: len(text.cycles))
        contexts += [each.context for each in longest.cycles[: len(stack.begun) - 1]]
        if place == len(batches) and not walls:  # and so it would go on
            raise ValueError(f"texts of {tokens} tokens end within a cycle of {shape}: watch longer ones")
    return found, walls, contexts, made


def _write(pair: Pair, stack: Watched, shape: TreeShape | None, rows: Rows, tokens: int) -> list[Generation]:
    watched = copy(pair)
    watched.launcher = cast(Eager, stack)
    method = "plain" if shape is None else "eagle"
    return generate(watched, list(rows), method=method, shape=shape, max_new_tokens=tokens, stop="never")


def _seconds(before: Any, after: Any) -> float:
    return before.elapsed_time(after) / 1e3 if isinstance(before, torch.cuda.Event) else after - before


def _bytes(state: State) -> int:
    """Bytes of a state's tensors, its caches included."""
    values = (getattr(state, each.name) for each in fields(state))
    return sum(getattr(value, "nbytes", 0) for value in values)
