"""The summaries of 03_tree_shape say what its rows say, for the right questions, and refuse half a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from eagle_repro.measure.curves import Shape
from eagle_repro.measure.records import Record
from eagle_repro.measure.tree_shape import IN_DOMAIN, adaptive, comparison, costs, depth_trap, picks, study, sweep
from tests.shape_rows import NEW_TOKENS, PLAIN_S, REST_S, draft_s, made_up_rows, verify_s


def record_of(rows: list[dict[str, Any]], protocol: Any) -> Record:
    header = {"kind": "header", "name": "03_tree_shape", "bench": {}, "protocol": protocol.as_record()}
    return Record(header, [{"kind": "run"} | row for row in rows], {"kind": "complete"}, Path("03_tree_shape.jsonl"))


@pytest.fixture(scope="module")
def rows() -> tuple[list[dict[str, Any]], Any]:
    return made_up_rows("full")


@pytest.fixture(scope="module")
def record(rows: tuple[list[dict[str, Any]], Any]) -> Record:
    return record_of(*rows)


def test_a_sweep_has_each_point_for_each_group(record: Record) -> None:
    frame = sweep(record, "depth")
    assert list(frame["group"].unique()) == [IN_DOMAIN, "outside", "russian"]
    assert all(list(part["asked"]) == list(range(2, 11)) for _, part in frame.groupby("group"))
    assert (frame["depth"] == frame["asked"]).all() and set(frame["total_tokens"]) == {60}
    assert list(frame.groupby("group")["questions"].first()) == [4, 2, 2]
    # The made-up costs: a tau of 1 on Russian would be one plain step over one cycle.
    cycle = verify_s(60) + draft_s(2, 10) + REST_S
    row = frame[(frame["group"] == "russian") & (frame["asked"] == 2)].iloc[0]
    counts = study(record).counts(Shape(60, 2, 10), [("russian", "0"), ("russian", "1")])
    gained = 2 * (NEW_TOKENS - 1) / sum(map(len, counts))
    assert row["predicted"] == pytest.approx(gained * PLAIN_S / cycle, rel=0.05)
    assert row["predicted_low"] <= row["predicted"] <= row["predicted_high"]
    assert row["measured"] == pytest.approx(row["predicted"], rel=0.1)
    with pytest.raises(ValueError, match="unknown sweep 'breadth': known are depth, nodes, top_k"):
        sweep(record, "breadth")


def test_clipped_points_say_so(record: Record) -> None:
    frame = sweep(record, "top_k").drop_duplicates("asked").set_index("asked")
    assert list(frame["clipped"]) == [True, True, False, False, False, False]
    assert list(frame["total_tokens"]) == [9, 31, 60, 60, 60, 60]


def test_a_point_that_was_not_measured_is_nan_and_not_zero() -> None:
    frame = sweep(record_of(*made_up_rows("quick")), "depth").set_index(["group", "asked"])
    assert pd.isna(frame.loc[(IN_DOMAIN, 5), "measured"]) and frame.loc[(IN_DOMAIN, 5), "questions"] == 0
    assert frame.loc[(IN_DOMAIN, 7), "measured"] > 0 and frame.loc[(IN_DOMAIN, 5), "predicted"] > 0


def test_replay_and_measurement_are_compared_on_the_same_questions(rows: tuple[list[dict[str, Any]], Any]) -> None:
    everything, protocol = rows
    # The second question of each set was recorded but not run.
    part = [row for row in everything if row["what"] != "shape" or row["question"] == "0"]
    frame = comparison(record_of(part, protocol))
    assert (frame["questions"] == 1).all() and frame["exact"].all()
    assert frame["tau"].to_list() == pytest.approx(frame["tau_replayed"].to_list())
    assert frame["error"].abs().max() < 0.15


def test_one_token_accepted_differently_is_not_exact(rows: tuple[list[dict[str, Any]], Any]) -> None:
    everything, protocol = rows
    place = next(n for n, row in enumerate(everything) if row["what"] == "shape" and row["method"] == "eagle")
    wrong = everything[place] | {"accepted": [*everything[place]["accepted"][:-1], 9]}
    frame = comparison(record_of([*everything[:place], wrong, *everything[place + 1 :]], protocol))
    assert list(frame["exact"]).count(False) == 1


def test_repeats_of_a_question_are_one_observation(rows: tuple[list[dict[str, Any]], Any], record: Record) -> None:
    everything, protocol = rows
    once = record_of([row for row in everything if row["what"] != "shape" or row["repeat"] == 0], protocol)
    both, single = (comparison(each).set_index(["set", "total_tokens", "depth", "top_k"]) for each in (record, once))
    assert (both["questions"] == single["questions"]).all() and (both["tau"] == single["tau"]).all()
    assert (both["measured"] != single["measured"]).any()


def test_picks_join_the_rules_that_agree(record: Record) -> None:
    frame = picks(record)
    assert not frame.duplicated(["total_tokens", "depth", "top_k", "group"]).any()
    default = frame[(frame["total_tokens"] == 60) & (frame["depth"] == 7) & (frame["top_k"] == 10)]
    assert set(default["rule"]) == {"default, reference, article"}
    model = frame[(frame["rule"].str.contains("cost model")) & (frame["group"] == IN_DOMAIN)].iloc[0]
    inside = frame[frame["group"] == IN_DOMAIN]
    assert model["predicted"] == inside["predicted"].max()


def test_the_trap_shows_every_set_with_both_trees(record: Record) -> None:
    frame = depth_trap(record)
    assert list(frame["variant"]) == ["default", "picked"] * 4
    assert list(frame["set"].unique()) == ["chat", "code", "outside", "russian"]
    assert frame["speedup"].notna().all() and (frame["questions"] == 2).all()
    russian = frame[frame["set"] == "russian"].set_index("variant")
    assert russian.loc["default", "speedup"] < russian.loc["picked", "speedup"]


def test_adaptive_is_beside_the_shape_with_the_fewest_seconds_on_the_set(
    rows: tuple[list[dict[str, Any]], Any], record: Record
) -> None:
    frame = adaptive(record).set_index("set")
    assert list(frame.index) == ["chat", "code", "outside", "russian"] and frame["identical"].all()
    runs = pd.DataFrame([row for row in rows[0] if row["what"] == "shape" and row["set"] == "russian"])
    seconds = runs.groupby("variant")["decode_s"].sum()
    trees = runs[runs["method"] == "eagle"].groupby("variant")["decode_s"].sum()
    ours = runs[runs["method"] == "adaptive"]
    row = frame.loc["russian"]
    assert f"{row['total_tokens']}-{row['depth']}-{row['top_k']}" == trees.idxmin() and row["shapes"] == len(trees)
    assert row["share"] == pytest.approx(trees.min() / ours["decode_s"].sum())
    plain = runs.loc[runs["method"] == "plain", "decode_s"].sum()
    assert row["speedup"] == pytest.approx(plain / ours["decode_s"].sum())
    assert row["best"] == pytest.approx(plain / trees.min()) and seconds.size == len(trees) + 1
    accepted = [count for of in ours["accepted"] for count in of]
    assert row["tau"] == pytest.approx(1 + sum(accepted) / len(accepted))
    assert row["share_low"] <= row["share"] <= row["share_high"] and row["questions"] == 2


def test_adaptive_is_compared_on_equal_texts_too(rows: tuple[list[dict[str, Any]], Any]) -> None:
    """The best shape wrote another text on one question, and adaptive itself on another."""
    everything = [dict(row) for row in rows[0]]
    best = adaptive(record_of(everything, rows[1])).set_index("set").loc["russian"]
    assert best["alike"] == best["questions"] == 2 and best["alike_share"] == best["share"]
    runs = [row for row in everything if row["what"] == "shape" and row["set"] == "russian"]
    sizes = tuple(best[["total_tokens", "depth", "top_k"]])
    first = runs[0]["question"]

    def frame_with(different: list[dict[str, Any]]) -> pd.Series[Any]:
        for row in runs:
            row["same_as_plain"] = not any(row is each for each in different)
        return adaptive(record_of(everything, rows[1])).set_index("set").loc["russian"]

    of_best = [row for row in runs if (row["total_tokens"], row["depth"], row["top_k"]) == sizes]
    other = frame_with([row for row in of_best if row["question"] == first][:1])
    assert other["alike"] == 2 and other["alike_share"] > other["share"] == best["share"], "that shape is out"
    ours = [row for row in runs if row["method"] == "adaptive" and row["question"] == first]
    left = frame_with(ours[:1])
    assert left["alike"] == 1 and not left["identical"] and left["alike_share"] != left["share"]
    none = frame_with([row for row in runs if row["method"] == "adaptive"])
    assert none["alike"] == 0 and pd.isna(none["alike_share"])


@pytest.mark.parametrize("profile", ["smoke", "quick"])
def test_no_summary_takes_adaptive_for_a_shape_or_misses_it(profile: str) -> None:
    everything, protocol = made_up_rows(profile)
    without = record_of([row for row in everything if row.get("method") != "adaptive"], protocol)
    both = record_of(everything, protocol)
    for summary in (comparison, picks, depth_trap, costs, lambda each: sweep(each, "depth")):
        pd.testing.assert_frame_equal(summary(both), summary(without))
    assert len(adaptive(both)) == 4 and adaptive(without).empty


def test_costs_are_in_milliseconds(record: Record) -> None:
    frame = costs(record)
    assert frame[frame["phase"] == "plain"]["ms"].iloc[0] == pytest.approx(1e3 * PLAIN_S, rel=0.1)
    draft = frame[(frame["phase"] == "draft") & (frame["top_k"] == 10) & (frame["depth"] == 10)]
    assert draft["ms"].iloc[0] == pytest.approx(1e3 * draft_s(10, 10), rel=0.1)


@pytest.mark.parametrize("what", ["recording", "cost", "point", "shape", "autopick"])
def test_half_a_record_is_refused(rows: tuple[list[dict[str, Any]], Any], what: str) -> None:
    everything, protocol = rows
    with pytest.raises(ValueError, match=f"03_tree_shape.jsonl holds no rows of {what}"):
        study(record_of([row for row in everything if row["what"] != what], protocol))


def test_the_in_domain_group_comes_first_whatever_the_order_of_sets(rows: tuple[list[dict[str, Any]], Any]) -> None:
    everything, protocol = rows
    backwards = sorted(everything, key=lambda row: row.get("domain") != "out")
    assert list(study(record_of(backwards, protocol)).groups) == [IN_DOMAIN, "outside", "russian"]
