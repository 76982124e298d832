"""The claims beside a run as tables, in English or Russian. Rows are those of measure.claims' results (as_row)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eagle_repro.present.claim_words import CONDITIONS, COUNTED, LACKS, SIDES, VERDICTS, WORDS
from eagle_repro.present.layout import Column, Table, table
from eagle_repro.present.numerals import NO_BREAK, UNKNOWN, as_stated, interval, number, quantity, several

Row = Mapping[str, Any]

#: The conditions of a whole run; they are told once.
BENCH = ("card", "pair", "dtype", "stack", "questions", "new_tokens")


def values(rows: Iterable[Row], lang: str = "en") -> Table:
    """The claims that are numbers: what the article says, what this run says, and the verdict."""
    chosen = [row for row in rows if row["claim_kind"] == "value"]
    return _values(chosen, WORDS[lang]["values"], lang, [WORDS[lang]["values_note"], other_bench(chosen, lang)])


def published(rows: Iterable[Row], lang: str = "en") -> Table:
    """The numbers that the article quotes from elsewhere, with this run's beside them."""
    chosen = [row for row in rows if row["claim_kind"] == "published"]
    return _values(chosen, WORDS[lang]["published"], lang, [])


def directions(rows: Iterable[Row], lang: str = "en") -> Table:
    """The claims that are statements: the effect with its interval, and the verdict."""
    words = WORDS[lang]
    shown = [
        {
            "text": row["text"][lang],
            "compared": compared(row, lang),
            "effect": quantity(row.get("effect"), row["unit"], lang, sign=row["unit"] != "share"),
            "interval": interval(row.get("low"), row.get("high"), 2, lang),
            "verdict": judged(row, lang),
        }
        for row in rows
        if row["claim_kind"] == "direction"
    ]
    columns = (
        Column("text", words["statement"]),
        Column("compared", words["compared"]),
        Column("effect", words["effect"], right=True),
        Column("interval", words["interval"], right=True),
        Column("verdict", words["verdict"]),
    )
    return table(words["directions"], shown, columns, [words["directions_note"]])


def formula(residuals: Iterable[Any], claims: Mapping[str, Row], lang: str = "en") -> Table:
    """What the cost formula makes of the article's own figures (measure.claims.formula.residuals)."""
    words = WORDS[lang]
    shown = [
        {
            "text": claims[point.id]["text"][lang] if point.id in claims else words["cycle"],
            "depth": str(point.depth),
            "tau": number(point.tau, 2, lang),
            "predicted": quantity(point.predicted, "x", lang),
            "stated": words["not_stated"] if point.stated is None else quantity(point.stated, "x", lang),
            "percent": quantity(point.percent, "%", lang, digits=0, sign=True),
        }
        for point in residuals
    ]
    columns = (
        Column("text", words["statement"]),
        Column("depth", words["depth"], right=True),
        Column("tau", words["tau"], right=True),
        Column("predicted", words["formula_gives"], right=True),
        Column("stated", words["article_gives"], right=True),
        Column("percent", words["residual"], right=True),
    )
    return table(words["formula"], shown, columns, [words["formula_note"]])


def marks(found: Iterable[Any], name: str, lang: str = "en") -> Table:
    """The marked numbers of a text beside the run's (measure.claims.marks)."""
    words = WORDS[lang]
    shown = [
        {"line": each.line, "what": each.what, "written": each.written, "fault": each.fault or "ok"} for each in found
    ]
    columns = (
        Column("line", words["line"], right=True),
        Column("what", words["what"]),
        Column("written", words["written"], right=True),
        Column("fault", words["fault"]),
    )
    return table(words["text"].format(name=name), shown, columns)


