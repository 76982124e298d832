"""In float32 every loop writes exactly what the stock model writes, whatever is drafted and however."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eagle_repro as er
from eagle_repro import Generation, Pair, TreeShape
from eagle_repro.engine.head import Eagle3Head, load_head
from eagle_repro.engine.prefill import PREFILL_CHUNK
from eagle_repro.engine.target import Target
from tests.conftest import Text
from tests.models import oracle, pair_of, room, save_head, stock_choices, tiny_head, uneven, wrong

PROMPT = [17, 300, 4, 255, 63]
SHAPES = [
    TreeShape(2, 0, 1),
    TreeShape(2, 0, 10),
    TreeShape(11, 0, 10),
    TreeShape(5, 1, 2),
    TreeShape.chain(1),
    TreeShape.chain(6),
    TreeShape(16, 3, 4),
    TreeShape(33, 2, 8),
    TreeShape(60, 7, 10),
]
DRAFTERS: dict[str, Callable[[list[int]], Any]] = {"oracle": oracle, "wrong": wrong, "uneven": uneven}


def name_of(shape: TreeShape) -> str:
    return f"{shape.total_tokens}-{shape.depth}-{shape.top_k}"


def written(pair: Pair, prompt: list[int], count: int, shape: TreeShape, **options: Any) -> Generation:
    return er.generate(pair, prompt, shape=shape, max_new_tokens=count, stop="never", **options)


def drafted_by(make: Callable[[list[int]], Any], target: Target, text: Text, prompt: list[int], count: int) -> Pair:
    """The target with a drafter that knows its text, well beyond the tokens that will be written."""
    return pair_of(target, make(prompt + text(prompt, count + room(TreeShape()))))


# --- any drafter, any shape, any prompt ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
@pytest.mark.parametrize("drafter", [*DRAFTERS, "random head"])
def test_ids_are_stock_generate_whatever_is_drafted(
    drafter: str, shape: TreeShape, target: Target, head: Eagle3Head, text: Text
) -> None:
    known = drafter in DRAFTERS
    pair = drafted_by(DRAFTERS[drafter], target, text, PROMPT, 24) if known else pair_of(target, head)
    assert written(pair, PROMPT, 24, shape).ids == text(PROMPT, 24)


@pytest.mark.parametrize("method", ["plain", "chain", "hf"])
def test_the_other_loops_write_the_same_ids(method: str, pair: Pair, text: Text) -> None:
    out = er.generate(pair, PROMPT, method=method, shape=TreeShape(16, 3, 4), max_new_tokens=32, stop="never")
    assert out.ids == text(PROMPT, 32)


@pytest.mark.parametrize("seed", range(2, 5))
def test_other_random_heads_change_nothing(seed: int, target: Target, text: Text) -> None:
    out = written(pair_of(target, tiny_head(target, seed)), PROMPT, 24, TreeShape(32, 5, 10))
    assert out.ids == text(PROMPT, 24)


def random_prompts(count: int, shortest: int = 5, longest: int = 40) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(0, 512, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize("shape", [TreeShape(32, 5, 10), TreeShape.chain(4)], ids=["tree", "chain"])
def test_random_prompts_give_the_stock_text(shape: TreeShape, pair: Pair) -> None:
    for prompt in random_prompts(6):
        ids = written(pair, prompt, 24, shape).ids
        assert ids == stock_choices(pair.target.model, prompt, ids), f"prompt {prompt}"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [TreeShape(32, 5, 10), TreeShape.chain(4)], ids=["tree", "chain"])
def test_fifty_random_prompts_give_the_stock_text(shape: TreeShape, pair: Pair) -> None:
    texts = [(prompt, written(pair, prompt, 64, shape).ids) for prompt in random_prompts(50)]
    wrong_ones = [prompt for prompt, ids in texts if ids != stock_choices(pair.target.model, prompt, ids)]
    assert not wrong_ones, f"{len(wrong_ones)} of {len(texts)} differ"


def test_a_trained_head_changes_the_speed_and_not_the_text(trained: Pair) -> None:
    prompt = [5, 6, 7]
    out = written(trained, prompt, 64, TreeShape(60, 7, 10))
    assert out.tau is not None and out.tau > 1.5, "nothing is accepted, so this proves little"
    assert out.ids == stock_choices(trained.target.model, prompt, out.ids)


# --- what is accepted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_a_drafter_that_is_never_right_has_nothing_accepted(shape: TreeShape, target: Target, text: Text) -> None:
    out = written(drafted_by(wrong, target, text, PROMPT, 12), PROMPT, 12, shape)
    assert out.ids == text(PROMPT, 12)
    assert [(cycle.accepted, cycle.emitted) for cycle in out.cycles] == [(0, 1)] * 11
    assert out.tau == 1.0


@pytest.mark.parametrize("levels", [1, 3, 7])
def test_a_chain_of_right_drafts_emits_its_levels_plus_one(levels: int, target: Target, text: Text) -> None:
    count = 4 * (levels + 1)
    shape = TreeShape.chain(levels - 1)
    out = written(drafted_by(oracle, target, text, PROMPT, count), PROMPT, count, shape)
    assert shape.levels == levels
    assert [cycle.emitted for cycle in out.cycles] == [levels + 1] * 3 + [levels]  # the prefill gave one token
    assert out.tau == levels + 1  # the last cycle counts uncut


@pytest.mark.parametrize("shape", [TreeShape(11, 0, 10), TreeShape(16, 3, 4), TreeShape(60, 7, 10)], ids=name_of)
def test_a_tree_of_right_drafts_is_accepted_to_its_full_depth(shape: TreeShape, target: Target, text: Text) -> None:
    out = written(drafted_by(oracle, target, text, PROMPT, 24), PROMPT, 24, shape)
    assert {cycle.accepted for cycle in out.cycles} == {shape.depth + 1}


def test_branches_that_are_not_the_likeliest_are_accepted_too(target: Target, text: Text) -> None:
    pair = drafted_by(uneven, target, text, PROMPT, 40)
    tree, chain = (written(pair, PROMPT, 40, shape) for shape in (TreeShape(60, 7, 10), TreeShape.chain(7)))
    assert len({cycle.accepted for cycle in tree.cycles}) > 2, "the drafter was meant to give paths of many lengths"
    assert tree.tau is not None and chain.tau is not None and tree.tau > chain.tau + 0.5


# --- prompts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[9], [9, 400], [9, 400, 77]], ids=len)
@pytest.mark.parametrize("drafter", [*DRAFTERS, "random head"])
def test_prompts_of_one_token_and_up_work(
    drafter: str, prompt: list[int], target: Target, head: Eagle3Head, text: Text
) -> None:
    known = drafter in DRAFTERS
    pair = drafted_by(DRAFTERS[drafter], target, text, prompt, 12) if known else pair_of(target, head)
    assert written(pair, prompt, 12, TreeShape(16, 3, 4)).ids == text(prompt, 12)


@pytest.mark.parametrize("chunk", [1, 2, 7, 39, 40])
def test_prefill_by_chunks_is_prefill_at_once(chunk: int, trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = random_prompts(1, 40)[0]

    def first_tree() -> tuple[list[int], er.DraftTree]:
        out = written(trained, prompt, 8, TreeShape(16, 3, 4), record_trees=True)
        assert out.cycles[0].tree is not None
        return out.ids, out.cycles[0].tree

    ids, tree = first_tree()
    monkeypatch.setattr("eagle_repro.engine.prefill.PREFILL_CHUNK", chunk)
    chunked_ids, chunked = first_tree()
    assert chunked_ids == ids
    assert torch.equal(chunked.tokens, tree.tokens)
    torch.testing.assert_close(chunked.scores, tree.scores, atol=1e-4, rtol=0)


def test_a_prompt_longer_than_a_prefill_chunk_works(pair: Pair) -> None:
    prompt = random_prompts(1, PREFILL_CHUNK + 9, PREFILL_CHUNK + 9)[0]
    ids = written(replace(pair, max_length=600), prompt, 12, TreeShape(16, 3, 4)).ids
    assert ids == stock_choices(pair.target.model, prompt, ids)


def test_text_beyond_the_heads_trained_length_is_still_the_targets(target: Target, tmp_path: Path, text: Text) -> None:
    head = load_head(save_head(tmp_path, max_position_embeddings=64), target.embedding)
    prompt = random_prompts(1, 100, 100)[0]
    assert written(pair_of(target, head), prompt, 50, TreeShape(16, 3, 4)).ids == text(prompt, 50)


# --- what the head is given ------------------------------------------------------------------------------------------


class Watched(nn.Module):
    """A head that notes what it is given until its first draft: features, the tokens beside them, positions."""

    def __init__(self, head: Eagle3Head) -> None:
        super().__init__()
        self.head, self.config, self.cache, self.to_target = head, head.config, head.cache, head.to_target
        self.features: list[Tensor] = []
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.prefilling = True

    def fuse(self, features: Tensor) -> Tensor:
        self._fused = features.clone()  # the engine reuses this storage
        return self.head.fuse(features)

    def forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        if self.prefilling:
            seen = 1 if self.tokens else tokens.shape[1]  # of the first cycle's rows all but one are padding
            self.features += self._fused[0, :seen]
            self.tokens += tokens[0, :seen].tolist()
            self.positions += positions[0, :seen].tolist()
        return self.head(hidden, tokens, positions, mask, cache)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        self.prefilling = False
        return self.head.log_probabilities(hidden)


def test_the_head_gets_each_positions_features_with_the_token_that_follows(pair: Pair, text: Text) -> None:
    watched = Watched(pair.head)
    prompt = [5, 90, 401]
    written(pair_of(pair.target, watched), prompt, 2, TreeShape(16, 3, 4))
    assert watched.tokens == [90, 401, *text(prompt, 1)]
    assert watched.positions == [0, 1, 2]
    states = pair.target.model(torch.tensor([prompt]), output_hidden_states=True, use_cache=False).hidden_states
    expected = torch.cat([states[layer][0] for layer in (2, 4, 5)], dim=-1)
    torch.testing.assert_close(torch.stack(watched.features), expected, atol=1e-4, rtol=0)
