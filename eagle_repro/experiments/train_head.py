"""10_train_head: can I fit a head to my domain?

The target writes a corpus, a new head learns from it, and the engine counts tokens a cycle with it: before training,
after training, and with the pair's own head beside them. The text is the same each time; only the cycles differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_repro.api import Pair
from eagle_repro.engine.head import load_head
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import Item, Way, run_key, run_row, write_text
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.measure import training
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.training.checkpoints import read_log
from eagle_repro.training.fit import FitSettings, fit
from eagle_repro.training.settings import TrainSettings
from eagle_repro.training.write import CorpusSettings

NAME = "10_train_head"
#: Corpus and training by profile: on a CPU a demonstration for the pair tiny, on a GPU a head of use.
SMALL = (
    CorpusSettings(answer_tokens=8000, positions=96, turn=16, rows=32),
    TrainSettings(steps=100, batch_tokens=768, length=96, unrolled=4, rate=3e-3, warm_up=10),
)
LARGE = (CorpusSettings(answer_tokens=12_000_000), TrainSettings(minutes=5))
FITS = {"smoke": SMALL, "quick": SMALL, "full": LARGE, "t4": LARGE}
TREES = {"smoke": (16, 4, 4), "quick": (16, 4, 4)}


def measure(session: Session, progress: Progress = silent) -> Record:
    """Fit a head and count its tokens a cycle by question set; what an earlier session has done is gone on from.

    Raises NonFiniteLogits, and ValueError before any run for a prompt that does not fit max_length.
    """
    if session.records_from:
        return session.record()
    pair, protocol = session.pair, session.protocol
    items = read_items(protocol, pair)
    with session.writer() as writer:
        folder = session.out / NAME
        if not writer.has("fit"):
            summary = fit_head(pair, protocol, folder, progress)
            for row in read_log(folder / "log.jsonl"):
                if not writer.has(f"step/{row['step']}"):
                    writer.write(f"step/{row['step']}", {"what": "step", **row})
            writer.write("fit", {"what": "fit", **_without_folders(summary)})
        texts = _texts(writer, pair, protocol, folder, items)
        for _ in progress(texts, "texts", len(training.ARMS) * len(items)):
            pass
        writer.complete(clocks_after=clocks(pair.device))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """tau before and after training by question set, of a pair that is loaded already."""
    return training.taus(measure(Session(NAME, replace(protocol, out=str(out)), pair)))


def fit_head(pair: Pair, protocol: Protocol, folder: Path, progress: Progress = silent) -> dict[str, Any]:
    """Fit a new head of the sizes of the pair's own; the folder gets corpus, log and head."""
    corpus, trained = FITS[protocol.profile]
    settings = FitSettings(
        recipe="general",
        corpus=replace(corpus, seed=protocol.seed),
        training=replace(trained, seed=protocol.seed),
        tau_prompts=0,
    )
    provenance = {"pair": pair.provenance, "dtype": pair.dtype}
    return fit(
        pair.target,
        pair.tokenizer,
        pair.head.config,
        settings,
        folder,
        provenance=provenance,
        progress=progress,
    )


def _texts(writer: RecordWriter, pair: Pair, protocol: Protocol, folder: Path, items: list[Item]) -> Iterator[None]:
    """Every question with every head."""
    tree = TreeShape(*TREES[protocol.profile]) if protocol.profile in TREES else protocol.trees["default"]
    saved = {"untrained": folder / "start", "trained": folder / "head"}
    for number, arm in enumerate(training.ARMS):
        head = load_head(saved[arm], pair.target.embedding) if arm in saved else pair.head
        with_head, way = replace(pair, head=head), Way("eagle", arm, tree)
        for item in items:
            key = run_key(item, way, 0)
            if not writer.has(key):
                done = write_text(with_head, way, item, protocol.new_tokens)
                writer.write(key, {"what": "text"} | run_row(pair, item, way, done, repeat=0, order=number))
            yield


def _without_folders(summary: dict[str, Any]) -> dict[str, Any]:
    head = {name: value for name, value in summary["head"].items() if name != "folder"}
    return {**summary, "head": head}
