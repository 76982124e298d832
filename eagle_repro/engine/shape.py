"""The shape of a draft tree, in the reference implementation's language."""

from __future__ import annotations

from dataclasses import dataclass

BUCKET = 64


@dataclass(frozen=True)
class TreeShape:
    """How large a tree one cycle drafts and verifies.

    total_tokens: nodes in one verification pass, the root included.
    depth: draft passes after the first one, so a tree has up to depth + 1 drafted levels.
    top_k: children per expanded node, and nodes expanded per level.

    Raises ValueError when the shape asks for more nodes than drafting can produce.
    """

    total_tokens: int = 60
    depth: int = 7
    top_k: int = 10

    def __post_init__(self) -> None:
        for name in ("total_tokens", "depth", "top_k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"TreeShape.{name} must be a whole number, got {value!r}")
        if self.total_tokens < 2:
            raise ValueError(
                f"total_tokens={self.total_tokens} leaves nothing to draft: the root counts, so at least 2 "
                'are needed (method="plain" decodes without drafts)'
            )
        if self.depth < 0 or self.top_k < 1:
            raise ValueError(f"depth must be >= 0 and top_k >= 1, got depth={self.depth}, top_k={self.top_k}")
        if self.total_tokens > self.capacity:
            raise ValueError(
                f"total_tokens={self.total_tokens} is more than the {self.capacity} nodes that depth={self.depth} "
                f"and top_k={self.top_k} can give: lower total_tokens, or raise depth or top_k"
            )

    @classmethod
    def chain(cls, depth: int) -> TreeShape:
        """The largest width-1 tree: depth + 1 drafted tokens in a row."""
        return cls(total_tokens=depth + 2, depth=depth, top_k=1)

    @classmethod
    def clipped(cls, total_tokens: int, depth: int, top_k: int) -> tuple[TreeShape, bool]:
        """The shape with total_tokens cut to its capacity, and whether it was cut (sweeps mark such points)."""
        capacity = node_capacity(depth, top_k)
        return cls(min(total_tokens, capacity), depth, top_k), total_tokens > capacity

    @property
    def capacity(self) -> int:
        """Most nodes this depth and top_k can give, the root included."""
        return node_capacity(self.depth, self.top_k)

    @property
    def levels(self) -> int:
        """Drafted levels below the root."""
        return self.depth + 1

    @property
    def slots(self) -> int:
        """Cache slots a cycle may touch beyond the committed length, in either cache."""
        return max(self.total_tokens, self.depth * self.top_k) + self.depth + 2

    def pass_span(self, span: int) -> int:
        """How many slots the verification pass of a cycle of this span reads: a wide draft needs more than its tree."""
        return min(span, read_span(span - self.slots, self.total_tokens))

    def require_vocabulary(self, draft_vocabulary: int) -> None:
        """Raise ValueError when top_k asks for more children than the draft vocabulary has tokens."""
        if self.top_k > draft_vocabulary:
            raise ValueError(
                f"top_k={self.top_k} is more than the head's draft vocabulary of {draft_vocabulary} tokens: "
                f"use top_k <= {draft_vocabulary}"
            )


def node_capacity(depth: int, top_k: int) -> int:
    """Nodes a tree can have: root, top_k first-level candidates, top_k * top_k for each further draft pass."""
    return 1 + top_k + depth * top_k * top_k


def slots_of(shape: TreeShape | None) -> int:
    """Cache slots that a cycle needs beyond the committed length; shape None is a plain step.

    The padding of what waits for the head may be written farther, at most to the last slot, which no text reaches.
    """
    return shape.slots if shape is not None else 2


def read_span(longest: int, slots: int) -> int:
    """Cache slots that a pass reads after `longest` committed tokens when a cycle touches `slots` more.

    Rounded up to a bucket, so that shapes repeat from cycle to cycle.
    """
    return -(-(longest + slots) // BUCKET) * BUCKET
