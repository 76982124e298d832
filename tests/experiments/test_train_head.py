"""10_train_head: the log of training and every question with every head, each once, and a killed run goes on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from eagle_repro.api import Pair, load_pair
from eagle_repro.experiments import train_head
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.session import Session
from eagle_repro.measure import bench, training
from eagle_repro.measure.records import Record, RecordError, partial_path


@pytest.fixture(scope="module")
def tiny() -> Pair:
    return load_pair("tiny", device="cpu")


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Protocol:
    """Two sets and a corpus and training of a second."""
    corpus, trained = train_head.SMALL
    few = replace(corpus, answer_tokens=600, positions=48, turn=4, rows=8)
    short = replace(trained, steps=4, batch_tokens=96, length=48, unrolled=2, log_every=2, snapshots=2)
    monkeypatch.setitem(train_head.FITS, "smoke", (few, short))
    settings = {"sets": ("chat", "russian"), "new_tokens": 8, "out": str(tmp_path)}
    return build_protocol({}, {"profile": "smoke"}, settings)


def measured(protocol: Protocol, pair: Pair) -> Record:
    return train_head.measure(Session(train_head.NAME, protocol, pair))


def test_steps_and_every_set_with_every_head_are_in_the_record_once(tiny: Pair, protocol: Protocol) -> None:
    record = measured(protocol, tiny)
    steps = ["step/2", "step/4", "fit"]
    on_the_way = ["start", "shipped", "step-000002", "step-000004"]
    taus = [f"tau/{head}/{name}" for head in on_the_way for name in ("chat", "russian")]
    texts = [f"{item}/eagle/{arm}/0" for arm in training.ARMS for item in ("chat/chat-00", "russian/russian-00")]
    assert [row["key"] for row in record.rows] == steps + texts + taus
    frame = training.taus(record)
    assert list(zip(frame["set"], frame["head"], strict=True)) == [
        (name, arm) for name in ("chat", "russian") for arm in training.ARMS
    ]
    assert (frame["tau"] >= 1).all()
    assert training.steps(record)["accuracy_2"].between(0, 1).all()
    assert training.fit(record)["corpus"]["answer_tokens"] >= 600
    way = training.on_the_way(record)
    assert list(way["group"]) == ["in-domain", "russian"] * 4
    assert list(way["step"].fillna(-1)) == [0, 0, 2, 2, 4, 4, -1, -1]
    assert list(way["minutes"].dropna()) == sorted(way["minutes"].dropna()) and way["minutes"].iloc[0] == 0
    shipped, last = (way[way["head"] == head].set_index("group")["tau"] for head in ("shipped", "step-000004"))
    by_set = frame.set_index(["set", "head"])["tau"]
    assert shipped["russian"] == by_set["russian", "shipped"] and last["russian"] == by_set["russian", "trained"]
    assert protocol.out not in str(record.rows)
    texts_of = {row["ids_sha256"] for row in record.rows if row["what"] == "text" and row["set"] == "chat"}
    assert len(texts_of) == 1  # a head changes how fast a text is written, never the text


def test_a_killed_run_goes_on_where_it_stopped(tiny: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train_head.write_text

    def dying(pair: Pair, way: object, item: object, tokens: int) -> object:
        if getattr(way, "variant", "") == "shipped":
            raise KeyboardInterrupt
        return whole(pair, way, item, tokens)  # type: ignore[arg-type]

    monkeypatch.setattr(train_head, "write_text", dying)
    with pytest.raises(KeyboardInterrupt):
        measured(protocol, tiny)
    session = Session(train_head.NAME, protocol, tiny)
    assert partial_path(session.path).exists() and len(session.partial_rows()) == 3 + 4
    monkeypatch.setattr(train_head, "write_text", whole)
    monkeypatch.setattr(train_head, "fit_head", lambda *_: pytest.fail("fitted again"))
    head = Path(protocol.out) / train_head.NAME / train_head.HEAD
    trained = head.read_bytes()
    head.write_bytes((head.parents[1] / "start" / "model.safetensors").read_bytes())
    with pytest.raises(RecordError, match="is another one than when 10_train_head was begun: start over"):
        measured(protocol, tiny)
    head.write_bytes(trained)
    assert len(measured(protocol, tiny).rows) == 3 + 6 + 8


def test_a_record_of_one_training_is_not_gone_on_with_or_shown_for_another(
    tiny: Pair, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "git_revision", lambda folder: "0" * 40)
    for seed, name in enumerate(("one", "other")):
        train_head.fit_head(tiny, replace(protocol, seed=seed), tmp_path / name)
    shutil.copytree(tmp_path / "one", tmp_path / "moved")

    def session(name: str | None) -> Session:
        return Session(train_head.NAME, replace(protocol, training=name and str(tmp_path / name)), tiny)

    whole = train_head.write_text
    monkeypatch.setattr(train_head, "write_text", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train_head.measure(session("one"))
    monkeypatch.setattr(train_head, "write_text", whole)
    for another in ("other", None):
        with pytest.raises(RecordError, match=r"begun under other conditions \(bench\.training\."):
            train_head.measure(session(another))
    record = train_head.measure(session("moved"))
    assert [session(name).fits(record) for name in ("one", "moved", "other", None)] == [True, True, False, False]


def test_a_training_that_train_has_finished_is_measured_as_it_is(
    tiny: Pair, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = measured(protocol, tiny)
    folder = tmp_path / "elsewhere"
    monkeypatch.undo()
    (tmp_path / train_head.NAME).rename(folder)
    there = replace(protocol, training=str(folder), out=str(tmp_path / "again"))
    record = measured(there, tiny)
    assert [row["key"] for row in record.rows] == [row["key"] for row in here.rows]
    assert training.taus(record).equals(training.taus(here))
    assert training.fit(record)["recipe"] == "general" and str(tmp_path) not in str(record.rows)
    (folder / "summary.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"training=elsewhere has no summary\.json: name the --out folder"):
        measured(replace(there, out=str(tmp_path / "third")), tiny)


def test_parts_of_two_trainings_are_no_finished_one(tiny: Pair, protocol: Protocol, tmp_path: Path) -> None:
    target = tiny.provenance["target"]
    folder = tmp_path / "done"
    train_head.fit_head(tiny, protocol, folder)
    train_head.require_finished(folder, target)
    with pytest.raises(ValueError, match=r"training=done: its summary\.json is of another target; name the --out"):
        train_head.require_finished(folder, target | {"parameters": 1})
    log = folder / "log.jsonl"
    whole = log.read_text(encoding="utf-8")
    for wrong in (whole.splitlines(keepends=True)[0], ""):  # as a training that was begun anew leaves it
        log.write_text(wrong, encoding="utf-8")
        with pytest.raises(ValueError, match=r"is of another log"):
            train_head.require_finished(folder, target)
    log.write_text(whole, encoding="utf-8")
    head = folder / train_head.HEAD
    head.write_bytes((folder / "start" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"is of another head"):
        train_head.require_finished(folder, target)
    head.unlink()
    with pytest.raises(FileNotFoundError, match=r"has no head/model\.safetensors"):
        train_head.require_finished(folder, target)


def test_quick_is_brief(tmp_path: Path) -> None:
    quick = build_protocol({}, {"profile": "quick"}, {"out": str(tmp_path)}).brief(1, 12)
    assert (quick.questions, quick.tau_questions, quick.new_tokens) == (1, 1, 12)
    full = build_protocol({}, {"profile": "full", "device": "cpu"}, {"out": str(tmp_path)})
    assert full.brief(1, 12) is full and full.tree == full.trees["default"] and quick.tree == quick.trees["small"]
