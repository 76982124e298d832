"""The figures of 06_lossless: how close the choice was where greedy texts differ, and the permutation tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from eagle_repro.measure import exactness
from eagle_repro.measure.records import Record
from eagle_repro.present.theme import GREY, METHOD_COLOURS, PREDICTION_COLOUR, STYLE, Picture, canvas, finish, note
from eagle_repro.present.words import word

__all__ = ["near_ties", "permutation"]

COLOUR = METHOD_COLOURS["eagle"]
MISMATCH: dict[str, Any] = {"marker": "o", "color": COLOUR, "markersize": 6, "linestyle": "", "markerfacecolor": "none"}
TYPICAL: dict[str, Any] = {"marker": "D", "color": METHOD_COLOURS["plain"], "markersize": 7, "linestyle": ""}
TEST_LOOKS = {"plain-plain": ("D", METHOD_COLOURS["plain"]), "eagle": ("o", COLOUR)}
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # so that no line runs through a number
WRONG = ("X", PREDICTION_COLOUR)
LINEAR = 0.01  # logits below which the axis of gaps is linear, so that a gap of 0 has a place


@mpl.rc_context(STYLE)
def near_ties(record: Record, lang: str = "en") -> Picture:
    """The gap at every mismatch of greedy texts beside the typical gap, by precision."""
    frame, gaps = exactness.greedy(record), exactness.gaps(record)
    figure, (axes,) = canvas(0.9 + 0.62 * len(frame))
    for place, row in enumerate(frame.to_dict("records")):
        own = gaps.loc[gaps["dtype"] == row["dtype"], "gap"].astype(float)
        # Spread over the line, so that mismatches of one gap do not hide each other.
        spread = np.linspace(-0.18, 0.18, len(own)) if len(own) > 1 else np.zeros(len(own))
        axes.plot(own, place + spread, **MISMATCH)
        axes.plot(row["typical_gap"], place, **TYPICAL)
        axes.vlines(row["max_gap"], place - 0.35, place + 0.35, color=GREY, linestyle=(0, (1, 1)))
    names = [
        word("per_thousand", lang, dtype=row["dtype"], rate=f"{row['per_thousand']:.1f}")
        for row in frame.to_dict("records")
    ]
    axes.set_xscale("symlog", linthresh=LINEAR)
    ticks = [0, 0.01, 0.1, 1, 10]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlim=(-0.002, 1.6 * max(float(frame["typical_gap"].max()), 10.0)), ylim=(len(frame) - 0.5, -0.5))
    axes.set_yticks(range(len(frame)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(word("axis_gap", lang))
    legend = [
        Line2D([], [], label=word("gap_mismatch", lang), **MISMATCH),
        Line2D([], [], label=word("gap_typical", lang), **TYPICAL),
        Line2D([], [], color=GREY, linestyle=(0, (1, 1)), label=word("gap_allowed", lang)),
    ]
    return finish(figure, _ties_finding(frame, lang), record, lang, legend)


@mpl.rc_context(STYLE)
def permutation(record: Record, lang: str = "en") -> Picture:
    """The control's p beside those of chance, and p of the engine and of the wrong rules."""
    frame = exactness.permutations(record)
    controls, tests = frame[frame["name"] == "plain-plain"], frame[frame["name"] != "plain-plain"]
    figure, (left, right) = canvas(max(2.6, 0.7 + 0.36 * len(tests)), 2)
    _control(left, controls.to_dict("records"), lang)
    _tests(right, tests.to_dict("records"), lang)
    return finish(figure, _test_finding(frame, lang), record, lang)


def _control(axes: Axes, rows: list[dict[Any, Any]], lang: str) -> None:
    """The share of controls below each p; the diagonal is what a test that says the truth gives."""
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    note(axes, word("by_chance", lang), (0.98, 0.03), (0, 0), ha="right", fontsize=8.5)
    for number, row in enumerate(rows):
        found = np.sort(np.array(row["splits"], dtype=float))
        dash = "-" if number == 0 else "--"
        axes.step(
            [0, *found, 1], [0, *np.arange(1, len(found) + 1) / len(found), 1], color="#222222", linestyle=dash,
            where="post",
        )  # fmt: skip
        share = word("found_below", lang, share=f"{100 * row['splits_below_005']:.0f}")
        note(axes, f"{row['pair']}: {share}", (0.03, 0.96), (0, -13 * number), va="top", color="#222222", fontsize=8.5)
    axes.set(xlim=(0, 1), ylim=(0, 1), title=word("panel_control", lang))
    axes.set(xlabel=word("axis_p", lang), ylabel=word("axis_share_below", lang))


def _tests(axes: Axes, rows: list[dict[Any, Any]], lang: str) -> None:
    """p of every test on a logarithmic axis, and the border below which a wrong rule is caught."""
    axes.axvline(exactness.CAUGHT, color=GREY, linewidth=1, linestyle=(0, (1, 1)))
    for place, row in enumerate(rows):
        marker, colour = TEST_LOOKS.get(row["name"], WRONG)
        axes.plot(row["p"], place, marker=marker, color=colour, markersize=7)
        left = row["p"] > 0.03
        note(
            axes, f"{row['p']:.2g}", (row["p"], place), (-9 if left else 9, 0), va="center", color="#222222",
            ha="right" if left else "left", bbox=WHITE,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [word(f"test_{row['name']}", lang, pair=row["pair"]) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set(xscale="log", xlim=(5e-5, 2), ylim=(len(rows) - 0.5, -0.9), title=word("panel_tests", lang))
    axes.set_xticks([1e-4, 1e-3, 1e-2, 0.1, 1], ["0.0001", "0.001", "0.01", "0.1", "1"])
    axes.set_xticks([], minor=True)
    note(axes, word("caught_line", lang), (exactness.CAUGHT, -0.9), (4, -3), va="top", fontsize=8.5)
    axes.set_xlabel(word("axis_p", lang))


def _ties_finding(frame: pd.DataFrame, lang: str) -> str:
    total, beyond = int(frame["mismatches"].sum()), int(frame["unexcused"].sum())
    key = "none" if not total else "some" if beyond else "all"
    return word(f"ties_{key}", lang, tokens=int(frame["tokens"].sum()), count=beyond, total=total)


def _test_finding(frame: pd.DataFrame, lang: str) -> str:
    rows: list[Mapping[Any, Any]] = frame.to_dict("records")
    wrong = [row for row in rows if row["name"].startswith("broken-")]
    if not all(row["passed"] for row in rows):
        return word("permutation_fail", lang)
    key = "permutation_pass" if wrong else "permutation_alone"
    return word(key, lang, count=len(wrong), samples=int(rows[0]["samples"]))
