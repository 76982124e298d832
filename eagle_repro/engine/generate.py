"""The decoding loops: prefill, then cycles until a stop rule holds; and the stock generate as a second baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from eagle_repro.engine.attention import attention_of
from eagle_repro.engine.cycle import State, cycle, no_mark
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.prefill import draw_noise, prefill, raise_non_finite
from eagle_repro.engine.request import Cycle, Generation, NonFiniteLogits, Request, Text
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import read_span
from eagle_repro.engine.target import Target

__all__ = ["Cycle", "Generation", "NonFiniteLogits", "Request", "run"]


@torch.inference_mode()
def run(
    target: Target,
    head: Eagle3Head | None,
    request: Request,
    clock: Callable[[], float] = time.perf_counter,
) -> Generation:
    """Carry out a request. clock: seconds, read after the device has finished. Raises ValueError, NonFiniteLogits."""
    request.check(target, head)
    if request.method == "hf":
        return _stock(target, request, clock)
    if request.method == "plain":
        head = None
    shape = request.shape if head is not None else None
    start = clock()
    state, first = prefill(target, head, request, shape)
    text = Text(request, target.eos_ids)
    text.extend([first])
    prefilled = clock()
    cycles = []
    while text.stop_reason is None:
        cycles.append(_one_cycle(target, head, state, shape, request, text, clock))
    return Generation(text.ids, text.stop_reason, cycles, prefilled - start, clock() - prefilled)


def _one_cycle(
    target: Target,
    head: Eagle3Head | None,
    state: State,
    shape: TreeShape | None,
    request: Request,
    text: Text,
    clock: Callable[[], float],
) -> Cycle:
    context = len(request.prompt) + len(text.ids) - 1  # the newest token is the root and not committed yet
    draw_noise(state, request.sampling, context)
    phases = _Phases(clock) if request.instrument else None
    span = read_span(context, shape.slots if shape else 2)
    tree, accepted = cycle(target, head, state, shape, span, request.sampling, phases.mark if phases else no_mark)
    # The one read-back of a cycle.
    finite, count, *emitted = torch.cat(
        (accepted.finite.unsqueeze(1), accepted.count.unsqueeze(1), accepted.emitted), dim=1
    )[0].tolist()
    if not finite:
        raise_non_finite(target)
    return Cycle(
        nodes=tree.tokens.shape[1],
        accepted=count,
        emitted=text.extend(emitted[: count + 1]),
        context=context,
        tree=tree.cpu() if request.record_trees else None,
        **(phases.seconds if phases else {}),
    )


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
