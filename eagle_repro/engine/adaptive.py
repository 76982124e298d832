"""Which tree the next cycle drafts, if any: the one that is expected to give most tokens a second.

A cycle of a tree gives 1 + the sum over levels of the chance that the target agrees down to there. What a cycle takes
was measured beforehand, and a plain step is a choice like any other, so that a head that is of no use costs little more
than finding that out.

The chances are running estimates by level, one row of them for each size of tree. They come from what the head itself
thinks of its tree: a node's score is its path's log-probability, so that the scores of a level add up to the head's own
chance of getting there (what EAGLE-2, arXiv:2406.16858, prunes its trees by). That says something of every level in
every cycle, where what was accepted says yes or no to a few; how far the head is to be believed is learnt from that.
The numbers below were set by simulation: recordings of smollm2-135m on six question sets with the costs of a captured
stack on an H200 and of two CPU cores, and made-up heads (test_adaptive_simulated.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import mul

import numpy as np

from eagle_repro.engine.shape import TreeShape

#: Where nobody names candidates: small trees win where a pass costs by the token, wide ones where it does not.
CANDIDATES = (
    TreeShape(2, 0, 1), TreeShape(3, 1, 2), TreeShape(6, 2, 2), TreeShape(16, 3, 4), TreeShape(32, 1, 10),
    TreeShape(60, 2, 10), TreeShape(60, 3, 10), TreeShape(60, 4, 10), TreeShape(60, 5, 10),
)  # fmt: skip
HARDLY_MORE = 1.15  # times the seconds of a small tree, at most, of a larger one that stands for it
FIRST_GUESS, FIRST_PRIOR = 0.7, 0.5  # of the first level of the smallest tree; cycles that this counts like
PRIOR = 3.0  # cycles that a guess from the neighbours counts like
GROWTH = 0.1  # what a tree of n times the nodes still misses of what the smaller one misses: n ** -GROWTH of it
MEMORY, IDLE = 0.9, 0.98  # what a cycle still counts for a cycle later, and for a plain step later
TRUST = 3.0  # levels that the belief in the head's own chances counts like, before anything was accepted or not
FIRST_PROBE, LAST_PROBE = 6, 96  # plain steps before a tree is tried, doubled by each try until a cycle pays again
WORTH = 0.98  # of a plain step's speed from which a tree is drafted: what it shows is worth as much


def worth_picking(seconds: Mapping[TreeShape | None, float]) -> list[TreeShape]:
    """The trees among candidates that no larger one stands for.

    What a tree shows of larger ones is a guess, so that each size more is one more to be misled by: where the nodes of
    a pass cost next to nothing, as on a GPU with one text, small trees only hide what large ones would give.
    """
    kept: list[TreeShape] = []
    for small in sorted((shape for shape in seconds if shape is not None), key=lambda shape: -shape.total_tokens):
        if not any(
            large.total_tokens >= 2 * small.total_tokens
            and large.depth >= small.depth
            and large.top_k >= small.top_k
            and seconds[large] <= HARDLY_MORE * seconds[small]
            for large in kept
        ):
            kept.append(small)
    return kept


class Levels:
    """The head's chances by level, of trees of one size; old ones fade."""

    def __init__(self, levels: int, growth: float = 1.0) -> None:
        """growth: nodes of such a tree over those of the next smaller."""
        self.reached, self.tried = np.zeros(levels), np.zeros(levels)
        self.missed = growth**-GROWTH

    def fade(self, memory: float) -> None:
        """A cycle goes by: what was seen counts `memory` times as much."""
        self.reached *= memory
        self.tried *= memory

    def observe(self, chances: np.ndarray) -> None:
        """chances (rows, levels): of getting down to each level, never rising."""
        self.reached[: chances.shape[1]] += chances.sum(axis=0)
        self.tried[: chances.shape[1]] += _above(chances).sum(axis=0)

    def rates(self, smaller: Sequence[float] | None) -> list[float]:
        """The chance of each level once the one above is reached.

        smaller: the rates of the next smaller trees. What was not seen is guessed from them and from the level above:
        heads trained on their own outputs lose little from level to level.
        """
        rates: list[float] = []
        for level, (reached, tried) in enumerate(zip(self.reached.tolist(), self.tried.tolist(), strict=True)):
            guesses = rates[-1:]
            if smaller is not None:
                guesses.append(1 - (1 - smaller[level]) * self.missed)
            guess, prior = (sum(guesses) / len(guesses), PRIOR) if guesses else (FIRST_GUESS, FIRST_PRIOR)
            rates.append((reached + prior * guess) / (tried + prior))
        return rates


