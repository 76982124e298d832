"""Ranks and replay agree with the trees that the engine really builds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_repro.engine.shape import TreeShape, node_capacity
from eagle_repro.engine.tree import Candidates, DraftTree, build_tree, ranked
from eagle_repro.measure.replay import Recording, accepted_at, rank_path, replay

VOCABULARY = 4  # so small that several candidates of a level carry one token, in different branches


def drafted(dice: np.random.Generator, depth: int, top_k: int, ties: bool) -> Candidates:
    """Candidates as drafting makes them: distinct siblings, best first, no child better than its parent."""

    def children(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = np.stack([dice.permutation(max(VOCABULARY, top_k))[:top_k] for _ in range(rows)])
        steps = -dice.integers(0, 3, (rows, top_k)) / 2 if ties else -dice.exponential(1.0, (rows, top_k))
        return torch.tensor(tokens), torch.tensor(-np.sort(-steps, axis=1), dtype=torch.float32)

    tokens, best = children(1)
    levels, scores, frontiers = [tokens], [best], []
    frontier = torch.arange(top_k).unsqueeze(0)
    for level in range(depth):
        tokens, steps = children(top_k)
        levels.append(tokens.reshape(1, -1))
        scores.append((best.reshape(-1, 1) + steps).reshape(1, -1))
        frontiers.append(frontier)
        best, newest = (column[:, :top_k] for column in ranked(scores[-1]))
        frontier = newest + top_k + level * top_k**2
    return Candidates.of_levels(levels, scores, frontiers)


def walked(tree: DraftTree, text: list[int]) -> int:
    """Drafted tokens that a tree and a text have in common from the root on."""
    tokens, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
    node, count = 0, 0
    for token in text:
        child = [n for n, parent in enumerate(parents) if parent == node and tokens[n] == token]
        if not child:
            return count
        node, count = child[0], count + 1
    return count


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_kept_part_of_a_path_is_what_the_built_tree_has_of_it(data: Any) -> None:
    depth, top_k = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 4))
    dice = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    candidates = drafted(dice, depth, top_k, ties=data.draw(st.booleans()))
    text = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=depth + 1, max_size=depth + 3))
    arrays = [field[0].numpy() for field in (candidates.tokens, candidates.parents, candidates.scores)]
    path = rank_path(*arrays, text, top_k, depth)
    assert [len(ranks) for ranks in path] == [depth + 1 - level for level in range(len(path))]
    for shallow in range(depth + 1):
        count = top_k + shallow * top_k**2
        first = Candidates(*(getattr(candidates, n)[:, :count] for n in ("tokens", "parents", "scores", "depths")))
        for total_tokens in range(2, node_capacity(shallow, top_k) + 1):
            tree = build_tree(torch.zeros(1, dtype=torch.long), first, TreeShape(total_tokens, shallow, top_k))
            assert accepted_at(path, total_tokens, shallow) == walked(tree, text)


def test_replay_goes_from_where_the_last_cycle_ended() -> None:
    # Positions 0, 3, 4: two accepted, none, one; the path at the skipped positions must not count.
    nothing, one, two = [], [[0]], [[0, 0], [1]]
    recording = Recording(2, 1, [two, [[9, 9]], [[9, 9]], nothing, [[0, 0]], one])
    assert replay(recording, 4, 1, 7) == [2, 0, 1]
    assert replay(recording, 2, 1, 7) == [1, 0, 0, 1]


def test_the_last_cycle_is_not_cut() -> None:
    recording = Recording(1, 3, [[[0] * 4, [1] * 3, [2] * 2, [3]]] * 5)
    assert replay(recording, 5, 3, 6) == [4]
    assert replay(recording, 5, 3, 3) == [4]


@pytest.mark.parametrize(("total_tokens", "depth"), [(4, 2), (9, 1), (3, -1)])
def test_a_shape_outside_the_recording_is_refused(total_tokens: int, depth: int) -> None:
    with pytest.raises(ValueError, match=r"outside the recording, which holds top_k=2 up to depth=1"):
        replay(Recording(2, 1, [[]] * 9), total_tokens, depth, 10)


def test_more_tokens_than_recorded_are_refused() -> None:
    with pytest.raises(ValueError, match="9 positions; 11 new tokens need more"):
        replay(Recording(2, 1, [[]] * 9), 4, 1, 11)
