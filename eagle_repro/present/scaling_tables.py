"""The tables of 09_batch_context, each from a record."""

from __future__ import annotations

import math
from typing import Any

from eagle_repro.measure import scaling
from eagle_repro.measure.records import Record
from eagle_repro.present.layout import GAINS, RATES, Column, Table, fixed, share, spans, table, tree_label
from eagle_repro.present.words import bench_line

__all__ = ["gone", "points", "timing"]

AXES = {"batch": "texts side by side", "context": "tokens of context"}


def points(record: Record) -> Table:
    """tau, speedup and tokens a second along both axes."""
    rows = [
        row | {"tree": tree_label(row), "axis": AXES[row["axis"]]} | spans(row, "tau", "speedup")
        for row in scaling.points(record).to_dict("records")
    ]
    columns = (
        Column("axis", "along"),
        Column("value", "", fixed(0), right=True),
        Column("tree", "tree"),
        Column("texts", "texts", right=True),
        *GAINS,
        *RATES,
        Column("same", "same ids", share, right=True),
        Column("alone", "as alone", share, right=True),
    )
    missing = [
        f"{row['pair']}, {AXES[row['axis']]}, {row['value']}: left out, {row['reason']}."
        for row in scaling.skipped(record).to_dict("records")
        if row["axis"] in AXES
    ]
    notes = [
        "against plain: plain decoding of the same batches; a batch lasts until its last row has ended, prefill apart.",
        "same ids: texts equal to those of plain decoding one by one; as alone: to those of this tree one by one.",
        "Brackets: 95% bootstrap over batches.",
        *missing,
        bench_line(record),
    ]
    return table("Batches and contexts", rows, columns, notes)


def gone(record: Record) -> Table:
    """Where the gain is gone on each axis."""
    rows = []
    for row in scaling.gone(record).to_dict("records"):
        ends = {name: limit(row[name], row["last"]) for name in ("at", "at_low", "at_high")}
        span = f"[{ends['at_low']}, {ends['at_high']}]"
        rows.append({"axis": AXES[row["axis"]], "tree": tree_label(row), "at": ends["at"], "span": span})
    columns = (
        Column("axis", "along"),
        Column("tree", "tree"),
        Column("at", "gain gone at", right=True),
        Column("span", "", right=True),
    )
    notes = [
        "Interpolated along the logarithm of the axis; >: not gone at the last point. Brackets: 95% bootstrap over "
        "batches.",
        bench_line(record),
    ]
    return table("Where the gain is gone", rows, columns, notes)


def timing(record: Record) -> Table:
    """What step and cycle of the timing-only pair cost along both axes, or why there was none."""
    frame = scaling.timing(record)
    missing = [f"{pair} was left out: {reason}." for pair, reason in scaling.untimed(record)]
    record = record if frame.empty else scaling.as_timed(record)
    rows = [row | {"tree": tree_label(row), "axis": AXES[row["axis"]]} for row in frame.to_dict("records")]
    ms: dict[str, Any] = {"form": fixed(2), "right": True}
    columns = (
        Column("pair", "pair"),
        Column("axis", "along"),
        Column("value", "", fixed(0), right=True),
        Column("tree", "tree"),
        Column("plain_ms", "plain step", **ms),
        Column("cycle_ms", "cycle", **ms),
        Column("steps", "pays from tau", fixed(2), right=True),
    )
    notes = ["Milliseconds, medians over cycles; the weights are random, so tau is unknown."]
    return table("A timing-only pair along both axes", rows, columns, [*notes, *missing, bench_line(record)])


def limit(at: float, last: float) -> str:
    """A place on an axis, read off between two points, so in two digits; or that it lies beyond the last point."""
    return f">{last:,.0f}" if math.isinf(at) else f"{float(f'{at:.2g}'):,.0f}" if at >= 10 else f"{at:.1f}"
