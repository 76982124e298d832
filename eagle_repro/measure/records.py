"""Records: one JSON Lines file per experiment, written so that a killed run never looks finished.

    {"kind": "header", "schema": 1, "name": ..., "hash": ..., "bench": {...}, "protocol": {...}}
    {"kind": "cycle", "key": ..., ...}          where asked: the cycles of a run, ahead of their run
    {"kind": "run", "key": ..., ...}            one line a run; its key names it within the file
    {"kind": "complete", "lines": N, ...}       last: N lines stand above; holds what is known only afterwards

Lines are appended to NAME.jsonl.partial and reach the disk run by run; `complete` renames the file to NAME.jsonl.
A run's own line comes after its cycles and thereby commits them: what follows the last run line belongs to a run
that did not end, and is dropped. A later session continues the file if the hash in the header agrees. Text is
UTF-8 whatever the locale says; a number that is not finite is never a record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd

from eagle_repro.measure.bench import identity
from eagle_repro.measure.lines import RecordError, Row, changes, encode, parse, plain
from eagle_repro.measure.locked import LockedFile, set_aside

__all__ = [
    "Record",
    "RecordError",
    "RecordWriter",
    "completeness",
    "covered",
    "partial_path",
    "read_record",
    "require_writable",
]

SCHEMA = 1


@dataclass(frozen=True)
class Record:
    """A record as read: its header, its run and cycle rows in order, and its footer (None where none was written)."""

    header: Row
    rows: list[Row]
    footer: Row | None
    path: Path

    @property
    def complete(self) -> bool:
        """Whether the measurement ended: the completeness line is there, and the file has its final name."""
        return self.footer is not None and self.path.suffix != ".partial"

    def frame(self, kind: Literal["run", "cycle"] = "run") -> pd.DataFrame:
        """The rows of one kind as a table, a column a field."""
        rows = [row for row in self.rows if row["kind"] == kind]
        return pd.DataFrame(rows).drop(columns="kind", errors="ignore")


class RecordWriter:
    """Writes NAME.jsonl as a context manager; leaving it without `complete` leaves NAME.jsonl.partial to continue.

        with RecordWriter(out / "02_speedup.jsonl", bench=sheet, protocol=protocol) as writer:
            if not writer.has(key):
                writer.write(key, row, cycles)
            writer.complete(clocks_after=clocks(device))

    `start_over` sets the partial file of an earlier session aside under another name instead of continuing it. `mine`
    says of a key whether this process measures it, where several share the runs; by default it measures all.
    A finished NAME.jsonl stays until `complete` replaces it; one of another bench or protocol is set aside then.
    Raises RecordError where the folder cannot be written, where another process writes the same record, and where
    the partial file is of another bench or protocol; ValueError for what JSON cannot hold (NaN, tensors, paths).
    """

    def __init__(
        self,
        path: Path | str,
        *,
        bench: Mapping[str, Any],
        protocol: Mapping[str, Any],
        start_over: bool = False,
        mine: Callable[[str], bool] = lambda key: True,
    ) -> None:
        self.path = Path(path)
        if self.path.suffix != ".jsonl":
            raise ValueError(f"record {self.path.name} was named: a name that ends in .jsonl is needed")
        self.partial = partial_path(self.path)
        self.header = _header(self.path.stem, plain(bench, "bench"), plain(protocol, "protocol"))
        self._start_over = start_over
        self._mine = mine
        self._file: LockedFile | None = None
        self._keys: set[str] = set()
        self._lines = 0
        self._after: Row = {}

    def __enter__(self) -> Self:
        self._file = LockedFile(self.partial)
        try:
            if self._start_over and self._file.size:
                set_aside(self.partial)
                self._file.close()
                self._file = LockedFile(self.partial)
            self._continue(self._file)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def has(self, key: str) -> bool:
        """Whether nothing is left to do for the run `key`: it is in the file already, or another process's."""
        return key in self._keys or not self._mine(key)

    def write(self, key: str, row: Mapping[str, Any], cycles: Iterable[Mapping[str, Any]] = ()) -> None:
        """Add one run and its cycles; they are on the disk when this returns. ValueError for a key that `has`."""
        if self.has(key):
            whose = "is in {} already" if self._mine(key) else "belongs to another process than that of {}"
            raise ValueError(f"run {key} {whose.format(self.partial.name)}: ask has(key) before measuring it")
        self._append([*(_labelled("cycle", key, cycle) for cycle in cycles), _labelled("run", key, row)])
        self._after = {}
        self._keys.add(key)

    def complete(self, **footer: Any) -> Path:
        """Write the completeness line with `footer`, give the file its final name, close it; returns that name.

        What other processes found after their work, and this one has added nothing to, goes before `footer`.
        """
        file = self._append([plain(footer, "footer") | self._after | {"kind": "complete", "lines": self._lines}])
        if self.path.exists() and _hash_of(self.path) != self.header["hash"]:
            set_aside(self.path)
        file.publish(self.path)
        return self.path

    def _continue(self, file: LockedFile) -> None:
        """Take up what an earlier session committed, or begin with the header."""
        rows, ends = parse(self.partial.read_bytes(), self.partial)
        rows = rows[: _committed(rows, ("header", "run"))]
        if rows:
            _check_schema(rows[0], self.partial)
            if rows[0]["hash"] != self.header["hash"]:
                differs = changes(covered(rows[0]), covered(self.header))
                raise RecordError(
                    f"{self.partial.name} was begun under other conditions ({differs}): go back to them, "
                    "start over (--again), or choose another output folder"
                )
        file.cut(ends[len(rows) - 1] if rows else 0)
        self._keys = {row["key"] for row in rows if row["kind"] == "run"}
        self._lines = len(rows)
        self._after = (rows[0]["bench"].get("now") or {}).get("after", {}) if rows else {}
        if not rows:
            self._append([self.header])

    def _append(self, rows: list[Row]) -> LockedFile:
        if self._file is None:
            raise RecordError(f"{self.path.name} is not open for writing: use the writer inside its with block")
        self._file.append(b"".join(map(encode, rows)))
        self._lines += len(rows)
        return self._file


