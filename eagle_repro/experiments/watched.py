"""Cycles watched one by one: the wall time of each, its phases between CUDA events, and what the host adds to them.

Nothing is waited for inside a cycle: events are noted on the device and read after the text, so that a cycle takes as
long as it does when nobody watches (but for a few microseconds an event). On the stack "eager" the device waits for the
host to launch each operation, and a phase then holds that waiting too; captured phases are what the kernels take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
import torch

from eagle_repro.api import Pair, generate
from eagle_repro.engine.cycle import State
from eagle_repro.engine.generate import Generation
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import Eager
from eagle_repro.measure.timing import clock

Row = dict[str, Any]
Rows = Sequence[list[int]]
PHASES = ("draft", "verify", "accept", "commit")
SPREAD = (0.1, 0.9)  # quantiles of the cycles that cycle_low and cycle_high are


@dataclass
class Watch:
    """Seconds of cycles (n,), in the order they ran: the whole on the host's clock, and phase by phase."""

    cycle: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    context: list[int] = field(default_factory=list)

    def row(self) -> Row:
        """Medians in seconds; host_s: of what a cycle takes beyond its phases."""
        walls = np.array(self.cycle)
        inside = np.sum([self.phases[phase] for phase in PHASES], axis=0)
        low, high = np.quantile(walls, SPREAD)
        return {
            "cycles": len(walls),
            "context": float(np.mean(self.context)),
            "cycle_s": float(np.median(walls)),
            "cycle_low": float(low),
            "cycle_high": float(high),
            **{f"{phase}_s": float(np.median(self.phases[phase])) for phase in PHASES},
            "host_s": float(np.median(walls - inside)),
        }


class Watched:
    """A stack that notes when a cycle begins and when its phases end; all else is the stack's own.

    buffer_bytes: of the state that cycles work on. graph_bytes: what the device set aside while graphs were made.
    """

    def __init__(self, stack: Eager, device: torch.device) -> None:
        self.stack, self.device = stack, device
        self.begun: list[float] = []
        self.moments: list[dict[str, Any]] = []
        self.buffer_bytes = self.graph_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stack, name)

    def state(self, *given: Any, **named: Any) -> State:
        state = self.stack.state(*given, **named)
        self.buffer_bytes = _bytes(state)
        return state

    def prepare(self, *given: Any) -> None:
        before = self._reserved()
        self.stack.prepare(*given)
        self.graph_bytes += self._reserved() - before

    def cycle(self, *given: Any) -> Any:
        *rest, mark = given
        moments: dict[str, Any] = {}
        self.begun.append(time.perf_counter())
        self.moments.append(moments)
        moments[""] = self._now()

        def marked(phase: str) -> None:
            moments[phase] = self._now()
            mark(phase)

        launch: Callable[..., Any] = self.stack.cycle
        return launch(*rest, marked)

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _reserved(self) -> int:
        return torch.cuda.memory_reserved(self.device) if self.device.type == "cuda" else 0


def watch(pair: Pair, shape: TreeShape | None, batches: Sequence[Rows], tokens: int, cycles: int) -> tuple[Row, Row]:
    """At least `cycles` cycles of a tree (None: plain steps), `tokens` tokens a text, batch after batch of prompts.

    Gives the medians, and what was made ready for them: capture_s, buffer_bytes, graph_bytes. The first text is a
    warm-up and thrown away: it pays for compiling and capturing.
    """
    ready = Watched(pair.launcher, pair.target.device)
    warm = _write(pair, ready, shape, batches[0], tokens)
    made = {"capture_s": warm[0].capture_s, "buffer_bytes": ready.buffer_bytes, "graph_bytes": ready.graph_bytes}
    found, place = Watch(), 0
    while len(found.cycle) < cycles:
        stack = Watched(pair.launcher, pair.target.device)
        texts = _write(pair, stack, shape, batches[place % len(batches)], tokens)
        place += 1
        clock(pair.device)()  # the last events have happened
        # The wall time of a cycle ends where the next one begins, so that a text's last cycle has none.
        walls = [after - before for before, after in zip(stack.begun, stack.begun[1:], strict=False)]
        found.cycle += walls
        longest = max(texts, key=lambda text: len(text.cycles))
        found.context += [each.context for each in longest.cycles[: len(walls)]]
        for moments in stack.moments[: len(walls)]:
            before = moments[""]
            for phase in PHASES:
                found.phases[phase].append(_seconds(before, moments[phase]))
                before = moments[phase]
    return found.row(), made


def _write(pair: Pair, stack: Watched, shape: TreeShape | None, rows: Rows, tokens: int) -> list[Generation]:
    watched = copy(pair)
    watched.launcher = cast(Eager, stack)
    method = "plain" if shape is None else "eagle"
    return generate(watched, list(rows), method=method, shape=shape, max_new_tokens=tokens, stop="never")


def _seconds(before: Any, after: Any) -> float:
    return before.elapsed_time(after) / 1e3 if isinstance(before, torch.cuda.Event) else after - before


def _bytes(state: State) -> int:
    """Bytes of a state's tensors, its caches included."""
    values = [getattr(state, each.name) for each in fields(state)]
    tensors = [getattr(value, "kv", value) for value in values if value is not None]
    return sum(tensor.nbytes for tensor in tensors)
