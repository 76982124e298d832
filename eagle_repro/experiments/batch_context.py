"""09_batch_context: what happens at batch > 1 and at long contexts?

Two axes, each alone. Texts side by side: the same pool of questions is written in batches of 1, 2, 4, ..., every row to
equally many tokens. Long contexts: the same questions, each behind more and more text of other questions. A pair with
random weights in a published shape is timed along both, where a text says nothing and the tau from which a cycle pays
is all there is to learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch

from eagle_repro.api import Pair, generate
from eagle_repro.engine.generate import Generation
from eagle_repro.engine.request import NonFiniteLogits
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.long_prompts import in_domain, lengthened, meaningless, pooled, require_room
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.published import of_a_gpu
from eagle_repro.experiments.rows import WARM_UP_TOKENS, Item, Row, Way, reason_of, text_digest, tree_key
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.experiments.stack_costs import tree_fields
from eagle_repro.experiments.target_size import SMALL_SHAPES
from eagle_repro.experiments.timing_pairs import free_memory, random_pair, timed_dtype
from eagle_repro.experiments.watched import watch
from eagle_repro.measure import scaling
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.measure.timing import TimedRun, alternate
from eagle_repro.sources.pairs import SHAPES, PairShape

NAME = "09_batch_context"
CONTEXT = 320  # committed tokens of the timing-only pair along the axis of batches
Batch = list[Item]


@dataclass(frozen=True)
class Plan:
    """Points of both axes and how much is written at each.

    pool: questions along the axis of batches, of prompts up to `longest` tokens; asked: questions along the axis of
    contexts; tokens: of an answer, no more than the protocol's; shape: of the timing-only pair, `cycles` a point.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    trees: tuple[tuple[int, int, int], ...]
    pool: int
    longest: int
    asked: int
    tokens: int
    shape: PairShape
    cycles: int


TREES = ((60, 7, 10), (16, 3, 4))
CONTEXTS = (300, 1000, 2000, 4000, 8000, 16_000)
SMALL, PUBLISHED = SMALL_SHAPES[0], SHAPES["qwen3-1.7b"]
PLANS = {
    "smoke": Plan((1, 2), (100, 300), TREES[1:], pool=2, longest=100, asked=1, tokens=8, shape=SMALL, cycles=2),
    "quick": Plan((1, 2), (100, 300), TREES[1:], pool=2, longest=100, asked=2, tokens=12, shape=SMALL, cycles=2),
    "full": Plan((1, 2, 4, 8, 16, 32, 64), CONTEXTS, TREES, pool=128, longest=256, asked=8, tokens=96,
                 shape=PUBLISHED, cycles=40),
    "t4": Plan((1, 2, 4, 8, 16), CONTEXTS[:4], TREES, pool=16, longest=256, asked=4, tokens=64,
               shape=PUBLISHED, cycles=20),
}  # fmt: skip


def measure(session: Session, progress: Progress = silent) -> Record:
    """Write texts along both axes and time the timing-only pair along them; what is there already is not done again.

    What does not fit the card, or lies beyond what the target was made for, is a row that says why. Raises
    NonFiniteLogits, and ValueError before any run where no question is short enough.
    """
    if session.records_from:
        return session.record()
    protocol, plan = session.protocol, PLANS[session.protocol.profile]
    pair = session.pair
    require_room(pair.max_length, plan.longest, min(protocol.new_tokens, plan.tokens))
    with session.writer() as writer:
        for along in (_along_batches, _along_contexts):
            along(writer, replace(pair), protocol, plan, progress)  # its buffers and graphs go with it
            free_memory()
        device, stack = pair.device, pair.stack
        for _ in progress(_time_shape(writer, plan, device, stack), plan.shape.name, None):
            pass
        writer.complete(clocks_after=clocks(device))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """tau, speedup and tokens a second along both axes, measured on a pair that is loaded already."""
    return scaling.points(measure(Session(NAME, replace(protocol, out=str(out)), pair)))


def measured_far(record: Record) -> Record:
    """The record to show: this one, or where it is of a CPU, a published one of more points (of_a_gpu)."""
    return of_a_gpu(record, lambda each: len(scaling.points(each)))


