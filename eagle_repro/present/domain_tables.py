"""The tables of 07_domain, each from a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eagle_repro.measure import domain
from eagle_repro.measure.records import Record
from eagle_repro.present.layout import UNKNOWN, Column, Table, fixed, interval, table, times, yes_no
from eagle_repro.present.words import bench_line
from eagle_repro.present.words_domain import STATEMENTS

__all__ = ["answers", "differences", "heads", "speedups", "taus"]


def heads(record: Record) -> Table:
    """The heads that are compared, what each was trained on, and why one is not here."""
    rows = [row | {"sha": (row["sha256"] or "")[:12] or None if row["here"] else None} for row in _heads(record)]
    columns = (
        Column("head", "head"),
        Column("here", "here", yes_no),
        Column("recipe", "trained on"),
        Column("answer_tokens", "answer tokens (M)", lambda count: f"{count / 1e6:.1f}", right=True),
        Column("steps", "steps", fixed(0), right=True),
        Column("minutes", "minutes", fixed(1), right=True),
        Column("draft_vocabulary", "draft vocabulary", fixed(0), right=True),
        Column("sha", "sha256"),
    )
    missing = [f"{row['head']} is not here: {row['reason']}." for row in rows if not row["here"]]
    return table("Heads for one target", rows, columns, [*missing, bench_line(record)])


def taus(record: Record) -> Table:
    """tau by question set and head."""
    means = ", ".join(f"{head} {mean:.2f}" for head, mean in domain.mean_of_sets(record).items())
    notes = [
        "tau: tokens a cycle, bonus token included, over all cycles. Brackets: 95% bootstrap over questions.",
        f"Mean over the in-domain English sets, each counting the same: {means}." if means else "",
    ]
    return _by_head(record, "tau", fixed(2), "Tokens a cycle by head", notes)


def speedups(record: Record) -> Table:
    """Speedup by question set and head, over the timed questions."""
    notes = ["Against plain decoding in turns, equal tokens, prefill apart, over the questions that were timed."]
    return _by_head(record, "speedup", times, "Times as fast as plain decoding, by head", notes)


def differences(record: Record) -> Table:
    """What one head gives beyond another, by question set, paired."""
    rows = [
        row | {"pair": f"{row['left']} - {row['right']}", "tau": _gain(row, "tau"), "speedup": _gain(row, "speedup")}
        for row in domain.differences(record).to_dict("records")
    ]
    columns = (
        Column("pair", "heads"),
        Column("group", "questions"),
        Column("questions", "", right=True),
        Column("tau_left", "tau, first", fixed(2), right=True),
        Column("tau_right", "second", fixed(2), right=True),
        Column("tau", "difference in tau", right=True),
        Column("speedup", "in speedup", right=True),
    )
    notes = ["Paired by question. Brackets: 95% bootstrap; one that includes 0 establishes nothing."]
    notes += [] if rows else ["No two heads that are compared are here."]
    return table("One head beyond another", rows, columns, [*notes, bench_line(record)])


def answers(record: Record) -> Table:
    """The statements with their verdicts, in tau and in speedup."""
    rows = []
    for each in domain.answers(record):
        row: dict[str, Any] = {"statement": STATEMENTS["en"][each.statement.name]}
        for name, effect in (("tau", each.tau), ("speedup", each.speedup)):
            if effect:
                found = effect.estimate
                row[name] = f"{found.value:+.2f} {interval(found.low, found.high)}"
                row[f"{name}_verdict"] = effect.verdict
        lacks = f"not here ({', '.join(each.lacks)})" if each.lacks else "not measured"
        rows.append(row if each.tau else row | {"tau_verdict": lacks})
    columns = (
        Column("statement", "statement"),
        Column("tau", "difference in tau", right=True),
        Column("tau_verdict", "verdict"),
        Column("speedup", "in speedup", right=True),
        Column("speedup_verdict", "verdict"),
    )
    notes = ["A verdict needs an interval that excludes 0; otherwise the statement is undecided."]
    return table("Domain apart from language", rows, columns, [*notes, bench_line(record)])


def _heads(record: Record) -> list[dict[Any, Any]]:
    frame = domain.heads(record)
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _by_head(record: Record, value: str, form: Callable[[Any], str], title: str, notes: list[str]) -> Table:
    """A row a group of questions, a column a head."""
    frame, rows = domain.by_group(record), []
    for group, part in frame.groupby("group", sort=False):
        row: dict[str, Any] = {"group": group, "domain": part["domain"].iloc[0]}
        row["count"] = part["questions" if value == "tau" else "timed"].max()
        for each in part.to_dict("records"):
            low, high = each[f"{value}_low"], each[f"{value}_high"]
            known = each[value] is not None and each[value] == each[value]
            span = interval(low, high)
            row[each["head"]] = f"{form(each[value])} {'' if span == UNKNOWN else span}".strip() if known else None
        rows.append(row)
    columns = [Column("group", "questions"), Column("domain", "domain"), Column("count", "", right=True)]
    columns += [Column(head, head, right=True) for head in domain.present(record)]
    return table(title, rows, columns, [*notes, bench_line(record)])


def _gain(row: dict[Any, Any], name: str) -> str | None:
    value = row.get(f"{name}_gain")
    if value is None or value != value:
        return None
    return f"{value:+.2f} {interval(row[f'{name}_gain_low'], row[f'{name}_gain_high'])}"
