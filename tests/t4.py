"""A larger card that behaves like a T4, for the tests that run on one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

T4_BYTES = 15_000_000_000  # of its 16 GB, what CUDA leaves


@contextmanager
def as_a_t4(device: torch.device) -> Iterator[None]:
    """Let a larger card behave like a T4 inside the block: its memory, its compute capability of 7.5
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
