"""Checked cells print integers and verdicts that no machine changes, and a changed method does."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from eagle_repro.engine import stacks
from eagle_repro.experiments import checked
from tests.engine.reference import read

TRACE = "trace_qwen3-eagle3-dv208_16_3_4.json"


def told(cell: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    cell()
    return capsys.readouterr().out.splitlines()


def blur_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move every score of the head's by up to CLEAR_GAP, anew at each pass."""
    head, dice = checked.tiny().head, torch.Generator().manual_seed(0)
    clean = head.log_probabilities

    def noisy(hidden: torch.Tensor) -> torch.Tensor:
        scores = clean(hidden)
        return scores + checked.CLEAR_GAP * (2 * torch.rand(scores.shape, generator=dice) - 1)

    monkeypatch.setattr(head, "log_probabilities", noisy)


@pytest.mark.parametrize(
    "cell", [checked.bench, checked.roofline, pytest.param(checked.speedup, marks=pytest.mark.slow)]
)
def test_a_checked_cell_prints_the_same_with_any_threads(
    cell: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    first = told(cell, capsys)
    try:
        torch.set_num_threads(3 - min(threads, 2))
        assert told(cell, capsys) == first
    finally:
        torch.set_num_threads(threads)
    numbers = [number for line in first for number in re.findall(r"\d+\.\d+", line)]
    assert set(numbers) <= {"44.7", "51.8", "125.6"}, "only the article's figures may have decimals"


def test_the_text_is_the_officially_recorded_one_and_has_no_close_choice(capsys: pytest.CaptureFixture[str]) -> None:
    run = next(run for run in read(TRACE)["runs"] if run["prompt"] == "chat")
    lines = told(checked.speedup, capsys)
    accepted = [int(number) for number in lines[0].partition(":")[2].split()]
    cycles = run["cycles"][: len(accepted)]
    assert run["output_ids"][: len(checked.PROMPT)] == checked.PROMPT
    assert accepted == [cycle["accept_length"] for cycle in cycles]
    assert lines[2].endswith(" ".join(map(str, cycles[0]["parents"])))
    gaps = [gap for cycle in cycles for gap in (cycle["gap_order"], cycle["gap_select"], cycle["gap_target"])]
    assert min(gap for gap in gaps if gap is not None) > checked.CLEAR_GAP


def test_all_verdicts_are_the_good_ones(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(checked.speedup, capsys)
    assert [line.rpartition(" ")[2] for line in lines[3:6]] == ["identical"] * 3
    assert "8 tokens in 3 cycles" in lines[6] and "250%" in lines[7] and "200%" in lines[7]
    assert told(checked.roofline, capsys)[0].endswith("15 clear choices: identical")
    cards = [line.rpartition(" ")[2] for line in told(checked.bench, capsys)[2:6]]
    assert cards == ["refused", "ok", "ok", "ok"]


def test_a_wrong_acceptance_changes_the_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = told(checked.speedup, capsys)
    whole = stacks.cycle

    def lazy(*arguments: object, **named: object) -> object:
        tree, accepted = whole(*arguments, **named)
        if tree.tokens.shape[1] > 1:
            accepted.count.clamp_(max=1)
        return tree, accepted

    monkeypatch.setattr(stacks, "cycle", lazy)
    wrong = told(checked.speedup, capsys)
    assert wrong[0] != right[0] and wrong[3].endswith("different")
