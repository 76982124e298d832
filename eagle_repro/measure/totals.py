"""Runs of texts added up question by question, so that tau, speedups and their differences can be resampled alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from eagle_repro.measure.stats import Speedup, Work, measured_speedup

Statistic = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Totals:
    """Sums of each question (its repeats included), in one order for all ways of writing that are compared.

    emitted, cycles: of the speculation cycles, the last one uncut (0 for plain runs); tokens, seconds: of decoding, so
    that the first token of a run, which is the prefill's, does not count.
    """

    emitted: np.ndarray
    cycles: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray

    def tau(self, picks: np.ndarray) -> np.ndarray:
        """Step-weighted tau of the picked questions (..., count) -> (...,)."""
        emitted, cycles = self.emitted[picks].sum(axis=-1), self.cycles[picks].sum(axis=-1)
        return np.asarray(emitted / cycles)

    def seconds_per_token(self, picks: np.ndarray) -> np.ndarray:
        """Decoding seconds a token of the picked questions (..., count) -> (...,)."""
        seconds, tokens = self.seconds[picks].sum(axis=-1), self.tokens[picks].sum(axis=-1)
        return np.asarray(seconds / tokens)


def speedup(plain: Totals, speculative: Totals) -> Statistic:
    """How many times as fast as `plain`, as a statistic of picked questions."""
    return lambda picks: plain.seconds_per_token(picks) / speculative.seconds_per_token(picks)


def headline(rows: pd.DataFrame) -> pd.DataFrame:
    """The greedy runs that count: no instrumented ones, no sampled ones."""
    chosen = rows["method"].notna() & (rows["temperature"].fillna(0) == 0)
    if "instrumented" in rows:
        chosen &= ~rows["instrumented"].fillna(False).astype(bool)
    return rows[chosen]


def aligned(ways: Mapping[str, pd.DataFrame]) -> dict[str, Totals]:
    """The totals of several ways of writing, over the questions that all of them answered; {} if there are none."""
    indexed = {name: _by_question(rows) for name, rows in ways.items()}
    shared = [key for key in next(iter(indexed.values())).index if all(key in each.index for each in indexed.values())]
    if not shared:
        return {}
    return {name: _totals(frame.loc[shared]) for name, frame in indexed.items()}


def paired_speedup(baseline: pd.DataFrame, speculative: pd.DataFrame) -> Speedup | None:
    """The speedup over the questions that both were run on; None where there are none."""
    before, after = _works(baseline), _works(speculative)
    shared = [question for question in before if question in after]
    if not shared:
        return None
    return measured_speedup([before[question] for question in shared], [after[question] for question in shared])


def whole(statistic: Statistic, totals: Totals) -> float:
    """The statistic of every question once."""
    return float(statistic(np.arange(len(totals.tokens))))


def _works(rows: pd.DataFrame) -> dict[Any, Work]:
    """The work of each question, its repeats added up."""
    if rows.empty:
        return {}
    sums = rows.groupby(["set", "question"], sort=False)[["tokens", "decode_s", "prefill_s"]].sum()
    return {row.Index: Work(int(row.tokens), row.decode_s, row.prefill_s) for row in sums.itertuples()}


def _by_question(rows: pd.DataFrame) -> pd.DataFrame:
    accepted: Sequence[Sequence[int]] = [each if isinstance(each, list) else [] for each in rows.get("accepted", [])]
    counted = pd.DataFrame(
        {
            "set": list(rows["set"]),
            "question": list(rows["question"]),
            "emitted": [sum(each) + len(each) for each in accepted] if accepted else 0,
            "cycles": [len(each) for each in accepted] if accepted else 0,
            "tokens": list(rows["tokens"] - 1),
            "seconds": list(rows["decode_s"]),
        }
    )
    return counted.groupby(["set", "question"], sort=False).sum()


def _totals(frame: pd.DataFrame) -> Totals:
    return Totals(*(frame[name].to_numpy(dtype=float) for name in ("emitted", "cycles", "tokens", "seconds")))
