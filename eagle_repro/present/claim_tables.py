"""The claims beside a run as tables, in English or Russian. Rows are those of measure.claims' results (as_row)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eagle_repro.present.layout import Column, Table, table
from eagle_repro.present.numerals import NO_BREAK, UNKNOWN, as_stated, interval, number, quantity, several

Row = Mapping[str, Any]

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "statement": "the article says", "stated": "article", "measured": "this run", "verdict": "verdict", "why": "",
        "effect": "effect", "interval": "95%", "compared": "compared", "record": "record",
        "values": "The article's numbers beside this run", "published": "Published elsewhere",
        "directions": "The article's statements, tested here",
        "formula": "The cost formula on the article's own figures",
        "off": "by {off}, tolerance {tolerance}", "instead": "{name} {here} (article: {there})",
        "bench_note": "Another bench: {parts}.", "lacks": "{record}: {why}",
        "missing": "not measured", "unfinished": "unfinished", "damaged": "damaged",
        "depth": "depth", "tau": "tau", "formula_gives": "formula gives", "article_gives": "article says",
        "residual": "off by", "not_stated": "not stated", "cycle": "its cycle of 64 nodes",
        "values_note": "A value is judged only on the article's bench: same card, pair, dtype, stack, tree, sets and "
        "counts. Elsewhere this run's number stands beside it.",
        "directions_note": "The effect is what the statement is about, with a 95% bootstrap interval over questions "
        "(over repeats for passes). An interval that covers no effect decides nothing.",
        "formula_note": "The depth of the 64-node cycle is taken as 2, the article does not give it. A range counts by "
        "its middle.",
        "text": "Marked numbers of {name}", "line": "line", "what": "what", "written": "written", "fault": "",
    },
    "ru": {
        "statement": "в статье сказано", "stated": "статья", "measured": "этот прогон", "verdict": "вердикт", "why": "",
        "effect": "эффект", "interval": "95%", "compared": "что сравнено", "record": "запись",
        "values": "Числа статьи рядом с этим прогоном", "published": "Опубликовано другими",
        "directions": "Утверждения статьи, проверенные здесь",
        "formula": "Формула стоимости на числах самой статьи",
        "off": "на {off}, допуск {tolerance}", "instead": "{name} {here} (в статье {there})",
        "bench_note": "Другой стенд: {parts}.", "lacks": "{record}: {why}",
        "missing": "не измерено", "unfinished": "не закончено", "damaged": "повреждено",
        "depth": "глубина", "tau": "τ", "formula_gives": "даёт формула", "article_gives": "в статье",
        "residual": "расхождение", "not_stated": "не указано", "cycle": "её цикл на 64 узлах",
        "values_note": "Вердикт о числе выносится только на стенде статьи: те же карта, пара, тип, стек, дерево, "
        "наборы и количества. На другом стенде рядом просто стоит число этого прогона.",
        "directions_note": "Эффект — то, о чём утверждение; интервал — 95% бутстрэп по вопросам (для проходов — по "
        "повторам). Интервал, который накрывает отсутствие эффекта, ничего не решает.",
        "formula_note": "Глубина цикла на 64 узлах принята равной 2, статья её не называет. Диапазон взят по середине.",
        "text": "Помеченные числа: {name}", "line": "строка", "what": "что", "written": "написано", "fault": "",
    },
}  # fmt: skip
VERDICTS = {
    "en": {},
    "ru": {
        "reproduced": "воспроизвелось", "differs": "расходится", "other bench": "другой стенд",
        "not measured here": "здесь не измерено", "holds": "выполняется", "does not hold": "не выполняется",
        "undecided": "не решено",
    },
}  # fmt: skip
CONDITIONS = {
    "en": {"total_tokens": "nodes", "new_tokens": "new tokens", "tokens": "tokens a pass", "top_k": "top_k"},
    "ru": {
        "card": "карта", "pair": "пара", "dtype": "тип", "stack": "стек", "set": "набор", "questions": "вопросы",
        "new_tokens": "новые токены", "total_tokens": "узлы", "depth": "глубина", "tokens": "токены прохода",
        "temperature": "температура",
    },
}  # fmt: skip
#: How many claims got a verdict, in a sentence.
COUNTED = {
    "en": {
        "reproduced": "numbers reproduced", "differs": "numbers that differ", "other bench": "numbers of another bench",
        "holds": "statements that hold", "does not hold": "statements that do not hold",
        "undecided": "statements left undecided", "not measured here": "not measured here",
    },
    "ru": {
        "reproduced": "чисел воспроизвелось", "differs": "чисел разошлось", "other bench": "чисел с другого стенда",
        "holds": "утверждений подтвердилось", "does not hold": "утверждений не подтвердилось",
        "undecided": "утверждений осталось нерешёнными", "not measured here": "здесь не измерено",
    },
}  # fmt: skip
#: The conditions of a whole run; they are told once.
BENCH = ("card", "pair", "dtype", "stack", "questions", "new_tokens")
#: The names of the two sides of an effect.
SIDES = {
    "out of domain": "вне домена", "in domain": "в домене", "stock generate": "штатный generate",
    "plain loop": "обычный цикл", "verification": "проверка", "the rest": "остальное", "tree": "дерево",
    "chain": "цепочка", "code, math": "код и арифметика", "chat": "диалог", "real": "настоящие", "at ties": "на ничьих",
    r"depth (\d+) to (\d+)": r"глубина \1→\2", r"depth (\d+)": r"глубина \1", r"(\d+) to (\d+) nodes": r"\1→\2 узла",
    r"(\d+) tokens": r"\1 токенов",
}  # fmt: skip


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
            "effect": quantity(row.get("effect"), row["unit"], lang, sign=True),
            "interval": interval(row.get("low"), row.get("high"), 2, lang),
            "verdict": verdict(row["verdict"], lang),
            "why": why(row, lang),
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
        Column("why", words["why"]),
    )
    return table(words["directions"], shown, _used(columns, shown), [words["directions_note"]])


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


def why(row: Row, lang: str) -> str:
    """What stands behind a verdict: by how much, which other tree or set, or which record lacks it."""
    words = WORDS[lang]
    if row["verdict"] == "differs":
        tolerance = quantity(row["tolerance"], row["unit"], lang)
        return words["off"].format(off=quantity(row["off"], row["unit"], lang, sign=True), tolerance=tolerance)
    own = {name: pair for name, pair in (row["other"] or {}).items() if name not in BENCH}
    if own:
        return ", ".join(f"{condition(name, lang)}{NO_BREAK}{_plain(pair[1])}" for name, pair in own.items())
    if row["lacks"]:
        return words["lacks"].format(record=row["record"], why=lacks(row["lacks"], lang))
    return ""


def lacks(reason: str, lang: str) -> str:
    """Why a record does not hold a number."""
    return WORDS[lang].get(reason, reason)


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
            "verdict": verdict(row["verdict"], lang),
            "why": why(row, lang),
        }
        for row in rows
    ]
    columns = (
        Column("text", words["statement"]),
        Column("stated", words["stated"], right=True),
        Column("measured", words["measured"], right=True),
        Column("verdict", words["verdict"]),
        Column("why", words["why"]),
    )
    return table(title, shown, _used(columns, shown), notes)


def _used(columns: Sequence[Column], rows: Sequence[Mapping[str, str]]) -> list[Column]:
    """The columns that say anything."""
    return [column for column in columns if column.heading or any(row[column.field] for row in rows)]


def _plain(value: Any) -> str:
    return UNKNOWN if value is None else str(value)
