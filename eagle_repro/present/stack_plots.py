"""The figures of 08_stack: what a cycle costs in plain steps of its own stack, and what is left of the gain."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from eagle_repro.measure import stacks
from eagle_repro.measure.branching import EVERYTHING, IN_DOMAIN
from eagle_repro.measure.records import Record
from eagle_repro.present import arms
from eagle_repro.present.layout import tree_label
from eagle_repro.present.theme import GREY, METHOD_COLOURS, PHASE_COLOURS, STYLE, Picture, canvas, finish, note, short
from eagle_repro.present.words import word

__all__ = ["gains", "steps"]

BARS = 0.6
#: Phases of a bar from below; what the host adds comes last.
PHASES = (*stacks.PHASES, "host")
SPREAD = "#222222"
COLOURS = {**PHASE_COLOURS, "host": PHASE_COLOURS["rest"]}


@mpl.rc_context(STYLE)
def steps(record: Record, lang: str = "en") -> Picture:
    """A cycle of the first tree in plain steps of its own stack, by phase: a panel a pair, a bar a stack."""
    record = stacks.as_compared(record)
    frame = stacks.costs(record)
    tree = frame[frame["stack"] == frame["stack"].iloc[0]].iloc[0][stacks.TREE]
    frame = frame[(frame[stacks.TREE] == tree).all(axis=1)]
    pairs = list(frame["pair"].unique())
    figure, panels = canvas(3.0, len(pairs), share=False)
    for axes, pair in zip(panels, pairs, strict=True):
        _bars(axes, frame[frame["pair"] == pair], lang)
        axes.set(title=f"{pair}, {tree_label(tree)}", xlabel=word("axis_stack", lang))
    panels[0].set_ylabel(word("axis_cycle_steps", lang))
    legend: list[Artist] = [Patch(color=COLOURS[phase], label=word(phase, lang)) for phase in PHASES]
    legend.append(Line2D([], [], color=SPREAD, linewidth=1.2, label=word("scaling_spread", lang)))
    return finish(figure, _steps_finding(frame[frame["pair"] == pairs[0]], lang), record, lang, legend)


@mpl.rc_context(STYLE)
def gains(record: Record, lang: str = "en") -> Picture:
    """The speedup on the plainest and on the fastest stack, with the tree that is best on the fastest one."""
    record = stacks.as_compared(record)
    frame, tree = _side_by_side(record)
    names = stacks.names(record)
    shape = tree_label(frame.iloc[0])
    ways = [arms.Arm("slow", GREY, "s", word("stack_way", lang, stack=names[0], shape=shape))]
    if len(names) > 1:
        name = word("stack_way", lang, stack=names[-1], shape=shape)
        ways.append(arms.Arm("fast", METHOD_COLOURS["eagle"], "o", name))
    figure, (axes,) = canvas(arms.height(frame))
    arms.draw(axes, frame, "speedup", ways, lang)
    axes.set_xlabel(word("panel_own_plain", lang))
    finding = _gain_finding(record, frame, tree, lang)
    return finish(figure, finding, record, lang, arms.handles(ways, frame, lang, "speedup"))


def _bars(axes: Axes, rows: pd.DataFrame, lang: str) -> None:
    for place, row in enumerate(rows.to_dict("records")):
        below = 0.0
        for phase in PHASES:
            part = max(0.0, row[f"{phase}_ms"]) / row["plain_ms"]
            axes.bar(place, part, BARS, bottom=below, color=COLOURS[phase], edgecolor="white", linewidth=0.6)
            below += part
        low, high = (row[f"cycle_{end}"] / row["plain_ms"] for end in ("low", "high"))
        axes.vlines(place, low, high, color=SPREAD, linewidth=1.2)
        label = f"{row['steps']:.1f} ({word('ms', lang, ms=short(row['cycle_ms']))})"
        note(axes, label, (place, max(below, high)), (0, 3), ha="center", color="#222222")
    axes.axhline(1, color=METHOD_COLOURS["plain"], linewidth=1.6, zorder=1)
    axes.set_ylim(0, 1.15 * axes.dataLim.y1)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    named = [word("stack_ms", lang, stack=row["stack"], ms=short(row["plain_ms"])) for row in rows.to_dict("records")]
    axes.set_xticks(range(len(rows)), named)


def _side_by_side(record: Record) -> tuple[pd.DataFrame, str]:
    """Speedups of the plainest and the fastest stack by group, with the tree that is best on the fastest; its name."""
    frame, names = stacks.gains(record), stacks.names(record)
    fast = frame[frame["stack"] == names[-1]]
    overall = fast[fast["group"] == _headline(fast)]
    tree = str(overall.loc[overall["speedup"].idxmax(), "tree"])
    sides = {"slow": names[0]} | ({"fast": names[-1]} if len(names) > 1 else {})
    out = frame[(frame["stack"] == names[0]) & (frame["tree"] == tree)].reset_index(drop=True)
    for side, stack in sides.items():
        rows = frame[(frame["stack"] == stack) & (frame["tree"] == tree)].set_index("group").loc[list(out["group"])]
        for end in ("", "_low", "_high"):
            out[f"speedup_{side}{end}"] = rows[f"speedup{end}"].to_numpy()
    if len(sides) > 1:
        out["speedup_gain"] = out["speedup_fast"] / out["speedup_slow"] - 1
    return out, tree


def _headline(frame: pd.DataFrame) -> str:
    """The group that a title speaks of: the in-domain sets together, else everything, else the one there is."""
    groups = list(frame["group"])
    return next((name for name in (IN_DOMAIN, EVERYTHING) if name in groups), groups[0])


def _steps_finding(rows: pd.DataFrame, lang: str) -> str:
    first, last = rows.iloc[0], rows.iloc[-1]
    values = {"first": first["stack"], "last": last["stack"], "slow": f"{first['steps']:.1f}"}
    if len(rows) == 1:
        return word("stack_steps_one", lang, **values)
    ratio = short(first["plain_ms"] / last["plain_ms"])
    return word("stack_steps", lang, fast=f"{last['steps']:.1f}", ratio=ratio, **values)


def _gain_finding(record: Record, frame: pd.DataFrame, tree: str, lang: str) -> str:
    names, group = stacks.names(record), _headline(frame)
    if len(names) == 1:
        row = frame[frame["group"] == group].iloc[0]
        values = {"shape": tree_label(row), "gain": f"{row['speedup_slow']:.2f}"}
        return word("stack_gain_one", lang, first=names[0], **values)
    split = stacks.overhead(record)
    chosen = (split["stack"] == names[-1]) & (split["tree"] == tree) & (split["group"] == group)
    row = split[chosen].iloc[0]
    values = {"first": names[0], "last": names[-1], "saved": short(row["saved_ms"]), "left": short(row["left_ms"])}
    if row["left_ms"] <= 0 or row["saved_ms"] <= 0:
        return word("stack_gain_none" if row["saved_ms"] > 0 else "stack_loss", lang, **values)
    return word("stack_gain", lang, percent=f"{100 * row['overhead']:.0f}", **values)
