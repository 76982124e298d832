"""Words: the labels of the figures in two languages, and the line that names a bench."""

from __future__ import annotations

from eagle_repro.measure.records import Record
from eagle_repro.present.words_comparisons import COMPARISONS
from eagle_repro.present.words_domain import DOMAIN
from eagle_repro.present.words_stack import STACK
from eagle_repro.present.words_training import TRAINING
from eagle_repro.present.words_tree_shape import TREE_SHAPE


def bench_line(record: Record) -> str:
    """What the numbers belong to, in one line: card, pair, dtype, stack, versions, day."""
    bench = record.header["bench"]
    pair = (bench.get("pair") or {}).get("name")
    count = bench.get("threads") if bench.get("device") == "cpu" else None
    threads = f"{count} thread{'s' if count > 1 else ''}" if count else None
    torch = f"torch {bench['torch']}" if bench.get("torch") else None
    now = bench.get("now") or {}
    day = (now.get("utc") or "")[:10]
    shared = f"times of {now['processes']} processes that share it" if now.get("shared") else None
    cards = ((bench.get("pair") or {}).get("target") or {}).get("devices")
    split = f"target on {len(cards)} cards" if cards else None
    parts = [bench.get("card"), threads, shared, split, pair, bench.get("dtype"), bench.get("stack"), torch, day]
    return " | ".join(str(part) for part in parts if part)


def word(key: str, lang: str, **values: object) -> str:
    """A label in the language "en" or "ru". Raises ValueError for another language."""
    if lang not in WORDS:
        raise ValueError(f"lang={lang!r} was given: figures speak {' and '.join(WORDS)}")
    return WORDS[lang][key].format(**values)


WORDS: dict[str, dict[str, str]] = {
    "en": {
        "bench": "Bench",
        "pass_flat": "Up to {tokens} tokens, a pass costs hardly more than for one",
        "pass_flat_everywhere": "Even {tokens} tokens in a pass cost hardly more than one",
        "pass_not_flat": "Already at two tokens a pass costs noticeably more than at one",
        "tokens_in_a_pass": "tokens in one pass of the target",
        "ms_of_a_pass": "milliseconds of a pass",
        "floor_peak": "reading the weights once: {ms} ms at the card's {bandwidth} GB/s",
        "floor_measured": "reading the weights once: {ms} ms at the measured {bandwidth} GB/s",
        "flat_to": "flat to {tokens}\n(within 25%)",
        "bus": "a pass over one token uses {share} of that bandwidth",
        "ms": "{ms} ms",
        "speedup_range": "The same method gives {high}x on {best} and {low}x on {worst}",
        "speedup_one": "Speedup on {best}: {high}x",
        "against_plain": "against plain decoding, same stack (line)",
        "against_hf": "against the stock generate (line)",
        "times_as_fast": "times as fast",
        "tau_range": "A cycle gives {high} tokens on {best} and {low} on {worst}",
        "tau_one": "A cycle gives {high} tokens on {best}",
        "tau_axis": "tau: tokens a cycle, bonus token included (1 = plain decoding)",
        "phases": "A cycle costs {ratio} plain steps and gives {tau} tokens",
        "ms_axis": "milliseconds",
        "plain_step": "one plain step",
        "break_even": "break-even: {tau} plain steps",
        "draft": "draft",
        "verify": "verify",
        "accept": "accept",
        "commit": "commit",
        "rest": "rest",
        "predicted": "predicted by the cost formula",
        "measured": "measured",
        "formula": "The cost formula is off by at most {percent}%",
        "default": "default tree {shape}",
        "small": "small tree {shape}",
        "shallow": "shallow tree {shape}",
        "sampled": "{shape} at temperature {temperature}",
        "out": "out of domain",
        "interval": "bars: 95% bootstrap interval over questions",
    },
    "ru": {
        "bench": "Стенд",
        "pass_flat": "До {tokens} токенов проход почти не дорожает",
        "pass_flat_everywhere": "Даже на {tokens} токенах проход почти не дорожает",
        "pass_not_flat": "Уже на двух токенах проход заметно дороже, чем на одном",
        "tokens_in_a_pass": "токенов за один проход целевой модели",
        "ms_of_a_pass": "миллисекунд на проход",
        "floor_peak": "прочитать веса один раз: {ms} мс при {bandwidth} ГБ/с карты",
        "floor_measured": "прочитать веса один раз: {ms} мс при измеренных {bandwidth} ГБ/с",
        "flat_to": "плоско до {tokens}\n(в пределах 25%)",
        "bus": "проход на одном токене использует {share} этой полосы",
        "ms": "{ms} мс",
        "speedup_range": "Один и тот же метод: {high}x на {best} и {low}x на {worst}",
        "speedup_one": "Ускорение на {best}: {high}x",
        "against_plain": "против обычной генерации (линия)",
        "against_hf": "против штатного generate (линия)",
        "times_as_fast": "во сколько раз быстрее",
        "tau_range": "Цикл даёт {high} токена на {best} и {low} на {worst}",
        "tau_one": "Цикл даёт {high} токена на {best}",
        "tau_axis": "τ: токенов за цикл вместе с бонусным (1 = обычная генерация)",
        "phases": "Цикл стоит {ratio} обычного шага и даёт {tau} токена",
        "ms_axis": "миллисекунды",
        "plain_step": "один обычный шаг",
        "break_even": "окупается: {tau} обычных шагов",
        "draft": "черновик",
        "verify": "проверка",
        "accept": "выбор",
        "commit": "запись",
        "rest": "прочее",
        "predicted": "предсказано формулой",
        "measured": "измерено",
        "formula": "Формула стоимости ошибается не более чем на {percent}%",
        "default": "дерево по умолчанию {shape}",
        "small": "малое дерево {shape}",
        "shallow": "мелкое дерево {shape}",
        "sampled": "{shape} при температуре {temperature}",
        "out": "вне домена",
        "interval": "усы: 95% бутстрэп-интервал по вопросам",
    },
}
for _lang in WORDS:
    WORDS[_lang] |= TREE_SHAPE[_lang] | COMPARISONS[_lang] | DOMAIN[_lang] | STACK[_lang] | TRAINING[_lang]
