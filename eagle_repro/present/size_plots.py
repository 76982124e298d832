"""The figures of 05_target_size: two trained pairs side by side, and what published shapes would gain on this card."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from eagle_repro.measure import sizes
from eagle_repro.measure.records import Record
from eagle_repro.present import arms
from eagle_repro.present.layout import tree_label
from eagle_repro.present.lines import end_labels
from eagle_repro.present.theme import GREY, METHOD_COLOURS, PHASE_COLOURS, STYLE, Picture, canvas, finish, note
from eagle_repro.present.words import word

__all__ = ["break_even", "pairs", "speedup_by_size"]

COLOUR = METHOD_COLOURS["eagle"]
PLAIN: dict[str, Any] = {"color": METHOD_COLOURS["plain"], "linewidth": 1.6, "zorder": 1}
#: Dash and marker of an assumed tau, or of a tree, in the order that they are drawn.
LOOKS = ((":", "^"), ("-.", "s"), ("-", "o"), ("--", "D"))
HEADLINE = "article_in"  # the assumption that the title speaks of
BARS = 0.55
PHASES = ("draft", "verify", "rest")


@mpl.rc_context(STYLE)
def speedup_by_size(record: Record, lang: str = "en") -> Picture:
    """What a cycle of the largest tree costs by phase, and the speedup that follows at every assumed tau, by size."""
    record = sizes.as_timed(record)
    frame = sizes.predicted(record)
    frame = _rows_of(frame, max(frame[sizes.TREE].itertuples(index=False, name=None)))
    shapes = frame.drop_duplicates("shape")
    figure, (left, right) = canvas(3.3, 2)
    _phase_bars(left, shapes)
    left.set_title(word("panel_cycle_steps", lang))
    ends = []
    for (name, tau), (dash, marker) in zip(sizes.ASSUMED.items(), LOOKS, strict=True):
        rows = frame[frame["assumption"] == name]
        places = range(len(rows))
        right.vlines(places, rows["speedup_low"], rows["speedup_high"], color=COLOUR, linewidth=1.2)
        right.plot(places, rows["speedup"], color=COLOUR, linestyle=dash, marker=marker, markersize=5.5)
        ends.append((len(rows) - 1, rows["speedup"].iloc[-1], word(name, lang, tau=f"{tau:g}")))
    right.hlines(1, -0.6, len(shapes) - 0.85, **PLAIN)
    right.set(ylim=(0, 1.1 * float(frame["speedup_high"].max())), title=word("panel_predicted", lang))
    _targets(right, shapes, room=0.9)
    end_labels(right, ends)
    for axes in (left, right):
        axes.set_xlabel(word("axis_target", lang))
    legend: list[Artist] = [Patch(color=PHASE_COLOURS[phase], label=word(phase, lang)) for phase in PHASES]
    legend.append(_spread(lang))
    return finish(figure, _gain_finding(frame, lang), record, lang, legend)


@mpl.rc_context(STYLE)
def break_even(record: Record, lang: str = "en") -> Picture:
    """From which tau each tree pays, by size: what its cycle costs in plain steps, no assumption about tau in it."""
    record = sizes.as_timed(record)
    frame = sizes.timing(record)
    figure, (axes,) = canvas(3.1)
    trees = list(dict.fromkeys(frame[sizes.TREE].itertuples(index=False, name=None)))
    ends = []
    for tree, (dash, marker) in zip(trees, LOOKS[::-1], strict=False):
        rows = _rows_of(frame, tree)
        places = range(len(rows))
        axes.vlines(places, rows["steps_low"], rows["steps_high"], color=COLOUR, linewidth=1.2)
        axes.plot(places, rows["steps"], color=COLOUR, linestyle=dash, marker=marker, markersize=5.5)
        ends.append((len(rows) - 1, rows["steps"].iloc[-1], tree_label(rows.iloc[-1])))
    shapes = frame.drop_duplicates("shape")
    axes.set(ylim=(0, 1.12 * max(float(frame["steps_high"].max()), 3.4)), ylabel=word("axis_pays", lang))
    _targets(axes, shapes, room=0.5)
    article: dict[str, Any] = {"color": GREY, "linewidth": 1.2, "linestyle": (0, (1, 2)), "zorder": 1}
    outside, inside = (sizes.ASSUMED[name] for name in ("article_out", "article_in"))
    axes.hlines((outside, inside), -0.6, len(shapes) - 0.85, **article)
    axes.set_xlabel(word("axis_target", lang))
    end_labels(axes, ends)
    rows = _rows_of(frame, trees[0])
    values = {"shape": ends[0][2], "small": _size(rows.iloc[0]), "large": _size(rows.iloc[-1])}
    values |= {"first": f"{rows['steps'].iloc[0]:.1f}", "last": f"{rows['steps'].iloc[-1]:.1f}"}
    finding = word("break_even_sizes" if len(rows) > 1 else "break_even_size", lang, **values)
    label = word("article_line", lang, outside=f"{outside:g}", inside=f"{inside:g}")
    return finish(figure, finding, record, lang, [Line2D([], [], label=label, **article), _spread(lang)])


@mpl.rc_context(STYLE)
def pairs(record: Record, lang: str = "en") -> Picture:
    """tau and speedup of the trained pairs by group of questions: of two, or of the one that was measured."""
    frame, names = sizes.by_group(record), list(sizes.pairs(record)["pair"])
    ways = [arms.Arm("small", METHOD_COLOURS["adaptive"], "s", names[0])]
    if len(names) > 1:
        ways.append(arms.Arm("large", COLOUR, "o", names[-1]))
    figure, panels = canvas(arms.height(frame), 2)
    for axes, value, key in zip(panels, ("tau", "speedup"), ("panel_tau_pass", "panel_gain"), strict=True):
        arms.draw(axes, frame, value, ways, lang)
        axes.set(xlabel=word(key, lang), title=word("gain_of_larger", lang) if len(ways) > 1 else "")
    panels[1].tick_params(axis="y", labelleft=False)
    return finish(figure, _pairs_finding(frame, names, lang), record, lang, arms.handles(ways, frame, lang))


def _rows_of(frame: pd.DataFrame, tree: tuple[int, ...]) -> pd.DataFrame:
    return frame[(frame[sizes.TREE] == list(tree)).all(axis=1)]


def _spread(lang: str) -> Line2D:
    """What the legend says of the upright lines."""
    return Line2D([], [], color=COLOUR, linewidth=1.2, label=word("size_spread", lang))


def _phase_bars(axes: Axes, shapes: pd.DataFrame) -> None:
    """A stacked bar a target, in its own plain steps."""
    for place, row in enumerate(shapes.to_dict("records")):
        below = 0.0
        for phase in PHASES:
            steps = row[f"{phase}_ms"] / row["plain_ms"]
            axes.bar(place, steps, BARS, bottom=below, color=PHASE_COLOURS[phase], edgecolor="white", linewidth=0.8)
            below += steps
        note(axes, f"{below:.1f}", (place, below), (0, 3), ha="center", color="#222222")
    axes.axhline(1, **PLAIN)
    axes.set_ylim(0, 1.12 * axes.dataLim.y1)
    _targets(axes, shapes, room=0)


def _targets(axes: Axes, shapes: pd.DataFrame, *, room: float) -> None:
    """The targets along the x axis, with what their weights weigh; room: for labels at the line ends, in targets."""
    rows = shapes.to_dict("records")
    axes.set_xticks(range(len(rows)), [f"{_size(row)}\n{row['weight_bytes'] / 1e9:.2g} GB" for row in rows])
    axes.set_xlim(-0.6, len(rows) - 1 + max(0.6, room * len(rows) / 3.5))


def _size(row: Any) -> str:
    """The size of a target as its name has it: 1.7B, 32B, 34M."""
    return str(row["shape"]).rpartition("-")[2].upper()


def _pairs_finding(frame: pd.DataFrame, names: list[str], lang: str) -> str:
    inside = frame[frame["group"] == sizes.IN_DOMAIN]
    row = inside.iloc[0] if len(inside) else frame.iloc[-1]  # all questions together come last
    if len(names) > 1:
        values = {name: f"{100 * row[f'{name}_gain']:+.0f}" for name in ("tau", "speedup")}
        return word("pairs_more", lang, **values)
    key = "pairs_one" if len(inside) else "pairs_one_out"
    return word(key, lang, pair=names[0], tau=f"{row['tau_small']:.1f}", gain=f"{row['speedup_small']:.2f}")


def _gain_finding(frame: pd.DataFrame, lang: str) -> str:
    rows = frame[frame["assumption"] == HEADLINE]
    first, last = rows.iloc[0], rows.iloc[-1]
    key = "one" if len(rows) == 1 else sizes.growth(first["speedup"], last["speedup"])
    values = {"small": _size(first), "large": _size(last), "tau": f"{last['tau']:g}"}
    values |= {"first": f"{first['speedup']:.2f}", "last": f"{last['speedup']:.2f}"}
    return word(f"size_{key}", lang, **values)
