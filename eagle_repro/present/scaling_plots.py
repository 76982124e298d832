"""The figures of 09_batch_context: what is left of the gain along the batch and along the context."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from eagle_repro.measure import scaling
from eagle_repro.measure.records import Record
from eagle_repro.present.layout import tree_label
from eagle_repro.present.lines import LOOKS, end_labels, leave_room, ticks
from eagle_repro.present.scaling_tables import limit
from eagle_repro.present.theme import METHOD_COLOURS, STYLE, Picture, canvas, finish
from eagle_repro.present.words import word

__all__ = ["batches", "contexts", "timing"]

COLOUR = METHOD_COLOURS["eagle"]
PLAIN: dict[str, Any] = {"color": METHOD_COLOURS["plain"], "linewidth": 1.6}
LABELS = {"batch": "axis_texts", "context": "axis_context"}


@mpl.rc_context(STYLE)
def batches(record: Record, lang: str = "en") -> Picture:
    """Speedup, and tokens a second of all texts together, by texts decoded side by side."""
    frame = _along(scaling.points(record), "batch")
    figure, (left, right) = canvas(3.1, 2)
    _speedups(left, frame, lang)
    ends = _lines(right, frame, "tokens_per_s")
    plain = frame.drop_duplicates("value")
    right.plot(plain["value"], plain["plain_tokens_per_s"], marker="x", **PLAIN)
    ends.append((plain["value"].iloc[-1], plain["plain_tokens_per_s"].iloc[-1], word("plain_end", lang)))
    right.set(title=word("panel_rate", lang), ylim=(0, None))
    _axis(right, frame, "batch", lang, ends)
    return finish(figure, _finding(record, frame, "batch", lang), record, lang, [_bars(lang)])


@mpl.rc_context(STYLE)
def contexts(record: Record, lang: str = "en") -> Picture:
    """Speedup and tau by tokens of context before the answer."""
    frame = _along(scaling.points(record), "context")
    figure, (left, right) = canvas(3.1, 2)
    _speedups(left, frame, lang)
    ends = _lines(right, frame, "tau")
    right.set(title=word("panel_tau_short", lang), ylim=(0, None))
    _axis(right, frame, "context", lang, ends)
    return finish(figure, _finding(record, frame, "context", lang), record, lang, [_bars(lang)])


@mpl.rc_context(STYLE)
def timing(record: Record, lang: str = "en") -> Picture:
    """From which tau a cycle pays for the timing-only pair, along both axes; no assumption about tau in it."""
    record = scaling.as_timed(record)
    frame = scaling.timing(record)
    figure, panels = canvas(3.1, 2, share=False)
    for axes, axis in zip(panels, scaling.AXES, strict=True):
        rows = _along(frame, axis)
        ends = _lines(axes, rows, "steps")
        axes.set(title=word("axis_pays", lang), ylim=(0, None))
        _axis(axes, rows, axis, lang, ends)
    rows = _along(frame, "batch")
    rows = rows[(rows[scaling.TREE] == rows.iloc[0][scaling.TREE]).all(axis=1)]
    values = {"pair": rows["pair"].iloc[0], "shape": tree_label(rows.iloc[0]), "first": f"{rows['steps'].iloc[0]:.1f}"}
    values |= {"last": f"{rows['steps'].iloc[-1]:.1f}", "count": rows["value"].iloc[-1]}
    key = "scaling_timing" if len(rows) > 1 else "scaling_timing_one"
    spread = Line2D([], [], color=COLOUR, linewidth=1.2, label=word("scaling_spread", lang))
    return finish(figure, word(key, lang, **values), record, lang, [spread])


def _along(frame: pd.DataFrame, axis: str) -> pd.DataFrame:
    rows = frame[frame["axis"] == axis]
    if rows.empty:
        raise ValueError(f"no text was written along {axis}: measure 09_batch_context to its end")
    return rows


def _speedups(axes: Axes, frame: pd.DataFrame, lang: str) -> None:
    ends = _lines(axes, frame, "speedup")
    axes.hlines(1, frame["value"].min(), frame["value"].max(), zorder=1, **PLAIN)  # not through the labels at the ends
    axes.set(title=word("panel_against_plain", lang), ylim=(0, None))
    _axis(axes, frame, frame["axis"].iloc[0], lang, ends)


def _lines(axes: Axes, frame: pd.DataFrame, value: str) -> list[tuple[float, float, str]]:
    """A line a tree with its intervals; gives their right ends with the trees' names."""
    ends = []
    for (_, rows), (dash, marker) in zip(frame.groupby(scaling.TREE, sort=False), LOOKS, strict=False):
        if f"{value}_low" in rows:
            axes.vlines(rows["value"], rows[f"{value}_low"], rows[f"{value}_high"], color=COLOUR, linewidth=1.2)
        axes.plot(rows["value"], rows[value], color=COLOUR, linestyle=dash, marker=marker, markersize=5.5)
        ends.append((rows["value"].iloc[-1], rows[value].iloc[-1], tree_label(rows.iloc[0])))
    return ends


def _axis(axes: Axes, frame: pd.DataFrame, axis: str, lang: str, ends: list[tuple[float, float, str]]) -> None:
    values = sorted(set(frame["value"]))
    axes.set_xscale("log", base=2)
    names = {value: f"{value / 1000:g}k" for value in values if value >= 1000}
    ticks(axes, values, names, logarithmic=True)
    axes.set_xlabel(word(LABELS[axis], lang))
    axes.set_ylim(0, 1.12 * axes.dataLim.y1)
    leave_room(axes, logarithmic=True)
    end_labels(axes, ends)


def _bars(lang: str) -> Line2D:
    return Line2D([], [], color=COLOUR, linewidth=1.2, label=word("scaling_interval", lang))


def _finding(record: Record, frame: pd.DataFrame, axis: str, lang: str) -> str:
    """Of the tree that gives the most at the first point."""
    values = sorted(set(frame["value"]))
    begins = frame[frame["value"] == values[0]]
    best = begins.loc[begins["speedup"].idxmax()]
    rows = frame[(frame[scaling.TREE] == best[scaling.TREE]).all(axis=1)]
    places = scaling.gone(record)
    where = places[(places["axis"] == axis) & (places[scaling.TREE] == best[scaling.TREE]).all(axis=1)].iloc[0]
    numbers = {"first": f"{best['speedup']:.2f}", "end": f"{rows['speedup'].iloc[-1]:.2f}", "shape": tree_label(best)}
    if best["speedup"] <= 1:
        return word("scaling_none", lang, **numbers)
    if math.isinf(where["at"]):
        return word(f"{axis}_stays", lang, start=values[0], last=rows["value"].iloc[-1], **numbers)
    return word(f"{axis}_gone", lang, at=limit(where["at"], where["last"]), **numbers)
