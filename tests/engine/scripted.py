"""A head that follows a script, so that drafting is tested without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_repro.engine.attention import SlotCache
from eagle_repro.engine.cycle import State, draft
from eagle_repro.engine.shape import TreeShape, read_span
from eagle_repro.engine.tree import DraftTree


@dataclass(frozen=True)
class Pass:
    """What one head pass was given: tokens, positions (n,) and the additive mask (n, span)."""

    tokens: Tensor
    positions: Tensor
    mask: Tensor


class ScriptedHead:
    """Stands in for Eagle3Head: row r of pass p gets the log-probabilities script[p][r], whatever it is given.

    script: one (rows, D) tensor a pass. d2t: offsets (D,); zero by default. A hidden state is just (pass, row).
    """

    def __init__(self, script: list[Tensor], d2t: Tensor | None = None) -> None:
        self.script = script
        self.d2t = torch.zeros(script[0].shape[-1], dtype=torch.long) if d2t is None else d2t
        self.passes: list[Pass] = []

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def __call__(self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        number = torch.full_like(tokens, len(self.passes))
        self.passes.append(Pass(tokens[0], positions[0], mask[0, 0]))
        rows = torch.arange(tokens.shape[1]).expand_as(tokens)
        return torch.stack((number, rows), dim=-1).float()

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        return torch.stack([self.script[int(number)][int(row)] for number, row in hidden[0]]).unsqueeze(0)

    def to_target(self, draft_ids: Tensor) -> Tensor:
        return draft_ids + self.d2t[draft_ids]


def scripted_draft(
    script: list[Tensor], shape: TreeShape, root: int = 0, length: int = 2, d2t: Tensor | None = None
) -> tuple[DraftTree, list[Pass]]:
    """The tree that draft() grows from a script, and the expansions' passes (the catch-up pass left out)."""
    head: Any = ScriptedHead(script, d2t)
    span = read_span(length, shape.slots)
    state = State(
        length=torch.tensor([length]),
        root=torch.tensor([root]),
        features=torch.zeros(1, shape.levels + 1, 2),
        followers=torch.zeros(1, shape.levels + 1, dtype=torch.long),
        pending=torch.ones(1, dtype=torch.long),
        active=torch.ones(1, dtype=torch.bool),
        noise=None,
        target_cache=SlotCache(1, 1, span, 1, 2, torch.float32, "cpu"),
        head_cache=SlotCache(1, 1, span, 1, 2, torch.float32, "cpu"),
    )
    tree = draft(head, state, shape, span)
    return tree, head.passes[1:]
