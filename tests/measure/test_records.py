"""A record holds what was measured, and a run that was killed, starved or mixed up never looks finished."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle_repro.measure import locked
from eagle_repro.measure.records import RecordError, RecordWriter, completeness, partial_path, read_record

SHEET = {"card": "T4", "dtype": "float16", "now": {"clocks": {"sm_mhz": 1590}, "utc": "2026-01-01"}}
PROTOCOL = {"max_new_tokens": 16, "shape": {"depth": 7}}


def writer(path: Path, **changed: Any) -> RecordWriter:
    return RecordWriter(path, **({"bench": SHEET, "protocol": PROTOCOL} | changed))


def begin(path: Path, *keys: str) -> Path:
    """A partial record with these runs, two cycles each."""
    with writer(path) as record:
        for key in keys:
            record.write(key, {"tau": 2.5}, [{"accepted": 1}, {"accepted": 2}])
    return partial_path(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "02_speedup.jsonl"


# What a finished record is


def test_a_finished_record_reads_back_as_it_was_written(path: Path) -> None:
    with writer(path) as record:
        record.write("chat/0/eagle", {"tau": 2.5, "text": "Привет, мир"}, [{"accepted": 1}, {"accepted": 2}])
        record.write("chat/0/plain", {"tau": 1.0, "text": "\u2028 \ud800"})
        assert record.complete(clocks_after={"sm_mhz": 900}) == path
    read = read_record(path)
    assert read.complete and completeness(path) == "complete"
    assert read.header["name"] == "02_speedup" and read.header["schema"] == 1
    assert read.header["bench"] == SHEET and read.header["protocol"] == PROTOCOL
    assert read.footer == {"kind": "complete", "lines": 5, "clocks_after": {"sm_mhz": 900}}
    assert list(read.frame().key) == ["chat/0/eagle", "chat/0/plain"]
    assert list(read.frame().text) == ["Привет, мир", "\u2028 \ud800"]
    assert list(read.frame("cycle").accepted) == [1, 2] and "kind" not in read.frame("cycle")
    assert not partial_path(path).exists()


def test_a_record_without_cycles_has_an_empty_table_of_them(path: Path) -> None:
    with writer(path) as record:
        record.complete()
    assert read_record(path).frame("cycle").empty and read_record(path).frame().empty


def test_the_header_is_the_first_line_and_the_mark_the_last(path: Path) -> None:
    begin(path, "a")
    with writer(path) as record:
        record.complete()
    kinds = [json.loads(line)["kind"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert kinds == ["header", "cycle", "cycle", "run", "complete"]


def test_leaving_without_the_mark_leaves_a_partial(path: Path) -> None:
    partial = begin(path, "a")
    assert completeness(path) == "partial" and not path.exists()
    read = read_record(partial)
    assert not read.complete and read.footer is None and list(read.frame().key) == ["a"]
    with pytest.raises(FileNotFoundError, match=r"02_speedup\.jsonl\.partial is there"):
        read_record(path)


def test_a_run_that_raises_leaves_a_partial(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writer(path) as record:
        record.write("a", {"tau": 1 / 1})
        record.write("b", {"tau": 1 / 0})
    assert list(read_record(partial_path(path)).frame().key) == ["a"]


def test_no_file_is_a_missing_record(path: Path) -> None:
    assert completeness(path) == "missing"
    with pytest.raises(FileNotFoundError, match="measure it first"):
        read_record(path)


def test_a_partial_renamed_by_hand_is_not_complete(path: Path) -> None:
    begin(path, "a").rename(path)
    assert completeness(path) == "partial" and not read_record(path).complete


def test_the_mark_under_the_partial_name_is_not_complete(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(locked.os, "replace", failing(errno.EIO))
        with pytest.raises(RecordError, match="cannot write"), writer(path) as record:
            record.write("a", {"tau": 1.0})
            record.complete()
    assert completeness(path) == "partial"
    read = read_record(partial_path(path))
    assert read.footer is not None and not read.complete
    with writer(path) as record:
        assert record.has("a")
        record.complete()
    assert completeness(path) == "complete"
    assert path.read_bytes().count(b'"kind": "complete"') == 1


def test_a_new_run_beside_a_finished_record_is_partial_until_it_ends(path: Path) -> None:
    with writer(path) as record:
        record.write("a", {"tau": 1.0})
        record.complete()
    begin(path, "a")
    assert completeness(path) == "partial"
    assert read_record(path).complete  # the earlier result is still there to read


# Resuming


def test_a_resumed_run_skips_what_is_there(path: Path) -> None:
    begin(path, "a", "b")
    with writer(path) as record:
        assert record.has("a") and record.has("b") and not record.has("c")
        record.write("c", {"tau": 1.0})
        record.complete()
    assert list(read_record(path).frame().key) == ["a", "b", "c"]


def test_a_key_is_written_once(path: Path) -> None:
    begin(path, "a")
    with writer(path) as record, pytest.raises(ValueError, match="run a is in"):
        record.write("a", {"tau": 1.0})


def test_clocks_and_dates_may_change_between_sessions(path: Path) -> None:
    begin(path, "a")
    with writer(path, bench=SHEET | {"now": {"clocks": {"sm_mhz": 900}}}) as record:
        assert record.has("a")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"bench": SHEET | {"dtype": "float32"}}, r"bench\.dtype was float16, is float32"),
        ({"bench": SHEET | {"stack": "graph"}}, r"bench\.stack was None, is graph"),
        ({"protocol": PROTOCOL | {"shape": {"depth": 2}}}, r"protocol\.shape\.depth was 7, is 2"),
    ],
)
def test_other_conditions_are_refused_by_name(path: Path, changed: dict[str, Any], named: str) -> None:
    partial = begin(path, "a")
    before = partial.read_bytes()
    with pytest.raises(RecordError, match=named) as caught, writer(path, **changed):
        pass
    assert "\n" not in str(caught.value) and "start over (--again)" in str(caught.value)
    assert partial.read_bytes() == before
    with writer(path) as record:  # the refusal has let the file go
        assert record.has("a")


def test_starting_over_keeps_the_old_file_under_another_name(path: Path) -> None:
    old = begin(path, "a").read_bytes()
    with writer(path, protocol={"max_new_tokens": 8}, start_over=True) as record:
        assert not record.has("a")
    with writer(path, start_over=True) as record:
        record.complete()
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["02_speedup.jsonl", "02_speedup.jsonl.partial.old-1", "02_speedup.jsonl.partial.old-2"]
    assert (path.parent / names[1]).read_bytes() == old


def test_a_finished_record_of_other_conditions_is_kept_when_a_new_one_ends(path: Path) -> None:
    for tokens in (8, 16, 16):
        with writer(path, protocol={"max_new_tokens": tokens}) as record:
            record.complete()
    assert read_record(path).header["protocol"] == {"max_new_tokens": 16}
    aside = path.parent / "02_speedup.jsonl.old-1"
    assert json.loads(aside.read_text(encoding="utf-8").splitlines()[0])["protocol"] == {"max_new_tokens": 8}
    assert len(list(path.parent.iterdir())) == 2


# Kills and damage


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_torn_by_a_kill_is_dropped_at_resume(path: Path, cut: int) -> None:
    partial = begin(path, "a", "b")
    partial.write_bytes(partial.read_bytes()[:-cut])
    assert list(read_record(partial).frame().key) == ["a"]
    with writer(path) as record:
        assert record.has("a") and not record.has("b")
        record.write("b", {"tau": 9.0})
        record.complete()
    read = read_record(path)
    assert list(read.frame().tau) == [2.5, 9.0] and len(read.frame("cycle")) == 2


def test_cycles_whose_run_never_ended_are_dropped(path: Path) -> None:
    partial = begin(path, "a", "b")
    lines = partial.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join(lines[:-1]))  # two whole cycle lines of b, and no b
    assert len(read_record(partial).frame("cycle")) == 2
    with writer(path) as record:
        record.complete()
    assert len(read_record(path).frame("cycle")) == 2


def test_a_torn_header_begins_anew(path: Path) -> None:
    partial = begin(path)
    partial.write_bytes(partial.read_bytes()[:20])
    with pytest.raises(RecordError, match="no header line"):
        read_record(partial)
    with writer(path) as record:
        record.complete()
    assert completeness(path) == "complete"


def test_a_killed_process_leaves_a_record_that_goes_on(path: Path) -> None:
    script = f"""
        import os, pathlib, signal
        from eagle_repro.measure.records import RecordWriter
        with RecordWriter(pathlib.Path({str(path)!r}), bench={SHEET!r}, protocol={PROTOCOL!r}) as record:
            record.write("a", {{"tau": 1.0}})
            os.write(record._file._fd, b'{{"kind": "run", "key": "b", "ta')
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    assert completeness(path) == "partial"
    with writer(path) as record:
        assert record.has("a") and not record.has("b")
        record.complete()
    assert list(read_record(path).frame().key) == ["a"]


