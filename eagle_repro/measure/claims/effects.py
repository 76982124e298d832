"""An effect with its interval, and what a statement about its direction is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from eagle_repro.measure.claims.run import NotMeasured
from eagle_repro.measure.stats import LEVEL, RESAMPLES, Estimate, estimate
from eagle_repro.measure.totals import Statistic, Totals, aligned, speedup, whole

Verdict = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True)
class Effect:
    """An effect with its interval. The statement holds where it is `above` (or below) `border`.

    left, right: the two values that the effect compares, with their names; record: where they are from.
    """

    estimate: Estimate
    record: str
    left: tuple[str, float]
    right: tuple[str, float]
    border: float = 0.0
    above: bool = True

    @property
    def verdict(self) -> Verdict:
        """What the interval says; undecided where it covers the border, and where one question gives none."""
        low, high = self.estimate.low, self.estimate.high
        if low is None or high is None or low <= self.border <= high:
            return "undecided"
        return "holds" if (low > self.border) is self.above else "does not hold"


def difference(
    left: Statistic, right: Statistic, totals: Totals, record: str, names: tuple[str, str], *, border: float = 0.0,
    above: bool = True,
) -> Effect:  # fmt: skip
    """The paired difference left - right of two statistics over the same questions."""
    found = estimate(lambda picks: left(picks) - right(picks), len(totals.tokens))
    sides = [(name, whole(side, totals)) for name, side in zip(names, (left, right), strict=True)]
    return Effect(found, record, sides[0], sides[1], border, above)


def two_groups(
    left: pd.DataFrame, right: pd.DataFrame, names: tuple[str, str], what: str, record: str, *, above: bool
) -> Effect:  # fmt: skip
    """The difference of tau or speedup between two groups of questions, each group resampled by itself."""
    values: list[float] = []
    draws: list[np.ndarray | None] = []
    generator = np.random.default_rng(0)
    for rows in (left, right):
        ways = aligned({method: rows[rows["method"] == method] for method in ("plain", "eagle")})
        if not ways:
            raise NotMeasured(record, f"no runs on {names[len(values)]}")
        statistic = ways["eagle"].tau if what == "tau" else speedup(ways["plain"], ways["eagle"])
        count = len(ways["eagle"].tokens)
        values.append(whole(statistic, ways["eagle"]))
        draws.append(statistic(generator.integers(0, count, size=(RESAMPLES, count))) if count > 1 else None)
    low, high = None, None
    if draws[0] is not None and draws[1] is not None:
        low, high = (float(q) for q in np.quantile(draws[0] - draws[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    found = Estimate(values[0] - values[1], low, high, LEVEL, RESAMPLES)
    return Effect(found, record, (names[0], values[0]), (names[1], values[1]), above=above)
