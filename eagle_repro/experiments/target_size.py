"""05_target_size: does a larger target help?

Two questions. With trained pairs of two sizes, tau and speedup are measured on the same questions. And with
timing-only pairs of published shapes (random weights), a step and a cycle are timed where no card of one's own holds a
trained pair, or none can be had: tau is then an assumption, which the summary states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from eagle_repro.api import Pair
from eagle_repro.engine.devices import resolve_device, resolve_dtype
from eagle_repro.engine.request import NonFiniteLogits
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.chain_vs_tree import TREES
from eagle_repro.experiments.compared import alternated, write_compared
from eagle_repro.experiments.cycle_costs import cost_rows
from eagle_repro.experiments.long_prompts import meaningless
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.published import published
from eagle_repro.experiments.rows import Item, Row, Way, reason_of, tree_key, write_text
from eagle_repro.experiments.session import Progress, Session, open_pair, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.experiments.timing_pairs import free_memory, random_pair, require_memory, timed_dtype
from eagle_repro.measure import sizes
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.measure.roofline import weight_bytes
from eagle_repro.sources.pairs import SHAPES, PairShape

NAME = "05_target_size"
#: The trained pair one size up, which is measured beside the first.
LARGER = {"qwen3-1.7b": "qwen3-4b", "qwen3-4b": "qwen3-8b"}
_LIKE_QWEN3: dict[str, Any] = {"tied": True, "head_dim": 64, "vocabulary": 16_384, "draft_vocabulary": 4_096}
#: Shapes for a machine without a GPU: of the same build, small enough for a CPU.
SMALL_SHAPES = (
    PairShape("toy-34m", hidden=512, layers=8, heads=8, kv_heads=4, mlp=1536, **_LIKE_QWEN3),
    PairShape("toy-109m", hidden=768, layers=14, heads=12, kv_heads=4, mlp=2304, **_LIKE_QWEN3),
)


@dataclass(frozen=True)
class Plan:
    """How the timing-only pairs are timed: `cycles` of each tree a repeat, after `context` committed tokens."""

    shapes: Sequence[PairShape]
    trees: Sequence[tuple[int, int, int]]
    cycles: int
    context: int


#: Of each set, where there is no second pair to compare with: then this is about sizes, and 02 has the speedups.
LONE_QUESTIONS, LONE_TOKENS = 1, 16
ARTICLE = ((60, 7, 10), (60, 2, 10), (16, 3, 4))
PUBLISHED = Plan(tuple(SHAPES.values()), ARTICLE, cycles=10, context=320)
PLANS = {
    "smoke": Plan(SMALL_SHAPES[:1], ((8, 3, 4),), cycles=2, context=8),
    "quick": Plan(SMALL_SHAPES, ((60, 7, 10), (16, 3, 4)), cycles=3, context=16),
    "full": PUBLISHED,
    "t4": PUBLISHED,
}


def measure(session: Session, progress: Progress = silent) -> Record:
    """Measure the trained pairs, then time the shapes, each loaded, measured and freed before the next.

    What does not fit the card, or cannot be had, is a row that says why. What an earlier session has written is not
    done again.
    """
    if session.records_from:
        return session.record()
    protocol, device, stack = session.protocol, session.pair.device, session.pair.stack
    with session.writer() as writer:
        known = session.partial_rows()
        _write_pair(writer, session.pair, protocol, known, progress)
        session.release()
        if (name := LARGER.get(protocol.pair or "")) and not writer.has(f"skipped/{name}"):
            _write_larger(writer, name, protocol, known, progress)
        for _ in progress(_time_shapes(writer, protocol, device, stack), "shapes", None):
            pass
        writer.complete(clocks_after=clocks(device))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """What steps and cycles of the timing-only shapes cost, and what follows, beside a pair that is loaded already."""
    return sizes.timing(measure(Session(NAME, replace(protocol, out=str(out)), pair)))


def timings(record: Record) -> Record:
    """The record whose timing-only pairs are to be shown: this one, or where it timed no published shape, the one under
    results/ that timed the most of them."""

    def held(each: Record) -> int:
        return len(sizes.timed_shapes(each) & SHAPES.keys())

    return record if held(record) else max([record, *published(NAME)], key=held)


def _write_larger(
    writer: RecordWriter, name: str, protocol: Protocol, known: Sequence[Row], progress: Progress
) -> None:
    """The trained pair a size up, or why it is not there."""
    try:
        device = resolve_device(protocol.device)
        require_memory(SHAPES[name], str(device), resolve_dtype(protocol.dtype, device))
        pair = open_pair(replace(protocol, pair=name))
    except (OSError, RuntimeError, ValueError) as error:
        writer.write(f"skipped/{name}", _skipped(name, error))
        return
    try:
        _write_pair(writer, pair, protocol, known, progress)
    except (NonFiniteLogits, torch.OutOfMemoryError) as error:
        writer.write(f"skipped/{name}", _skipped(name, error))
    del pair
    free_memory()


def _write_pair(writer: RecordWriter, pair: Pair, protocol: Protocol, known: Sequence[Row], progress: Progress) -> None:
    """The sizes of a trained pair, and its texts."""
    key = f"pair/{pair.name}"
    if not writer.has(key):
        target, head = (pair.provenance[role]["parameters"] for role in ("target", "head"))
        row = {"what": "pair", "pair": pair.name, "target_parameters": target, "head_parameters": head}
        writer.write(key, row | {"head_share": head / target, "weight_bytes": weight_bytes(pair.target.model)})
    chosen = replace(protocol, repeats=1)  # what varies are the questions
    if pair.name not in {*LARGER, *LARGER.values()}:
        few, short = min(protocol.questions, LONE_QUESTIONS), min(protocol.new_tokens, LONE_TOKENS)
        chosen = replace(chosen, questions=few, new_tokens=short)
    items = read_items(chosen, pair)
    # The variant is the pair, so that the runs of two pairs have names of their own.
    ways = [Way("plain", pair.name), Way("eagle", pair.name, TreeShape(*TREES[protocol.profile]))]
    runs = alternated(writer, pair, chosen, ways, items)
    watched = progress(runs, pair.name, len(ways) * len(items))
    write_compared(writer, pair, ways, items, watched, known, lambda way: {"what": "text", "pair": pair.name})


def _time_shapes(writer: RecordWriter, protocol: Protocol, device: str, stack: str) -> Iterator[None]:
    """Step and cycle of every shape, the smallest first."""
    plan = PLANS[protocol.profile]
    trees = [TreeShape(*tree) for tree in plan.trees]
    for shape in plan.shapes:
        left = [
            (turn, tree)
            for turn in range(protocol.repeats)
            for tree in (trees if turn % 2 == 0 else trees[::-1])
            if not writer.has(f"timing/{shape.name}/{tree_key(tree)}/{turn}/cycle")
        ]
        if not left or writer.has(f"skipped/{shape.name}"):
            continue
        try:
            pair = random_pair(shape, device, timed_dtype(device), stack=stack)
        except RuntimeError as error:  # torch's own out-of-memory error is one, too
            writer.write(f"skipped/{shape.name}", _skipped(shape.name, error))
            continue
        try:
            for turn, tree in left:
                for phase, row in _time_tree(pair, tree, plan):
                    key = f"timing/{shape.name}/{tree_key(tree)}/{turn}/{phase}"
                    if not writer.has(key):
                        writer.write(key, row | {"shape": shape.name, "repeat": turn} | _size(pair))
                yield
        except (NonFiniteLogits, torch.OutOfMemoryError) as error:
            writer.write(f"skipped/{shape.name}", _skipped(shape.name, error))
        del pair
        free_memory()


def _time_tree(pair: Pair, tree: TreeShape, plan: Plan) -> Iterator[tuple[str, Row]]:
    """Phase and row of a plain step, the phases of a cycle, and a cycle that is not interrupted to time them."""
    item = Item("timing", "0", meaningless(pair.target.vocabulary, plan.context))
    named = {"what": "timing", "depth": tree.depth, "top_k": tree.top_k}
    for _, row in cost_rows(pair, [item], [tree], cycles=plan.cycles, rounds=1):
        yield row["phase"], row | named | {"nodes": 1 if row["phase"] == "plain" else tree.total_tokens}
    done = write_text(pair, Way("eagle", "-", tree), item, 1 + plan.cycles)
    row = {"phase": "cycle", "nodes": tree.total_tokens, "seconds": done.decode_s / len(done.cycles)}
    yield "cycle", row | named | {"cycles": len(done.cycles), "context": plan.context}


def _size(pair: Pair) -> Row:
    head = list(pair.head.parameters())
    return {
        "dtype": pair.dtype,
        "weight_bytes": weight_bytes(pair.target.model),
        "target_parameters": sum(p.numel() for p in pair.target.model.parameters()),
        "head_parameters": sum(p.numel() for p in head),
    }


def _skipped(name: str, error: Exception) -> Row:
    return {"what": "skipped", "pair": name, "reason": reason_of(error)}
