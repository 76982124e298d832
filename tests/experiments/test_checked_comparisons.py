"""The checked cells of 04 to 06, 08 and 09 print what no machine changes, and a changed method shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eagle_repro.experiments import checked
from eagle_repro.experiments.broken import BROKEN
from tests.experiments.test_checked import blur_head

Told = Callable[[Callable[[], None]], list[str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    def lines(cell: Callable[[], None]) -> list[str]:
        capsys.readouterr()
        cell()
        return capsys.readouterr().out.splitlines()

    return lines


def test_no_count_of_chain_or_tree_hangs_on_a_hair(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(checked.chain_vs_tree)
    assert [line for line in lines if line.endswith("plain: identical")] == [
        "chain and plain: identical",
        "tree and plain: identical",
    ]
    assert lines[-3:] == [
        "a chain of 3 that accepts 3, 0, 2: 56% of what it drafted",
        "per position: 67% 67% 33%",
        "conditional: 67% 100% 50%",
    ]
    blur_head(monkeypatch)
    for _ in range(3):
        assert told(checked.chain_vs_tree) == lines


def test_sizes_are_the_published_ones_and_the_formula_is_tinys(told: Told) -> None:
    lines = told(checked.target_size)
    assert lines[0] == "qwen3-1.7b: target 1721 M, head 137 M: 80 in 1000"
    assert lines[1] == "qwen3-4b: target 4022 M, head 218 M: 54 in 1000"
    assert lines[-2].endswith("identical") and lines[-1] == "the article's cycle at tau 2.5 and depth 2: 202%"


def test_the_engine_is_exact_and_every_wrong_rule_is_seen(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(checked.exactness)
    verdicts = [line.rpartition(" ")[2] for line in lines[: 2 + len(BROKEN)]]
    assert verdicts == ["identical", *["different"] * len(BROKEN), "identical"]
    assert lines[-2].endswith("10000 in 10000") and lines[-1].endswith(" 2 in 10000")
    whole = checked.sample_texts

    def shifted(*arguments: object, **named: object) -> object:
        return whole(*arguments, **named) + (named.get("shape") is not None)

    monkeypatch.setattr(checked, "sample_texts", shifted)
    assert told(checked.exactness)[0].endswith("different")


def test_recorded_phases_and_texts_side_by_side_change_nothing(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, batch = told(checked.stack), told(checked.batch_context)
    assert [line.rpartition(" ")[2] for line in stack] == ["identical", "identical", "yes", "no", "overhead"]
    assert stack[-1].endswith("97% was overhead")
    assert [line for line in batch if "identical" not in line] == [
        "a gain of 3.0 2.0 0.0 at 1, 4, 16: gone at 8",
        "a gain of 3.0 2.0 1.5 at 1, 4, 16: not gone",
        "a gain of 0.9 0.8 0.7 at 1, 4, 16: gone at 1",
    ]
    blur_head(monkeypatch)
    assert told(checked.stack) == stack and told(checked.batch_context) == batch
