"""The prompts' pass through target and head, which gives the state before the first cycle."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_repro.engine.accept import Sampling, choose, finite_choices, gumbel_noise
from eagle_repro.engine.attention import SlotCache, visibility
from eagle_repro.engine.cycle import State, causal
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.request import NonFiniteLogits, Request
from eagle_repro.engine.shape import read_span
from eagle_repro.engine.target import Target

PREFILL_CHUNK = 512


def prefill(target: Target, head: Eagle3Head | None, requests: Sequence[Request], state: State) -> list[int]:
    """Run each row's prompt through target and head; fills the state before the first cycle, gives the first tokens.

    The features of a prompt's last position wait for the first cycle, like those of any committed token. Row by row,
    so that a text does not depend on its neighbours.
    """
    first = []
    for row, request in enumerate(requests):
        tokens = torch.tensor([request.prompt], device=target.device)
        head_cache = state.head_cache.row(row) if state.head_cache is not None else None
        hidden, features = read_text(target, head, tokens, state.target_cache.row(row), head_cache)
        logits = target.logits(hidden)
        state.length[row] = len(request.prompt)
        draw_noise(state, request.sampling, row, len(request.prompt) - 1, 0)
        chosen = choose(logits, request.sampling, None if state.noise is None else state.noise[row : row + 1, :1])
        if not finite_choices(logits, chosen):
            raise_non_finite(target)
        first.append(int(chosen))
        state.root[row] = state.followers[row, 0] = first[-1]
        if features is not None:
            state.features[row, 0] = features[0, -1]
    return first


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
    length = torch.full((1,), start, device=target.device)  # no copy from the host, which a capture refuses
    return positions, visibility(length, causal(count, target.device), span, target.dtype), span


def draw_noise(state: State, sampling: Sampling, row: int, context: int, levels: int) -> None:
    """Fill a row's noise for the tokens after nodes of depth 0..levels when its root stands at position `context`."""
    if state.noise is None:
        return
    for depth, noise in enumerate(state.noise[row, : levels + 1]):
        noise.copy_(gumbel_noise(sampling, row, context + 1 + depth, noise.shape[-1], noise.device))


def raise_non_finite(target: Target) -> None:
    """Raise NonFiniteLogits with what to do about it."""
    raise NonFiniteLogits(
        f"the target's logits are not finite in {target.dtype}: "
        + (
            "its weights are damaged, get them again"
            if target.dtype == torch.float32
            else 'activations overflowed. Load the pair with dtype="float32", or "bfloat16" on a card of compute '
            "capability 8.0 or higher"
        )
    )
