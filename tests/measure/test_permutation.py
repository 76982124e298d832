"""The permutation test says the truth about equal sets, finds unequal ones, and its control exposes unsound tests."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from eagle_repro.measure import permutation
from eagle_repro.measure.permutation import (
    ALPHA,
    CAUGHT,
    SHARES,
    alikeness,
    control,
    detectable_share,
    two_sample,
)

ALLOWED = (0.01, 0.11)  # share of p < 0.05 in a hundred controls


def draws(count: int, seed: int, tokens: int = 6, vocabulary: int = 5, bias: float = 0.0) -> np.ndarray:
    """Independent texts; `bias` moves probability to token 0."""
    weights = np.full(vocabulary, (1 - bias) / vocabulary)
    weights[0] += bias
    return np.random.default_rng(seed).choice(vocabulary, size=(count, tokens), p=weights)


def share_below(found: list[float]) -> float:
    return sum(p < ALPHA for p in found) / len(found)


def test_p_is_the_share_of_all_relabellings_that_look_as_different() -> None:
    first, second = draws(5, seed=1, tokens=3), draws(5, seed=2, tokens=3, bias=0.5)
    kernel = alikeness(np.concatenate((first, second)))

    def statistic(chosen: tuple[int, ...]) -> float:
        labels = np.where(np.isin(np.arange(10), chosen), 1, -1)
        return float(labels @ kernel @ labels)

    observed = statistic((0, 1, 2, 3, 4))
    everything = [statistic(chosen) >= observed for chosen in combinations(range(10), 5)]
    found = two_sample(first, second, permutations=4999)
    assert found.p == pytest.approx(np.mean(everything), abs=0.02)
    assert found.statistic == pytest.approx(observed / 25)
    assert (found.samples, found.permutations) == (5, 4999)


def test_texts_are_alike_by_tokens_and_neighbours_at_the_same_place() -> None:
    texts = np.array([[1, 2, 3], [1, 2, 9], [2, 1, 3], [3, 2, 1]])
    assert alikeness(texts).tolist() == [[5, 3, 1, 1], [3, 5, 0, 1], [1, 0, 5, 0], [1, 1, 0, 5]]


def test_one_set_twice_is_not_different_and_nothing_in_common_is() -> None:
    same, other = draws(20, seed=1), draws(20, seed=1) + 100
    assert two_sample(same, same).p == 1
    assert two_sample(same, other).p == 1 / 5000


def test_p_is_uniform_where_nothing_differs() -> None:
    found = [
        two_sample(draws(30, seed=2 * n), draws(30, seed=2 * n + 1), permutations=199, seed=n).p for n in range(200)
    ]
    for level in (0.05, 0.25, 0.5, 0.9):
        assert np.mean(np.array(found) <= level) == pytest.approx(level, abs=0.1)


@pytest.mark.parametrize("bias", [0.15, 0.3])
def test_a_moved_probability_is_found(bias: float) -> None:
    assert two_sample(draws(200, seed=1), draws(200, seed=2, bias=bias)).p < 0.001


def test_an_order_of_tokens_that_changed_is_found_though_their_counts_did_not() -> None:
    """Each place has the same tokens in both sets; only which of them come together differs."""
    first = np.repeat(np.arange(2), 50).reshape(-1, 1) * np.ones((1, 4), dtype=int)
    second = np.random.default_rng(0).permuted(first, axis=0)
    assert (first.mean(axis=0) == second.mean(axis=0)).all()
    assert two_sample(first, second).p < 0.001


def test_the_same_seed_gives_the_same_p_and_touches_no_global_state() -> None:
    first, second = draws(50, seed=1), draws(50, seed=2)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    assert two_sample(first, second, seed=3) == two_sample(first, second, seed=3)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


def test_sets_that_cannot_be_compared_are_refused() -> None:
    for second in (draws(3, seed=0), draws(4, seed=0, tokens=5)):
        with pytest.raises(ValueError, match="two sets .* of one shape are needed"):
            two_sample(draws(4, seed=0), second)
    with pytest.raises(ValueError, match="two sets"):
        two_sample(draws(1, seed=0), draws(1, seed=1))


# The control


def test_the_control_of_independent_texts_lies_where_it_should() -> None:
    runs = draws(2000, seed=5).reshape(40, 50, 6)
    assert ALLOWED[0] <= share_below(control(runs, 200)) <= ALLOWED[1]


def test_tokens_taken_for_samples_are_exposed() -> None:
    """The classic mistake: tokens of one text hang together, and a test that shuffles them finds what is not there."""
    texts = np.repeat(draws(1200, seed=7, tokens=1), 8, axis=1)  # every text says one thing, eight times
    runs = texts.reshape(120, 10, 8)
    assert ALLOWED[0] <= share_below(control(runs, 120)) <= ALLOWED[1]
    assert share_below(control(runs.reshape(120, 80, 1), 480, splits=40)) > 0.5


def test_texts_of_a_run_that_hang_together_are_exposed() -> None:
    """Runs that each lean to one token, as with a generator that all texts of a run share."""
    runs = np.stack([draws(50, seed=n, bias=0.4 * (n % 2)) for n in range(40)])
    assert share_below(control(runs, 200)) > ALLOWED[1]


def test_runs_that_repeat_each_other_are_exposed() -> None:
    runs = np.stack([draws(50, seed=0)] * 40)
    assert share_below(control(runs, 200)) < ALLOWED[0]


def test_too_few_runs_are_refused() -> None:
    for runs, samples in ((draws(60, seed=0).reshape(6, 10, 6), 40), (draws(60, seed=0).reshape(6, 10, 6), 25)):
        with pytest.raises(ValueError, match=f"6 runs of 10 texts do not give two sides of {samples}"):
            control(runs, samples)


# What can be seen


def test_more_texts_see_less_and_what_is_named_is_found() -> None:
    texts, foreign = draws(400, seed=3), draws(100, seed=4, bias=1.0)
    few, many = (detectable_share(texts, foreign, count) for count in (20, 200))
    assert few is not None and many is not None and many < few
    assert few in SHARES and many in SHARES


def test_texts_of_the_same_distribution_are_no_detectable_effect() -> None:
    assert detectable_share(draws(400, seed=3), draws(400, seed=4), 100) is None


@pytest.mark.parametrize(("p", "found"), [(0.0005, True), (0.001, False), (0.01, False)])
def test_an_effect_is_looked_for_at_the_level_that_the_engine_is_judged_at(
    p: float, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stated(first: np.ndarray, second: np.ndarray, *, permutations: int, seed: int) -> permutation.Compared:
        assert 1 / (1 + permutations) < CAUGHT, "too few shuffles for p to fall below the level"
        return permutation.Compared(p, 0.0, len(first), permutations)

    monkeypatch.setattr(permutation, "two_sample", stated)
    share = detectable_share(draws(200, seed=3), draws(50, seed=4), 100)
    assert share == (SHARES[0] if found else None)


def test_a_pool_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="10 texts were given: two sets of 6 are needed"):
        detectable_share(draws(10, seed=0), draws(10, seed=1), 6)
