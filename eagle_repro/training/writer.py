"""The target writes conversations: many rows side by side, one token a step, each row at a place of its own.

A step is tensor operations over static buffers, so that it can be captured once and replayed. A row goes through a
user turn that the target makes up after an opening, the template's words between the turns, and the answer; what is
known beforehand is read instead of drawn. Rows that have ended are taken out and started anew every few steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_repro.engine.attention import visibility
from eagle_repro.engine.capture import captured
from eagle_repro.engine.cycle import causal
from eagle_repro.engine.prefill import raise_non_finite
from eagle_repro.engine.target import Target
from eagle_repro.sources.questions import prompt_ids

PERIOD = 16  # steps between two looks at the rows: a row waits 8 steps on average for its successor
SMALLEST = 1e-30  # of an exponential draw: its logarithm must stay finite


@dataclass(frozen=True)
class Turns:
    """The ids that the chat template puts before a user turn, and between it and the answer."""

    before: list[int]
    between: list[int]


@dataclass(frozen=True)
class Start:
    """How a row begins. ids: known so far; answer: where the answer begins, 0 while the user turn is being made up.

    temperature: of the answer, 0 is greedy.
    """

    ids: list[int]
    answer: int
    temperature: float
    domain: str


@dataclass(frozen=True)
class Conversation:
    """A finished row: ids[:answer] is the prompt, ids[answer:] what the target answered, its end of turn included."""

    ids: list[int]
    answer: int
    temperature: float
    domain: str


@dataclass(frozen=True)
class WriterSettings:
    """rows: conversations side by side; positions: tokens of a conversation, prompt included; turn: most tokens that
    a made-up user turn adds to its opening; temperature: of user turns; min_p: tokens less likely than this share of
    the likeliest are not drawn (min-p sampling, arXiv:2407.01082: top-p without a sort of the vocabulary); beyond:
    tokens that are written past the end of an answer, for a head that is also used there (stop="never")."""

    rows: int
    positions: int = 448
    turn: int = 96
    temperature: float = 1.0
    min_p: float = 0.05
    beyond: int = 0


def turns_of(tokenizer: Any) -> Turns:
    """The template's ids around a user turn, found by comparing two prompts; without a template an empty line."""
    if not getattr(tokenizer, "chat_template", None):
        return Turns([], list(tokenizer("\n\n", add_special_tokens=False)["input_ids"]))
    one, other = (prompt_ids(tokenizer, text) for text in ("0", "Z"))
    return Turns(_shared(one, other), _shared(one[::-1], other[::-1])[::-1])


def _shared(one: list[int], other: list[int]) -> list[int]:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [token for token, _ in pairs]


