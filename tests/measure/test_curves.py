"""Cost curves say what was measured, predictions follow from them by the formula, and the rules choose as they say."""

from __future__ import annotations

from typing import Any

import pytest

from eagle_repro.measure.curves import (
    REFERENCE_DIVISORS,
    Curves,
    Line,
    Shape,
    batch_speedup,
    predict,
    rank,
    read_curves,
    reference_pick,
)
from eagle_repro.measure.replay import Recording

NEW_TOKENS = 13
PLAIN, VERIFY, REST = 2.0, Line("verify", (2, 10, 100), (2.0, 2.0, 11.0)), Line("rest", (2, 100), (0.5, 0.5))
DRAFTS = {1: Line("draft 1", (0, 4), (0.25, 1.25)), 5: Line("draft 5", (0, 4), (0.5, 2.5))}


@pytest.fixture
def curves() -> Curves:
    """A pass is flat up to 10 nodes and then costs 0.1 a node; a draft pass 0.25 at width 1 and 0.5 at width 5."""
    return Curves(PLAIN, VERIFY, REST, DRAFTS)


def recording(path: list[list[int]], top_k: int = 5) -> Recording:
    """Every position has this path."""
    return Recording(top_k, 4, [path] * (NEW_TOKENS - 1))


#: The agreeing candidates rank 0, 3 and 20, at whatever depth.
THREE_LEVELS = [[0] * 5, [3] * 4, [20] * 3]


def test_a_line_joins_its_points_and_ends_there() -> None:
    assert (VERIFY(2), VERIFY(6), VERIFY(55), VERIFY(100)) == (2.0, 2.0, 6.5, 11.0)
    for beyond in (1, 101):
        with pytest.raises(ValueError, match=f"verify was measured from 2 to 100, and {beyond} was asked for"):
            VERIFY(beyond)
    for at, seconds in (((), ()), ((1, 1), (1.0, 1.0)), ((2, 1), (1.0, 1.0)), ((1, 2), (1.0,))):
        with pytest.raises(ValueError, match="rising points are needed"):
            Line("bad", at, seconds)


def test_drafting_between_two_widths_lies_between_them(curves: Curves) -> None:
    assert curves.draft(4, 5) == 2.5
    assert curves.draft(2, 1) == 0.75
    assert curves.draft(4, 3) == pytest.approx((1.25 + 2.5) / 2)
    for depth, top_k in ((5, 5), (2, 6), (2, 0)):
        with pytest.raises(ValueError, match="was asked for"):
            curves.draft(depth, top_k)


def test_a_prediction_is_the_formula_with_measured_phases(curves: Curves) -> None:
    # (10, 2, 5): 9 candidates are kept, so ranks 0 and 3 are accepted and rank 20 is not: 3 tokens a cycle, 4 cycles.
    found = predict([recording(THREE_LEVELS)], curves, Shape(10, 2, 5), NEW_TOKENS)
    assert found.tau == 3
    assert found.cycle_s == pytest.approx(2.0 + 1.5 + 0.5)
    assert found.speedup == pytest.approx(3 * 2.0 / 4.0)
    # One node more than rank 20 needs: the third level is accepted as well, and the pass is no longer flat.
    wide = predict([recording(THREE_LEVELS)], curves, Shape(22, 2, 5), NEW_TOKENS)
    assert (wide.tau, wide.cycle_s) == (4, pytest.approx(2.0 + 0.1 * 12 + 1.5 + 0.5))


def test_the_speedup_credits_no_token_beyond_the_budget(curves: Curves) -> None:
    # Four tokens a cycle: 10 after the prefill's take 3 cycles, which could give 12. tau is uncut, equal work is not.
    found = predict([recording(THREE_LEVELS)], curves, Shape(22, 2, 5), 11)
    assert found.tau == 4
    assert found.speedup == pytest.approx((10 / 3) * 2.0 / found.cycle_s)


def test_questions_count_by_their_cycles(curves: Curves) -> None:
    never, always = recording([]), recording(THREE_LEVELS)
    found = predict([never, always], curves, Shape(10, 2, 5), NEW_TOKENS)
    assert found.tau == pytest.approx((12 * 1 + 4 * 3) / (12 + 4))
    assert found.speedup == pytest.approx(2 * 12 * PLAIN / ((12 + 4) * found.cycle_s))