class Chooser:
    """Picks a candidate, None for a plain step, and learns from what its cycle gave.

    said, kept: levels that were tried, each with the head's chance of it, and those that the target agreed with.
    """

    def __init__(self, seconds: Mapping[TreeShape | None, float]) -> None:
        """seconds: what a cycle of each candidate takes, a plain step's among them."""
        self.seconds = seconds
        self.shapes = worth_picking(seconds)
        deepest = max(shape.levels for shape in self.shapes)
        sizes = sorted({shape.total_tokens for shape in self.shapes})
        self.levels = {size: Levels(deepest, size / less) for less, size in pairwise([sizes[0], *sizes])}
        self.said = self.kept = TRUST
        self.plain_steps, self.patience = 0, FIRST_PROBE

    def pick(self) -> TreeShape | None:
        """The candidate with most expected tokens a second; now and then a tree though plain steps seem faster."""
        speeds = self.speeds()
        best = max(speeds, key=lambda shape: speeds[shape])
        if speeds[best] > WORTH / self.seconds[None]:
            self.plain_steps = 0
            return best
        if self.plain_steps >= self.patience:
            self.plain_steps, self.patience = 0, min(2 * self.patience, LAST_PROBE)
            return best
        self.plain_steps += 1
        for levels in self.levels.values():
            levels.fade(IDLE)
        return None

    def speeds(self) -> dict[TreeShape, float]:
        """Expected tokens a second of each tree."""
        rates: list[float] | None = None
        expected: dict[int, list[float]] = {}
        for size, levels in self.levels.items():
            rates = levels.rates(rates)
            believed = [min(1.0, rate * self.kept / self.said) for rate in rates]
            expected[size] = list(accumulate(accumulate(believed, mul), initial=1.0))  # by drafted levels
        return {shape: expected[shape.total_tokens][shape.levels] / self.seconds[shape] for shape in self.shapes}

    def observe(self, shape: TreeShape, counts: np.ndarray, scores: np.ndarray, depths: np.ndarray) -> None:
        """Learn from a cycle of `shape`: counts (rows,) of accepted levels; scores, depths (rows, n - 1) of its nodes.

        A smaller tree would have kept the nodes of the highest scores alone, and so much is known of it; of a larger
        one nothing is. A score that is not a number (of a head that overflows in float16) is no chance at all.
        """
        order = np.argsort(-scores, axis=1, kind="stable")
        chance = np.nan_to_num(np.exp(np.take_along_axis(scores, order, axis=1).astype(float)))
        of_level = np.take_along_axis(depths, order, axis=1)[:, None] == np.arange(1, shape.levels + 1)[:, None]
        reached = np.cumsum(np.where(of_level, chance[:, None], 0.0), axis=2)  # (rows, levels, best nodes)
        for size, levels in self.levels.items():
            levels.fade(MEMORY)
            if size <= shape.total_tokens:
                chances = np.minimum.accumulate(np.minimum(reached[:, :, size - 2], 1.0), axis=1)
                levels.observe(chances)
        # The last chances are those of this very size.
        tried = np.arange(shape.levels) <= counts[:, None]
        self.said += float((chances / np.maximum(_above(chances), 1e-9))[tried].sum())
        self.kept += float(counts.sum())
        if (1 + counts.mean()) / self.seconds[shape] > WORTH / self.seconds[None]:
            self.patience = FIRST_PROBE


def _above(chances: np.ndarray) -> np.ndarray:
    """Of chances (rows, levels) to get down to each level those of the level above, 1 for the first."""
    return np.concatenate((np.ones((len(chances), 1)), chances[:, :-1]), axis=1)
