"""The words of the tables of claims in both languages."""

from __future__ import annotations

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "statement": "the article says", "stated": "article", "measured": "this run", "verdict": "verdict",
        "effect": "effect", "interval": "95%", "compared": "compared", "record": "record",
        "values": "The article's numbers beside this run", "published": "Published elsewhere",
        "directions": "The article's statements, tested here",
        "formula": "The cost formula on the article's own figures",
        "off": "by {off} (tolerance {tolerance})", "instead": "{name} {here} (article: {there})",
        "bench_note": "Another bench: {parts}.",
        "not_the_runs": "{name} {here} instead of {there}",
        "left_out": "{record} is of another bench ({differs}): left out.",
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
        "statement": "в статье сказано", "stated": "статья", "measured": "этот прогон", "verdict": "вердикт",
        "effect": "эффект", "interval": "95%", "compared": "что сравнено", "record": "запись",
        "values": "Числа статьи рядом с этим прогоном", "published": "Опубликовано другими",
        "directions": "Утверждения статьи, проверенные здесь",
        "formula": "Формула стоимости на числах самой статьи",
        "off": "на {off} (допуск {tolerance})", "instead": "{name} {here} (в статье {there})",
        "bench_note": "Другой стенд: {parts}.",
        "not_the_runs": "{name} {here} вместо {there}",
        "left_out": "{record}: снято на другом стенде ({differs}), не учтено.",
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
        "temperature": "температура", "target": "целевая модель", "head": "голова",
    },
}  # fmt: skip
#: How many claims got a verdict, in a sentence.
COUNTED = {
    "en": {
        "reproduced": "numbers reproduced", "differs": "numbers that differ",
        "other bench": "numbers of another bench", "holds": "statements that hold",
        "does not hold": "statements that do not", "undecided": "statements undecided",
        "not measured here": "not measured here",
    },
    "ru": {
        "reproduced": "чисел воспроизвелось", "differs": "чисел разошлось", "other bench": "чисел с другого стенда",
        "holds": "утверждений подтвердилось", "does not hold": "не подтвердилось",
        "undecided": "осталось нерешёнными", "not measured here": "здесь не измерено",
    },
}  # fmt: skip
#: Why a record does not hold a number; what is not named here is said as it is.
LACKS: dict[str, dict[str, str]] = {
    "en": {"missing": "not measured"},
    "ru": {
        "missing": "не измерено", "unfinished": "не закончено", "damaged": "повреждено",
        "of another bench": "снято на другом стенде",
        "no bandwidth": "нет пропускной способности", "no instrumented cycles": "нет разобранных по фазам циклов",
        "no passes of 1, of about 64 and of more tokens": "нет проходов на 1, около 64 и больше токенов",
        "no runs of the stock generate": "нет прогонов штатного generate", "no trees of two depths": "нет двух глубин",
        "no depth sweep": "нет среза по глубине", "no costs of two node counts and two depths": "нет двух цен",
        "no two depths from 2 up": "нет двух глубин от 2", "no texts by chain and tree": "нет текстов цепочки и дерева",
        "no texts of two pairs": "нет текстов двух пар", "no texts in half precision": "нет половинной точности",
        "no mismatch in half precision": "в половинной точности нет расхождений", "no rows of text": "нет текстов",
    },
}  # fmt: skip
#: The names of the two sides of an effect.
SIDES = {
    "out of domain": "вне домена", "in domain": "в домене", "stock generate": "штатный generate",
    "plain loop": "обычный цикл", "verification": "проверка", "the rest": "остальное", "tree": "дерево",
    "chain": "цепочка", "code, math": "код и арифметика", "chat": "диалог", "real": "настоящие", "at ties": "на ничьих",
    r"depth (\d+) to (\d+)": r"глубина \1→\2", r"depth (\d+)": r"глубина \1", r"(\d+) to (\d+) nodes": r"\1→\2 узла",
    r"(\d+) tokens": r"\1 токенов",
}  # fmt: skip
