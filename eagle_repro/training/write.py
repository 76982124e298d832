"""Writing a corpus: user turns by recipe or from a file, the target's answers, filtered and counted."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, TypeVar

import torch

from eagle_repro.engine.target import Target
from eagle_repro.sources.questions import SETS, available, prompt_ids, question_texts
from eagle_repro.training.corpus import Corpus, make_corpus
from eagle_repro.training.filters import EvaluationQuestions, kept
from eagle_repro.training.identity import fingerprint, sha256_of_texts
from eagle_repro.training.recipes import Recipe
from eagle_repro.training.settings import free_memory, require_seed
from eagle_repro.training.writer import Conversation, Start, Turns, Writer, WriterSettings, require_room, turns_of

Item = TypeVar("Item")
#: Passes items on while it shows how far one is: (items, label, total) -> items.
Progress = Callable[[Iterable[Item], str, int | None], Iterable[Item]]

MOST_ROWS = {"cuda": 3072, "cpu": 8}
TICK = 1000  # answer tokens between two movements of the progress bar
LOGIT_COPIES = 6  # float32 copies of the logits that a step holds at once


def silent(items: Iterable[Item], label: str = "", total: int | None = None) -> Iterable[Item]:
    """The progress that shows nothing."""
    return items


@dataclass(frozen=True)
class CorpusSettings:
    """What to write. answer_tokens: when to stop; greedy: share of greedy answers, the others at `temperature`;
    positions, turn, beyond: see WriterSettings; rows: conversations side by side, 0 goes by the device's memory."""

    answer_tokens: int
    seed: int = 0
    positions: int = 448
    turn: int = 96
    greedy: float = 0.6
    temperature: float = 0.8
    rows: int = 0
    beyond: int = 0

    def __post_init__(self) -> None:
        require_seed(self.seed)
        if not 0 <= self.greedy <= 1 or self.temperature < 0 or self.beyond < 0:
            raise ValueError(
                f"greedy={self.greedy} must be a share, temperature={self.temperature} and beyond={self.beyond} not "
                "negative"
            )
        if self.answer_tokens < 1 or self.positions < 16 or self.turn < 1 or self.rows < 0:
            raise ValueError(
                f"a corpus needs answer_tokens >= 1, positions >= 16, turn >= 1 and rows >= 0, got {self}: raise them"
            )


@torch.inference_mode()
def write_corpus(
    target: Target,
    tokenizer: Any,
    recipe: Recipe,
    settings: CorpusSettings,
    *,
    prompts: Sequence[str] = (),
    provenance: dict[str, Any] | None = None,
    progress: Progress[Any] = silent,
) -> Corpus:
    """Let the target write a corpus. prompts: user turns of one's own, answered first.

    On a CPU a function of the arguments and the number of threads alone. Raises NonFiniteLogits, and ValueError for
    prompts, or openings of the recipe, that leave no room for an answer: before the first step.
    """
    turns = turns_of(tokenizer)
    rows = settings.rows or fitting_rows(target, settings.positions)
    asked = WriterSettings(rows, settings.positions, settings.turn, beyond=settings.beyond)
    for start in every_start(tokenizer, turns, recipe, prompts):
        require_room(start, turns, asked)
    writer = Writer(target, turns, asked)
    known = [name for name in SETS if available(name)]
    dropped: Counter[str] = Counter()
    own = EvaluationQuestions(question_texts())

    def text_of(prompt: Sequence[int]) -> str:
        inner = prompt[len(turns.before) : len(prompt) - len(turns.between)]
        return str(tokenizer.decode(inner, skip_special_tokens=True))

    conversations: list[Conversation] = []
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[target.device] if target.device.type == "cuda" else []):
        torch.manual_seed(settings.seed)
        written = writer.conversations(starts(tokenizer, turns, recipe, settings, prompts))
        good = kept(written, text_of, own, dropped)
        ticks = -(-settings.answer_tokens // TICK)
        for _ in progress(_until(good, conversations, settings.answer_tokens), "corpus", ticks):
            pass
    seconds = time.perf_counter() - began
    corpus = make_corpus(conversations, target.vocabulary, {})
    return Corpus(
        corpus.tokens,
        corpus.rows,
        {
            **(provenance or {}),
            "recipe": recipe.name,
            "shares": recipe.shares,
            "openings": {domain: list(lines) for domain, lines in recipe.openings.items()},
            "own_prompts": len(prompts),
            "own_prompts_sha256": sha256_of_texts(prompts),
            "target_fingerprint": fingerprint(target.model.state_dict()),
            "settings": asdict(settings),
            "writer": asdict(writer.settings),
            "evaluation_sets_kept_out": known,
            "dropped": dict(dropped),
            "seconds": seconds,
            "answer_tokens_per_second": corpus.answer_tokens / seconds,
            **corpus.provenance,
        },
    )


def _until(good: Iterator[Conversation], into: list[Conversation], answer_tokens: int) -> Iterator[None]:
    """Collect conversations until they hold so many answer tokens; yields for every TICK of them."""
    count = 0
    for each in good:
        into.append(each)
        before, count = count, count + len(each.ids) - each.answer
        yield from [None] * (count // TICK - before // TICK)
        if count >= answer_tokens:
            return


def every_start(tokenizer: Any, turns: Turns, recipe: Recipe, prompts: Sequence[str]) -> Iterator[Start]:
    """Each way a row can begin, once: the prompts of one's own, then all openings of the recipe."""
    for prompt in prompts:
        ids = prompt_ids(tokenizer, prompt)
        yield Start(ids, len(ids), 0.0, "own")
    for domain, openings in recipe.openings.items():
        for opening in openings:
            yield Start(opening_ids(tokenizer, turns, opening), 0, 0.0, domain)


def opening_ids(tokenizer: Any, turns: Turns, opening: str) -> list[int]:
    """The template's first words and the beginning of a user turn, which the target goes on from."""
    return [*turns.before, *tokenizer(opening, add_special_tokens=False)["input_ids"]]


def starts(
    tokenizer: Any, turns: Turns, recipe: Recipe, settings: CorpusSettings, prompts: Sequence[str]
) -> Iterator[Start]:
    """Prompts of one's own with their answers to come, then openings without end."""
    dice = random.Random(f"{settings.seed}/answers")

    def heat() -> float:
        return 0.0 if dice.random() < settings.greedy else settings.temperature

    for prompt in prompts:
        ids = prompt_ids(tokenizer, prompt)
        yield Start(ids, len(ids), heat(), "own")
    encoded = cache(lambda text: opening_ids(tokenizer, turns, text))
    for domain, opening in recipe.draws(settings.seed):
        ids = encoded(opening)
        if not ids:  # neither a template nor an opening: any token to begin with
            ids = [dice.randrange(len(tokenizer))]
        yield Start(ids, 0, heat(), domain)


def fitting_rows(target: Target, positions: int) -> int:
    """How many rows half of the free memory holds, at most MOST_ROWS."""
    most = MOST_ROWS[target.device.type]
    if target.device.type != "cuda":
        return most
    free = free_memory(target.device)
    cache = 2 * target.layers * target.kv_heads * target.head_dim * positions * target.dtype.itemsize
    return max(1, min(most, free // 2 // (cache + LOGIT_COPIES * 4 * target.vocabulary)))
