"""A record in parts: what several processes measured, put together as one process would have left it unfinished.

Each process writes the runs that are its own into a record of its own. `merge` makes of them the partial file of the
one record, which whoever opens it next completes, as after any run that was cut off; `deal` does the opposite, so that
processes go on with what is measured already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from eagle_repro.measure.lines import RecordError, Row, changes, encode
from eagle_repro.measure.locked import LockedFile
from eagle_repro.measure.records import covered, partial_path, read_record


def merge(parts: Sequence[Path], record: Path, place: Callable[[Row], Any], **now: Any) -> None:
    """Join parts (records, finished or not) and what is in NAME.jsonl.partial into the latter, then remove the parts.

    place: what a run's row is sorted by; runs of one place keep their order, a key counts once. now: what the header
    says of the moment beyond the first part's. Raises RecordError for parts of different conditions, and where another
    process still writes one of them; nothing is changed then. A merge that is cut off is done again.
    """
    partial, begun = partial_path(record), [part for part in parts if part.stat().st_size]
    if not begun:
        return
    with ExitStack() as stack:
        for file in (partial, *(part for part in begun if part.suffix == ".partial")):
            stack.callback(LockedFile(file).close)
        read = [read_record(path) for path in (partial, *begun) if path.stat().st_size]
        header = read[0].header
        for other in read[1:]:
            if other.header["hash"] != header["hash"]:
                differs = changes(covered(header), covered(other.header))
                raise RecordError(
                    f"parts of {record.name} are of different conditions ({differs}): start over (--again)"
                )
        header["name"] = record.stem
        header["bench"].setdefault("now", {}).update(now)
        if done := next((each.footer for each in read if each.footer), None):  # the first card's clocks, while warm
            header["bench"]["now"]["after"] = {name: done[name] for name in done if name not in ("kind", "lines")}
        runs = {run[-1]["key"]: run for each in read for run in _runs(each.rows)}
        _replace(partial, [header, *_joined(sorted(runs.values(), key=lambda run: place(run[-1])))])
    for part in parts:
        part.unlink(missing_ok=True)


def deal(record: Path, parts: dict[Path, Callable[[str], bool]]) -> None:
    """Give each part (NAME.jsonl of a process) those runs of NAME.jsonl.partial whose keys are its own."""
    partial = partial_path(record)
    if not partial.exists() or not partial.stat().st_size:
        return
    known = read_record(partial)
    for part, own in parts.items():
        chosen = _joined(run for run in _runs(known.rows) if own(run[-1]["key"]))
        _replace(partial_path(part), [known.header, *chosen])


def _runs(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows run by run, each behind its cycles."""
    run: list[Row] = []
    for row in rows:
        run.append(row)
        if row["kind"] == "run":
            yield run
            run = []


def _joined(runs: Iterable[list[Row]]) -> list[Row]:
    return [row for run in runs for row in run]


def _replace(path: Path, rows: list[Row]) -> None:
    """Write a file as a whole, or not at all."""
    fresh = LockedFile(Path(f"{path}.new"))
    try:
        fresh.cut(0)  # what a write that was cut off has left
        fresh.append(b"".join(map(encode, rows)))
        fresh.publish(path)
    finally:
        fresh.close()
