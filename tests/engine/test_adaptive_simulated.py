"""What method="adaptive" gives by simulation: texts by dice, cycles at the cost of a captured stack on an H200."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from eagle_repro.engine.adaptive import CANDIDATES, Chooser
from eagle_repro.engine.shape import TreeShape
from tests.engine.drafts import told

TOKENS, TEXTS, WARM = 192, 200, 20
Rate = Callable[[int], float]


def milliseconds(shape: TreeShape | None) -> float:
    """smollm2-135m, captured: a plain step 1.36, (2, 0, 1) 1.81, (60, 2, 10) 2.13, (60, 5, 10) 2.50."""
    if shape is None:
        return 1.36
    return 1.36 + 0.0018 * max(0, shape.total_tokens - 16) + 0.45 + 0.122 * shape.depth


COSTS = {shape: milliseconds(shape) for shape in (None, *CANDIDATES)}


@dataclass(frozen=True)
class Head:
    """Every level of every tree is agreed with by the chance `rate` of its position in the text; the head gives it
    `belief` times as much, or where `flat` that chance everywhere. That larger trees are agreed with no more often is
    the worst case for a rule that expects them to be."""

    rate: Rate
    belief: float = 1.0
    flat: float | None = None

    def accepted(self, dice: random.Random, position: int, shape: TreeShape) -> int:
        found = 0
        while found < shape.levels and dice.random() < self.rate(position + found):
            found += 1
        return found

    def told(self, position: int, shape: TreeShape, accepted: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        own = [min(1.0, self.belief * self.rate(position + level)) for level in range(shape.levels)]
        return told(shape, accepted, own if self.flat is None else [self.flat] * shape.levels)


def always(rate: float) -> Rate:
    return lambda position: rate


def switching(first: float, second: float, every: int = 60) -> Rate:
    return lambda position: second if position // every % 2 else first


def adaptive(head: Head, seed: int) -> Iterator[tuple[int, float]]:
    """Tokens and milliseconds of each cycle of a text; as in decoding, a pick does not know of the cycle before it."""
    dice, chooser, position, shown = random.Random(seed), Chooser(COSTS), 1, None
    following = chooser.pick()
    while position < TOKENS:
        shape = following
        if shown:
            chooser.observe(*shown)
        following = chooser.pick()
        accepted = head.accepted(dice, position, shape) if shape else 0
        shown = (shape, *head.told(position, shape, accepted)) if shape else None
        position += accepted + 1
        yield accepted + 1, COSTS[shape]


def fixed(head: Head, shape: TreeShape | None, seed: int) -> float:
    dice, position, total = random.Random(seed), 1, 0.0
    while position < TOKENS:
        position += 1 + (head.accepted(dice, position, shape) if shape else 0)
        total += COSTS[shape]
    return total


def share_of_best(head: Head) -> float:
    """The milliseconds of the best fixed choice over those of adaptive, of texts from their very start."""
    best = min(sum(fixed(head, shape, seed) for seed in range(TEXTS)) for shape in COSTS)
    return best / sum(ms for seed in range(TEXTS) for _, ms in adaptive(head, seed))


HEADS = {
    **{f"always {rate}": Head(always(rate)) for rate in (0.9, 0.75, 0.6, 0.45, 0.3)},
    **{f"always {rate}, and sure of itself": Head(always(rate), flat=0.95) for rate in (0.75, 0.45)},
    **{f"always {rate}, and too modest": Head(always(rate), belief=0.8) for rate in (0.9, 0.6)},
    "0.9, then 0.2, and so on": Head(switching(0.9, 0.2)),
    "0.2, then 0.9, and so on": Head(switching(0.2, 0.9)),
}


@pytest.mark.parametrize("name", HEADS)
def test_what_is_picked_keeps_up_with_the_best_fixed_choice(name: str) -> None:
    share = share_of_best(HEADS[name])
    assert share >= 0.96, f"{name}: {share:.3f} of the best fixed choice, and 0.96 is the least"


@pytest.mark.parametrize("belief", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_useless_head_costs_little_once_it_is_found_out(rate: float, belief: float) -> None:
    late: list[tuple[int, float]] = []
    for seed in range(TEXTS):
        written = 1
        for tokens, ms in adaptive(Head(always(rate), flat=belief), seed):
            late += [(tokens, ms)] if written > WARM else []
            written += tokens
    share = COSTS[None] * sum(tokens for tokens, _ in late) / sum(ms for _, ms in late)
    assert share >= 0.98, f"{share:.3f} of plain decoding after {WARM} tokens"
