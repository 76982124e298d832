"""The words of the report's tables in both languages."""

from __future__ import annotations

HEADINGS: dict[str, dict[str, str]] = {
    "en": {
        "name": "", "value": "", "weight_mb": "read by a pass", "parameters": "parameters", "ms": "ms",
        "spread": "fastest, slowest", "ms_per_token": "ms a token", "bus": "bus used", "interval": "95%",
        "tree": "tree", "against_plain": "against plain", "against_hf": "against generate",
        "plain_step": "a plain step",
        "share": "head / target", "rule": "chosen by", "pays_from": "pays from tau", "questions": "texts",
        "identical": "equal to plain", "per_thousand": "mismatches per 1,000", "unexcused": "without a tie",
        "worst_gap": "widest gap", "typical_gap": "typical gap", "splits_below_005": "control p < 0.05",
        "detectable_effect": "detectable effect", "passed": "as it should be",
    },
    "ru": {
        "name": "", "value": "", "role": "что", "source": "откуда", "revision": "ревизия", "licence": "лицензия",
        "weight_mb": "читает проход", "parameters": "параметров", "tokens": "токенов", "ms": "мс",
        "spread": "быстрее всего, медленнее всего", "ms_per_token": "мс на токен", "bus": "занята шина",
        "set": "набор", "tree": "дерево", "tau": "τ", "interval": "95%", "against_plain": "против обычного",
        "against_hf": "против generate", "predicted": "формула", "measured": "измерено", "draft": "черновик",
        "verify": "проверка", "accept": "выбор", "commit": "запись", "rest": "прочее", "cycle": "цикл",
        "plain_step": "обычный шаг", "depth": "глубина", "rule": "кто выбрал", "pair": "пара", "target": "цель",
        "head": "голова", "share": "голова / цель", "dtype": "тип", "samples": "выборок", "p": "p",
        "speedup": "ускорение",
        "shape": "форма", "pays_from": "окупается с τ", "questions": "текстов", "identical": "равны обычным",
        "per_thousand": "расхождений на 1000", "unexcused": "без ничьей", "worst_gap": "наибольший разрыв",
        "typical_gap": "типичный разрыв", "test": "тест", "splits_below_005": "контроль p < 0,05",
        "detectable_effect": "различимый эффект", "passed": "как надо",
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
YES_NO = {"en": ("yes", "no"), "ru": ("да", "нет")}
