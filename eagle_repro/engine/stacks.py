"""How a cycle is launched on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
STACKS = ("eager",)


def resolve_stack(name: str) -> str:
    """The stack to use: "auto" takes the fastest one there is. Raises ValueError for a name that is not a stack."""
    if name == "auto":
        return STACKS[-1]
    if name not in STACKS:
        raise ValueError(f'stack={name!r} is not known: use "auto" or one of {", ".join(STACKS)}')
    return name


def read_span(longest: int, slots: int) -> int:
    """Cache slots that a pass reads after `longest` committed tokens when a cycle touches `slots` more.

    Rounded up to a bucket of 64, so that shapes repeat from cycle to cycle.
    """
    return -(-(longest + slots) // 64) * 64


def captured(work: Callable[[], T], device: torch.device, restore: Sequence[Tensor]) -> Callable[[], T]:
    """`work` as it is launched on a device: as it stands."""
    return work
