"""The numbers of the tables follow from the rows, and each average, baseline and phase is the one it is named for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle_repro.measure import summary
from eagle_repro.measure.records import Record, RecordWriter, read_record

Rows = list[dict[str, Any]]
Write = Callable[..., Record]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(rows: Rows, name: str = "02_speedup", bench: dict[str, Any] | None = None, **footer: Any) -> Record:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        with RecordWriter(folder / f"{name}.jsonl", bench={"card": "T4", **(bench or {})}, protocol={}) as writer:
            for number, row in enumerate(rows):
                cycles = row.pop("cycles", ())
                writer.write(str(number), row, cycles)
            return read_record(writer.complete(**footer))

    return written


def run(question: int, method: str, decode_s: float, accepted: list[int] | None = None, **named: Any) -> dict[str, Any]:
    """One run of 11 tokens, 10 of them after prefill."""
    eagle = method == "eagle"
    return {
        "set": "chat", "domain": "in", "language": "en", "question": question, "method": method,
        "variant": "default" if eagle else "-", "temperature": 0.0, "total_tokens": 60 if eagle else None,
        "depth": 1 if eagle else None, "top_k": 10 if eagle else None, "repeat": 0, "tokens": 11, "prefill_s": 1.0,
        "decode_s": decode_s, "accepted": accepted, "after_eos": 0.0, "loop_share": 0.0, "same_as_plain": True,
        "near_ties": 0, "instrumented": False,
    } | named  # fmt: skip


def test_tau_is_weighted_by_cycles_and_the_mean_over_questions_stands_beside_it(write: Write) -> None:
    rows = [run(q, "plain", 4.0) for q in (1, 2)] + [run(1, "eagle", 1.0, [3, 3]), run(2, "eagle", 1.0, [0] * 8)]
    row = summary.speedup(write(rows)).iloc[0]
    assert row["tau"] == pytest.approx(1.6) and row["tau_question_mean"] == pytest.approx(2.5)
    assert row["tau_low"] == 1.0 and row["tau_high"] == 4.0 and row["cycles"] == 10


def test_speedup_is_total_over_total_with_prefill_apart(write: Write) -> None:
    plain = [run(1, "plain", 10.0, prefill_s=2.0), run(2, "plain", 2.0, prefill_s=0.0)]
    eagle = [run(1, "eagle", 4.0, [1], prefill_s=2.0), run(2, "eagle", 2.0, [1], prefill_s=0.0)]
    row = summary.speedup(write(plain + eagle)).iloc[0]
    assert row["speedup"] == pytest.approx(12 / 6) and row["end_to_end"] == pytest.approx(14 / 8)
    assert row["speedup_median"] == pytest.approx((2.5 + 1.0) / 2)
    assert (row["speedup_low"], row["speedup_high"]) == (1.0, 2.5)


def test_each_baseline_has_its_own_speedup_and_a_missing_one_is_not_known(write: Write) -> None:
    rows = [run(1, "plain", 4.0), run(1, "eagle", 2.0, [1])]
    bare = summary.speedup(write([dict(row) for row in rows])).iloc[0]
    assert bare["speedup"] == 2.0 and bare["speedup_hf"] != bare["speedup_hf"]
    assert summary.speedup(write([*rows, run(1, "hf", 3.0)])).iloc[0]["speedup_hf"] == 1.5


def test_repeats_of_a_question_are_one_observation(write: Write) -> None:
    rows = [run(1, "plain", s, repeat=r) for r, s in enumerate((4.0, 6.0))]
    rows += [run(1, "eagle", s, [1], repeat=r) for r, s in enumerate((2.0, 3.0))]
    row = summary.speedup(write(rows)).iloc[0]
    assert row["speedup"] == 2.0 and row["questions"] == 1 and row["cycles"] == 2
    assert row["speedup_low"] is None or row["speedup_low"] != row["speedup_low"]


def test_unequal_work_is_compared_per_token_and_noted(write: Write) -> None:
    row = summary.speedup(write([run(1, "plain", 6.4, tokens=64), run(1, "eagle", 3.0, [1], tokens=60)])).iloc[0]
    assert row["speedup"] == pytest.approx(2.0) and "unequal token counts" in row["note"]


def test_sampled_text_is_compared_with_plain_text_sampled_alike(write: Write) -> None:
    drawn = {"temperature": 0.7, "variant": "sampled"}
    rows = [run(1, "plain", 100.0), run(1, "plain", 3.0, **drawn), run(1, "eagle", 2.0, [1], **drawn)]
    rows.append(run(1, "hf", 50.0))
    row = summary.speedup(write(rows)).iloc[0]
    assert row["speedup"] == 1.5 and row["speedup_hf"] != row["speedup_hf"]


CYCLE = {"draft_s": 0.2, "verify_s": 0.5, "accept_s": 0.05, "commit_s": 0.05}


def test_phases_are_means_over_cycles_and_the_rest_makes_them_whole(write: Write) -> None:
    slow = CYCLE | {"verify_s": 0.7}
    inside = run(1, "eagle", 2.4, [1, 1], instrumented=True, cycles=[CYCLE, slow])
    row = summary.phases(write([run(1, "plain", 3.0), run(1, "eagle", 9.0, [4, 2]), inside])).iloc[0]
    expected = {"draft_ms": 200, "verify_ms": 600, "accept_ms": 50, "commit_ms": 50, "rest_ms": 300, "cycle_ms": 1200}
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["plain_ms"] == pytest.approx(300), "ten steps: the first of the 11 tokens comes from prefill"
    assert row["tau"] == 4.0 and row["cycles"] == 2


def test_the_prediction_follows_the_formula_and_leaves_instrumented_runs_out_of_the_headline(write: Write) -> None:
    inside = run(1, "eagle", 2.0, [9, 9], instrumented=True, cycles=[CYCLE, CYCLE])
    row = summary.speedup(write([run(1, "plain", 3.0), run(1, "eagle", 2.0, [4, 2]), inside])).iloc[0]
    assert row["tau"] == 4.0 and row["speedup"] == 1.5 and row["cycles"] == 2
    assert row["predicted"] == pytest.approx(4.0 * 0.3 / 1.0)


def test_a_stack_that_cannot_tell_phases_gives_no_prediction(write: Write) -> None:
    dark = CYCLE | {"draft_s": None}
    inside = run(1, "eagle", 2.0, [1], instrumented=True, cycles=[dark])
    record = write([run(1, "plain", 3.0), run(1, "eagle", 2.0, [1]), inside])
    predicted = summary.speedup(record).iloc[0]["predicted"]
    assert predicted != predicted
    assert summary.phases(record).iloc[0]["draft_ms"] != summary.phases(record).iloc[0]["draft_ms"]


def test_sets_keep_the_records_order_and_trees_have_one_of_their_own(write: Write) -> None:
    rows = []
    for name in ("russian", "chat"):
        for variant in ("sampled", "small", "default"):
            rows += [run(1, "plain", 2.0, set=name), run(1, "eagle", 1.0, [1], set=name, variant=variant)]
    frame = summary.speedup(write(rows))
    wanted = [(name, variant) for name in ("russian", "chat") for variant in ("default", "small", "sampled")]
    assert list(zip(frame["set"], frame["variant"], strict=True)) == wanted


def test_a_difference_or_a_hopeless_tau_is_told(write: Write) -> None:
    rows = [run(q, "plain", 2.0) for q in (1, 2)]
    rows += [run(1, "eagle", 1.0, [0] * 9), run(2, "eagle", 1.0, [0] * 9, same_as_plain=False, near_ties=2)]
    row = summary.speedup(write(rows)).iloc[0]
    assert not row["identical"] and row["near_ties"] == 2 and "below 1.05" in row["warning"]


def test_a_roofline_has_medians_spread_and_the_floor(write: Write) -> None:
    rows = [{"tokens": n, "repeat": r, "seconds": s} for n in (8, 1) for r, s in enumerate((0.4 * n, 0.1 * n, 0.2 * n))]
    footer = {"bandwidth_gb_s": 10.0, "weight_bytes": 10**9}
    frame = summary.roofline(write([dict(row) for row in rows], "01_roofline", **footer, peak_gb_s=None))
    assert list(frame["tokens"]) == [1, 8]
    assert frame.iloc[0][["ms", "ms_low", "ms_high", "floor_ms"]].tolist() == pytest.approx([200, 100, 400, 100])
    assert frame["utilisation"].tolist() == pytest.approx([0.5, 0.0625]) and frame.iloc[1]["ms_per_token"] == 200
    peak = summary.roofline(write(rows, "01_roofline", **footer, peak_gb_s=20.0))
    assert peak["floor_ms"].tolist() == pytest.approx([50, 50]), "the card's peak goes before what was measured"
    assert summary.flat_until(frame) == 1


def test_a_record_of_something_else_is_refused(write: Write) -> None:
    with pytest.raises(ValueError, match="holds no runs of 02_speedup"):
        summary.speedup(write([{"tokens": 1, "seconds": 1.0}], "01_roofline"))


def test_two_records_stand_side_by_side_with_what_differs_between_their_benches(write: Write) -> None:
    def rows(seconds: float, *names: str) -> Rows:
        return [
            each for name in names for each in (run(1, "plain", 4.0, set=name), run(1, "eagle", seconds, [1], set=name))
        ]

    now = {"utc": "2026-01-01"}
    left = write(rows(2.0, "code", "chat"), bench={"torch": "2.10", "pair": {"name": "a"}, "now": now})
    right = write(rows(1.0, "chat"), bench={"torch": "2.13", "pair": {"name": "a"}, "cuda": "12.8"})
    differs = summary.bench_differences(left, right)
    assert differs.set_index("name").loc["torch"].tolist() == ["2.10", "2.13"]
    assert set(differs["name"]) == {"torch", "cuda"}
    frame = summary.side_by_side(left, right).set_index("set")
    assert list(frame.index) == ["code", "chat"]
    assert frame.loc["chat", ["speedup_left", "speedup_right"]].tolist() == [2.0, 4.0]
    assert frame.loc["code", "speedup_left"] == 2.0 and frame.loc["code", "speedup_right"] != 2.0
