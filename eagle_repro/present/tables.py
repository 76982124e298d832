"""The tables, each from a record; layout.py prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from eagle_repro.measure import summary
from eagle_repro.measure.records import Record
from eagle_repro.present import claim_tables
from eagle_repro.present.layout import (
    GAINS,
    Column,
    Table,
    fixed,
    share,
    show,
    spans,
    table,
    times,
    tree_label,
    write,
    yes_no,
)
from eagle_repro.present.words import bench_line

__all__ = [
    "bench_sheet",
    "claims",
    "details",
    "effective",
    "guards",
    "phases",
    "roofline",
    "show",
    "speedup",
    "weights",
]

SPEEDUP_NOTES = (
    "tau: tokens a cycle, the bonus token included, over all cycles of a set (step-weighted).",
    "against plain, against hf: total seconds of that baseline / of eagle, equal tokens, prefill apart.",
    "predicted: by the cost formula, from tau and the phases of a cycle. Brackets: 95% bootstrap over questions.",
)
DETAIL_NOTES = (
    "same ids: as plain decoding of the same question, near-ties of half precision counted apart.",
    "after end: tokens past the first end of text, kept for equal work.",
    "loops: positions whose last eight tokens occurred before.",
)
_MS = fixed(1)
_VALUE = (Column("name", ""), Column("value", "value"))
_TREE = (Column("set", "set"), Column("tree", "tree (nodes, depth, top_k)"))


def bench_sheet(record: Record) -> Table:
    """The conditions that every number of the record belongs to."""
    bench, footer = record.header["bench"], record.footer or {}
    now = bench.get("now") or {}
    names = ("driver", "cuda", "cpu", "threads", "torch", "transformers", "numpy", "python", "package", "git")
    values = {
        "card": bench.get("card"),
        "memory": write(bench.get("memory_bytes"), lambda size: f"{size / 2**30:.1f} GiB"),
        "compute capability": write(bench.get("capability"), lambda pair: ".".join(map(str, pair))),
        **{name: bench.get(name) for name in names},
        "dtype": bench.get("dtype"),
        "stack": bench.get("stack"),
        "pair": (bench.get("pair") or {}).get("name"),
        **{f"questions {name}": f"sha256 {sha[:12]}" for name, sha in (bench.get("question_sets") or {}).items()},
        "clocks before": _clocks(now.get("clocks")),
        "clocks after": _clocks(footer.get("clocks_after")),
        "measured": now.get("utc"),
    }
    return table("Bench sheet", [{"name": name, "value": value} for name, value in values.items()], _VALUE)


def effective(settings: pd.DataFrame) -> Table:
    """The settings of a run as they took effect, and where each came from (columns name, value, from)."""
    rows = [row | {"value": "-" if pd.isna(row["value"]) else row["value"]} for row in settings.to_dict("records")]
    return table("Settings of this run", rows, (*_VALUE, Column("from", "from")))


def weights(record: Record) -> Table:
    """Where target and head came from, and how large they are."""
    columns = (
        Column("role", "role"),
        Column("source", "source"),
        Column("revision", "revision"),
        Column("parameters", "parameters (M)", lambda count: f"{count / 1e6:.1f}", right=True),
        Column("weight_bytes", "read by a pass (MB)", lambda size: f"{size / 1e6:.1f}", right=True),
        Column("licence", "licence"),
    )
    return table("Weights", _of_kind(record, "weights/"), columns)


def guards(record: Record) -> Table:
    """What was checked before anything was measured."""
    columns = (Column("check", "check"), Column("verdict", "verdict"), Column("detail", "detail"))
    return table("Guard", _of_kind(record, "guard/"), columns)


def roofline(record: Record) -> Table:
    """What a pass costs by its tokens."""
    frame = summary.roofline(record)
    footer = record.footer or {}
    frame["spread"] = frame["ms_high"] - frame["ms_low"]
    columns = (
        Column("tokens", "tokens", right=True),
        Column("ms", "ms a pass", fixed(2), right=True),
        Column("spread", "spread (ms)", fixed(2), right=True),
        Column("ms_per_token", "ms a token", fixed(3), right=True),
        Column("utilisation", "bus used", share, right=True),
    )
    flat = summary.flat_until(frame)
    size = write(footer.get("weight_bytes"), lambda size: f"{size / 1e6:.0f} MB")
    measured, peak = (write(footer.get(name), fixed(0)) for name in ("bandwidth_gb_s", "peak_gb_s"))
    notes = [
        f"Reading the weights once ({size}) takes {write(frame['floor_ms'].iloc[0], fixed(2))} ms at best.",
        f"Bandwidth: measured {measured} GB/s, data sheet {peak} GB/s.",
        f"Flat, within 25% of one token's time, up to {flat} token{'s' if flat > 1 else ''}.",
        bench_line(record),
    ]
    return table("What a pass costs", frame, columns, notes)


def speedup(record: Record) -> Table:
    """tau and speedup by question set, against both baselines, with the prediction beside the measurement."""
    rows = [
        row | {"tree": named_tree(row)} | spans(row, "tau", "speedup")
        for row in summary.speedup(record).to_dict("records")
    ]
    columns = (
        *_TREE,
        *GAINS,
        Column("predicted", "predicted", fixed(2, "x"), right=True),
        Column("speedup_hf", "against hf", times, right=True),
    )
    remarks = sorted({remark for row in rows for remark in (row["note"], row["warning"]) if isinstance(remark, str)})
    return table("Speedup by question set", rows, columns, [*SPEEDUP_NOTES, *remarks, bench_line(record)])


def details(record: Record) -> Table:
    """The other averages, and what was written: the same as plain decoding or not, and how much is worth reading."""
    rows = [row | {"tree": named_tree(row)} for row in summary.speedup(record).to_dict("records")]
    columns = (
        *_TREE,
        Column("questions", "questions", right=True),
        Column("tau_question_mean", "tau, mean of questions", fixed(2), right=True),
        Column("speedup_median", "median speedup", fixed(2, "x"), right=True),
        Column("end_to_end", "with prefill", fixed(2, "x"), right=True),
        Column("identical", "same ids", yes_no),
        Column("near_ties", "near-ties", fixed(0), right=True),
        Column("after_eos", "after end", share, right=True),
        Column("loop_share", "loops", share, right=True),
    )
    return table("Behind the headline", rows, columns, DETAIL_NOTES)


def claims(record: Record) -> Table:
    """The article's statements with the verdicts of 11_report, and the bench of the records that it judged."""
    rows = [row for row in record.rows if row.get("claim_kind")]
    if not rows:
        raise ValueError(f"{record.path.name} holds no claims: name a record of 11_report")
    footer = record.footer or {}
    judged = replace(record, header=record.header | {"bench": footer.get("evidence") or {}})
    made = claim_tables.directions(rows)
    left_out = claim_tables.left_out(footer.get("others") or {})
    return replace(made, notes=(*made.notes, *left_out, *filter(None, [bench_line(judged)])))


