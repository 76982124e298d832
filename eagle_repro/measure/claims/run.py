"""A run as the claims see it: the finished records of one folder, and why a number is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from eagle_repro.measure.lines import RecordError
from eagle_repro.measure.records import Record, read_record

T = TypeVar("T")
REPORT = "11_report"  # says what the others say, so that it is no evidence itself


class NotMeasured(Exception):
    """A number that a run does not hold: `record` should hold it; `why` is "missing", "unfinished" or what it lacks."""

    def __init__(self, record: str, why: str) -> None:
        super().__init__(f"{record}: {why}")
        self.record, self.why = record, why


@dataclass(frozen=True)
class Run:
    """The finished records of a folder by name; `states`: "unfinished" or "damaged" for those that are not finished."""

    name: str
    records: Mapping[str, Record]
    states: Mapping[str, str] = field(default_factory=dict)
    _made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def record(self, name: str) -> Record:
        """The finished record `name`. Raises NotMeasured."""
        if name not in self.records:
            raise NotMeasured(name, self.states.get(name, "missing"))
        return self.records[name]

    def rows(self, name: str, what: str | None = None) -> pd.DataFrame:
        """The run rows of a record; `what`: only those that name it so. Raises NotMeasured where there are none."""
        record = self.record(name)
        frame = self.once(("frame", name), lambda: record.frame("run"))
        if what is not None:
            frame = frame[frame["what"] == what] if "what" in frame else frame.iloc[:0]
        if frame.empty:
            raise NotMeasured(name, f"no rows of {what}" if what else "no rows")
        # A column that only rows of another kind fill says nothing here.
        return frame.dropna(axis="columns", how="all").reset_index(drop=True)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, made once a run: many claims look at the same rows."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made


@dataclass(frozen=True)
class Found:
    """A number of a run, or several in a row: its value, the record it is from, and the conditions it belongs to."""

    value: float | tuple[float, ...]
    record: str
    conditions: Mapping[str, Any]


def read_run(folder: Path | str) -> Run:
    """Read the records NN_NAME.jsonl of a folder.

    Raises FileNotFoundError where there is no such folder or no record in it.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: name one with records (NN_NAME.jsonl), as run --out makes it")
    records, states = {}, {}
    for path in sorted(folder.glob("[0-9][0-9]_*.jsonl")):
        if path.stem == REPORT:
            continue
        try:
            record = read_record(path)
        except RecordError:
            states[path.stem] = "damaged"
            continue
        if record.complete:
            records[path.stem] = record
        else:
            states[path.stem] = "unfinished"
    for partial in folder.glob("[0-9][0-9]_*.jsonl.partial"):
        name = partial.name.removesuffix(".jsonl.partial")
        if name not in records and name != REPORT:
            states[name] = "unfinished"
    if not records and not states:
        raise FileNotFoundError(f"{folder} holds no records: name a folder with NN_NAME.jsonl files, or measure first")
    return Run(folder.resolve().name, records, states)


def conditions(record: Record) -> dict[str, Any]:
    """What every number of a record belongs to: card, pair, dtype, stack, and the protocol's counts."""
    bench, protocol = record.header["bench"], record.header["protocol"]
    known = {name: bench.get(name) for name in ("card", "dtype", "stack")}
    known["pair"] = (bench.get("pair") or {}).get("name")
    known |= {name: protocol.get(name) for name in ("questions", "new_tokens", "repeats")}
    return {name: value for name, value in known.items() if value is not None} | {"temperature": 0}
