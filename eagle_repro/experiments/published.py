"""Published records: what stands in for a measurement that this machine cannot make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from eagle_repro.measure.records import Record, RecordError, read_record
from eagle_repro.sources.paths import PACKAGE


def published(name: str) -> list[Record]:
    """The finished records of one experiment under results/ of a checkout."""
    found = map(_readable, sorted((PACKAGE.parent / "results").glob(f"*/{name}.jsonl")))
    return [record for record in found if record is not None]


def best_known(record: Record, count: Callable[[Record], int]) -> Record:
    """The record where count(record) is not 0, else the published one of its experiment that counts the most."""
    others = published(record.header["name"])
    counts = [count(each) for each in (record, *others)]
    return record if counts[0] else (record, *others)[counts.index(max(counts))]


def _readable(path: Path) -> Record | None:
    try:
        record = read_record(path)
    except RecordError:
        return None
    return record if record.complete else None
