"""Acceptance: the walk along the target's choices, and that what comes out follows the target's distribution."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_repro.engine.accept import Accepted, Sampling, accept, choose, filtered, finite_choices, gumbel_noise
from eagle_repro.engine.cycle import node_noise
from eagle_repro.engine.generate import Cycle, Generation
from eagle_repro.engine.tree import DraftTree
from tests.engine import reference as ref
from tests.engine.statistics import UNLIKELY, chi_square
from tests.engine.trees import random_parents, random_tokens, repeated, tree_of

CASES = ref.read("posterior_cases.json")
CPU = torch.device("cpu")


def accepted_of(tree: DraftTree, choices: list[list[int]], levels: int | None = None) -> Accepted:
    """accept() for given choices, from logits that are all finite."""
    finite = torch.ones(len(choices), dtype=torch.bool)
    return accept(tree, torch.tensor(choices), finite, int(tree.depths.max()) if levels is None else levels)


# --- the walk --------------------------------------------------------------------------------------------------------


def walk(parents: list[int], tokens: list[int], choices: list[int]) -> list[int]:
    """Accepted nodes from the root on: follow the child that carries the choice, as long as there is one."""
    path = [0]
    while True:
        here = path[-1]
        following = [i for i, parent in enumerate(parents) if parent == here and tokens[i] == choices[here]]
        if not following:
            return path
        path.append(following[0])


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_the_accepted_path_is_the_walk_along_the_choices(seed: int, nodes: int, rows: int) -> None:
    """A small vocabulary, so that walks are long and nodes off the path agree with their parents too."""
    draws = random.Random(seed)
    parents = [random_parents(draws, nodes) for _ in range(rows)]
    # Many children need many tokens; choices are the token of some child where there is one, so that paths go deep.
    tokens = [random_tokens(draws, row, 64) for row in parents]
    choices = [
        [draws.choice([tokens[r][i] for i in range(nodes) if parents[r][i] == node] + [63]) for node in range(nodes)]
        for r in range(rows)
    ]
    tree = tree_of(parents, tokens)
    out = accepted_of(tree, choices, levels=int(tree.depths.max()) + 2)
    for row in range(rows):
        path = walk(parents[row], tokens[row], choices[row])
        count = int(out.count[row])
        assert count == len(path) - 1
        assert out.path[row].tolist() == path + [0] * (out.path.shape[1] - len(path)), "padded with the root"
        assert out.emitted[row, : count + 1].tolist() == [choices[row][node] for node in path]


def test_the_first_drafted_token_is_compared_like_any_other() -> None:
    """Everything below a wrong first token agrees, and none of it may be accepted."""
    out = accepted_of(tree_of([[-1, 0, 1, 2]], [[9, 1, 2, 3]]), [[4, 2, 3, 5]])
    assert (int(out.count), int(out.emitted[0, 0])) == (0, 4)


def test_of_equal_siblings_the_first_of_the_deepest_paths_wins() -> None:
    tree = tree_of([[-1, 0, 0, 0, 2, 3]], [[9, 1, 1, 1, 2, 2]])
    out = accepted_of(tree, [[1, 2, 2, 2, 7, 7]])
    assert out.path[0].tolist() == [0, 2, 4] and out.emitted[0].tolist() == [1, 2, 7]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_whose_logits_are_not_finite_is_marked_and_no_other(value: float) -> None:
    tree = tree_of([[-1, 0], [-1, 0]], [[1, 2], [1, 2]])
    logits = torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(0))
    logits[1, 1, 5 if value != -math.inf else slice(None)] = value  # one -inf is only a token that is never chosen
    choices = choose(logits, Sampling(), None)
    assert accept(tree, choices, finite_choices(logits, choices), 1).finite.tolist() == [True, False]


@pytest.mark.parametrize("case", CASES["greedy"], ids=range(len(CASES["greedy"])))
def test_greedy_acceptance_is_the_official_one(case: dict[str, Any]) -> None:
    tree = tree_of([case["parents"]], [case["tokens"]])
    logits = torch.tensor([case["node_logits"]])
    levels = int(tree.depths.max())
    choices = choose(logits, Sampling(), None)
    out = accept(tree, choices, finite_choices(logits, choices), levels)
    assert ref.observed_outcome(out) == ref.recorded_outcome(case, levels)


# --- choices ---------------------------------------------------------------------------------------------------------


def test_equal_logits_go_to_the_lowest_id() -> None:
    logits = torch.zeros(1, 3, 50)
    logits[0, 1, [7, 30]] = 2.0
    assert choose(logits, Sampling(), None).tolist() == [[0, 7, 0]]
    flat = torch.zeros(1, 3, 50)
    assert choose(flat, Sampling(1.0), flat).tolist() == [[0, 0, 0]]


def test_sampling_without_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="needs noise"):
        choose(torch.zeros(1, 1, 4), Sampling(1.0), None)


def test_the_choice_follows_noise_among_the_tokens_that_the_filters_keep() -> None:
    logits = torch.tensor([[[3.0, 2.0, 1.0, 0.0]]])
    noise = torch.tensor([[[0.0, 1.5, 0.0, 99.0]]])
    assert choose(logits, Sampling(1.0), noise).item() == 3
    assert choose(logits, Sampling(1.0, top_k=2), noise).item() == 1
    assert choose(logits, Sampling(0.5, top_k=2), noise).item() == 0


# --- exact distributions ---------------------------------------------------------------------------------------------


def case_probabilities(case: dict[str, Any]) -> Tensor:
    """(n, V) float64: what the official processors (temperature, then top_p, then top_k) leave of each node's logits.

    Ours run top_k before top_p, like transformers' own generate; two calls give the official order.
    """
    logits = torch.tensor(case["node_logits"])
    logits = filtered(logits, Sampling(case["temperature"], top_p=case["top_p"] or 1.0))
    return filtered(logits, Sampling(1.0, top_k=case["top_k"])).double().softmax(dim=-1)


def choices_along_every_text(
    case: dict[str, Any], probabilities: Tensor, draws: random.Random
) -> tuple[list[list[int]], list[float]]:
    """Every sequence of choices that matters, with its probability: one choice at each node of a path, until it leaves
    the tree. Nodes with the same text have the same logits and noise, so they choose alike; nodes off the path choose
    anything, and it must not matter.
    """
    tokens, parents, vocabulary = case["tokens"], case["parents"], case["vocab"]
    found: list[tuple[list[int], float]] = []

    def follow(same_text: list[int], choices: dict[int, int], probability: float) -> None:
        for token in range(vocabulary):
            chosen = {**choices, **dict.fromkeys(same_text, token)}
            following = [i for i, parent in enumerate(parents) if parent in same_text and tokens[i] == token]
            share = probability * float(probabilities[same_text[0], token])
            if share == 0:
                continue
            if following:
                follow(following, chosen, share)
            else:
                found.append(([chosen.get(i, draws.randrange(vocabulary)) for i in range(len(tokens))], share))

    follow([0], {}, 1.0)
    return [choices for choices, _ in found], [share for _, share in found]


def recorded_outcomes(case: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """Probability of every (accepted tokens, next token) that the official function can give."""
    return {
        (*outcome["accepted"], token): outcome["prob"] * probability
        for outcome in case["outcomes"]
        for token, probability in enumerate(outcome["next_token_probs"])
        if outcome["prob"] * probability > 0
    }


@pytest.mark.parametrize("case", CASES["sampling"], ids=[c["name"] for c in CASES["sampling"]])
def test_outcomes_have_exactly_the_official_probabilities(case: dict[str, Any]) -> None:
    """The emitted tokens fix the outcome: all but the last are accepted, and the last has no node."""
    choices, shares = choices_along_every_text(case, case_probabilities(case), random.Random(0))
    tree = repeated(case["parents"], case["tokens"], len(choices))
    out = accepted_of(tree, choices)
    ours: dict[tuple[int, ...], float] = defaultdict(float)
    for row, share in enumerate(shares):
        ours[tuple(out.emitted[row, : int(out.count[row]) + 1].tolist())] += share
    expected = recorded_outcomes(case)
    assert math.isclose(sum(ours.values()), 1, abs_tol=1e-6)
    for outcome in ours.keys() | expected.keys():
        assert math.isclose(ours[outcome], expected.get(outcome, 0.0), abs_tol=1e-6), outcome


@pytest.mark.parametrize("index", [3, 6, 10, 13, 17, 30])
def test_drawn_outcomes_fit_the_official_probabilities(index: int) -> None:
    """choose and accept as a cycle calls them, with real noise: 3000 seeds of the case's tree."""
    case, trials = CASES["sampling"][index], 3000
    sampling = Sampling(case["temperature"], case["top_p"] or 1.0, case["top_k"])
    tree = repeated(case["parents"], case["tokens"], trials)
    levels = int(tree.depths.max())
    noise = torch.stack(
        [
            torch.stack([gumbel_noise(Sampling(1.0, seed=s), 0, 9 + d, case["vocab"], CPU) for d in range(levels + 1)])
            for s in range(trials)
        ]
    )
    logits = torch.tensor([case["node_logits"]]).expand(trials, -1, -1)
    state: Any = SimpleNamespace(noise=noise)
    choices = choose(logits, sampling, node_noise(state, tree))
    out = accept(tree, choices, finite_choices(logits, choices), levels)
    expected = recorded_outcomes(case)
    counts = dict.fromkeys(expected, 0)
    for row in range(trials):
        counts[tuple(out.emitted[row, : int(out.count[row]) + 1].tolist())] += 1
    assert chi_square(torch.tensor(list(counts.values())), torch.tensor(list(expected.values()))) > UNLIKELY


