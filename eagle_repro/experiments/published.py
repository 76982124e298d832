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

    holds: how much a record has to show; a published one of which it raises ValueError is passed over. Of equal ones
    this record comes first, and then one of the same pair.
    """
    if record.header["bench"].get("device") != "cpu":
        return record

    def rank(other: Record) -> tuple[int, bool, bool]:
        try:
            shown = holds(other)
        except ValueError:
            if other is record:
                raise
            shown = -1
        return shown, other is record, _pair(other) == _pair(record)

    others = [each for each in published(record.header["name"]) if each.header["bench"].get("device") != "cpu"]
    return max([record, *others], key=rank)


def _pair(record: Record) -> object:
    return (record.header["bench"].get("pair") or {}).get("name")
