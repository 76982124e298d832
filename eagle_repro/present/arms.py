"""The chart that compares two ways of one kind: groups of questions down, both values with intervals across."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from eagle_repro.present.lines import group_name
from eagle_repro.present.theme import METHOD_COLOURS, note
from eagle_repro.present.words import word

LINE = 0.42  # inches that a group takes
OFFSET = 0.16  # of each way from the middle of its group
ROOM = 0.2  # share of the axis that the labels at its right end take


@dataclass(frozen=True)
class Arm:
    """One of the two ways: the ending of its columns, its colour and marker, its name in the legend."""

    ending: str
    colour: str
    marker: str
    name: str

    @property
    def look(self) -> dict[str, Any]:
        return {"color": self.colour, "marker": self.marker, "markersize": 6.5, "linestyle": ""}


def height(frame: pd.DataFrame) -> float:
    """Inches that the chart of `frame` needs: a line a group, and the axis."""
    return 0.8 + LINE * len(frame)


def draw(axes: Axes, frame: pd.DataFrame, value: str, arms: Sequence[Arm], lang: str) -> None:
    """The ways' `value` of every row (columns group, domain, VALUE_ENDING with _low and _high), and of two ways what
    the second gives beyond the first (column VALUE_gain) at the right."""
    axes.axvline(1.0, color=METHOD_COLOURS["plain"], linewidth=2, zorder=1)
    rows = frame.to_dict("records")
    for place, row in enumerate(rows):
        for arm, shift in zip(arms, (-OFFSET, OFFSET) if len(arms) > 1 else (0,), strict=True):
            name = f"{value}_{arm.ending}"
            if pd.notna(row[f"{name}_low"]):
                span = (row[f"{name}_low"], row[f"{name}_high"])
                axes.hlines(place + shift, *span, color=arm.colour, linewidth=1.4, zorder=2)
            axes.plot(row[name], place + shift, zorder=3, **arm.look)
    _reach(axes, frame, value, arms)
    right = axes.get_xlim()[1]
    for place, row in enumerate(rows if len(arms) > 1 else ()):
        text = word("percent", lang, value=100 * row[f"{value}_gain"])
        note(axes, text, (right, place), (0, 0), ha="right", va="center", color="#222222")
    axes.set_yticks(range(len(frame)), [_name(row, lang) for row in rows], linespacing=1.05)
    axes.set_ylim(len(frame) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for place in range(1, len(frame)):
        axes.axhline(place - 0.5, color="#e5e5e5", linewidth=0.8, zorder=0)


def handles(arms: Sequence[Arm], frame: pd.DataFrame, lang: str, value: str = "tau") -> list[Artist]:
    """What the legend says: the two ways, and the interval where `value` has one."""
    found: list[Artist] = [Line2D([], [], label=arm.name, **arm.look) for arm in arms]
    if frame[f"{value}_{arms[0].ending}_low"].isna().all():
        return found
    return [*found, Line2D([], [], color=arms[-1].colour, linewidth=1.4, label=word("interval", lang))]


def _name(row: Mapping[Any, Any], lang: str) -> str:
    name = group_name(row["group"], lang)
    return f"{name}\n({word('out', lang)})" if row["domain"] == "out" else name


def _reach(axes: Axes, frame: pd.DataFrame, value: str, arms: Sequence[Arm]) -> None:
    columns = [f"{value}_{arm.ending}{end}" for arm in arms for end in ("", "_low", "_high")]
    values = frame[columns].astype(float)
    low, high = min(1.0, values.min().min()), max(1.0, values.max().max())
    axes.set_xlim(low - 0.06 * (high - low) - 0.02, high + ROOM * (high - low) + 0.02)