def test_a_line_lost_from_the_middle_is_noticed(path: Path) -> None:
    begin(path, "a", "b")
    with writer(path) as record:
        record.complete()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(RecordError, match="counts 7 lines and 6 are there"):
        read_record(path)
    assert completeness(path) == "partial"


@pytest.mark.parametrize("bad", [b"garbage\n", b'{"kind": "run"}\n', b'{"kind": "run", "key": "x", "t": NaN}\n'])
def test_damage_in_the_middle_names_the_line(path: Path, bad: bytes) -> None:
    partial = begin(path, "a")
    lines = partial.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join([*lines, bad, lines[-1]]))
    with pytest.raises(RecordError, match=r"is damaged \(line 5\)"):
        read_record(partial)
    with pytest.raises(RecordError, match=r"is damaged \(line 5\)"), writer(path):
        pass


def damage(path: Path, line: int, **changed: Any) -> None:
    """Put other values into one line of a record, "-" removing a field."""
    lines = [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()]
    lines[line - 1] = {name: value for name, value in (lines[line - 1] | changed).items() if value != "-"}
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "changed", "said"),
    [
        (1, {"bench": None}, "its bench is missing"),
        (1, {"bench": []}, r"its bench is \[\]"),
        (1, {"protocol": None}, "its protocol is missing"),
        (1, {"hash": 7}, "its hash is 7"),
        (1, {"bench": SHEET | {"pair": "tiny"}}, "its bench.pair is 'tiny'"),
        (1, {"bench": SHEET | {"pair": {"head": "tiny"}}}, "its bench.pair.head is 'tiny'"),
        (1, {"bench": SHEET | {"now": 3}}, "its bench.now is 3"),
        (1, {"bench": SHEET | {"card": ["T4"]}}, r"its bench.card is \['T4'\]"),
        (2, {"draft_s": "soon"}, "draft_s is 'soon', and a number"),
        (3, {"key": 5}, "its key is 5"),
        (3, {"decode_s": "-"}, "decode_s is missing, and a number"),
        (3, {"decode_s": "1.5"}, "decode_s is '1.5', and a number"),
        (3, {"decode_s": -1.5}, "decode_s is -1.5, and a number of at least 0"),
        (3, {"prefill_s": True}, "prefill_s is True, and a number"),
        (3, {"tokens": None}, "tokens is missing, and a number"),
        (3, {"depth": "7"}, "its depth is '7'"),
        (3, {"accepted": "1, 2"}, "its accepted is '1, 2'"),
        (3, {"method": "eagle"}, "its accepted or emitted is missing"),
        (3, {"same_as_plain": "yes"}, "its same_as_plain is 'yes'"),
        (3, {"typical_gap": "wide"}, "its typical_gap is 'wide'"),
        (3, {"tokens": 9.5}, "its tokens is 9.5"),
        (4, {"what": "recording"}, "its set is missing"),
        (4, {"seconds": None}, "seconds is missing, and a number"),
        (4, {"key": "a"}, "a second run with key a"),
        (5, {"peak_gb_s": "fast"}, "peak_gb_s is 'fast', and a number"),
    ],
)
def test_what_no_measurement_can_have_written_is_damage(path: Path, line: int, changed: Any, said: str) -> None:
    with writer(path) as record:
        record.write("a", {"method": "plain", "tokens": 9, "prefill_s": 0.1, "decode_s": 1.5}, [{"draft_s": 0.1}])
        record.write("b", {"phase": "verify", "seconds": 0.5})
        record.complete(peak_gb_s=4800)
    assert read_record(path).complete
    damage(path, line, **changed)
    with pytest.raises(RecordError, match=rf"^02_speedup\.jsonl is damaged \(line {line}\), {said}.*: start over"):
        read_record(path)


