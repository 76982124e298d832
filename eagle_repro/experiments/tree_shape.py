"""03_tree_shape: which tree, and what does depth cost?

tau of every shape comes from a replay of what the head drafts along plain decoding's text; what a cycle of any shape
costs comes from curves measured at a few. Together they predict every shape's speedup and pick the best one. Then the
picks, the article's shapes and, on a GPU, every point of the sweeps are measured end to end, in turns with plain
decoding and with method="adaptive", which picks a tree anew for every cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_repro.api import Pair
from eagle_repro.experiments.compared import alternated, write_compared
from eagle_repro.experiments.cycle_costs import cost_rows, reference_times
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.recordings import look_ahead, record
from eagle_repro.experiments.rows import Item, Way, tree_key
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.experiments.shape_points import (
    POINTS,
    cost_shapes,
    cost_tokens,
    depth_of,
    grid,
    measured_points,
    pick_points,
    sweep_points,
    widths_of,
)
from eagle_repro.experiments.speedup import read_items
from eagle_repro.measure import tree_shape
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.curves import REFERENCE_DIVISORS, Curves, Prediction, rank, read_curves, reference_pick
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.measure.replay import Recording
from eagle_repro.sources.questions import SETS

Row = dict[str, Any]
LISTED = 10  # shapes of the ranking that the record keeps


def measure(session: Session, progress: Progress = silent) -> Record:
    """Record, time, pick and measure; what an earlier session has written is not done again.

    Raises NonFiniteLogits, and ValueError before any run for a prompt that does not fit max_length with its answer and
    the deepest tree's look-ahead.
    """
    if session.records_from:
        return session.record()
    protocol, pair = session.protocol, session.pair
    items = read_prompts(protocol, pair)
    with session.writer() as writer:
        for _ in progress(_record(writer, pair, protocol, items), "recordings", len(items) * len(widths_of(protocol))):
            pass
        for _ in progress(_time_phases(writer, pair, protocol, items), "costs", None):
            pass
        _pick(writer, pair, protocol, session.partial_rows())
        _measure_points(writer, pair, protocol, items, session.partial_rows(), progress)
        writer.complete(clocks_after=clocks(pair.device))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """Predicted beside measured for every measured shape and set, on a pair that is loaded already."""
    return tree_shape.comparison(measure(Session("03_tree_shape", replace(protocol, out=str(out)), pair)))


def read_prompts(protocol: Protocol, pair: Pair) -> list[Item]:
    """The questions; raises ValueError for one that leaves no room for its answer and the look-ahead."""
    longest = protocol.new_tokens + look_ahead(depth_of(protocol))
    return read_items(replace(protocol, new_tokens=longest), pair)


def best_shapes(protocol: Protocol, recordings: Sequence[Recording], curves: Curves) -> list[Prediction]:
    """Shapes of the grid that the curves reach, the fastest first on the recorded questions together."""
    shapes = [shape for shape in grid(protocol) if curves.covers(shape)]
    return rank(recordings, curves, shapes, protocol.new_tokens)


def in_domain(rows: Sequence[Row]) -> list[Recording]:
    """The recordings of in-domain questions among a record's rows; all of them, where none is in domain."""
    recorded = [row for row in rows if row.get("what") == "recording"]
    near = [row for row in recorded if row["domain"] == "in"] or recorded
    return [each for of_question in tree_shape.read_recordings(near).values() for each in of_question]


def recording_rows(pair: Pair, item: Item, protocol: Protocol, widths: Sequence[int]) -> Iterator[tuple[str, Row]]:
    """Key and row of one question's recordings."""
    for recording in record(pair, item, widths, depth_of(protocol), protocol.new_tokens):
        row: Row = {"what": "recording", "set": item.set, "domain": SETS[item.set].domain, "question": item.question}
        row |= {"top_k": recording.top_k, "depth": recording.depth, "ranks": recording.ranks}
        row |= {"tokens": protocol.new_tokens, "prompt_tokens": len(item.prompt)}
        yield _recording_key(item, recording.top_k), row


