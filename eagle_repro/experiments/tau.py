"""tau by question set, for a pair, a tree and prompts: what `python -m eagle_repro tau` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_repro.api import Pair, generate
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.rows import Item
from eagle_repro.experiments.session import Progress, silent
from eagle_repro.experiments.values import checked
from eagle_repro.measure.stats import columns, summarise_tau
from eagle_repro.sources.questions import load_questions, pick, prompt_ids, question_set

Prompts = Mapping[str, Sequence[list[int]]]
#: Texts written side by side on a GPU. A CPU takes one at a time: its passes cost by the row.
SIDE_BY_SIDE = 80


def count_cycles(pair: Pair, items: Sequence[Item], shape: TreeShape, tokens: int) -> dict[str, list[Any]]:
    """Write `tokens` tokens of every answer, greedy and past the end of text, only to count cycles.

    Lists, an entry a question: question (its id), emitted (tokens of its cycles, the last one uncut), cycles.
    """
    # Rows of a batch are independent, and how cycles are launched changes no count: a batch would capture graphs of
    # its own for every length.
    eager = replace(pair, stack="eager")
    rows = SIDE_BY_SIDE if pair.device != "cpu" else 1
    texts = []
    for start in range(0, len(items), rows):
        prompts = [item.prompt for item in items[start : start + rows]]
        texts += generate(eager, prompts, shape=shape, max_new_tokens=tokens, stop="never")
    counts = [[cycle.accepted for cycle in text.cycles] for text in texts]
    return {
        "question": [item.question for item in items],
        "emitted": [sum(accepted) + len(accepted) for accepted in counts],
        "cycles": [len(accepted) for accepted in counts],
    }


def tau_by_set(
    pair: Pair, prompts: Prompts, shape: TreeShape, tokens: int, *, method: str = "eagle", progress: Progress = silent
) -> pd.DataFrame:
    """Write `tokens` tokens after every prompt, greedy and past the end of text, and count what the cycles gave.

    Columns: set, questions, cycles, tau (tokens of all cycles over cycles, the last one uncut), tau_low, tau_high,
    tau_question_mean, ms_cycle, warning. Raises ValueError, before any text, for a prompt that does not fit.
    """
    for name, of_set in prompts.items():
        longest = max(map(len, of_set))
        if longest + tokens > pair.max_length:
            raise ValueError(
                f"a prompt of {longest} tokens in {name} and {tokens} new ones exceed max_length={pair.max_length}: "
                "ask for fewer new tokens or a larger max_length"
            )
    everything = [(name, prompt) for name, of_set in prompts.items() for prompt in of_set]
    found: dict[str, list[tuple[list[int], float]]] = {}
    for name, prompt in progress(everything, "prompts", len(everything)):
        done = generate(pair, prompt, method=method, shape=shape, max_new_tokens=tokens, stop="never")
        found.setdefault(name, []).append(([cycle.accepted for cycle in done.cycles], done.decode_s))
    rows = []
    for name, runs in found.items():
        taus = summarise_tau([accepted for accepted, _ in runs])
        rows.append(
            {
                "set": name,
                "questions": taus.questions,
                "cycles": taus.cycles,
                **columns("tau", taus.step_weighted),
                "tau_question_mean": taus.question_mean,
                "ms_cycle": 1e3 * sum(seconds for _, seconds in runs) / taus.cycles if taus.cycles else None,
                "warning": taus.warning,
            }
        )
    return pd.DataFrame(rows)


def read_prompts(path: Path) -> dict[str, list[list[int]]]:
    """Prompts from a JSON file {"set": [[id, id, ...], ...], ...}. Raises ValueError for another form."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
    except Twice as error:
        raise ValueError(f"{path.name} has {error} twice: give every set another name") from None
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON ({error})") from None
    sets = read.items() if isinstance(read, dict) else ()
    fits = all(isinstance(of_set, list) and of_set and all(map(_is_prompt, of_set)) for _, of_set in sets)
    if not sets or not fits:
        raise ValueError(f'{path.name} holds no prompts: {{"set": [[id, id, ...], ...]}} with whole numbers is needed')
    return dict(sets)


def prompts_of_sets(pair: Pair, names: Sequence[str], questions: int) -> dict[str, list[list[int]]]:
    """The prompts of question sets, as the experiments take them."""
    return {
        name: [prompt_ids(pair.tokenizer, question) for question in pick(load_questions(name), questions)]
        for name in names
    }


def named_sets(text: str, questions: int) -> list[str]:
    """The question sets that --sets names, each of at least `questions`.

    Raises ValueError where it names none, one twice, an unknown one, or one with fewer questions.
    """
    names: Sequence[str] = checked("sets", "tuple", text)
    for name in names:
        pick(range(question_set(name).count), questions)
    return list(names)


class Twice(ValueError):
    """A name that stands twice in one JSON object."""


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Twice(repr(name))
        found[name] = value
    return found


def _is_prompt(ids: object) -> bool:
    return isinstance(ids, list) and bool(ids) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