def test_a_record_under_another_name_is_refused(path: Path) -> None:
    with writer(path) as record:
        record.complete()
    moved = path.rename(path.with_name("04_chain_vs_tree.jsonl"))
    with pytest.raises(RecordError, match="is a record of 02_speedup"):
        read_record(moved)


@pytest.mark.parametrize("data", [b"", b"hello\n", b"\xff\xfe\x00\n", b"[1, 2]\n", b'{"kind": "run", "key": "a"}\n'])
def test_something_else_is_not_a_record(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(RecordError, match="is not a record"):
        read_record(path)
    assert completeness(path) == "partial"


def test_two_records_glued_together_are_damaged(path: Path) -> None:
    partial = begin(path, "a")
    partial.write_bytes(partial.read_bytes() * 2)
    with pytest.raises(RecordError, match="is damaged"):
        read_record(partial)


def test_a_newer_schema_is_refused(path: Path) -> None:
    partial = begin(path, "a")
    partial.write_bytes(partial.read_bytes().replace(b'"schema": 1', b'"schema": 2', 1))
    with pytest.raises(RecordError, match="has schema 2"):
        read_record(partial)


# Two writers, bad folders, full disks


def hold(path: Path, ready: Any, release: Any) -> None:
    with writer(path) as record:
        record.write("a", {"tau": 1.0})
        ready.set()
        release.wait(30)
        record.complete()


def test_two_writers_in_two_processes_are_refused(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(path, ready, release))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(RecordError, match="written by another process"), writer(path):
            pass
        with pytest.raises(RecordError, match="written by another process"), writer(path, start_over=True):
            pass
        assert list(read_record(partial_path(path)).frame().key) == ["a"]  # a reader is welcome
    finally:
        release.set()
        other.join(60)
    assert other.exitcode == 0 and completeness(path) == "complete"


def test_two_writers_in_one_process_are_refused(path: Path) -> None:
    with writer(path), pytest.raises(RecordError, match="another process"), writer(path):
        pass
    with writer(path) as record:  # the refused one has not taken the lock with it
        record.complete()


def test_a_file_renamed_between_open_and_lock_is_not_written_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial, flock, moved = begin(path, "a"), locked.fcntl.flock, path.parent / "moved"

    def late(fd: int, how: int) -> None:
        if not moved.exists():
            partial.rename(moved)
        flock(fd, how)

    before = partial.read_bytes()
    monkeypatch.setattr(locked.fcntl, "flock", late)
    with writer(path) as record:
        record.write("b", {"tau": 1.0})
    assert moved.read_bytes() == before
    assert list(read_record(partial).frame().key) == ["b"]


def failing(code: int, after: int = 0) -> Callable[..., Any]:
    """A system call that works `after` times and then fails with this error."""
    left = [after]
    real = os.write

    def call(*arguments: Any, **_: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    return call


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_one_clear_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path.parent.mkdir()
    monkeypatch.setattr(locked.os, "open", failing(code))
    with pytest.raises(RecordError, match="cannot write 02_speedup") as caught, writer(path):
        pass
    assert os.strerror(code) in str(caught.value) and "another output folder" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o555)
    with pytest.raises(RecordError, match="cannot write"), writer(path):
        pass


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(RecordError, match="cannot write") as caught, writer(tmp_path / "out" / "a.jsonl"):
        pass
    assert "another output folder" in str(caught.value) and "free some space" not in str(caught.value)


def half_then_full() -> Callable[[int, Any], int]:
    """A write that takes ten bytes and then finds the disk full."""
    real, calls = os.write, []

    def write(fd: int, data: Any) -> int:
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[:10])

    return write