def _record(writer: RecordWriter, pair: Pair, protocol: Protocol, items: Sequence[Item]) -> Iterator[None]:
    for item in items:
        left = [top_k for top_k in widths_of(protocol) if not writer.has(_recording_key(item, top_k))]
        for key, row in recording_rows(pair, item, protocol, left) if left else ():
            writer.write(key, row)
            yield


def _time_phases(writer: RecordWriter, pair: Pair, protocol: Protocol, items: Sequence[Item]) -> Iterator[None]:
    points = POINTS[protocol.profile]
    shapes = cost_shapes(protocol, pair.head.config.draft_vocabulary)
    amount = {"cycles": points.cycles, "rounds": points.rounds, "tokens": cost_tokens(protocol)}
    for key, row in cost_rows(pair, items, shapes, **amount, has=writer.has):
        writer.write(key, row)
        yield


def _pick(writer: RecordWriter, pair: Pair, protocol: Protocol, rows: Sequence[Row]) -> None:
    """What the reference's rule and the cost model choose, and with that the points of all sweeps."""
    key = "autopick/reference"
    if not writer.has(key):
        times = reference_times(pair, list(REFERENCE_DIVISORS), POINTS[protocol.profile].reference_passes)
        nodes = reference_pick(times)
        named = {str(count): seconds for count, seconds in times.items()}
        writer.write(key, {"what": "autopick", "rule": "reference", "times": named, "nodes": nodes})
    else:
        nodes = next(row["nodes"] for row in rows if row["key"] == key)
    ranking = best_shapes(protocol, in_domain(rows), read_curves(rows))
    if not writer.has("autopick/cost model"):
        writer.write("autopick/cost model", model_row(ranking, rows))
    for number, row in enumerate([*sweep_points(protocol), *pick_points(protocol, nodes, ranking)]):
        if not writer.has(f"point/{number}"):
            writer.write(f"point/{number}", row)


def model_row(ranking: Sequence[Prediction], rows: Sequence[Row]) -> Row:
    best = ranking[0]
    listed = [[*each.shape, each.tau, each.speedup] for each in ranking[:LISTED]]
    return {
        "what": "autopick",
        "rule": "cost model",
        **best.shape._asdict(),
        "predicted_speedup": best.speedup,
        "predicted_tau": best.tau,
        "set": "all in-domain" if any(row.get("domain") == "in" for row in rows) else "all",
        "ranking": listed,
    }


def _measure_points(
    writer: RecordWriter,
    pair: Pair,
    protocol: Protocol,
    items: Sequence[Item],
    known: Sequence[Row],
    progress: Progress,
) -> None:
    """The chosen points end to end on the first questions of each set, in turns with plain decoding and "adaptive"."""
    points = [row for row in known if row.get("what") == "point"]
    chosen = measured_points(points, every=POINTS[protocol.profile].every)
    ways = [Way("plain"), *(Way("eagle", tree_key(shape), shape) for shape in chosen), Way("adaptive")]
    first = [item for name in protocol.sets for item in _of(items, name)[: protocol.sweep_questions]]

    def label(way: Way) -> Row:
        of = chosen[way.shape] if way.shape else {"sweep": way.method, "clipped": False}
        return {"what": "shape", "sweep": of["sweep"], "clipped": of["clipped"]}

    runs = alternated(writer, pair, protocol, ways, first)
    total = len(ways) * len(first) * protocol.repeats
    write_compared(writer, pair, ways, first, progress(runs, "shapes", total), known, label)


def _of(items: Sequence[Item], name: str) -> list[Item]:
    return [item for item in items if item.set == name]


def _recording_key(item: Item, top_k: int) -> str:
    return f"recording/{item.set}/{item.question}/{top_k}"
