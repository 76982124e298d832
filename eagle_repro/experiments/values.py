"""Values of settings: whatever a cell or a command line holds, as the type that the setting has."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The least value of a setting that has one.
LEAST = {
    "questions": 1,
    "new_tokens": 2,
    "repeats": 1,
    "max_length": 2,
    "instrument_cycles": 0,
    "sampled_questions": 0,
    "sweep_questions": 1,
    "tau_questions": 1,
    "temperature": 0,
}


def checked(name: str, kind: str, value: Any) -> Any:
    """`value` of the setting `name` as its type; kind: the type as written in the dataclass.

    Lists and text with commas become tuples, whole numbers floats. Raises ValueError for what is not of that type,
    and for a name that a list has twice.
    """
    read, wanted = READERS[kind.partition("[")[0]]
    least = LEAST.get(name)
    known = read(value)
    if known is None or (least is not None and known < least):
        wanted += f" of at least {least}" if least is not None else ""
        raise ValueError(f"{name}={value!r} was given: {wanted} is needed")
    twice = [part for part in known if known.count(part) > 1] if isinstance(known, tuple) else []
    if twice:
        raise ValueError(f"{name}={value!r} was given: {twice[0]} stands there twice, name it once")
    return known


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str | Path) and str(value).strip() else None


def _words(value: Any) -> tuple[str, ...] | None:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        return None
    return tuple(part.strip() for part in parts if part.strip()) or None


#: How a value becomes the type of its setting (None: it cannot), and what to ask for.
READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "int": (_whole, "a whole number"),
    "float": (_number, "a number"),
    "bool": (_truth, "true or false"),
    "str": (_text, "text"),
    "str | None": (_text, "text"),
    "tuple": (_words, "a list of names, or names with commas between them"),
}