def test_a_full_disk_leaves_whole_lines_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writer(path) as record:
        record.write("a", {"tau": 1.0})
        before = partial_path(path).read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(locked.os, "write", half_then_full())
            with pytest.raises(RecordError, match="No space left on device.*free some space"):
                record.write("b", {"tau": 2.0}, [{"accepted": 1}] * 50)
        assert partial_path(path).read_bytes() == before and not record.has("b")
        record.write("b", {"tau": 3.0})  # space is back
        record.complete()
    assert list(read_record(path).frame().tau) == [1.0, 3.0]


def test_a_disk_that_is_full_at_the_end_leaves_a_partial(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writer(path) as record:
        record.write("a", {"tau": 1.0})
        monkeypatch.setattr(locked.os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(RecordError, match="No space"):
            record.complete()
    assert completeness(path) == "partial" and not path.exists()
    assert read_record(partial_path(path)).footer is None


def test_short_writes_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(locked.os, "write", lambda fd, data: real(fd, data[:7]))
    begin(path, "a")
    assert list(read_record(partial_path(path)).frame().key) == ["a"]


def test_a_row_is_on_the_disk_before_the_next_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(locked.os, "fsync", synced.append)
    with writer(path) as record:
        for number in range(3):
            before = len(synced)
            record.write(str(number), {"tau": 1.0})
            assert len(synced) == before + 1
            assert f'"key": "{number}"'.encode() in partial_path(path).read_bytes()


# What a row may hold


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_a_number_that_is_not_finite_is_never_a_record(path: Path, bad: float) -> None:
    with writer(path) as record:
        for row, name in (({"tau": bad}, r"run\.tau"), ({"a": {"b": [1.0, bad]}}, r"run\.a\.b\[1\]")):
            with pytest.raises(ValueError, match=name + ".*not finite"):
                record.write("x", row)
        with pytest.raises(ValueError, match=r"cycle\.draft_s"):
            record.write("x", {}, [{"draft_s": bad}])
        with pytest.raises(ValueError, match="footer"):
            record.complete(tau=bad)
        assert not record.has("x")
    assert read_record(partial_path(path)).rows == []
    with pytest.raises(ValueError, match=r"protocol\.t"):
        writer(path, protocol={"t": bad})


@pytest.mark.parametrize("bad", [Path("x"), {1, 2}, b"bytes", np.zeros(3)])
def test_what_json_cannot_hold_is_refused_by_name(path: Path, bad: Any) -> None:
    with writer(path) as record, pytest.raises(ValueError, match=rf"run\.value is of type {type(bad).__name__}"):
        record.write("x", {"value": bad})


def test_numpy_scalars_and_tuples_become_plain(path: Path) -> None:
    with writer(path) as record:
        record.write("x", {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": (1, 2)})
    assert read_record(partial_path(path)).rows == [
        {"kind": "run", "key": "x", "a": 0.5, "b": 3, "c": True, "d": [1, 2]}
    ]


def test_a_row_cannot_carry_another_kind_or_key(path: Path) -> None:
    with writer(path) as record:
        for row in ({"kind": "complete"}, {"key": "y"}):
            with pytest.raises(ValueError, match="another kind or key"):
                record.write("x", row)
        record.write("x", {"kind": "run", "key": "x", "tau": 1.0})


def test_a_record_must_be_named_jsonl(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.jsonl"):
        writer(tmp_path / "a.json")


def test_a_writer_is_used_inside_its_with_block_only(path: Path) -> None:
    record = writer(path)
    with pytest.raises(RecordError, match="not open"):
        record.write("a", {})
    with record:
        pass
    with pytest.raises(RecordError, match="closed"):
        record.write("a", {})


def test_text_is_utf8_whatever_the_locale(path: Path) -> None:
    script = f"""
        import pathlib
        from eagle_repro.measure.records import RecordWriter, read_record
        path = pathlib.Path({str(path)!r})
        with RecordWriter(path, bench={{}}, protocol={{"set": "русский"}}) as record:
            record.write("a", {{"text": "Ёлка"}})
            record.complete()
        assert read_record(path).rows[0]["text"] == "Ёлка"
    """
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    root = Path(__file__).parents[2]
    file = path.parent / "script.py"
    file.parent.mkdir()
    file.write_text(textwrap.dedent(script), encoding="utf-8")
    environment = os.environ | plain | {"PYTHONPATH": str(root)}
    subprocess.run([sys.executable, str(file)], env=environment, check=True)
    assert "Ёлка".encode() in path.read_bytes()
    assert read_record(path).header["protocol"] == {"set": "русский"}


def test_reading_records_needs_no_torch() -> None:
    script = (
        "import sys, eagle_repro.measure.records, eagle_repro.measure.stats, eagle_repro.measure.cost;"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True)
