"""What a record of 07_domain says: heads trained on different texts for one target, on the same questions.

Differences between heads are paired question by question, and their intervals resample questions. Every question counts
once, whether it was timed or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from eagle_repro.measure.branching import EVERYTHING, IN_DOMAIN, interval
from eagle_repro.measure.claims.effects import Effect, difference
from eagle_repro.measure.records import Record
from eagle_repro.measure.totals import Totals, aligned, headline, speedup, whole

#: The heads by their recipes, in the order of tables: the article's question is what changes from one to the next.
HEADS = ("general", "code", "no-code", "russian-mix")
CODE, CHAT, MATH = ("code", "humaneval"), ("chat", "mt_bench"), ("math", "gsm8k")
ENGLISH = (*CODE, *CHAT, *MATH, "instruct", "alpaca")
RUSSIAN = ("russian",)
ORDER = (*ENGLISH, "outside", *RUSSIAN)


@dataclass(frozen=True)
class Statement:
    """left gives more tokens a cycle than right on these sets; less, where not `above`."""

    name: str
    left: str
    right: str
    sets: tuple[str, ...]
    above: bool = True


STATEMENTS = (
    Statement("code_helps", "code", "no-code", CODE),
    Statement("code_costs", "code", "no-code", CHAT, above=False),
    Statement("russian_helps", "russian-mix", "general", RUSSIAN),
    Statement("russian_costs", "russian-mix", "general", ENGLISH, above=False),
)
#: The pairs of heads that are compared set by set.
COMPARED = tuple(dict.fromkeys((each.left, each.right) for each in STATEMENTS))


@dataclass(frozen=True)
class Answer:
    """What a record says of a statement. tau, speedup: None where a head or a set is not in it; lacks: which."""

    statement: Statement
    tau: Effect | None = None
    speedup: Effect | None = None
    lacks: tuple[str, ...] = ()


def heads(record: Record) -> pd.DataFrame:
    """The HEADS: columns head, here, reason, recipe, answer_tokens, steps, minutes, draft_vocabulary, sha256."""
    rows = _of(record, "head")
    rows = rows[rows["head"].isin(HEADS)]
    columns = ["head", "here", "reason", "recipe", "answer_tokens", "steps", "minutes", "draft_vocabulary", "sha256"]
    order = rows["head"].map(HEADS.index).sort_values(kind="stable").index
    return rows.reindex(columns=columns).loc[order].reset_index(drop=True)


def present(record: Record) -> list[str]:
    """The heads that were measured, in their order. Raises ValueError for another experiment's record."""
    rows = heads(record)
    return list(rows.loc[rows["here"].astype(bool), "head"])


def counts(record: Record) -> pd.DataFrame:
    """Tokens and cycles of every question with every head: columns head, set, domain, question, emitted, cycles."""
    rows = record.frame("run")
    parts = [rows[rows["what"] == "tau"].explode(["question", "emitted", "cycles"])] if "emitted" in rows else []
    timed = headline(rows[(rows["what"] == "text") & (rows.get("method") == "eagle")])
    accepted = list(timed["accepted"])
    emitted = [sum(each) + len(each) for each in accepted]
    parts.append(timed.assign(emitted=emitted, cycles=[len(each) for each in accepted]))
    kept = ["head", "set", "domain", "question", "emitted", "cycles"]
    return pd.concat([part[kept] for part in parts], ignore_index=True).astype({"emitted": float, "cycles": float})


def by_group(record: Record) -> pd.DataFrame:
    """tau and speedup by head and group of questions (each set, all in-domain ones, everything).

    Columns: head, group, domain, questions, tau, tau_low, tau_high, timed (questions behind the speedup), speedup,
    speedup_low, speedup_high.
    """
    out: list[dict[str, Any]] = []
    counted, timed = counts(record), _timed(record)
    for head in present(record):
        for group, domain, sets in groups(record):
            totals = _totals(counted, [head], sets)
            if head not in totals:
                continue
            count = len(totals[head].cycles)
            row: dict[str, Any] = {"head": head, "group": group, "domain": domain, "questions": count}
            row |= interval("tau", totals[head].tau, count)
            ways = _ways(timed, [head], sets)
            row["timed"] = len(ways["plain"].tokens) if ways else 0
            found = interval("speedup", speedup(ways["plain"], ways[head]), row["timed"]) if ways else {}
            out.append(row | (found or dict.fromkeys(("speedup", "speedup_low", "speedup_high"))))
    return pd.DataFrame(out)


def differences(record: Record) -> pd.DataFrame:
    """What one head gives beyond another, by set: a row for each pair of heads in COMPARED that are here, and group.

    Columns: left, right, group, domain, questions; tau_left, tau_right, tau_gain with _low and _high; the same of
    speedup, over the timed questions.
    """
    here, counted, timed = present(record), counts(record), _timed(record)
    out: list[dict[str, Any]] = []
    for left, right in COMPARED:
        for group, domain, sets in groups(record) if {left, right} <= set(here) else ():
            effect = _tau_effect(counted, Statement("", left, right, tuple(sets)), record.path.stem)
            if effect is None:
                continue
            row = {"left": left, "right": right, "group": group, "domain": domain}
            row |= {"questions": len(_totals(counted, [left, right], sets)[left].cycles)} | _columns("tau", effect)
            faster = _speed_effect(timed, Statement("", left, right, tuple(sets)), record.path.stem)
            out.append(row | (_columns("speedup", faster) if faster else {}))
    return pd.DataFrame(out)


