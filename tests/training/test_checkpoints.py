"""What a run has written and a kill or a full disk has damaged is refused in one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from eagle_repro.training.checkpoints import NAME, load_checkpoint, read_log, save_checkpoint
from eagle_repro.training.heads import read_json

STATE = {"run": {"rate": 1.0}, "head": {"a": torch.zeros(1000)}}


@pytest.mark.parametrize("left", [0, 1, 100, 2000, -1])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, left: int) -> None:
    save_checkpoint(tmp_path, STATE)
    assert load_checkpoint(tmp_path, {"rate": 1.0}) is not None
    (tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes()[:left])
    with pytest.raises(
        ValueError, match=r"checkpoint\.pt is damaged \(cut short\?\): delete it to train from the start"
    ):
        load_checkpoint(tmp_path, {"rate": 1.0})


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / NAME)
    with pytest.raises(ValueError, match=r"checkpoint\.pt is damaged"):
        load_checkpoint(tmp_path, {"rate": 1.0})


@pytest.mark.parametrize("line", [b'{"step": 2, "lo', b"\xff\xfe", b"[]", b"{}", b"", b'{"step": "two"}'])
def test_a_damaged_line_of_a_log_is_refused_and_a_torn_last_one_is_left_out(tmp_path: Path, line: bytes) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"step": 1}\n' + line)
    assert read_log(log) == [{"step": 1}]
    log.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl is damaged \(line 2\): delete it and checkpoint\.pt"):
        read_log(log)


@pytest.mark.parametrize("content", ["", '{"a": 1', "[1]"])
def test_a_file_without_a_json_object_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"summary\.json holds no JSON object"):
        read_json(path)
    path.write_text(json.dumps({"a": 1}), encoding="utf-8")
    assert read_json(path) == {"a": 1}
