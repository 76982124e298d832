"""The lines of a record: from plain rows to UTF-8 JSON and back, refusing what a record must not hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from eagle_repro.measure.fields import fault

Row = dict[str, Any]


class RecordError(RuntimeError):
    """A record that cannot be written, continued or read; the message says why and what to do."""


def plain(value: Any, where: str) -> Any:
    """`value` as JSON can hold it, numpy's scalars and tuples made plain.

    Raises ValueError that names the field, `where` being the name of the whole, for numbers that are not finite
    and for anything that is not a number, text, a list or a mapping.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}: a number that is not finite is never a record")
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{number}]") for number, item in enumerate(value)]
    raise ValueError(f"{where} is of type {type(value).__name__}: give numbers, text, lists or mappings of them")


def encode(row: Row) -> bytes:
    """One plain row as one line, its newline included."""
    # A lone surrogate has no UTF-8; backslashreplace writes the JSON escape \udXXX, which reads back the same.
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def parse(data: bytes, path: Path) -> tuple[list[Row], list[int]]:
    """The rows of a file's bytes, and for each the offset where its line ends.

    What follows the last newline was torn by a kill and is left out. Raises RecordError, with `path` to name,
    for any other line that is not a row or holds what no row can hold (fields.fault), for a header that is not the
    first line, and for a run whose key an earlier one has.
    """
    rows, ends, end = [], [], 0
    keys: set[str] = set()
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
            if not _is_row(row) or (row["kind"] == "header") != (number == 1):
                raise ValueError("not a row")
        except ValueError:
            what = "is not a record" if number == 1 else "is damaged"
            raise _damaged(path, what, number) from None
        if why := fault(row) or (f"a second run with key {row['key']}" if _again(row, keys) else None):
            raise _damaged(path, "is damaged", number, f", {why}")
        end += len(line) + 1
        rows.append(row)
        ends.append(end)
    return rows, ends


def changes(old: Row, new: Row, most: int = 3) -> str:
    """What differs between two mappings, by dotted name: "protocol.repeats was 3, is 5"."""
    before, after = _flatten(old), _flatten(new)
    names = [name for name in before | after if before.get(name) != after.get(name)]
    listed = [f"{name} was {before.get(name)}, is {after.get(name)}" for name in names[:most]]
    return "; ".join(listed) + (f"; and {len(names) - most} more" if len(names) > most else "")


def _damaged(path: Path, what: str, number: int, why: str = "") -> RecordError:
    advice = "start over (--again), or choose another output folder"
    return RecordError(f"{path.name} {what} (line {number}){why}: {advice}")


def _again(row: Row, keys: set[str]) -> bool:
    """Whether a run has a key that is among `keys` already; it is, afterwards."""
    if row["kind"] != "run":
        return False
    known = row["key"] in keys
    keys.add(row["key"])
    return known


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    needs = {
        "header": {"schema", "name", "hash", "bench", "protocol"},
        "run": {"key"},
        "cycle": {"key"},
        "complete": {"lines"},
    }
    return row.get("kind") in needs and needs[row["kind"]] <= row.keys()


def _flatten(value: Any, name: str = "") -> Row:
    if not isinstance(value, dict):
        return {name: value}
    inner = [_flatten(item, f"{name}.{key}" if name else key) for key, item in value.items()]
    return {key: item for part in inner for key, item in part.items()}


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
