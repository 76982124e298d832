"""A session: one experiment under one protocol, its pair (loaded when first used) and its record.

run = open_session("02_speedup", {"PAIR": PAIR, ...}, PROTOCOL, OVERRIDES)
record = speedup.measure(run)
close(run)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from eagle_repro.api import Pair, load_pair, references, weights_size
from eagle_repro.engine.devices import resolve_device, resolve_dtype, resolve_stack, target_devices
from eagle_repro.experiments import find_experiment, given, guards, memory
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.timing_pairs import free_memory
from eagle_repro.measure.bench import bench_sheet, identity
from eagle_repro.measure.lines import plain
from eagle_repro.measure.records import (
    Record,
    RecordError,
    RecordWriter,
    completeness,
    partial_path,
    read_record,
    require_writable,
)
from eagle_repro.sources.complete import weights_sha256
from eagle_repro.sources.mounts import model_folder
from eagle_repro.sources.pairs import PAIRS
from eagle_repro.sources.paths import PACKAGE
from eagle_repro.sources.questions import set_checksum

Item = TypeVar("Item")
#: Passes items on while it shows how far one is: (items, label, total) -> items. present.progress.bar is one.
Progress = Callable[[Iterable[Item], str, int | None], Iterable[Item]]


def silent(items: Iterable[Item], label: str = "", total: int | None = None) -> Iterable[Item]:
    """The progress that shows nothing."""
    return items


@dataclass(frozen=True)
class Session:
    """One experiment: its full name, its protocol, and a pair where one is loaded already.

    mine: of which runs (by key) this session measures, where several processes share them; by default all.

    Raises ValueError for a given pair that is not the protocol's: the record would name the one and measure the other,
    and what an experiment loads beside it (another precision, the next size) would belong to the other.
    """

    name: str
    protocol: Protocol
    given: Pair | None = None
    mine: Callable[[str], bool] = lambda key: True

    def __post_init__(self) -> None:
        if self.given is None:
            return
        *_, named = references(self.protocol.pair, self.protocol.target, self.protocol.head)
        if named != self.given.name:
            raise ValueError(
                f"the pair {self.given.name} was given and the protocol names {named}: build the protocol with "
                "pair= of that name, or with the same target= and head="
            )

    @cached_property
    def pair(self) -> Pair:
        """The pair of the protocol, loaded at the first use.

        Raises RecordError first, where the record that it is loaded for cannot be written.
        """
        if self.given is None and not self.records_from and "writing" not in self.__dict__:
            require_writable(self.path)
        return self.given or open_pair(self.protocol)

    def release(self) -> None:
        """Let go of the pair, unless the caller handed it in; it is loaded again where it is asked for."""
        if self.given is None:
            self.__dict__.pop("pair", None)
        free_memory()

    @property
    def out(self) -> Path:
        """The folder of this run's own records."""
        return Path(self.protocol.out).expanduser()

    @property
    def path(self) -> Path:
        """The record: in RECORDS where that is named, else in the folder of this run."""
        return (records_folder(self.protocol.records) if self.protocol.records else self.out) / f"{self.name}.jsonl"

    @property
    def records_from(self) -> str | None:
        """Where the shown records were measured, None if here."""
        return f"measured elsewhere: {self.path.resolve().parent.name}" if self.protocol.records else None

    @property
    def settings(self) -> pd.DataFrame:
        """The settings as they took effect: columns name, value, from. No folder of this machine is among them."""
        shown = {**self.protocol.as_record(), "records": self.records_from}
        rows = [(name, _shown(value), self.protocol.origins.get(name, "default")) for name, value in shown.items()]
        return pd.DataFrame(rows, columns=["name", "value", "from"])

    def record(self) -> Record:
        """The finished record. Raises FileNotFoundError or RecordError where there is none."""
        record = read_record(self.path)
        if not record.complete:
            raise RecordError(f"{self.path.name} lacks its completeness line: measure it again")
        return record

    def partial_rows(self) -> list[dict[str, Any]]:
        """The rows that an unfinished session has written."""
        partial = partial_path(self.path)
        return read_record(partial).rows if partial.exists() and partial.stat().st_size else []

    @contextmanager
    def writer(self) -> Iterator[RecordWriter]:
        """The open writer of this experiment's record; loads the pair, which is part of the bench.

        Raises OutOfMemory with the next smaller setting when the device cannot hold what is measured in its block.
        """
        pair = self.pair
        sheet = self._sheet(pair.device, pair.dtype, pair.stack, pair.provenance)
        record = RecordWriter(self.path, bench=sheet, protocol=self.protocol.as_record(), mine=self.mine)
        with memory.told(self.protocol), record as writer:
            self.__dict__["writing"] = True  # a pair that is loaded again finds the file locked, by this writer
            try:
                yield writer
            finally:
                del self.__dict__["writing"]

    def fits(self, record: Record) -> bool:
        """Whether `record` was measured under this protocol and on this bench; told without loading the pair.

        Never so for a checkout with changes that are not committed: its revision does not say what was measured.
        """
        here = identity(plain(self.bench(), "bench"))
        there = identity(record.header["bench"]) | {"pair": {}}
        known = record.header["bench"].get("pair") or {}
        same = all((known.get(role) or {}).get("sha256") == found for role, found in self._folders().items())
        return here == there and same and not str(here["git"]).endswith("+dirty")

    def _folders(self) -> dict[str, str]:
        """The contents of a target and a head that are folders here, by role: their names do not tell them apart."""
        given = {role: getattr(self.protocol, role) for role in ("target", "head")}
        folders = {role: Path(name).expanduser() for role, name in given.items() if name}
        return {role: weights_sha256(model_folder(folder)) for role, folder in folders.items() if folder.is_dir()}

    def bench(self) -> dict[str, Any]:
        """The bench sheet as far as it is known without loading the pair. Raises ValueError for a missing device."""
        protocol, spec = self.protocol, PAIRS.get(self.protocol.pair or "")
        device = resolve_device(protocol.device)
        dtype = resolve_dtype(protocol.dtype, device, preferred=spec.dtype if spec else None)
        needed = weights_size(guards.references(protocol).values(), dtype)
        split = len(target_devices(protocol.device, needed)) > 1
        return self._sheet(device, dtype, resolve_stack(protocol.stack, device, split=split), {})

    def _sheet(self, device: Any, dtype: Any, stack: str, pair: Mapping[str, Any]) -> dict[str, Any]:
        *_, name = references(self.protocol.pair, self.protocol.target, self.protocol.head)
        sheet = bench_sheet(
            device=device,
            dtype=dtype,
            stack=stack,
            pair=pair,
            protocol=self.protocol.as_record(),
            question_sets={name: set_checksum(name) for name in self.protocol.sets},
        )
        return sheet | given.contents(self.name, self.protocol, name)


