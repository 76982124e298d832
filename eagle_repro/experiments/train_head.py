"""10_train_head: can I fit a head to my domain?

The target writes a corpus, a new head learns from it, and the engine counts tokens a cycle with it: before training,
after training, and with the pair's own head beside them; and on the way, with the heads that were saved after so many
minutes. The text is the same each time; only the cycles differ. A training that `train` has finished (training=DIR) is
measured instead of one made here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_repro.api import Pair
from eagle_repro.experiments.domain import pair_with
from eagle_repro.experiments.given import WEIGHTS
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.published import of_a_gpu
from eagle_repro.experiments.rows import Item, Way, domain_of, run_key, run_row, write_text
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.experiments.tau import count_cycles
from eagle_repro.measure import training
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordError, RecordWriter
from eagle_repro.sources.paths import sha256_of
from eagle_repro.training.checkpoints import read_log
from eagle_repro.training.fit import FitSettings, fit
from eagle_repro.training.heads import read_json
from eagle_repro.training.settings import TrainSettings
from eagle_repro.training.write import CorpusSettings

NAME = "10_train_head"
HEAD = f"head/{WEIGHTS}"
#: Corpus and training by profile: on a CPU a demonstration for the pair tiny, on a GPU a head of use.
SMALL = (
    CorpusSettings(answer_tokens=8000, positions=96, turn=16, rows=32),
    TrainSettings(steps=100, batch_tokens=768, length=96, unrolled=4, rate=3e-3, warm_up=10, snapshots=4),
)
LARGE = (CorpusSettings(answer_tokens=12_000_000), TrainSettings(minutes=5, snapshots=8))
FITS = {"smoke": SMALL, "quick": SMALL, "full": LARGE, "t4": LARGE}
#: What `quick` trains: on a CPU the embedded target would write its corpus at some five tokens a second. What a head of
#: it can become is for the published record to show.
QUICK_PAIR, QUICK_QUESTIONS, QUICK_TOKENS = "tiny", 1, 16


def measure(session: Session, progress: Progress = silent) -> Record:
    """Fit a head and count its tokens a cycle by question set; what an earlier session has done is gone on from.

    Raises NonFiniteLogits, FileNotFoundError for a named training that is not there or not finished, RecordError for
    another one than the record was begun with, and ValueError before any run for a prompt that does not fit max_length.
    """
    if session.records_from:
        return session.record()
    protocol = session.protocol.brief(QUICK_QUESTIONS, QUICK_TOKENS)
    if protocol.profile == "quick" and not protocol.training and protocol.pair != QUICK_PAIR:
        protocol = replace(protocol, pair=QUICK_PAIR, target=None, head=None)
        session = Session(NAME, protocol)
    pair = session.pair
    items = read_items(protocol, pair)
    done = Path(protocol.training).expanduser() if protocol.training else None
    folder = done or session.out / NAME
    if done:
        require_finished(done, pair.provenance["target"])
    with session.writer() as writer:
        if writer.has("fit"):
            _require_same(session, folder)
        else:
            summary = read_json(done / "summary.json") if done else fit_head(pair, protocol, folder, progress)
            write_training(writer, folder, summary)
        texts = _texts(writer, pair, protocol, folder, items)
        for _ in progress(texts, "texts", len(training.ARMS) * len(items)):
            pass
        for _ in progress(_on_the_way(writer, pair, protocol, folder), "minutes", None):
            pass
        writer.complete(clocks_after=clocks(pair.device))
    return session.record()


def shown(record: Record) -> Record:
    """The record to show: this one, or where it is of a CPU, that of a published training of more steps (of_a_gpu)."""
    return of_a_gpu(record, lambda each: int(training.fit(each)["steps"]))


def require_finished(folder: Path, target: Mapping[str, Any]) -> None:
    """Hold that the folder is of one finished `train`, of this target (provenance["target"] of a pair).

    Raises FileNotFoundError for what is missing, ValueError where summary, head, log and target are not of one
    training: another one was begun in the folder, or parts of several were put into it.
    """
    asked = "name the --out folder of a finished python -m eagle_repro train"
    for name in ("summary.json", "log.jsonl", "start/config.json", "head/config.json", HEAD):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"training={folder.name} has no {name}: {asked}")
    summary, said = read_json(folder / "summary.json"), read_json(folder / "head" / "PROVENANCE.json")
    trained = (said.get("pair") or {}).get("target") or {}
    same = {
        "head": (summary.get("head") or {}).get("sha256") == sha256_of(folder / HEAD),
        "log": read_log(folder / "log.jsonl")[-1:] == [summary.get("last")],
        "target": _same_target(trained, target),
    }
    for name, agrees in same.items():
        if not agrees:
            raise ValueError(f"training={folder.name}: its summary.json is of another {name}; {asked} of this target")


def _same_target(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two provenances are of one target, by what both say; revisions are told apart within a source alone."""
    names = ["sha256", "architecture", "parameters"] + ["revision"] * (one.get("source") == other.get("source"))
    return all(one[name] == other[name] for name in names if name in one and name in other)


