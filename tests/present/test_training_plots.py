"""Figures and tables of 10_train_head: no warning, no overlap, in both languages, and words that follow the numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eagle_repro.measure import training
from eagle_repro.measure.records import Record
from eagle_repro.present import console, training_plots, training_tables
from eagle_repro.present.words import WORDS
from tests.present.conftest import SETS
from tests.present.test_plots import require_readable, said

ACCEPTED = {"untrained": [0, 0, 1], "trained": [2, 3, 2], "shipped": [2, 1, 2]}
#: Step, seconds and cycles of the first question.
ON_THE_WAY = {
    "start": (0, 0.0, 24), "step-000050": (50, 90.0, 12), "step-000100": (100, 180.0, 8), "shipped": (None, None, 9),
}  # fmt: skip


def rows() -> Iterator[dict[str, Any]]:
    for step in range(10, 110, 10):
        accuracy = [0.7 - 0.1 * number - 3 / (step + 5) for number in range(4)]
        known = {"seconds": step / 5, "rate": 1e-3, "loss": 4 + 50 / step, "entropy": [2.0] * 4, "accuracy": accuracy}
        yield {"key": f"step/{step}", "what": "step", "step": step, "total": 100, **known}
    counts = {"answer_tokens": 8000, "conversations": 123}
    yield {
        "key": "fit", "what": "fit", "corpus": counts, "corpus_tokens_per_second": 500.0, "coverage": 0.99,
        "steps": 100, "seconds": 20.0, "tokens_per_second": 3840.0, "peak_bytes": None,
    }  # fmt: skip
    for arm, accepted in ACCEPTED.items():
        for name, (domain, _) in SETS.items():
            for question in range(2):
                key = f"{name}/{question}/eagle/{arm}/0"
                row = {"what": "text", "set": name, "domain": domain, "question": str(question), "variant": arm}
                yield {"key": key, **row, "accepted": accepted[: 3 - question]}
    for head, (step, seconds, cycles) in ON_THE_WAY.items():
        for name, (domain, _) in SETS.items():
            row = {"what": "tau", "head": head, "step": step, "seconds": seconds, "set": name, "domain": domain}
            counts = {"question": ["0", "1"], "emitted": [24, 36], "cycles": [cycles, cycles + 2]}
            yield {"key": f"tau/{head}/{name}", **row, **counts}


@pytest.fixture(scope="module")
def record(write: Callable[..., Record]) -> Record:
    return write("10_train_head", list(rows()), {})


@pytest.mark.parametrize("lang", WORDS)
@pytest.mark.parametrize("figure", [training_plots.curves, training_plots.tau, training_plots.tau_by_minute])
def test_no_label_covers_another_or_leaves_the_figure(record: Record, figure: Any, lang: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = figure(record, lang)
    assert "2026-01-31" in said(picture)
    require_readable(picture)


def test_titles_follow_the_record(record: Record) -> None:
    assert training_plots.curves(record).finding == (
        "After 100 steps the head agrees with the target on 67% of first drafts"
    )
    assert training_plots.tau(record).finding == "Training takes the head from 1.2 to 3.4 (chat) tokens a cycle"


def test_tau_on_the_way_is_that_of_the_groups(record: Record) -> None:
    frame = training.on_the_way(record)
    assert list(frame["group"].unique()) == ["in-domain", "outside", "russian"]
    inside = frame[frame["group"] == "in-domain"]
    assert list(inside["tau"]) == pytest.approx([60 / 50, 60 / 26, 60 / 18, 60 / 20]) and set(inside["questions"]) == {
        4
    }
    assert list(inside["minutes"])[:3] == [0, 1.5, 3]
    found = training_plots.tau_by_minute(record).finding
    assert found == "In domain a cycle gives 2.3 tokens after 1.5 minutes, 3.3 after 3"


def test_a_record_without_heads_on_the_way_says_so(write: Callable[..., Record]) -> None:
    none = write("10_train_head", [row for row in rows() if row["what"] != "tau"], {})
    assert training.on_the_way(none).empty
    with pytest.raises(ValueError, match="train with snapshots"):
        training_plots.tau_by_minute(none)


def test_the_trained_head_is_compared_with_the_pairs_own_question_by_question(
    record: Record, write: Callable[..., Record]
) -> None:
    frame = training.against_own(record).set_index("group")
    row = frame.loc["in-domain"]
    assert row["questions"] == 4 and row["tau_own"] == pytest.approx(60 / 20) and row["gain"] == pytest.approx(1 / 3)
    assert row["gain_low"] <= row["gain"] <= row["gain_high"] and row["verdict"] == "holds"
    assert frame.loc["russian", "questions"] == 2 and "all" in frame.index
    text = training_tables.against_own(record).text()
    assert "+0.33" in text and "EAGLE sets" not in text
    assert training.mean_of_eagle_sets(training.against_own(record)) is None
    eagle = dict(zip(SETS, training.EAGLE, strict=True))
    renamed = [row | {"set": eagle[row["set"]]} if "set" in row else row for row in rows()]
    assert training.mean_of_eagle_sets(training.against_own(write("10_train_head", renamed, {}))) == pytest.approx(
        {"tau_own": 3.0, "tau_trained": 10 / 3}
    )
    none = training_tables.against_own(write("10_train_head", [row for row in rows() if row["what"] != "tau"], {}))
    assert "No cycles were counted" in none.text()


def test_tau_is_counted_by_set_and_head(record: Record) -> None:
    frame = training.taus(record)
    assert frame["head"].tolist() == list(training.ARMS) * len(SETS)
    assert frame.loc[1, "tau"] == pytest.approx((3 + 4 + 3 + 3 + 4) / 5)
    assert training.gains(record)["tau_gain"].iloc[0] == pytest.approx(3.4 / 1.2 - 1)


def test_the_command_line_prints_the_tables(record: Record) -> None:
    first, second, third = (table.text() for table in console.of(record))
    assert "8,000" in first and "not counted on a CPU" in first and "nan" not in first
    assert "3.40" in second and "torch 2.13.0" in second
    assert training_tables.taus(record).text() == second and "difference" in third
