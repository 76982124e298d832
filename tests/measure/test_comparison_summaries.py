"""What records of 04 to 06 say, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from eagle_repro.measure import branching, exactness, sizes
from eagle_repro.measure import summary as summaries
from eagle_repro.measure.records import Record, RecordWriter, read_record
from eagle_repro.sources.pairs import SHAPES
from tests.present.comparison_rows import (
    branching_rows,
    lossless_rows,
    pair_rows,
    permutation_row,
    skipped_row,
    timing_rows,
)


def made(folder: Path, name: str, rows: Iterable[dict[str, Any]]) -> Record:
    with RecordWriter(folder / f"{name}.jsonl", bench={"card": "made-up"}, protocol={}) as writer:
        for row in rows:
            writer.write(row["key"], {field: value for field, value in row.items() if field != "key"})
        return read_record(writer.complete())


def text(method: str, question: str, accepted: list[int] | None, seconds: float, **changes: Any) -> dict[str, Any]:
    """A text of 7 tokens: the prefill's and six of cycles."""
    return {
        "key": f"{changes.get('pair')}/{question}/{method}", "what": "text", "set": "chat", "domain": "in",
        "language": "en", "question": question, "method": method, "variant": "-", "temperature": 0.0, "tokens": 7,
        "decode_s": seconds, "prefill_s": 0.1, "accepted": accepted, "instrumented": False, "total_tokens": 5,
        "depth": 2, "top_k": 1, "levels": 3, **changes,
    }  # fmt: skip


# 04


def test_the_gain_of_branching_is_paired_and_weighted_by_cycles(tmp_path: Path) -> None:
    """Question a: 2 tokens a cycle against 3; question b: 1 against 2. Seconds say that the tree's cycles cost more."""
    rows = [
        text("plain", "a", None, 6.0), text("chain", "a", [1, 1, 1], 3.0), text("eagle", "a", [2, 2], 2.4),
        text("plain", "b", None, 6.0), text("chain", "b", [0] * 6, 6.0), text("eagle", "b", [1, 1, 1], 3.6),
    ]  # fmt: skip
    row = branching.gains(made(tmp_path, "04_chain_vs_tree", rows)).iloc[0]
    assert (row["tau_chain"], row["tau_eagle"]) == (12 / 9, 12 / 5)
    assert row["tau_gain"] == pytest.approx(9 / 5 - 1)
    # Resampled questions: only a (3 / 2 - 1), only b (2 / 1 - 1), or both; pairing keeps a with a.
    assert (row["tau_gain_low"], row["tau_gain_high"]) == pytest.approx((0.5, 1.0))
    assert (row["speedup_chain"], row["speedup_eagle"]) == pytest.approx((12 / 9, 12 / 6))
    assert row["speedup_gain"] == pytest.approx(0.5)
    assert (row["passes_chain"], row["passes_eagle"]) == pytest.approx((100 * 9 / 12, 100 * 5 / 12))


def test_groups_are_each_set_the_domain_and_everything(tmp_path: Path) -> None:
    frame = branching.gains(made(tmp_path, "04_chain_vs_tree", branching_rows()))
    assert list(frame["group"]) == ["chat", "code", "outside", "russian", "in-domain", "all"]
    assert list(frame["questions"]) == [2, 2, 2, 2, 4, 8]
    assert frame["domain"].tolist()[:5] == ["in", "in", "out", "out", "in"]
    assert (frame["tau_gain_low"] > 0).all(), "the chain accepts less in every cycle"
    frame = branching.gains(made(tmp_path, "same", branching_rows(less=0)))
    assert (frame["tau_gain"] == 0).all() and (frame["speedup_gain"] < 0).all()


def test_the_three_acceptance_rates_keep_their_names(tmp_path: Path) -> None:
    """The worked example: a chain of three that accepts 3, 0, 2."""
    rows = [text("plain", "a", None, 6.0), text("chain", "a", [3, 0, 2], 3.0), text("eagle", "a", [3, 3], 2.0)]
    record = made(tmp_path, "04_chain_vs_tree", rows)
    frame = branching.acceptance(record)
    chain, tree = (frame[frame["method"] == method] for method in ("chain", "eagle"))
    assert chain["accepted_per_drafted"].tolist() == pytest.approx([5 / 9] * 3)
    assert chain["reached"].tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    assert chain["conditional"].tolist() == pytest.approx([2 / 3, 1, 1 / 2])
    assert tree["accepted_per_drafted"].isna().all() and tree["reached"].tolist() == [1, 1, 1]
    assert branching.trees(record)["chain"] == {"total_tokens": 5, "depth": 2, "top_k": 1}


