"""What the lines of a record must hold so that its summaries can be made: types, signs, and fields that go together.

The rules are those that every experiment shares; what a row says beyond them is its own experiment's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Row = Mapping[str, Any]
#: What is measured in seconds, milliseconds, bytes or a rate of them: never negative, None where it is not known.
QUANTITY = re.compile(r"(?:^|_)(?:s|ms|seconds|bytes)$")
#: The fields that a row needs which says how a text was written ("method"), and that a row of a timing needs ("phase").
NEEDED = {"method": ("tokens", "prefill_s", "decode_s"), "phase": ("seconds",)}
#: Methods that draft: such a row says what its cycles accepted, cycle by cycle or (of a batch) text by text.
DRAFTING, COUNTED = ("eagle", "chain", "adaptive"), ("accepted", "emitted")
#: Rows of several texts, and what lists an entry a text in them: always, and where something was drafted.
BATCHES, LISTED, DRAFTED = ("batch", "context"), ("questions", "prompt_tokens", "ids_sha256"), ("emitted", "cycles")
#: What a field of a run is, where it is known: text, counts, lists.
KINDS: dict[type, tuple[str, ...]] = {
    str: ("set", "domain", "method", "variant", "rule", "sweep"),
    bool: ("same_as_plain",),
    float: ("typical_gap", "max_gap"),
    int: ("tokens", "total_tokens", "depth", "top_k", "nodes", "near_ties", "plain_mismatches"),
    list: ("accepted", "ranks", "mismatches"),
}
#: The same of the rows that name what they are so.
OF_ROWS = {
    **dict.fromkeys(BATCHES, ("value", "place", "method", "tokens", *LISTED)),
    "recording": ("set", "domain", "question", "depth", "top_k", "tokens", "ranks"),
    "greedy": ("set", "question", "tokens", "mismatches"),
    "shape": ("set", "question", "method"),
    "autopick": ("rule",),
}
#: Fields of a bench sheet that hold fields themselves, and that are text; None where they are not known.
SHEETS, TEXTS = ("pair", "now", "protocol", "question_sets"), ("card", "dtype", "stack", "device")


def fault(row: Row) -> str | None:
    """What is wrong with a line of a record, None where nothing is."""
    check = _header_faults if row["kind"] == "header" else _row_faults
    return next(check(row), None)


def _header_faults(header: Row) -> Iterator[str]:
    for name, kind in (("name", str), ("hash", str), ("bench", dict), ("protocol", dict)):
        if not isinstance(header.get(name), kind):
            yield f"its {name} is {_shown(header.get(name))}"
    bench = header["bench"]
    yield from _of_type(bench, SHEETS, dict, "bench.")
    yield from _of_type(bench, TEXTS, str, "bench.")
    pair = bench.get("pair") or {}
    yield from _of_type(pair, ("name",), str, "bench.pair.")
    yield from _of_type(pair, ("target", "head"), dict, "bench.pair.")


def _row_faults(row: Row) -> Iterator[str]:
    if "key" in row and not isinstance(row["key"], str):
        yield f"its key is {_shown(row['key'])}"
    if row["kind"] == "run":
        yield from (f"its {name} is missing" for name in OF_ROWS.get(str(row.get("what")), ()) if row.get(name) is None)
        if row.get("method") in DRAFTING and "decode_s" in row and not any(row.get(name) for name in COUNTED):
            yield f"its {' or '.join(COUNTED)} is missing"
        for kind, names in KINDS.items():
            yield from _of_type(row, names, kind)
        if row.get("what") in BATCHES:
            yield from _batch_faults(row)
    needed = [name for said, names in NEEDED.items() if row.get(said) is not None for name in names]
    for name in dict.fromkeys([*needed, *filter(QUANTITY.search, row)]):
        value = row.get(name)
        if value is None and name not in needed:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            yield f"{name} is {_shown(value)}, and a number of at least 0 is needed"


def _batch_faults(row: Row) -> Iterator[str]:
    yield from _of_type(row, ("value", "place"), int)
    for name in (*LISTED, *(DRAFTED if row["method"] in DRAFTING else ())):
        if not isinstance(row.get(name), list) or len(row[name]) != len(row["questions"]):
            yield f"its {name} is {_shown(row.get(name))}, and a list of an entry a text is needed"
        if name in DRAFTED and not all(isinstance(count, int) and count > 0 for count in row[name]):
            yield f"its {name} is {_shown(row[name])}, and counts of at least 1 are needed"


def _of_type(fields: Row, names: tuple[str, ...], kind: type, where: str = "") -> Iterator[str]:
    for name in names:
        value = fields.get(name)
        fits = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
        if value is not None and not fits:
            yield f"its {where}{name} is {_shown(value)}"


def _shown(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
