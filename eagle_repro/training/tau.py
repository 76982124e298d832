"""Tokens a cycle of a saved head, by the engine itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eagle_repro.engine.generate import run_batch
from eagle_repro.engine.head import load_head
from eagle_repro.engine.request import Request
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.target import Target


def tau_of(
    target: Target, folder: Path, prompts: Sequence[list[int]], shape: TreeShape, max_new_tokens: int
) -> float | None:
    """Greedy tokens a cycle over all prompts together, of the head in `folder`; None where no cycle was run."""
    if not prompts:
        return None
    head = load_head(folder, target.embedding)
    length = max(map(len, prompts)) + max_new_tokens
    requests = [Request(prompt, "eagle", shape, max_new_tokens, max_length=length) for prompt in prompts]
    cycles = [cycle for text in run_batch(target, head, requests) for cycle in text.cycles]
    return sum(cycle.accepted + 1 for cycle in cycles) / len(cycles) if cycles else None
