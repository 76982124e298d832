"""Sampling: the filters, the noise, and that texts follow the target's distribution whatever was drafted."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eagle_repro.engine.accept import GREEDY_BELOW, Sampling, filtered, gumbel_noise
from eagle_repro.engine.generate import Request, run
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.target import Target
from tests.engine import reference as ref
from tests.engine.statistics import UNLIKELY, chi_square, kolmogorov_smirnov
from tests.engine.tiny import random_head, random_target, stock_logits

CPU = torch.device("cpu")
FILTERS = [(1.0, 0), (0.9, 0), (0.5, 0), (1.0, 1), (1.0, 5), (0.8, 5), (0.95, 40), (1.0, 500), (1e-9, 0)]
"""top_p, top_k"""


def written(target: Target, head: Eagle3Head | None, prompt: list[int], count: int, **options: Any) -> list[int]:
    """New ids of a run that ignores the end of text."""
    options = {"method": "eagle" if head else "plain", "shape": TreeShape(12, 2, 3), "stop": "never", **options}
    return run(target, head, Request(prompt, max_new_tokens=count, **options)).ids


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", v) for v in (-1, -1e-9, float("nan"), float("inf"))]
    + [("top_p", v) for v in (0.0, -0.1, 1.1, float("nan"))]
    + [("top_k", v) for v in (-1, 1.5, True)]
    + [("seed", v) for v in (0.5, True, None)],
)
def test_impossible_settings_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must"):
        Sampling(**{field: value})


@pytest.mark.parametrize("temperature", [0.0, 1e-6, GREEDY_BELOW])
def test_temperatures_up_to_one_threshold_are_greedy_in_every_loop(temperature: float) -> None:
    target, prompt = random_target(), [5, 6, 7]
    sampling = Sampling(temperature, top_p=0.9, top_k=3, seed=4)
    expected = written(target, None, prompt, 20)
    assert written(target, None, prompt, 20, sampling=sampling) == expected
    assert written(target, random_head(target), prompt, 20, sampling=sampling) == expected
    logits = stock_logits(target, [prompt + expected])[0]
    assert logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist() == expected
    assert Sampling(temperature).greedy and not Sampling(2 * GREEDY_BELOW).greedy


def test_just_above_the_threshold_nothing_overflows() -> None:
    target, sampling = random_target(), Sampling(2 * GREEDY_BELOW)
    expected = written(target, None, [5, 6, 7], 20)
    assert written(target, random_head(target), [5, 6, 7], 20, sampling=sampling) == expected


# --- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize(("top_p", "top_k"), FILTERS)
def test_filters_are_those_of_transformers_in_its_order(temperature: float, top_p: float, top_k: int) -> None:
    draws = torch.Generator().manual_seed(17)
    logits = 3 * torch.randn(40, 97, generator=draws)
    logits[20:] = logits[20:].round()  # many equal logits, at the boundaries too
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    expected = warpers(torch.zeros(40, 1, dtype=torch.long), logits.clone())  # type: ignore[arg-type]
    ours = filtered(logits.view(8, 5, 97), Sampling(temperature, top_p, top_k)).view(40, 97)
    assert torch.equal(ours, expected)
    assert ours.isfinite().any(dim=-1).all(), "a token always stays"


def test_a_token_just_at_the_boundary_of_top_p_is_dropped() -> None:
    """Of four equal tokens, the better half is exactly 0.5: two stay, as with transformers."""
    logits = torch.zeros(1, 4)
    expected = TopPLogitsWarper(0.5)(torch.zeros(1, 1, dtype=torch.long), logits.clone())  # type: ignore[arg-type]
    assert int(expected.isfinite().sum()) == 2
    assert torch.equal(filtered(logits, Sampling(1.0, top_p=0.5)), expected)


def test_filtering_leaves_its_input_alone_and_works_in_float32() -> None:
    logits = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = logits.clone()
    assert filtered(logits, Sampling(0.7, 0.5, 2)).dtype == torch.float32
    assert torch.equal(logits, before)


# --- noise -----------------------------------------------------------------------------------------------------------


def test_noise_depends_on_seed_row_and_position_alone() -> None:
    def draw(seed: int = 0, row: int = 0, position: int = 7, **settings: Any) -> Tensor:
        return gumbel_noise(Sampling(1.0, seed=seed, **settings), row, position, 50, CPU)

    first = draw()
    assert first.shape == (50,) and first.dtype == torch.float32
    assert torch.equal(draw(), first) and torch.equal(draw(top_k=3, top_p=0.5), first)
    others = [draw(seed=1), draw(row=1), draw(position=8), draw(seed=-1), draw(seed=2**70)]
    # Arguments are not glued together: 1, 11 and 11, 1 are different draws.
    others += [draw(seed=1, row=1, position=1), draw(seed=1, row=11, position=1), draw(seed=11, row=1, position=1)]
    drawn = torch.stack([first, *others])
    assert drawn.unique(dim=0).shape[0] == len(drawn)
    assert drawn.unique().numel() > 0.99 * drawn.numel(), "streams do not overlap"


def test_noise_has_the_gumbel_distribution_within_and_across_positions() -> None:
    within = gumbel_noise(Sampling(1.0, seed=3), 0, 5, 20000, CPU)
    across = torch.stack([gumbel_noise(Sampling(1.0, seed=3), 0, position, 4, CPU) for position in range(3000)])
    for sample in (within, across.flatten(), across[:, 0], across.amax(dim=1) - torch.tensor(4.0).log()):
        assert sample.isfinite().all()
        assert kolmogorov_smirnov(torch.exp(-torch.exp(-sample.double()))) > UNLIKELY
    assert torch.corrcoef(across.T).fill_diagonal_(0).abs().max() < 0.08
    assert torch.corrcoef(torch.stack((across[1:, 0], across[:-1, 0])))[0, 1].abs() < 0.08


def global_states() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]


def test_global_generators_neither_govern_a_sampled_run_nor_feel_it() -> None:
    target = random_target()
    texts = []
    for seed in (1, 2):
        random.seed(seed), np.random.seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            before = global_states()
            texts.append(written(target, random_head(target), [1, 2, 3], 24, sampling=Sampling(1.0, seed=9)))
            assert global_states() == before
    assert texts[0] == texts[1]


# --- texts -----------------------------------------------------------------------------------------------------------


SETTINGS = [(0.3, 1.0, 0), (0.7, 0.9, 0), (1.0, 1.0, 0), (1.0, 1.0, 5), (1.5, 0.95, 8)]
"""temperature, top_p, top_k"""


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), SETTINGS)
@pytest.mark.parametrize("vocabulary", [8, 64])
def test_plain_and_speculative_texts_of_one_seed_are_the_same(
    vocabulary: int, temperature: float, top_p: float, top_k: int
) -> None:
    """The small vocabulary is drafted almost whole, so that much is accepted; of the large one little is."""
    target = random_target(vocabulary=vocabulary)
    head, prompt = random_head(target), [1, 2, 3]
    texts = []
    for seed in (0, 1):
        sampling = Sampling(temperature, top_p, top_k, seed)
        plain = written(target, None, prompt, 24, sampling=sampling)
        assert written(target, head, prompt, 24, sampling=sampling) == plain
        assert written(target, head, prompt, 24, sampling=sampling, shape=TreeShape(24, 5, 6)) == plain
        assert written(target, head, prompt, 24, sampling=sampling, method="chain", shape=TreeShape.chain(4)) == plain
        texts.append(plain)
    assert texts[0] != texts[1]


@pytest.mark.parametrize("temperature", [0.7, 1.2])
def test_a_trained_pair_samples_one_text_by_both_methods(temperature: float) -> None:
    target, head = ref.reference_target(), ref.reference_head("qwen3-eagle3-dv208")
    request = {"prompt": ref.prompts()["story"]["ids"], "max_new_tokens": 40, "stop": "never"}
    for seed in (0, 1):
        sampling = Sampling(temperature, top_p=0.95, seed=seed)
        plain = run(target, None, Request(**request, method="plain", sampling=sampling))
        eagle = run(target, head, Request(**request, shape=TreeShape(16, 3, 4), sampling=sampling))
        assert eagle.ids == plain.ids
        assert eagle.tau is not None and eagle.tau > 1.3, "drafts of a trained head are accepted when sampling too"


def test_equal_logits_are_all_drawn_about_equally_often() -> None:
    """Three equal logits, seeds 0..299, first and second token: filtering must not turn into an argmax."""
    target = random_target.__wrapped__(vocabulary=3)
    target.lm_head.weight.zero_()
    head = random_head(target)
    pairs = torch.tensor(
        [
            written(target, head, [1], 2, sampling=Sampling(1, seed=seed), shape=TreeShape(4, 0, 3))
            for seed in range(300)
        ]
    )
    for column in pairs.T:
        assert all(60 <= count <= 140 for count in column.bincount(minlength=3))
    both = (3 * pairs[:, 0] + pairs[:, 1]).bincount(minlength=9)
    assert chi_square(both, torch.ones(9)) > UNLIKELY


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.9, 3)])
def test_texts_of_three_tokens_have_the_targets_joint_distribution(top_p: float, top_k: int) -> None:
    """All 64 texts over a vocabulary of 4, from the stock model, against 500 speculative runs."""
    target, prompt, trials = random_target(vocabulary=4), [1, 2, 3], 500
    settings = Sampling(1.3, top_p, top_k)
    texts = list(product(range(4), repeat=3))
    probabilities = []
    for text, logits in zip(texts, stock_logits(target, [[*prompt, *text] for text in texts]), strict=True):
        steps = filtered(logits[len(prompt) - 1 : -1], settings).softmax(dim=-1)
        probabilities.append(steps[torch.arange(3), torch.tensor(text)].prod())
    counts = torch.zeros(64)
    for seed in range(trials):
        sampling = Sampling(1.3, top_p, top_k, seed)
        first, second, third = written(
            target, random_head(target), prompt, 3, sampling=sampling, shape=TreeShape(7, 1, 3)
        )
        counts[16 * first + 4 * second + third] += 1
    expected = torch.stack(probabilities)
    assert expected.sum().isclose(torch.tensor(1.0), atol=1e-5)
    assert chi_square(counts, expected) > UNLIKELY


def test_the_first_token_of_a_trained_target_follows_its_softmax() -> None:
    target, prompt, trials = ref.reference_target(), ref.prompts()["one_token"]["ids"], 300
    expected = stock_logits(target, [prompt])[0][-1].softmax(dim=-1)
    request = {"prompt": prompt, "method": "plain", "max_new_tokens": 1, "stop": "never"}
    drawn = [run(target, None, Request(**request, sampling=Sampling(1.0, seed=seed))).ids[0] for seed in range(trials)]
    assert chi_square(torch.tensor(drawn).bincount(minlength=512), expected) > UNLIKELY


def test_the_statistics_bite() -> None:
    """A bias of a few percent in a thousand draws, and noise of another kind, are seen."""
    fair = torch.full((4,), 0.25)
    assert chi_square(torch.tensor([250, 252, 247, 251]), fair) > 0.9
    assert chi_square(torch.tensor([325, 225, 225, 225]), fair) < UNLIKELY
    uniform = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    assert kolmogorov_smirnov(uniform) > 0.01
    assert kolmogorov_smirnov(uniform**1.1) < UNLIKELY
