"""The figures: one claim each, drawn from a record and nothing else.

Every function takes a record and a language ("en" or "ru") and gives a Picture whose title is the finding; `save`
writes it. A record that holds too little for a figure is refused with what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from eagle_repro.measure import summary
from eagle_repro.measure.records import Record
from eagle_repro.present import dots
from eagle_repro.present.layout import share as percent
from eagle_repro.present.theme import (
    GREY,
    METHOD_COLOURS,
    PHASE_COLOURS,
    PREDICTION_COLOUR,
    STYLE,
    Picture,
    canvas,
    finish,
    note,
    save,
    short,
)
from eagle_repro.present.words import word

__all__ = ["Picture", "cycle_phases", "predicted_vs_measured", "roofline", "save", "speedup_by_set", "tau_by_set"]

PHASES = tuple(PHASE_COLOURS)
NAMED_FROM = 0.16  # share of the axis from which a phase is named inside the bar
NUMBERS = 0.14  # share of the axis that the numbers beside the dots take


@mpl.rc_context(STYLE)
def roofline(record: Record, lang: str = "en") -> Picture:
    """Milliseconds of a pass against its tokens, the weight-read floor, and where the curve stops being flat."""
    frame = summary.roofline(record)
    flat, last = summary.flat_until(frame), int(frame["tokens"].max())
    figure, (axes,) = canvas(3.7)
    spread = [frame["ms"] - frame["ms_low"], frame["ms_high"] - frame["ms"]]
    axes.errorbar(frame["tokens"], frame["ms"], yerr=spread, color=METHOD_COLOURS["plain"], marker="o", capsize=3)
    axes.set(xscale="log", yscale="log", xlim=(0.8, last * 1.7))
    doublings = [count for count in frame["tokens"] if count & (count - 1) == 0]
    axes.set_xticks(doublings, [str(count) for count in doublings])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    for count in sorted({1, flat, last}):
        point = frame[frame["tokens"] == count].iloc[0]
        note(
            axes,
            word("ms", lang, ms=short(point["ms"])),
            (count, point["ms_high"]),  # above the bar
            (-4 if count == 1 else 0, 7),
            color="#222222",
            ha="left" if count == 1 else "center",
        )
    _floor(axes, frame, record, lang)
    if flat > 1:
        edge = flat * 2**0.2
        axes.axvspan(0.8, edge, color="#eef3f8", zorder=0)
        note(axes, word("flat_to", lang, tokens=flat), (0.8, axes.get_ylim()[1]), (4, -3), va="top")
    axes.set(xlabel=word("tokens_in_a_pass", lang), ylabel=word("ms_of_a_pass", lang))
    finding = "pass_flat_everywhere" if flat == last else "pass_flat" if flat > 1 else "pass_not_flat"
    return finish(figure, word(finding, lang, tokens=flat), record, lang)


@mpl.rc_context(STYLE)
def speedup_by_set(record: Record, lang: str = "en") -> Picture:
    """Speedup by question set with its interval, against plain decoding and against the stock generate."""
    frame = summary.speedup(record)
    sides = [side for side in (("plain", "speedup"), ("hf", "speedup_hf")) if frame[side[1]].notna().any()]
    figure, panels = canvas(dots.height(frame), len(sides), share=True)
    for axes, (baseline, column) in zip(panels, sides, strict=True):
        dots.draw(axes, frame, column, baseline=baseline, lang=lang, digits="{:.2f}x")
        axes.set(title=word(f"against_{baseline}", lang), xlabel=word("times_as_fast", lang))
    dots.span(panels[0], frame, [column for _, column in sides], room=NUMBERS * len(sides))
    finding = _range("speedup", frame, "{:.2f}", lang)
    return finish(figure, finding, record, lang, dots.handles(frame, lang))


@mpl.rc_context(STYLE)
def tau_by_set(record: Record, lang: str = "en") -> Picture:
    """tau by question set, step-weighted, with its interval."""
    frame = summary.speedup(record)
    figure, (axes,) = canvas(dots.height(frame))
    dots.draw(axes, frame, "tau", baseline="plain", lang=lang, digits="{:.2f}")
    dots.span(axes, frame, ["tau"], room=NUMBERS)
    axes.set_xlabel(word("tau_axis", lang))
    finding = _range("tau", frame, "{:.1f}", lang)
    return finish(figure, finding, record, lang, dots.handles(frame, lang))


@mpl.rc_context(STYLE)
def cycle_phases(record: Record, lang: str = "en") -> Picture:
    """Where the milliseconds of a cycle go, beside one plain step and the plain steps that its tokens would take."""
    frame = summary.phases(record)
    if frame.empty or frame["verify_ms"].isna().any():
        raise ValueError(f"{record.path.name} has no instrumented cycles: measure with instrument_cycles of 1 or more")
    rows = frame.to_dict("records")
    figure, (axes,) = canvas(0.8 + 0.75 * (len(rows) + 1))
    plain = float(rows[0]["plain_ms"])
    axes.barh(0, plain, height=0.45, color=METHOD_COLOURS["plain"])
    note(axes, word("ms", lang, ms=short(plain)), (plain, 0), (6, 0), va="center", color="#222222")
    longest = max(max(row["cycle_ms"], row["tau"] * plain) for row in rows)
    for number, row in enumerate(rows, start=1):
        _cycle_bar(axes, number, row, longest, lang)
        _break_even(axes, number, row, longest, lang)
    names = [word(row["variant"], lang, **dots.shape_words(row)) for row in rows]
    axes.set_yticks(range(len(rows) + 1), [word("plain_step", lang), *names])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, longest * 1.08), ylim=(len(rows) + 0.55, -0.4), xlabel=word("ms_axis", lang))
    values = {"ratio": f"{rows[0]['cycle_ms'] / plain:.1f}", "tau": f"{rows[0]['tau']:.1f}"}
    return finish(figure, word("phases", lang, **values), record, lang)


@mpl.rc_context(STYLE)
def predicted_vs_measured(record: Record, lang: str = "en") -> Picture:
    """The speedup that the cost formula predicts from tau and the phases, beside the measured one."""
    frame = summary.speedup(record)
    frame = frame[frame["predicted"].notna()]
    if frame.empty:
        raise ValueError(f"{record.path.name} has no predictions: measure with instrument_cycles of 1 or more")
    parts = [part for _, part in frame.groupby("variant", sort=False)]
    figure, panels = canvas(max(map(dots.height, parts)), len(parts), share=True)
    cross: dict[str, Any] = {"marker": "x", "color": PREDICTION_COLOUR, "markeredgewidth": 2, "linestyle": ""}
    for axes, part in zip(panels, parts, strict=True):
        places = dots.draw(axes, part, "speedup", baseline="plain", lang=lang, digits=None)
        axes.plot(part["predicted"], places, zorder=4, **cross)
        title = word(part["variant"].iloc[0], lang, **dots.shape_words(part.iloc[0]))
        axes.set(title=title, xlabel=word("times_as_fast", lang))
    dots.span(panels[0], frame, ["speedup", "predicted"])
    measured = Line2D([], [], marker="o", color=METHOD_COLOURS["eagle"], label=word("measured", lang))
    handles = [measured, Line2D([], [], label=word("predicted", lang), **cross)]
    worst = float((frame["predicted"] / frame["speedup"] - 1).abs().max())
    return finish(figure, word("formula", lang, percent=f"{100 * worst:.0f}"), record, lang, handles)


def _floor(axes: Axes, frame: pd.DataFrame, record: Record, lang: str) -> None:
    """The time of reading the weights once, and the share of the bus that one token uses."""
    footer, first = record.footer or {}, frame.iloc[0]
    if pd.isna(first["floor_ms"]):
        return
    peak = footer.get("peak_gb_s")
    key, bandwidth = ("floor_peak", peak) if peak else ("floor_measured", footer.get("bandwidth_gb_s"))
    text = word(key, lang, ms=short(first["floor_ms"]), bandwidth=f"{bandwidth:.0f}")
    text += "\n" + word("bus", lang, share=percent(first["utilisation"]))
    axes.axhline(first["floor_ms"], color=METHOD_COLOURS["chain"], linewidth=2)
    note(axes, text, (float(frame["tokens"].max()) * 1.6, first["floor_ms"]), (0, -4), ha="right", va="top")
    axes.set_ylim(min(first["floor_ms"], frame["ms_low"].min()) / 3, frame["ms_high"].max() * 5)
    axes.annotate("", (1, first["ms"] * 0.94), (1, first["floor_ms"]), arrowprops={"arrowstyle": "<->", "color": GREY})


def _cycle_bar(axes: Axes, number: int, row: Mapping[Any, Any], longest: float, lang: str) -> None:
    """One cycle as a stacked bar: long phases named inside, short ones below."""
    start, small = 0.0, []
    for phase in PHASES:
        width = row[f"{phase}_ms"]
        text = f"{word(phase, lang)} {short(width)}"
        axes.barh(number, width, left=start, height=0.45, color=PHASE_COLOURS[phase], edgecolor="white", linewidth=0.8)
        if width > NAMED_FROM * longest:
            colour = "white" if phase in ("verify", "accept") else "#222222"
            axes.text(start + width / 2, number, text, ha="center", va="center", fontsize=9, color=colour)
        else:
            small.append(text)
        start += width
    note(axes, " | ".join(small), (0, number + 0.225), (2, -2), va="top", fontsize=8)


def _break_even(axes: Axes, number: int, row: Mapping[Any, Any], longest: float, lang: str) -> None:
    """Where a cycle would take as long as its tokens take when plain: a bar that ends before it wins."""
    place = row["tau"] * row["plain_ms"]
    end = number + 0.22 if place > row["cycle_ms"] else number - 0.22  # not through the words inside the bar
    axes.vlines(place, number - 0.34, end, color=METHOD_COLOURS["plain"], linewidth=2.5)
    side = "right" if place > longest / 2 else "left"
    text = word("break_even", lang, tau=f"{row['tau']:.1f}")
    note(axes, text, (place, number - 0.34), (0, 2), ha=side, va="bottom", fontsize=8)


def _range(what: str, frame: pd.DataFrame, digits: str, lang: str) -> str:
    """The finding over sets: the best and the worst of the first variant."""
    first = frame[frame["variant"] == frame["variant"].iloc[0]].set_index("set")[what].astype(float)
    best, worst = first.idxmax(), first.idxmin()
    values = {"best": best, "high": digits.format(first[best]), "worst": worst, "low": digits.format(first[worst])}
    return word(f"{what}_range" if len(first) > 1 else f"{what}_one", lang, **values)
