"""Token ids as they come from outside: lists, arrays and tensors become plain ints, anything else is refused."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any


def is_whole(value: Any) -> bool:
    """Whether value is a whole number of any library's kind; a bool is not."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def is_row(value: Any) -> bool:
    """Whether value is a list or one of its kind: values in an order, which can be read more than once."""
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return False
    return isinstance(value, Sequence) or getattr(value, "ndim", 0) > 0


def token_ids(given: Any, vocabulary: int) -> list[int]:
    """Ids as plain ints from a list, tuple, array or tensor of one dimension.

    Raises ValueError for anything else (a set has no order, an iterator is read once), and for an id that is not below
    `vocabulary`.
    """
    try:
        if not is_row(given):
            raise TypeError
        values = given.tolist() if hasattr(given, "tolist") else list(given)
        ids = [operator.index(value) for value in values if not isinstance(value, bool)]
        whole = len(ids) == len(values)
    except TypeError:
        whole = False
    if not whole:
        shown = " ".join(repr(given).split())
        raise ValueError(f"token ids must be one list of whole numbers, got {shown:.60}")
    outside = [i for i in ids if not 0 <= i < vocabulary]
    if outside:
        raise ValueError(f"token id {outside[0]} is outside the target's vocabulary of {vocabulary}")
    return ids
