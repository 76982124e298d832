"""Prompts of a wanted length: a question with the texts of other questions before it, in the same turn.

They are real text in the language of the sets, no two of them begin alike, and at every length the same questions are
asked. What the other questions ask is left unanswered.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Sequence
from typing import Any

from eagle_repro.experiments.rows import Item
from eagle_repro.sources.questions import SETS, load_questions, prompt_ids

BREAK = "\n\n"


def in_domain(sets: Sequence[str]) -> list[str]:
    """The sets that heads are made for; all of them where there is no such one."""
    return [name for name in sets if SETS[name].domain == "in"] or list(sets)


def require_room(max_length: int, prompt: int, tokens: int) -> None:
    """Raise ValueError where prompts of so many tokens and their answers are longer than texts may be."""
    if prompt + tokens > max_length:
        raise ValueError(
            f"answers of {tokens} tokens after prompts of up to {prompt} do not fit max_length={max_length}: raise "
            f"it to {prompt + tokens} at least"
        )


def pooled(tokenizer: Any, sets: Iterable[str], count: int, longest: int, *, thinking: bool = False) -> list[Item]:
    """Up to `count` different questions, the sets in turns, whose own prompts have at most `longest` tokens.

    Raises ValueError where no question is so short.
    """
    found: list[Item] = []
    each = [[(name, question) for question in load_questions(name)] for name in sets]
    for turn in range(max(map(len, each))):
        for name, question in (of[turn] for of in each if turn < len(of)):
            prompt = prompt_ids(tokenizer, question, thinking=thinking)
            if len(prompt) <= longest and len(found) < count:
                found.append(Item(name, question.id, prompt))
    if not found:
        raise ValueError(
            f"no question of {', '.join(sets)} has a prompt of at most {longest} tokens: allow longer ones"
        )
    return found


def lengthened(tokenizer: Any, items: Sequence[Item], length: int) -> list[Item]:
    """The same questions as prompts of exactly `length` tokens.

    Raises ValueError for a question that is longer than that by itself.
    """
    # What the prompts of all questions begin with is the template's opening.
    opening = len(os.path.commonprefix([prompt_ids(tokenizer, text) for text in ("a", "b")]))
    ids = [_ids(tokenizer, question.turns[0] + BREAK) for name in _sets(items) for question in load_questions(name)]
    out = []
    for place, item in enumerate(items):
        missing = length - len(item.prompt)
        if missing < 0:
            raise ValueError(
                f"question {item.question} of {item.set} has {len(item.prompt)} tokens by itself: ask for prompts of "
                "at least so many"
            )
        start = place * len(ids) // len(items)
        turned = [token for text in (*ids[start:], *ids[:start]) for token in text]
        filler = (turned * (missing // len(turned) + 1))[:missing]
        out.append(Item(item.set, item.question, item.prompt[:opening] + filler + item.prompt[opening:]))
    return out


def meaningless(vocabulary: int, length: int) -> list[int]:
    """Ids of no meaning: what a pass costs does not depend on them."""
    return [1 + place % (vocabulary - 1) for place in range(length)]


def _sets(items: Sequence[Item]) -> list[str]:
    return list(dict.fromkeys(item.set for item in items))


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
