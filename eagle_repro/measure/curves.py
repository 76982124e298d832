"""Measured cost curves, and what they say of tree shapes: tau by replay, speedup by the cost formula.

A cycle's cost has three parts that depend on different things: verifying on the nodes of the tree, drafting on its
depth and width, the rest on the nodes. Each is measured at a few points and joined by straight lines between them. A
shape beyond the measured points is refused, never guessed. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from eagle_repro.measure.cost import PhaseCosts
from eagle_repro.measure.cost import speedup as formula
from eagle_repro.measure.replay import Recording, replay
from eagle_repro.measure.stats import tau

#: The reference implementation's choice of total_tokens: it times a pass of so many tokens, and divides by so much
#: (SafeAILab/EAGLE, eagle/model/ea_model.py, from_pretrained with total_token=-1).
REFERENCE_DIVISORS = {40: 1.0, 48: 1.05, 50: 1.07, 56: 1.1, 60: 1.13}


class Shape(NamedTuple):
    """A tree: nodes in one verification pass, draft passes after the first, children per node."""

    total_tokens: int
    depth: int
    top_k: int


@dataclass(frozen=True)
class Line:
    """Measured points (at, seconds), joined by straight lines; `name` says what of, for errors."""

    name: str
    at: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.at, self.at[1:], strict=False))
        if not self.at or len(self.at) != len(self.seconds) or not rising:
            raise ValueError(f"{self.name}: points {self.at} with {len(self.seconds)} times: rising points are needed")

    def __call__(self, x: float) -> float:
        """Seconds at x. Raises ValueError outside the measured points."""
        if not self.at[0] <= x <= self.at[-1]:
            raise ValueError(
                f"{self.name} was measured from {self.at[0]:g} to {self.at[-1]:g}, and {x:g} was asked for"
            )
        return float(np.interp(x, self.at, self.seconds))


@dataclass(frozen=True)
class Curves:
    """What a bench's phases cost. plain: one plain token; verify, rest: of a cycle, by nodes; drafts: by width, the
    whole draft phase of a cycle by depth."""

    plain: float
    verify: Line
    rest: Line
    drafts: Mapping[int, Line]

    def draft(self, depth: float, top_k: float) -> float:
        """Seconds of drafting to this depth and width; between two measured widths by a straight line."""
        widths = sorted(self.drafts)
        if top_k in self.drafts:
            return self.drafts[int(top_k)](depth)
        return Line("t_draft by top_k", tuple(widths), tuple(self.drafts[width](depth) for width in widths))(top_k)

    def phases(self, shape: Shape) -> PhaseCosts:
        """The phases of a cycle of this shape. Raises ValueError for one beyond the measured points."""
        draft = self.draft(shape.depth, shape.top_k) / (shape.depth + 1)
        return PhaseCosts(self.verify(shape.total_tokens), draft, self.rest(shape.total_tokens))

    def cycle(self, shape: Shape) -> float:
        """Seconds of a cycle of this shape."""
        return self.verify(shape.total_tokens) + self.draft(shape.depth, shape.top_k) + self.rest(shape.total_tokens)

    def covers(self, shape: Shape) -> bool:
        """Whether the shape lies within the measured points."""
        try:
            self.cycle(shape)
        except ValueError:
            return False
        return True


@dataclass(frozen=True)
class Prediction:
    """What a shape is predicted to give: tau, speedup over plain decoding, seconds of a cycle."""

    shape: Shape
    tau: float
    speedup: float
    cycle_s: float


def read_curves(rows: Iterable[Mapping[str, Any]]) -> Curves:
    """The curves from a record's rows with what="cost": medians over repeats and over shapes with the same phase.

    Raises ValueError when a phase was not measured at all.
    """
    costs = pd.DataFrame([row for row in rows if row.get("what") == "cost"])
    phases = dict(list(costs.groupby("phase"))) if len(costs) else {}
    missing = [name for name in ("plain", "verify", "draft", "rest") if name not in phases]
    if missing:
        raise ValueError(f"no cost of {', '.join(missing)} was measured: the curves need plain, verify, draft and rest")
    drafts = phases["draft"].groupby("top_k")
    return Curves(
        plain=float(phases["plain"]["seconds"].median()),
        verify=_line("t_verify(nodes)", phases["verify"], "nodes"),
        rest=_line("t_rest(nodes)", phases["rest"], "nodes"),
        drafts={int(k): _line(f"t_draft(depth) at top_k={k:g}", part, "depth") for k, part in drafts},
    )


def tokens_a_cycle(counts: Sequence[Sequence[int]], new_tokens: int) -> float:
    """Tokens that a cycle brings within the budget: counts holds each question's accepted counts, cycle by cycle.

    The prefill's token is not a cycle's. tau itself counts the last cycle uncut, which at few new tokens is more than
    an equal-work run is given credit for.
    """
    return len(counts) * (new_tokens - 1) / sum(map(len, counts))


def predict(recordings: Iterable[Recording], curves: Curves, shape: Shape, new_tokens: int) -> Prediction:
    """What `shape` gives on the questions of these recordings, each written to new_tokens.

    tau is over all cycles, as a measured run has it; the speedup is that of equal work. Raises ValueError where no
    recording has this width, and for a shape that recordings or curves do not reach.
    """
    counts = [
        replay(each, shape.total_tokens, shape.depth, new_tokens) for each in recordings if each.top_k == shape.top_k
    ]
    if not counts:
        raise ValueError(f"no recording has top_k={shape.top_k}: record it before predicting {tuple(shape)}")
    speedup = formula(tokens_a_cycle(counts, new_tokens), curves.plain, curves.phases(shape), shape.depth)
    overall = tau([count for each in counts for count in each])
    return Prediction(shape, overall or 1.0, speedup, curves.cycle(shape))


def rank(recordings: Sequence[Recording], curves: Curves, shapes: Iterable[Shape], new_tokens: int) -> list[Prediction]:
    """Predictions for `shapes`, the fastest first; of equal ones the smaller tree. The questions count together.

    Raises ValueError for no shapes, and as `predict`.
    """
    found = [predict(recordings, curves, shape, new_tokens) for shape in shapes]
    if not found:
        raise ValueError("no shape was given to choose from")
    return sorted(found, key=lambda each: (-each.speedup, each.shape))


def reference_pick(times: Mapping[int, float]) -> int:
    """The reference implementation's total_tokens from the times of five passes; it leaves depth and top_k alone.

    times: seconds of a pass of 40, 48, 50, 56 and 60 tokens. Raises ValueError for other token counts.
    """
    if set(times) != set(REFERENCE_DIVISORS):
        raise ValueError(f"times of {sorted(times)} tokens were given: {list(REFERENCE_DIVISORS)} are needed")
    return min(REFERENCE_DIVISORS, key=lambda tokens: times[tokens] / REFERENCE_DIVISORS[tokens])


def batch_speedup(curves: Curves, tau: float, shape: Shape, batch: int) -> float:
    """Speedup of `batch` texts decoded side by side, from the curves of one.

    A pass over a batch is taken to cost what a pass of as many tokens costs for one text: batch x nodes to verify,
    batch x top_k to draft, batch to decode plainly. Reading several contexts is left out. Raises ValueError where such
    a pass was not measured.
    """
    plain = curves.plain if batch == 1 else curves.verify(batch)
    wide = Shape(batch * shape.total_tokens, shape.depth, batch * shape.top_k)
    return formula(tau, plain, curves.phases(wide), shape.depth)


def _line(name: str, rows: pd.DataFrame, by: str) -> Line:
    medians = rows.groupby(by)["seconds"].median().sort_index()
    return Line(name, tuple(map(float, medians.index)), tuple(map(float, medians)))
