"""The decoding loops: prefill, then cycles until a stop rule holds; and the stock generate as a second baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_repro.engine.attention import attention_of
from eagle_repro.engine.cycle import State
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.prefill import draw_noise, prefill, raise_non_finite
from eagle_repro.engine.request import Cycle, Generation, NonFiniteLogits, Request, Text
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import BUCKET, Eager, no_mark, read_span
from eagle_repro.engine.target import Target

__all__ = ["Cycle", "Generation", "NonFiniteLogits", "Request", "run", "run_batch"]


def run(
    target: Target,
    head: Eagle3Head | None,
    request: Request,
    clock: Callable[[], float] = time.perf_counter,
    stack: Eager | None = None,
) -> Generation:
    """Carry out one request: run_batch of a single row."""
    return run_batch(target, head, [request], clock, stack)[0]


@torch.inference_mode()
def run_batch(
    target: Target,
    head: Eagle3Head | None,
    requests: Sequence[Request],
    clock: Callable[[], float] = time.perf_counter,
    stack: Eager | None = None,
) -> list[Generation]:
    """Carry out requests that differ in their prompts alone, side by side; rows end at different times.

    clock: seconds, read after the device has finished. stack: how cycles are launched, by default eager. Times of a
    batch run from its start to the end of each row. Raises ValueError, NonFiniteLogits.
    """
    for request in requests:
        request.check(target, head)
    request, stack = requests[0], stack or Eager()
    if request.method == "hf":
        return [_stock(target, each, clock) for each in requests]
    head = head if request.method != "plain" else None
    shape = request.shape if head is not None else None
    longest, slots = max(len(each.prompt) + each.budget for each in requests), shape.slots if shape else 2
    start, captured = clock(), stack.capture_s
    rows = shape.levels + 1 if shape else 1
    sampled = not request.sampling.greedy
    state = stack.state(target, head, len(requests), read_span(longest, slots), rows, sampled=sampled)
    first = prefill(target, head, requests, shape, state)
    shortest = min(len(each.prompt) for each in requests)
    spans = range(read_span(shortest, slots), read_span(longest, slots) + 1, BUCKET)
    stack.prepare(target, head, state, shape, spans, request.sampling)
    texts = [Text(each, target.eos_ids) for each in requests]
    for text, token in zip(texts, first, strict=True):
        text.extend([token])
    _retire(state, texts)
    captured = stack.capture_s - captured
    prefilled = clock()
    decoding = _Decoding(target, head, state, shape, requests, texts, stack, clock)
    ended = {row: prefilled for row, text in enumerate(texts) if text.stop_reason is not None}
    while len(ended) < len(texts):
        decoding.step()
        now = [row for row, text in enumerate(texts) if text.stop_reason is not None and row not in ended]
        if now:
            _retire(state, texts)
            ended |= dict.fromkeys(now, clock())
    prefill_s = prefilled - start - captured
    return [
        Generation(text.ids, text.stop_reason or "", cycles, prefill_s, ended[row] - prefilled, captured)
        for row, (text, cycles) in enumerate(zip(texts, decoding.cycles, strict=True))
    ]


def _retire(state: State, texts: Sequence[Text]) -> None:
    """Rows whose text has ended stay as they are."""
    state.active.copy_(torch.tensor([text.stop_reason is None for text in texts]))


@dataclass
class _Decoding:
    """A batch under way."""

    target: Target
    head: Eagle3Head | None
    state: State
    shape: TreeShape | None
    requests: Sequence[Request]
    texts: Sequence[Text]
    stack: Eager
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.cycles: list[list[Cycle]] = [[] for _ in self.texts]

    def step(self) -> None:
        """One cycle of every row that has not ended."""
        request, shape = self.requests[0], self.shape
        # The newest token is the root and not committed yet.
        contexts = {row: len(self.requests[row].prompt) + len(text.ids) - 1 for row, text in enumerate(self.texts)}
        longest = max(contexts.values())  # of rows that have ended too: their passes go on, for nobody
        contexts = {row: context for row, context in contexts.items() if self.texts[row].stop_reason is None}
        for row, context in contexts.items():
            draw_noise(self.state, request.sampling, row, context)
        phases = _Phases(self.clock) if request.instrument else None
        span = read_span(longest, shape.slots if shape else 2)
        mark = phases.mark if phases else no_mark
        tree, accepted = self.stack.cycle(self.target, self.head, self.state, shape, span, request.sampling, mark)
        # The one read-back of a cycle.
        counts = (accepted.finite.unsqueeze(1), accepted.count.unsqueeze(1))
        told = torch.cat((*counts, accepted.emitted), dim=1).tolist()
        kept = tree.cpu() if request.record_trees else None
        for row, context in contexts.items():
            finite, count, *emitted = told[row]
            if not finite:
                raise_non_finite(self.target)
            cycle = Cycle(
                nodes=tree.tokens.shape[1],
                accepted=count,
                emitted=self.texts[row].extend(emitted[: count + 1]),
                context=context,
                tree=kept.row(row) if kept else None,
                **(phases.seconds if phases else {}),
            )
            self.cycles[row].append(cycle)


class _Phases:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, Any] = {}
        self._clock, self._last = clock, clock()

    def mark(self, phase: str) -> None:
        now = self._clock()
        self.seconds[f"{phase}_s"], self._last = now - self._last, now


class _TokenTimes:
    """A streamer for generate: notes when each token has reached the host."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.times = clock, []  # type: ignore[var-annotated]

    def put(self, value: Tensor) -> None:
        self.times.append(self.clock())

    def end(self) -> None:
        pass


@contextmanager
def _bare_config(model: Any) -> Iterator[None]:
    """Let generate see none of the model's generation config: its penalties, bans and beams would change the text."""
    before = model.generation_config
    model.generation_config = type(before)()
    try:
        yield
    finally:
        model.generation_config = before


def _stock(target: Target, request: Request, clock: Callable[[], float]) -> Generation:
    """transformers' own greedy generate with its sdpa attention; of the generation config only the eos ids count."""
    prompt = torch.tensor([request.prompt], device=target.device)
    eos = sorted(target.eos_ids)
    options = {"eos_token_id": eos if eos and request.stop == "eos" else None, "pad_token_id": eos[0] if eos else 0}
    start, times = clock(), _TokenTimes(clock)
    with attention_of(target.model, "sdpa"), _bare_config(target.model):
        out = target.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.budget,
            do_sample=False,
            streamer=times,
            **options,
        )
    end = clock()
    ids = out[0, len(request.prompt) :].tolist()
    # generate goes on over logits that are not finite, so they are looked for afterwards, outside the clock.
    replayed = target.model(out[:, :-1], use_cache=False, logits_to_keep=len(ids)).logits
    if not replayed.amax(dim=-1).isfinite().all():
        raise_non_finite(target)
    text = Text(request, target.eos_ids)
    text.extend(ids)
    first = times.times[1]  # the first put is the prompt
    cycles = [Cycle(1, 0, 1, len(request.prompt) + i) for i in range(len(ids) - 1)]
    return Generation(ids, text.stop_reason or "eos", cycles, first - start, end - first)
