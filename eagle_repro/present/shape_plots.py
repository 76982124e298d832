"""The figures of 03_tree_shape: sweeps, what a cycle costs, predicted beside measured, the depth trap."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from eagle_repro.measure import tree_shape
from eagle_repro.measure.records import Record
from eagle_repro.measure.tree_shape import IN_DOMAIN
from eagle_repro.present import dots
from eagle_repro.present.lines import COLOUR, end_labels, group_handles, group_looks, group_name, leave_room, ticks
from eagle_repro.present.plots import NUMBERS
from eagle_repro.present.theme import GREY, METHOD_COLOURS, STYLE, Picture, canvas, finish
from eagle_repro.present.words import word

__all__ = ["cost_curves", "depth_sweep", "depth_trap", "node_sweep", "prediction", "top_k_sweep"]

PLAIN: dict[str, Any] = {"color": METHOD_COLOURS["plain"], "linewidth": 1.6, "zorder": 1}


def depth_sweep(record: Record, lang: str = "en") -> Picture:
    """tau and speedup against depth, nodes and width fixed."""
    return _sweep(record, "depth", lang)


def node_sweep(record: Record, lang: str = "en") -> Picture:
    """tau and speedup against the nodes of a tree, depth and width fixed."""
    return _sweep(record, "nodes", lang)


def top_k_sweep(record: Record, lang: str = "en") -> Picture:
    """tau and speedup against the width of a tree, depth fixed, and nodes as far as its capacity goes."""
    return _sweep(record, "top_k", lang)


@mpl.rc_context(STYLE)
def cost_curves(record: Record, lang: str = "en") -> Picture:
    """What the phases of a cycle cost in plain steps: verifying by nodes, drafting by depth and width."""
    known = tree_shape.study(record)
    curves, default = known.curves, known.default
    figure, (left, right) = canvas(2.9, 2)
    steps = [(v + r) / curves.plain for v, r in zip(curves.verify.seconds, curves.rest.seconds, strict=True)]
    left.plot(curves.verify.at, steps, color=COLOUR, marker="o", markersize=4)
    left.set(xscale="log", xlabel=word("axis_nodes", lang), ylabel=word("axis_plain_steps", lang))
    ticks(left, curves.verify.at, {}, logarithmic=True)
    ends, widths = [], sorted({known.widths[0], default.top_k, known.widths[-1]})
    for top_k in widths:
        line = curves.drafts[top_k]
        values = [seconds / curves.plain for seconds in line.seconds]
        right.plot(line.at, values, color=COLOUR, marker="o", markersize=4)
        ends.append((line.at[-1], values[-1], word("draft_at", lang, top_k=top_k)))
    right.set(xlabel=word("axis_depth", lang))
    ticks(right, curves.drafts[widths[0]].at, {}, logarithmic=False)
    for axes, key in ((left, "panel_verify"), (right, "panel_draft")):
        _plain_line(axes)
        axes.set(ylim=(0, 1.08 * axes.dataLim.y1), title=word(key, lang))
    leave_room(right, logarithmic=False)
    end_labels(right, ends)
    verify = curves.verify(default.total_tokens) / curves.plain
    draft = curves.draft(default.depth, default.top_k) / curves.plain
    finding = word("costs", lang, nodes=default.total_tokens, verify=f"{verify:.1f}", draft=f"{draft:.1f}")
    plain = Line2D([], [], label=word("plain_step", lang), color=PLAIN["color"], linewidth=PLAIN["linewidth"])
    return finish(figure, finding, record, lang, [plain])


@mpl.rc_context(STYLE)
def prediction(record: Record, lang: str = "en") -> Picture:
    """The measured speedup of every shape and set against what replay and cost curves predict for the same texts."""
    frame = tree_shape.comparison(record)
    figure, (axes,) = canvas(4.4)
    both = frame[["predicted", "measured"]].to_numpy(dtype=float)
    low, high = min(1.0, both.min()) - 0.1, max(1.0, both.max()) + 0.1
    axes.plot([low, high], [low, high], color=GREY, linewidth=1.2, zorder=1)
    axes.axhline(1, **{**PLAIN, "linewidth": 0.9})
    axes.axvline(1, **{**PLAIN, "linewidth": 0.9})
    looks = group_looks([IN_DOMAIN, *frame.loc[frame["domain"] == "out", "set"].unique()])
    for row in frame.to_dict("records"):
        look = looks[row["set"] if row["domain"] == "out" else IN_DOMAIN]
        if pd.notna(row["measured_low"]):
            axes.vlines(row["predicted"], row["measured_low"], row["measured_high"], color=COLOUR, lw=0.7, alpha=0.4)
        axes.plot(row["predicted"], row["measured"], **{**look, "linestyle": ""})
    worst = frame.loc[frame["error"].abs().idxmax()]
    text = word("fit_worst", lang, set=worst["set"], shape=dots.shape_words(worst.to_dict())["shape"])
    # The corner on the other side of the diagonal from most dots is free.
    at, below = (worst["predicted"], worst["measured"]), frame["error"].median() < 0
    place: dict[str, Any] = {"xytext": (0.98, 0.05) if below else (0.02, 0.93), "ha": "right" if below else "left"}
    line: dict[str, Any] = {"arrowstyle": "-", "color": GREY, "linewidth": 0.7}
    place["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the lines at 1 do not run through it
    axes.annotate(text, at, textcoords="axes fraction", arrowprops=line, color=GREY, fontsize=8.5, **place)
    axes.set(xlim=(low, high), ylim=(low, high), xlabel=word("fit_predicted", lang), ylabel=word("measured", lang))
    errors = 100 * frame["error"].abs()
    counts = {"shapes": len(frame[tree_shape.SHAPE].drop_duplicates()), "sets": frame["set"].nunique()}
    finding = word("fit", lang, median=f"{errors.median():.0f}", worst=f"{errors.max():.0f}", **counts)
    identity = Line2D([], [], color=GREY, linewidth=1.2, label=word("identity", lang))
    return finish(figure, finding, record, lang, [*group_handles(looks, lang), identity])


@mpl.rc_context(STYLE)
def depth_trap(record: Record, lang: str = "en") -> Picture:
    """Speedup of each set with the default tree and with the one that was picked for the in-domain sets."""
    frame = tree_shape.depth_trap(record)
    figure, (axes,) = canvas(dots.height(frame))
    dots.draw(axes, frame, "speedup", baseline="plain", lang=lang, digits="{:.2f}x")
    dots.span(axes, frame, ["speedup"], room=NUMBERS)
    axes.set_xlabel(word("times_as_fast", lang))
    found = frame.pivot(index="set", columns="variant", values="speedup").astype(float)
    outside = frame.loc[frame["domain"] == "out", "set"].unique()
    name = found.loc[outside if len(outside) else found.index, "default"].idxmin()
    values = {variant: f"{found.loc[name, variant]:.2f}" for variant in ("default", "picked")}
    return finish(figure, word("trap", lang, set=name, **values), record, lang, dots.handles(frame, lang))


@mpl.rc_context(STYLE)
def _sweep(record: Record, name: str, lang: str) -> Picture:
    """tau on the left, speedup on the right: lines by replay and prediction, dots where they were measured."""
    frame = tree_shape.sweep(record, name)
    frame = frame[frame["predicted"].notna()]
    groups = list(dict.fromkeys(frame["group"]))
    looks, logarithmic = group_looks(groups), name != "depth"
    figure, panels = canvas(3.4, 2)
    for axes, column in zip(panels, ("tau", "predicted"), strict=True):
        for group in groups:
            _sweep_line(axes, frame[frame["group"] == group], column, looks[group])
        _sweep_axis(axes, frame, name, lang)
    left, right = panels
    left.set_title(word("panel_tau", lang))
    right.set_title(word("panel_speedup", lang))
    _plain_line(right)
    for axes, column in zip(panels, ("tau", "predicted"), strict=True):
        leave_room(axes, logarithmic=logarithmic)
        last = frame.groupby("group", sort=False).last()
        end_labels(axes, [(row["asked"], row[column], group_name(group, lang)) for group, row in last.iterrows()])
    first = frame[frame["group"] == groups[0]]
    return finish(figure, _sweep_finding(first, name, lang), record, lang, _sweep_handles(frame, lang))


def _sweep_line(axes: Axes, rows: pd.DataFrame, column: str, look: dict[str, Any]) -> None:
    """One group: its line with a band, and dots with bars where the speedup was measured."""
    rows = rows.astype({name: float for name in rows if str(name).startswith((column, "measured"))})
    axes.plot(rows["asked"], rows[column], color=COLOUR, linestyle=look["linestyle"], linewidth=1.4, zorder=2)
    axes.fill_between(rows["asked"], rows[f"{column}_low"], rows[f"{column}_high"], color=COLOUR, alpha=0.1, lw=0)
    if column == "predicted":
        seen = rows[rows["measured"].notna()]
        axes.vlines(seen["asked"], seen["measured_low"], seen["measured_high"], color=COLOUR, linewidth=1.2, zorder=3)
        axes.plot(seen["asked"], seen["measured"], **{**look, "linestyle": ""}, zorder=4)


def _sweep_axis(axes: Axes, frame: pd.DataFrame, name: str, lang: str) -> None:
    """The swept values, a point that was cut to its capacity with the nodes that it really has."""
    cut = frame[frame["clipped"].astype(bool)]
    names = {
        row["asked"]: word("cut_value", lang, value=row["asked"], nodes=row["total_tokens"])
        for row in cut.to_dict("records")
    }
    said = word(f"axis_{name}", lang)
    axes.set_xlabel(word("cut_axis", lang, axis=said) if names else said)
    axes.set_xscale("linear" if name == "depth" else "log")
    ticks(axes, list(dict.fromkeys(frame["asked"])), names, logarithmic=name != "depth")


def _plain_line(axes: Axes) -> None:
    """Where plain decoding stands, as far as the data go."""
    axes.hlines(1, axes.dataLim.x0, axes.dataLim.x1, **PLAIN)


def _sweep_finding(rows: pd.DataFrame, name: str, lang: str) -> str:
    """What happens from the first to the last point, and the best between: measured where all were, else predicted."""
    measured = rows["measured"].notna().all()
    gains = rows["measured" if measured else "predicted"].astype(float)
    first, last, best = rows.iloc[0], rows.iloc[-1], rows.loc[gains.idxmax()]
    body = word(
        "sweep_body",
        lang,
        what=word("speedup" if measured else "predicted_speedup", lang),
        tau_first=f"{first['tau']:.2f}",
        tau_last=f"{last['tau']:.2f}",
        gain_first=f"{gains.iloc[0]:.2f}",
        gain_last=f"{gains.iloc[-1]:.2f}",
        best=f"{gains.max():.2f}",
        at=best["asked"],
    )
    return word(f"sweep_{name}", lang, first=first["asked"], last=last["asked"], body=body)


def _sweep_handles(frame: pd.DataFrame, lang: str) -> list[Any]:
    line = Line2D([], [], color=COLOUR, linewidth=1.4, label=word("line_predicted", lang))
    band = Patch(color=COLOUR, alpha=0.15, linewidth=0, label=word("band", lang))
    dot = Line2D([], [], color=COLOUR, marker="o", markersize=5.5, linewidth=1.2, label=word("dot_measured", lang))
    return [line, band, dot] if frame["measured"].notna().any() else [line, band]
