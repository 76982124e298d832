"""The draft tree as tensors: growing it level by level, keeping the best nodes, its mask and its paths.

Everything here is a pure function of tensors with a batch dimension, without data-dependent Python.
Shapes: B rows, n = total_tokens nodes, k = top_k, C = k + depth * k * k candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_repro.engine.shape import TreeShape


@dataclass(frozen=True)
class DraftTree:
    """A tree of drafted tokens; node 0 is the root, a parent's number is below its children's.

    tokens (B, n) target ids; parents (B, n), -1 for the root; depths (B, n), 0 for the root;
    scores (B, n) float32, sum of draft log-probabilities along the path, 0 for the root.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    ancestors: Tensor
    """(B, n, n) bool: ancestors[b, i, j] says that j is i itself or lies on the path from the root to i."""

    def cpu(self) -> DraftTree:
        """A copy on the host."""
        return DraftTree(*(field.detach().to("cpu", copy=True) for field in self._fields()))

    def row(self, index: int) -> DraftTree:
        """The tree of one row alone, still with a batch dimension."""
        return DraftTree(*(field[index : index + 1] for field in self._fields()))

    def _fields(self) -> tuple[Tensor, ...]:
        return self.tokens, self.parents, self.depths, self.scores, self.ancestors

    def paths(self, row: int = 0) -> list[list[int]]:
        """Root-to-leaf paths of one row as node numbers, by leaf number (for people and tests, not for the cycle)."""
        parents = self.parents[row].tolist()
        paths = []
        for node in sorted(set(range(len(parents))) - set(parents)):
            path = []
            while node >= 0:
                path.append(node)
                node = parents[node]
            paths.append(path[::-1])
        return paths


@dataclass(frozen=True)
class Candidates:
    """Drafted candidates in flat order: level 0 has 0..k-1, then row r, rank c of expansion e is k + e*k*k + r*k + c.

    tokens, parents, scores, depths: (B, C); parents are flat numbers, -1 on level 0 (their parent is the root).
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    depths: Tensor

    @classmethod
    def of_levels(cls, tokens: list[Tensor], scores: list[Tensor], frontiers: list[Tensor]) -> Candidates:
        """From what each level drafted: tokens, scores (B, k) on level 0, then (B, k * k) an expansion; frontiers:
        flat numbers of the expanded candidates, k an expansion and in order, in as many parts as one likes."""
        first = tokens[0]
        k = first.shape[1]
        parents = [torch.cat(frontiers, dim=1).repeat_interleave(k, dim=1)] if frontiers else []
        flat = torch.arange(k + (len(tokens) - 1) * k * k, device=first.device) - k
        depths = flat.div(k * k, rounding_mode="floor").clamp(min=-1) + 2
        return cls(
            torch.cat(tokens, dim=1),
            torch.cat((torch.full_like(first, -1), *parents), dim=1),
            torch.cat(scores, dim=1),
            depths.expand(first.shape[0], -1),
        )


def ranked(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (B, C) best first, and their indices; equal scores in index order.

    The order of equal scores matters: a child whose log-probability is exactly 0 ties with its parent, and only
    index order keeps the parent in front of it, so that no node is ever kept without its parent.
    """
    ordered = scores.sort(dim=1, descending=True, stable=True)
    return ordered.values, ordered.indices


def build_tree(root: Tensor, candidates: Candidates, shape: TreeShape) -> DraftTree:
    """The best total_tokens - 1 candidates under the root (B,), numbered from 1 in flat order."""
    kept = ranked(candidates.scores)[1][:, : shape.total_tokens - 1].sort(dim=1).values
    parents = candidates.parents.gather(1, kept)
    # A kept candidate's parent is kept too; its node number is its place among the kept ones, plus the root.
    numbers = torch.searchsorted(kept, parents.clamp(min=0)) + 1
    root = root.unsqueeze(1)
    zero = torch.zeros_like(root)
    parents = torch.cat((zero - 1, torch.where(parents < 0, zero, numbers)), dim=1)
    depths = torch.cat((zero, candidates.depths.gather(1, kept)), dim=1)
    scores = candidates.scores.gather(1, kept)
    return DraftTree(
        tokens=torch.cat((root, candidates.tokens.gather(1, kept)), dim=1),
        parents=parents,
        depths=depths,
        scores=torch.cat((torch.zeros_like(scores[:, :1]), scores), dim=1),
        ancestors=ancestor_mask(parents, shape.depth.bit_length()),
    )


def root_tree(root: Tensor) -> DraftTree:
    """The tree of one node (B,) that plain decoding verifies."""
    root = root.unsqueeze(1).clone()  # the root is changed in place by the commit
    zero = torch.zeros_like(root)
    return DraftTree(root, zero - 1, zero, zero.float(), torch.ones_like(root, dtype=torch.bool).unsqueeze(1))


def ancestor_mask(parents: Tensor, doublings: int) -> Tensor:
    """(B, n, n) bool from parents (B, n): each node sees its ancestors and itself.

    Squaring the one-step relation doubles the reach, so `doublings` squarings cover depths up to 2 ** doublings.
    """
    nodes = torch.arange(parents.shape[1], device=parents.device)
    reach = ((parents.unsqueeze(-1) == nodes) | (nodes.unsqueeze(-1) == nodes)).float()
    for _ in range(doublings):
        reach = (reach @ reach).clamp(max=1.0)
    return reach > 0
