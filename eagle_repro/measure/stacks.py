"""What a record of 08_stack says: what steps and cycles cost on each stack, and what speculation gives there.

How much of a gain is amortised overhead: on the plainest stack a token costs P seconds plainly and E by speculation, on
the fastest one p and e. Of the P - E that speculation saves there, p - e is left on the fast stack; the rest was the
launching of operations, which a cycle pays once for several tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from eagle_repro.measure.branching import interval, parts
from eagle_repro.measure.records import Record
from eagle_repro.measure.totals import Totals, aligned, headline, speedup

PHASES = ("draft", "verify", "accept", "commit")
TREE = ["nodes", "depth", "top_k"]


def names(record: Record) -> list[str]:
    """The stacks that were measured, the plainest first. Raises ValueError for a record of something else."""
    return list(_of(record, "cost")["stack"].unique())


def costs(record: Record) -> pd.DataFrame:
    """What cycles cost, a row for each pair, stack and tree, in the record's order; none where no plain step was timed.

    Columns: pair, stack, dtype, nodes, depth, top_k; in milliseconds, medians over cycles and turns: plain_ms (a step
    on the same stack), draft_ms, verify_ms, accept_ms, commit_ms, cycle_ms, cycle_low, cycle_high (a tenth of cycles
    are faster, a tenth slower), host_ms (beyond its time on the device); steps (a cycle in plain steps: the tau
    from which it pays); floor_ms (reading the weights once at the bandwidth that the record measured), utilisation
    (floor / plain step); capture_s, buffer_mb, graph_mb (made ready beforehand, the most of all turns), compile_s (the
    part of capture_s in which work was run for the first time and compiled; None in records that do not have it).
    """
    return _table(_of(record, "cost"), (record.footer or {}).get("bandwidth_gb_s"))


def overhead_share(slow_plain: Any, slow_eagle: Any, fast_plain: Any, fast_eagle: Any) -> Any:
    """The share of what speculation saves on a slow stack that a fast one does not leave: 1 - (p - e) / (P - E).

    Times of a token, numbers or arrays of one shape.
    """
    return 1 - (fast_plain - fast_eagle) / (slow_plain - slow_eagle)


def costs_of(rows: Sequence[Mapping[str, Any]], bandwidth_gb_s: float | None) -> pd.DataFrame:
    """The same table from rows that no record holds."""
    return _table(pd.DataFrame(rows), bandwidth_gb_s)


def gains(record: Record) -> pd.DataFrame:
    """tau and speedup by stack, tree and group of questions.

    Columns: stack, tree (its name), nodes, depth, top_k, group, domain, questions; tau, speedup (against plain decoding
    on the same stack) each with _low and _high; tokens_per_s, plain_tokens_per_s.
    """
    rows, out = _texts(record), []
    for stack in rows["stack"].unique():
        own = rows[rows["stack"] == stack]
        for tree in own["tree"].dropna().unique():
            for group, domain, part in parts(own):
                ways = _ways({"plain": (part, None), "eagle": (part, tree)})
                if ways:
                    out.append({"stack": stack, **_tree(own, tree), "group": group, "domain": domain} | _gain(ways))
    return pd.DataFrame(out)


def overhead(record: Record) -> pd.DataFrame:
    """How much of the plainest stack's gain is amortised overhead; empty where one stack alone was measured.

    Columns: stack (a faster one), tree, nodes, depth, top_k, group, domain, questions; milliseconds a token that
    speculation saves on the plainest stack (saved_ms) and on this one (left_ms); overhead (1 - left / saved, None where
    nothing is saved), speedup_slow, speedup_fast, faster (eagle on this stack against plain decoding on the plainest),
    each of these four with _low and _high.
    """
    rows, out = _texts(record), []
    slowest, *others = list(rows["stack"].unique())
    slow = rows[rows["stack"] == slowest]
    for stack in others:
        fast = rows[rows["stack"] == stack]
        for tree in [name for name in slow["tree"].dropna().unique() if name in set(fast["tree"])]:
            for group, domain, part in parts(slow):
                beside = fast[fast["set"].isin(part["set"])]
                ways = _ways({"P": (part, None), "E": (part, tree), "p": (beside, None), "e": (beside, tree)})
                if ways:
                    named = {"stack": stack, **_tree(fast, tree), "group": group, "domain": domain}
                    out.append(named | _split(ways))
    return pd.DataFrame(out)


def skipped(record: Record) -> pd.DataFrame:
    """What was left out and why: columns pair, stack, reason."""
    rows = _of(record, "skipped")
    columns = ["pair", "stack", "reason"]
    return rows[columns] if len(rows) else pd.DataFrame(columns=columns)


def as_compared(record: Record) -> Record:
    """The record with a bench that names all stacks: for figures and tables that compare them."""
    changed = record.header["bench"] | {"stack": ", ".join(names(record))}
    return replace(record, header=record.header | {"bench": changed})


def _table(rows: pd.DataFrame, bandwidth: float | None) -> pd.DataFrame:
    out = []
    for (pair, stack), part in rows.groupby(["pair", "stack"], sort=False):
        plain = part[part["nodes"] == 1]
        if plain.empty:  # the memory was too small for what came before it
            continue
        step = float(plain["cycle_s"].median())
        floor = plain["weight_bytes"].iloc[0] / (bandwidth * 1e9) if bandwidth else float("nan")
        for (nodes, depth, top_k), turns in part[part["nodes"] > 1].groupby(TREE, sort=False):
            middle = {name: 1e3 * float(turns[f"{name}_s"].median()) for name in (*PHASES, "cycle", "host")}
            out.append(
                {"pair": pair, "stack": stack, "dtype": turns["dtype"].iloc[0]}
                | {"nodes": int(nodes), "depth": int(depth), "top_k": int(top_k), "plain_ms": 1e3 * step}
                | {f"{name}_ms": value for name, value in middle.items()}
                | {name: 1e3 * float(turns[name].median()) for name in ("cycle_low", "cycle_high")}
                | {"steps": middle["cycle"] / (1e3 * step), "floor_ms": 1e3 * floor, "utilisation": floor / step}
                | {"capture_s": float(turns["capture_s"].max())}
                | {"compile_s": float(turns["compile_s"].max()) if "compile_s" in turns else None}
                | {f"{name}_mb": float(turns[f"{name}_bytes"].max()) / 1e6 for name in ("buffer", "graph")}
            )
    return pd.DataFrame(out)


def _of(record: Record, what: str) -> pd.DataFrame:
    rows = record.frame("run")
    if "what" not in rows or not (rows["what"] == "cost").any():
        raise ValueError(f"{record.path.name} timed no stack: measure 08_stack to its end")
    return rows[rows["what"] == what]


def _texts(record: Record) -> pd.DataFrame:
    return headline(_of(record, "text"))


def _ways(chosen: Mapping[str, tuple[pd.DataFrame, str | None]]) -> Mapping[str, Totals]:
    """Totals of each way over the questions that all answered: plain texts (None) or those of a tree, by its name."""
    return aligned(
        {
            name: rows[rows["method"] == "plain"] if tree is None else rows[rows["tree"] == tree]
            for name, (rows, tree) in chosen.items()
        }
    )


def _tree(rows: pd.DataFrame, tree: str) -> dict[str, Any]:
    first = rows[rows["tree"] == tree].iloc[0]
    sizes = zip(TREE, ("total_tokens", "depth", "top_k"), strict=True)
    return {"tree": tree} | {name: int(first[field]) for name, field in sizes}


def _gain(ways: Mapping[str, Totals]) -> dict[str, Any]:
    plain, eagle = ways["plain"], ways["eagle"]
    count = len(plain.tokens)
    row = {"questions": count, **interval("tau", eagle.tau, count)}
    row |= interval("speedup", speedup(plain, eagle), count)
    everything = np.arange(count)
    rates = {"tokens_per_s": eagle, "plain_tokens_per_s": plain}
    return row | {name: 1 / float(each.seconds_per_token(everything)) for name, each in rates.items()}


def _split(ways: Mapping[str, Totals]) -> dict[str, Any]:
    count = len(ways["P"].tokens)

    def share(picks: np.ndarray) -> np.ndarray:
        return np.asarray(overhead_share(*(ways[name].seconds_per_token(picks) for name in "PEpe")))

    slow, faster, fast, fastest = (float(ways[name].seconds_per_token(np.arange(count))) for name in "PEpe")
    row: dict[str, Any] = {"questions": count, "saved_ms": 1e3 * (slow - faster), "left_ms": 1e3 * (fast - fastest)}
    found = interval("overhead", share, count)
    row |= found if row["saved_ms"] > 0 else dict.fromkeys(found)  # of nothing there is no share
    row |= interval("speedup_slow", speedup(ways["P"], ways["E"]), count)
    row |= interval("speedup_fast", speedup(ways["p"], ways["e"]), count)
    return row | interval("faster", speedup(ways["P"], ways["e"]), count)