def phases(record: Record) -> Table:
    """Where the milliseconds of a cycle go."""
    rows = [row | {"tree": named_tree(row)} for row in summary.phases(record).to_dict("records")]
    names = ("draft", "verify", "accept", "commit", "rest", "cycle")
    columns = (
        *_TREE[1:],
        Column("cycles", "cycles", right=True),
        *(Column(f"{name}_ms", name, _MS, right=True) for name in names),
        Column("plain_ms", "a plain step", _MS, right=True),
        Column("tau", "tau", fixed(2), right=True),
    )
    notes = [
        "Milliseconds, means over instrumented cycles, which wait for the device after each phase.",
        bench_line(record),
    ]
    return table("Phases of a cycle", rows, columns, notes)


def _of_kind(record: Record, prefix: str) -> list[dict[str, Any]]:
    return [row for row in record.rows if row["kind"] == "run" and row["key"].startswith(prefix)]


def _clocks(values: Mapping[str, Any] | None) -> str | None:
    if not values or all(value is None for value in values.values()):
        return None
    units = {"sm_mhz": "MHz", "memory_mhz": "MHz memory", "temperature_c": "C"}
    return ", ".join(f"{write(values.get(name), fixed(0))} {unit}" for name, unit in units.items())


def named_tree(row: Mapping[Any, Any]) -> str:
    """A tree of 02_speedup with the name of its variant."""
    return f"{row['variant']} {tree_label(row)}"
