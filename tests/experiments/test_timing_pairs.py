"""Timing-only pairs have the published sizes, run like any other, and never ask a card for more than it has."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from eagle_repro.api import generate
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.timing_pairs import head_config, random_pair, require_memory, target_config
from eagle_repro.sources.pairs import SHAPES, PairShape

SMALL = PairShape(
    "toy-1m", hidden=64, layers=6, heads=4, kv_heads=2, mlp=128, tied=False, head_dim=16, vocabulary=2048,
    draft_vocabulary=512,
)  # fmt: skip


@pytest.mark.parametrize("shape", [*SHAPES.values(), SMALL], ids=lambda shape: shape.name)
def test_the_formulas_count_what_a_built_target_and_head_hold(shape: PairShape) -> None:
    with torch.device("meta"):
        head = Eagle3Head(head_config(shape), torch.empty(shape.vocabulary, shape.hidden))
        target = AutoModelForCausalLM.from_config(Qwen3Config(**target_config(shape)))
        target.tie_weights()  # transformers 5.0 leaves that out on the meta device
    assert sum(p.numel() for p in head.parameters()) == shape.head_parameters
    assert sum(p.numel() for p in target.parameters()) == shape.target_parameters


def test_the_first_two_heads_have_the_published_sizes() -> None:
    millions = [f"{SHAPES[name].head_parameters / 1e6:.1f}" for name in ("qwen3-1.7b", "qwen3-4b")]
    assert millions == ["136.8", "218.2"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_random_pair_decodes_with_finite_logits_in_every_precision(dtype: torch.dtype) -> None:
    pair = random_pair(SMALL, "cpu", dtype)
    pair.target.prove()
    plain, eagle = (
        generate(pair, [1, 2, 3], method=method, shape=TreeShape(12, 3, 4), max_new_tokens=6, stop="never")
        for method in ("plain", "eagle")
    )
    assert len(eagle.ids) == 6 and eagle.cycles[0].nodes == 12
    if dtype == torch.float32:
        assert eagle.ids == plain.ids
    assert {p.dtype for p in (*pair.target.model.parameters(), *pair.head.parameters())} == {dtype}
    assert pair.head.inv_freq.dtype == torch.float32 and pair.dtype == str(dtype).removeprefix("torch.")


def test_the_draft_vocabulary_is_a_random_part_of_the_targets() -> None:
    head = random_pair(SMALL, "cpu", torch.float32).head
    targets = head.to_target(torch.arange(SMALL.draft_vocabulary))
    assert targets.unique().numel() == SMALL.draft_vocabulary and targets.equal(targets.sort().values)
    assert int(targets[0]) >= 0 and SMALL.draft_vocabulary < int(targets[-1]) < SMALL.vocabulary
    assert head.t2d.nonzero().flatten().equal(targets)


def test_weights_are_reproducible_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one, two, other = (random_pair(SMALL, "cpu", torch.float32, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b, c in zip(one.head.parameters(), two.head.parameters(), other.head.parameters(), strict=True):
        assert torch.equal(a, b) and (a.ndim == 1 or not torch.equal(a, c))
    assert torch.equal(one.target.embedding, two.target.embedding)


def test_a_card_that_is_too_small_is_told_so_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(15e9), int(16e9)))
    require_memory(SHAPES["qwen3-4b"], "cuda:0", torch.float16)
    with pytest.raises(RuntimeError, match=r"qwen3-8b needs 19\.\d GB in float16, and 15\.0 GB .* free"):
        random_pair(SHAPES["qwen3-8b"], "cuda:0", torch.float16)
    require_memory(SHAPES["qwen3-32b"], "cpu", torch.float32)  # a CPU is not asked
