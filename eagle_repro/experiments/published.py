"""The records that a checkout carries under results/: what a machine without a GPU shows."""

from __future__ import annotations

from collections.abc import Callable

from eagle_repro.measure.records import Record, RecordError, read_record
from eagle_repro.sources.paths import PACKAGE


def published(name: str) -> list[Record]:
    """The finished records of an experiment under results/, in the order of their folders' names."""
    found = []
    for path in sorted((PACKAGE.parent / "results").glob(f"*/{name}.jsonl")):
        try:
            record = read_record(path)
        except RecordError:
            continue
        found += [record] if record.complete else []
    return found


def of_a_gpu(record: Record, holds: Callable[[Record], int]) -> Record:
    """The record to show: this one, or where it is of a CPU, a published one of a GPU that holds more.

    holds: how much a record has to show; a published one of which it raises ValueError or RecordError is passed over.
    Of several that hold more than this one, those of the same pair come first, and then the fullest.
    """
    if record.header["bench"].get("device") != "cpu":
        return record
    own = holds(record)
    fuller: list[tuple[bool, int, Record]] = []  # whether of the same pair; what it holds; itself
    for other in published(record.header["name"]):
        if other.header["bench"].get("device") == "cpu":
            continue
        try:
            shown = holds(other)
        except (ValueError, RecordError):
            continue
        if shown > own:
            fuller.append((_pair(other) == _pair(record), shown, other))
    return max(fuller, key=lambda each: each[:2])[2] if fuller else record


def _pair(record: Record) -> object:
    return (record.header["bench"].get("pair") or {}).get("name")
