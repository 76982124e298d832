"""Timing-only pairs: published shapes with random weights, to learn what a step and a cycle cost where no weights are.

What a pass costs depends on the sizes of the matrices and not on what is in them. What a cycle gives does: tau cannot
be measured on such a pair, and its texts mean nothing.
"""

from __future__ import annotations

import gc

import torch

from eagle_repro.api import Pair
from eagle_repro.engine.checkpoint import HeadConfig
from eagle_repro.engine.devices import dtype_name, free_bytes
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.target import Target
from eagle_repro.sources.pairs import PairShape

STD = 0.02  # of the target's weights, as these models are initialised: finite in fp16 through 64 layers too
MAX_LENGTH = 2048
MARGIN = 1.15  # memory beyond the weights: caches, activations, the allocator's slack


def random_pair(shape: PairShape, device: str, dtype: torch.dtype, *, stack: str = "eager", seed: int = 0) -> Pair:
    """A pair of this shape, made on `device` in `dtype`; it has no tokenizer.

    Raises RuntimeError, before anything is made, where the device's free memory does not hold it.
    """
    require_memory(shape, device, dtype)
    where = torch.device(device)
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        torch.manual_seed(seed)
        target = Target(_target(shape, where, dtype), fused=stack != "eager")
        head = _head(shape, target.embedding)
    if stack != "eager":
        head.use_fused()
    return Pair(
        name=f"{shape.name} (random weights)",
        target=target,
        head=head,
        tokenizer=None,
        device=str(where),
        dtype=dtype_name(dtype),
        stack=stack,
        max_length=MAX_LENGTH,
    )


def timed_dtype(device: str) -> torch.dtype:
    """What such a pair is timed in, so that benches compare: float16, which every card has, and float32 on a CPU."""
    return torch.float32 if device == "cpu" else torch.float16


def require_memory(shape: PairShape, device: str, dtype: torch.dtype) -> None:
    """Raise RuntimeError where a GPU's free memory does not hold a pair of this shape. A CPU is not asked."""
    where = torch.device(device)
    if where.type != "cuda":
        return
    needed = MARGIN * (shape.target_parameters + shape.head_parameters) * dtype.itemsize
    free = free_bytes(where)
    if free < needed:
        raise RuntimeError(
            f"{shape.name} needs {needed / 1e9:.1f} GB in {dtype_name(dtype)}, and {free / 1e9:.1f} GB "
            "of the card are free: a larger card is needed"
        )


def free_memory() -> None:
    """Give back what is no longer referred to, so that the next pair has room."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def target_config(shape: PairShape) -> dict[str, object]:
    """The fields of a Qwen3 configuration with these sizes."""
    return {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.mlp,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "initializer_range": STD,
        "max_position_embeddings": 40_960,
    }


def head_config(shape: PairShape) -> HeadConfig:
    """AngelSlim's head for a target of these sizes."""
    return HeadConfig(
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        mlp=shape.mlp,
        vocabulary=shape.vocabulary,
        draft_vocabulary=shape.draft_vocabulary,
    )


def _target(shape: PairShape, where: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(**target_config(shape))  # type: ignore[arg-type]
    with where:  # made where it is used: a GPU draws 32 billion numbers in a moment, a CPU in minutes
        made = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return made.eval().requires_grad_(False)


def _head(shape: PairShape, embedding: torch.Tensor) -> Eagle3Head:
    with embedding.device:
        head = Eagle3Head(head_config(shape), embedding)
        drafted = torch.randperm(shape.vocabulary)[: shape.draft_vocabulary].sort().values
        head.d2t.copy_(drafted - torch.arange(shape.draft_vocabulary))
        head.t2d[drafted] = True
    return head.settle(embedding)