def partial_path(path: Path | str) -> Path:
    """Where the record `path` (NAME.jsonl) is while it is being written: NAME.jsonl.partial."""
    return Path(f"{path}.partial")


def require_writable(path: Path | str) -> None:
    """Raise RecordError where the record `path` cannot be written now: its folder cannot, or another process does.

    Nothing is left behind but the folder. To be asked before what takes long, as the writer itself is opened after it.
    """
    partial = partial_path(path)
    file = LockedFile(partial)
    try:
        if not file.size:
            partial.unlink()
    finally:
        file.close()


def read_record(path: Path | str) -> Record:
    """Read a record, or an unfinished one if its .partial file is named (`complete` is then False).

    Raises FileNotFoundError, and RecordError for a file that is no record or a damaged one.
    """
    path = Path(path)
    if not path.exists():
        rest = partial_path(path)
        hint = f"only the unfinished {rest.name} is there, read that" if rest.exists() else "measure it first"
        raise FileNotFoundError(f"there is no record {path.name} in {path.parent}: {hint}")
    rows, _ = parse(path.read_bytes(), path)
    rows = rows[: _committed(rows, ("header", "run", "complete"))]
    if not rows:
        raise RecordError(f"{path.name} is not a record: it has no header line")
    _check_schema(rows[0], path)
    named = path.name.partition(".jsonl")[0]
    if rows[0]["name"] != named:
        raise RecordError(
            f"{path.name} is a record of {rows[0]['name']} (line 1): give it that name again, or measure {named}"
        )
    footer = rows.pop() if rows[-1]["kind"] == "complete" else None
    if footer and footer["lines"] != len(rows):
        raise RecordError(
            f"{path.name} is damaged: its last line counts {footer['lines']} lines and {len(rows)} are there; "
            "measure it again"
        )
    return Record(rows[0], rows[1:], footer, path)


def completeness(path: Path | str) -> Literal["complete", "partial", "missing"]:
    """How far the record NAME.jsonl is: told by its mark, never by the absence of an error.

    A .partial file beside a finished one means that a newer run was begun and has not ended: "partial".
    """
    if partial_path(path).exists():
        return "partial"
    if not Path(path).exists():
        return "missing"
    try:
        return "complete" if read_record(path).complete else "partial"
    except RecordError:
        return "partial"


def _header(name: str, bench: Row, protocol: Row) -> Row:
    header = {"kind": "header", "schema": SCHEMA, "name": name, "hash": "", "bench": bench, "protocol": protocol}
    text = json.dumps({"schema": SCHEMA} | covered(header), sort_keys=True)
    return header | {"hash": hashlib.sha256(text.encode()).hexdigest()}


def covered(header: Row) -> Row:
    """What two sessions must have in common for their rows to stand in one file."""
    return {"protocol": header["protocol"], "bench": identity(header["bench"])}


def _labelled(kind: str, key: str, row: Mapping[str, Any]) -> Row:
    label = {"kind": kind, "key": key}
    labelled = label | plain(row, kind)
    if labelled | label != labelled:
        raise ValueError(f"run {key}: a {kind} row with another kind or key was given, leave these two out")
    return labelled


def _committed(rows: list[Row], kinds: tuple[str, ...]) -> int:
    """How many lines count: up to the last one of these kinds."""
    return max((number for number, row in enumerate(rows, start=1) if row["kind"] in kinds), default=0)


def _check_schema(header: Row, path: Path) -> None:
    if header["schema"] != SCHEMA:
        raise RecordError(f"{path.name} has schema {header['schema']}: this version of the package reads {SCHEMA}")


def _hash_of(path: Path) -> str | None:
    try:
        return str(read_record(path).header["hash"])
    except RecordError:
        return None
