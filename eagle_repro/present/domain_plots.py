"""The figures of 07_domain: tau and speedup by head and question set, and what one head gives beyond another."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.text import Text

from eagle_repro.measure import domain
from eagle_repro.measure.records import Record
from eagle_repro.present.lines import group_name
from eagle_repro.present.theme import GREY, METHOD_COLOURS, STYLE, Picture, canvas, finish
from eagle_repro.present.words import word

__all__ = ["gains", "heat_speedup", "heat_tau"]

COLOUR = METHOD_COLOURS["eagle"]
HEAT = LinearSegmentedColormap.from_list("heat", ["#f5f9fc", COLOUR])
LIGHT = 1.35  # the scale ends above the largest value, so that most cells are light enough for small dark print
CELL = 0.46  # inches that a head takes
ROW = 0.24  # inches that a group takes among the differences


@mpl.rc_context(STYLE)
def heat_tau(record: Record, lang: str = "en") -> Picture:
    """Tokens a cycle of every head on every set, darker for more."""
    frame = domain.by_group(record)
    found = {each.statement.name: each for each in domain.answers(record)}["code_helps"].tau
    if found is None:
        return _heat(frame, "tau", "{:.2f}", _ends(frame, "tau", "heat_tau", lang), record, lang)
    sets = [name for name in domain.CODE if name in set(frame["group"])]
    values = {"left": f"{found.left[1]:.1f}", "right": f"{found.right[1]:.1f}", "set": ", ".join(sets)}
    return _heat(frame, "tau", "{:.2f}", word("heat_tau_code", lang, **values), record, lang)


@mpl.rc_context(STYLE)
def heat_speedup(record: Record, lang: str = "en") -> Picture:
    """How many times as fast as plain decoding, by head and set."""
    frame = domain.by_group(record)
    if frame["speedup"].isna().all():
        raise ValueError(f"{record.path.name} holds no timed texts: measure 07_domain to its end")
    return _heat(frame, "speedup", "{:.2f}x", _ends(frame, "speedup", "heat_speedup", lang), record, lang)


@mpl.rc_context(STYLE)
def gains(record: Record, lang: str = "en") -> Picture:
    """What one head gives beyond another in tokens a cycle, by set, with its interval."""
    frame = domain.differences(record)
    if frame.empty:
        raise ValueError(f"{record.path.name} holds no two heads that are compared: measure 07_domain with more heads")
    pairs = list(frame.groupby(["left", "right"], sort=False))
    groups = list(dict.fromkeys(frame["group"]))
    figure, panels = canvas(1.1 + ROW * len(groups), len(pairs), share=True)
    for axes, ((left, right), part) in zip(panels, pairs, strict=True):
        axes.axvline(0, color=METHOD_COLOURS["plain"], linewidth=1.5, zorder=1)
        for row in part.to_dict("records"):
            place, low, high = groups.index(row["group"]), row["tau_gain_low"], row["tau_gain_high"]
            if pd.notna(low):
                axes.hlines(place, low, high, color=COLOUR, linewidth=1.5, zorder=2)
            face = COLOUR if _clear(low, high) else "white"
            look: dict[str, Any] = {"color": COLOUR, "markerfacecolor": face, "markersize": 6, "markeredgewidth": 1.5}
            axes.plot(row["tau_gain"], place, "o", zorder=3, **look)
        axes.set(title=word("panel_against", lang, left=left, right=right), xlabel=word("axis_tau_gain", lang))
    panels[0].set_yticks(range(len(groups)), [group_name(group, lang) for group in groups])
    panels[0].set_ylim(len(groups) - 0.4, -0.6)
    clear = Line2D([], [], marker="o", linestyle="", color=COLOUR, label=word("filled_clear", lang))
    spread = Line2D([], [], color=COLOUR, linewidth=1.5, label=word("interval", lang))
    return finish(figure, _largest(frame, lang), record, lang, [clear, spread])


def _heat(frame: pd.DataFrame, value: str, form: str, finding: str, record: Record, lang: str) -> Picture:
    """Heads down, groups of questions across; a cell has the value and below it the interval."""
    frame = frame[frame[value].notna()]
    heads, groups = list(dict.fromkeys(frame["head"])), list(dict.fromkeys(frame["group"]))
    wide = frame.pivot(index="head", columns="group", values=value).loc[heads, groups].astype(float)
    figure, (axes,) = canvas(1.0 + CELL * len(heads))
    frame = frame.assign(label=[_label(form, value, row) for row in frame.to_dict("records")])
    labels = frame.pivot(index="head", columns="group", values="label").loc[heads, groups].fillna("")
    top = LIGHT * wide.max().max()
    seaborn.heatmap(wide, annot=labels, fmt="", cmap=HEAT, vmax=top, cbar=False, linewidths=1.5, ax=axes)
    for cell in list(axes.texts):
        _apart(axes, cell)
    inside = sum(domain_ == "in" and name != domain.IN_DOMAIN for name, domain_ in _domains(frame).items())
    axes.axvline(inside, color=GREY, linewidth=2)
    names = [group_name(group, lang) for group in groups]
    axes.set_xticks([n + 0.5 for n in range(len(groups))], names, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks([n + 0.5 for n in range(len(heads))], heads, rotation=0)
    axes.set(xlabel=word("axis_sets", lang), ylabel="")
    axes.tick_params(length=0)
    return finish(figure, finding, record, lang)


def _label(form: str, value: str, row: dict[str, Any]) -> str:
    """The value, and below it the interval where there is one."""
    low, high = row[f"{value}_low"], row[f"{value}_high"]
    spread = f"\n{low:.2f}–{high:.2f}" if low is not None and not math.isnan(low) else ""
    return form.format(row[value]) + spread


def _apart(axes: Axes, cell: Text) -> None:
    """The value of a cell in its middle, and its interval in small print below."""
    (x, y), (value, _, spread) = cell.get_position(), cell.get_text().partition("\n")
    cell.set(text=value, y=y - 0.14 if spread else y, fontsize=9)
    axes.text(x, y + 0.22, spread, ha="center", va="center", fontsize=6, color=cell.get_color())


def _domains(frame: pd.DataFrame) -> dict[str, str | None]:
    return dict(zip(frame["group"], frame["domain"], strict=True))


def _ends(frame: pd.DataFrame, value: str, key: str, lang: str) -> str:
    """The lowest and the highest value over heads and sets."""
    rows = frame[~frame["group"].isin((domain.IN_DOMAIN, domain.EVERYTHING))].astype({value: float})
    ends = {"low": rows.loc[rows[value].idxmin()], "high": rows.loc[rows[value].idxmax()]}
    named = {end: word("head_on_set", lang, head=row["head"], set=row["group"]) for end, row in ends.items()}
    numbers = {end: f"{row[value]:.1f}" for end, row in ends.items()}
    return word(key, lang, **numbers, worst=named["low"], best=named["high"])


def _clear(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and not low <= 0 <= high and not math.isnan(low)


def _largest(frame: pd.DataFrame, lang: str) -> str:
    """The largest difference on a set whose interval excludes 0."""
    sets = frame[~frame["group"].isin((domain.IN_DOMAIN, domain.EVERYTHING))]
    clear = [row for row in sets.to_dict("records") if _clear(row["tau_gain_low"], row["tau_gain_high"])]
    if not clear:
        return word("gain_none", lang)
    best = max(clear, key=lambda row: abs(row["tau_gain"]))
    key, gain = "gain_more" if best["tau_gain"] > 0 else "gain_fewer", f"{abs(best['tau_gain']):.2f}"
    return word(key, lang, left=best["left"], right=best["right"], gain=gain, set=best["group"])