def _require_same(session: Session, folder: Path) -> None:
    """Raise RecordError where the folder's head is not the one that the unfinished record was begun with."""
    begun = next((row["head"]["sha256"] for row in session.partial_rows() if row["key"] == "fit"), None)
    if not (folder / HEAD).is_file() or sha256_of(folder / HEAD) != begun:
        raise RecordError(f"the head in {folder} is another one than when {NAME} was begun: start over (--again)")


def write_training(writer: RecordWriter, folder: Path, summary: dict[str, Any]) -> None:
    """The rows of a finished training: its log by step, and its summary with what it was made of and with."""
    for row in read_log(folder / "log.jsonl"):
        if not writer.has(f"step/{row['step']}"):
            writer.write(f"step/{row['step']}", {"what": "step", **row})
    said = read_json(folder / "head" / "PROVENANCE.json")
    corpus = said.get("corpus") or {}
    made = {"recipe": corpus.get("recipe"), "corpus_settings": corpus.get("settings"), "git": said.get("git")}
    made |= {"training_settings": said.get("training"), "start": said.get("start")}
    writer.write("fit", {"what": "fit", **_without_folders(summary), **made})


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
    saved = {"untrained": folder / "start", "trained": folder / "head"}
    for number, arm in enumerate(training.ARMS):
        with_head, way = pair_with(pair, saved[arm]) if arm in saved else pair, Way("eagle", arm, protocol.tree)
        for item in items:
            key = run_key(item, way, 0)
            if not writer.has(key):
                done = write_text(with_head, way, item, protocol.new_tokens)
                writer.write(key, {"what": "text"} | run_row(pair, item, way, done, repeat=0, order=number))
            yield


def _on_the_way(writer: RecordWriter, pair: Pair, protocol: Protocol, folder: Path) -> Iterator[None]:
    """The heads that were saved on the way, the first and the last one and the pair's own: cycles by question set."""
    snapshots = sorted((folder / "snapshots").glob("step-*"))
    if not snapshots:
        return
    items = read_items(protocol, pair, protocol.tau_questions)
    end = read_log(folder / "log.jsonl")[-1]
    places: dict[str, tuple[Path | None, int | None, float | None]] = {
        "start": (folder / "start", 0, 0.0),
        "shipped": (None, None, None),
    }
    for place in snapshots:
        seconds = read_json(place / "PROVENANCE.json")["seconds"]
        places[place.name] = (place, int(place.name.removeprefix("step-")), seconds)
    if all(step != end["step"] for _, step, _ in places.values()):
        places["end"] = (folder / "head", end["step"], end["seconds"])
    for name, (head, step, seconds) in places.items():
        if all(writer.has(f"tau/{name}/{chosen}") for chosen in protocol.sets):
            continue
        with_head = pair_with(pair, head) if head else pair
        for chosen in protocol.sets:
            key = f"tau/{name}/{chosen}"
            if not writer.has(key):
                row = {"what": "tau", "head": name, "step": step, "seconds": seconds, "set": chosen}
                of_set = [item for item in items if item.set == chosen]
                counts = count_cycles(with_head, of_set, protocol.tree, protocol.new_tokens)
                writer.write(key, row | domain_of(chosen) | counts)
            yield


def _without_folders(summary: dict[str, Any]) -> dict[str, Any]:
    head = {name: value for name, value in summary["head"].items() if name != "folder"}
    return {**summary, "head": head}
