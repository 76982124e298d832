"""The words of the report's tables in both languages."""

from __future__ import annotations

TITLES: dict[str, dict[str, str]] = {
    "en": {
        "bench": "The bench", "protocol": "The protocol", "weights": "The weights", "passes": "What a pass costs",
        "by_set": "tau and speedup by question set", "phases": "Where a cycle's time goes, in milliseconds",
        "depths": "Depth, with everything else fixed", "picks": "Which tree is chosen by whom",
        "pairs": "Parameters", "texts": "Greedy texts against plain decoding", "permutations": "Sampled texts",
    },
    "ru": {
        "bench": "Стенд", "protocol": "Протокол", "weights": "Веса", "passes": "Сколько стоит проход",
        "by_set": "τ и ускорение по наборам вопросов", "phases": "Куда уходит время цикла, миллисекунды",
        "depths": "Глубина при прочих равных", "picks": "Кто какое дерево выбирает",
        "pairs": "Параметры", "texts": "Жадные тексты против обычной генерации",
        "permutations": "Сэмплированные тексты",
    },
}  # fmt: skip
HEADINGS: dict[str, dict[str, str]] = {
    "en": {
        "name": "", "value": "", "weight_mb": "read by a pass", "parameters": "parameters", "ms": "ms",
        "spread": "fastest, slowest", "ms_per_token": "ms a token", "bus": "bus used", "interval": "95%",
        "tree": "tree", "against_plain": "against plain", "against_hf": "against generate",
        "plain_step": "a plain step",
        "share": "head / target", "tied": "differ at ties", "real": "differ otherwise", "rule": "chosen by",
    },
    "ru": {
        "name": "", "value": "", "role": "что", "source": "откуда", "revision": "ревизия", "licence": "лицензия",
        "weight_mb": "читает проход", "parameters": "параметров", "tokens": "токенов", "ms": "мс",
        "spread": "быстрее всего, медленнее всего", "ms_per_token": "мс на токен", "bus": "занята шина",
        "set": "набор", "tree": "дерево", "tau": "τ", "interval": "95%", "against_plain": "против обычного",
        "against_hf": "против generate", "predicted": "формула", "measured": "измерено", "draft": "черновик",
        "verify": "проверка", "accept": "выбор", "commit": "запись", "rest": "прочее", "cycle": "цикл",
        "plain_step": "обычный шаг", "depth": "глубина", "rule": "кто выбрал", "pair": "пара", "target": "цель",
        "head": "голова", "share": "голова / цель", "dtype": "тип", "texts": "текстов", "tied": "расходится на ничьих",
        "real": "расходится иначе", "samples": "выборок", "p": "p",
    },
}  # fmt: skip
#: Names of bench fields, roles and rules; the rest is the same in both languages.
BENCH_NAMES: dict[str, dict[str, str]] = {
    "en": {"capability": "compute capability", "cpu": "CPU", "cuda": "CUDA", "git": "git revision",
           "questions": "questions of"},
    "ru": {
        "card": "карта", "memory": "память", "capability": "compute capability", "driver": "драйвер", "cuda": "CUDA",
        "cpu": "процессор", "threads": "потоков", "dtype": "тип чисел", "stack": "стек", "pair": "пара",
        "questions": "вопросы", "clocks before": "частоты до", "clocks after": "частоты после", "measured": "измерено",
        "package": "пакет", "git": "ревизия git", "target": "цель", "head": "голова", "default": "по умолчанию",
        "reference": "эвристика авторов", "cost model": "модель стоимости", "runner-up": "следующее за ней",
        "article": "статья",
    },
}  # fmt: skip
