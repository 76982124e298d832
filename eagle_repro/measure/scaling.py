"""What a record of 09_batch_context says: speculation along the number of texts side by side and the context's length.

The unit of work is a batch, which lasts until its last row has ended. Intervals resample batches (of one text along the
axis of contexts). Where the gain is gone: the point at which the speedup, interpolated along the logarithm of the axis,
first falls to 1; its interval comes from resampled batches too, and reaches beyond the last point where some of these
resamples never fall so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from eagle_repro.measure.branching import interval
from eagle_repro.measure.records import Record, RecordError
from eagle_repro.measure.stats import LEVEL, RESAMPLES

AXES = ("batch", "context")
TREE = ["nodes", "depth", "top_k"]


def points(record: Record) -> pd.DataFrame:
    """Every tree at every point of both axes.

    Columns: axis, value (texts side by side, or tokens of a prompt), nodes, depth, top_k, units (batches), texts; tau
    and speedup (against plain decoding of the same batches), each with _low and _high; tokens_per_s,
    plain_tokens_per_s; same (share of texts with the ids of plain decoding one by one; along contexts, of plain
    decoding); alone (of texts with the ids that this tree gives in the smallest batch, which is of one text; None along
    contexts).
    """
    return pd.DataFrame([_point(pair) for pair in _pairs_of(record)])


def gone(record: Record) -> pd.DataFrame:
    """Where the gain is gone, a row for each axis and tree.

    Columns: axis, nodes, depth, top_k, last (the farthest point), at, at_low, at_high; infinite where the speedup does
    not fall to 1 up to the last point, and the first point where it begins at 1 or below.
    """
    found: dict[tuple[Any, ...], list[tuple[int, np.ndarray]]] = {}
    for pair in _pairs_of(record):
        count = len(pair.plain)
        # Points with equally many batches hold the same questions, and are resampled alike.
        picks = np.random.default_rng(count).integers(0, count, size=(RESAMPLES, count))
        picks = np.vstack([np.arange(count), picks])
        gain = _speedup(pair.plain, pair.eagle)(picks)
        found.setdefault((pair.axis, *pair.tree), []).append((pair.value, gain))
    out = []
    for (axis, *sizes), each in found.items():
        values = [value for value, _ in each]
        at = crossing(values, np.stack([draws for _, draws in each], axis=-1))
        low, high = np.quantile(at[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")  # infinities stay
        row = {"axis": axis, **dict(zip(TREE, sizes, strict=True)), "last": values[-1]}
        out.append(row | {"at": float(at[0]), "at_low": float(low), "at_high": float(high)})
    return pd.DataFrame(out)


def crossing(values: list[int], speedups: np.ndarray) -> np.ndarray:
    """Where speedups (..., n) at rising values (n) first fall to 1, interpolated along log(value): (...,).

    Infinite where they stay above 1, the first value where they begin at 1 or below.
    """
    places, rows = np.log(values), np.atleast_2d(speedups)
    at = np.full(len(rows), np.inf)
    for row, speeds in enumerate(rows):
        below = np.flatnonzero(speeds <= 1)
        if below.size:
            right = int(below[0])
            left = max(0, right - 1)
            drop = speeds[left] - speeds[right]
            share = (speeds[left] - 1) / drop if right and drop > 0 else 0.0
            at[row] = math.exp(places[left] + share * (places[right] - places[left]))
    return at.reshape(np.shape(speedups)[:-1])


def timing(record: Record) -> pd.DataFrame:
    """What the timing-only pair costs along both axes: a row for each axis, value and tree.

    Columns: pair, axis, value, nodes, depth, top_k; milliseconds: plain_ms, cycle_ms, cycle_low, cycle_high; steps (a
    cycle in plain steps: the tau from which it pays), steps_low, steps_high.
    """
    rows = _of(record, "timing")
    out = []
    for (axis, value), part in rows.groupby(["axis", "value"], sort=False) if len(rows) else ():
        plain = part[part["nodes"] == 1]
        for row in part[part["nodes"] > 1].to_dict("records") if len(plain) else ():
            step = float(plain["cycle_s"].iloc[0])
            named = {"pair": row["pair"], "axis": axis, "value": int(value)} | {name: int(row[name]) for name in TREE}
            cycle = [row[field] for field in ("cycle_s", "cycle_low", "cycle_high")]
            ms = dict(zip(("cycle_ms", "cycle_low", "cycle_high"), (1e3 * each for each in cycle), strict=True))
            steps = dict(zip(("steps", "steps_low", "steps_high"), (each / step for each in cycle), strict=True))
            out.append(named | {"plain_ms": 1e3 * step} | ms | steps)
    return pd.DataFrame(out)


def as_timed(record: Record) -> Record:
    """The record with a bench that names the timing-only pair: for figures and tables of `timing`.

    Raises ValueError for a record that timed none.
    """
    rows = _of(record, "timing")
    if rows.empty:
        why = next((reason for _, reason in untimed(record)), "measure 09_batch_context to its end")
        raise ValueError(f"{record.path.name} timed no pair: {why}")
    changed = {"pair": {"name": rows["pair"].iloc[0]}, "dtype": rows["dtype"].iloc[0]}
    return replace(record, header=record.header | {"bench": record.header["bench"] | changed})


def untimed(record: Record) -> list[tuple[str, str]]:
    """The timing-only pairs that were left out, each with the reason."""
    return [(row["pair"], row["reason"]) for row in skipped(record).to_dict("records") if row["axis"] not in AXES]


def skipped(record: Record) -> pd.DataFrame:
    """What was left out and why: columns pair, axis, value, reason."""
    rows, columns = _of(record, "skipped"), ["pair", "axis", "value", "reason"]
    return rows[columns] if len(rows) else pd.DataFrame(columns=columns)


def _of(record: Record, what: str) -> pd.DataFrame:
    rows = record.frame("run")
    if "what" not in rows or not rows["what"].isin(AXES).any():
        raise ValueError(f"{record.path.name} wrote no batches: measure 09_batch_context to its end")
    return rows[rows["what"] == what].dropna(axis="columns", how="all")


@dataclass(frozen=True)
class _Pair:
    """A tree at a point: its plain and its speculative batches in one order; ids by question of plain decoding one by
    one, and of this tree."""

    axis: str
    value: int
    tree: tuple[int, ...]
    plain: pd.DataFrame
    eagle: pd.DataFrame
    target_alone: dict[str, str]
    tree_alone: dict[str, str]


def _pairs_of(record: Record) -> list[_Pair]:
    found, left = [], skipped(record)
    for axis in AXES:
        rows = _of(record, axis)
        plain = rows[rows["method"] == "plain"] if len(rows) else rows
        alone: dict[tuple[int, ...] | None, dict[str, str]] = {}  # None: plain decoding
        unfinished = set(left.loc[left["axis"] == axis, "value"])  # a point at which memory ran out is no point
        for value in rows["value"].unique() if len(rows) else ():
            if value in unfinished:
                continue
            before = plain[plain["value"] == value].sort_values("place")
            if axis == "context":
                alone.clear()
            alone.setdefault(None, _ids(before))
            after = rows[(rows["value"] == value) & (rows["method"] == "eagle")]
            for sizes, part in after.groupby(TREE, sort=False):
                tree = tuple(map(int, sizes))
                both = set(part["place"]) & set(before["place"])
                ours = part[part["place"].isin(both)].sort_values("place")
                if both:
                    theirs = before[before["place"].isin(both)]
                    if any(list(theirs[name]) != list(ours[name]) for name in ("questions", "tokens")):
                        raise RecordError(
                            f"{record.path.name}: at {axis} {value} plain decoding and the tree {tree} wrote other "
                            "questions or other numbers of tokens, from which no speedup follows: measure it again"
                        )
                    first = alone.setdefault(tree, _ids(ours))
                    found.append(_Pair(axis, int(value), tree, theirs, ours, alone[None], first))
    return found


def _ids(batches: pd.DataFrame) -> dict[str, str]:
    return dict(zip(batches["questions"].explode(), batches["ids_sha256"].explode(), strict=True))


def _point(pair: _Pair) -> dict[str, Any]:
    eagle, count = pair.eagle, len(pair.plain)
    emitted, cycles = (eagle[name].map(sum).to_numpy(dtype=float) for name in ("emitted", "cycles"))
    texts = list(zip(eagle["questions"].explode(), eagle["ids_sha256"].explode(), strict=True))
    row = {"axis": pair.axis, "value": pair.value, **dict(zip(TREE, pair.tree, strict=True))}
    row |= {"units": count, "texts": len(texts)}
    row |= interval("tau", lambda picks: emitted[picks].sum(axis=-1) / cycles[picks].sum(axis=-1), count)
    row |= interval("speedup", _speedup(pair.plain, eagle), count)
    decoded = sum(eagle["tokens"]) - len(texts)  # the first token of a text is the prefill's
    rates = {"tokens_per_s": eagle, "plain_tokens_per_s": pair.plain}
    row |= {name: float(decoded / each["decode_s"].sum()) for name, each in rates.items()}

    def equal(alone: dict[str, str]) -> float:
        return sum(alone.get(question) == ids for question, ids in texts) / len(texts)

    return row | {
        "same": equal(pair.target_alone),
        "alone": equal(pair.tree_alone) if pair.axis == "batch" else None,
    }


def _speedup(plain: pd.DataFrame, eagle: pd.DataFrame) -> Any:
    """The speedup of picked batches (..., count) -> (...,)."""
    before, after = (each["decode_s"].to_numpy(dtype=float) for each in (plain, eagle))
    return lambda picks: before[picks].sum(axis=-1) / after[picks].sum(axis=-1)
