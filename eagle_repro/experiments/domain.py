"""07_domain: did a set fail for its language, or for what the head was trained on?

Heads of one size for one target, which differ in their training texts alone, answer the same questions. A few questions
are written by every head in turns with plain decoding and timed; of all others only the cycles are counted. The text is
the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_repro.api import Pair
from eagle_repro.engine.head import load_head
from eagle_repro.experiments.compared import alternated, write_compared
from eagle_repro.experiments.given import WEIGHTS, head_folder
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.published import of_a_gpu
from eagle_repro.experiments.rows import Item, Row, Way, domain_of, reason_of
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.experiments.tau import count_cycles
from eagle_repro.measure import domain
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.sources.paths import sha256_of
from eagle_repro.training.heads import read_json

NAME = "07_domain"
OWN = "general"  # where no folder has it, the head that the pair comes with
#: Of each set, in `quick`.
QUICK_QUESTIONS, QUICK_TOKENS = 1, 24


def measure(session: Session, progress: Progress = silent) -> Record:
    """Time a few questions with every head that is here, count the cycles of the others; an interrupted run goes on.

    A head that is not here, or does not fit, is a row that says why. Raises NonFiniteLogits, RecordError for heads that
    changed since the record was begun, ValueError before any run for a prompt that does not fit max_length.
    """
    if session.records_from:
        return session.record()
    pair = session.pair
    protocol = replace(
        session.protocol.brief(QUICK_QUESTIONS, QUICK_TOKENS), repeats=1
    )  # what varies are the questions
    timed, counted = read_items(protocol, pair), read_items(protocol, pair, protocol.tau_questions)
    with session.writer() as writer:
        known = session.partial_rows()
        pairs = _write_heads(writer, pair, protocol, known)
        ways = [Way("plain"), *(Way("eagle", name, protocol.tree) for name in pairs)]
        runs = alternated(writer, pair, protocol, ways, timed, pairs)
        write_compared(writer, pair, ways, timed, progress(runs, "texts", len(ways) * len(timed)), known, _label)
        left = [item for item in counted if item not in timed]
        batches = _count(writer, pairs, protocol, left)
        for _ in progress(batches, "cycles", len(pairs) * len(protocol.sets) if left else 0):
            pass
        writer.complete(clocks_after=clocks(pair.device))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """tau and speedup by head and question set, of the heads for a pair that is loaded already."""
    return domain.by_group(measure(Session(NAME, replace(protocol, out=str(out)), pair)))


def shown(record: Record) -> Record:
    """The record to show: this one, or where it is of a CPU, a published one of more heads (of_a_gpu)."""
    return of_a_gpu(record, lambda each: len(domain.present(each)))


def pair_with(pair: Pair, folder: Path) -> Pair:
    """The same target with the head of a folder. Raises FileNotFoundError or HeadMismatch."""
    head = load_head(folder, pair.target.embedding)
    return replace(pair, head=head.use_fused() if pair.stack != "eager" else head)


def _write_heads(
    writer: RecordWriter, pair: Pair, protocol: Protocol, known: Sequence[Mapping[str, Any]]
) -> dict[str, Pair]:
    """A row a head, and the pairs of those that are here, by name."""
    before = {row["head"] for row in known if row.get("what") == "head"}
    pairs = {}
    for name in domain.HEADS:
        found, said = _open(pair, name, protocol.heads)
        row: Row = {"what": "head", "head": name, "here": found is not None, **said}
        if found is not None:
            pairs[name] = found
            row["draft_vocabulary"] = found.head.config.draft_vocabulary
        if name not in before:
            writer.write(f"head/{name}", row)
    return pairs


def _open(pair: Pair, name: str, heads: str | None) -> tuple[Pair | None, Row]:
    """The pair with the head of that name and what is known of its training, or None and the reason."""
    try:
        folder = head_folder(pair.name, name, heads)
    except FileNotFoundError as error:
        return (pair, {"recipe": "its own"}) if name == OWN else (None, {"reason": str(error)})
    try:
        return pair_with(pair, folder), {"sha256": sha256_of(folder / WEIGHTS), **_training_of(folder)}
    except (OSError, RuntimeError, ValueError) as error:
        # No folder of this machine stands in a record.
        return None, {"reason": reason_of(error).replace(str(folder), folder.name)}


def _training_of(folder: Path) -> Row:
    """What the head's provenance says of its training, None where it does not."""
    path = folder / "PROVENANCE.json"
    said = read_json(path) if path.is_file() else {}
    corpus, trained, training = (said.get(name) or {} for name in ("corpus", "trained", "training"))
    counts = corpus.get("counts") or {}
    seconds = trained.get("seconds")
    return {
        "recipe": corpus.get("recipe"),
        "answer_tokens": counts.get("answer_tokens", training.get("answer_tokens")),
        "steps": trained.get("steps"),
        "minutes": seconds / 60 if seconds else training.get("minutes"),
    }


def _count(
    writer: RecordWriter, pairs: Mapping[str, Pair], protocol: Protocol, items: Sequence[Item]
) -> Iterator[None]:
    """The cycles of every head on the questions of each set that are not timed."""
    for name, pair in pairs.items():
        for chosen in protocol.sets:
            of_set = [item for item in items if item.set == chosen]
            if not of_set:
                continue
            if not writer.has(f"tau/{name}/{chosen}"):
                row = {"what": "tau", "head": name, "set": chosen, **domain_of(chosen)}
                counts = count_cycles(pair, of_set, protocol.tree, protocol.new_tokens)
                writer.write(f"tau/{name}/{chosen}", row | counts)
            yield


def _label(way: Way) -> Row:
    return {"what": "text", "head": way.variant if way.method == "eagle" else None}
