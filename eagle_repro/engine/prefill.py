"""The prompt's pass through target and head, which gives the state before the first cycle."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_repro.engine.accept import Sampling, choose, gumbel_noise
from eagle_repro.engine.attention import SlotCache, visibility
from eagle_repro.engine.cycle import State, causal
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.request import NonFiniteLogits, Request
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import read_span
from eagle_repro.engine.target import Target

PREFILL_CHUNK = 512


def prefill(target: Target, head: Eagle3Head | None, request: Request, shape: TreeShape | None) -> tuple[State, int]:
    """Run the prompt through target and head; returns the state before the first cycle, and the first new token.

    The features of the prompt's last position wait for the first cycle, like those of any committed token.
    """
    device, length = target.device, len(request.prompt)
    slots = read_span(length + request.budget, shape.slots if shape else 2)
    rows = shape.levels + 1 if shape else 1
    target_cache, head_cache = target.cache(1, slots), head.cache(1, slots) if head is not None else None
    hidden, features = read_text(target, head, torch.tensor([request.prompt], device=device), target_cache, head_cache)
    pending = torch.zeros(1, rows, 3 * target.hidden_size, dtype=target.dtype, device=device)
    if features is not None:
        pending[:, 0] = features[:, -1]
    logits = target.logits(hidden)
    state = State(
        length=torch.tensor([length], device=device),
        root=torch.zeros(1, dtype=torch.long, device=device),
        features=pending,
        followers=torch.zeros(1, rows, dtype=torch.long, device=device),
        pending=torch.ones(1, dtype=torch.long, device=device),
        active=torch.ones(1, dtype=torch.bool, device=device),
        noise=None,
        target_cache=target_cache,
        head_cache=head_cache,
    )
    draw_noise(state, request.sampling, length - 1, vocabulary=logits.shape[-1])
    first = choose(logits, request.sampling, None if state.noise is None else state.noise[:, :1])
    if not logits.gather(-1, first.unsqueeze(-1)).isfinite().all():
        raise_non_finite(target)
    state.root.copy_(first[:, 0])
    state.followers[:, 0] = first[:, 0]
    return state, int(first)


def read_text(
    target: Target, head: Eagle3Head | None, tokens: Tensor, target_cache: SlotCache, head_cache: SlotCache | None
) -> tuple[Tensor, Tensor | None]:
    """Fill both caches with a text, tokens (1, n): the target's last hidden state (1, 1, H), all features (1, n, 3H).

    Chunk by chunk, so that the mask stays small. The head sees every position but the last, whose follower is not
    known. Without a head no features are taken.
    """
    tapped: list[Tensor] = []
    hidden = tokens
    for start in range(0, tokens.shape[1], PREFILL_CHUNK):
        chunk = tokens[:, start : start + PREFILL_CHUNK]
        positions, mask, span = prefix_pass(start, chunk.shape[1], target)
        cache = target_cache.at(positions, span)
        hidden, features = target.forward(chunk, positions, mask, cache, features=head is not None)
        followers = tokens[:, start + 1 : start + 1 + chunk.shape[1]]
        known = followers.shape[1]
        if head is not None and head_cache is not None and features is not None:
            tapped.append(features)
            if known:
                positions, mask, span = prefix_pass(start, known, target)
                head(head.fuse(features[:, :known]), followers, positions, mask, head_cache.at(positions, span))
    return hidden[:, -1:], torch.cat(tapped, dim=1) if tapped else None


def prefix_pass(start: int, count: int, target: Target) -> tuple[Tensor, Tensor, int]:
    """Positions (1, n), causal mask and span of a pass over positions start..start+count-1."""
    positions = torch.arange(start, start + count, device=target.device).unsqueeze(0)
    span = read_span(start, count)
    length = torch.tensor([start], device=target.device)
    return positions, visibility(length, causal(count, target.device), span, target.dtype), span


def draw_noise(state: State, sampling: Sampling, context: int, vocabulary: int | None = None) -> None:
    """Fill state.noise for the tokens after nodes of depth 0, 1, ... when the root stands at position `context`."""
    if sampling.greedy:
        return
    levels, device = state.features.shape[1], state.length.device
    vocabulary = vocabulary or state.noise.shape[-1]  # type: ignore[union-attr]
    drawn = [gumbel_noise(sampling, 0, context + 1 + depth, vocabulary, device) for depth in range(levels)]
    state.noise = torch.stack(drawn).unsqueeze(0)


def raise_non_finite(target: Target) -> None:
    raise NonFiniteLogits(
        f"the target's logits are not finite in {target.dtype}: "
        + (
            "its weights are damaged, get them again"
            if target.dtype == torch.float32
            else 'activations overflowed. Load the pair with dtype="float32", or "bfloat16" on a card of compute '
            "capability 8.0 or higher"
        )
    )
