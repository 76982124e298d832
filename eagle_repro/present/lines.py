"""What the figures with lines over a swept value share: looks of question groups, sparse ticks, labels at line ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from eagle_repro.measure.tree_shape import IN_DOMAIN
from eagle_repro.present.theme import METHOD_COLOURS, note
from eagle_repro.present.words import WORDS, word

COLOUR = METHOD_COLOURS["eagle"]
#: Dash and marker of a group of questions, the in-domain one first; only that is filled.
LOOKS = (("-", "o"), ("--", "D"), (":", "s"), ("-.", "^"))
TICK_GAP = 0.1  # share of the axis that the label of a tick needs
ROOM = 0.3  # share of the x axis that the labels at the line ends take
LABEL_GAP = 0.075  # share of the axis between two labels at line ends


def group_looks(groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How each group of questions is drawn, in the colour of the method."""
    looks = {}
    for number, group in enumerate(groups):
        dash, marker = LOOKS[number % len(LOOKS)]
        face = COLOUR if group == IN_DOMAIN else "white"
        looks[group] = {
            "linestyle": dash,
            "marker": marker,
            "color": COLOUR,
            "markerfacecolor": face,
            "markersize": 5.5,
        }
    return looks


def group_name(group: str, lang: str) -> str:
    """The name of a group: that of a set, or the words for all in-domain sets together."""
    return word(group, lang) if group in WORDS[lang] else group


def group_handles(looks: Mapping[str, Mapping[str, Any]], lang: str) -> list[Artist]:
    """The groups as the legend shows them, by their markers."""
    return [Line2D([], [], label=group_name(group, lang), **{**look, "linestyle": ""}) for group, look in looks.items()]


def end_labels(axes: Axes, ends: Sequence[tuple[float, float, str]]) -> None:
    """Label lines at their right ends (x, y, text), moved apart where two would touch. Set the y limits before."""
    low, high = axes.get_ylim()
    least = LABEL_GAP * (high - low)
    ends = sorted(ends, key=lambda end: end[1])
    upwards, downwards = [-math.inf], [math.inf]
    for _, y, _ in ends:
        upwards.append(max(y, upwards[-1] + least))
    for _, y, _ in reversed(ends):
        downwards.append(min(y, downwards[-1] - least))
    # Both rows keep the distance, and so does their middle, which does not lean to one side.
    for (x, y, text), up, down in zip(ends, upwards[1:], downwards[:0:-1], strict=True):
        shift = ((up + down) / 2 - y) / (high - low) * axes.bbox.height * 72 / axes.figure.dpi
        note(axes, text, (x, y), (9, shift), va="center", fontsize=8.5, color="#333333")


def ticks(axes: Axes, values: Sequence[float], names: Mapping[float, str], *, logarithmic: bool) -> None:
    """Ticks at the values, as many of them labelled as have room; names: other labels than the values themselves."""
    scale = math.log if logarithmic else float
    reach = scale(max(values)) - scale(min(values)) or 1.0
    shown: list[float] = []
    # From both ends, for these are what a reader looks for; between them the first that fits.
    for value in sorted(values, key=lambda value: (value not in (min(values), max(values)), value)):
        if all(abs(scale(value) - scale(other)) / reach > TICK_GAP for other in shown):
            shown.append(value)
    shown.sort()
    axes.set_xticks(shown, [names.get(value, f"{value:g}") for value in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def leave_room(axes: Axes, *, logarithmic: bool) -> None:
    """Lengthen the x axis for the labels at the line ends."""
    low, high = axes.dataLim.x0, axes.dataLim.x1
    if logarithmic:
        axes.set_xlim(low / (high / low) ** 0.05, high * (high / low) ** ROOM)
    else:
        axes.set_xlim(low - 0.05 * (high - low), high + ROOM * (high - low))
