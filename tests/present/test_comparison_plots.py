"""Figures and tables of 04 to 06: words that follow the numbers, and nothing left out in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eagle_repro.measure.records import Record
from eagle_repro.present import chain_plots, comparison_tables, console, lossless_plots, size_plots
from eagle_repro.present.theme import Picture
from tests.present import comparison_rows as rows

FIGURES: dict[str, tuple[str, Callable[..., Picture]]] = {
    "branching": ("04", chain_plots.branching),
    "acceptance": ("04", chain_plots.acceptance),
    "by size": ("05", size_plots.speedup_by_size),
    "break even": ("05", size_plots.break_even),
    "pairs": ("05", size_plots.pairs),
    "one pair": ("05 alone", size_plots.pairs),
    "one size": ("05 alone", size_plots.speedup_by_size),
    "one break even": ("05 alone", size_plots.break_even),
    "ties": ("06", lossless_plots.near_ties),
    "permutation": ("06", lossless_plots.permutation),
}
TABLES = {
    "04": (comparison_tables.gains, comparison_tables.acceptance),
    "05": (
        comparison_tables.pairs,
        comparison_tables.pair_differences,
        comparison_tables.timing,
        comparison_tables.predicted,
    ),
    "06": (comparison_tables.greedy, comparison_tables.first_tokens, comparison_tables.permutations),
}
Write = Callable[..., Record]


def made(write: Write) -> dict[str, Record]:
    """The records by the names that FIGURES and TABLES use."""
    alone = [row for row in rows.pair_rows() if row["pair"] == "qwen3-1.7b"]
    return {
        "04": write("04_chain_vs_tree", list(rows.branching_rows()), {}),
        "05": write("05_target_size", [*rows.pair_rows(), *rows.timing_rows(), rows.skipped_row()], {}),
        "05 alone": write("05_target_size", [*alone, *rows.timing_rows(shapes=1)], {}),
        "06": write("06_lossless", list(rows.lossless_rows()), {}),
    }


@pytest.fixture(scope="module")
def records(write: Write) -> dict[str, Record]:
    return made(write)


def test_titles_follow_the_record(draw: Callable[..., Picture], write: Write) -> None:
    assert draw("branching").finding == "At equal depth a tree gives 25% more tokens a pass than a chain"
    same = write("04_chain_vs_tree", list(rows.branching_rows(less=0)), {})
    assert "equally many tokens" in chain_plots.branching(same).finding
    fewer = write("04_chain_vs_tree", list(rows.branching_rows(less=-1)), {})
    assert "% fewer tokens" in chain_plots.branching(fewer).finding
    assert draw("by size").finding == "At tau 3.4 the speedup grows from 2.03x at 1.7B to 2.57x at 32B"
    assert draw("one size").finding.startswith("At tau 3.4 a target of 1.7B would be")
    assert draw("break even").finding == "The tree (60, 7, 10) pays from tau 1.7 at 1.7B and from 1.3 at 32B"
    assert draw("pairs").finding.startswith("The larger target gives +8% in tau")
    assert draw("one pair").finding.startswith("In domain qwen3-1.7b gives 4.4 tokens a pass and ")


def test_a_pair_without_questions_in_domain_has_its_title(write: Write) -> None:
    outside = [row for row in rows.pair_rows() if row["pair"] == "qwen3-1.7b" and row.get("domain") != "in"]
    finding = size_plots.pairs(write("05_target_size", outside, {})).finding
    assert finding.startswith("Out of domain qwen3-1.7b gives 2.5 tokens a pass")


def test_a_falling_gain_is_called_falling(write: Write) -> None:
    slower = [
        row | {"seconds": row["seconds"] * (3 if row["shape"] == "qwen3-32b" and row["phase"] != "plain" else 1)}
        for row in rows.timing_rows()
    ]
    finding = size_plots.speedup_by_size(write("05_target_size", slower, {})).finding
    assert finding.startswith("At tau 3.4 the speedup falls from 2.03x")


def test_ties_and_real_differences_are_told_apart(draw: Callable[..., Picture], write: Write) -> None:
    assert draw("ties").finding == "Greedy texts differ only where the two best choices tie"
    broken = write("06_lossless", list(rows.lossless_rows(gap=1.0)), {})
    assert lossless_plots.near_ties(broken).finding == "16 of 16 greedy mismatches are no near-ties"
    none = [row | ({"mismatches": []} if row["what"] == "greedy" else {}) for row in rows.lossless_rows()]
    assert lossless_plots.near_ties(write("06_lossless", none, {})).finding == "No mismatch in 2400 greedy tokens"


@pytest.mark.parametrize(
    ("name", "changes"),
    [("plain-plain", {"splits_below_005": 0.3}), ("eagle", {"p": 0.0005}), ("broken-top-2", {"p": 0.02})],
)
def test_a_test_that_came_out_wrong_is_in_the_title(write: Write, name: str, changes: dict[str, float]) -> None:
    tests = [rows.permutation_row("tiny", each, 500) for each in ("plain-plain", "eagle", "broken-top-2")]
    assert "all 1 wrong rules caught" in lossless_plots.permutation(write("06_lossless", tests, {})).finding
    spoiled = [row | (changes if row["name"] == name else {}) for row in tests]
    record = write("06_lossless", spoiled, {})
    assert lossless_plots.permutation(record).finding == "The permutation test did not come out as it should"
    assert "  no" in comparison_tables.permutations(record).text()


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_complete_and_name_their_bench(records: dict[str, Record], name: str) -> None:
    printed = [table(records[name]).text() for table in TABLES[name]]
    assert all("nan" not in text for text in printed)
    assert "torch 2.13.0" in printed[0]


def test_tables_say_what_was_left_out_and_assumed(records: dict[str, Record]) -> None:
    assert "qwen3-8b was left out: it needs 19 GB of memory." in comparison_tables.pairs(records["05"]).text()
    assert "float64 was left out: nobody wants it." in comparison_tables.greedy(records["06"]).text()
    assert "random weights | float16" in comparison_tables.timing(records["05"]).text()
    assert "tau is assumed" in comparison_tables.predicted(records["05"]).text()
    alone = comparison_tables.pair_differences(records["05 alone"]).text()
    assert "Only one pair was measured." in alone and "%" not in alone
    assert "One pair alone compares nothing" in comparison_tables.pairs(records["05 alone"]).text()
    assert "accepted / drafted" in comparison_tables.acceptance(records["04"]).text()


def test_the_command_line_prints_the_tables_of_each_record(records: dict[str, Record]) -> None:
    assert [len(console.of(records[name])) for name in ("04", "05", "06")] == [2, 3, 3]
