"""05_target_size: does a larger target help?

Two questions. With trained pairs of two sizes, tau and speedup are measured on the same questions. And with
timing-only pairs of published shapes (random weights), a step and a cycle are timed where no card of one's own holds a
trained pair, or none can be had: tau is then an assumption, which the summary states.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch

from eagle_repro.api import DTYPES, Pair
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.chain_vs_tree import TREES
from eagle_repro.experiments.compared import alternated, write_compared
from eagle_repro.experiments.cycle_costs import cost_rows
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import Item, Row, Way, write_text
from eagle_repro.experiments.session import Progress, Session, open_pair, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.experiments.timing_pairs import random_pair, require_memory
from eagle_repro.measure import sizes
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordError, RecordWriter, read_record
from eagle_repro.measure.roofline import weight_bytes
from eagle_repro.sources.pairs import SHAPES, PairShape
from eagle_repro.sources.paths import PACKAGE

NAME = "05_target_size"
#: The trained pair one size up, which is measured beside the first.
LARGER = {"qwen3-1.7b": "qwen3-4b", "qwen3-4b": "qwen3-8b"}
_LIKE_QWEN3 = {"tied": True, "head_dim": 64, "vocabulary": 16_384, "draft_vocabulary": 4_096}
#: Shapes for a machine without a GPU: of the same build, small enough for a CPU.
SMALL_SHAPES = (
    PairShape("toy-33m", hidden=512, layers=8, heads=8, kv_heads=4, mlp=1536, **_LIKE_QWEN3),
    PairShape("toy-96m", hidden=768, layers=14, heads=12, kv_heads=4, mlp=2304, **_LIKE_QWEN3),
)


@dataclass(frozen=True)
class Plan:
    """How much is measured. questions, tokens: of the trained pairs, None for the protocol's; trees, cycles, context:
    of the timing-only pairs, `cycles` of each tree a repeat, after `context` committed tokens."""

    shapes: Sequence[PairShape]
    trees: Sequence[tuple[int, int, int]]
    cycles: int
    context: int
    questions: int | None = None
    tokens: int | None = None


ARTICLE = ((60, 7, 10), (60, 2, 10), (16, 3, 4))
PUBLISHED = Plan(tuple(SHAPES.values()), ARTICLE, cycles=10, context=320)
PLANS = {
    "smoke": Plan(SMALL_SHAPES[:1], ((8, 3, 4),), cycles=2, context=8),
    "quick": Plan(SMALL_SHAPES, ((60, 7, 10), (16, 3, 4)), cycles=4, context=32, questions=1, tokens=24),
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
    device = session.pair.device
    with session.writer() as writer:
        known = session.partial_rows()
        for pair in _trained(session, writer):
            _write_pair(writer, pair, session.protocol, known, progress)
        _release(session)
        for _ in progress(_time_shapes(writer, session.protocol, device), "shapes", None):
            pass
        writer.complete(clocks_after=clocks(device))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """What steps and cycles of the timing-only shapes cost, and what follows, beside a pair that is loaded already."""
    return sizes.timing(measure(Session(NAME, replace(protocol, out=str(out)), pair)))


def timings(record: Record) -> Record:
    """The record whose timing-only pairs are to be shown: this one, or where it timed no published shape, the newest of
    those under results/ that did."""
    published = (PACKAGE.parent / "results").glob(f"*/{NAME}.jsonl")
    others = [found for found in map(_readable, sorted(published)) if found is not None]
    chosen = [each for each in (record, *others) if sizes.timed_shapes(each) & SHAPES.keys()]
    return chosen[0] if chosen else record


def _readable(path: Path) -> Record | None:
    try:
        record = read_record(path)
    except RecordError:
        return None
    return record if record.complete else None


def _trained(session: Session, writer: RecordWriter) -> Iterator[Pair]:
    """The session's pair, and the trained one a size up; one at a time."""
    yield session.pair
    name = LARGER.get(session.protocol.pair or "")
    if name is None or writer.has(f"skipped/{name}"):
        return
    device = session.pair.device
    _release(session)
    try:
        require_memory(SHAPES[name], device, DTYPES[session.pair.dtype])
        pair = open_pair(replace(session.protocol, pair=name))
    except (OSError, RuntimeError, ValueError) as error:
        writer.write(f"skipped/{name}", _skipped(name, error))
        return
    yield pair


