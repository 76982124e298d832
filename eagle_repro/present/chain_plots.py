"""The figures of 04_chain_vs_tree: what branching gives, and where along a path it gives it."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from eagle_repro.measure import branching as said
from eagle_repro.measure.records import Record
from eagle_repro.present import arms
from eagle_repro.present.layout import tree_label
from eagle_repro.present.lines import end_labels, leave_room
from eagle_repro.present.theme import METHOD_COLOURS, STYLE, Picture, canvas, finish
from eagle_repro.present.words import word

__all__ = ["acceptance", "branching"]

LOOKS = {"chain": ("--", "s"), "eagle": ("-", "o")}
ENDS = {"chain": "chain_end", "eagle": "tree_end"}


@mpl.rc_context(STYLE)
def branching(record: Record, lang: str = "en") -> Picture:
    """tau and speedup of chain and tree by group of questions, and what the tree gives beyond the chain."""
    frame, shapes = said.gains(record), said.trees(record)
    ways = []
    for method, key in (("chain", "chain_way"), ("eagle", "tree_way")):
        shape = tree_label(shapes[method])
        ways.append(arms.Arm(method, METHOD_COLOURS[method], LOOKS[method][1], word(key, lang, shape=shape)))
    figure, panels = canvas(arms.height(frame), 2)
    for axes, value, key in zip(panels, ("tau", "speedup"), ("panel_tau_pass", "panel_gain"), strict=True):
        arms.draw(axes, frame, value, ways, lang)
        axes.set(xlabel=word(key, lang), title=word("gain_of_tree", lang))
    panels[1].tick_params(axis="y", labelleft=False)
    return finish(figure, _finding(frame, lang), record, lang, arms.handles(ways, frame, lang))


@mpl.rc_context(STYLE)
def acceptance(record: Record, lang: str = "en") -> Picture:
    """The share of cycles that accept at least so many drafted tokens, chain beside tree."""
    frame = said.acceptance(record)
    domains = [name for name in ("in", "out") if name in set(frame["domain"])]
    figure, panels = canvas(2.9, len(domains), share=True)
    for axes, domain in zip(panels, domains, strict=True):
        _lines(axes, frame[frame["domain"] == domain], lang)
        axes.set(title=word(f"panel_{domain}", lang), xlabel=word("axis_position", lang))
    panels[0].set_ylabel(word("axis_reached", lang))
    first = frame[(frame["domain"] == domains[0]) & (frame["position"] == 1)].set_index("method")["reached"]
    values = {"tree": f"{100 * first['eagle']:.0f}", "chain": f"{100 * first['chain']:.0f}"}
    return finish(figure, word("reached_finding", lang, **values), record, lang)


def _lines(axes: Axes, frame: pd.DataFrame, lang: str) -> None:
    ends = []
    for method, (dash, marker) in LOOKS.items():
        rows = frame[frame["method"] == method]
        look: dict[str, Any] = {"color": METHOD_COLOURS[method], "linestyle": dash, "marker": marker, "markersize": 5.5}
        axes.plot(rows["position"], rows["reached"], **look)
        ends.append((rows["position"].iloc[-1], rows["reached"].iloc[-1], word(ENDS[method], lang)))
    axes.set(ylim=(-0.1, 1.05))
    axes.set_xticks(sorted(set(frame["position"])))
    leave_room(axes, logarithmic=False)
    end_labels(axes, ends)


def _finding(frame: pd.DataFrame, lang: str) -> str:
    """The gain in tau of the in-domain questions, or of the first group where there is no such one."""
    inside = frame[frame["group"] == said.IN_DOMAIN]
    gain = 100 * float((inside if len(inside) else frame)["tau_gain"].iloc[0])
    key = "same" if abs(gain) < 0.5 else "more" if gain > 0 else "less"
    return word(f"branching_{key}", lang, percent=f"{abs(gain):.0f}")
