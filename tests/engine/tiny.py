"""Random models of a few thousand weights, and states of the engine built on them."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from eagle_repro.engine.attention import SlotCache
from eagle_repro.engine.checkpoint import HeadConfig
from eagle_repro.engine.cycle import State
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.prefill import prefill
from eagle_repro.engine.request import Request
from eagle_repro.engine.shape import TreeShape, read_span, slots_of
from eagle_repro.engine.target import Target

ARCHITECTURES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}


@cache
@torch.inference_mode(False)  # the first test to ask may be in it, and those after it not
def random_target(
    architecture: str = "qwen3", vocabulary: int = 64, layers: int = 4, attention: str = "sdpa", seed: int = 0
) -> Target:
    """A target with hidden size 32, 4 heads and 2 key/value heads; Qwen3 with head_dim 16, which is not 32 / 4."""
    configuration, model = ARCHITECTURES[architecture]
    sizes: dict[str, Any] = {"head_dim": 16} if architecture == "qwen3" else {}
    config = configuration(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=vocabulary - 1,
        pad_token_id=None,
        attn_implementation=attention,
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = model(config).eval().requires_grad_(False)
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):  # zero at first, where a lost one would not be missed
                parameter.normal_(std=0.2)
    return Target(made)


@cache
@torch.inference_mode(False)
def random_head(target: Target, draft_vocabulary: int | None = None, seed: int = 1) -> Eagle3Head:
    """A head for a target, its d2t spread over the vocabulary."""
    drafted = draft_vocabulary or target.vocabulary
    config = HeadConfig(
        hidden=target.hidden_size,
        heads=4,
        kv_heads=2,
        head_dim=8,
        mlp=48,
        vocabulary=target.vocabulary,
        draft_vocabulary=drafted,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3Head(config, target.embedding)
    head.d2t.copy_(torch.arange(drafted) * (target.vocabulary // drafted - 1))
    return head.eval().requires_grad_(False)


def begun(target: Target, head: Eagle3Head | None, request: Request, shape: TreeShape | None) -> tuple[State, int]:
    """The state before a request's first cycle, and its first token."""
    longest = len(request.prompt) + request.budget
    rows, sampled = shape.levels + 1 if shape else 1, not request.sampling.greedy
    state = State.blank(target, head, 1, read_span(longest, slots_of(shape)), rows, sampled=sampled)
    return state, prefill(target, head, [request], state)[0]


def stock_logits(target: Target, texts: list[list[int]]) -> list[Tensor]:
    """Logits (len, V) of whole texts from the unmodified model, in one batch padded on the right."""
    longest = max(map(len, texts))
    padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    logits = target.model(padded, use_cache=False).logits
    return [logits[row, : len(text)] for row, text in enumerate(texts)]


def stacked(states: list[State]) -> State:
    """Single-row states with caches of one size as the rows of one state."""

    def join(values: list[Any]) -> Any:
        if values[0] is None:
            return None
        if isinstance(values[0], Tensor):
            return torch.cat(values)
        layers, _, _, slots, kv_heads, head_dim = values[0].kv.shape
        joined = SlotCache(layers, len(values), slots, kv_heads, head_dim, values[0].kv.dtype, values[0].kv.device)
        joined.kv.copy_(torch.cat([cache.kv for cache in values], dim=2))
        return joined

    return State(**{field.name: join([getattr(state, field.name) for state in states]) for field in fields(State)})
