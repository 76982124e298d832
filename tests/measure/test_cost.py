"""The cost formula gives the article's figures and refuses what no bench can have measured."""

from __future__ import annotations

import pytest

from eagle_repro.measure import cost
from eagle_repro.measure.cost import PhaseCosts, cycle_seconds, phase_costs, speedup


def test_the_cycle_of_the_article_gives_two_fold() -> None:
    # T4, Qwen3-1.7B, 64 nodes, in ms: plain and verify 44.7, drafting 8.9 in all, selection 0.4, rest 1.4.
    depth = 7
    costs = PhaseCosts(verify=44.7, draft=8.9 / (depth + 1), rest=0.4 + 1.4)
    assert cycle_seconds(44.7, depth, 8.9 / (depth + 1), 1.8) == pytest.approx(55.4)
    assert speedup(2.5, 44.7, costs, depth) == pytest.approx(2.02, abs=0.005)


def test_depth_is_paid_pass_by_pass_and_depth_zero_drafts_one_level() -> None:
    assert cycle_seconds(10, 0, 3, 1) == 14
    assert cycle_seconds(10, 4, 3, 1) - cycle_seconds(10, 3, 3, 1) == 3


def test_phases_of_an_instrumented_run_sum_to_its_cycles() -> None:
    cycles = [{"draft_s": 0.4, "verify_s": 1.0}, {"draft_s": 0.8, "verify_s": 1.4}]
    costs = phase_costs(cycles, depth=2, decode_s=4.0)
    assert costs is not None
    assert (costs.verify, costs.draft, costs.rest) == pytest.approx((1.2, 0.2, 0.2))
    assert cycle_seconds(costs.verify, 2, costs.draft, costs.rest) == pytest.approx(4.0 / 2)


@pytest.mark.parametrize("missing", [{"draft_s": None, "verify_s": 1.0}, {"draft_s": 1.0}])
def test_phases_that_a_stack_cannot_separate_are_unknown(missing: dict) -> None:
    assert phase_costs([{"draft_s": 1.0, "verify_s": 1.0}, missing], depth=2, decode_s=9.0) is None


def test_phases_longer_than_their_run_are_refused() -> None:
    with pytest.raises(ValueError, match="same run"):
        phase_costs([{"draft_s": 1.0, "verify_s": 1.0}], depth=0, decode_s=1.5)
    with pytest.raises(ValueError, match="no cycles"):
        phase_costs([], depth=0, decode_s=1.5)


@pytest.mark.parametrize("tau", [0.5, float("nan"), float("inf")])
def test_impossible_tau_is_refused(tau: float) -> None:
    with pytest.raises(ValueError, match="bonus token"):
        speedup(tau, 1.0, PhaseCosts(1.0, 1.0, 0.0), 1)


@pytest.mark.parametrize("times", [(-1.0, 1, 1.0, 0.0), (1.0, 1, float("nan"), 0.0), (1.0, -1, 1.0, 0.0)])
def test_impossible_phases_are_refused(times: tuple[float, int, float, float]) -> None:
    with pytest.raises(ValueError, match="was given"):
        cycle_seconds(*times)


def test_times_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="positive time"):
        speedup(2.0, 0.0, PhaseCosts(1.0, 1.0, 0.0), 1)
    with pytest.raises(ValueError, match="measured phases"):
        speedup(2.0, 1.0, PhaseCosts(0.0, 0.0, 0.0), 1)


def test_flat_ends_at_the_first_pass_that_costs_more() -> None:
    article = ([1, 192, 512], [44.7, 51.8, 125.6])
    assert cost.flat_until(*article) == 192
    assert cost.flat_until(*article, tolerance=0.1) == 1
    assert cost.flat_until(*article, tolerance=2.0) == 512
    assert cost.flat_until([1, 2, 4, 8], [1.0, 1.25, 1.3, 1.0]) == 2  # cheap again later does not count


@pytest.mark.parametrize("tokens", [[], [2, 4], [1, 4, 2], [1, 1], [1, 2, 3]])
def test_curves_that_cannot_be_read_are_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="rising counts from 1"):
        cost.flat_until(tokens, [1.0, 1.0])
