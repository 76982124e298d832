"""The decoding loops: prefill, then cycles until a stop rule holds; and the stock generate as a second baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_repro.engine.accept import Told
from eagle_repro.engine.adaptive import Chooser
from eagle_repro.engine.attention import attention_of
from eagle_repro.engine.cycle import State
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.prefill import draw_noise, prefill, raise_non_finite
from eagle_repro.engine.request import Cycle, Generation, NonFiniteLogits, Request, Text
from eagle_repro.engine.shape import BUCKET, TreeShape, read_span, slots_of
from eagle_repro.engine.stacks import Batch, Eager, no_mark
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import DraftTree

#: Committed tokens, of all rows together, that may wait for the head behind plain steps: on a GPU one pass of so many
#: takes less than several of a few.
WAITING = 32

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
    with stack.taken():
        return _write(target, head if request.shapes else None, requests, clock, stack)


def _write(
    target: Target, head: Eagle3Head | None, requests: Sequence[Request], clock: Callable[[], float], stack: Eager
) -> list[Generation]:
    request = requests[0]
    longest = max(len(each.prompt) + each.budget for each in requests)
    slots = max(map(slots_of, request.shapes or (None,)))
    few, rows = most_committed(request), room_for_features(request, len(requests), target.device)

    def now() -> float:
        """The clock, stopped while the stack makes something ready."""
        return clock() - stack.capture_s

    captured, start = stack.capture_s, now()
    sampled = not request.sampling.greedy
    state = stack.state(target, head, len(requests), read_span(longest, slots), rows, few=few, sampled=sampled)
    first = prefill(target, head, requests, state)
    texts = [Text(each, target.eos_ids) for each in requests]
    for text, token in zip(texts, first, strict=True):
        text.extend([token])
    _retire(state, texts)
    decoding = _Decoding(Batch(target, head, state, request.sampling), requests, texts, stack, clock)
    if any(text.stop_reason is None for text in texts):
        decoding.prepare(longest)
    prefilled = now()
    ended = {row: prefilled for row, text in enumerate(texts) if text.stop_reason is not None}
    while len(ended) < len(texts):
        decoding.step()
        over = [row for row, text in enumerate(texts) if text.stop_reason is not None and row not in ended]
        if over:
            _retire(state, texts)
            ended |= dict.fromkeys(over, now())
    captured = stack.capture_s - captured
    return [
        Generation(text.ids, text.stop_reason or "", cycles, prefilled - start, ended[row] - prefilled, captured)
        for row, (text, cycles) in enumerate(zip(texts, decoding.cycles, strict=True))
    ]


def most_committed(request: Request) -> int:
    """Tokens that a cycle commits at most."""
    return max((shape.levels + 1 for shape in request.shapes), default=1)


def room_for_features(request: Request, batch: int, device: torch.device) -> int:
    """Features that a row must hold: what a cycle commits at most; with plain steps on a GPU as many as may wait."""
    waiting = WAITING // batch if request.method == "adaptive" and device.type == "cuda" else 0
    return max(most_committed(request), waiting)


def _retire(state: State, texts: Sequence[Text]) -> None:
    """Rows whose text has ended stay as they are, with no more waiting than any cycle's pass reads."""
    state.active.copy_(torch.tensor([text.stop_reason is None for text in texts]))
    state.pending.masked_fill_(~state.active, 1)


@dataclass
class _Decoding:
    """A batch under way."""

    batch: Batch
    requests: Sequence[Request]
    texts: Sequence[Text]
    stack: Eager
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.cycles: list[list[Cycle]] = [[] for _ in self.texts]
        self.request = self.requests[0]
        self.chooser: Chooser | None = None
        self.next = next(iter(self.request.shapes), None)  # what the next cycle drafts
        self.shown: tuple[TreeShape, Told, list[int]] | None = None  # of the last cycle, and its rows, for the chooser
        self.pending = 1  # of the state, in the row where most waits

    def prepare(self, longest: int) -> None:
        """Have the stack make ready the cycles of all lengths up to `longest`, or learn what the candidates take.

        Of many candidates few are picked at each length, and so those are made ready when they are.
        """
        request, first = self.request, max(len(each.prompt) for each in self.requests)  # no cycle reads less
        if request.method == "adaptive":
            shapes: tuple[TreeShape | None, ...] = (None, *request.shapes)
            seconds = {shape: self.stack.seconds(self.batch, shape, first, self.clock) for shape in shapes}
            self.chooser = Chooser(seconds)
            self.next = self.chooser.pick()
            return
        shape, slots = self.next, slots_of(self.next)
        spans = range(read_span(first, slots), read_span(longest - 1, slots) + 1, BUCKET)  # the last token is no root
        self.stack.prepare(self.batch, shape, spans, apart=request.instrument)

    def step(self) -> None:
        """One cycle of every row that has not ended."""
        # The newest token is the root and not committed yet.
        contexts = {row: len(self.requests[row].prompt) + len(text.ids) - 1 for row, text in enumerate(self.texts)}
        longest = max(contexts.values())  # of rows that have ended too: their passes go on, for nobody
        contexts = {row: context for row, context in contexts.items() if self.texts[row].stop_reason is None}
        shape = self.next
        for row, context in contexts.items():
            draw_noise(self.batch.state, self.request.sampling, row, context, shape.levels if shape else 0)
        tree, told, seconds = self._launch(shape, read_span(longest, slots_of(shape)))
        kept = tree.cpu() if self.request.record_trees else None
        if self.chooser and shape:
            self.shown = shape, told, list(contexts)
        for row, context in contexts.items():
            finite, ids = told.text(row)
            if not finite:
                raise_non_finite(self.batch.target)
            cycle = Cycle(
                nodes=tree.tokens.shape[1],
                accepted=len(ids) - 1,
                emitted=self.texts[row].extend(ids),
                context=context,
                tree=kept.row(row) if kept else None,
                **seconds,
            )
            self.cycles[row].append(cycle)

    def _launch(self, shape: TreeShape | None, span: int) -> tuple[DraftTree, Told, dict[str, Any]]:
        """The cycle's tree; what is told of it; its phases' seconds."""
        state, following = self.batch.state, shape is None and self.batch.head is not None
        if shape is not None:
            catch = state.few is not None and self.pending > state.few
        else:
            catch = following and self.pending == state.features.shape[1]
        if self.request.instrument:  # so that no phase holds what making it ready takes
            self.stack.prepare(self.batch, shape, [span], apart=True, catch=catch)
        phases = _Phases(self.clock) if self.request.instrument else None
        tree, accepted = self.stack.cycle(self.batch, shape, span, phases.mark if phases else no_mark, catch=catch)
        self.pending = self.pending + 1 if following and not catch else 1 if following else 0
        self._choose()
        told = Told(accepted.told, shape.levels if shape else 0)  # the one read-back of a cycle
        self.pending = self.pending or int(told.counts.max()) + 1
        return tree, told, phases.seconds if phases else {}

    def _choose(self) -> None:
        """Pick for the next cycle from those before this one, which the device is at work on meanwhile."""
        if self.chooser and self.shown:
            (shape, told, rows), self.shown = self.shown, None
            self.chooser.observe(shape, told.counts[rows], told.scores[rows], told.depths[rows])
        if self.chooser:
            self.next = self.chooser.pick()


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
