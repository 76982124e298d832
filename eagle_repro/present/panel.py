"""A panel to play with: the speedup that this bench's cost curves predict for a tau, a tree and a batch.

A person in a notebook gets sliders; where nobody watches, a picture of what breaks even.
"""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from eagle_repro.measure import tree_shape
from eagle_repro.measure.curves import Curves, Shape, batch_speedup
from eagle_repro.measure.records import Record
from eagle_repro.measure.tree_shape import Study
from eagle_repro.present.lines import COLOUR, end_labels, leave_room, ticks
from eagle_repro.present.progress import watched_in
from eagle_repro.present.theme import STYLE, Picture, canvas, finish
from eagle_repro.present.words import word

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
HIGHEST_TAU = 8.0
TITLE_SIZE = "font-size: 1.3em"


def panel(record: Record, lang: str = "en") -> Any:
    """Sliders for tau, nodes, depth and batch in a notebook that a person watches, else the picture of `break_even`."""
    return _sliders(record, lang) if watched_in() == "notebook" else break_even(record, lang)


def predicted(curves: Curves, tau: float, shape: Shape, batch: int, lang: str = "en") -> str:
    """What the panel says, in one line; a pass that was not measured is named instead of guessed."""
    try:
        gain = batch_speedup(curves, tau, shape, batch)
    except ValueError as error:
        return word("panel_beyond", lang, reason=error)
    return word("panel_says", lang, gain=f"{gain:.2f}", tau=f"{tau / gain:.2f}")


@mpl.rc_context(STYLE)
def break_even(record: Record, lang: str = "en") -> Picture:
    """The tau from which speculation pays: by nodes for some depths, by batch for the default and the picked tree."""
    known = tree_shape.study(record)
    figure, (left, right) = canvas(3.2, 2)
    nodes = [count for count in known.curves.verify.at if count >= 2]
    depths = sorted({2, known.default.depth, max(known.depths)} & set(known.depths))
    for depth in depths:
        shapes = [Shape(int(count), depth, known.default.top_k) for count in nodes]
        _line(left, [(s.total_tokens, _tau_needed(known, s, 1)) for s in shapes], word("at_depth", lang, depth=depth))
    for shape in dict.fromkeys((known.default, known.picked)):
        _line(right, [(batch, _tau_needed(known, shape, batch)) for batch in BATCHES], str(tuple(shape)))
    for axes, values, key in ((left, nodes, "nodes"), (right, BATCHES, "batch")):
        drawn = [value for value in values if value <= axes.dataLim.x1]
        axes.set(xscale="log", xlabel=word(f"axis_{key}", lang), title=word(f"panel_{key}", lang))
        ticks(axes, drawn, {}, logarithmic=True)
        axes.set_ylim(0, 1.08 * axes.dataLim.y1)
        leave_room(axes, logarithmic=True)
        end_labels(axes, [(*np.asarray(line.get_xydata())[-1], str(line.get_label())) for line in axes.lines])
    left.set_ylabel(word("axis_break_even", lang))
    needed = 1 / batch_speedup(known.curves, 1.0, known.default, 1)
    finding = word("break_even_at", lang, shape=str(tuple(known.default)), tau=f"{needed:.2f}")
    return finish(figure, finding, record, lang)


def _line(axes: Axes, points: list[tuple[float, float | None]], label: str) -> None:
    drawn = np.array([point for point in points if point[1] is not None], dtype=float)
    if len(drawn):
        axes.plot(drawn[:, 0], drawn[:, 1], color=COLOUR, marker="o", markersize=3.5, linewidth=1.4, label=label)


def _tau_needed(known: Study, shape: Shape, batch: int) -> float | None:
    """Plain steps that a cycle costs; None where such a pass was not measured."""
    try:
        return 1 / batch_speedup(known.curves, 1.0, shape, batch)
    except ValueError:
        return None


def _sliders(record: Record, lang: str) -> Any:
    import ipywidgets

    known = tree_shape.study(record)
    curves, default = known.curves, known.default
    low, high = (int(end) for end in (curves.verify.at[0], curves.verify.at[-1]))
    deepest = int(curves.drafts[default.top_k].at[-1])
    wide: dict[str, Any] = {"style": {"description_width": "6em"}, "layout": {"width": "28em"}}
    moved = {
        "tau": ipywidgets.FloatSlider(value=2.5, min=1.0, max=HIGHEST_TAU, step=0.05, description="tau", **wide),
        "nodes": ipywidgets.IntSlider(value=default.total_tokens, min=low, max=high, description="nodes", **wide),
        "depth": ipywidgets.IntSlider(value=default.depth, min=0, max=deepest, description="depth", **wide),
        "batch": ipywidgets.SelectionSlider(options=BATCHES, value=1, description="batch", **wide),
    }
    said = ipywidgets.HTML()

    def update(_: object = None) -> None:
        values = {name: widget.value for name, widget in moved.items()}
        shape = Shape(values["nodes"], values["depth"], default.top_k)
        said.value = f'<p style="{TITLE_SIZE}">{predicted(curves, values["tau"], shape, values["batch"], lang)}</p>'

    for widget in moved.values():
        widget.observe(update, names="value")
    update()
    return ipywidgets.VBox([*moved.values(), said])