def test_a_record_without_a_chain_is_refused(tmp_path: Path) -> None:
    record = made(tmp_path, "04_chain_vs_tree", [text("plain", "a", None, 6.0)])
    with pytest.raises(ValueError, match="no texts by chain and tree"):
        branching.gains(record)


# 05


def test_two_pairs_are_compared_on_the_questions_that_both_answered(tmp_path: Path) -> None:
    def pair(name: str, target: int) -> dict[str, Any]:
        counts = {"target_parameters": target, "head_parameters": 10, "head_share": 10 / target, "weight_bytes": 1}
        return {"key": f"pair/{name}", "what": "pair", "pair": name, **counts}

    rows = [
        pair("large", 200), pair("small", 100),
        text("plain", "a", None, 6.0, pair="small"), text("eagle", "a", [1, 1, 1], 3.0, pair="small"),
        text("plain", "a", None, 12.0, pair="large"), text("eagle", "a", [2, 2], 8.0, pair="large"),
        text("plain", "b", None, 6.0, pair="small"), text("eagle", "b", [1, 1, 1], 1.0, pair="small"),
    ]  # fmt: skip
    record = made(tmp_path, "05_target_size", rows)
    frame = sizes.pairs(record)
    assert list(frame["pair"]) == ["small", "large"] and list(frame["head_share"]) == [0.1, 0.05]
    assert list(frame["questions"]) == [2, 1]
    row = sizes.by_group(record).iloc[0]
    assert (row["questions"], row["tau_small"], row["tau_large"]) == (1, 2, 3)
    assert (row["tau_gain"], row["speedup_gain"]) == pytest.approx((0.5, 1.5 / 2 - 1))


def test_one_pair_alone_gains_nothing_and_says_so(tmp_path: Path) -> None:
    rows = [row for row in pair_rows() if row["pair"] == "qwen3-4b"]
    frame = sizes.by_group(made(tmp_path, "05_target_size", rows))
    assert "tau_gain" not in frame and frame["tau_small"].gt(1).all()
    assert frame["group"].tolist()[-2:] == ["in-domain", "all"]


def test_a_cycle_in_plain_steps_is_the_tau_from_which_it_pays(tmp_path: Path) -> None:
    record = made(tmp_path, "05_target_size", [*timing_rows(), skipped_row()])
    frame = sizes.timing(record)
    assert list(dict.fromkeys(frame["shape"])) == list(SHAPES)
    row = frame[(frame["shape"] == "qwen3-8b") & (frame["depth"] == 7)].iloc[0]
    plain = 0.0008 * 36
    cycle = 1.05 * plain + 0.0015 * 8 + 0.002
    assert (row["nodes"], row["top_k"], row["dtype"]) == (60, 10, "float16")
    assert row["plain_ms"] == pytest.approx(1e3 * plain) and row["cycle_ms"] == pytest.approx(1e3 * cycle)
    assert row["draft_ms"] + row["verify_ms"] + row["rest_ms"] == pytest.approx(row["cycle_ms"])
    assert row["steps"] == pytest.approx(cycle / plain)
    assert (row["steps_low"], row["steps_high"]) == pytest.approx((0.98 * row["steps"], 1.02 * row["steps"]))
    assert sizes.skipped(record)["pair"].tolist() == ["qwen3-8b"]


def test_trees_that_differ_in_their_nodes_alone_are_rows_of_their_own(tmp_path: Path) -> None:
    rows = list(timing_rows(1, repeats=1))
    first = next(row for row in rows if row["phase"] == "cycle")
    more = [
        row
        | {"key": f"{row['key']}/more", "nodes": 1 if row["phase"] == "plain" else 30, "seconds": row["seconds"] / 2}
        for row in rows
        if (row["depth"], row["top_k"]) == (first["depth"], first["top_k"]) and row["phase"] != "plain"
    ]
    frame = sizes.timing(made(tmp_path, "05_target_size", [*rows, *more]))
    same = frame[(frame["depth"] == first["depth"]) & (frame["top_k"] == first["top_k"])].set_index("nodes")
    assert same.loc[30, "cycle_ms"] == pytest.approx(same.loc[first["nodes"], "cycle_ms"] / 2)
    assert same.loc[30, "plain_ms"] == same.loc[first["nodes"], "plain_ms"]


