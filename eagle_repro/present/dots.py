"""The dot chart that several figures share: question sets down, a value with its interval across."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from eagle_repro.present.layout import tree_label
from eagle_repro.present.theme import METHOD_COLOURS, mark, note
from eagle_repro.present.words import word

LINE = 0.21  # inches between two variants of a set
GAP = 0.8  # space between two sets, in such lines


def height(frame: pd.DataFrame) -> float:
    """Inches that the chart of `frame` needs: a line a row, a gap a set, and the axis."""
    return 0.75 + LINE * (len(frame) + GAP * frame["set"].nunique())


def draw(axes: Axes, frame: pd.DataFrame, column: str, *, baseline: str, lang: str, digits: str | None) -> list[float]:
    """Draw `column` of every row (columns set, domain, variant, and `column` with _low and _high) at its place.

    baseline: the method whose own value is 1, marked by a line in its colour; digits: format of the number beside a
    dot, None for none. Returns the places of the rows.
    """
    places, borders = _places(frame)
    axes.axvline(1.0, color=METHOD_COLOURS[baseline], linewidth=2, zorder=1)
    for place, row in zip(places, frame.to_dict("records"), strict=True):
        value, low, high = row[column], row[f"{column}_low"], row[f"{column}_high"]
        if pd.isna(value):
            continue
        if pd.notna(low):
            axes.hlines(place, low, high, color=METHOD_COLOURS["eagle"], linewidth=1.5, zorder=2)
        axes.plot(value, place, zorder=3, **mark(row["variant"]))
        if digits:
            end = high if pd.notna(high) else value
            # On white, so that the line of the baseline does not run through the number.
            under = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            note(axes, digits.format(value), (end, place), (8, 0), va="center", color="#222222", bbox=under)
    _name_sets(axes, frame, places, borders, lang)
    return places


def span(axes: Axes, frame: pd.DataFrame, columns: Sequence[str], room: float = 0.06) -> None:
    """Set the reach of the x axis to all values and intervals of `columns` and to 1; room: share left free beyond."""
    reach = frame[[name for name in frame if str(name).removesuffix("_low").removesuffix("_high") in columns]]
    values = reach.astype(float).to_numpy()
    low, high = min(1.0, np.nanmin(values)), max(1.0, np.nanmax(values))
    axes.set_xlim(low - 0.06 * (high - low) - 0.02, high + room * (high - low) + 0.02)


def handles(frame: pd.DataFrame, lang: str) -> list[Artist]:
    """What the legend says: the variants of the tree, and the interval where there is one."""
    rows = frame.drop_duplicates("variant").to_dict("records")
    found: list[Artist] = [
        Line2D([], [], label=word(row["variant"], lang, **shape_words(row)), **mark(row["variant"])) for row in rows
    ]
    if frame["tau_low"].isna().all():
        return found
    return [*found, Line2D([], [], color=METHOD_COLOURS["eagle"], linewidth=1.5, label=word("interval", lang))]


def shape_words(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The tree of a row as its label needs it."""
    shape = {name: row[name] for name in ("total_tokens", "depth", "top_k")}
    return {"shape": tree_label(shape), "temperature": row.get("temperature")}


def _places(frame: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Where each row stands, and the borders between sets; rows of one set are neighbours."""
    places: list[float] = []
    borders: list[float] = []
    place, last = 0.0, None
    for name in frame["set"]:
        if last is not None:
            place += 1 if name == last else 1 + GAP
            if name != last:
                borders.append(place - (1 + GAP) / 2)
        places.append(place)
        last = name
    return places, borders


def _name_sets(axes: Axes, frame: pd.DataFrame, places: Sequence[float], borders: Sequence[float], lang: str) -> None:
    middles = pd.Series(places).groupby(list(frame["set"]), sort=False).mean()
    outside = set(frame.loc[frame["domain"] == "out", "set"])
    names = [f"{name}\n({word('out', lang)})" if name in outside else name for name in middles.index]
    axes.set_yticks(list(middles), names, linespacing=1.05)
    axes.set_ylim(places[-1] + 0.9, -0.9)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for border in borders:
        axes.axhline(border, color="#e5e5e5", linewidth=0.8, zorder=0)
