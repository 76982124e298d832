"""Which tree the next cycle drafts, if any: the one that is expected to give most tokens a second.

A cycle of a tree gives 1 + the sum over levels of the chance that the target agrees down to there. The chances are
running estimates by level, one row of them for each size of tree, from what the cycles of this text have shown; what a
cycle takes was measured beforehand. A plain step is a choice like any other, so that a head that is of no use costs
little more than finding that out.

A text has some dozens of cycles, too few to learn every chance by itself. So each is guessed from its neighbours, and
the guess counts like many observations: from the level above, for heads trained on their own outputs lose little from
level to level, and from the next smaller tree, which misses somewhat more. How much more is learnt from the cycles too.
The numbers below were set by simulation: of constant and changing rates (tests/engine/test_adaptive_simulated.py holds
those), and of recordings of smollm2-135m on six question sets, at the costs of a captured and of an eager stack on an
H200 and of two CPU cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise, takewhile
from operator import mul

from eagle_repro.engine.shape import TreeShape

#: Where nobody names candidates. Small trees win where a pass costs by the token (a CPU), wide ones where it does not.
CANDIDATES = (
    TreeShape(2, 0, 1), TreeShape(3, 1, 1), TreeShape(6, 2, 2), TreeShape(16, 3, 4),
    TreeShape(11, 0, 10), TreeShape(32, 1, 10), TreeShape(60, 2, 10), TreeShape(60, 3, 10), TreeShape(60, 5, 10),
    TreeShape(60, 7, 10),
)  # fmt: skip
FIRST_GUESS, FIRST_PRIOR = 0.7, 4.0  # of the first level of the smallest tree, and observations that it counts like
PRIOR = 30.0  # observations that a guess from the neighbours counts like
#: What a tree of n times the nodes still misses of what the smaller one misses, n ** -GROWTH; GROWTH_PRIOR like PRIOR.
GROWTH, GROWTH_PRIOR = 0.15, 4.0
MEMORY = 0.96  # what an observation still counts for a cycle later
FIRST_PROBE, LAST_PROBE = 6, 96  # plain steps between two tries of a tree, doubled after each that fails
WORTH = 0.98  # of a plain step's speed from which a tree is drafted: what it shows is worth as much


class Levels:
    """Agreements with the target by level, of trees of one size; old ones fade.

    missed: cycles whose first level the next smaller tree would have missed, and still: those that this one did miss.
    They are not forgotten, for what more nodes are worth changes less than a text does.
    """

    def __init__(self, levels: int, growth: float = 1.0) -> None:
        """growth: nodes of such a tree over those of the next smaller."""
        self.agreed, self.seen = [0.0] * levels, [0.0] * levels
        self.missed, self.still = GROWTH_PRIOR, GROWTH_PRIOR * growth**-GROWTH

    def fade(self) -> None:
        """A cycle goes by."""
        self.agreed, self.seen = ([MEMORY * count for count in column] for column in (self.agreed, self.seen))

    def observe(self, level: int, agreed: bool) -> None:
        self.agreed[level] += agreed
        self.seen[level] += 1

    def rates(self, smaller: Sequence[float] | None) -> list[float]:
        """The chance of each level once the one above is agreed with.

        smaller: the rates of the next smaller trees. Where there are two guesses, from them and from the level above,
        they count alike.
        """
        rates: list[float] = []
        for level, (agreed, seen) in enumerate(zip(self.agreed, self.seen, strict=True)):
            guesses = rates[-1:]
            if smaller is not None:
                guesses.append(1 - (1 - smaller[level]) * self.still / self.missed)
            guess, prior = (sum(guesses) / len(guesses), PRIOR) if guesses else (FIRST_GUESS, FIRST_PRIOR)
            rates.append((agreed + prior * guess) / (seen + prior))
        return rates


class Chooser:
    """Picks a candidate, None for a plain step, and learns from what its cycle gave."""

    def __init__(self, seconds: Mapping[TreeShape | None, float]) -> None:
        """seconds: what a cycle of each candidate takes, a plain step's among them."""
        self.seconds = seconds
        self.shapes = [shape for shape in seconds if shape is not None]
        deepest = max(shape.levels for shape in self.shapes)
        sizes = sorted({shape.total_tokens for shape in self.shapes})
        self.levels = {size: Levels(deepest, size / less) for less, size in pairwise([sizes[0], *sizes])}
        self.plain_steps, self.patience = 0, FIRST_PROBE

    def pick(self) -> TreeShape | None:
        """The candidate with most expected tokens a second; now and then a tree though plain steps seem faster."""
        speeds = self.speeds()
        best = max(speeds, key=lambda shape: speeds[shape])
        if speeds[best] > WORTH / self.seconds[None]:
            self.plain_steps, self.patience = 0, FIRST_PROBE
            return best
        if self.plain_steps >= self.patience:
            self.plain_steps, self.patience = 0, min(2 * self.patience, LAST_PROBE)
            return best
        self.plain_steps += 1
        return None

    def speeds(self) -> dict[TreeShape, float]:
        """Expected tokens a second of each tree."""
        rates: list[float] | None = None
        expected: dict[int, list[float]] = {}
        for size, levels in self.levels.items():
            rates = levels.rates(rates)
            expected[size] = list(accumulate(accumulate(rates, mul), initial=1.0))  # by drafted levels
        return {shape: expected[shape.total_tokens][shape.levels] / self.seconds[shape] for shape in self.shapes}

    def fade(self) -> None:
        """A cycle of trees goes by, in however many rows. Plain steps show nothing and let nothing be forgotten."""
        for levels in self.levels.values():
            levels.fade()

    def observe(self, shape: TreeShape, ranks: Sequence[int]) -> None:
        """Learn from a cycle of `shape`. ranks: of each accepted node by level, how many of its tree score higher.

        A smaller tree would have kept the nodes of the highest scores alone, and so much is known of it; of a larger
        one nothing is.
        """
        less: list[int] | None = None  # what the next smaller tree would have kept
        for size, levels in self.levels.items():
            if size > shape.total_tokens:
                break
            kept = list(takewhile(lambda rank: rank < size - 1, ranks))  # noqa: B023 - used up within the turn
            for level in range(len(kept)):
                levels.observe(level, True)
            if len(kept) < shape.levels:
                levels.observe(len(kept), False)
            if less == []:
                levels.missed += 1
                levels.still += not kept
            less = kept
