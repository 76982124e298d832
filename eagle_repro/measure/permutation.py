"""Are two sets of sampled texts draws from one distribution? A permutation test, its control, and what it can see.

Two speculative samplers that are both right write different texts, so texts cannot be compared one by one. What can be
compared is how alike texts are within a set and across the two: the statistic is the squared maximum mean discrepancy
(Gretton et al., "A Kernel Two-Sample Test", JMLR 13, 2012) with the kernel "tokens and pairs of neighbouring tokens
that two texts have at the same place". If both sets follow one distribution, the labels mean nothing, and the
statistic under shuffled labels says how large it gets by chance.

A whole text is shuffled, never a token: tokens of one text hang together, and a test that takes them for separate
samples finds differences where there are none. `control` is what catches such a mistake: it compares plain decoding
with plain decoding, where a difference may be "found" in one case out of twenty and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PERMUTATIONS = 4999  # so that p can fall to 0.0002
QUICK_PERMUTATIONS = 199  # enough to tell whether p is below ALPHA: 9 of 200 are
JUDGING_PERMUTATIONS = 1999  # enough to tell whether p is below CAUGHT: 1 of 2000 is
ALPHA = 0.05  # the level of the control, of which a share this large must fall below it
CAUGHT = 0.001  # p below which two sets count as different: the engine is judged at it, and so are wrong rules
POWER = 0.8  # how often an effect must be found to count as detectable
SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
CHUNK = 1000  # shuffles computed at a time


@dataclass(frozen=True)
class Compared:
    """The outcome of a test: the statistic, how rare it is under shuffled labels, texts in each set."""

    p: float
    statistic: float
    samples: int
    permutations: int


def two_sample(first: np.ndarray, second: np.ndarray, *, permutations: int = PERMUTATIONS, seed: int = 0) -> Compared:
    """Test whether the texts (N, L) of both sets follow one distribution.

    p counts the observed labels among the shuffled ones, so it is never 0. Raises ValueError for sets that differ in
    size or length, or hold fewer than two texts.
    """
    if first.shape != second.shape or first.ndim != 2 or len(first) < 2:
        raise ValueError(f"texts {first.shape} and {second.shape} were given: two sets (N, L) of one shape are needed")
    kernel = alikeness(np.concatenate((first, second)))
    labels = np.repeat(np.array([1, -1], dtype=np.float32), len(first))
    observed = float(_statistics(kernel, labels[None])[0])
    rng = np.random.default_rng(seed)
    as_large = 0
    for start in range(0, permutations, CHUNK):
        count = min(CHUNK, permutations - start)
        shuffled = rng.permuted(np.broadcast_to(labels, (count, len(labels))), axis=1)
        as_large += int((_statistics(kernel, shuffled) >= observed).sum())
    return Compared((1 + as_large) / (1 + permutations), observed / len(first) ** 2, len(first), permutations)


def alikeness(texts: np.ndarray) -> np.ndarray:
    """How many tokens, and pairs of neighbouring tokens, every two of the texts (N, L) share at the same place: (N, N).

    Whole numbers, so that a statistic made of them is exact and equal shuffles tie.
    """
    kernel = np.zeros((len(texts), len(texts)), dtype=np.float32)
    before = None
    for place in texts.T:
        same = place[:, None] == place[None]
        kernel += same
        if before is not None:
            kernel += same & before
        before = same
    return kernel


def control(
    runs: np.ndarray, samples: int, *, splits: int = 100, permutations: int = QUICK_PERMUTATIONS, seed: int = 0
) -> list[float]:
    """p of plain decoding against itself, one a split: runs (R, n, L) are R separate runs of n texts each.

    A split gives some runs to either side, `samples` texts each; whole runs, so that texts that hang together within a
    run (a generator that is shared, say) are found out. Raises ValueError where there are too few runs.
    """
    count, each, _ = runs.shape
    taken, rest = divmod(samples, each)
    if rest or 2 * taken > count:
        raise ValueError(f"{count} runs of {each} texts do not give two sides of {samples}: more runs are needed")
    rng = np.random.default_rng(seed)
    found = []
    for split in range(splits):
        chosen = rng.permutation(count)[: 2 * taken]
        sides = (np.concatenate(runs[part]) for part in (chosen[:taken], chosen[taken:]))
        found.append(two_sample(*sides, permutations=permutations, seed=seed + split).p)
    return found


def detectable_share(
    texts: np.ndarray, others: np.ndarray, samples: int, *, trials: int = 20, seed: int = 0
) -> float | None:
    """The smallest share of foreign texts in one set that the test finds (p < CAUGHT) in at least POWER of the trials.

    The level is the one that the engine is judged at, so that "nothing found" and "would have seen" mean one test.
    texts (N, L), N >= 2 * samples: draws of one distribution, dealt to both sets anew in every trial; others (M, L):
    what stands in for a share of the second set. One of SHARES; None if not even a whole set of them is found.
    """
    if len(texts) < 2 * samples:
        raise ValueError(f"{len(texts)} texts were given: two sets of {samples} are needed")
    rng = np.random.default_rng(seed)
    for share in SHARES:
        foreign = round(share * samples)
        missed = 0
        for trial in range(trials):
            dealt = texts[rng.permutation(len(texts))[: 2 * samples]]
            first, second = dealt[:samples], dealt[samples:].copy()
            second[:foreign] = others[rng.integers(0, len(others), foreign)]
            p = two_sample(first, second, permutations=JUDGING_PERMUTATIONS, seed=seed + trial).p
            missed += p >= CAUGHT
            if missed > trials - POWER * trials:  # the other trials cannot make up for it
                break
        else:
            if foreign:
                return share
    return None


def _statistics(kernel: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each row of labels (P, 2N) of 1 and -1: how much more alike the texts of one set are than across sets."""
    return np.einsum("pn,pn->p", labels @ kernel, labels, dtype=np.float64)
