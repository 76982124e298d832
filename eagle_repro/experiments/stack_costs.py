"""What plain steps and cycles cost on every stack that a device has: for 08_stack and `python -m eagle_repro bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eagle_repro.api import Pair
from eagle_repro.engine.devices import STACKS, resolve_stack
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.long_prompts import lengthened, meaningless, pooled
from eagle_repro.experiments.rows import Row, tree_key
from eagle_repro.experiments.watched import watch
from eagle_repro.measure.roofline import weight_bytes


@dataclass(frozen=True)
class Watching:
    """How long to look: at least `cycles` cycles of each tree in each of `turns` turns, after `context` committed
    tokens in the middle of a text of `tokens` tokens."""

    cycles: int
    turns: int
    context: int
    tokens: int

    @property
    def prompt(self) -> int:
        """Tokens of the prompts."""
        return self.context - self.tokens // 2


TEXTS = 4  # different prompts that are taken in turn


def stacks_of(device: str | torch.device, *, split: bool = False) -> list[str]:
    """The stacks that a device has, the plainest first. split: for a target that lies on others too."""
    return [name for name in STACKS if _has(name, torch.device(device), split)]


def prompts_of(pair: Pair, sets: Sequence[str], length: int) -> list[list[int]]:
    """A few prompts of `length` tokens: questions of these sets, ids of no meaning for a pair without a tokenizer."""
    if pair.tokenizer is None:
        return [meaningless(pair.target.vocabulary, length)]
    items = pooled(pair.tokenizer, sets, TEXTS, length)
    return [item.prompt for item in lengthened(pair.tokenizer, items, length)]


def stack_rows(
    pair: Pair,
    prompts: Sequence[list[int]],
    trees: Sequence[TreeShape],
    watching: Watching,
    has: Callable[[str], bool] = lambda key: False,
) -> Iterator[tuple[str, Row]]:
    """Key and row of a plain step and of a cycle of each tree, turn by turn; what `has` knows is left out.

    Times in seconds, medians over cycles. The order is reversed from turn to turn, so that a card that slows down
    favours none. The largest comes first: buffers then serve the others too.
    """
    largest_first = sorted(dict.fromkeys(trees), key=lambda tree: tree.slots, reverse=True)
    steps: list[TreeShape | None] = [*largest_first, None]
    batches = [[prompt] for prompt in prompts]
    common: Row = {"what": "cost", "pair": pair.name, "stack": pair.stack, "dtype": pair.dtype}
    common |= {"weight_bytes": weight_bytes(pair.target.model)}
    for turn in range(watching.turns):
        for shape in steps if turn % 2 == 0 else steps[::-1]:
            key = f"cost/{pair.name}/{pair.stack}/{'plain' if shape is None else tree_key(shape)}/{turn}"
            if has(key):
                continue
            found, made = watch(pair, shape, batches, watching.tokens, watching.cycles)
            yield key, common | tree_fields(shape) | {"turn": turn} | found | made


def tree_fields(shape: TreeShape | None) -> dict[str, Any]:
    """nodes, depth and top_k of a tree as a row holds them; those of a plain step are 1, None and None."""
    if shape is None:
        return {"nodes": 1, "depth": None, "top_k": None}
    return {"nodes": shape.total_tokens, "depth": shape.depth, "top_k": shape.top_k}


def _has(name: str, device: torch.device, split: bool) -> bool:
    try:
        return resolve_stack(name, device, split=split) == name
    except ValueError:
        return False
