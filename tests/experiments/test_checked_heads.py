"""The checked cells of 07 and 10 print good verdicts, and a changed method changes them."""

from __future__ import annotations

import pytest

from eagle_repro.experiments import checked_heads
from eagle_repro.training import fit
from tests.experiments.test_checked import told


def test_a_head_changes_how_fast_a_text_is_written_never_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(checked_heads.domain, capsys)
    assert lines[:3] == ["40 tokens in 11 cycles", lines[1], "more cycles: yes"] and lines[1].endswith("identical")
    assert lines[3].endswith("in 11 cycles")  # counted as they are run
    assert [line.rpartition(": ")[2] for line in lines[4:]] == ["holds", "does not hold", "undecided"]


@pytest.mark.slow
def test_one_seed_gives_one_head(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(checked_heads.training, capsys)
    assert [line.rpartition(": ")[2] for line in lines[5:7]] == ["identical", "different"]
    assert lines[7].endswith("20 1000 500 1")
    seeds = iter(range(9))
    whole = fit.new_head
    monkeypatch.setattr(fit, "new_head", lambda target, sizes, drafted, _: whole(target, sizes, drafted, next(seeds)))
    assert told(checked_heads.training, capsys)[5].endswith("different")
