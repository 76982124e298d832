"""What is left of a gain on a faster stack, and where a falling gain is gone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle_repro.measure import scaling, stacks, summary
from eagle_repro.measure.fields import fault
from eagle_repro.measure.records import Record, RecordError
from tests.present import stack_rows as rows

Row = dict[str, Any]


def made(name: str, found: Iterable[Row], **footer: Any) -> Record:
    header = {"kind": "header", "schema": 1, "name": name, "hash": "0", "bench": {"device": "cuda"}, "protocol": {}}
    return Record(
        header, [{"kind": "run", **row} for row in found], {"kind": "complete", **footer}, Path(f"{name}.jsonl")
    )


@pytest.fixture(scope="module")
def stack() -> Record:
    return made("08_stack", [*rows.cost_rows(), *rows.text_rows()], bandwidth_gb_s=4000.0)


def test_costs_are_medians_over_turns_in_plain_steps_of_their_own_stack(stack: Record) -> None:
    frame = stacks.costs(stack).set_index(["pair", "stack", "nodes"])
    row = frame.loc[("smollm2-135m", "graph", 60)]
    assert row["plain_ms"] == pytest.approx(1.02) and row["cycle_ms"] == pytest.approx(3.06)
    assert row["steps"] == pytest.approx(3.0) and row["host_ms"] == pytest.approx(0.102)
    assert row["floor_ms"] == pytest.approx(1e3 * rows.WEIGHTS / 4e12)
    assert row["utilisation"] == pytest.approx(row["floor_ms"] / row["plain_ms"])
    assert (row["capture_s"], row["compile_s"], row["buffer_mb"], row["graph_mb"]) == (1.5, 1.0, 50, 30)


def test_a_pair_whose_plain_step_was_not_reached_is_left_out() -> None:
    cut = [row for row in rows.cost_rows(["eager", "graph"]) if "random" not in row["pair"] or row["nodes"] != 1]
    frame = stacks.costs(made("08_stack", [*cut, *rows.text_rows(["eager", "graph"])], bandwidth_gb_s=4000.0))
    assert set(frame["pair"]) == {"smollm2-135m"} and set(frame["stack"]) == {"eager", "graph"}


def test_the_gain_of_each_stack_is_against_its_own_plain_decoding(stack: Record) -> None:
    frame = stacks.gains(stack).set_index(["stack", "tree", "group"])
    for name in rows.STEP_S:
        row = frame.loc[(name, "default", "in-domain")]
        assert row["speedup"] == pytest.approx(row["tokens_per_s"] / row["plain_tokens_per_s"])
        assert row["plain_tokens_per_s"] == pytest.approx(1 / rows.STEP_S[name]), "the prefill's token counted"
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"] and row["questions"] == 4
    taus = [frame.loc[(name, "default", "all"), "tau"] for name in rows.STEP_S]
    assert taus == [taus[0]] * 3, "the texts are the same"


def test_overhead_is_what_the_faster_stack_does_not_leave(stack: Record) -> None:
    gains = stacks.gains(stack).set_index(["stack", "tree", "group"])
    for row in stacks.overhead(stack).to_dict("records"):
        slow, fast = (gains.loc[(name, row["tree"], row["group"])] for name in ("eager", row["stack"]))
        saved, left = (1e3 / each["plain_tokens_per_s"] - 1e3 / each["tokens_per_s"] for each in (slow, fast))
        assert row["saved_ms"] == pytest.approx(saved) and row["left_ms"] == pytest.approx(left)
        assert row["speedup_slow"] == pytest.approx(slow["speedup"])
        assert row["speedup_fast"] == pytest.approx(fast["speedup"])
        if saved > 0:
            assert row["overhead"] == pytest.approx(1 - left / saved)
        else:
            assert math.isnan(row["overhead"])
    assert stacks.overhead_share(20.0, 10.0, 1.0, 0.5) == pytest.approx(0.95)


def test_a_gain_is_gone_where_the_line_crosses_one_along_the_logarithm() -> None:
    assert scaling.crossing([1, 4, 16], np.array([3.0, 2.0, 0.0])) == pytest.approx(8)
    assert scaling.crossing([1, 2, 4], np.array([2.0, 1.0, 0.5])) == pytest.approx(2)
    assert scaling.crossing([1, 2, 4], np.array([0.9, 2.0, 3.0])) == pytest.approx(1)
    assert math.isinf(scaling.crossing([1, 2, 4], np.array([3.0, 2.0, 1.5])))
    draws = scaling.crossing([1, 2], np.array([[2.0, 1.5], [2.0, 0.0], [0.5, 0.4]]))
    assert draws.tolist() == [math.inf, pytest.approx(math.sqrt(2)), 1.0]


def test_the_interval_reaches_beyond_the_last_point_where_some_resamples_do() -> None:
    steady = made("09_batch_context", rows.context_rows(loss=0.9, values=(1000, 2000, 4000, 8000)))
    found = scaling.gone(steady).set_index("nodes").loc[60]
    spread = [
        row | {"decode_s": row["decode_s"] * (1 if row["method"] == "plain" else 0.5 + 0.4 * row["place"])}
        for row in rows.context_rows(loss=0.9, values=(1000, 2000, 4000, 8000))
    ]
    wide = scaling.gone(made("09_batch_context", spread)).set_index("nodes").loc[60]
    assert 4000 < found["at"] < 8000 and found["at_low"] <= found["at"] <= found["at_high"] < math.inf
    assert math.isinf(wide["at_high"]) and wide["at_low"] < found["at_low"] and wide["last"] == 8000


def test_points_count_texts_that_differ_from_plain_decoding_one_by_one() -> None:
    found = list(rows.batch_rows(values=(1, 2)))
    frame = scaling.points(made("09_batch_context", found))
    assert frame["same"].eq(1).all() and set(frame["texts"]) == {rows.TEXTS}
    seconds = sum(row["decode_s"] for row in found if (row["value"], row["method"]) == (1, "plain"))
    assert frame.loc[0, "plain_tokens_per_s"] == pytest.approx(96 * rows.TEXTS / seconds), (
        "the prefill's tokens counted"
    )
    spoiled = [
        row | ({"ids_sha256": ["other", row["ids_sha256"][1]]} if row["value"] == 2 and row["place"] == 0 else {})
        for row in found
    ]
    frame = scaling.points(made("09_batch_context", spoiled)).set_index(["value", "nodes"])
    for share in ("same", "alone"):
        assert frame.loc[(2, 60), share] == pytest.approx(1 - 1 / rows.TEXTS) and frame.loc[(1, 60), share] == 1


def test_a_tree_that_differs_from_plain_decoding_may_still_write_alike_in_every_batch() -> None:
    found = [
        row | ({"ids_sha256": ["other"] * len(row["ids_sha256"])} if row["method"] == "eagle" else {})
        for row in (*rows.batch_rows(values=(1, 2)), *rows.context_rows(values=(1000, 2000)))
    ]
    frame = scaling.points(made("09_batch_context", found))
    assert frame["same"].eq(0).all()
    assert frame.loc[frame["axis"] == "batch", "alone"].eq(1).all()
    assert frame.loc[frame["axis"] == "context", "alone"].isna().all()


def test_timing_is_in_plain_steps_of_the_same_point() -> None:
    record = made("09_batch_context", [*rows.batch_rows(values=(1, 2)), *rows.scaling_timing_rows()])
    frame = scaling.timing(record)
    assert frame["steps"].to_list() == pytest.approx((frame["cycle_ms"] / frame["plain_ms"]).to_list())
    assert scaling.as_timed(record).header["bench"]["dtype"] == "float16"


def test_both_have_their_summary(stack: Record) -> None:
    assert len(summary.of(stack)) == 12
    assert len(summary.of(made("09_batch_context", rows.batch_rows()))) == 14


def test_a_point_at_which_memory_ran_out_is_no_point() -> None:
    left = {"key": "skipped/batch/2/pair", "what": "skipped", "axis": "batch", "value": 2, "pair": "pair",
            "reason": "out of memory"}  # fmt: skip
    found = [row for row in rows.batch_rows(values=(1, 2, 4)) if row["value"] < 4]
    record = made("09_batch_context", [*found[:-1], left])
    assert scaling.points(record)["value"].unique().tolist() == [1]
    assert set(scaling.gone(record)["last"]) == {1}


@pytest.mark.parametrize(
    "change", [{"tokens": 96}, {"questions": ["chat/other", "chat/another"]}], ids=["tokens", "set"]
)
def test_unequal_work_gives_no_speedup(change: dict[str, Any]) -> None:
    found = list(rows.batch_rows(values=(1, 2)))
    spoiled = [
        row | (change if (row["value"], row["method"], row["place"]) == (2, "eagle", 0) else {}) for row in found
    ]
    with pytest.raises(RecordError, match="at batch 2 plain decoding and the tree .* from which no speedup follows"):
        scaling.points(made("09_batch_context", spoiled))


@pytest.mark.parametrize(
    "change",
    [
        {"emitted": [-5, 3]}, {"emitted": None}, {"cycles": 7}, {"cycles": [1]}, {"questions": "chat/1"},
        {"ids_sha256": ["one"]}, {"value": "2"}, {"place": None}, {"method": None}, {"tokens": 1.5},
    ],
)  # fmt: skip
def test_a_damaged_row_of_a_batch_is_told(change: dict[str, Any]) -> None:
    row = next(row for row in rows.batch_rows(values=(2,)) if row["method"] == "eagle")
    assert fault({"kind": "run"} | row) is None
    said = fault({"kind": "run"} | row | change)
    assert said is not None and next(iter(change)) in said