def open_session(
    name: str, models: Mapping[str, Any], protocol: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Session:
    """The session of a notebook's cells; nothing is loaded yet and nothing printed.

    Raises ValueError for an unknown experiment or setting, FileNotFoundError for RECORDS without this record.
    """
    session = Session(find_experiment(name), build_protocol(models, protocol, overrides or {}))
    if session.records_from:
        session.record()
    return session


def close(session: Session) -> None:
    """Print the completeness line, and let go of the pair. Raises RecordError if the record is not complete."""
    record = session.record()
    state = completeness(session.path)
    if state != "complete":
        raise RecordError(f"{session.name}: {state}; a newer run was begun and has not ended: run the notebook again")
    session.release()
    print(complete_line(session.name, record))


def complete_line(name: str, record: Record) -> str:
    """What `close` prints, and what the runner looks for: "02_speedup: complete, 96 runs, measured 2026-01-31"."""
    day = str((record.header["bench"].get("now") or {}).get("utc") or "")[:10]
    return f"{name}: complete, {len(record.frame('run'))} runs" + (f", measured {day}" if day else "")


def open_pair(protocol: Protocol) -> Pair:
    """Load the pair that a protocol names."""
    with memory.told(protocol, loading=True):
        return load_quietly(
            protocol.pair,
            target=protocol.target,
            head=protocol.head,
            device=protocol.device,
            dtype=protocol.dtype,
            stack=protocol.stack,
            max_length=protocol.max_length,
        )


def load_quietly(name: str | None = None, **options: Any) -> Pair:
    """`load_pair` without the bar that transformers shows for every load, which would stand in a notebook's output."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return load_pair(name, **options)
    finally:
        if shown:
            logging.enable_progress_bar()


def records_folder(name: str) -> Path:
    """The folder with records that `name` means: a folder, or one under results/ of a checkout."""
    published = PACKAGE.parent / "results"
    for folder in (Path(name).expanduser(), published / name):
        if folder.is_dir():
            return folder
    known = ", ".join(sorted(path.name for path in published.glob("*") if path.is_dir())) or "none"
    raise FileNotFoundError(f"{name!r} is no folder with records: name one, or one of the published ({known})")


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {tuple(each)}" for name, each in value.items())
    return ", ".join(value) if isinstance(value, tuple) else value
