"""07_domain: every head that is here on every question once, the others with a reason, and a killed run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_repro.api import Pair
from eagle_repro.experiments import checked, published, tau
from eagle_repro.experiments import domain as experiment
from eagle_repro.experiments.protocol import build_protocol
from eagle_repro.experiments.rows import Item
from eagle_repro.experiments.session import Session
from eagle_repro.measure import domain
from eagle_repro.measure.records import Record, RecordError, completeness
from eagle_repro.training.heads import save_head

TOKENS = 8
SAID = {
    "corpus": {"recipe": "code", "counts": {"answer_tokens": 1234}},
    "trained": {"steps": 7, "seconds": 90.0},
}


@pytest.fixture(scope="module")
def heads(trained: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two heads as `train` leaves them and as folders: one hears the target, the other not; a third does not fit."""
    folder = tmp_path_factory.mktemp("heads")
    save_head(trained.head, folder / "code" / "head", SAID)
    kept = trained.head.fc.weight.detach().clone()
    torch.nn.init.zeros_(trained.head.fc.weight)
    save_head(trained.head, folder / "no-code", {})
    with torch.no_grad():
        trained.head.fc.weight.copy_(kept)
    save_head(trained.head, folder / "russian-mix", {})
    (folder / "russian-mix" / "model.safetensors").write_bytes(b"torn")
    return folder


def session(out: Path, pair: Pair, heads: Path | None, **settings: Any) -> Session:
    small = {"sets": ("chat", "russian"), "questions": 1, "tau_questions": 3, "new_tokens": TOKENS, "out": str(out)}
    named = {"heads": str(heads)} if heads else {}
    return Session(experiment.NAME, build_protocol({}, {"profile": "smoke"}, small | named | settings), pair)


@pytest.fixture(scope="module")
def record(trained: Pair, heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return experiment.measure(session(tmp_path_factory.mktemp("record"), trained, heads))


def test_every_head_that_is_here_answers_every_question_once(record: Record) -> None:
    assert domain.present(record) == ["general", "code", "no-code"]
    counted = domain.counts(record)
    assert len(counted) == 3 * 2 * 3 and not counted.duplicated(["head", "set", "question"]).any()
    texts = record.frame()[record.frame()["what"] == "text"]
    assert list(texts["method"].value_counts().sort_index()) == [3 * 2, 2]
    assert texts["same_as_plain"].all()  # a head changes how fast a text is written, never the text
    assert (counted["emitted"] >= TOKENS - 1).all() and (counted["cycles"] >= 1).all()


def test_a_head_that_hears_nothing_of_the_target_needs_more_cycles(record: Record) -> None:
    frame = domain.differences(record)
    row = frame[(frame["left"] == "code") & (frame["group"] == "all")].iloc[0]
    assert row["tau_left"] > row["tau_right"] >= 1
    own = domain.by_group(record).set_index(["head", "group"])["tau"]
    assert own["general", "all"] == own["code", "all"]  # the same weights under two names


def test_a_head_says_what_it_was_trained_on_and_why_it_is_not_here(record: Record, heads: Path) -> None:
    rows = domain.heads(record).set_index("head")
    assert list(rows.index) == list(domain.HEADS)
    known = rows.loc["code", ["recipe", "answer_tokens", "steps", "minutes", "draft_vocabulary"]]
    assert list(known) == ["code", 1234, 7, 1.5, 208] and len(rows.loc["code", "sha256"]) == 64
    assert rows.loc["general", "recipe"] == "its own"
    assert not rows.loc["russian-mix", "here"] and rows.loc["russian-mix", "reason"].startswith(
        "cannot read the head in russian-mix"
    )
    assert str(heads.parent) not in str(record.rows)


def test_a_head_that_is_nowhere_is_looked_for_aloud(heads: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no general head for tiny among the committed ones nor in heads"):
        experiment.head_folder("tiny", "general", str(heads))
    assert experiment.head_folder("smollm2-135m", "code", None).name == "smollm2-135m-code"


def test_a_run_that_was_cut_off_goes_on_and_knows_its_heads(
    trained: Pair, heads: Path, record: Record, tmp_path: Path
) -> None:
    def stop_at_the_counts(items: Any, label: str = "", total: int | None = None) -> Any:
        for number, item in enumerate(items):
            if label == "cycles" and number == 2:
                raise KeyboardInterrupt
            yield item

    begun = session(tmp_path, trained, heads)
    with pytest.raises(KeyboardInterrupt):
        experiment.measure(begun, progress=stop_at_the_counts)
    assert completeness(begun.path) == "partial"
    with pytest.raises(RecordError, match="head code is another one than when 07_domain was begun"):
        experiment.measure(session(tmp_path, trained, None))
    done = experiment.measure(session(tmp_path, trained, heads))
    assert done.complete and list(done.frame()["key"]) == list(record.frame()["key"])


def test_cycles_counted_side_by_side_are_those_of_each_text_alone(
    trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [Item("chat", str(size), checked.PROMPT[:size]) for size in (15, 9, 15)]
    alone = tau.count_cycles(trained, items, checked.SHAPE, TOKENS)
    batches: list[int] = []
    whole = tau.generate

    def on_a_gpu(pair: Pair, prompts: Any, **options: Any) -> Any:
        batches.append(len(prompts))
        return whole(replace(pair, device="cpu"), prompts, **options)

    monkeypatch.setattr(tau, "generate", on_a_gpu)
    monkeypatch.setattr(tau, "SIDE_BY_SIDE", 2)
    monkeypatch.setattr(trained, "device", "cuda:0")
    assert tau.count_cycles(trained, items, checked.SHAPE, TOKENS) == alone
    assert batches == [2, 1] and alone["question"] == ["15", "9", "15"]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_without_a_gpu_a_published_record_with_more_heads_is_shown(
    record: Record, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    here = {**record.header, "bench": {**record.header["bench"], "device": device}}
    own = Record(here, record.rows[:4] + record.rows[5:], record.footer, record.path)
    far = {**here, "bench": {**here["bench"], "device": "cuda:0"}}
    more = [{**row, "here": True} if row.get("what") == "head" else row for row in record.rows]
    other = Record(far, more, record.footer, record.path)
    monkeypatch.setattr(published, "published", lambda name: [other, own])
    assert experiment.shown(own) is (other if device == "cpu" else own)
    monkeypatch.setattr(published, "published", lambda name: [])
    assert experiment.shown(own) is own
