"""What a record of 05_target_size says: pairs of two sizes compared, and published shapes timed.

A timing-only pair has no tau of its own, so its speedup is predicted: tau * plain step / cycle, with the measured times
and with tau as an assumption from the article (ASSUMED). The tau from which a cycle pays is no assumption: it is what a
cycle costs in plain steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from eagle_repro.measure.branching import EVERYTHING, IN_DOMAIN, interval
from eagle_repro.measure.records import Record
from eagle_repro.measure.totals import aligned, headline, speedup

#: tau by where it is from, the lowest first. The article measured on Qwen3-1.7B: 1.4 out of domain, 2.5 in the cycle
#: that it takes apart, 3.4 in domain, and 9% more on Qwen3-4B (3.7).
ASSUMED = {"article_out": 1.4, "article_cycle": 2.5, "article_in": 3.4, "article_in_4b": 3.7}
PHASES = ("draft", "verify", "rest")
TREE = ["nodes", "depth", "top_k"]
SAME = 0.03  # speedups that differ by less than this share count as one


def pairs(record: Record) -> pd.DataFrame:
    """The trained pairs, the smaller target first.

    Columns: pair, target_parameters, head_parameters, head_share; of all their questions together: questions, tau and
    speedup, each with _low and _high.
    """
    rows = _of(record, "pair").sort_values("target_parameters", kind="stable")
    out = []
    for row in rows.to_dict("records"):
        texts = _texts(record)
        ways = _ways(texts[texts["pair"] == row["pair"]]) if len(texts) else {}
        numbers: dict[str, Any] = {"questions": 0}
        if ways:
            count = len(ways["plain"].tokens)
            numbers = {"questions": count, **interval("tau", ways["eagle"].tau, count)}
            numbers |= interval("speedup", speedup(ways["plain"], ways["eagle"]), count)
        out.append({name: row[name] for name in row if name not in ("key", "what")} | numbers)
    return pd.DataFrame(out).dropna(axis="columns", how="all")


def by_group(record: Record) -> pd.DataFrame:
    """tau and speedup of the trained pairs by group of questions, and what the larger gives beyond the smaller.

    Columns: group, domain, questions; tau_small, speedup_small, each with _low and _high. Of two pairs also tau_large,
    speedup_large, and tau_gain, speedup_gain (larger over smaller, less 1), all with _low and _high.
    """
    names, rows = list(pairs(record)["pair"]), _texts(record)
    parts = [(str(name), rows[rows["set"] == name]) for name in dict.fromkeys(rows["set"])]
    parts += [(IN_DOMAIN, rows[rows["domain"] == "in"]), (EVERYTHING, rows)]
    chosen = {"small": names[0]} | ({"large": names[-1]} if len(names) > 1 else {})
    out = []
    for group, part in parts:
        runs = {
            f"{size} {method}": part[(part["pair"] == name) & (part["method"] == method)]
            for size, name in chosen.items()
            for method in ("plain", "eagle")
        }
        if len(part) and (totals := aligned(runs)):
            out.append({"group": group, "domain": _domain(part)} | _compared(totals, list(chosen)))
    return pd.DataFrame(out)


def timing(record: Record) -> pd.DataFrame:
    """What the timing-only pairs cost, a row for each shape and tree, the smallest target first.

    Columns: shape, target_parameters, head_parameters, weight_bytes, dtype, nodes, depth, top_k; medians over the
    repeats: plain_ms (a step), draft_ms, verify_ms, rest_ms (phases, from cycles that wait after each), cycle_ms (of
    cycles that do not), cycle_low, cycle_high; steps (a cycle in plain steps: the tau from which it pays), and
    steps_low, steps_high from the fastest and slowest repeat.
    """
    rows = _of(record, "timing")
    if rows.empty:
        return pd.DataFrame()
    out = []
    sizes = ["shape", "target_parameters", "head_parameters", "weight_bytes", "dtype"]
    plain = rows["phase"] == "plain"  # a plain step has one node and belongs to the trees that it was timed beside
    for (shape, nodes, depth, top_k), part in rows[~plain].groupby(["shape", *TREE], sort=False):
        seconds = {phase: each["seconds"] for phase, each in part.groupby("phase")}
        beside = plain & (rows["shape"] == shape) & (rows["depth"] == depth) & (rows["top_k"] == top_k)
        seconds["plain"] = rows.loc[beside, "seconds"]
        ms = {f"{phase}_ms": 1e3 * float(seconds[phase].median()) for phase in ("plain", *PHASES, "cycle")}
        low, high = 1e3 * seconds["cycle"].min(), 1e3 * seconds["cycle"].max()
        row = part[sizes].iloc[0].to_dict() | {"nodes": int(nodes), "depth": int(depth)}
        row |= {"top_k": int(top_k), **ms, "cycle_low": low, "cycle_high": high}
        steps = {"steps": ms["cycle_ms"], "steps_low": low, "steps_high": high}
        out.append(row | {name: value / ms["plain_ms"] for name, value in steps.items()})
    frame = pd.DataFrame(out)
    return frame.sort_values(["target_parameters", *TREE], ascending=[True, False, False, False], ignore_index=True)


def predicted(record: Record, taus: dict[str, float] | None = None) -> pd.DataFrame:
    """The predicted speedup of every shape and tree at every assumed tau.

    Columns: those of `timing`, assumption (a name in ASSUMED), tau, speedup, speedup_low, speedup_high (slowest and
    fastest repeat of the cycle).
    """
    rows = [
        row
        | {"assumption": name, "tau": tau, "speedup": tau / row["steps"]}
        | {"speedup_low": tau / row["steps_high"], "speedup_high": tau / row["steps_low"]}
        for row in timing(record).to_dict("records")
        for name, tau in (taus or ASSUMED).items()
    ]
    return pd.DataFrame(rows)


def growth(small: float, large: float) -> str:
    """What becomes of a speedup from a small target to a large one: "same" (within SAME), "grows" or "shrinks"."""
    ratio = large / small
    return "same" if abs(ratio - 1) < SAME else "grows" if ratio > 1 else "shrinks"


def timed_shapes(record: Record) -> set[str]:
    """Names of the shapes that a record timed."""
    rows = _of(record, "timing")
    return set(rows["shape"]) if len(rows) else set()


def as_timed(record: Record) -> Record:
    """The record with a bench that names what was timed, not the trained pair: for figures and tables of `timing`.

    Raises ValueError for a record that timed no shape.
    """
    rows = _of(record, "timing")
    if rows.empty:
        raise ValueError(f"{record.path.name} timed no shape: measure 05_target_size to its end")
    changed = {"pair": {"name": "random weights"}, "dtype": rows["dtype"].iloc[0]}
    return replace(record, header=record.header | {"bench": record.header["bench"] | changed})


def skipped(record: Record) -> pd.DataFrame:
    """What was left out and why: columns pair, reason."""
    rows = _of(record, "skipped")
    return rows[["pair", "reason"]] if len(rows) else pd.DataFrame(columns=["pair", "reason"])


def _of(record: Record, what: str) -> pd.DataFrame:
    rows = record.frame("run")
    if "what" not in rows:
        raise ValueError(f"{record.path.name} is no record of 05_target_size: measure it, or name another record")
    return rows[rows["what"] == what].dropna(axis="columns", how="all")


def _texts(record: Record) -> pd.DataFrame:
    rows = _of(record, "text")
    return headline(rows) if len(rows) else rows


def _ways(rows: pd.DataFrame) -> dict[str, Any]:
    return aligned({method: rows[rows["method"] == method] for method in ("plain", "eagle")}) if len(rows) else {}


def _domain(part: pd.DataFrame) -> str | None:
    domains = set(part["domain"])
    return domains.pop() if len(domains) == 1 else None


def _compared(totals: dict[str, Any], names: list[str]) -> dict[str, Any]:
    count = len(totals["small plain"].tokens)
    speedups = {name: speedup(totals[f"{name} plain"], totals[f"{name} eagle"]) for name in names}
    row: dict[str, Any] = {"questions": count}
    for name in names:
        row |= interval(f"tau_{name}", totals[f"{name} eagle"].tau, count)
        row |= interval(f"speedup_{name}", speedups[name], count)
    if len(names) == 1:
        return row
    small, large = totals["small eagle"], totals["large eagle"]
    row |= interval("tau_gain", lambda picks: large.tau(picks) / small.tau(picks) - 1, count)
    return row | interval("speedup_gain", lambda picks: speedups["large"](picks) / speedups["small"](picks) - 1, count)
