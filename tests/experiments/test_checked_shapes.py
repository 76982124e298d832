"""The checked cell of 03_tree_shape prints what no machine changes, and a changed method does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eagle_repro.experiments import checked, recordings
from tests.experiments.test_checked import blur_head


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[str]]]:
    def lines() -> list[str]:
        capsys.readouterr()
        checked.tree_shape()
        return capsys.readouterr().out.splitlines()

    yield lines


def test_replay_and_decoding_agree_and_no_count_hangs_on_a_hair(
    told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = told()
    assert [line.rpartition(" ")[2] for line in lines[:5]] == ["identical"] * 5
    assert lines[5:] == [
        "60 nodes at depth 7 and width 1: 9, cut",
        "the reference picks 60 nodes where a pass is flat",
        "the reference picks 40 nodes where a pass is linear",
    ]
    blur_head(monkeypatch)
    for _ in range(2):
        assert told() == lines


def test_a_replay_that_is_off_by_one_position_shows(
    told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recordings.rank_path

    def shifted(tokens: Any, parents: Any, scores: Any, following: list[int], *rest: Any) -> Any:
        return whole(tokens, parents, scores, following[1:], *rest)

    monkeypatch.setattr(recordings, "rank_path", shifted)
    assert all(line.endswith("different") for line in told()[:5])
