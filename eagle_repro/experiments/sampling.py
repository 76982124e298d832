"""Sampling, looked at: many short texts of one prompt side by side, and the probabilities that a loop draws from.

A permutation test wants hundreds of independent texts, and one after another they would take minutes. The engine's
cycle works on rows, so the prompt is read once, copied into every row, and all rows go on together, each with its own
seed. A text equals the one that `generate` writes with that seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from eagle_repro.api import Pair, generate
from eagle_repro.engine.accept import Accepted, Sampling, accept, choose, filtered, finite_choices, gumbel_noise
from eagle_repro.engine.cycle import State, commit, cycle, draft, node_noise, pick_rows, verify
from eagle_repro.engine.prefill import raise_non_finite, read_text
from eagle_repro.engine.shape import TreeShape, read_span, slots_of
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import DraftTree

#: What is accepted of a verified tree: (tree, logits (B, n, V), sampling, noise (B, n, V), drafted levels) -> Accepted.
Rule = Callable[[DraftTree, Tensor, Sampling, Tensor | None, int], Accepted]


def sample_texts(
    pair: Pair,
    prompt: list[int],
    seeds: Sequence[int],
    tokens: int,
    sampling: Sampling,
    *,
    shape: TreeShape | None = None,
    rule: Rule | None = None,
    rows: int = 125,
) -> np.ndarray:
    """Texts (len(seeds), tokens) after `prompt`, one a seed; the end of text does not stop them.

    shape None is plain decoding. rule: another rule of acceptance than the engine's, for tests that must notice it.
    rows: texts written side by side. Raises ValueError for greedy sampling, NonFiniteLogits.
    """
    if sampling.greedy:
        raise ValueError(f"temperature={sampling.temperature} is greedy: seeds would make no difference")
    parts = [seeds[start : start + rows] for start in range(0, len(seeds), rows)]
    return np.concatenate([_side_by_side(pair, prompt, part, tokens, sampling, shape, rule) for part in parts])


def exact(tree: DraftTree, logits: Tensor, sampling: Sampling, noise: Tensor | None, levels: int) -> Accepted:
    """The engine's rule."""
    choices = choose(logits, sampling, noise)
    return accept(tree, choices, finite_choices(logits, choices), levels)


class Overheard(Target):
    """A target that keeps the logits it gave; its weights and its forward, fused or not, are the given one's."""

    def __init__(self, target: Target) -> None:
        vars(self).update(vars(target))
        self.heard: list[Tensor] = []

    def logits(self, hidden: Tensor) -> Tensor:
        self.heard.append(super().logits(hidden))
        return self.heard[-1]


def first_probabilities(pair: Pair, prompt: list[int], method: str, sampling: Sampling) -> Tensor:
    """The probabilities (V,) float32 that `method` draws its first token from, as they pass through the loop."""
    target = Overheard(pair.target)
    generate(replace(pair, target=target), prompt, method=method, sampling=sampling, max_new_tokens=1, stop="never")
    return filtered(target.heard[0][0, -1], sampling).softmax(dim=-1)


@torch.inference_mode()
def _side_by_side(
    pair: Pair,
    prompt: list[int],
    seeds: Sequence[int],
    tokens: int,
    sampling: Sampling,
    shape: TreeShape | None,
    rule: Rule | None,
) -> np.ndarray:
    target, head = pair.target, pair.head if shape else None
    span = read_span(len(prompt) + tokens, slots_of(shape))
    noise = _noise(pair, len(prompt), seeds, tokens, sampling)
    state = _start(pair, prompt, shape, span, sampling, noise)
    levels = torch.arange(state.features.shape[1], device=target.device)
    texts = torch.zeros(len(seeds), tokens + 2 * len(levels), dtype=torch.long, device=target.device)
    texts[:, 0] = state.root
    while True:
        written = state.length - len(prompt) + 1  # (B,): the root is written, though not committed
        state.active = written < tokens
        if not state.active.any():
            return texts[:, :tokens].cpu().numpy()
        places = written.unsqueeze(1) + levels
        state.noise = pick_rows(noise, places.clamp(max=tokens))
        if rule is None or shape is None or head is None:
            _, accepted = cycle(target, head, state, shape, span, sampling)
        else:
            tree = draft(head, state, shape, span)
            logits, features = verify(target, state, tree, span, features=True)
            accepted = rule(tree, logits, sampling, node_noise(state, tree), shape.levels)
            commit(state, features, accepted)
        if not accepted.finite.all():
            raise_non_finite(target)
        # What is behind the accepted tokens is padding, which the next cycle overwrites; rows that are done write
        # behind their text.
        texts.scatter_(1, places, accepted.emitted)


def _noise(pair: Pair, first: int, seeds: Sequence[int], tokens: int, sampling: Sampling) -> Tensor:
    """(B, tokens + 1, V): every text's noise by place; none for what lies behind a text, which nobody reads."""
    target = pair.target
    noise = torch.zeros(len(seeds), tokens + 1, target.vocabulary, device=target.device)
    for row, seed in enumerate(seeds):
        own = replace(sampling, seed=seed)
        for place in range(tokens):
            noise[row, place] = gumbel_noise(own, 0, first + place, target.vocabulary, target.device)
    return noise


def _start(
    pair: Pair, prompt: list[int], shape: TreeShape | None, span: int, sampling: Sampling, noise: Tensor
) -> State:
    """The state after the prompt, read once and copied to every row, with each row's own first token."""
    target, head, rows = pair.target, pair.head if shape else None, noise.shape[0]
    state = State.blank(target, head, rows, span, shape.levels + 1 if shape else 1)
    target_cache, head_cache = target.cache(1, span), head.cache(1, span) if head is not None else None
    tokens = torch.tensor([prompt], device=target.device)
    hidden, features = read_text(target, head, tokens, target_cache, head_cache)
    logits = target.logits(hidden)
    if not logits.isfinite().all():
        raise_non_finite(target)
    state.length.fill_(len(prompt))
    state.root.copy_(choose(logits.expand(rows, -1, -1), sampling, noise[:, :1])[:, 0])
    state.followers[:, 0] = state.root
    state.target_cache.fill(target_cache)
    if features is not None and state.head_cache is not None and head_cache is not None:
        state.features[:, 0] = features[:, -1]
        state.head_cache.fill(head_cache)
    return state