def _along_batches(writer: RecordWriter, pair: Pair, protocol: Protocol, plan: Plan, progress: Progress) -> None:
    asked = pooled(pair.tokenizer, in_domain(protocol.sets), plan.pool, plan.longest, thinking=protocol.thinking)
    largest = max(size for size in plan.batches if size <= len(asked))
    items = asked[: len(asked) // largest * largest]  # whole batches at every size, so the same questions
    for size in plan.batches:
        if size > largest:
            reason = f"{len(asked)} questions of at most {plan.longest} tokens are fewer than {size}"
            _skip(writer, "batch", size, pair.name, reason)
            continue
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        if not _write_point(writer, pair, protocol, plan, "batch", size, batches, progress):
            return  # a larger batch does not fit either


def _along_contexts(writer: RecordWriter, pair: Pair, protocol: Protocol, plan: Plan, progress: Progress) -> None:
    asked = pooled(pair.tokenizer, in_domain(protocol.sets), plan.asked, min(plan.contexts), thinking=protocol.thinking)
    tokens = min(protocol.new_tokens, plan.tokens)
    reach = int(getattr(pair.target.model.config, "max_position_embeddings", max(plan.contexts)))
    roomy = replace(pair, max_length=max(pair.max_length, max(plan.contexts) + tokens))
    for length in plan.contexts:
        if length + tokens > reach:
            reason = f"{length} tokens and an answer are beyond the {reach} positions of {pair.name}"
            _skip(writer, "context", length, pair.name, reason)
            continue
        batches = [[item] for item in lengthened(pair.tokenizer, asked, length)]
        if not _write_point(writer, roomy, protocol, plan, "context", length, batches, progress):
            return


def _write_point(
    writer: RecordWriter, pair: Pair, protocol: Protocol, plan: Plan, axis: str, value: int, batches: list[Batch],
    progress: Progress,
) -> bool:  # fmt: skip
    """Every batch plainly and with each tree, in turns; False where the card's memory is too small for that."""
    tokens = min(protocol.new_tokens, plan.tokens)
    ways = {way.name: way for way in _ways(plan)}

    def key(method: str, place: int) -> str:
        return f"{axis}/{value}/{method}/{place}"

    def texts(way: Way, batch: Batch, count: int) -> list[Generation]:
        prompts = [item.prompt for item in batch]
        return generate(pair, prompts, method=way.method, shape=way.shape, max_new_tokens=count, stop="never")

    methods = {name: (lambda batch, way=way: texts(way, batch, tokens)) for name, way in ways.items()}
    if all(writer.has(key(name, place)) for name in ways for place in range(len(batches))):
        return True
    try:
        for way in ways.values():
            texts(way, batches[0], WARM_UP_TOKENS)
        runs = alternate(
            methods, batches, device=pair.device, warmup=0, skip=lambda name, place, _: writer.has(key(name, place))
        )
        for done in progress(runs, f"{axis} {value}", len(ways) * len(batches)):
            row = _row(ways[done.method], batches[done.item], done)
            writer.write(key(done.method, done.item), {"what": axis, "value": value, "place": done.item} | row)
    except torch.OutOfMemoryError as error:
        _skip(writer, axis, value, pair.name, reason_of(error))
        return False
    return True


def _ways(plan: Plan) -> list[Way]:
    trees = [TreeShape(*tree) for tree in plan.trees]
    return [Way("plain"), *(Way("eagle", tree_key(tree), tree) for tree in trees)]


def _row(way: Way, batch: Batch, done: TimedRun[list[Generation]]) -> Row:
    """A batch as a row. decode_s: until its last row has ended; emitted, cycles: of every row, the last cycle uncut."""
    texts = done.result
    drafted = way.shape is not None
    return {
        "method": way.method,
        **tree_fields(way.shape),
        "order": done.order,
        "questions": [f"{item.set}/{item.question}" for item in batch],
        "prompt_tokens": [len(item.prompt) for item in batch],
        "tokens": sum(len(text.ids) for text in texts),
        "prefill_s": texts[0].prefill_s,
        "capture_s": texts[0].capture_s,
        "decode_s": max(text.decode_s for text in texts),
        "emitted": [sum(cycle.accepted + 1 for cycle in text.cycles) for text in texts] if drafted else None,
        "cycles": [len(text.cycles) for text in texts] if drafted else None,
        "ids_sha256": [text_digest(text.ids) for text in texts],
    }


def _time_shape(writer: RecordWriter, plan: Plan, device: str, stack: str) -> Iterator[None]:
    """Steps and cycles of the timing-only pair along both axes."""
    places = [("batch", size, size, CONTEXT) for size in plan.batches]
    places += [("context", length, 1, length) for length in plan.contexts]
    steps = [None, *(TreeShape(*tree) for tree in plan.trees)]
    left = [(place, step) for place in places for step in steps if not writer.has(_timing_key(plan, place, step))]
    if not left:
        return
    try:
        made = random_pair(plan.shape, device, timed_dtype(device), stack=stack)
    except RuntimeError as error:  # torch's own out-of-memory error is one, too
        _skip(writer, "timing", 0, plan.shape.name, reason_of(error))
        return
    tokens = plan.cycles + 2  # one text is enough: nothing is accepted, and its ends are not watched
    pair = replace(made, max_length=max(made.max_length, max(plan.contexts) + tokens))
    for place, step in left:
        axis, value, size, context = place
        prompts = [meaningless(pair.target.vocabulary, context - tokens // 2)] * size
        try:
            found, ready = watch(pair, step, [prompts], tokens, plan.cycles)
        except (NonFiniteLogits, torch.OutOfMemoryError) as error:
            _skip(writer, axis, value, pair.name, reason_of(error))
            continue
        row = {"what": "timing", "axis": axis, "value": value, "pair": pair.name, "dtype": pair.dtype}
        row |= tree_fields(step)
        writer.write(_timing_key(plan, place, step), row | found | ready)
        yield
    del pair, made
    free_memory()


def _timing_key(plan: Plan, place: tuple[str, int, int, int], step: TreeShape | None) -> str:
    axis, value, *_ = place
    return f"timing/{plan.shape.name}/{axis}/{value}/{tree_key(step) if step else 'plain'}"


def _skip(writer: RecordWriter, axis: str, value: int, pair: str, reason: str) -> None:
    key = f"skipped/{axis}/{value}/{pair}"
    if not writer.has(key):
        writer.write(key, {"what": "skipped", "axis": axis, "value": value, "pair": pair, "reason": reason})
