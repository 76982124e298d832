"""What a record of 04_chain_vs_tree says: a chain and a tree of the same depth on the same questions.

Differences are paired question by question and their intervals resample questions, so that what makes a question easy
for both does not count. Questions come in groups: each set by itself, all in-domain sets together, everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from eagle_repro.measure.records import Record
from eagle_repro.measure.stats import chain_acceptance, columns, estimate
from eagle_repro.measure.totals import Statistic, Totals, aligned, headline, speedup

IN_DOMAIN, EVERYTHING = "in-domain", "all"
METHODS = ("chain", "eagle")
TREE = ("total_tokens", "depth", "top_k")


def gains(record: Record) -> pd.DataFrame:
    """What branching gives, a row for each group of questions.

    Columns: group, domain, questions; tau_chain, tau_eagle, speedup_chain, speedup_eagle (against plain), each with
    _low and _high; passes_chain, passes_eagle (target passes for 100 tokens); tau_gain, speedup_gain (eagle over chain,
    less 1), each with _low and _high.
    """
    return pd.DataFrame([_row(name, domain, ways) for name, domain, ways in groups(record)])


def groups(record: Record) -> Iterator[tuple[str, str | None, Mapping[str, Totals]]]:
    """Name, domain (None where mixed) and totals by method of each group that all three methods wrote."""
    for name, domain, part in parts(texts(record)):
        ways = aligned({method: part[part["method"] == method] for method in ("plain", *METHODS)}) if len(part) else {}
        if ways:
            yield name, domain, ways


def parts(rows: pd.DataFrame) -> Iterator[tuple[str, str | None, pd.DataFrame]]:
    """Name, domain (None where mixed) and rows of each group of questions: sets, the in-domain ones, everything."""
    groups = [(str(name), rows[rows["set"] == name]) for name in dict.fromkeys(rows["set"])]
    inside = rows[rows["domain"] == "in"]
    groups += [(IN_DOMAIN, inside)] if inside["set"].nunique() > 1 else []
    groups += [(EVERYTHING, rows)] if rows["domain"].nunique() > 1 else []
    for name, part in groups:
        domains = set(part["domain"])
        yield name, domains.pop() if len(domains) == 1 else None, part


def acceptance(record: Record) -> pd.DataFrame:
    """Acceptance by drafted position, a row for each domain, method and position.

    Columns: domain, method, position (1 is the first drafted token), reached (share of cycles that accept at least so
    many tokens: "per position"), conditional (the same among those that accepted every earlier one),
    accepted_per_drafted (of the whole, for the chain alone: a tree drafts alternatives), cycles.
    """
    rows, out = texts(record), []
    for (domain, method), part in rows[rows["method"].isin(METHODS)].groupby(["domain", "method"], sort=False):
        counts = [count for accepted in part["accepted"] for count in accepted]
        rates = chain_acceptance(counts, int(part["levels"].iloc[0]))
        for position, (reached, conditional) in enumerate(zip(rates.per_position, rates.conditional, strict=True), 1):
            row = {"domain": domain, "method": method, "position": position, "reached": reached}
            share = rates.accepted_per_drafted if method == "chain" else None
            out.append(row | {"conditional": conditional, "accepted_per_drafted": share, "cycles": len(counts)})
    return pd.DataFrame(out)


def texts(record: Record) -> pd.DataFrame:
    """The measured texts. Raises ValueError for a record that lacks a chain or a tree."""
    rows = record.frame("run")
    found = set(rows["method"]) if "method" in rows else set()
    if not {"plain", *METHODS} <= found:
        raise ValueError(f"{record.path.name} holds no texts by chain and tree: measure 04_chain_vs_tree to its end")
    return headline(rows)


def trees(record: Record) -> dict[str, dict[str, int]]:
    """total_tokens, depth and top_k by method."""
    rows = texts(record).drop_duplicates("method").set_index("method")
    return {method: {name: int(rows.loc[method, name]) for name in TREE} for method in METHODS}


def _row(name: str, domain: str | None, ways: Mapping[str, Totals]) -> dict[str, Any]:
    plain, chain, eagle = (ways[method] for method in ("plain", *METHODS))
    count = len(plain.tokens)
    row: dict[str, Any] = {"group": name, "domain": domain, "questions": count}
    for method in METHODS:
        totals = ways[method]
        row |= interval(f"tau_{method}", totals.tau, count)
        row |= interval(f"speedup_{method}", speedup(plain, totals), count)
        row[f"passes_{method}"] = 100 * float(totals.cycles.sum() / totals.tokens.sum())
    row |= interval("tau_gain", lambda picks: eagle.tau(picks) / chain.tau(picks) - 1, count)
    return row | interval("speedup_gain", lambda picks: speedup(chain, eagle)(picks) - 1, count)


def interval(name: str, statistic: Statistic, count: int) -> dict[str, float | None]:
    """A statistic of `count` questions with its bootstrap interval, as the columns name, name_low and name_high."""
    return columns(name, estimate(statistic, count))
