"""The figures of the report by name, each drawn where the run holds enough for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axis import Axis
from matplotlib.text import Text

from eagle_repro.measure.claims import Run
from eagle_repro.measure.records import Record
from eagle_repro.present import (
    chain_plots,
    domain_plots,
    lossless_plots,
    plots,
    scaling_plots,
    shape_plots,
    size_plots,
    stack_plots,
    training_plots,
)
from eagle_repro.present.theme import Picture, save

#: The point of a number, not of a name such as qwen3-1.7b; and what has a version in it, which keeps all its points.
DECIMAL = re.compile(r"(?<![\w.-])(\d+)\.(\d+)(?=x\b|[^\w.]|\.(?!\d)|$)")
VERSION = re.compile(r"\d+\.\d+\.\d+")
#: The figures by name: the record that each is drawn from, and how.
FIGURES: dict[str, tuple[str, Callable[[Record, str], Picture]]] = {
    "roofline": ("01_roofline", plots.roofline),
    "speedup_by_set": ("02_speedup", plots.speedup_by_set),
    "tau_by_set": ("02_speedup", plots.tau_by_set),
    "cycle_phases": ("02_speedup", plots.cycle_phases),
    "predicted": ("02_speedup", plots.predicted_vs_measured),
    "depth_sweep": ("03_tree_shape", shape_plots.depth_sweep),
    "cost_curves": ("03_tree_shape", shape_plots.cost_curves),
    "shape_prediction": ("03_tree_shape", shape_plots.prediction),
    "depth_trap": ("03_tree_shape", shape_plots.depth_trap),
    "branching": ("04_chain_vs_tree", chain_plots.branching),
    "acceptance": ("04_chain_vs_tree", chain_plots.acceptance),
    "two_pairs": ("05_target_size", size_plots.pairs),
    "target_size": ("05_target_size", size_plots.speedup_by_size),
    "break_even": ("05_target_size", size_plots.break_even),
    "domain_tau": ("07_domain", domain_plots.heat_tau),
    "domain_gains": ("07_domain", domain_plots.gains),
    "training": ("10_train_head", training_plots.curves),
    "training_tau": ("10_train_head", training_plots.tau_by_minute),
    "lossless": ("06_lossless", lossless_plots.near_ties),
    "permutation": ("06_lossless", lossless_plots.permutation),
    "stack_steps": ("08_stack", stack_plots.steps),
    "stack_gains": ("08_stack", stack_plots.gains),
    "batches": ("09_batch_context", scaling_plots.batches),
    "contexts": ("09_batch_context", scaling_plots.contexts),
    "scaling_timing": ("09_batch_context", scaling_plots.timing),
}


@dataclass(frozen=True)
class Absent:
    """What stands in a notebook for a figure that cannot be drawn, and why it cannot."""

    name: str
    reason: str

    def __repr__(self) -> str:
        return f"no figure {self.name}: {self.reason}"


def figure(run: Run, name: str, lang: str = "en") -> Picture | Absent:
    """A figure of the report by name (FIGURES)."""
    lacking = f"the run has no finished {FIGURES[name][0]} that holds enough for it"
    return draw(run, name, lang) or Absent(name, lacking)


def drawn(function: Callable[[Record], Picture], record: Record, name: str, folder: Path | str) -> Picture | Absent:
    """The figure of a record, saved and shown by a notebook; where the record holds too little for it, the reason."""
    try:
        return save(function(record), name, folder)
    except ValueError as lacking:  # the figures' way to say what a record lacks
        return Absent(name, str(lacking))


def draw(run: Run, name: str, lang: str) -> Picture | None:
    """A figure of the report; None where the run holds too little for it."""
    record, function = FIGURES[name]
    if record not in run.records:
        return None
    try:
        picture = function(run.records[record], lang)
    except ValueError:  # the figures' way to say what a record lacks
        return None
    return with_decimal_commas(picture) if lang == "ru" else picture


def with_decimal_commas(picture: Picture) -> Picture:
    """The same figure with 2,6 for 2.6 in its texts and at its axes; names and versions stay as they are."""
    figure = picture.figure
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            _set_commas(axis)
    for text in figure.findobj(Text):
        if not VERSION.search(text.get_text()):
            text.set_text(_comma(text.get_text()))
    return Picture(figure, _comma(picture.finding))


def _comma(text: str) -> str:
    return DECIMAL.sub(r"\1,\2", text)


def _set_commas(axis: Axis) -> None:
    """Fix the ticks of an axis at where they are, with commas in their labels; one without points stays as it is."""
    low, high = sorted(axis.get_view_interval())
    places = [place for place in axis.get_majorticklocs() if low <= place <= high]
    texts = axis.get_major_formatter().format_ticks(places)
    if any(map(DECIMAL.search, texts)):
        axis.set_ticks(places, list(map(_comma, texts)))
