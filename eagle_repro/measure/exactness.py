"""What a record of 06_lossless says: greedy texts by precision, first tokens, and the permutation tests."""

from __future__ import annotations

from typing import Any

import pandas as pd

from eagle_repro.measure.permutation import ALPHA, CAUGHT
from eagle_repro.measure.records import Record

#: The order of precisions in tables.
DTYPES = ("float32", "float16", "bfloat16")
CONTROL = (0.01, 0.11)  # where the share of p < 0.05 of the control must lie: 5% of a hundred, give or take chance


def greedy(record: Record) -> pd.DataFrame:
    """Greedy texts against plain decoding and against a replay through the stock model, a row for each precision.

    Columns: dtype, questions, tokens, identical (texts equal to plain decoding's), verdict (of the replay, the worst
    one), mismatches, per_thousand (mismatches in 1,000 tokens), plain_per_thousand (the same of plain decoding's own
    texts), unexcused, worst_gap, median_gap (of the mismatches), typical_gap (median over texts), max_gap (allowed).
    """
    rows = _of(record, "greedy")
    out = []
    for dtype, part in rows.groupby("dtype", sort=False):
        listed = [mismatch for mismatches in part["mismatches"] for mismatch in mismatches]
        gaps = pd.Series([mismatch["gap"] for mismatch in listed], dtype=float)
        tokens = int(part["tokens"].sum())
        out.append(
            {
                "dtype": dtype,
                "questions": len(part),
                "tokens": tokens,
                "identical": int(part["same_as_plain"].sum()),
                "verdict": max(part["verdict"], key=("identical", "near-ties", "different").index),
                "mismatches": len(listed),
                "per_thousand": 1e3 * len(listed) / tokens,
                "plain_per_thousand": 1e3 * float(part["plain_mismatches"].sum()) / tokens,
                "unexcused": sum(not mismatch["excused"] for mismatch in listed),
                "worst_gap": float(gaps.max()),
                "median_gap": float(gaps.median()),
                "typical_gap": float(part["typical_gap"].median()),
                "max_gap": float(part["max_gap"].max()),
            }
        )
    order = {name: place for place, name in enumerate(DTYPES)}
    return pd.DataFrame(out).sort_values("dtype", key=lambda names: names.map(order), ignore_index=True)


def gaps(record: Record) -> pd.DataFrame:
    """Every mismatch: columns dtype, set, question, index, gap, excused."""
    rows = [
        {"dtype": row["dtype"], "set": row["set"], "question": row["question"]}
        | {name: mismatch[name] for name in ("index", "gap", "excused")}
        for row in _of(record, "greedy").to_dict("records")
        for mismatch in row["mismatches"]
    ]
    return pd.DataFrame(rows, columns=["dtype", "set", "question", "index", "gap", "excused"])


def first_tokens(record: Record) -> pd.DataFrame:
    """The first token's probabilities by both loops: columns dtype, questions, identical (bit for bit), entries."""
    rows = _of(record, "first_token")
    frame = rows.groupby("dtype", sort=False).agg(
        questions=("identical", "size"), identical=("identical", "sum"), entries=("entries", "first")
    )
    order = {name: place for place, name in enumerate(DTYPES)}
    return frame.astype(int).reset_index().sort_values("dtype", key=lambda n: n.map(order), ignore_index=True)


def permutations(record: Record) -> pd.DataFrame:
    """The permutation tests, a row for each pair and comparison.

    Columns: pair, name ("plain-plain", "eagle", "broken-RULE"), samples, tokens, temperature, p, splits (p of each
    control), splits_below_005, detectable_effect (at `effect_level`), same_seed_texts, same_seed_equal, passed (as it
    should be, see `judge`).
    """
    rows = _of(record, "permutation")
    wanted = ["splits", "splits_below_005", "detectable_effect", "same_seed_texts", "same_seed_equal"]
    frame = rows.reindex(columns=["pair", "name", "samples", "tokens", "temperature", "p", *wanted])
    return frame.assign(passed=[judge(row) for row in frame.to_dict("records")]).reset_index(drop=True)


def effect_level(record: Record) -> float:
    """The p below which a detectable effect counted as found.

    A record that does not name it is older than the rule that the engine and the effect are judged at one level.
    """
    rows = _of(record, "permutation")
    named = rows["detectable_level"].dropna() if "detectable_level" in rows else ()
    return float(next(iter(named), ALPHA))


def judge(row: dict[Any, Any]) -> bool:
    """Whether a test came out as it should: the control by its share, the engine unsuspicious, a wrong rule caught."""
    if row["name"] == "plain-plain":
        return CONTROL[0] <= row["splits_below_005"] <= CONTROL[1]
    return row["p"] < CAUGHT if row["name"].startswith("broken-") else row["p"] >= CAUGHT


def skipped(record: Record) -> pd.DataFrame:
    """Precisions that were left out and why: columns dtype, reason."""
    rows = record.frame("run")
    rows = rows[rows["what"] == "skipped"]
    return rows[["dtype", "reason"]] if len(rows) else pd.DataFrame(columns=["dtype", "reason"])


def _of(record: Record, what: str) -> pd.DataFrame:
    rows = record.frame("run")
    found = rows[rows["what"] == what] if "what" in rows else rows.iloc[:0]
    if found.empty:
        raise ValueError(f"{record.path.name} holds no rows of {what}: measure 06_lossless to its end")
    return found.dropna(axis="columns", how="all")