def other_bench(rows: Sequence[Row], lang: str) -> str:
    """In what the whole run differs from the article's bench, in one line; empty where it does not."""
    found = {name: pair for row in rows for name, pair in (row["other"] or {}).items() if name in BENCH}
    words = WORDS[lang]
    parts = [
        words["instead"].format(name=condition(name, lang), here=_plain(here), there=_plain(there))
        for name in BENCH
        if name in found
        for there, here in [found[name]]
    ]
    return words["bench_note"].format(parts="; ".join(parts)) if parts else ""


def counted(counts: Mapping[str, int], lang: str) -> list[tuple[int, str]]:
    """How many claims got which verdict, in words."""
    return [(count, COUNTED[lang][name]) for name, count in counts.items()]


def verdict(name: str, lang: str) -> str:
    """A verdict in words."""
    return VERDICTS[lang].get(name, name)


def condition(name: str, lang: str) -> str:
    """The name of a condition."""
    return CONDITIONS[lang].get(name, name)


def judged(row: Row, lang: str) -> str:
    """The verdict, and what is behind it: by how much, which other tree or set, or which record lacks the number."""
    words, said = WORDS[lang], verdict(row["verdict"], lang)
    if row["verdict"] == "differs":
        tolerance = quantity(row["tolerance"], row["unit"], lang)
        off = quantity(row["off"], row["unit"], lang, sign=True)
        return f"{said} {words['off'].format(off=off, tolerance=tolerance)}"
    own = {name: pair for name, pair in (row["other"] or {}).items() if name not in BENCH}
    behind = [f"{condition(name, lang)}{NO_BREAK}{_plain(pair[1])}" for name, pair in own.items()]
    if row["lacks"] == "missing":
        behind.append(row["record"])
    elif row["lacks"]:
        behind.append(f"{row['record']}: {lacks(row['lacks'], lang)}")
    return f"{said} ({', '.join(behind)})" if behind else said


def lacks(reason: str, lang: str) -> str:
    """Why a record does not hold a number."""
    return LACKS[lang].get(reason, reason)


def differing(differs: Mapping[str, Sequence[Any]], lang: str) -> str:
    """In what a record's bench differs from the run's (name -> its own, the run's), in words."""
    words = WORDS[lang]["not_the_runs"]
    parts = [
        words.format(name=condition(name, lang), here=_plain(here), there=_plain(there))
        for name, (here, there) in differs.items()
    ]
    return ", ".join(parts)


def left_out(others: Mapping[str, Mapping[str, Sequence[Any]]], lang: str = "en") -> list[str]:
    """A line for each record that is of another bench than the run's (Run.others) and was not used."""
    words = WORDS[lang]["left_out"]
    return [words.format(record=name, differs=differing(differs, lang)) for name, differs in others.items()]


def compared(row: Row, lang: str) -> str:
    """The two sides of an effect with their values: "depth 10: 3.12, depth 2: 2.51"."""
    if row.get("left") is None:
        return UNKNOWN
    sides = (f"{side(name, lang)}:{NO_BREAK}{number(value, 2, lang)}" for name, value in (row["left"], row["right"]))
    return (", " if lang == "en" else "; ").join(sides)


def side(name: str, lang: str) -> str:
    """The name of one side of an effect."""
    if lang == "en":
        return name
    for pattern, words in SIDES.items():
        if re.fullmatch(pattern, name):
            return re.sub(pattern, words, name)
    return name


def _values(rows: Sequence[Row], title: str, lang: str, notes: Sequence[str]) -> Table:
    words = WORDS[lang]
    shown = [
        {
            "text": row["text"][lang],
            "stated": as_stated(row["stated"], row["unit"], lang, is_range=row["is_range"]),
            "measured": several(row["measured"], row["unit"], lang) if row["measured"] else UNKNOWN,
            "verdict": judged(row, lang),
        }
        for row in rows
    ]
    columns = (
        Column("text", words["statement"]),
        Column("stated", words["stated"], right=True),
        Column("measured", words["measured"], right=True),
        Column("verdict", words["verdict"]),
    )
    return table(title, shown, columns, notes)


def _plain(value: Any) -> str:
    return UNKNOWN if value is None else str(value)
