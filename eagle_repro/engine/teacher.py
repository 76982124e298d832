"""Drafting along a given text: what the head would draft at every position, in one draft-only pass.

Where a cycle starts decides what is drafted there, but not how it got there: the candidates at a position depend on
the text before it alone. So the candidates at every position of a text hold all cycles of every tree shape.
"""

from __future__ import annotations

import torch

from eagle_repro.engine.attention import SlotCache
from eagle_repro.engine.cycle import State, draft_candidates
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.prefill import read_text
from eagle_repro.engine.shape import TreeShape, read_span
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import Candidates


@torch.inference_mode()
def draft_along(
    target: Target, head: Eagle3Head, ids: list[int], first: int, depth: int, top_k: int, *, rows: int = 16
) -> Candidates:
    """Candidates (N, top_k + depth * top_k ** 2) drafted with ids[i] as the root, for i = first..len(ids) - 1.

    first: at least 1, for the root's predecessor gives the features. rows: positions drafted side by side. Raises
    ValueError for a `first` outside the text and for a top_k above the draft vocabulary.
    """
    if not 1 <= first < len(ids):
        raise ValueError(f"first={first} is not a position with a predecessor in a text of {len(ids)} tokens")
    shape = TreeShape(2, depth, top_k)
    shape.require_vocabulary(head.config.draft_vocabulary)
    device, slots = target.device, read_span(len(ids), shape.slots)
    target_cache, head_cache = target.cache(1, slots), head.cache(1, slots)
    tokens = torch.tensor([ids], device=device)
    _, features = read_text(target, head, tokens, target_cache, head_cache)
    assert features is not None
    drafted = []
    for start in range(first, len(ids), rows):
        roots = torch.arange(start, min(start + rows, len(ids)), device=device)
        state = _states_at(roots, tokens[0], features[0], head, head_cache, target_cache)
        drafted.append(draft_candidates(head, state, depth, top_k, read_span(int(roots[-1]), shape.slots)))
    fields = ("tokens", "parents", "scores", "depths")
    return Candidates(*(torch.cat([getattr(part, field) for part in drafted]) for field in fields))


def _states_at(
    roots: torch.Tensor,
    tokens: torch.Tensor,
    features: torch.Tensor,
    head: Eagle3Head,
    head_cache: SlotCache,
    target_cache: SlotCache,
) -> State:
    """One state a root: everything before the root is committed, the features just before it are pending."""
    rows = len(roots)
    copies = head.cache(rows, head_cache.capacity)
    copies.fill(head_cache)
    return State(
        length=roots,
        root=tokens[roots],
        features=features[roots - 1].unsqueeze(1),
        followers=tokens[roots].unsqueeze(1),
        pending=torch.ones_like(roots),
        active=torch.ones_like(roots, dtype=torch.bool),
        noise=None,
        target_cache=target_cache,
        head_cache=copies,
    )
