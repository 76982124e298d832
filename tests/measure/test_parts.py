"""Parts of a record become the file that one process would have left, or nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from eagle_repro.measure.parts import deal, merge
from eagle_repro.measure.records import RecordError, RecordWriter, completeness, partial_path, read_record


def part(path: Path, keys: Sequence[str], *, complete: bool = True, protocol: int = 1) -> Path:
    with RecordWriter(path, bench={"card": "x", "now": {"utc": "t"}}, protocol={"tokens": protocol}) as writer:
        for key in keys:
            if not writer.has(key):
                writer.write(key, {"order": int(key)}, [{"cycle": key}])
        return writer.complete(clocks_after=len(keys)) if complete else partial_path(path)


def merged(record: Path, *parts: Path) -> list[str]:
    merge(parts, record, lambda row: row["order"], processes=2)
    return [f"{row['kind']} {row['key']}" for row in read_record(partial_path(record)).rows]


def test_parts_and_what_was_there_are_sorted_each_run_once_behind_its_cycles(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    part(record, ["2"], complete=False)
    found = merged(
        record,
        part(tmp_path / "a" / "r.jsonl", ["1", "3"]),
        part(tmp_path / "b" / "r.jsonl", ["2", "0"], complete=False),
    )
    assert found == [f"{kind} {key}" for key in "0123" for kind in ("cycle", "run")]
    header = read_record(partial_path(record)).header
    now = {"utc": "t", "processes": 2, "after": {"clocks_after": 2}}
    assert header["name"] == "r" and header["bench"]["now"] == now
    assert not list(tmp_path.glob("*/r.jsonl*")), "parts stay behind"
    assert part(record, "0123") == record and completeness(record) == "complete"
    assert (read_record(record).footer or {})["clocks_after"] == 2, "clocks of an idle card stand for those after work"


def test_who_adds_to_what_others_measured_says_what_is_after_it(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    merged(record, part(tmp_path / "a" / "r.jsonl", "01"))
    assert (read_record(part(record, "012")).footer or {})["clocks_after"] == 3


def test_parts_of_other_conditions_are_refused_by_name_and_kept(tmp_path: Path) -> None:
    parts = [part(tmp_path / name / "r.jsonl", ["1"], protocol=number) for number, name in enumerate("ab")]
    with pytest.raises(RecordError, match=r"are of different conditions \(protocol.tokens was 0, is 1\).*--again"):
        merge(parts, tmp_path / "r.jsonl", lambda row: 0)
    assert all(path.exists() for path in parts)


def test_a_part_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "a" / "r.jsonl", bench={}, protocol={}) as writer:
        with pytest.raises(RecordError, match="being written by another process"):
            merge([writer.partial], tmp_path / "r.jsonl", lambda row: 0)
        writer.write("1", {})
        writer.complete()


def test_a_merge_that_is_cut_off_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, only = tmp_path / "r.jsonl", part(tmp_path / "a" / "r.jsonl", ["1"])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            merged(record, only)
    Path(f"{partial_path(record)}.new").write_text("torn")
    assert merged(record, only) == ["cycle 1", "run 1"]


def test_nothing_to_join_leaves_nothing(tmp_path: Path) -> None:
    merge([], tmp_path / "r.jsonl", lambda row: 0)
    (tmp_path / "a.partial").touch()
    merge([tmp_path / "a.partial"], tmp_path / "r.jsonl", lambda row: 0)
    assert not partial_path(tmp_path / "r.jsonl").exists()
    deal(tmp_path / "r.jsonl", {tmp_path / "a" / "r.jsonl": lambda key: True})
    assert not (tmp_path / "a").exists()


def test_each_process_is_dealt_its_own_runs_and_goes_on_with_them(tmp_path: Path) -> None:
    record, parts = tmp_path / "r.jsonl", [tmp_path / name / "r.jsonl" for name in "ab"]
    part(record, "0123", complete=False)
    deal(record, {path: lambda key, rank=rank: int(key) % 2 == rank for rank, path in enumerate(parts)})
    found = [[row["key"] for row in read_record(partial_path(path)).rows if row["kind"] == "run"] for path in parts]
    assert found == [["0", "2"], ["1", "3"]]
    assert merged(record, part(parts[0], "024"), partial_path(parts[1]))[1::2] == [f"run {key}" for key in "01234"]
