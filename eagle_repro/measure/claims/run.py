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
OTHER_BENCH = "of another bench"
MAIN = "02_speedup"
#: What the records that are judged together must have in common, by record.
SHARED = dict.fromkeys(
    ("00_bench", "01_roofline", MAIN, "03_tree_shape", "04_chain_vs_tree", "06_lossless"),
    ("card", "pair", "dtype", "stack", "target", "head"),
) | {"05_target_size": ("card", "dtype", "stack")}  # its rows name their pairs, or are of shapes without one
# 07 to 10 are judged with none of them: each compares stacks, heads or batches within itself, and shows its bench.


class NotMeasured(Exception):
    """A number that a run does not hold: `record` should hold it; `why` is "missing", "unfinished" or what it lacks."""

    def __init__(self, record: str, why: str) -> None:
        super().__init__(f"{record}: {why}")
        self.record, self.why = record, why


@dataclass(frozen=True)
class Run:
    """The finished records of a folder by name.

    states: "unfinished", "damaged" or OTHER_BENCH for those that do not count. others: in what the last ones differ,
    as name -> (theirs, the run's); faults: what is wrong with the damaged ones, in a line each.
    """

    name: str
    records: Mapping[str, Record]
    states: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Mapping[str, tuple[Any, Any]]] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
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
    """Read the records NN_NAME.jsonl of a folder; one of another bench than the run's is told and left out.

    Raises FileNotFoundError where there is no such folder or no record in it.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: name one with records (NN_NAME.jsonl), as run --out makes it")
    records, states, faults = {}, {}, {}
    for path in sorted(folder.glob("[0-9][0-9]_*.jsonl")):
        if path.stem == REPORT:
            continue
        try:
            record = read_record(path)
        except RecordError as error:
            states[path.stem], faults[path.stem] = "damaged", str(error)
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
    others = _of_other_benches(records)
    kept = {name: record for name, record in records.items() if name not in others}
    return Run(folder.resolve().name, kept, states | dict.fromkeys(others, OTHER_BENCH), others, faults)


def main_record(records: Mapping[str, Record]) -> Record | None:
    """The record whose bench is the run's: 02_speedup, else the first of those judged together, else the first."""
    names = [name for name in (MAIN, *SHARED, *records) if name in records]
    return records[names[0]] if names else None


def bench_differences(record: Record, main: Record) -> dict[str, tuple[Any, Any]]:
    """In which conditions of SHARED two records differ, as name -> (its own, the main one's).

    Contents of weights are compared only where both records tell them: those with a revision have it instead.
    """
    here, there = _shared(record), _shared(main)
    names = SHARED.get(record.header["name"], SHARED[MAIN])
    unknown = [name for name in ("target", "head") if None in (here[name], there[name])]
    return {name: (here[name], there[name]) for name in names if name not in unknown and here[name] != there[name]}


def _of_other_benches(records: Mapping[str, Record]) -> dict[str, dict[str, tuple[Any, Any]]]:
    main = main_record(records)
    judged = {name: record for name, record in records.items() if name in SHARED}
    found = {name: bench_differences(record, main) for name, record in judged.items()} if main else {}
    return {name: differs for name, differs in found.items() if differs}


def _shared(record: Record) -> dict[str, Any]:
    """What SHARED names, of one record; the weights by the first digits of their sha256."""
    bench = record.header["bench"]
    pair = bench.get("pair") or {}
    contents = {role: (pair.get(role) or {}).get("sha256") for role in ("target", "head")}
    known = {name: bench.get(name) for name in ("card", "dtype", "stack")} | {"pair": pair.get("name")}
    return known | {role: found and found[:12] for role, found in contents.items()}


def conditions(record: Record) -> dict[str, Any]:
    """What every number of a record belongs to: card, pair, dtype, stack, and the protocol's counts."""
    bench, protocol = record.header["bench"], record.header["protocol"]
    known = {name: bench.get(name) for name in ("card", "dtype", "stack")}
    known["pair"] = (bench.get("pair") or {}).get("name")
    known |= {name: protocol.get(name) for name in ("questions", "new_tokens", "repeats")}
    return {name: value for name, value in known.items() if value is not None} | {"temperature": 0}
