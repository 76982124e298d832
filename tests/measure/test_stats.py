"""Every average has one meaning and a name of its own (CASES B36, B50-B52, B55)."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from eagle_repro.measure.stats import (
    Work,
    chain_acceptance,
    estimate,
    loop_share,
    measured_speedup,
    summarise_tau,
    tau,
    tau_warning,
)


def test_tau_counts_the_bonus_token_of_every_cycle() -> None:
    assert tau([3, 0, 2]) == pytest.approx(2.667, abs=0.001)
    assert tau([4]) == 5.0
    assert tau([]) is None


def test_always_right_and_never_right_drafters_give_the_ends_of_tau() -> None:
    assert tau([7] * 20) == 8.0
    assert tau([0] * 20) == 1.0


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 accepted"):
        tau([2, -1])


def test_both_averages_of_tau_stand_apart() -> None:
    summary = summarise_tau([[3, 3], [0] * 8])
    assert summary.step_weighted is not None
    assert summary.step_weighted.value == pytest.approx(1.6)
    assert summary.question_mean == pytest.approx(2.5)
    assert (summary.questions, summary.cycles) == (2, 10)


def test_the_interval_of_tau_covers_it_and_comes_out_the_same_again() -> None:
    questions = [[3, 2, 4], [1, 0, 1, 1], [2, 2], [5, 3], [0, 0, 1]]
    first, again = summarise_tau(questions), summarise_tau(questions)
    assert first == again
    interval = first.step_weighted
    assert interval is not None and interval.low is not None and interval.high is not None
    assert interval.low < interval.value < interval.high
    assert interval.resamples == 10_000 and interval.level == 0.95
    # Questions, not cycles, are drawn: no draw can leave the range of the questions' own tau.
    assert interval.low >= 1 + 1 / 3 and interval.high <= 5.0


def test_questions_without_cycles_change_nothing() -> None:
    assert summarise_tau([[3, 3], [], [0] * 8]) == summarise_tau([[3, 3], [0] * 8])
    empty = summarise_tau([[], []])
    assert empty.step_weighted is None and empty.question_mean is None and empty.warning is None


def test_one_question_has_a_value_and_no_interval() -> None:
    headline = summarise_tau([[3, 1]]).step_weighted
    assert headline is not None
    assert (headline.value, headline.low, headline.high, headline.resamples) == (3.0, None, None, 0)


def test_a_head_that_never_agrees_is_warned_about() -> None:
    never = summarise_tau([[0] * 100])
    assert never.warning is not None and "1.00" in never.warning and "1.05" in never.warning
    assert "\n" not in never.warning
    assert summarise_tau([[1, 0, 1]]).warning is None
    assert tau_warning(1.05) is None and tau_warning(None) is None and tau_warning(1.049) is not None


def test_three_acceptance_rates_of_a_chain_are_three_numbers() -> None:
    rates = chain_acceptance([3, 0, 2], drafted=3)
    assert rates.accepted_per_drafted == pytest.approx(0.556, abs=0.001)
    assert rates.per_position == pytest.approx((0.667, 0.667, 0.333), abs=0.001)
    assert rates.conditional == pytest.approx((0.667, 1.0, 0.5), abs=0.001)


def test_rates_without_a_denominator_are_unknown() -> None:
    assert chain_acceptance([], drafted=2).accepted_per_drafted is None
    never = chain_acceptance([0, 0], drafted=2)
    assert never.per_position == (0.0, 0.0) and never.conditional == (0.0, None)


@pytest.mark.parametrize(("accepted", "drafted"), [([4], 3), ([-1], 3), ([0], 0)])
def test_counts_that_do_not_fit_the_chain_are_refused(accepted: list[int], drafted: int) -> None:
    with pytest.raises(ValueError, match="drafted tokens accepts"):
        chain_acceptance(accepted, drafted)


def test_prefill_is_apart_from_decoding_and_both_speedups_are_given() -> None:
    both = measured_speedup([Work(100, 10.0, prefill_s=2.0)], [Work(100, 4.0, prefill_s=2.0)])
    assert both.headline.value == pytest.approx(2.5)
    assert both.end_to_end == pytest.approx(2.0)
    assert both.equal_tokens and both.note is None


def test_unequal_work_is_compared_per_token_and_flagged() -> None:
    uneven = measured_speedup([Work(64, 6.4)], [Work(60, 3.0)])
    assert uneven.headline.value == pytest.approx(2.0)
    assert not uneven.equal_tokens
    assert uneven.note is not None and "1 of 1" in uneven.note and "per token" in uneven.note


def test_the_headline_is_a_ratio_of_totals_and_the_median_is_of_questions() -> None:
    plain = [Work(10, seconds) for seconds in (10.0, 1.0, 1.0)]
    speculative = [Work(10, seconds) for seconds in (10.0, 0.5, 0.25)]
    result = measured_speedup(plain, speculative)
    assert result.headline.value == pytest.approx(12.0 / 10.75)
    assert result.median.value == pytest.approx(2.0)
    assert result.by_question == pytest.approx((1.0, 2.0, 4.0))


def test_the_bootstrap_keeps_pairs_together() -> None:
    # Questions differ a hundredfold, each speeds up by exactly 2: paired draws all say 2, unpaired ones would not.
    plain = [Work(10, seconds) for seconds in (1.0, 3.0, 10.0, 30.0, 100.0)]
    speculative = [Work(10, work.decode_s / 2) for work in plain]
    result = measured_speedup(plain, speculative)
    for interval in (result.headline, result.median):
        assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))
        assert interval.resamples == 10_000


def test_the_bootstrap_interval_has_the_width_that_theory_gives() -> None:
    values = np.random.default_rng(7).normal(size=400)
    mean = estimate(lambda picks: values[picks].mean(-1), 400)
    assert mean == estimate(lambda picks: values[picks].mean(-1), 400)  # the same digits again
    assert mean != estimate(lambda picks: values[picks].mean(-1), 400, seed=1)
    assert mean.low is not None and mean.high is not None
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.05)


@pytest.mark.parametrize("lists", [([], []), ([Work(1, 1.0)], [])])
def test_runs_that_cannot_be_paired_are_refused(lists: tuple[list[Work], list[Work]]) -> None:
    with pytest.raises(ValueError, match="one of each per question"):
        measured_speedup(*lists)


@pytest.mark.parametrize("bad", [(0, 1.0), (5, 0.0), (5, float("nan")), (5, 1.0, -1.0)])
def test_work_that_was_not_measured_is_refused(bad: tuple) -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        Work(*bad)


def test_results_are_plain_enough_for_a_record() -> None:
    result = measured_speedup([Work(1, 1.0)] * 3, [Work(1, 0.5)] * 3)
    json.dumps(dataclasses.asdict(result), allow_nan=False)
    json.dumps(dataclasses.asdict(summarise_tau([[1, 2], [3]])), allow_nan=False)
    json.dumps(dataclasses.asdict(chain_acceptance([1, 2], 3)), allow_nan=False)


def test_looping_text_is_told_from_text_that_goes_on() -> None:
    assert loop_share(list(range(100))) == 0.0
    assert loop_share([1, 2, 3] * 40) == pytest.approx((113 - 3) / 113)
    assert loop_share(list(range(60)) + list(range(60)), n=8) == pytest.approx(53 / 113)
    # Repeats shorter than n are ordinary text.
    assert loop_share([1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3, 4, 7]) == 0.0


def test_text_too_short_to_loop_is_unknown() -> None:
    assert loop_share([1] * 7) is None
    assert loop_share([1] * 8) == 0.0
    with pytest.raises(ValueError, match="n=0"):
        loop_share([1, 2], n=0)


def test_loops_are_found_in_arrays_too() -> None:
    assert loop_share(np.array([1, 2, 3] * 40)) == loop_share([1, 2, 3] * 40)
