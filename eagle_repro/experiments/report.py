"""11_report: what did we learn? Every claim of the article beside the records of this run, as a record of its own.

Nothing is measured here. The record is written anew every time, because it says what the other records say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_repro.api import Pair
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.measure.claims import Claim, Result, Run, check, counts, load_claims, read_run
from eagle_repro.measure.claims.formula import residuals
from eagle_repro.measure.claims.marks import agrees
from eagle_repro.measure.claims.run import REPORT, main_record
from eagle_repro.measure.claims.verdicts import judge, stated_as_found
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.sources.paths import data_folder


def measure(session: Session, progress: Progress = silent) -> Record:
    """Judge every claim by the records in the session's folder and write one row a claim."""
    if session.records_from:
        return session.record()
    run = evidence(session)
    # The hashes of what was read belong to the bench of this record: no two sets of records give the same one.
    sheet = session.bench() | {"records": {name: record.header["hash"] for name, record in run.records.items()}}
    with RecordWriter(session.path, bench=sheet, protocol=session.protocol.as_record(), start_over=True) as writer:
        for result in progress(check(article(), run), "claims", None):
            writer.write(f"claim/{result.claim.id}", result.as_row())
        others = {name: dict(differs) for name, differs in run.others.items()}
        writer.complete(states=dict(run.states), others=others, evidence=_bench(run))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """The claims and their verdicts as a table, from the records in a folder."""
    return measure(Session(REPORT, replace(protocol, out=str(out)), pair)).frame()


def _bench(run: Run) -> dict[str, Any] | None:
    """The bench that the judged numbers belong to: None where there are no records."""
    record = main_record(run.records)
    return dict(record.header["bench"]) if record else None


def evidence(session: Session) -> Run:
    """The records that lie beside the session's own; an empty run where there are none yet."""
    try:
        return read_run(session.path.parent)
    except FileNotFoundError:
        return Run(session.path.resolve().parent.name, {})


def article() -> list[Claim]:
    """The article's claims."""
    return load_claims(data_folder() / "claims.yaml")


def made_up_verdicts() -> Iterator[str]:
    """What the claims say of made-up numbers: lines that are the same on every machine."""
    claims = article()
    numbers = [claim for claim in claims if claim.kind == "value"]
    for title, steps in (("as the article has them", 0.0), ("within tolerance", 0.9), ("two tolerances off", 2.0)):
        found = (judge(claim, stated_as_found(claim, steps)) for claim in numbers)
        yield f"{len(numbers)} numbers {title}: {_counted(found)}"
    elsewhere = (judge(claim, replace(stated_as_found(claim), conditions={"card": "L4"})) for claim in numbers)
    yield f"the same on an L4: {_counted(elsewhere)}"
    yield f"{len(claims)} claims without a record: {_counted(check(claims, Run('none', {})))}"
    cycle, *rest = residuals(claims)
    worst = max(abs(point.percent or 0.0) for point in rest)
    yield f"the article's cycle of 64 nodes: {100 * cycle.predicted:.0f}%; its other figures are off by {worst:.0f}%"
    for value in (2.64, 2.4):
        yield f"a text says 2.6, the record {value}: {'right' if agrees('2.6', value) else 'wrong'}"


def _counted(results: Iterable[Result]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts(list(results)).items())
