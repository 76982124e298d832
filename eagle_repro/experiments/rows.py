"""What experiments write texts with, and what a record says of a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from eagle_repro.api import Pair, generate
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.generate import Generation
from eagle_repro.engine.shape import TreeShape
from eagle_repro.measure.fields import DRAFTING
from eagle_repro.measure.stats import loop_share
from eagle_repro.sources.questions import SETS

Row = dict[str, Any]
WARM_UP_TOKENS = 4  # nothing is compiled or captured in eager, so that a few tokens warm up as well as a whole run
CYCLE_FIELDS = ("nodes", "accepted", "emitted", "context", "draft_s", "verify_s", "accept_s", "commit_s")


@dataclass(frozen=True)
class Item:
    """One question of a set, as the ids of its prompt."""

    set: str
    question: str
    prompt: list[int]


@dataclass(frozen=True)
class Way:
    """One way of writing: a method, and for eagle its tree; variant is the tree's name, "-" where none is named."""

    method: str
    variant: str = "-"
    shape: TreeShape | None = None
    sampling: Sampling = Sampling()

    @property
    def name(self) -> str:
        return f"{self.method}/{self.variant}"


def write_text(pair: Pair, way: Way, item: Item, tokens: int, *, instrument: bool = False) -> Generation:
    """Exactly `tokens` tokens of an answer: the end of text does not stop it, so that all ways do equal work."""
    return generate(
        pair,
        item.prompt,
        method=way.method,
        shape=way.shape,
        sampling=way.sampling,
        max_new_tokens=tokens,
        stop="never",
        instrument=instrument,
    )


def reason_of(error: Exception) -> str:
    """The first line of what an error says, for a row that says why something is not there."""
    return str(error).strip().partition("\n")[0]


def domain_of(name: str) -> Row:
    """Domain and language of a question set, as rows have them."""
    return {"domain": SETS[name].domain, "language": SETS[name].language}


def run_key(item: Item, way: Way, repeat: int | str) -> str:
    """The name of a run in the record: SET/QUESTION/METHOD/VARIANT/REPEAT."""
    return f"{item.set}/{item.question}/{way.name}/{repeat}"


def tree_key(shape: TreeShape) -> str:
    """The name of a tree in the key of a row: NODES-DEPTH-TOP_K."""
    return f"{shape.total_tokens}-{shape.depth}-{shape.top_k}"


def shape_of(row: Row) -> TreeShape:
    """The tree that a row names. Raises ValueError for one that cannot be."""
    return TreeShape(row.get("total_tokens"), row.get("depth"), row.get("top_k"))  # type: ignore[arg-type]  # it checks


def run_row(pair: Pair, item: Item, way: Way, done: Generation, *, repeat: int, order: int | None) -> Row:
    """The row of a run; times in seconds. order: its place in the row of all runs, None for an instrumented one."""
    drafted = way.method in DRAFTING
    return {
        "set": item.set,
        **domain_of(item.set),
        "question": item.question,
        "method": way.method,
        "variant": way.variant,
        "temperature": way.sampling.temperature,
        "total_tokens": way.shape.total_tokens if way.shape else None,
        "depth": way.shape.depth if way.shape else None,
        "top_k": way.shape.top_k if way.shape else None,
        "levels": way.shape.levels if way.shape else None,
        "repeat": repeat,
        "order": order,
        "prompt_tokens": len(item.prompt),
        "tokens": len(done.ids),
        "prefill_s": done.prefill_s,
        "decode_s": done.decode_s,
        "accepted": [cycle.accepted for cycle in done.cycles] if drafted else None,
        "tau": done.tau if drafted else None,
        "stop_reason": done.stop_reason,
        "after_eos": share_after_end(done.ids, pair.target.eos_ids),
        "loop_share": loop_share(done.ids),
        "ids_sha256": text_digest(done.ids),
        "same_as_plain": None,
        "near_ties": None,
        "instrumented": False,
    }


def cycle_rows(done: Generation) -> list[Row]:
    """The cycles of an instrumented run; phase times in seconds, None where the stack cannot tell them apart."""
    return [{name: getattr(cycle, name) for name in CYCLE_FIELDS} for cycle in done.cycles]


def share_after_end(ids: list[int], eos_ids: frozenset[int]) -> float:
    """Share of a text that comes after its first end of text; 0 for a text that does not end."""
    ends = [place for place, token in enumerate(ids) if token in eos_ids]
    return (len(ids) - 1 - ends[0]) / len(ids) if ends else 0.0


def text_digest(ids: list[int]) -> str:
    """A short name of a text, equal for equal ids."""
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
