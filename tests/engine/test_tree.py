"""Draft trees: what is grown and kept, what a node sees, and that verifying a tree is verifying its paths."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_repro.engine.accept import Accepted, Sampling
from eagle_repro.engine.attention import TREE_ATTENTION, attention_of, fold_mask, grouped_attention, visibility
from eagle_repro.engine.cycle import State, causal, commit, cycle, verify
from eagle_repro.engine.request import Request
from eagle_repro.engine.shape import TreeShape, read_span
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import ancestor_mask, root_tree
from tests.engine import reference as ref
from tests.engine.scripted import scripted_draft
from tests.engine.tiny import ARCHITECTURES, begun, random_head, random_target, stacked, stock_logits
from tests.engine.trees import ancestors_of, random_parents, random_tokens, tree_of

SEEDS = st.integers(0, 2**32 - 1)


# --- what a node sees ------------------------------------------------------------------------------------------------


def drawing(mask: Tensor) -> list[str]:
    return ["".join("1" if seen else "0" for seen in row) for row in mask.tolist()]


def test_a_mask_row_is_a_nodes_ancestors_and_itself() -> None:
    """The tree: 0 -> 1, 2;  1 -> 3, 4;  2 -> 5;  4 -> 6."""
    parents = torch.tensor([[-1, 0, 0, 1, 1, 2, 4]])
    assert drawing(ancestor_mask(parents, 2)[0]) == [
        "1000000",
        "1100000",
        "1010000",
        "1101000",
        "1100100",
        "1010010",
        "1100101",
    ]


def test_the_additive_mask_shows_the_committed_text_and_then_the_tree() -> None:
    """Two rows of one batch with 3 and 1 committed tokens, the same chain-and-branch tree, span 7."""
    block = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], dtype=torch.bool)
    mask = visibility(torch.tensor([3, 1]), block, 7, torch.float32)
    assert mask.shape == (2, 1, 3, 7)
    assert drawing(mask[0, 0] == 0) == ["1111000", "1111100", "1111010"]
    assert drawing(mask[1, 0] == 0) == ["1100000", "1110000", "1101000"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_masks_hide_with_the_dtypes_own_minimum(dtype: torch.dtype) -> None:
    mask = visibility(torch.tensor([2]), causal(3, torch.device("cpu")), 8, dtype)
    assert mask.dtype == dtype and mask.isfinite().all()
    assert set(mask.unique().tolist()) == {0.0, torch.finfo(dtype).min}


@given(SEEDS, st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_the_ancestor_mask_of_any_tree_is_the_one_counted_node_by_node(seed: int, nodes: int) -> None:
    tree = tree_of([random_parents(random.Random(seed), nodes)], [[0] * nodes])
    deepest = int(tree.depths.max())
    doublings = max(0, deepest - 1).bit_length()
    assert torch.equal(ancestor_mask(tree.parents, doublings), tree.ancestors)


@pytest.mark.parametrize("depth", range(34))
def test_a_chain_of_any_depth_sees_its_whole_past(depth: int) -> None:
    script = [torch.zeros(1, 1)] * (depth + 1)
    tree, _ = scripted_draft(script, TreeShape.chain(depth))
    assert torch.equal(tree.ancestors[0], causal(depth + 2, torch.device("cpu"))[0])


# --- what is grown and kept ------------------------------------------------------------------------------------------


def tied_script(draws: random.Random, shape: TreeShape, vocabulary: int) -> list[Tensor]:
    """Log-probabilities on a grid from 0 down: no ties in a row, many between rows and between child and parent."""
    grid = [-0.5 * step for step in range(vocabulary)]
    rows = [1] + [shape.top_k] * shape.depth
    return [torch.tensor([draws.sample(grid, vocabulary) for _ in range(count)]) for count in rows]


def selected(script: list[Tensor], shape: TreeShape) -> list[tuple[tuple[int, ...], float]]:
    """The official selection in plain Python: (token path, score) of every kept node, numbered from 1."""
    k = shape.top_k

    def best(rows: list[tuple[tuple[int, ...], float]], count: int) -> list[int]:
        return sorted(range(len(rows)), key=lambda flat: (-rows[flat][1], flat))[:count]

    frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    candidates: list[tuple[tuple[int, ...], float]] = []
    for level in script:
        newest = [
            ((*path, token), score + float(level[row, token]))
            for row, (path, score) in enumerate(frontier)
            for token in sorted(range(level.shape[1]), key=lambda token, row=row: -level[row, token])[:k]
        ]
        candidates += newest
        frontier = [newest[flat] for flat in best(newest, k)]
    return [candidates[flat] for flat in sorted(best(candidates, shape.total_tokens - 1))]


@st.composite
def shapes(draw: st.DrawFn) -> TreeShape:
    depth, top_k = draw(st.integers(0, 5)), draw(st.integers(1, 5))
    capacity = 1 + top_k + depth * top_k**2
    return TreeShape(draw(st.integers(2, capacity)), depth, top_k)


@given(SEEDS, shapes())
@settings(max_examples=60, deadline=None)
def test_the_best_candidates_are_kept_in_order_and_never_without_their_parents(seed: int, shape: TreeShape) -> None:
    script = tied_script(random.Random(seed), shape, vocabulary=7)
    tree, _ = scripted_draft(script, shape, root=6)
    tokens, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
    assert tokens[0] == 6 and parents[0] == -1
    ours = [tuple(tokens[i] for i in ancestors_of(parents, node)[1:]) for node in range(1, len(tokens))]
    expected = selected(script, shape)
    assert ours == [path for path, _ in expected]
    assert tree.scores[0].tolist() == [0.0] + [score for _, score in expected]
    assert tree.depths[0].tolist() == [0] + [len(path) for path, _ in expected]
    assert all(parent < node for node, parent in enumerate(parents))
    assert len(set(zip(parents, tokens, strict=True))) == len(tokens), "equal siblings"
    assert torch.equal(tree.ancestors, tree_of([parents], [tokens]).ancestors)


def test_paths_are_all_ways_from_the_root_to_a_leaf() -> None:
    tree = tree_of([[-1, 0, 0, 1, 1, 2, 4]], [[0] * 7])
    assert tree.paths() == [[0, 1, 3], [0, 2, 5], [0, 1, 4, 6]]
    assert root_tree(torch.tensor([3])).paths() == [[0]]


def test_a_copy_on_the_host_does_not_follow_the_tree() -> None:
    tree = tree_of([[-1, 0]], [[5, 6]])
    kept = tree.cpu()
    tree.tokens.zero_()
    assert kept.tokens.tolist() == [[5, 6]]


# --- verifying a tree is verifying its paths -------------------------------------------------------------------------


def prefilled(target: Target, prompts: list[list[int]], levels: int, head: Any = None) -> State:
    """One state with a row for every prompt, room for 200 tokens, rows for `levels` drafted levels."""
    shape = TreeShape(2, levels - 1, 1)
    requests = [Request(prompt, shape=shape, max_new_tokens=200 - len(prompt)) for prompt in prompts]
    return stacked([begun(target, head, request, shape)[0] for request in requests])


def assert_nodes_equal_plain_texts(target: Target, logits: Tensor, texts: list[list[int]], tree: Any) -> None:
    for row, text in enumerate(texts):
        tokens = tree.tokens[row].tolist()
        paths = [ancestors_of(tree.parents[row].tolist(), node) for node in range(len(tokens))]
        plain = stock_logits(target, [text + [tokens[i] for i in path] for path in paths])
        expected = torch.stack([logits[-1] for logits in plain])
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-4)


def random_trees(draws: random.Random, rows: int, nodes: int, vocabulary: int) -> Any:
    parents = [random_parents(draws, nodes) for _ in range(rows)]
    return tree_of(parents, [random_tokens(draws, row, vocabulary) for row in parents])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@given(SEEDS)
@settings(max_examples=12, deadline=None)
@torch.inference_mode()
def test_a_trees_logits_are_those_of_its_paths_and_a_committed_path_is_plain_text(architecture: str, seed: int) -> None:
    """Two rows with texts of their own: verify a tree, commit a path of it, verify another tree behind it."""
    draws, target = random.Random(seed), random_target(architecture)
    texts = [[draws.randrange(64) for _ in range(draws.randint(1, 20))] for _ in range(2)]
    first, second = (random_trees(draws, 2, draws.randint(1, 60), 64) for _ in range(2))
    levels = int(first.depths.max()) + 1
    state = prefilled(target, texts, levels)
    logits, features = verify(target, state, first, 192, features=True)
    assert_nodes_equal_plain_texts(target, logits, texts, first)

    nodes = [draws.randrange(first.tokens.shape[1]) for _ in texts]
    paths = [ancestors_of(first.parents[row].tolist(), node) for row, node in enumerate(nodes)]
    padded = torch.tensor([path + [0] * (levels + 1 - len(path)) for path in paths])
    emitted = first.tokens.gather(1, padded)
    count = torch.tensor([len(path) - 1 for path in paths])
    commit(state, features, Accepted.of(first, padded, count >= 0, count, emitted))
    texts = [
        text + [int(first.tokens[row, i]) for i in path]
        for row, (text, path) in enumerate(zip(texts, paths, strict=True))
    ]
    assert state.length.tolist() == [len(text) for text in texts]
    logits, _ = verify(target, state, second, 192, features=False)
    assert_nodes_equal_plain_texts(target, logits, texts, second)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.inference_mode()
def test_whatever_attention_the_model_came_with_the_tree_is_seen_through_ours(attention: str) -> None:
    target, draws = random_target(attention=attention), random.Random(3)
    texts, tree = [[1, 2, 3, 4, 5]], random_trees(draws, 1, 40, 64)
    state = prefilled(target, texts, int(tree.depths.max()))
    logits, _ = verify(target, state, tree, 128, features=False)
    assert_nodes_equal_plain_texts(target, logits, texts, tree)
    assert target.config._attn_implementation == attention


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("nodes", [1, 60])
@torch.inference_mode()
def test_half_precision_trees_have_finite_logits(dtype: torch.dtype, nodes: int) -> None:
    single = random_target()
    target = Target(type(single.model)(single.model.config).to(dtype).eval())
    target.model.load_state_dict(single.model.state_dict())
    tree = random_trees(random.Random(5), 1, nodes, 64)
    logits, _ = verify(target, prefilled(target, [[7, 8, 9]], 2), tree, 128, features=False)
    expected, _ = verify(single, prefilled(single, [[7, 8, 9]], 2), tree, 128, features=False)
    assert logits.dtype == dtype and logits.isfinite().all()
    assert (logits.float() - expected).abs().max() < (0.1 if dtype == torch.float16 else 0.8)


@torch.inference_mode()
def test_tree_attention_refuses_to_run_without_its_mask() -> None:
    for rows in (1, 2):
        query, key = torch.zeros(rows, 4, 3, 8), torch.zeros(rows, 2, 6, 8)
        for mask in (None, torch.zeros(3, 6), torch.zeros(rows, 1, 3, 5), torch.zeros(rows, 1, 9, 6)):
            with pytest.raises(ValueError, match="needs a mask of shape"):
                grouped_attention(query, key, key, mask, 1.0)  # type: ignore[arg-type]
        mask = fold_mask(torch.zeros(rows, 1, 3, 6), 2)
        assert grouped_attention(query, key, key, mask, 1.0).shape == (rows, 3, 4, 8)
    target = random_target()
    with attention_of(target.model, TREE_ATTENTION), pytest.raises(ValueError, match="needs a mask of shape"):
        target.model(torch.tensor([[1, 2, 3]]), attention_mask=None, use_cache=False)


# --- the target and its features -------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.inference_mode()
def test_single_steps_through_the_slot_cache_have_the_stock_logits(architecture: str) -> None:
    target, draws = random_target(architecture), random.Random(7)
    text = [draws.randrange(64) for _ in range(25)]
    expected = stock_logits(target, [text])[0]
    state = begun(target, None, Request(text[:20], method="plain", max_new_tokens=8), None)[0]
    for position in range(20, 25):
        state.root.fill_(text[position])
        logits, _ = verify(target, state, root_tree(state.root), 64, features=False)
        torch.testing.assert_close(logits[0, 0], expected[position], rtol=0, atol=1e-5)
        state.length += 1


@pytest.mark.parametrize(("layers", "taps"), [(4, (2, 2, 1)), (6, (2, 3, 3)), (8, (2, 4, 5)), (28, (2, 14, 25))])
@torch.inference_mode()
def test_features_are_the_three_hidden_states_of_the_stock_model(layers: int, taps: tuple[int, ...]) -> None:
    target = random_target(layers=layers)
    text = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    assert target.taps == taps
    mask = visibility(torch.tensor([0]), causal(8, text.device), 8, torch.float32)
    positions = torch.arange(8).unsqueeze(0)
    _, features = target.forward(text, positions, mask, target.cache(1, 8).at(positions, 8))
    states = target.model(text, output_hidden_states=True, use_cache=False).hidden_states
    expected = torch.cat([states[tap] for tap in taps], dim=-1)
    assert features is not None and features.shape == (1, 8, 3 * target.hidden_size)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)


# --- rows of a batch do not see each other ---------------------------------------------------------------------------


@torch.inference_mode()
def test_every_row_of_a_batch_goes_through_the_cycles_it_has_alone() -> None:
    target, head = ref.reference_target(), ref.reference_head("qwen3-eagle3-dv208")
    shape, accepts = TreeShape(16, 3, 4), set()
    texts = [ref.prompts()[name]["ids"] for name in ("one_token", "story", "chat")]
    span = read_span(64, shape.slots)
    alone = [prefilled(target, [text], shape.levels, head) for text in texts]
    together = prefilled(target, texts, shape.levels, head)
    for _ in range(5):
        tree, accepted = cycle(target, head, together, shape, span, Sampling())
        for row, state in enumerate(alone):
            single, outcome = cycle(target, head, state, shape, span, Sampling())
            for name in ("tokens", "parents", "depths", "ancestors"):
                assert torch.equal(getattr(tree, name)[row], getattr(single, name)[0]), name
            assert torch.equal(accepted.emitted[row], outcome.emitted[0])
            for name in ("length", "root", "pending"):
                assert getattr(together, name)[row] == getattr(state, name)[0], name
        accepts.update(accepted.count.tolist())
    assert len(accepts) > 2, "rows that accept different numbers of tokens"


@torch.inference_mode()
def test_a_finished_row_stays_as_it_is() -> None:
    target, shape = random_target(), TreeShape(20, 3, 4)
    head = random_head(target, 32)
    texts = [[1, 2, 3], [4, 5, 6, 7]]
    state, kept = (prefilled(target, texts, shape.levels, head) for _ in range(2))
    state.active[0] = False
    cycle(target, head, state, shape, read_span(8, shape.slots), Sampling())
    for name in ("length", "root", "pending"):  # of what waits for the head nobody reads a row that has ended
        assert torch.equal(getattr(state, name)[0], getattr(kept, name)[0]), name
    assert torch.equal(state.target_cache.kv[:, :, 0, :3], kept.target_cache.kv[:, :, 0, :3])
    assert state.length[1] > kept.length[1]
