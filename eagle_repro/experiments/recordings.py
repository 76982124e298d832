"""Recordings for acceptance replay: one plain continuation a question, and what the head would draft all along it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eagle_repro.api import Pair
from eagle_repro.engine.teacher import draft_along
from eagle_repro.experiments.rows import Item, Way, write_text
from eagle_repro.measure.replay import Recording, rank_path


def look_ahead(depth: int) -> int:
    """Tokens that a continuation needs beyond the new ones, so that the last cycle of a replay is not cut."""
    return depth + 1


def record(pair: Pair, item: Item, widths: Sequence[int], depth: int, tokens: int) -> Iterator[Recording]:
    """The recordings of one question: `tokens` new tokens, trees up to `depth`, one for each width.

    Raises ValueError where prompt, new tokens and look_ahead(depth) do not fit the pair's max_length.
    """
    ids = write_text(pair, Way("plain"), item, tokens + look_ahead(depth)).ids
    for top_k in widths:
        yield along(pair, item.prompt, ids, depth, top_k, tokens)


def along(pair: Pair, prompt: list[int], ids: list[int], depth: int, top_k: int, tokens: int) -> Recording:
    """The recording of one width along a known continuation `ids` of tokens + look_ahead(depth) ids."""
    roots = range(tokens - 1)  # the last new token is never the root of a cycle
    drafted = draft_along(pair.target, pair.head, prompt + ids[: len(roots)], len(prompt), depth, top_k)
    candidates = zip(*(field.cpu().numpy() for field in (drafted.tokens, drafted.parents, drafted.scores)), strict=True)
    ranks = [
        rank_path(drafts, parents, scores, ids[root + 1 : root + 2 + depth], top_k, depth)
        for root, (drafts, parents, scores) in zip(roots, candidates, strict=True)
    ]
    return Recording(top_k, depth, ranks)
