"""Three rules of acceptance that are wrong, each a mistake that implementations have made: a test of texts must notice.

Each has the form of sampling.Rule. Without them a test that finds no difference would prove nothing.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from eagle_repro.engine.accept import Accepted, Sampling, accept, choose, filtered, finite_choices
from eagle_repro.engine.tree import DraftTree
from eagle_repro.experiments.sampling import Rule, exact


def lenient(tree: DraftTree, logits: Tensor, sampling: Sampling, noise: Tensor | None, levels: int) -> Accepted:
    """A draft that is one of the target's two likeliest tokens is accepted, whatever the target chose."""
    choices = choose(logits, sampling, noise)
    likeliest = filtered(logits, sampling).topk(2, dim=-1).indices  # (B, n, 2)
    parents = tree.parents.clamp(min=0)
    of_parent = likeliest.gather(1, parents.unsqueeze(-1).expand(-1, -1, 2))
    welcome = (of_parent == tree.tokens.unsqueeze(-1)).any(dim=-1) & (tree.depths > 0)
    children = _children(tree) & welcome.unsqueeze(1)
    welcomed = _first_child(tree, children, otherwise=choices)
    return accept(tree, welcomed, finite_choices(logits, welcomed), levels)


def head_bonus(tree: DraftTree, logits: Tensor, sampling: Sampling, noise: Tensor | None, levels: int) -> Accepted:
    """The token after the accepted path is the head's, drafted and just rejected, and not the target's."""
    right = exact(tree, logits, sampling, noise, levels)
    drafted = _first_child(tree, _children(tree), otherwise=choose(logits, sampling, noise))  # (B, n)
    count = right.count.unsqueeze(1)
    bonus = drafted.gather(1, right.path.gather(1, count))
    emitted = right.emitted.scatter(1, count, bonus)
    return Accepted.of(tree, right.path, right.finite, right.count, emitted)


def no_temperature(tree: DraftTree, logits: Tensor, sampling: Sampling, noise: Tensor | None, levels: int) -> Accepted:
    """The temperature is ignored: tokens are drawn as if it were 1."""
    return exact(tree, logits, replace(sampling, temperature=1.0), noise, levels)


#: By the name that the record gives them.
BROKEN: dict[str, Rule] = {"top-2": lenient, "head-bonus": head_bonus, "no-temperature": no_temperature}


def _children(tree: DraftTree) -> Tensor:
    """(B, n, n) bool: whether node j is a child of node i."""
    nodes = torch.arange(tree.tokens.shape[1], device=tree.tokens.device)
    return tree.parents.unsqueeze(1) == nodes.unsqueeze(-1)


def _first_child(tree: DraftTree, children: Tensor, otherwise: Tensor) -> Tensor:
    """(B, n): the token of each node's first child among `children` (B, n, n), `otherwise` (B, n) where it has none."""
    first = children.long().argmax(dim=-1)
    return torch.where(children.any(dim=-1), tree.tokens.gather(1, first), otherwise)
