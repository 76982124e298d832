"""Which tree to use on this bench: the cost model's ranking without a record, for `python -m eagle_repro tune`."""

from __future__ import annotations

from dataclasses import dataclass

from eagle_repro.api import Pair
from eagle_repro.experiments.cycle_costs import cost_rows
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.session import Progress, silent
from eagle_repro.experiments.shape_points import POINTS, cost_shapes, cost_tokens, widths_of
from eagle_repro.experiments.tree_shape import Row, best_shapes, read_prompts, recording_rows
from eagle_repro.measure.curves import Curves, Prediction, read_curves
from eagle_repro.measure.tree_shape import read_recordings


@dataclass(frozen=True)
class Tuning:
    """Trees by predicted speedup, the fastest first, and the curves behind it."""

    ranking: list[Prediction]
    curves: Curves


def tune(pair: Pair, protocol: Protocol, progress: Progress = silent) -> Tuning:
    """Record the questions of all sets of the protocol, time cycles, and rank the trees of the grid for them together.

    Raises ValueError, before anything runs, for a prompt that does not fit max_length.
    """
    items, points = read_prompts(protocol, pair), POINTS[protocol.profile]
    rows: list[Row] = []
    for item in progress(items, "recordings", len(items)):
        rows += [row for _, row in recording_rows(pair, item, protocol, widths_of(protocol))]
    shapes = cost_shapes(protocol, pair.head.config.draft_vocabulary)
    costs = cost_rows(pair, items, shapes, cycles=points.cycles, rounds=points.rounds, tokens=cost_tokens(protocol))
    total = (3 * len(shapes) + 1) * points.rounds
    rows += [row for _, row in progress(costs, "costs", total)]
    recordings = [each for of_question in read_recordings(rows).values() for each in of_question]
    curves = read_curves(rows)
    return Tuning(best_shapes(protocol, recordings, curves), curves)
