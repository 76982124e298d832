"""The tables of 04_chain_vs_tree, 05_target_size and 06_lossless, each from a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle_repro.measure import branching, exactness, sizes
from eagle_repro.measure.records import Record
from eagle_repro.present.layout import (
    GAINS,
    Column,
    Table,
    fixed,
    interval,
    share,
    spans,
    table,
    times,
    tree_label,
    yes_no,
)
from eagle_repro.present.words import bench_line

__all__ = [
    "acceptance", "first_tokens", "gains", "greedy", "pair_differences", "pairs", "permutations", "predicted", "timing",
]  # fmt: skip

MILLIONS = "parameters (M)"


def gains(record: Record) -> Table:
    """What branching gives, by group of questions."""
    rows = [
        row | {"more": _gain(row, "tau"), "faster": _gain(row, "speedup")}
        for row in branching.gains(record).to_dict("records")
    ]
    columns = (
        Column("group", "questions"),
        Column("questions", "", right=True),
        Column("tau_chain", "tau, chain", fixed(2), right=True),
        Column("tau_eagle", "tau, tree", fixed(2), right=True),
        Column("more", "gain in tau", right=True),
        Column("passes_chain", "passes for 100 tokens, chain", fixed(0), right=True),
        Column("passes_eagle", "tree", fixed(0), right=True),
        Column("speedup_chain", "speedup, chain", times, right=True),
        Column("speedup_eagle", "speedup, tree", times, right=True),
        Column("faster", "gain in speed", right=True),
    )
    shapes = {name: ", ".join(map(str, tree.values())) for name, tree in branching.trees(record).items()}
    notes = [
        f"chain ({shapes['chain']}), tree ({shapes['eagle']}): nodes, depth, top_k. A pass is one of the target.",
        "speedup: against plain decoding, equal tokens, prefill apart. Brackets: 95% bootstrap over questions, paired.",
        bench_line(record),
    ]
    return table("What branching gives", rows, columns, notes)


def acceptance(record: Record) -> Table:
    """The chain's acceptance rates by their three names, and the tree's beside them."""
    frame = branching.acceptance(record)
    names = {"chain": "chain", "eagle": "tree"}
    rows = [row | {"way": names[row["method"]]} for row in frame.to_dict("records")]
    columns = (
        Column("domain", "domain"),
        Column("way", ""),
        Column("cycles", "cycles", fixed(0), right=True),
        Column("accepted_per_drafted", "accepted / drafted", share, right=True),
        Column("position", "position", right=True),
        Column("reached", "per position", share, right=True),
        Column("conditional", "conditional", share, right=True),
    )
    notes = [
        "accepted / drafted: of all drafted tokens (a tree drafts alternatives, so that the rate says nothing there).",
        "per position: share of cycles that accept so many tokens. conditional: among those that accepted one fewer.",
    ]
    return table("Three acceptance rates", rows, columns, notes)


def pairs(record: Record) -> Table:
    """The trained pairs: sizes, tau and speedup over all their questions."""
    rows = [row | spans(row, "tau", "speedup") for row in sizes.pairs(record).to_dict("records")]
    columns = (
        Column("pair", "pair"),
        Column("target_parameters", f"target, {MILLIONS}", _millions, right=True),
        Column("head_parameters", f"head, {MILLIONS}", _millions, right=True),
        Column("head_share", "head / target", lambda value: f"{100 * value:.1f}%", right=True),
        Column("questions", "questions", right=True),
        *GAINS,
    )
    missing = [f"{row['pair']} was left out: {row['reason']}." for row in sizes.skipped(record).to_dict("records")]
    alone = "One pair alone compares nothing: its texts are few, and 02 has its speedups." if len(rows) == 1 else ""
    return table("Trained pairs", rows, columns, [*missing, alone, bench_line(record)])


def pair_differences(record: Record) -> Table:
    """What the larger of two trained pairs gives beyond the smaller."""
    rows = [
        row | {name: _gain(row, name) for name in ("tau", "speedup")}
        for row in sizes.by_group(record).to_dict("records")
        if "tau_gain" in row
    ]
    columns = (
        Column("group", "questions"),
        Column("questions", "", right=True),
        Column("tau", "in tau", right=True),
        Column("speedup", "in speedup", right=True),
    )
    notes = ["Brackets: 95% bootstrap over questions, paired."] if len(rows) else ["Only one pair was measured."]
    return table("The larger pair beyond the smaller", rows, columns, notes)


def timing(record: Record) -> Table:
    """What step and cycle of each timing-only pair cost."""
    record = sizes.as_timed(record)
    rows = [row | {"tree": tree_label(row)} for row in sizes.timing(record).to_dict("records")]
    ms: dict[str, Any] = {"form": fixed(1), "right": True}
    columns = (
        Column("shape", "shape"),
        Column("target_parameters", f"target, {MILLIONS}", _millions, right=True),
        Column("head_parameters", f"head, {MILLIONS}", _millions, right=True),
        Column("tree", "tree"),
        Column("plain_ms", "plain step", **ms),
        *(Column(f"{phase}_ms", phase, **ms) for phase in sizes.PHASES),
        Column("cycle_ms", "cycle", **ms),
        Column("steps", "pays from tau", fixed(2), right=True),
    )
    missing = [f"{row['pair']} was left out: {row['reason']}." for row in sizes.skipped(record).to_dict("records")]
    notes = [
        "Milliseconds, medians over repeats; the weights are random. tree: nodes, depth, top_k.",
        "draft, verify, rest: from cycles that wait after each phase; cycle: of cycles that do not.",
        "pays from: what a cycle costs in plain steps, so that a higher tau wins.",
        *missing,
        bench_line(record),
    ]
    return table("Timing-only pairs", rows, columns, notes)


def predicted(record: Record) -> Table:
    """The speedup that follows from the times at several tau."""
    record = sizes.as_timed(record)
    frame, rows = sizes.predicted(record), []
    for _, part in frame.groupby(["shape", *sizes.TREE], sort=False):
        first = part.iloc[0].to_dict()
        rows.append(first | {"tree": tree_label(first)} | dict(zip(part["assumption"], part["speedup"], strict=True)))
    columns = (
        Column("shape", "shape"),
        Column("tree", "tree"),
        *(Column(name, f"tau {tau:g}", times, right=True) for name, tau in sizes.ASSUMED.items()),
    )
    notes = [
        "Times are measured, tau is assumed: the article has 1.4 out of domain, 2.5 in the cycle that it takes apart,",
        "3.4 in domain, and 9% more on its 4B pair (3.7). A shallower tree has a lower tau: compare sizes, not trees.",
        bench_line(record),
    ]
    return table("Predicted speedup by target size", rows, columns, notes)


def greedy(record: Record) -> Table:
    """Greedy texts against plain decoding's, and replayed, by precision."""
    columns = (
        Column("dtype", "precision"),
        Column("questions", "texts", right=True),
        Column("identical", "same ids as plain", right=True),
        Column("tokens", "tokens", right=True),
        Column("mismatches", "mismatches", right=True),
        Column("per_thousand", "in 1000 tokens", fixed(2), right=True),
        Column("plain_per_thousand", "plain's own", fixed(2), right=True),
        Column("median_gap", "their gap, median", fixed(3), right=True),
        Column("worst_gap", "largest", fixed(3), right=True),
        Column("typical_gap", "typical gap", fixed(2), right=True),
        Column("verdict", "verdict"),
    )
    missing = [f"{row['dtype']} was left out: {row['reason']}." for row in exactness.skipped(record).to_dict("records")]
    notes = [
        "mismatch: a token that is not the stock model's best when the whole text is replayed in one pass.",
        "gap: how far below the best logit it lies. plain's own: the same of plain decoding's texts.",
        *missing,
        bench_line(record),
    ]
    return table("Greedy texts", exactness.greedy(record), columns, notes)