def test_whatever_was_drafted_the_first_token_follows_the_target() -> None:
    """p = .4, .3, .2, .1 with other children each time, equal siblings and the whole vocabulary among them."""
    p, trials = torch.tensor([0.4, 0.3, 0.2, 0.1]), 20000
    noise = torch.stack([gumbel_noise(Sampling(1.0, seed=seed), 0, 5, 4, CPU) for seed in range(trials)])
    for children in ([3], [0, 1], [2, 2], [0, 1, 2, 3]):
        tree = repeated([-1] + [0] * len(children), [0, *children], trials)
        logits = p.log().expand(trials, len(children) + 1, 4)
        choices = choose(logits, Sampling(1.0), noise.unsqueeze(1).expand_as(logits))
        out = accept(tree, choices, finite_choices(logits, choices), 1)
        frequency = out.emitted[:, 0].bincount(minlength=4) / trials
        assert (frequency - p).abs().max() < 0.015, children
        accepted = torch.isin(out.emitted[:, 0], torch.tensor(children))
        assert torch.equal(out.count, accepted.long()), "a drafted token that the target chose is accepted"


# --- tau -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("accepted", "tau"), [([3, 0, 2], 8 / 3), ([], None), ([4], 5.0)])
def test_tau_counts_the_bonus_token_and_is_none_without_a_cycle(accepted: list[int], tau: float | None) -> None:
    cycles = [Cycle(nodes=16, accepted=count, emitted=1, context=8) for count in accepted]
    assert Generation([], "budget", cycles, 0.0, 0.0).tau == tau