def _write_pair(writer: RecordWriter, pair: Pair, protocol: Protocol, known: Sequence[Row], progress: Progress) -> None:
    """The sizes of a trained pair, and its texts."""
    key = f"pair/{pair.name}"
    if not writer.has(key):
        target, head = (pair.provenance[role]["parameters"] for role in ("target", "head"))
        row = {"what": "pair", "pair": pair.name, "target_parameters": target, "head_parameters": head}
        writer.write(key, row | {"head_share": head / target, "weight_bytes": weight_bytes(pair.target.model)})
    plan = PLANS[protocol.profile]
    fewer = replace(
        protocol,
        questions=min(protocol.questions, plan.questions or protocol.questions),
        new_tokens=min(protocol.new_tokens, plan.tokens or protocol.new_tokens),
    )
    items = read_items(fewer, pair)
    # The variant is the pair, so that the runs of two pairs have names of their own.
    ways = [Way("plain", pair.name), Way("eagle", pair.name, TreeShape(*TREES[protocol.profile]))]
    runs = alternated(writer, pair, fewer, ways, items)
    watched = progress(runs, pair.name, len(ways) * len(items) * protocol.repeats)
    write_compared(writer, pair, ways, items, watched, known, lambda way: {"what": "text", "pair": pair.name})


def _time_shapes(writer: RecordWriter, protocol: Protocol, device: str) -> Iterator[None]:
    """Step and cycle of every shape, the smallest first."""
    plan = PLANS[protocol.profile]
    dtype = torch.float32 if device == "cpu" else torch.float16
    trees = [TreeShape(*tree) for tree in plan.trees]
    for shape in plan.shapes:
        left = [
            (turn, tree)
            for turn in range(protocol.repeats)
            for tree in (trees if turn % 2 == 0 else trees[::-1])
            if not writer.has(f"timing/{shape.name}/{_label(tree)}/{turn}/cycle")
        ]
        if not left or writer.has(f"skipped/{shape.name}"):
            continue
        try:
            pair = random_pair(shape, device, dtype, max_length=plan.context + 4 * plan.cycles)
        except RuntimeError as error:  # torch's own out-of-memory error is one, too
            writer.write(f"skipped/{shape.name}", _skipped(shape.name, error))
            continue
        for turn, tree in left:
            for phase, row in _time_tree(pair, tree, plan):
                key = f"timing/{shape.name}/{_label(tree)}/{turn}/{phase}"
                if not writer.has(key):
                    writer.write(key, row | {"shape": shape.name, "repeat": turn} | _size(pair))
            yield
        del pair
        _empty_cache()


def _time_tree(pair: Pair, tree: TreeShape, plan: Plan) -> Iterator[tuple[str, Row]]:
    """Phase and row of a plain step, the phases of a cycle, and a cycle that is not interrupted to time them."""
    # Ids of no meaning: what a pass costs does not depend on them.
    prompt = [1 + place % (pair.target.vocabulary - 1) for place in range(plan.context)]
    item = Item("timing", "0", prompt)
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


def _label(tree: TreeShape) -> str:
    return f"{tree.total_tokens}-{tree.depth}-{tree.top_k}"


def _skipped(name: str, error: Exception) -> Row:
    return {"what": "skipped", "pair": name, "reason": str(error).strip().partition("\n")[0]}


def _release(session: Session) -> None:
    """Let go of the session's pair, unless it was handed in by the caller; it is loaded again where it is asked for."""
    if session.given is None:
        session.__dict__.pop("pair", None)
    _empty_cache()


def _empty_cache() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