def first_tokens(record: Record) -> Table:
    """The probabilities of the first token by both loops."""
    rows = [
        row | {"same": f"{row['identical']} of {row['questions']}"}
        for row in exactness.first_tokens(record).to_dict("records")
    ]
    columns = (
        Column("dtype", "precision"),
        Column("entries", "probabilities", right=True),
        Column("same", "questions with every bit equal", right=True),
    )
    return table("What the first token is drawn from", rows, columns)


def permutations(record: Record) -> Table:
    """The permutation tests and whether each came out as it should."""
    columns = (
        Column("pair", "pair"),
        Column("name", "plain texts against"),
        Column("samples", "texts a side", fixed(0), right=True),
        Column("temperature", "temperature", fixed(1), right=True),
        Column("p", "p", lambda value: f"{value:.4f}", right=True),
        Column("splits_below_005", "controls below 0.05", share, right=True),
        Column("detectable_effect", "would see", share, right=True),
        Column("passed", "as it should be", yes_no),
    )
    rows = exactness.permutations(record).to_dict("records")
    low, high = exactness.CONTROL
    notes = [
        f"plain-plain: a hundred controls; {share(low)} to {share(high)} of them may fall below 0.05. p: their median.",
        f"broken: wrong on purpose, caught when p is below {exactness.CAUGHT}. eagle: the engine, with other seeds.",
        "would see: the smallest share of greedy texts among sampled ones that the test finds, at p below "
        f"{exactness.effect_level(record):g}, in four of five trials.",
        *_twins(rows),
    ]
    return table("Are sampled texts draws from one distribution?", rows, columns, notes)


def _twins(rows: list[dict[Any, Any]]) -> list[str]:
    return [
        f"{row['pair']}, the same seeds by both loops: {row['same_seed_equal']:.0f} of {row['same_seed_texts']:.0f} "
        "texts equal token by token."
        for row in rows
        if row["name"] == "eagle"
    ]


def _gain(row: Mapping[Any, Any], name: str) -> str:
    """A gain in percent with its interval."""
    low, high = (row[f"{name}_gain_{end}"] for end in ("low", "high"))
    span = interval(low and 100 * low, high and 100 * high, digits=0)
    return f"{100 * row[f'{name}_gain']:+.0f}% {span}"


def _millions(count: float) -> str:
    return f"{count / 1e6:,.1f}"