@pytest.mark.parametrize(("large", "said"), [(1.02, "same"), (1.04, "grows"), (0.98, "same"), (0.96, "shrinks")])
def test_a_gain_that_hardly_changes_with_the_size_counts_as_one(large: float, said: str) -> None:
    assert sizes.growth(1.0, large) == said and sizes.growth(2.0, 2 * large) == said


def test_the_prediction_is_the_cost_formula_at_every_assumed_tau(tmp_path: Path) -> None:
    record = made(tmp_path, "05_target_size", timing_rows(2))
    frame = sizes.predicted(record)
    assert len(frame) == 2 * 3 * len(sizes.ASSUMED)
    assert (frame["speedup"] * frame["steps"]).tolist() == pytest.approx(frame["tau"].tolist())
    assert (frame["speedup_low"] < frame["speedup"]).all() and (frame["speedup"] < frame["speedup_high"]).all()
    only = sizes.predicted(record, {"mine": 2.0})
    assert set(only["assumption"]) == {"mine"} and set(only["tau"]) == {2.0}


def test_the_bench_of_timings_names_what_was_timed(tmp_path: Path) -> None:
    record = made(tmp_path, "05_target_size", timing_rows(1))
    bench = sizes.as_timed(record).header["bench"]
    assert (bench["pair"], bench["dtype"], bench["card"]) == ({"name": "random weights"}, "float16", "made-up")
    assert "pair" not in record.header["bench"], "the record itself stays as it is"
    with pytest.raises(ValueError, match="timed no shape"):
        sizes.as_timed(made(tmp_path, "empty", pair_rows()))


# 06


def test_mismatches_are_counted_by_precision_with_their_gaps(tmp_path: Path) -> None:
    record = made(tmp_path, "06_lossless", lossless_rows())
    frame = exactness.greedy(record)
    assert list(frame["dtype"]) == ["float32", "float16", "bfloat16"]
    assert list(frame["per_thousand"]) == [0, 5, 15] and list(frame["plain_per_thousand"]) == [5, 5, 5]
    assert list(frame["identical"]) == [4, 0, 0] and list(frame["verdict"]) == ["identical", "near-ties", "near-ties"]
    assert frame["worst_gap"].tolist()[1:] == pytest.approx([0, 0.0625]) and frame["unexcused"].sum() == 0
    assert len(exactness.gaps(record)) == 16
    broken = exactness.greedy(made(tmp_path, "broken", lossless_rows(gap=1.0)))
    assert list(broken["unexcused"]) == [0, 4, 12] and broken["verdict"].iloc[-1] == "different"


def test_an_older_record_says_at_which_level_its_effects_were_looked_for(tmp_path: Path) -> None:
    rows = list(lossless_rows())
    assert exactness.effect_level(made(tmp_path, "old", rows)) == 0.05
    named = [row | ({"detectable_level": 0.001} if row.get("name") == "eagle" else {}) for row in rows]
    assert exactness.effect_level(made(tmp_path, "new", named)) == exactness.CAUGHT


@pytest.mark.parametrize(
    ("name", "changes", "passed"),
    [
        ("plain-plain", {"splits_below_005": 0.01}, True),
        ("plain-plain", {"splits_below_005": 0.11}, True),
        ("plain-plain", {"splits_below_005": 0.0}, False),
        ("plain-plain", {"splits_below_005": 0.12}, False),
        ("eagle", {"p": 0.02}, True),
        ("eagle", {"p": 0.0009}, False),
        ("broken-top-2", {"p": 0.0009}, True),
        ("broken-top-2", {"p": 0.001}, False),
    ],
)
def test_each_kind_of_test_has_its_own_way_to_come_out_right(name: str, changes: dict[str, Any], passed: bool) -> None:
    assert exactness.judge(permutation_row("tiny", name, 500, **changes)) is passed


def test_every_experiment_has_its_summary(tmp_path: Path) -> None:
    records = {
        "04_chain_vs_tree": branching_rows(), "05_target_size": timing_rows(), "06_lossless": lossless_rows(),
    }  # fmt: skip
    for name, rows in records.items():
        assert len(summaries.of(made(tmp_path, name, rows)))
