"""Timing: one clock that waits for the device, one way to repeat, one way to compare.

A GPU works on while Python runs ahead, so a wall clock means something only after a synchronisation: `clock` does
both. The first call of anything pays for compilation and allocation, so a warm-up runs first and is thrown away.
A card slows down as it warms up, so two methods that are compared take turns, and the turn is flipped item by item
(A B, B A, A B, ...): a steady drift then costs both the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Timing:
    """Repeated times of one thing: `values` in seconds, in the order they were taken."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle time, in seconds."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class TimedRun(Generic[Result]):
    """One timed call out of `alternate`: what ran, on which item, when in the row of runs, and what it gave.

    `order` counts the runs of the whole plan from 0, skipped ones too and warm-up not, so that a resumed session
    numbers them as one session would. `seconds` is the whole call.
    """

    method: str
    item: int
    repeat: int
    order: int
    seconds: float
    result: Result


class _Step(NamedTuple):
    order: int
    repeat: int
    item: int
    method: str


def clock(device: torch.device | str) -> Callable[[], float]:
    """A function that waits until `device` has finished its work and then reads the time, in seconds.

    Raises ValueError for a device that is neither a CPU nor CUDA, RuntimeError for CUDA where there is none.
    """
    place = torch.device(device)
    if place.type == "cpu":
        return time.perf_counter
    if place.type != "cuda":
        raise ValueError(f"device {place} cannot be timed here: give 'cpu' or 'cuda'")
    if not torch.cuda.is_available():
        raise RuntimeError(f"device {place} was given, but torch finds no CUDA device: give 'cpu'")

    def read() -> float:
        torch.cuda.synchronize(place)
        return time.perf_counter()

    return read


def measure(fn: Callable[[], object], *, device: torch.device | str, warmup: int = 1, repeats: int = 3) -> Timing:
    """Time `fn` on `device`: `warmup` calls thrown away, then `repeats` calls timed one by one.

    Raises ValueError for fewer than one repeat or a negative warm-up.
    """
    _check_counts(warmup, repeats)
    now = clock(device)
    for _ in range(warmup):
        fn()
    return Timing(tuple(_timed(now, fn)[0] for _ in range(repeats)))


def alternate(
    methods: Mapping[str, Callable[[Item], Result]],
    items: Sequence[Item],
    *,
    device: torch.device | str,
    warmup: int = 1,
    repeats: int = 1,
    skip: Callable[[str, int, int], bool] | None = None,
) -> Iterator[TimedRun[Result]]:
    """Time every method on every item, the order of the methods reversed from one item to the next.

    The runs come one at a time, so that each can be written down before the next begins. `skip(method, item
    index, repeat)` leaves out what an earlier session has measured. Before the clock starts, each method that has
    something left runs `warmup` times on its first item, thrown away.

    Raises ValueError when there is nothing to run, or for fewer than one repeat or a negative warm-up.
    """
    _check_counts(warmup, repeats)
    if not methods or not items:
        raise ValueError(f"{len(methods)} methods and {len(items)} items were given: at least one of each is needed")
    steps = [step for step in _plan(list(methods), len(items), repeats) if not (skip and skip(*_key(step)))]
    return _run(methods, items, steps, clock(device), warmup)


def _plan(names: list[str], items: int, repeats: int) -> Iterator[_Step]:
    order = 0
    for repeat in range(repeats):
        for item in range(items):
            # Repeats flip too, so that one item alone is also taken in both orders.
            turn = names if (repeat + item) % 2 == 0 else names[::-1]
            for name in turn:
                yield _Step(order, repeat, item, name)
                order += 1


def _key(step: _Step) -> tuple[str, int, int]:
    return step.method, step.item, step.repeat


def _run(
    methods: Mapping[str, Callable[[Item], Result]],
    items: Sequence[Item],
    steps: list[_Step],
    now: Callable[[], float],
    warmup: int,
) -> Iterator[TimedRun[Result]]:
    first = {step.method: step.item for step in reversed(steps)}
    for _ in range(warmup):
        for name, item in first.items():
            methods[name](items[item])
    for step in steps:
        seconds, result = _timed(now, partial(methods[step.method], items[step.item]))
        yield TimedRun(step.method, step.item, step.repeat, step.order, seconds, result)


def _timed(now: Callable[[], float], fn: Callable[[], Result]) -> tuple[float, Result]:
    start = now()
    result = fn()
    return now() - start, result


def _check_counts(warmup: int, repeats: int) -> None:
    if repeats < 1 or warmup < 0:
        raise ValueError(f"warmup={warmup}, repeats={repeats} was given: warmup >= 0 and repeats >= 1 are needed")