def answers(record: Record) -> list[Answer]:
    """Every statement beside the record."""
    here, counted, timed = present(record), counts(record), _timed(record)
    found = []
    for each in STATEMENTS:
        lacks = tuple(head for head in (each.left, each.right) if head not in here)
        effect = None if lacks else _tau_effect(counted, each, record.path.stem)
        found.append(Answer(each, effect, effect and _speed_effect(timed, each, record.path.stem), lacks))
    return found


def gap_closed(record: Record) -> float | None:
    """The share of `general`'s gap between in-domain English and Russian that `russian-mix` closes on Russian."""
    counted = counts(record)
    english, russian = (_totals(counted, ["general", "russian-mix"], sets) for sets in (ENGLISH, RUSSIAN))
    if not english or not russian:
        return None
    inside, before, after = (
        whole(totals.tau, totals) for totals in (english["general"], russian["general"], russian["russian-mix"])
    )
    return (after - before) / (inside - before) if inside > before else None


def repeated(record: Record, sets: Sequence[str]) -> float | None:
    """How much of the target's own text on these sets repeats itself (stats.loop_share), as a mean over questions."""
    rows = _of(record, "text")
    found = rows[(rows["method"] == "plain") & rows["set"].isin(sets)]["loop_share"].dropna()
    return float(found.mean()) if len(found) else None


def mean_of_sets(record: Record) -> dict[str, float]:
    """tau by head as the mean over in-domain sets, each counting the same: what other tables print."""
    frame = by_group(record)
    frame = frame[frame["group"].isin(ENGLISH)]
    return {str(head): float(part["tau"].mean()) for head, part in frame.groupby("head", sort=False)}


def groups(record: Record) -> list[tuple[str, str | None, list[str]]]:
    """Name, domain (None where mixed) and sets of each group of questions."""
    found = counts(record).drop_duplicates("set").set_index("set")["domain"]
    known = sorted(found.index, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    parts: list[tuple[str, str | None, list[str]]] = [(name, found[name], [name]) for name in known]
    inside = [name for name in known if found[name] == "in"]
    parts += [(IN_DOMAIN, "in", inside)] if len(inside) > 1 else []
    return parts + ([(EVERYTHING, None, known)] if len(set(found)) > 1 else [])


def _tau_effect(counted: pd.DataFrame, said: Statement, record: str) -> Effect | None:
    totals = _totals(counted, [said.left, said.right], said.sets)
    if not totals:
        return None
    sides = totals[said.left], totals[said.right]
    names = (said.left, said.right)
    return difference(sides[0].tau, sides[1].tau, sides[0], record, names, above=said.above)


def _speed_effect(timed: pd.DataFrame, said: Statement, record: str) -> Effect | None:
    ways = _ways(timed, [said.left, said.right], said.sets)
    if not ways:
        return None
    left, right = (speedup(ways["plain"], ways[head]) for head in (said.left, said.right))
    return difference(left, right, ways["plain"], record, (said.left, said.right), above=said.above)


def _columns(name: str, effect: Effect) -> dict[str, Any]:
    found = effect.estimate
    row = {f"{name}_left": effect.left[1], f"{name}_right": effect.right[1], f"{name}_gain": found.value}
    return row | {f"{name}_gain_low": found.low, f"{name}_gain_high": found.high}


def _totals(counted: pd.DataFrame, names: Sequence[str], sets: Sequence[str]) -> dict[str, Totals]:
    """Counts by head over the questions of these sets that all of them wrote; {} if there are none."""
    chosen = counted[counted["set"].isin(sets)]
    wide = {name: chosen[chosen["head"] == name].set_index(["set", "question"]) for name in names}
    shared = [key for key in wide[names[0]].index if all(key in each.index for each in wide.values())]
    if not shared:
        return {}
    nothing = np.zeros(len(shared))
    frames: Mapping[str, pd.DataFrame] = {name: each.loc[shared] for name, each in wide.items()}
    return {
        name: Totals(each["emitted"].to_numpy(), each["cycles"].to_numpy(), nothing, nothing)
        for name, each in frames.items()
    }


def _ways(timed: pd.DataFrame, names: Sequence[str], sets: Sequence[str]) -> dict[str, Totals]:
    """Totals of plain decoding and of heads over the timed questions of these sets; {} if there are none."""
    rows = timed[timed["set"].isin(sets)]
    parts = {"plain": rows[rows["method"] == "plain"]} | {name: rows[rows["head"] == name] for name in names}
    return aligned(parts) if all(len(part) for part in parts.values()) else {}


def _timed(record: Record) -> pd.DataFrame:
    return headline(_of(record, "text"))


def _of(record: Record, what: str) -> pd.DataFrame:
    rows = record.frame("run")
    if "what" not in rows or "head" not in rows:
        raise ValueError(f"{record.path.name} is no record of 07_domain: measure it, or name another record")
    return rows[rows["what"] == what].dropna(axis="columns", how="all")