class Writer:
    """Static buffers of B rows and T positions, and the step that moves all rows on by one token.

    cursor (B,): the position to read next. known (B,): tokens written so far. limit (B,): where a user turn is cut.
    last (B,): the position of the last token.
    """

    def __init__(self, target: Target, turns: Turns, settings: WriterSettings) -> None:
        device, rows, positions = target.device, settings.rows, settings.positions
        self.target, self.turns, self.settings = target, turns, settings
        self.cache = target.cache(rows, positions)
        self.tokens = torch.zeros(rows, positions + len(turns.between), dtype=torch.long, device=device)
        self.cursor, self.known, self.answer, self.limit, self.last = torch.zeros(
            5, rows, dtype=torch.long, device=device
        )
        self.temperature = torch.zeros(rows, device=device)
        self.done = torch.ones(rows, dtype=torch.bool, device=device)
        self.finite = torch.ones(rows, dtype=torch.bool, device=device)
        self.between = torch.tensor([turns.between], device=device)
        self.ends = torch.tensor(sorted(target.eos_ids), dtype=torch.long, device=device)
        self.starts: list[Start | None] = [None] * rows
        self.fresh = [True] * rows  # rows whose cache does not hold the template's first words yet

    def conversations(self, starts: Iterator[Start]) -> Iterator[Conversation]:
        """Finished conversations in the order in which they end, until `starts` and all rows have ended.

        Raises ValueError for a start that leaves no room, NonFiniteLogits.
        """
        state = [self.tokens, self.cursor, self.known, self.answer, self.last]
        self._fill(range(len(self.starts)), starts)
        step = captured(self.step, self.target.device, [*state, self.done, self.finite])
        finished: list[Conversation] = []
        while any(start is not None for start in self.starts):
            for _ in range(PERIOD):
                step()
            yield from finished  # the host looks at these while the device is at the next steps already
            done, finite = torch.stack((self.done, self.finite)).tolist()
            if not all(finite):
                raise_non_finite(self.target)
            ended = [row for row, over in enumerate(done) if over and self.starts[row] is not None]
            finished = self._harvest(ended) if ended else []
            self._fill(ended, starts)
        yield from finished

    def _harvest(self, rows: list[int]) -> list[Conversation]:
        index = torch.tensor(rows, device=self.tokens.device)
        tokens, known, answers = (each[index].tolist() for each in (self.tokens, self.known, self.answer))
        found = []
        for row, ids, count, answer in zip(rows, tokens, known, answers, strict=True):
            start = self.starts[row]
            assert start is not None
            self.starts[row] = None
            found.append(Conversation(ids[:count], answer, start.temperature, start.domain))
        return found

    def _fill(self, rows: Iterable[int], starts: Iterator[Start]) -> None:
        """Start new conversations in rows that have ended; rows without one stay as they are."""
        taken = list(zip(rows, starts, strict=False))  # whichever ends first
        if not taken:
            return
        before = self.turns.before
        values = []
        for row, start in taken:
            limit = len(start.ids) + self.settings.turn
            if (start.answer or limit + len(self.turns.between)) + 1 >= self.settings.positions:
                raise ValueError(
                    f"a prompt of {len(start.ids)} tokens leaves no room for an answer in {self.settings.positions} "
                    "positions: shorten it, or ask for more positions"
                )
            shared = len(before) if start.ids[: len(before)] == before and not self.fresh[row] else 0
            self.fresh[row] = self.fresh[row] and start.ids[: len(before)] != before
            self.starts[row] = start
            last = self.settings.positions - 1
            values.append([min(shared, len(start.ids) - 1), len(start.ids), start.answer, limit, last])
        device = self.tokens.device
        index = torch.tensor([row for row, _ in taken], device=device)
        padded = torch.zeros(len(taken), self.tokens.shape[1], dtype=torch.long)
        for place, (_, start) in enumerate(taken):
            padded[place, : len(start.ids)] = torch.tensor(start.ids)
        self.tokens[index] = padded.to(device)
        columns = torch.tensor(values, device=device).T
        for buffer, column in zip((self.cursor, self.known, self.answer, self.limit, self.last), columns, strict=True):
            buffer[index] = column
        self.temperature[index] = torch.tensor([start.temperature for _, start in taken], device=device)
        self.done[index] = False

    def step(self) -> None:
        """Read the token at each row's cursor; where the next one is not known, draw and write it."""
        between = self.between.shape[1]
        asking = self.answer == 0
        chosen = self._choose(torch.where(asking, self.settings.temperature, self.temperature))
        place = self.cursor + 1
        free = (place >= self.known) & ~self.done
        ended = (chosen.unsqueeze(1) == self.ends).any(dim=1)
        turned = free & asking & (ended | (place >= self.limit))  # the user turn is over: the template's words follow
        self._write(place.unsqueeze(1), chosen.unsqueeze(1), free)
        self._write(place.unsqueeze(1) + torch.arange(between, device=place.device), self.between, turned)
        self.known.copy_(torch.where(free, place + 1 + turned * (between - 1), self.known))
        self.answer.copy_(torch.where(turned, self.known, self.answer))
        over = torch.minimum(self.last, place + self.settings.beyond)
        self.last.copy_(torch.where(free & ~asking & ended, over, self.last))
        self.done.logical_or_(place >= self.last)
        self.cursor.copy_(torch.where(self.done, self.cursor, place))

    def _choose(self, temperature: Tensor) -> Tensor:
        """The next token (B,) of each row: argmax of logits + temperature * Gumbel noise, greedy at temperature 0."""
        cursor = self.cursor.unsqueeze(1)
        span, target = self.settings.positions, self.target
        mask = visibility(self.cursor, causal(1, cursor.device), span, target.dtype)
        cache = self.cache.at(cursor, span)
        hidden, _ = target.forward(self.tokens.gather(1, cursor), cursor, mask, cache, features=False)
        logits = target.logits(hidden)[:, 0].float()
        heat = temperature.unsqueeze(1)
        least = logits.amax(dim=1, keepdim=True) + heat * math.log(self.settings.min_p)
        noise = torch.empty_like(logits).exponential_().clamp_(min=SMALLEST).log_().neg_()
        chosen = (logits + heat * noise).masked_fill_(logits < least, -math.inf).argmax(dim=1)
        self.finite.logical_and_(logits.gather(1, chosen.unsqueeze(1)).isfinite().squeeze(1) | self.done)
        return chosen

    def _write(self, places: Tensor, ids: Tensor, rows: Tensor) -> None:
        """Put ids (B or 1, m) at places (B, m) of the rows (B,) that are marked."""
        places = places.clamp(max=self.tokens.shape[1] - 1)
        old = self.tokens.gather(1, places)
        self.tokens.scatter_(1, places, torch.where(rows.unsqueeze(1), ids.expand_as(old), old))
