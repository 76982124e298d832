"""00_bench: what is this bench? The guards and where the weights came from; the record's header is the bench sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

from eagle_repro.api import Pair
from eagle_repro.experiments import guards
from eagle_repro.experiments.guards import Guard
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record
from eagle_repro.sources.pairs import PAIRS
from eagle_repro.sources.questions import available


def measure(session: Session, progress: Progress = silent) -> Record:
    """Check the bench, load the pair, write the record. Raises GuardRefused before anything is downloaded or loaded."""
    if session.records_from:
        return session.record()
    found = guards.check(session.protocol)
    guards.require(found)
    with session.writer() as writer:
        for guard in found:
            if not writer.has(f"guard/{guard.check}"):
                writer.write(f"guard/{guard.check}", asdict(guard))
        for role in ("target", "head"):
            if not writer.has(f"weights/{role}"):
                writer.write(f"weights/{role}", weights(session.pair, role))
        writer.complete(clocks_after=clocks(session.pair.device))
    return session.record()


def loads(session: Session) -> Guard:
    """The guard that needs the weights: do target and head fit each other, and work on this device?"""
    try:
        provenance = session.pair.provenance
    except (OSError, RuntimeError, ValueError) as error:
        return Guard("pair", "refused", " ".join(str(error).split()))
    sizes = ", ".join(f"{role} {provenance[role]['parameters'] / 1e6:.1f} M parameters" for role in ("target", "head"))
    return Guard("pair", "ok", f"target and head load and fit: {sizes}")


def prompts_fit(session: Session) -> Guard:
    """The guard that needs the tokenizer: does every prompt of the sets that are here fit max_length with an answer?"""
    here = replace(session.protocol, sets=tuple(name for name in session.protocol.sets if available(name)))
    try:
        longest = max((len(item.prompt) for item in read_items(here, session.pair)), default=0)
    except ValueError as error:
        return Guard("prompts", "refused", str(error))
    said = f"of up to {longest} tokens fit max_length={here.max_length} with {here.new_tokens} new ones"
    return Guard("prompts", "ok", said)


def preview(session: Session, found: Sequence[Guard]) -> Record:
    """The record of this bench as it would begin, for showing alone: nothing is written, and no pair is needed."""
    try:
        sheet = session.bench()
    except ValueError:  # the device that was asked for is not here, as its guard says
        sheet = replace(session, protocol=replace(session.protocol, device="cpu", dtype="auto")).bench()
    sheet["pair"] = {"name": session.protocol.pair}
    rows = [{"kind": "run", "key": f"guard/{guard.check}", **asdict(guard)} for guard in found]
    header = {"kind": "header", "name": session.name, "bench": sheet, "protocol": session.protocol.as_record()}
    return Record(header, rows, None, session.path)


def weights(pair: Pair, role: str) -> dict[str, object]:
    """Where one half of a pair came from, and its size: the row of the record."""
    known = pair.provenance[role]
    spec = PAIRS.get(pair.name)
    licence = getattr(spec, role).licence if spec else "see its model card"
    fields = ("source", "revision", "parameters", "weight_bytes")
    return {"role": role, **{name: known[name] for name in fields}, "licence": licence}


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """The record's rows as a table, measured on a pair that is loaded already."""
    return measure(Session("00_bench", replace(protocol, out=str(out)), pair)).frame()
