"""Made-up drafts for the chooser of method="adaptive": what one cycle tells of a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eagle_repro.engine.shape import TreeShape

NOTHING = -60.0  # the score of a node that the head does not believe in


def told(shape: TreeShape, accepted: int, believed: Sequence[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For Chooser.observe, of one row: accepted levels, and a node a level that the head gives these chances, each
    once the level above is reached; the other nodes are as good as none."""
    scores, depths = (
        np.full((1, shape.total_tokens - 1), NOTHING, np.float32),
        np.ones((1, shape.total_tokens - 1), int),
    )
    for level, chance in enumerate(believed[: shape.levels]):
        above = scores[0, level - 1] if level else 0.0
        scores[0, level], depths[0, level] = above + (math.log(chance) if chance else NOTHING), level + 1
    return np.array([accepted]), scores, depths
