"""The tables of 03_tree_shape, each from a record, and the one of the verb tune."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from eagle_repro.measure import tree_shape
from eagle_repro.measure.records import Record
from eagle_repro.measure.tree_shape import IN_DOMAIN
from eagle_repro.present.layout import Column, Table, fixed, interval, spans, table, times, tree_label, yes_no
from eagle_repro.present.words import bench_line

__all__ = ["adaptive", "comparison", "costs", "picks", "ranking", "sweep"]

HEADINGS = {"depth": "depth", "nodes": "nodes", "top_k": "top_k"}
PREDICTED = Column("predicted", "predicted", times, right=True)
MEASURED = Column("measured", "measured", times, right=True)
TREE = Column("tree", "tree (nodes, depth, top_k)")
TAU = Column("tau", "tau", fixed(2), right=True)
ADAPTIVE = "A tree picked anew for every cycle"
REPLAY_NOTE = "tau: by replay over all questions. predicted: speedup by the cost formula from measured curves."


def picks(record: Record) -> Table:
    """Who would choose which tree, and what it gives: in domain together, and on each other set."""
    rows = [_with_words(row) for row in tree_shape.picks(record).to_dict("records")]
    columns = (
        Column("rule", "chosen by"),
        TREE,
        Column("group", "questions"),
        TAU,
        PREDICTED,
        MEASURED,
        Column("interval", "", right=True),
    )
    notes = [
        REPLAY_NOTE,
        "reference: the official rule, which times five passes and sets the nodes alone.",
        "cost model: the best of a grid of trees for all in-domain questions together.",
        "measured: on the first questions of each set, so that it may differ from the prediction for all of them.",
        bench_line(record),
    ]
    return table("Which tree", rows, columns, notes)


def sweep(record: Record, name: str) -> Table:
    """One sweep ("depth", "nodes", "top_k") as numbers."""
    rows = [_with_words(row) for row in tree_shape.sweep(record, name).to_dict("records")]
    columns = (
        Column("group", "questions"),
        Column("asked", HEADINGS[name], right=True),
        TREE,
        TAU,
        PREDICTED,
        MEASURED,
        Column("interval", "", right=True),
        Column("clipped", "cut to capacity", yes_no),
    )
    return table(f"Sweep over {HEADINGS[name]}", rows, columns, [REPLAY_NOTE, bench_line(record)])


def comparison(record: Record) -> Table:
    """Every measured tree on every set, prediction beside measurement, both of the same texts."""
    frame = tree_shape.comparison(record)
    rows = [_with_words(row) for row in frame.to_dict("records")]
    columns = (
        Column("set", "set"),
        TREE,
        TAU,
        Column("exact", "replay exact", yes_no),
        PREDICTED,
        MEASURED,
        Column("interval", "", right=True),
        Column("error", "error", lambda error: f"{100 * error:+.0f}%", right=True),
        Column("identical", "same ids", yes_no),
    )
    exact = f"{int(frame['exact'].sum())} of {len(frame)}"
    notes = [
        f"replay exact: the replay gives the accepted tokens of every measured cycle ({exact}).",
        "error: predicted / measured - 1. Brackets: 95% bootstrap over questions.",
        bench_line(record),
    ]
    return table("Predicted beside measured", rows, columns, notes)


def adaptive(record: Record) -> Table:
    """The method that picks a tree for every cycle, beside the best of the fixed ones on each set."""
    rows = [
        row | {"tree": tree_label(row), "of": f"{row['alike']} of {row['questions']}"} | spans(row, "speedup", "share")
        for row in tree_shape.adaptive(record).to_dict("records")
    ]
    columns = (
        Column("set", "set"),
        TAU,
        Column("speedup", "adaptive", times, right=True),
        Column("speedup_span", "", right=True),
        Column("tree", "best fixed tree here"),
        Column("best", "its speedup", times, right=True),
        Column("share", "adaptive / best", fixed(3), right=True),
        Column("share_span", "", right=True),
        Column("alike_share", "on equal texts", fixed(3), right=True),
        Column("of", "questions", right=True),
    )
    if not rows:
        return table(ADAPTIVE, [], columns, ["This record has no runs of the adaptive method.", bench_line(record)])
    trees = max(row["shapes"] for row in rows)
    notes = [
        "adaptive: a tree or a plain step for every cycle, by what the head expects and how far that came true so far.",
        "tau: plain steps are cycles of one token.",
        f"best fixed tree: of {trees} measured on the same questions, the one with the fewest seconds in all.",
        "It is chosen after the fact and by those seconds, so luck is on its side: adaptive / best is rather too low.",
        "What adaptive measures of its candidates before a text is in none of these times.",
        "on equal texts: where adaptive wrote plain decoding's text, against the best tree that did so there too.",
        "Elsewhere a near-tie of half precision led to another text, which has another tau.",
        "Brackets: 95% bootstrap over questions.",
        bench_line(record),
    ]
    return table(ADAPTIVE, rows, columns, notes)


def costs(record: Record) -> Table:
    """The measured points of the cost curves."""
    rows = []
    for row in tree_shape.costs(record).to_dict("records"):
        drafting = row["phase"] == "draft"
        phase = f"draft, top_k {row['top_k']:.0f}" if drafting else row["phase"]
        rows.append({"phase": phase, "at": row["depth" if drafting else "nodes"], "ms": row["ms"]})
    columns = (
        Column("phase", "phase"),
        Column("at", "nodes, or depth", fixed(0), right=True),
        Column("ms", "ms", fixed(2), right=True),
    )
    notes = ["draft: the whole draft phase of a cycle. rest: choosing, committing, the host.", bench_line(record)]
    return table("What a cycle costs", rows, columns, notes)


def ranking(rows: Iterable[Mapping[Any, Any]], notes: Iterable[str]) -> Table:
    """The fastest predicted trees, best first (columns total_tokens, depth, top_k, tau, speedup, ms_cycle)."""
    shown = [dict(row) | {"tree": tree_label(row), "place": place} for place, row in enumerate(rows, start=1)]
    columns = (
        Column("place", "", right=True),
        TREE,
        TAU,
        Column("speedup", "predicted", times, right=True),
        Column("ms_cycle", "ms a cycle", fixed(1), right=True),
    )
    return table("The fastest trees here", shown, columns, notes)


def _with_words(row: Mapping[Any, Any]) -> dict[Any, Any]:
    said = dict(row) | {"tree": tree_label(row), "interval": interval(row["measured_low"], row["measured_high"])}
    if pd.isna(row["measured"]):
        said["interval"] = "not measured"
    if row.get("group") == IN_DOMAIN:
        said["group"] = "in domain"
    return said
