"""Work over static tensors, captured once as a CUDA graph and replayed; on a CPU it is done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from eagle_repro.engine.attention import planned

T = TypeVar("T")


class Recorded(Generic[T]):
    """Work captured once, and replayed by a call; its result stays where it is and is written anew.

    On a CPU, where there are no graphs, the work is done again into the same tensors.
    """

    def __init__(self, work: Callable[[], T], device: torch.device, side: Any, pool: Any = None) -> None:
        """side: a side_stream() of the device."""
        self._work = work = planned(work)
        self._graph = torch.cuda.CUDAGraph() if device.type == "cuda" else None
        if self._graph is None:
            self.result = work()
            return
        # On a stream of this device, which need not be the current one; other threads may use it meanwhile.
        options: dict[str, Any] = {"stream": side, "capture_error_mode": "thread_local"}
        with torch.cuda.device(device), torch.cuda.graph(self._graph, pool=pool, **options):
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
    side = side_stream(device)
    warm_up(work, device, side, restore)
    with unchanged(restore):
        return Recorded(work, device, side)


def warm_up(work: Callable[[], Any], device: torch.device, side: Any, restore: Sequence[Tensor]) -> None:
    """Do the work once on a side stream and undo it: libraries make their handles and workspaces at a first call, not
    under capture."""
    if device.type != "cuda":
        return
    work = planned(work)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side), unchanged(restore):
        work()
    torch.cuda.current_stream(device).wait_stream(side)


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream to warm up and capture on; None on a CPU.

    Works that share a pool share it too: what a capture has freed, and the workspaces of libraries, serve later ones on
    the same stream alone. Threads must not share it: what one does on it would be captured by the other.
    """
    return torch.cuda.Stream(device) if device.type == "cuda" else None


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
