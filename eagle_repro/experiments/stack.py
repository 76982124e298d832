"""08_stack: how much is the stack?

One pair is loaded for each way of launching a cycle that the device has, one after another: what a plain step and a
cycle cost there, taken apart, and what speculation gives beyond plain decoding on the same stack. A pair with random
weights in a published shape is timed beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch

from eagle_repro.api import Pair
from eagle_repro.engine.request import NonFiniteLogits
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.compared import alternated, write_compared
from eagle_repro.experiments.long_prompts import in_domain, require_room
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.published import of_a_gpu, published
from eagle_repro.experiments.roofline import BUFFER_BYTES
from eagle_repro.experiments.rows import Row, Way, reason_of, shape_of
from eagle_repro.experiments.session import Progress, Session, open_pair, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.experiments.stack_costs import Watching, prompts_of, stack_rows, stacks_of
from eagle_repro.experiments.target_size import SMALL_SHAPES
from eagle_repro.experiments.timing_pairs import free_memory, random_pair, timed_dtype
from eagle_repro.measure import stacks
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordError, RecordWriter, completeness, read_record
from eagle_repro.measure.roofline import card_of, measured_bandwidth
from eagle_repro.sources.pairs import SHAPES, PairShape

NAME, SHAPES_RECORD = "08_stack", "03_tree_shape"
FEWER_ON_EAGER = 4  # times fewer cycles, in shorter texts, are timed on a GPU's eager stack: they take so much longer


@dataclass(frozen=True)
class Plan:
    """trees: timed beside those that texts are written with; shape: of the timing-only pair; tokens: of an answer, no
    more than the protocol's."""

    trees: tuple[tuple[int, int, int], ...]
    shape: PairShape
    watching: Watching
    tokens: int = 192


PUBLISHED = SHAPES["qwen3-1.7b"]
PLANS = {
    "smoke": Plan((), SMALL_SHAPES[0], Watching(cycles=2, turns=1, context=132, tokens=8), tokens=16),
    "quick": Plan((), SMALL_SHAPES[0], Watching(cycles=4, turns=1, context=160, tokens=8), tokens=24),
    "full": Plan(((60, 2, 10),), PUBLISHED, Watching(cycles=100, turns=2, context=320, tokens=64)),
    "t4": Plan(((60, 2, 10),), PUBLISHED, Watching(cycles=50, turns=2, context=320, tokens=64)),
}


def measure(session: Session, progress: Progress = silent) -> Record:
    """Time cycles and write texts on every stack of the device; what an earlier session has done is not done again.

    Of each set the questions that the protocol gives to sweeps (sweep_questions), once. Raises NonFiniteLogits, and
    ValueError before any run for a prompt that does not fit max_length.
    """
    if session.records_from:
        return session.record()
    protocol = session.protocol
    watching = PLANS[protocol.profile].watching
    require_room(session.pair.max_length, watching.prompt, watching.tokens)
    read_items(_chosen(protocol), session.pair)  # raises before anything runs
    with session.writer() as writer:
        known, device = session.partial_rows(), session.pair.device
        trees = trees_of(session)
        for stack in stacks_of(device, split=session.pair.target.split):
            _measure_pair(writer, _opened(session, stack), protocol, trees, known, progress)
            _time_shape(writer, protocol, device, stack, list(trees.values()), progress)
        card = card_of(device)
        writer.complete(
            bandwidth_gb_s=measured_bandwidth(device, buffer_bytes=BUFFER_BYTES.get(protocol.profile, 2**30)),
            peak_gb_s=card.bandwidth_gbs if card else None,
            clocks_after=clocks(device),
        )
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """What steps and cycles cost on every stack, measured on a pair that is loaded already."""
    return stacks.costs(measure(Session(NAME, replace(protocol, out=str(out)), pair)))


def compared(record: Record) -> Record:
    """The record that compares stacks: this one, or where it is of a CPU, a published one of more (of_a_gpu)."""
    return of_a_gpu(record, lambda each: len(stacks.names(each)))


def trees_of(session: Session) -> dict[str, TreeShape]:
    """The trees that texts are written with, by name: those of 02_speedup, and the picked one where there is one."""
    picked = picked_tree(session)
    return session.protocol.trees | ({"picked": picked} if picked else {})


