"""The tables that only the command line prints; the others come from records (tables.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd

from eagle_repro.measure.records import Record
from eagle_repro.measure.stats import tau_warning
from eagle_repro.present import (
    comparison_tables,
    domain_tables,
    scaling_tables,
    shape_tables,
    stack_tables,
    tables,
    training_tables,
)
from eagle_repro.present.layout import Column, Table, fixed, interval, table, times, yes_no

Rows: TypeAlias = Iterable[Mapping[Any, Any]]
WARNED_FROM = 32  # tokens from which a text is long enough for its tau to say something of the head


def of(record: Record) -> tuple[Table, ...]:
    """The tables that go with a record's experiment."""
    made = {
        "00_bench": (tables.bench_sheet, tables.weights, tables.guards),
        "01_roofline": (tables.roofline,),
        "02_speedup": (tables.speedup, tables.details, tables.phases),
        "03_tree_shape": (shape_tables.picks, shape_tables.comparison, shape_tables.adaptive),
        "04_chain_vs_tree": (comparison_tables.gains, comparison_tables.acceptance),
        "05_target_size": (comparison_tables.pairs, comparison_tables.timing, comparison_tables.predicted),
        "06_lossless": (comparison_tables.greedy, comparison_tables.first_tokens, comparison_tables.permutations),
        "07_domain": (domain_tables.heads, domain_tables.taus, domain_tables.speedups, domain_tables.answers),
        "08_stack": (stack_tables.costs, stack_tables.gains, stack_tables.overhead),
        "09_batch_context": (scaling_tables.points, scaling_tables.gone, scaling_tables.timing),
        "10_train_head": (training_tables.run, training_tables.taus, training_tables.against_own),
    }
    return tuple(make(record) for make in made.get(record.header["name"], (tables.bench_sheet,)))


def outcomes(rows: Rows) -> Table:
    """What became of each notebook: columns name, state, seconds, budget, reason."""
    columns = (
        Column("name", "notebook"),
        Column("state", "state"),
        Column("seconds", "seconds", fixed(0), right=True),
        Column("budget", "planned", fixed(0), right=True),
        Column("reason", "", lambda text: str(text)),
    )
    return table("Notebooks", rows, columns)


def tau(frame: pd.DataFrame, shape: str) -> Table:
    """tau by set, as experiments.tau counts it."""
    rows = [row | {"interval": interval(row["tau_low"], row["tau_high"])} for row in frame.to_dict("records")]
    columns = (
        Column("set", "set"),
        Column("questions", "questions", right=True),
        Column("cycles", "cycles", right=True),
        Column("tau", "tau", fixed(3), right=True),
        Column("interval", "", right=True),
        Column("tau_question_mean", "mean of questions", fixed(3), right=True),
        Column("ms_cycle", "ms a cycle", fixed(1), right=True),
    )
    notes = ["tau: tokens of all cycles over cycles, the last one uncut, end of text ignored. Brackets: 95% bootstrap."]
    return table(f"tau of the tree {shape}", rows, columns, [*notes, *frame["warning"].dropna()])


def texts(rows: Rows) -> Table:
    """One row a method that wrote the same prompt's answer."""
    rows = list(rows)
    ready = (
        [Column("capture_s", "made ready (s)", fixed(1), right=True)] if any(row["capture_s"] for row in rows) else []
    )
    columns = (
        Column("method", "method"),
        Column("tokens", "tokens", right=True),
        Column("stop_reason", "ended by"),
        Column("tau", "tau", fixed(2), right=True),
        *ready,
        Column("prefill_s", "prefill (s)", fixed(3), right=True),
        Column("decode_s", "decoding (s)", fixed(3), right=True),
        Column("tokens_per_s", "tokens/s", fixed(1), right=True),
        Column("identical", "same ids as plain", yes_no),
    )
    # A short text may be unlucky; plain steps are in adaptive's tau.
    warned = [row for row in rows if row["method"] in ("eagle", "chain") and row["tokens"] > WARNED_FROM]
    return table("How it was written", rows, columns, [tau_warning(row["tau"]) or "" for row in warned])


def differences(frame: pd.DataFrame, names: Sequence[str]) -> Table:
    """In what two benches differ: columns name, left, right."""
    columns = (Column("name", ""), Column("left", names[0]), Column("right", names[1]))
    return table("What differs between the benches", frame, columns, [] if len(frame) else ["Nothing."])


def side_by_side(frame: pd.DataFrame, names: Sequence[str]) -> Table:
    """tau and speedup of two records by set and tree."""
    rows = [row | {"tree": tables.named_tree(row)} for row in frame.to_dict("records")]
    columns = [Column("set", "set"), Column("tree", "tree (nodes, depth, top_k)")]
    for field, form in (("tau", fixed(2)), ("speedup", times), ("speedup_hf", times)):
        heading = {"tau": "tau", "speedup": "against plain", "speedup_hf": "against hf"}[field]
        sides = zip(("left", "right"), names, strict=True)
        columns += [Column(f"{field}_{side}", f"{heading}, {name}", form, right=True) for side, name in sides]
    return table("tau and speedup by question set", rows, columns)
