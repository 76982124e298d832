"""The answers of 07_domain in words, every number and every verdict read from the record."""

from __future__ import annotations

from eagle_repro.measure import domain
from eagle_repro.measure.claims.effects import Effect
from eagle_repro.measure.records import Record
from eagle_repro.present.layout import Passage
from eagle_repro.present.numerals import interval, number, quantity
from eagle_repro.present.words import bench_line
from eagle_repro.present.words_domain import SENTENCES, STATEMENTS

#: Under which question each statement is answered.
QUESTIONS = {
    "mix": ("code_helps", "code_costs"),
    "russian": ("russian_helps", "russian_costs"),
}


def answers(record: Record, lang: str = "en") -> Passage:
    """What the training mix does with the language held fixed, and what it does for Russian."""
    return Passage(f"{sections(record, lang)}\n\n*{bench_line(record)}*")


def sections(record: Record, lang: str) -> str:
    """The same as a part of a longer text."""
    said, found = SENTENCES[lang], {each.statement.name: each for each in domain.answers(record)}
    parts = []
    for question, names in QUESTIONS.items():
        lines = [f"- {sentence(found[name], lang)}" for name in names]
        parts.append("\n".join([f"**{said[question]}**", "", *lines, "", conclusion(question, record, lang)]))
    return "\n\n".join(parts)


def sentence(answer: domain.Answer, lang: str) -> str:
    """One statement with its numbers and its verdict."""
    said, statement = SENTENCES[lang], STATEMENTS[lang][answer.statement.name]
    if answer.tau is None:
        lacks = [said["head"].format(name=name) for name in answer.lacks] or [said["questions"]]
        return said["lacks"].format(statement=statement, lacks=", ".join(lacks))
    text = said[answer.tau.verdict].format(statement=statement, numbers=_numbers(answer.tau, lang))
    return text + (_faster(answer.speedup, lang) if answer.speedup else "")


def conclusion(question: str, record: Record, lang: str) -> str:
    """What the verdicts add up to."""
    verdicts = {each.statement.name: each.tau.verdict if each.tau else None for each in domain.answers(record)}
    said = SENTENCES[lang]
    if question == "mix":
        helps, costs = verdicts["code_helps"], verdicts["code_costs"]
        if helps == "holds":
            return said["mix_both" if costs == "holds" else "mix_helps"]
        return said["mix_opposite" if helps == "does not hold" else "mix_open"]
    closed = domain.gap_closed(record)
    if verdicts["russian_helps"] == "holds" and closed is not None:
        caused = "russian_data" if closed < 1 else "russian_all"
        return said[caused].format(percent=quantity(100 * closed, "%", lang, digits=0)) + _repeats(record, lang)
    return said["russian_language" if verdicts["russian_helps"] == "does not hold" else "russian_open"]


def _repeats(record: Record, lang: str) -> str:
    """How repetitive the target's Russian is, where it is more so than its English."""
    russian, english = (domain.repeated(record, sets) for sets in (domain.RUSSIAN, domain.ENGLISH))
    if russian is None or english is None or russian <= english:
        return ""
    percent = {"russian": russian, "english": english}
    shares = {name: quantity(100 * value, "%", lang, digits=0) for name, value in percent.items()}
    return SENTENCES[lang]["repeats"].format(**shares)


def _numbers(effect: Effect, lang: str) -> str:
    (left, before), (right, after), found = effect.left, effect.right, effect.estimate
    return SENTENCES[lang]["numbers"].format(
        left=left, right=right, left_tau=number(before, 2, lang), right_tau=number(after, 2, lang),
        gain=number(found.value, 2, lang, sign=True), interval=interval(found.low, found.high, 2, lang),
    )  # fmt: skip


def _faster(effect: Effect, lang: str) -> str:
    said, found = SENTENCES[lang], effect.estimate
    return said["faster"].format(
        left_speed=quantity(effect.left[1], "x", lang), right_speed=quantity(effect.right[1], "x", lang),
        gain=quantity(found.value, "x", lang, sign=True), interval=interval(found.low, found.high, 2, lang),
        verdict=said[f"verdict {effect.verdict}"],
    )  # fmt: skip
