"""Acceptance replay: the greedy tau of every tree shape of one width, from one recording of what the head drafts.

At each position of a plain continuation the recording holds all drafted candidates. Those that the continuation agrees
with form one path; a tree shape accepts as much of it as it keeps. A candidate is kept when it is among the best
total_tokens - 1 of its shape's candidates, so its rank says which shapes keep it. Cycles are then replayed from
position to position, exactly as decoding would go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Ranks = list[list[list[int]]]
"""Ranks[position][level][depth - level]: rank, from 0, of the agreeing candidate on `level` (0 is the first drafted
one) among the candidates of a tree of that depth, for depth = level, level + 1, ...; as many levels as agree."""


@dataclass(frozen=True)
class Recording:
    """What one question's recording holds: ranks by position, for trees of width top_k up to depth.

    The continuation's first token (the prefill's) is the root at position 0.
    """

    top_k: int
    depth: int
    ranks: Ranks


def rank_path(
    tokens: np.ndarray, parents: np.ndarray, scores: np.ndarray, following: Sequence[int], top_k: int, depth: int
) -> list[list[int]]:
    """Ranks (see Ranks) at one position from its candidates (C,) in flat order and the tokens that follow the root."""
    path: list[list[int]] = []
    parent = -1
    for level, token in enumerate(following[: depth + 1]):
        children = np.flatnonzero((parents == parent) & (tokens == token))
        if not children.size:
            break
        parent = int(children[0])
        path.append([_rank(scores[: top_k + deep * top_k**2], parent) for deep in range(level, depth + 1)])
    return path


def _rank(scores: np.ndarray, candidate: int) -> int:
    """Candidates in front of this one when sorted best first, equal scores in flat order (as the tree keeps them)."""
    own = scores[candidate]
    return int((scores > own).sum() + (scores[:candidate] == own).sum())


def accepted_at(path: Sequence[Sequence[int]], total_tokens: int, depth: int) -> int:
    """Drafted tokens that a (total_tokens, depth) tree accepts at a position with these ranks.

    A parent scores at least as high as its child, so the kept part of the path is its beginning.
    """
    kept = [ranks[depth - level] < total_tokens - 1 for level, ranks in enumerate(path[: depth + 1])]
    return kept.index(False) if False in kept else len(kept)


def replay(recording: Recording, total_tokens: int, depth: int, new_tokens: int) -> list[int]:
    """Accepted counts, cycle by cycle, of decoding new_tokens with this shape; the last cycle is not cut.

    Raises ValueError for a shape outside the recording, and when the recording is too short for new_tokens.
    """
    if not 0 <= depth <= recording.depth or total_tokens > 1 + recording.top_k + depth * recording.top_k**2:
        raise ValueError(
            f"(total_tokens={total_tokens}, depth={depth}) is outside the recording, which holds top_k="
            f"{recording.top_k} up to depth={recording.depth}"
        )
    if len(recording.ranks) < new_tokens - 1:
        raise ValueError(f"the recording has {len(recording.ranks)} positions; {new_tokens} new tokens need more")
    position, accepted = 0, []
    while position < new_tokens - 1:
        accepted.append(accepted_at(recording.ranks[position], total_tokens, depth))
        position += accepted[-1] + 1
    return accepted
