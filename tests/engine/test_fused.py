"""The fused forward gives what the stock model gives, and leaves the stock model what it was."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from eagle_repro.engine.attention import visibility
from eagle_repro.engine.cycle import causal, likeliest
from eagle_repro.engine.fused import AT_ONCE, fusible
from eagle_repro.engine.head import QKV, Eagle3Head
from eagle_repro.engine.target import Target
from tests.engine.tiny import ARCHITECTURES, random_head, random_target
from tests.engine.trees import random_parents, random_tokens, tree_of

SPAN = 192


def twins(architecture: str) -> tuple[Target, Target]:
    """The same weights behind the stock forward and behind the fused one, in two models."""
    stock = random_target(architecture)
    fused = Target(deepcopy(stock.model), fused=True)
    assert fused.fused is not None and stock.fused is None
    return stock, fused


@torch.inference_mode()
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("count", [1, 7, AT_ONCE + 6], ids=["one", "few", "many"])
def test_hidden_states_features_and_cache_are_the_stock_forwards(architecture: str, count: int) -> None:
    pair = twins(architecture)
    dice = random.Random(count)
    rows = 2
    caches = [target.cache(rows, SPAN) for target in pair]
    length = torch.zeros(rows, dtype=torch.long)
    for nodes in (9, count):  # a prefix, then a tree over it
        parents = [random_parents(dice, nodes) for _ in range(rows)]
        tree = tree_of(parents, [random_tokens(dice, row, 64) for row in parents])
        slots = length.unsqueeze(1) + torch.arange(nodes)
        mask = visibility(length, tree.ancestors, SPAN, torch.float32)
        positions, tokens = length.unsqueeze(1) + tree.depths, tree.tokens
        outs = [t.forward(tokens, positions, mask, c.at(slots, SPAN)) for t, c in zip(pair, caches, strict=True)]
        for stock, fused in zip(*outs, strict=True):
            torch.testing.assert_close(fused, stock, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(caches[1].kv, caches[0].kv, atol=1e-4, rtol=1e-4)
        length = length + nodes


@torch.inference_mode()
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_stock_model_gives_what_it_gave_and_keeps_nothing_twice(architecture: str) -> None:
    stock, fused = twins(architecture)
    tokens = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(fused.model(tokens, use_cache=False).logits, stock.model(tokens, use_cache=False).logits)
    layer = fused.model.get_decoder().layers[0]
    joined = fused.fused.layers[0]  # type: ignore[union-attr]
    assert layer.self_attn.q_proj.weight.data_ptr() == joined.qkv.data_ptr()
    assert layer.mlp.up_proj.weight.untyped_storage().data_ptr() == joined.gate_up.untyped_storage().data_ptr()
    fused.prove()


def test_a_model_the_fused_forward_would_get_wrong_is_not_fused() -> None:
    model = deepcopy(random_target("llama").model)
    assert fusible(model)
    model.config.hidden_act = "gelu"
    assert not fusible(model)
    model.config.hidden_act = "silu"
    model.get_decoder().layers[2].mlp.down_proj.bias = torch.nn.Parameter(torch.zeros(32))
    assert not fusible(model)
    assert Target(model, fused=True).fused is None


@torch.inference_mode()
def test_rotary_tables_grow_and_the_old_ones_stay_where_captured_graphs_read_them() -> None:
    head = deepcopy(random_head(random_target(), 32)).use_fused()
    assert head.fused is not None
    head.cache(1, 64)
    first = head.fused.rotary.tables
    head.cache(1, 300)
    head.cache(1, 10)
    assert len(first) == 64 and len(head.fused.rotary.tables) == 300
    assert any(kept is first for kept in head.fused.rotary.all_tables)
    torch.testing.assert_close(head.fused.rotary.tables[:64], first)


@torch.inference_mode()
@pytest.mark.parametrize("biased", [set(), QKV], ids=["plain", "biased"])
def test_the_fused_heads_hidden_states_are_its_layers(biased: set[str]) -> None:
    target = random_target()
    config = replace(random_head(target, 32).config, biases=frozenset(biased))
    torch.manual_seed(0)
    head = Eagle3Head(config, target.embedding).eval().requires_grad_(False)
    fused = deepcopy(head).use_fused()
    assert fused.fused is not None
    caches = [each.cache(2, 64) for each in (head, fused)]
    length = torch.tensor([0, 0])
    for count in (5, 3):
        hidden, tokens = torch.randn(2, count, 32), torch.randint(0, 64, (2, count))
        slots = length.unsqueeze(1) + torch.arange(count)
        mask = visibility(length, causal(count, hidden.device), 64, hidden.dtype)
        outs = [h(hidden, tokens, slots, mask, c.at(slots, 64)) for h, c in zip((head, fused), caches, strict=True)]
        torch.testing.assert_close(outs[1], outs[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(caches[1].kv, caches[0].kv, atol=1e-5, rtol=1e-5)
        length = length + count


def test_a_head_with_biases_elsewhere_is_not_fused() -> None:
    target = random_target()
    for biases in ({"midlayer.mlp.up_proj"}, {"midlayer.self_attn.q_proj"}):
        config = replace(random_head(target, 32).config, biases=frozenset(biases))
        assert Eagle3Head(config, target.embedding).use_fused().fused is None


@pytest.mark.parametrize("size", [1000, 1024, 2048, 32000])
@pytest.mark.parametrize("count", [1, 10, 300])
def test_the_likeliest_by_parts_are_the_likeliest(size: int, count: int) -> None:
    values = torch.stack([torch.randperm(size) for _ in range(6)]).float().view(2, 3, size)
    found, expected = likeliest(values, count), values.topk(count, dim=-1)
    assert torch.equal(found[0], expected.values) and torch.equal(found[1], expected.indices)
