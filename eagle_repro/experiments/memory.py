"""Out of memory, told in one line with the next smaller setting, wherever a pair is loaded or measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from eagle_repro.experiments.guards import smaller
from eagle_repro.experiments.protocol import Protocol

ON_A_CPU = "can't allocate memory"  # what torch's CPU allocator says, in a plain RuntimeError


class OutOfMemory(RuntimeError):
    """The device has no memory left for this protocol; the message names the next smaller setting."""


@contextmanager
def told(protocol: Protocol, *, loading: bool = False) -> Iterator[None]:
    """Turn torch's out-of-memory errors into OutOfMemory. loading: the weights alone did not fit."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch's own class is a RuntimeError
        if not (isinstance(error, torch.OutOfMemoryError | MemoryError) or ON_A_CPU in str(error)):
            raise
        what = protocol.pair or f"{protocol.target} with {protocol.head}"
        raise OutOfMemory(
            f"out of memory {'while loading' if loading else 'while running'} {what} at max_length="
            f"{protocol.max_length}: take {smaller(protocol, loading)} (what was measured before is kept)"
        ) from error


T4_BYTES = 15_000_000_000  # of its 16 GB, what CUDA leaves


@contextmanager
def as_a_t4(device: torch.device) -> Iterator[None]:
    """Let a larger card behave like a T4 inside the block, for tests: its memory, its compute capability of 7.5
    (float16 and no bfloat16, nothing compiled), and attention without the kernels that such a card lacks.

    What is timed is still the larger card. Raises RuntimeError where the card is smaller than a T4.
    """
    _, total = torch.cuda.mem_get_info(device)
    if total < T4_BYTES:
        raise RuntimeError(f"a card of {total / 1e9:.1f} GB cannot stand in for a T4 of {T4_BYTES / 1e9:.0f} GB")
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved(device)

    def free(_: Any = None) -> tuple[int, int]:
        return max(0, T4_BYTES + held - torch.cuda.memory_reserved(device)), T4_BYTES

    kernels = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    torch.cuda.set_per_process_memory_fraction((T4_BYTES + held) / total, device)
    try:
        with (
            patch.object(torch.cuda, "get_device_capability", lambda *_: (7, 5)),
            patch.object(torch.cuda, "mem_get_info", free),
            sdpa_kernel(kernels),
        ):
            yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
