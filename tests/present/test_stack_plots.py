"""Figures and tables of 08 and 09: words that follow the numbers, and nothing left out in silence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from eagle_repro.measure import stacks
from eagle_repro.measure.records import Record
from eagle_repro.present import console, gallery, scaling_plots, scaling_tables, stack_plots, stack_tables
from eagle_repro.present.theme import Picture
from tests.present import stack_rows as rows

FIGURES: dict[str, tuple[str, Callable[..., Picture]]] = {
    "steps": ("08", stack_plots.steps),
    "steps on one stack": ("08 alone", stack_plots.steps),
    "gains": ("08", stack_plots.gains),
    "gains on one stack": ("08 alone", stack_plots.gains),
    "batches": ("09", scaling_plots.batches),
    "two batches": ("09 short", scaling_plots.batches),
    "contexts": ("09", scaling_plots.contexts),
    "two contexts": ("09 short", scaling_plots.contexts),
    "timing": ("09", scaling_plots.timing),
}
TABLES = {
    "08": (stack_tables.costs, stack_tables.gains, stack_tables.overhead),
    "09": (scaling_tables.points, scaling_tables.gone, scaling_tables.timing),
}
Write = Callable[..., Record]


def made(write: Write) -> dict[str, Record]:
    """The records by the names that FIGURES and TABLES use."""
    alone = [*rows.cost_rows(["eager"]), *rows.text_rows(["eager"])]
    short = [*rows.batch_rows(values=(1, 2)), *rows.context_rows(values=(100, 300))]
    far = [*rows.batch_rows(), *rows.context_rows(), *rows.scaling_timing_rows(), rows.skipped_point_row()]
    every = [*rows.cost_rows(), *rows.text_rows(), rows.skipped_stack_row()]
    return {
        "08": write("08_stack", every, {}, bandwidth_gb_s=4000.0),
        "08 alone": write("08_stack", alone, {}, bandwidth_gb_s=20.0),
        "09": write("09_batch_context", far, {}),
        "09 short": write("09_batch_context", short, {}),
    }


@pytest.fixture(scope="module")
def records(write: Write) -> dict[str, Record]:
    return made(write)


def test_titles_follow_the_record(draw: Callable[..., Picture], write: Write) -> None:
    assert draw("steps").finding == (
        "A cycle costs 1.5 plain steps on eager, 3.6 on compiled, whose step is 31.4x shorter"
    )
    assert draw("steps on one stack").finding == "On eager a cycle costs 1.5 plain steps"
    assert draw("gains").finding.startswith(
        "Speculation saves 14.9 ms a token on eager, 0.18 ms on compiled: 99% was overhead"
    )
    assert draw("gains on one stack").finding.startswith("On eager the tree (96, 4, 16) gives 3.11x")
    assert draw("batches").finding == "The tree (60, 7, 10) gains 3.45x for one text and nothing at 32 side by side"
    lasting = write("09_batch_context", [*rows.batch_rows(loss=0.1), *rows.context_rows(loss=3.0)], {})
    assert scaling_plots.batches(lasting).finding.startswith("From 1 to 64 texts side by side (60, 7, 10) goes from 3.")
    assert "is gone at" in scaling_plots.contexts(lasting).finding
    slower = [row | {"decode_s": 1.0 + (row["method"] == "eagle")} for row in rows.batch_rows()]
    losing = write("09_batch_context", slower, {})
    assert scaling_plots.batches(losing).finding.startswith("From the start no tree gains: (60, 7, 10) gives 0.50x")
    assert draw("timing").finding.startswith("qwen3-1.7b (random weights): the tree (60, 7, 10) pays from tau 2.1 for")


@pytest.mark.parametrize(
    ("slower", "finding"),
    [(("compiled",), ", nothing on compiled: all was overhead"), (tuple(rows.STEP_S), "saves no time on eager")],
)
def test_a_gain_that_is_gone_is_called_gone(write: Write, slower: tuple[str, ...], finding: str) -> None:
    texts = [
        row | {"decode_s": row["decode_s"] * (9 if row["stack"] in slower and row["method"] == "eagle" else 1)}
        for row in rows.text_rows(["eager", "compiled"])
    ]
    record = write("08_stack", [*rows.cost_rows(["eager", "compiled"]), *texts], {})
    assert finding in stack_plots.gains(record).finding
    assert "nan" not in stack_tables.overhead(record).text()


def test_a_figure_of_what_was_not_measured_says_so(records: dict[str, Record]) -> None:
    with pytest.raises(ValueError, match="timed no pair"):
        scaling_plots.timing(records["09 short"])
    with pytest.raises(ValueError, match="timed no stack"):
        stack_plots.steps(records["09"])
    with pytest.raises(ValueError, match="wrote no batches"):
        scaling_plots.batches(records["08"])


def test_a_bandwidth_that_is_not_known_is_left_out_and_not_zero() -> None:
    text = stack_tables.timed(stacks.costs_of(list(rows.cost_rows()), None), None, []).text()
    assert "n/a" in text and "GB/s" not in text and "nan" not in text


def test_a_timing_only_pair_that_did_not_fit_is_a_note_and_the_figures_reason(write: Write, tmp_path: Path) -> None:
    reason = "qwen3-1.7b needs 5.0 GB in float16, and 3.0 GB of the card are free: a larger card is needed"
    row = {"key": "skipped/timing/0/qwen3-1.7b", "what": "skipped", "axis": "timing", "value": 0, "pair": "qwen3-1.7b"}
    record = write("09_batch_context", [*rows.batch_rows(), *rows.context_rows(), row | {"reason": reason}], {})
    assert f"qwen3-1.7b was left out: {reason}." in scaling_tables.timing(record).text()
    assert reason not in scaling_tables.points(record).text() and len(console.of(record)) == 3
    with pytest.raises(ValueError, match=f"timed no pair: {reason}"):
        scaling_plots.timing(record)
    absent = repr(gallery.drawn(scaling_plots.timing, record, "09_timing", tmp_path))
    assert absent == f"no figure 09_timing: 09_batch_context.jsonl timed no pair: {reason}"


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_complete_and_name_their_bench(records: dict[str, Record], name: str) -> None:
    printed = [table(records[name]).text() for table in TABLES[name]]
    assert all("nan" not in text and "torch 2.13.0" in text for text in printed)
    assert [table.title for table in console.of(records[name])] == [text.splitlines()[0] for text in printed]


def test_tables_say_what_was_left_out_and_what_one_stack_cannot_tell(records: dict[str, Record]) -> None:
    assert "qwen3-8b on graph was left out: no room." in stack_tables.costs(records["08"]).text()
    assert "| eager, graph, compiled |" in stack_tables.costs(records["08"]).text()
    assert (
        "One stack alone was measured (eager): nothing to compare." in stack_tables.overhead(records["08 alone"]).text()
    )
    assert "16000: left out, 16000 tokens and an answer are beyond" in scaling_tables.points(records["09"]).text()
    assert ">2" in scaling_tables.gone(records["09 short"]).text()


def test_tables_say_that_one_question_alone_is_rough(records: dict[str, Record]) -> None:
    record = records["08"]
    named = next(row["question"] for row in record.rows if "question" in row)
    one = replace(record, rows=[row for row in record.rows if row.get("question", named) == named])
    for make in (stack_tables.gains, stack_tables.overhead):
        assert stack_tables.SINGLE in make(one).text() and stack_tables.SINGLE not in make(record).text()


def test_a_place_between_two_points_has_two_digits() -> None:
    places = [(3473.0, 8000.0), (15.2, 64.0), (9.96, 64.0), (4.04, 64.0), (math.inf, 64.0)]
    assert [scaling_tables.limit(*place) for place in places] == ["3,500", "15", "10.0", "4.0", ">64"]
