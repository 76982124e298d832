"""What a training run is asked for, and how much memory that takes."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

import torch

from eagle_repro.engine.checkpoint import HeadConfig
from eagle_repro.engine.devices import free_bytes
from eagle_repro.engine.target import Target

MEASURED = 30  # steps after which a run of so many minutes knows how many steps it has


@dataclass(frozen=True)
class TrainSettings:
    """steps, or minutes: one of them. unrolled: steps of the training-time test. batch_tokens: of a step, on each
    device, in sequences of `length`. rate: the peak, after warm_up steps; a cosine takes it to a tenth of a percent.
    checkpoint_every, log_every: in steps. snapshots: heads saved on the way. compiled None: where the card can."""

    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    unrolled: int = 6
    batch_tokens: int = 16384
    length: int = 512
    rate: float = 1e-3
    warm_up: int = 50
    clip: float = 1.0
    checkpoint_every: int = 500
    log_every: int = 10
    snapshots: int = 0
    compiled: bool | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError(f"give steps or minutes, one of them; got steps={self.steps}, minutes={self.minutes}")
        if (self.steps or 1) < 1 or not 0 < (self.minutes or 1) < math.inf:
            raise ValueError(f"steps and minutes must be positive, got steps={self.steps}, minutes={self.minutes}")
        require_seed(self.seed)
        if not 1 <= self.unrolled <= 8 or self.batch_tokens < self.length or not 0 < self.rate < 1:
            raise ValueError(
                f"unrolled={self.unrolled} must lie in 1..8, batch_tokens={self.batch_tokens} be at least "
                f"length={self.length}, and rate={self.rate} lie between 0 and 1"
            )

    @property
    def sequences(self) -> int:
        return self.batch_tokens // self.length

    def rate_at(self, step: int, total: int | None) -> float:
        """The learning rate of a step (from 0); total None while it is not known yet, which is during warm-up."""
        warm_up = max(1, self.warm_up if total is None else min(self.warm_up, total // 5))
        if step < warm_up or total is None:
            return self.rate * min(1.0, (step + 1) / warm_up)
        share = (step - warm_up) / max(1, total - warm_up)
        return self.rate * (0.001 + 0.999 * (1 + math.cos(math.pi * share)) / 2)


def require_seed(seed: int) -> None:
    """Raise ValueError for a seed that NumPy or PyTorch does not take."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed={seed} was given: a whole number from 0 to 2^63 - 1 is needed")


def compute_dtype(device: torch.device) -> torch.dtype:
    """What a head is trained in: bfloat16 from compute capability 8.0, float16 below, float32 on a CPU."""
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def needed_bytes(target: Target, head: HeadConfig, settings: TrainSettings) -> int:
    """A generous estimate of the memory that training takes beside the target's weights.

    Weights, gradient and both moments in float32 and a copy in halves; by token and unrolled step the float32 logits
    with their gradient, attention scores three times over and the activations; the target's cache and distribution.
    """
    attention = 2 * head.hidden * head.head_dim * (2 * head.heads + 2 * head.kv_heads)
    weights = head.hidden * (3 * head.hidden + 3 * head.mlp + head.draft_vocabulary) + attention
    tokens, half = settings.sequences * settings.length, 2
    step = head.draft_vocabulary * (4 + half) + head.heads * settings.length * 12
    step += half * (12 * head.hidden + 4 * head.mlp + 4 * head.head_dim * (head.heads + 2 * head.kv_heads))
    once = head.draft_vocabulary * 12 + half * 2 * target.layers * target.kv_heads * target.head_dim
    return weights * 18 + tokens * (settings.unrolled * step + once + 16 * head.hidden)


def free_memory(device: torch.device) -> int:
    """Bytes free on a card, after PyTorch has handed back what it keeps of tensors that are gone."""
    gc.collect()
    torch.cuda.empty_cache()
    return free_bytes(device)


def forget_peak(device: torch.device) -> int:
    """Begin to look for the peak of memory; returns the bytes held now, 0 on a CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak_beside(held: int, device: torch.device) -> int | None:
    """The peak since `forget_peak` beyond the bytes `held`; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) - held if device.type == "cuda" else None


def require_memory(needed: int, device: torch.device) -> None:
    """Raise RuntimeError, before anything is trained, where the card has less memory free than is needed."""
    if device.type != "cuda":
        return
    free = free_memory(device)
    if needed > free:
        raise RuntimeError(
            f"training needs about {needed / 1e9:.1f} GB and {device} has {free / 1e9:.1f} GB free: give fewer "
            "--batch-tokens"
        )
