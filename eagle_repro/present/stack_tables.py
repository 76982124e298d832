"""The tables of 08_stack and of the verb bench: what cycles cost on each stack, and what speculation gives there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from eagle_repro.measure import stacks
from eagle_repro.measure.records import Record
from eagle_repro.present.layout import GAINS, RATES, Column, Table, fixed, share, spans, table, times, tree_label
from eagle_repro.present.words import bench_line

__all__ = ["costs", "gains", "overhead", "timed"]

MADE_READY = (
    "made ready: seconds until cycles are replayed, of them a first run and compiling, MB of buffers and of graphs; "
    "in none of the times."
)
SINGLE = "A set of one question has no interval, and what it says of a stack is rough."


def costs(record: Record) -> Table:
    """What a plain step and the phases of a cycle cost on each stack."""
    record = stacks.as_compared(record)
    missing = [
        f"{row['pair']} on {row['stack']} was left out: {row['reason']}."
        for row in stacks.skipped(record).to_dict("records")
    ]
    bandwidth = (record.footer or {}).get("bandwidth_gb_s")
    return timed(stacks.costs(record), bandwidth, [*missing, bench_line(record)])


def timed(frame: pd.DataFrame, bandwidth_gb_s: float | None, notes: Iterable[str]) -> Table:
    """The same from a table of costs that no record holds."""
    rows = [
        row | {"tree_name": tree_label(row), "made": f"{row['buffer_mb']:,.0f} + {row['graph_mb']:,.0f}"}
        for row in frame.to_dict("records")
    ]
    ms: dict[str, Any] = {"form": fixed(2), "right": True}
    columns = (
        Column("pair", "pair"),
        Column("stack", "stack"),
        Column("tree_name", "tree"),
        Column("plain_ms", "plain step", **ms),
        Column("utilisation", "bus", share, right=True),
        *(Column(f"{phase}_ms", phase, **ms) for phase in stacks.PHASES),
        Column("cycle_ms", "cycle", **ms),
        Column("host_ms", "host", **ms),
        Column("steps", "pays from tau", fixed(2), right=True),
        Column("capture_s", "made ready (s)", fixed(1), right=True),
        Column("compile_s", "compiling", fixed(1), right=True),
        Column("made", "(MB)", right=True),
    )
    floors = frame.drop_duplicates("pair").to_dict("records")
    read = "; ".join(f"{row['pair']} {row['floor_ms']:.2f} ms" for row in floors)
    bus = []
    if bandwidth_gb_s:
        bus = [f"bus: reading the weights once at the {bandwidth_gb_s:,.0f} GB/s measured here ({read}), of that time."]
    lines = [
        "Milliseconds, medians over cycles. tree: nodes, depth, top_k. host: a cycle beyond its time on the device.",
        "Phases are of cycles launched phase by phase, between events on the device; on eager the host is in them.",
        *bus,
        MADE_READY,
        *notes,
    ]
    return table("What a cycle costs, by stack", rows, columns, lines)


def gains(record: Record) -> Table:
    """tau, speedup and tokens a second by stack, tree and group of questions."""
    record = stacks.as_compared(record)
    rows = [
        row | {"tree_name": tree_label(row)} | spans(row, "tau", "speedup")
        for row in stacks.gains(record).to_dict("records")
    ]
    columns = (
        Column("stack", "stack"),
        Column("tree_name", "tree"),
        Column("group", "questions"),
        Column("questions", "", right=True),
        *GAINS,
        *RATES,
    )
    notes = [
        "against plain: plain decoding on the same stack, equal tokens, prefill and capture apart. Brackets: 95% "
        "bootstrap over questions.",
        *_single(rows),
        bench_line(record),
    ]
    return table("What speculation gives, by stack", rows, columns, notes)


def overhead(record: Record) -> Table:
    """How much of the plainest stack's gain was overhead that a cycle pays once for several tokens."""
    record = stacks.as_compared(record)
    slow = stacks.names(record)[0]
    rows = [
        row | {"tree_name": tree_label(row)} | spans(row, "overhead")
        for row in stacks.overhead(record).to_dict("records")
    ]
    columns = (
        Column("stack", "stack"),
        Column("tree_name", "tree"),
        Column("group", "questions"),
        Column("saved_ms", f"saved a token on {slow} (ms)", fixed(2), right=True),
        Column("left_ms", "left of it (ms)", fixed(2), right=True),
        Column("overhead", "was overhead", share, right=True),
        Column("overhead_span", "", right=True),
        Column("speedup_slow", f"against plain, {slow}", times, right=True),
        Column("speedup_fast", "on this stack", times, right=True),
        Column("faster", f"against plain {slow}", times, right=True),
    )
    notes = [
        f"left: what speculation saves a token on the faster stack. The rest of what it saves on {slow} was the "
        "launching of operations.",
        "Brackets: 95% bootstrap over questions.",
        *_single(rows),
        bench_line(record),
    ]
    alone = [f"One stack alone was measured ({slow}): nothing to compare.", bench_line(record)]
    return table("How much of the gain was overhead", rows, columns, notes if rows else alone)


def _single(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The note that one question stands for a set, where it does."""
    return [SINGLE] if any(row["questions"] == 1 for row in rows) else []
