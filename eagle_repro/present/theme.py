"""How every figure looks: colours, fonts, the bench line, and saving with stable bytes."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eagle_repro.measure.records import Record
from eagle_repro.present.words import bench_line, word

#: One colour a method in every figure: Okabe and Ito's colour-blind safe blue, orange and green beside greys, no two
#: of the same lightness, so that a grey print keeps them apart.
METHOD_COLOURS = {
    "plain": "#222222",
    "hf": "#8c8c8c",
    "eagle": "#0072b2",
    "chain": "#e69f00",
    "adaptive": "#009e73",
}
#: The phases of a cycle, shades of the method that it belongs to.
PHASE_COLOURS = {"draft": "#a6cee3", "verify": "#0072b2", "accept": "#08306b", "commit": "#d5e8f3", "rest": "#e8e8e8"}
#: Marker and whether it is filled, by variant of the tree; a variant that is not named here looks like the default.
VARIANT_MARKS = {
    "default": ("o", True),
    "picked": ("D", False),
    "small": ("D", False),
    "shallow": ("D", False),
    "sampled": ("s", False),
}
GREY = "#6b6b6b"
PREDICTION_COLOUR = "#d55e00"

WIDTH = 8.0  # inches; with DPI, 1,280 pixels: sharp at the width of a README column
DPI = 160
TITLE_WIDTH, FOOTER_WIDTH = 64, 130  # characters a line
MARGIN, TITLE_LINE, LEGEND_LINE, FOOTER_LINE = 0.1, 0.25, 0.22, 0.14  # inches

STYLE: Any = {
    "font.family": "DejaVu Sans",  # ships with matplotlib and has Cyrillic
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#333333",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "savefig.bbox": "standard",
    "svg.hashsalt": "eagle_repro",
}


@dataclass(frozen=True)
class Picture:
    """A finished figure. A notebook shows it as the same bytes that `save` writes, and its finding as the text."""

    figure: Figure
    finding: str

    def png(self) -> bytes:
        """The figure as PNG, the same bytes every time: no dates and no versions in the file."""
        buffer = io.BytesIO()
        with mpl.rc_context(STYLE):
            self.figure.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()

    def __repr__(self) -> str:
        return f"Figure: {self.finding}"


def save(picture: Picture, name: str, folder: Path | str) -> Picture:
    """Write `picture` as folder/figures/NAME.png and give it back, so that one call in a notebook saves and shows."""
    path = Path(folder) / "figures" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture.png())
    return picture


def canvas(height: float, columns: int = 1, share: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of the common width with axes `height` inches high side by side, outside pyplot's global state."""
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.subplots(1, columns, squeeze=False, sharex=share, sharey=share)
    return figure, list(axes[0])


def finish(figure: Figure, finding: str, record: Record, lang: str, handles: Sequence[Artist] = ()) -> Picture:
    """Put the finding and the legend above and the bench below, adding their height to the figure's."""
    title = textwrap.fill(finding, TITLE_WIDTH)
    footer = textwrap.fill(f"{word('bench', lang)}: {bench_line(record)}", FOOTER_WIDTH)
    columns = 2 if len(handles) > 2 else 3
    title_end = MARGIN + TITLE_LINE * len(title.splitlines())
    above = title_end + LEGEND_LINE * math.ceil(len(handles) / columns)
    below = MARGIN + FOOTER_LINE * len(footer.splitlines())
    height = figure.get_figheight() + above + below
    figure.set_figheight(height)
    left = 0.1 / WIDTH
    figure.text(left, 1 - MARGIN / height, title, va="top", fontsize=13, fontweight="bold", linespacing=1.15)
    figure.text(left, MARGIN / height, footer, va="bottom", fontsize=7.5, color=GREY)
    if handles:
        corner = (0, 1 - title_end / height)
        legend = figure.legend(
            handles=list(handles), loc="upper left", bbox_to_anchor=corner, ncols=columns, fontsize=9
        )
        legend.set_in_layout(False)
    figure.set_layout_engine("constrained", rect=(0, below / height, 1, 1 - (above + below) / height))
    # Laid out here and then frozen: the layout moves a little with every drawing, and a file must not.
    figure.draw_without_rendering()
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return Picture(figure, finding)


def mark(variant: str) -> dict[str, Any]:
    """Marker of a tree's variant, in the colour of the method."""
    shape, filled = VARIANT_MARKS.get(variant, VARIANT_MARKS["default"])
    colour = METHOD_COLOURS["eagle"]
    face = colour if filled else "white"
    return {
        "marker": shape,
        "markersize": 7,
        "color": colour,
        "markerfacecolor": face,
        "markeredgewidth": 1.6,
        "linestyle": "",
    }


def short(value: float) -> str:
    """A number as a label needs it: 0.86, 23.6, 1230."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def note(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **options: Any) -> None:
    """Label a point of the data directly: `text` moved by `offset` points from `at`."""
    look: dict[str, Any] = {"color": GREY, "fontsize": 9} | options
    axes.annotate(text, at, offset, textcoords="offset points", **look)
