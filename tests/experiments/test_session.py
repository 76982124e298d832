"""A session opens what its cells say, shows records from elsewhere, and closes only what is complete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_repro.api import Pair
from eagle_repro.experiments import session as sessions
from eagle_repro.experiments.memory import OutOfMemory
from eagle_repro.experiments.session import Session, close, open_session
from eagle_repro.measure import bench
from eagle_repro.measure.records import RecordError, RecordWriter
from eagle_repro.sources.paths import data_folder


@pytest.fixture(autouse=True)
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout whose revision says what was measured."""
    monkeypatch.setattr(bench, "git_revision", lambda folder: "0" * 40)


def opened(out: Path, **settings: Any) -> Session:
    return open_session("02_speedup", {"PAIR": "tiny"}, {"profile": "smoke"}, {"out": str(out), **settings})


def written(session: Session, sheet: dict[str, Any], *, complete: bool = True) -> None:
    with RecordWriter(session.path, bench=sheet, protocol=session.protocol.as_record()) as writer:
        writer.write("a", {"x": 1})
        if complete:
            writer.complete()


def test_opening_loads_and_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sessions, "load_pair", lambda *_, **__: pytest.fail("the pair was loaded"))
    session = opened(tmp_path)
    assert session.path == tmp_path / "02_speedup.jsonl" and session.records_from is None
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_settings_say_where_they_come_from_and_name_no_folder(tmp_path: Path) -> None:
    settings = opened(tmp_path, questions=2).settings.set_index("name")
    assert settings.loc["questions", "value"] == 2 and settings.loc["questions", "from"] == "OVERRIDES"
    assert settings.loc["pair", "from"] == "MODELS"
    assert str(tmp_path) not in settings.to_string()


def test_the_pair_is_loaded_once_and_the_header_is_its_bench(tmp_path: Path) -> None:
    session = opened(tmp_path)
    assert session.pair is session.pair
    with session.writer() as writer:
        header = writer.header
    assert header["bench"]["pair"]["head"]["parameters"] == 70_912
    assert header["bench"]["question_sets"].keys() == set(session.protocol.sets)
    assert header["protocol"]["new_tokens"] == 16
    assert str(tmp_path) not in json.dumps(header)


def test_a_record_that_cannot_be_written_is_refused_before_the_pair_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "load_pair", lambda *_, **__: pytest.fail("the pair was loaded"))
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot write"):
        _ = opened(tmp_path / "file" / "out").pair
    locked = opened(tmp_path / "locked")
    with (
        RecordWriter(locked.path, bench={}, protocol={}),
        pytest.raises(RecordError, match="is being written by another process"),
        locked.writer(),
    ):
        pass


def test_the_look_whether_a_record_can_be_written_leaves_none_and_a_writer_may_load_again(
    trained: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "load_pair", lambda *_, **__: trained)
    session = opened(tmp_path)
    assert session.pair is trained and list(tmp_path.iterdir()) == []
    with session.writer():
        session.release()
        assert session.pair is trained


def test_loading_shows_no_bar_and_leaves_the_bars_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    sessions.load_quietly("tiny", device="cpu")
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match="unknown pair"):
        sessions.load_quietly("tinny")
    assert logging.is_progress_bar_enabled() is before


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["cuda", "cpu", "python"])
def test_out_of_memory_names_the_next_smaller_setting_and_keeps_what_was_measured(
    error: Exception, trained: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session("02_speedup", opened(tmp_path).protocol, trained)
    said = "while running tiny at max_length=2048: take max_length=1024 "
    with pytest.raises(OutOfMemory, match=said) as caught, session.writer() as writer:
        writer.write("a", {"x": 1})
        raise error
    assert "\n" not in str(caught.value) and [row["key"] for row in session.partial_rows()] == ["a"]

    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(sessions, "load_pair", full)
    with pytest.raises(OutOfMemory, match="while loading tiny"):
        sessions.open_pair(session.protocol)


def test_another_error_passes_a_session_as_it_is(trained: Pair, tmp_path: Path) -> None:
    session = Session("02_speedup", opened(tmp_path).protocol, trained)
    with pytest.raises(RuntimeError, match="^shapes do not match$"), session.writer():
        raise RuntimeError("shapes do not match")


def test_closing_prints_the_mark_of_a_complete_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = opened(tmp_path)
    written(session, session.bench())
    close(session)
    assert capsys.readouterr().out.startswith("02_speedup: complete, 1 runs, measured 20")


def test_closing_refuses_what_is_missing_or_cut_off(tmp_path: Path) -> None:
    session = opened(tmp_path)
    with pytest.raises(FileNotFoundError, match="measure it first"):
        close(session)
    written(session, session.bench(), complete=False)
    with pytest.raises(FileNotFoundError, match="unfinished 02_speedup.jsonl.partial"):
        close(session)
    session.path.write_bytes(session.path.with_name("02_speedup.jsonl.partial").read_bytes())
    with pytest.raises(RecordError, match="completeness line"):
        close(session)


def test_a_newer_run_that_was_begun_is_not_closed_by_the_older_record(tmp_path: Path) -> None:
    session = opened(tmp_path)
    written(session, session.bench())
    written(session, session.bench(), complete=False)
    with pytest.raises(RecordError, match="partial"):
        close(session)


def test_a_record_fits_its_own_conditions_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(tmp_path)
    written(session, session.bench() | {"pair": {"name": "tiny"}})
    record = session.record()
    assert session.fits(record)
    assert not opened(tmp_path, seed=1).fits(record)
    monkeypatch.setattr(bench, "git_revision", lambda folder: "1" * 40)
    assert not session.fits(record)


def test_weights_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Skipped as complete, or gone on with, another head's numbers would be this one's."""
    tiny = data_folder() / "pairs" / "tiny"
    for name in ("one", "other"):
        shutil.copytree(tiny / "head", tmp_path / name / "head")
    other = load_file(tmp_path / "other" / "head" / "model.safetensors")
    save_file(other | {"norm.weight": 2 * other["norm.weight"]}, tmp_path / "other" / "head" / "model.safetensors")

    def session(name: str) -> Session:
        weights = {"TARGET": str(tiny / "target"), "HEAD": str(tmp_path / name / "head")}
        return open_session("02_speedup", weights, {"profile": "smoke"}, {"out": str(tmp_path)})

    with session("one").writer() as writer:
        writer.write("a", {"x": 1})
    with pytest.raises(RecordError, match=r"bench\.pair\.head\.sha256 was"), session("other").writer():
        pass
    with session("one").writer() as writer:
        writer.complete()
    assert session("one").fits(session("one").record())
    assert not session("other").fits(session("one").record())


def test_changes_that_are_not_committed_never_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "git_revision", lambda folder: "0" * 40 + "+dirty")
    session = opened(tmp_path)
    written(session, session.bench())
    assert not session.fits(session.record())


def test_records_from_elsewhere_are_shown_with_where_they_are_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "h200-graph-tiny"
    with pytest.raises(FileNotFoundError, match="is no folder with records"):
        opened(tmp_path, records=str(folder))
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="no record 02_speedup.jsonl"):
        opened(tmp_path, records=str(folder))
    elsewhere = opened(folder)
    written(elsewhere, elsewhere.bench())
    session = opened(tmp_path, records=str(folder))
    assert session.records_from == "measured elsewhere: h200-graph-tiny"
    assert session.record().path == folder / "02_speedup.jsonl"
    close(session)
    assert "complete" in capsys.readouterr().out