def picked_tree(session: Session) -> TreeShape | None:
    """The tree that 03_tree_shape's cost model chose for this pair on this card: here, or in a published record.

    A session that goes on keeps the tree that its texts were begun with: they all stand under the one name.
    """
    begun = [row for row in session.partial_rows() if row.get("tree") == "picked"]
    if begun:
        return shape_of(begun[0])
    own = session.out / f"{SHAPES_RECORD}.jsonl"
    records = [read_record(own)] if completeness(own) == "complete" else []
    here = session.bench()["card"]
    for record in (*records, *published(SHAPES_RECORD)[::-1]):
        bench = record.header["bench"]
        picks = [row for row in record.rows if row.get("key") == "autopick/cost model"]
        if picks and (bench.get("card"), (bench.get("pair") or {}).get("name")) == (here, session.pair.name):
            try:
                return shape_of(picks[0])
            except ValueError as error:
                raise RecordError(f"{record.path}: the tree that its cost model picked cannot be: {error}") from error
    return None


def _opened(session: Session, stack: str) -> Pair:
    """The session's pair on a stack; one that the session does not hold is loaded in its place."""
    if session.pair.stack == stack:
        return session.pair
    session.release()
    return open_pair(replace(session.protocol, stack=stack))


def _measure_pair(
    writer: RecordWriter,
    pair: Pair,
    protocol: Protocol,
    trees: dict[str, TreeShape],
    known: list[Row],
    progress: Progress,
) -> None:
    """Costs and texts of the trained pair on its stack."""
    plan = PLANS[protocol.profile]
    costs = _costs(writer, pair, in_domain(protocol.sets), list(trees.values()), plan)
    for _ in progress(costs, f"{pair.stack}, cycles", None):
        pass
    chosen = _chosen(protocol)
    items = read_items(chosen, pair)
    ways: dict[Way, str | None] = {Way("plain", pair.stack): None}
    ways |= {Way("eagle", f"{pair.stack} {name}", tree): name for name, tree in trees.items()}
    runs = alternated(writer, pair, chosen, list(ways), items)
    watched = progress(runs, f"{pair.stack}, texts", len(ways) * len(items))
    write_compared(
        writer, pair, list(ways), items, watched, known,
        lambda way: {"what": "text", "stack": pair.stack, "tree": ways[way]},
    )  # fmt: skip


def _chosen(protocol: Protocol) -> Protocol:
    """What texts are written by: a few questions of each set once, for what varies are the questions."""
    tokens = min(protocol.new_tokens, PLANS[protocol.profile].tokens)
    return replace(protocol, questions=protocol.sweep_questions, new_tokens=tokens, repeats=1)


def _time_shape(
    writer: RecordWriter, protocol: Protocol, device: str, stack: str, trees: list[TreeShape], progress: Progress
) -> None:
    """Costs of the timing-only pair on a stack; what does not fit is a row that says why."""
    plan = PLANS[protocol.profile]
    key = f"skipped/{plan.shape.name}/{stack}"
    if writer.has(key):
        return
    free_memory()
    try:
        pair = random_pair(plan.shape, device, timed_dtype(device), stack=stack)
    except RuntimeError as error:  # torch's own out-of-memory error is one, too
        writer.write(key, _skipped(plan.shape, stack, error))
        return
    try:
        for _ in progress(_costs(writer, pair, (), trees, plan), f"{stack}, {plan.shape.name}", None):
            pass
    except (NonFiniteLogits, torch.OutOfMemoryError) as error:
        writer.write(key, _skipped(plan.shape, stack, error))
    del pair
    free_memory()


def _skipped(shape: PairShape, stack: str, error: Exception) -> Row:
    return {"what": "skipped", "pair": shape.name, "stack": stack, "reason": reason_of(error)}


def _costs(writer: RecordWriter, pair: Pair, sets: Sequence[str], trees: list[TreeShape], plan: Plan) -> Iterator[None]:
    beside, watching = [TreeShape(*tree) for tree in plan.trees], plan.watching
    if pair.stack == "eager" and pair.target.device.type == "cuda":
        fewer = {name: -(-getattr(watching, name) // FEWER_ON_EAGER) for name in ("cycles", "tokens")}
        watching = replace(watching, **fewer)
    prompts = prompts_of(pair, sets, watching.prompt)
    for key, row in stack_rows(pair, prompts, [*trees, *beside], watching, writer.has):
        writer.write(key, row)
        yield
