"""Which conversations a corpus keeps: none twice, and none that holds an evaluation question."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from eagle_repro.sources.questions import word_grams
from eagle_repro.training.writer import Conversation

MOST_DROPPED = 2000  # conversations in a row, after which writing on would be in vain
GRAM = 8  # words in a row that make a near-copy


class EvaluationQuestions:
    """Tells texts that equal or contain an evaluation question, or share eight words in a row with one."""

    def __init__(self, questions: Iterable[str]) -> None:
        texts = list(questions)
        self._grams = {gram for text in texts for gram in word_grams(text, GRAM)}
        self._short = [f" {normal} " for text in texts if (normal := normalised(text)) and not word_grams(text, GRAM)]

    def held_by(self, text: str) -> bool:
        padded = f" {normalised(text)} "
        return not self._grams.isdisjoint(word_grams(text, GRAM)) or any(short in padded for short in self._short)


def normalised(text: str) -> str:
    """The words of a text in lower case, one space between them."""
    return " ".join(re.findall(r"\w+", text.lower()))


def kept(
    conversations: Iterable[Conversation],
    text_of: Callable[[Sequence[int]], str],
    evaluation: EvaluationQuestions,
    dropped: Counter[str],
) -> Iterator[Conversation]:
    """The conversations with a prompt not seen before, no evaluation question in it, and an answer.

    text_of: the user turn of a prompt as text. dropped counts the others by reason. Raises ValueError where
    MOST_DROPPED in a row are dropped.
    """
    last = 0  # dropped before the last one that was kept
    ids: set[tuple[int, ...]] = set()
    texts: set[str] = set()
    for each in conversations:
        prompt = tuple(each.ids[: each.answer])
        text = text_of(prompt)
        plain = normalised(text) or text
        if not each.answer or len(each.ids) - each.answer < 2:
            dropped["no answer"] += 1
        elif prompt in ids or plain in texts:
            dropped["duplicate"] += 1
        elif evaluation.held_by(text):
            dropped["evaluation question"] += 1
        else:
            ids.add(prompt)
            texts.add(plain)
            last = dropped.total()
            yield each
        if dropped.total() - last >= MOST_DROPPED:
            raise ValueError(
                f"{MOST_DROPPED} conversations in a row were dropped ({dict(dropped)}): the target has no more to say, "
                "ask for fewer answer tokens, longer turns or another recipe"
            )
