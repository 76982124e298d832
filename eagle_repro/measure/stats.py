"""Statistics of runs: tau, acceptance rates, speedups with intervals, looping text.

Two averages of tau are in use and differ: over cycles (long questions weigh more; the headline here) and over
questions (each counts once; what some published tables print). Three different things are called acceptance rate.
Each has its own name below, so that a table cannot mix them up.

Intervals are percentile bootstrap intervals over questions, which are what a run samples: tokens and cycles of one
question hang together. Draws come from a numpy generator of a fixed seed, so the same records give the same digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
#: Below this tau a head is as good as absent: each cycle gives its bonus token and next to nothing else.
IMPLAUSIBLE_TAU = 1.05


@dataclass(frozen=True)
class Estimate:
    """A value with its bootstrap interval; low and high are None where one question alone says nothing of spread."""

    value: float
    low: float | None
    high: float | None
    level: float
    resamples: int


@dataclass(frozen=True)
class TauSummary:
    """tau of a set of questions, both averages apart; None where no cycle was run.

    `step_weighted`: over all cycles (the headline); `question_mean`: mean of the questions' own tau;
    `warning`: one line when tau is so low that the head looks wrong.
    """

    step_weighted: Estimate | None
    question_mean: float | None
    questions: int
    cycles: int
    warning: str | None


@dataclass(frozen=True)
class ChainAcceptance:
    """The three acceptance rates of a chain; a rate whose denominator is empty is None.

    `accepted_per_drafted`: accepted tokens over drafted tokens; `per_position`: share of cycles that accept
    position 1, 2, ...; `conditional`: the same among the cycles that accepted every earlier position.
    """

    accepted_per_drafted: float | None
    per_position: tuple[float | None, ...]
    conditional: tuple[float | None, ...]


@dataclass(frozen=True)
class Work:
    """What one run did: new tokens, seconds of decoding, seconds of prefill before it."""

    tokens: int
    decode_s: float
    prefill_s: float = 0.0

    def __post_init__(self) -> None:
        times_fit = math.isfinite(self.decode_s) and math.isfinite(self.prefill_s)
        if self.tokens < 1 or not times_fit or self.decode_s <= 0 or self.prefill_s < 0:
            raise ValueError(f"{self} cannot be compared: tokens >= 1, decode_s > 0 and prefill_s >= 0 are needed")


@dataclass(frozen=True)
class Speedup:
    """Speedup of a set of questions, paired question by question.

    `headline`: total plain over total speculative decoding seconds; `median`: over the questions' own ratios
    (`by_question`); `end_to_end`: as the headline with prefill in both sums. Where the token counts of a pair
    differ, its speculative decoding time is taken per token; `equal_tokens` is then False and `note` says so.
    """

    headline: Estimate
    median: Estimate
    end_to_end: float
    by_question: tuple[float, ...]
    equal_tokens: bool
    note: str | None


def tau(accepted: Sequence[int]) -> float | None:
    """Tokens per cycle, the bonus token included: mean of accepted + 1 over cycles. None for no cycles.

    accepted: drafted tokens accepted in each cycle, the last cycle uncut. Raises ValueError for a negative count.
    """
    if len(accepted) == 0:
        return None
    if min(accepted) < 0:
        raise ValueError(f"{min(accepted)} accepted tokens in a cycle were given: 0 or more are needed")
    return float(sum(accepted)) / len(accepted) + 1


def tau_warning(value: float | None) -> str | None:
    """One line when tau is implausibly low (a head of another model, or a text it never saw), else None."""
    if value is None or value >= IMPLAUSIBLE_TAU:
        return None
    return (
        f"tau is {value:.2f}, below {IMPLAUSIBLE_TAU}: the target accepts next to nothing of what the head drafts; "
        "check that the head was trained for this target"
    )


def summarise_tau(questions: Sequence[Sequence[int]], *, resamples: int = RESAMPLES, seed: int = 0) -> TauSummary:
    """tau of a set: step-weighted with an interval over questions, and the per-question mean beside it.

    questions: for each question the accepted counts of its cycles; a question without cycles is left out.
    """
    means = [value for value in map(tau, questions) if value is not None]
    if not means:
        return TauSummary(None, None, 0, 0, None)
    cycles = np.array([len(accepted) for accepted in questions if len(accepted)], dtype=float)
    emitted = np.array([sum(accepted) + len(accepted) for accepted in questions if len(accepted)], dtype=float)

    def statistic(picks: np.ndarray) -> np.ndarray:
        return emitted[picks].sum(axis=-1) / cycles[picks].sum(axis=-1)

    headline = estimate(statistic, len(means), resamples=resamples, seed=seed)
    return TauSummary(
        step_weighted=headline,
        question_mean=sum(means) / len(means),
        questions=len(means),
        cycles=int(cycles.sum()),
        warning=tau_warning(headline.value),
    )


def chain_acceptance(accepted: Sequence[int], drafted: int) -> ChainAcceptance:
    """Acceptance rates of a chain that drafts `drafted` tokens a cycle (TreeShape.chain(depth): depth + 1).

    Raises ValueError when a count does not fit the chain.
    """
    counts = np.asarray(accepted, dtype=int)
    if drafted < 1 or (counts.size and not (0 <= counts.min() <= counts.max() <= drafted)):
        raise ValueError(f"a chain of {drafted} drafted tokens accepts 0..{drafted} of them, got {list(accepted)}")
    # reached[k]: cycles that accepted at least k tokens, so reached[0] is all of them.
    reached = [int((counts >= k).sum()) for k in range(drafted + 1)]
    return ChainAcceptance(
        accepted_per_drafted=_share(int(counts.sum()), counts.size * drafted),
        per_position=tuple(_share(reached[k], reached[0]) for k in range(1, drafted + 1)),
        conditional=tuple(_share(reached[k], reached[k - 1]) for k in range(1, drafted + 1)),
    )


def measured_speedup(
    plain: Sequence[Work], speculative: Sequence[Work], *, resamples: int = RESAMPLES, seed: int = 0
) -> Speedup:
    """Compare two methods on the same questions, in the same order.

    Raises ValueError for lists that cannot be paired.
    """
    if len(plain) != len(speculative) or not plain:
        raise ValueError(
            f"{len(plain)} plain and {len(speculative)} speculative runs were given: one of each per question is needed"
        )
    pairs = list(zip(plain, speculative, strict=True))
    before = np.array([a.decode_s for a, _ in pairs])
    # Seconds for as many tokens as the plain run wrote; with equal counts the factor is exactly 1.
    after = np.array([b.decode_s * (a.tokens / b.tokens) for a, b in pairs])
    prefill_before, prefill_after = sum(a.prefill_s for a in plain), sum(b.prefill_s for b in speculative)
    unequal = sum(a.tokens != b.tokens for a, b in pairs)
    note = f"{unequal} of {len(pairs)} questions have unequal token counts: their times are compared per token"
    bootstrap = {"count": len(pairs), "resamples": resamples, "seed": seed}
    return Speedup(
        headline=estimate(lambda picks: before[picks].sum(-1) / after[picks].sum(-1), **bootstrap),
        median=estimate(lambda picks: np.median((before / after)[picks], axis=-1), **bootstrap),
        end_to_end=float((before.sum() + prefill_before) / (after.sum() + prefill_after)),
        by_question=tuple((before / after).tolist()),
        equal_tokens=unequal == 0,
        note=note if unequal else None,
    )


def estimate(
    statistic: Callable[[np.ndarray], np.ndarray],
    count: int,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """A statistic of `count` questions with its percentile bootstrap interval.

    statistic: takes indices of questions (..., count) and gives (...,); a paired statistic looks both methods up
    with the same indices. One question gives no interval.
    """
    if count < 1 or resamples < 1:
        raise ValueError(f"{count} questions and {resamples} resamples were given: at least one of each is needed")
    value = float(statistic(np.arange(count)))
    if count == 1:
        return Estimate(value, None, None, level, 0)
    picks = np.random.default_rng(seed).integers(0, count, size=(resamples, count))
    low, high = np.quantile(statistic(picks), [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), level, resamples)


def value_of(found: Estimate | None) -> float:
    """The value of an estimate, NaN where there is none."""
    return math.nan if found is None else found.value


def columns(name: str, found: Estimate | None) -> dict[str, float | None]:
    """An estimate as the columns name, name_low and name_high of a row; NaN and no interval where it is None."""
    low, high = (found.low, found.high) if found else (None, None)
    return {name: value_of(found), f"{name}_low": low, f"{name}_high": high}


def loop_share(ids: Sequence[int], n: int = 8) -> float | None:
    """Share of looping text: of the positions that end an n-gram, those whose n-gram occurred before.

    0 for text that never repeats n tokens in a row, near 1 for a text that goes in a circle; None below n tokens.
    """
    if n < 1:
        raise ValueError(f"n={n} was given: 1 or more is needed")
    tokens = [int(token) for token in ids]
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return _share(len(grams) - len(set(grams)), len(grams))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
