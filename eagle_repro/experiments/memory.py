"""Out of memory, told in one line with the next smaller setting, wherever a pair is loaded or measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
