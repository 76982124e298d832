"""The permutation tests of 06_lossless: texts by plain decoding, by speculation, and by rules that are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from eagle_repro.api import Pair, generate
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.broken import BROKEN
from eagle_repro.experiments.checked import tiny
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import Row
from eagle_repro.experiments.sampling import Rule, sample_texts
from eagle_repro.measure.permutation import ALPHA, CAUGHT, Compared, control, detectable_share, two_sample

SAMPLED_TREE = TreeShape(8, 3, 4)
FAR = 1_000_000  # seeds of one arm are this far from those of the next
SAME_SEED_TEXTS = 100


@dataclass(frozen=True)
class Arms:
    """The sampled texts of one pair after one prompt, (runs, run, tokens) of plain decoding, (samples, tokens) of
    others. Every text has a seed of its own: those of plain decoding are 0, 1, ...; run: texts of a plain run."""

    pair: Pair
    prompt: list[int]
    sampling: Sampling
    samples: int
    runs: int
    run: int
    tokens: int

    @cached_property
    def plain(self) -> np.ndarray:
        """Texts by plain decoding, run by run."""
        seeds = range(self.runs * self.run)
        texts = sample_texts(self.pair, self.prompt, seeds, self.tokens, self.sampling, rows=self.run)
        return texts.reshape(self.runs, self.run, self.tokens)

    def speculative(self, *, first_seed: int, samples: int, rule: Rule | None = None) -> np.ndarray:
        """Texts by speculation, by the engine's own rule or another one."""
        options: dict[str, Any] = {"shape": SAMPLED_TREE, "rule": rule, "rows": self.run}
        seeds = range(first_seed, first_seed + samples)
        return sample_texts(self.pair, self.prompt, seeds, self.tokens, self.sampling, **options)


def toy_arms() -> Arms:
    """The test that must hold everywhere: 500 texts an arm of the pair `tiny`, on the CPU, after "User:"."""
    return Arms(tiny(), [322, 27], Sampling(temperature=1.5), samples=500, runs=60, run=50, tokens=8)


def own_arms(pair: Pair, protocol: Protocol, prompt: list[int]) -> Arms:
    """The same for the pair of the run; on a CPU with few texts, which see little, as the record says."""
    samples = 50 if pair.device == "cpu" else 500
    sampling = Sampling(temperature=protocol.temperature or 1.0)
    return Arms(pair, prompt, sampling, samples, runs=12, run=samples // 5, tokens=6)


def control_row(arms: Arms) -> Row:
    """Plain decoding against itself, a hundred times: p of each, and the share below 0.05."""
    found = control(arms.plain, arms.samples)
    return {
        "p": float(np.median(found)),
        "splits": found,
        "splits_below_005": sum(p < ALPHA for p in found) / len(found),
        "detectable_effect": None,
    }


def eagle_row(arms: Arms) -> Row:
    """The engine's texts against plain ones of other seeds, what a difference would have had to be, and one seed's
    texts by both."""
    plain = arms.plain.reshape(-1, arms.tokens)
    greedy = generate(arms.pair, arms.prompt, method="plain", max_new_tokens=arms.tokens, stop="never").ids
    effect = detectable_share(plain, np.array([greedy]), arms.samples)
    count = min(SAME_SEED_TEXTS, arms.samples)
    twins = arms.speculative(first_seed=0, samples=count)
    same = int((twins == plain[:count]).all(axis=1).sum())
    compared = two_sample(plain[: arms.samples], arms.speculative(first_seed=FAR, samples=arms.samples))
    found = {"detectable_effect": effect, "detectable_level": CAUGHT}
    return _outcome(compared) | found | {"same_seed_texts": count, "same_seed_equal": same}


def broken_row(arms: Arms, number: int) -> Row:
    """Texts by a wrong rule (the number of one in BROKEN) against plain ones."""
    rule = list(BROKEN.values())[number]
    texts = arms.speculative(first_seed=(2 + number) * FAR, samples=arms.samples, rule=rule)
    return _outcome(two_sample(arms.plain.reshape(-1, arms.tokens)[: arms.samples], texts))


def _outcome(compared: Compared) -> Row:
    found = {"p": compared.p, "statistic": compared.statistic, "permutations": compared.permutations}
    return found | {"splits_below_005": None, "detectable_effect": None}