def test_what_was_not_measured_is_refused(curves: Curves) -> None:
    with pytest.raises(ValueError, match="no recording has top_k=1"):
        predict([recording([])], curves, Shape(3, 2, 1), NEW_TOKENS)
    with pytest.raises(ValueError, match="draft 5 was measured from 0 to 4, and 5 was asked"):
        predict([Recording(5, 5, [[]] * 12)], curves, Shape(10, 5, 5), NEW_TOKENS)
    with pytest.raises(ValueError, match="outside the recording"):
        predict([recording([])], curves, Shape(10, 5, 5), NEW_TOKENS)
    assert not curves.covers(Shape(101, 2, 5)) and not curves.covers(Shape(10, 2, 6)) and curves.covers(Shape(10, 2, 5))


def test_the_fastest_comes_first_and_of_equals_the_smallest(curves: Curves) -> None:
    shapes = [Shape(nodes, depth, 5) for depth in range(5) for nodes in (2, 5, 10, 22, 60) if nodes <= 6 + 25 * depth]
    ranking = rank([recording(THREE_LEVELS)], curves, shapes, NEW_TOKENS)
    assert [each.speedup for each in ranking] == sorted((each.speedup for each in ranking), reverse=True)
    # Five nodes give what ten give at the same cost of a pass; a third level needs 22 and costs more than it brings.
    assert ranking[0].shape == (5, 1, 5)
    assert rank([recording([])], curves, shapes, NEW_TOKENS)[0].shape == (2, 0, 5)
    with pytest.raises(ValueError, match="no shape"):
        rank([recording([])], curves, [], NEW_TOKENS)


def cost(phase: str, seconds: float, **of: Any) -> dict[str, Any]:
    return {"what": "cost", "phase": phase, "nodes": None, "depth": None, "top_k": None, "seconds": seconds} | of


def test_curves_are_medians_of_a_records_costs() -> None:
    rows = [
        {"what": "recording"},
        *(cost("plain", seconds, nodes=1) for seconds in (1.0, 2.0, 90.0)),
        *(cost("verify", seconds, nodes=8) for seconds in (3.0, 4.0, 80.0)),
        cost("verify", 9.0, nodes=16),
        cost("rest", 0.5, nodes=8),
        *(cost("draft", depth + 1.0, depth=depth, top_k=4) for depth in (5, 0)),
    ]
    curves = read_curves(rows)
    assert curves.plain == 2.0
    assert (curves.verify.at, curves.verify.seconds) == ((8.0, 16.0), (4.0, 9.0))
    assert (curves.drafts[4].at, curves.drafts[4].seconds) == ((0.0, 5.0), (1.0, 6.0))
    for phase in ("plain", "verify", "draft", "rest"):
        with pytest.raises(ValueError, match=f"no cost of {phase} was measured"):
            read_curves([row for row in rows if row.get("phase") != phase])
    with pytest.raises(ValueError, match="no cost of plain, verify, draft, rest"):
        read_curves([])


@pytest.mark.parametrize(
    ("times", "nodes"),
    [
        ({40: 1.0, 48: 1.0, 50: 1.0, 56: 1.0, 60: 1.0}, 60),
        ({40: 40.0, 48: 48.0, 50: 50.0, 56: 56.0, 60: 60.0}, 40),
        ({40: 1.0, 48: 1.0, 50: 1.0, 56: 1.3, 60: 1.3}, 50),
        ({40: 1.0, 48: 1.04, 50: 1.08, 56: 1.11, 60: 1.14}, 48),
        ({40: 1.0, 48: 1.06, 50: 1.08, 56: 1.09, 60: 1.14}, 56),
    ],
)
def test_the_references_rule_divides_each_pass_by_its_own_number(times: dict[int, float], nodes: int) -> None:
    assert reference_pick(times) == nodes


def test_the_references_rule_wants_its_five_passes() -> None:
    with pytest.raises(ValueError, match=r"times of \[40, 64\] tokens were given"):
        reference_pick({40: 1.0, 64: 1.0})
    assert list(REFERENCE_DIVISORS) == [40, 48, 50, 56, 60]


def test_a_batch_pays_for_wider_passes(curves: Curves) -> None:
    one, shape = batch_speedup(curves, 3.0, Shape(10, 2, 1), 1), Shape(10, 2, 1)
    assert one == pytest.approx(3 * PLAIN / (2.0 + 0.75 + 0.5))
    # Five texts: plain passes over 5 tokens are still flat, trees of 50 nodes are not, drafts are 5 wide.
    assert batch_speedup(curves, 3.0, shape, 5) == pytest.approx(3 * 2.0 / (6.0 + 1.5 + 0.5))
    with pytest.raises(ValueError, match="and 11 was asked for"):
        batch_speedup(curves, 3.0, shape, 11)
