"""Texts written side by side are `generate`'s own, and rules of acceptance that are wrong are noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from eagle_repro.api import Pair, generate
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.request import NonFiniteLogits
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import DraftTree, ancestor_mask
from eagle_repro.experiments.broken import BROKEN, head_bonus, lenient, no_temperature
from eagle_repro.experiments.sampled_arms import broken_row, control_row, eagle_row, toy_arms
from eagle_repro.experiments.sampling import exact, first_probabilities, sample_texts
from eagle_repro.measure.permutation import two_sample

PROMPT, TOKENS = [322, 27], 8
WARM = Sampling(temperature=1.5)
TREE = TreeShape(8, 3, 4)


def single(pair: Pair, seed: int, **options: Any) -> list[int]:
    sampling = replace(WARM, seed=seed)
    return generate(pair, PROMPT, sampling=sampling, max_new_tokens=TOKENS, stop="never", **options).ids


@pytest.mark.parametrize("shape", [None, TREE, TreeShape(12, 2, 3), TreeShape.chain(4), TreeShape(2, 0, 1)])
def test_a_row_is_the_text_that_generate_writes_with_its_seed(trained: Pair, shape: TreeShape | None) -> None:
    seeds = [5, 0, 7, 1_000_003, 2]
    texts = sample_texts(trained, PROMPT, seeds, TOKENS, WARM, shape=shape)
    method = {"method": "plain"} if shape is None else {"method": "eagle", "shape": shape}
    assert texts.tolist() == [single(trained, seed, **method) for seed in seeds]


def test_texts_depend_on_their_seed_alone(trained: Pair) -> None:
    """Not on their neighbours, on how many stand side by side, or on what torch's global generator holds."""
    seeds = list(range(12))
    together = sample_texts(trained, PROMPT, seeds, TOKENS, WARM, shape=TREE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        apart = sample_texts(trained, PROMPT, seeds[::-1], TOKENS, WARM, shape=TREE, rows=5)
    assert np.array_equal(together, apart[::-1])
    assert len(np.unique(together, axis=0)) > 8


def test_speculation_and_plain_decoding_write_one_text_a_seed(trained: Pair, pair: Pair) -> None:
    for each in (trained, pair):  # a head that is often right, and one that is not
        plain = sample_texts(each, PROMPT, range(40), TOKENS, WARM)
        assert np.array_equal(sample_texts(each, PROMPT, range(40), TOKENS, WARM, shape=TREE), plain)
        assert np.array_equal(sample_texts(each, PROMPT, range(40), TOKENS, WARM, shape=TREE, rule=exact), plain)


def test_greedy_sampling_and_broken_logits_are_refused(trained: Pair) -> None:
    with pytest.raises(ValueError, match="greedy"):
        sample_texts(trained, PROMPT, range(2), TOKENS, Sampling())

    class Infinite(Target):
        def logits(self, hidden: Tensor) -> Tensor:
            return torch.full((*hidden.shape[:-1], self.vocabulary), float("inf"))

    with pytest.raises(NonFiniteLogits):
        sample_texts(replace(trained, target=Infinite(trained.target.model)), PROMPT, range(2), TOKENS, WARM)


# The first token


def test_both_loops_draw_the_first_token_from_the_same_bits(trained: Pair) -> None:
    plain, eagle = (first_probabilities(trained, PROMPT, method, WARM) for method in ("plain", "eagle"))
    assert torch.equal(plain, eagle) and plain.sum().isclose(torch.tensor(1.0), atol=1e-5)
    stock = trained.target.model(torch.tensor([PROMPT])).logits[0, -1]
    assert torch.allclose(plain, (stock / WARM.temperature).softmax(dim=-1), atol=1e-6)


@pytest.mark.parametrize("method", ["plain", "eagle"])
def test_the_first_token_is_drawn_through_the_forward_that_the_pair_decodes_with(trained: Pair, method: str) -> None:
    fused = Target(trained.target.model)
    passes: list[int] = []

    def forward(tokens: Tensor, *given: Any) -> tuple[Tensor, Tensor | None]:
        passes.append(tokens.shape[1])
        hidden = torch.zeros(*tokens.shape, fused.hidden_size)
        return hidden, torch.zeros(*tokens.shape, 3 * fused.hidden_size)

    fused.fused = Mock(side_effect=forward)
    first = first_probabilities(replace(trained, target=fused), PROMPT, method, WARM)
    assert passes == [len(PROMPT)] and torch.allclose(first, torch.full_like(first, 1 / len(first)))


def test_a_loop_that_moves_a_single_bit_is_seen(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Target.forward

    def leaning(self: Target, *args: Any, features: bool = True, **named: Any) -> Any:
        hidden, tapped = whole(self, *args, features=features, **named)
        return hidden * (1 + 1e-6) if features else hidden, tapped

    monkeypatch.setattr(Target, "forward", leaning)
    plain, eagle = (first_probabilities(trained, PROMPT, method, WARM) for method in ("plain", "eagle"))
    assert not torch.equal(plain, eagle) and torch.allclose(plain, eagle, atol=1e-4)


# Rules that are wrong


def small_tree() -> DraftTree:
    """Root 9 with children 1 and 2; 1 has the child 3."""
    parents = torch.tensor([[-1, 0, 0, 1]])
    return DraftTree(
        tokens=torch.tensor([[9, 1, 2, 3]]),
        parents=parents,
        depths=torch.tensor([[0, 1, 1, 2]]),
        scores=torch.zeros(1, 4),
        ancestors=ancestor_mask(parents, 2),
    )


def likes(*tokens: int) -> Tensor:
    """Logits (1, 4, 10): at every node these tokens, the first most, far above all others."""
    logits = torch.zeros(1, 4, 10)
    for rank, token in enumerate(tokens):
        logits[..., token] = 40.0 - rank
    return logits


COOL, SILENT = Sampling(temperature=0.5), torch.zeros(1, 4, 10)


def test_the_lenient_rule_takes_a_draft_that_was_only_second() -> None:
    right = exact(small_tree(), likes(5, 1), COOL, SILENT, 2)
    assert (int(right.count), right.emitted[0, 0].item()) == (0, 5)
    wrong = lenient(small_tree(), likes(5, 1), COOL, SILENT, 2)
    assert (int(wrong.count), wrong.emitted[0, :2].tolist()) == (1, [1, 5])
    third = lenient(small_tree(), likes(5, 6, 1), COOL, SILENT, 2)
    assert int(third.count) == 0


def test_the_head_bonus_is_the_rejected_draft() -> None:
    wrong = head_bonus(small_tree(), likes(2), COOL, SILENT, 2)
    assert (int(wrong.count), wrong.emitted[0, :2].tolist()) == (1, [2, 2])  # a leaf: only the target can say
    wrong = head_bonus(small_tree(), likes(5), COOL, SILENT, 2)
    assert (int(wrong.count), wrong.emitted[0, 0].item()) == (0, 1)  # the first child, though the target said 5


def test_without_temperature_the_noise_decides_as_if_it_were_one() -> None:
    noise = torch.zeros(1, 4, 10)
    noise[..., 2] = 1.5  # beats a lead of 1 at temperature 1, not one of 2 at temperature 0.5
    assert exact(small_tree(), likes(1, 2), COOL, noise, 2).emitted[0, 0] == 1
    assert no_temperature(small_tree(), likes(1, 2), COOL, noise, 2).emitted[0, 0] == 2


@pytest.fixture(scope="module")
def plain(trained: Pair) -> np.ndarray:
    """The smaller version: 300 texts a side."""
    return sample_texts(trained, PROMPT, range(300), TOKENS, WARM)


@pytest.mark.parametrize("rule", BROKEN)
def test_the_permutation_test_catches_every_wrong_rule(trained: Pair, plain: np.ndarray, rule: str) -> None:
    wrong = sample_texts(trained, PROMPT, range(1000, 1300), TOKENS, WARM, shape=TREE, rule=BROKEN[rule])
    assert two_sample(plain, wrong).p < 0.001


def test_the_permutation_test_finds_nothing_in_the_engine(trained: Pair, plain: np.ndarray) -> None:
    right = sample_texts(trained, PROMPT, range(2000, 2300), TOKENS, WARM, shape=TREE)
    assert two_sample(plain, right).p > 0.01


@pytest.mark.slow
def test_the_full_test_with_its_control() -> None:
    arms = toy_arms()
    assert arms.samples >= 500
    assert 0.01 <= control_row(arms)["splits_below_005"] <= 0.11
    engine = eagle_row(arms)
    assert engine["p"] > 0.01 and engine["detectable_effect"] <= 0.15
    assert engine["same_seed_equal"] == engine["same_seed_texts"] == 100
    for number in range(len(BROKEN)):
        assert broken_row(arms, number)["p"] < 0.001
