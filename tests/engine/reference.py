"""The recorded behaviour of the official EAGLE-3 code (tests/data/reference/README.md), and our engine driven along it.

The whole recording is used where it is found: in the folder named by EAGLE_REPRO_REFERENCE, or beside the checkout in
../shared/reference. The part that is committed under tests/data always is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from eagle_repro.engine.accept import Accepted, Sampling
from eagle_repro.engine.cycle import State, cycle
from eagle_repro.engine.head import Eagle3Head, load_head
from eagle_repro.engine.request import Request
from eagle_repro.engine.shape import TreeShape, read_span
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import DraftTree
from tests.engine.tiny import begun

REPOSITORY = Path(__file__).resolve().parents[2]
COMMITTED = REPOSITORY / "tests" / "data" / "reference"
WHOLE = Path(os.environ.get("EAGLE_REPRO_REFERENCE") or REPOSITORY.parent / "shared" / "reference")
HAS_WHOLE = (WHOLE / "traces").is_dir()
FRAGILE_GAP = 5e-5
"""Scores closer than this may swap between machines: rounding moves log-probabilities by about 1e-5."""

Record = dict[str, Any]


def recordings(kind: str) -> list[Any]:
    """Test parameters: the names of all recordings `kind`_*; those that are not committed are marked `shared`."""
    committed = {path.name for path in (COMMITTED / "traces").glob(f"{kind}_*")}
    whole = {path.name for path in (WHOLE / "traces").glob(f"{kind}_*")} if HAS_WHOLE else set()
    return [
        pytest.param(name, id=Path(name).stem, marks=[] if name in committed else pytest.mark.shared)
        for name in sorted(committed | whole)
    ]


def recording(name: str) -> Path:
    """The path of one recording."""
    committed = COMMITTED / "traces" / name
    return committed if committed.is_file() else WHOLE / "traces" / name


@cache
def read(name: str) -> Record:
    """A JSON recording."""
    return json.loads(recording(name).read_text(encoding="utf-8"))


@cache
def prompts() -> dict[str, Record]:
    """Recorded prompts by id."""
    return {prompt["id"]: prompt for prompt in read("prompts_qwen3.json")["prompts"]}


@cache
def reference_target() -> Target:
    """The target of all recordings, in float32; it is the target of the pair `tiny`."""
    folder = REPOSITORY / "data" / "pairs" / "tiny" / "target"
    return Target(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False))


@cache
def reference_head(name: str) -> Eagle3Head:
    """A recorded head; qwen3-eagle3-dv208 is the head of the pair `tiny`."""
    tiny = REPOSITORY / "data" / "pairs" / "tiny" / "head"
    return load_head(tiny if name == "qwen3-eagle3-dv208" else WHOLE / name, reference_target().embedding)


def shape_of(record: Record) -> TreeShape:
    """The tree shape that a recording or a builder case names."""
    return TreeShape(record["total_token"], record["depth"], record["top_k"])


def prefixes(run: Record) -> Iterator[tuple[list[int], Record]]:
    """(committed ids, recorded cycle) of a run, cycle by cycle."""
    committed = list(prompts()[run["prompt"]]["ids"])
    for recorded in run["cycles"]:
        yield list(committed), recorded
        committed += [recorded["root"], *recorded["accepted"]]


def fresh_state(head: Eagle3Head, committed: list[int], root: int, shape: TreeShape) -> tuple[State, int]:
    """The state of a prefill over the committed ids, made to go on with `root`; and the target's own greedy choice."""
    request = Request(committed, shape=shape, max_new_tokens=1)
    state, chosen = begun(reference_target(), head, request, shape)
    state.root.fill_(root)
    state.followers[:, 0] = root
    return state, chosen


@torch.inference_mode()
def teacher_forced(
    head: Eagle3Head, committed: list[int], root: int, shape: TreeShape
) -> tuple[int, DraftTree, Accepted]:
    """One greedy cycle on a recorded prefix: the target's own choice of the root, the tree, and what was accepted."""
    state, chosen = fresh_state(head, committed, root, shape)
    span = read_span(len(committed), shape.slots)
    return chosen, *cycle(reference_target(), head, state, shape, span, Sampling())


def recorded_tree(recorded: Record) -> Record:
    """What a recorded cycle says of its tree."""
    return {
        "tokens": recorded["draft_tokens"],
        "parents": recorded["parents"],
        "depths": recorded["position_ids"],
        "paths": sorted([node for node in path if node >= 0] for path in recorded["retrieve_indices"]),
    }


def observed_tree(tree: DraftTree) -> Record:
    """The same of one of our trees."""
    return {
        "tokens": tree.tokens[0].tolist(),
        "parents": tree.parents[0].tolist(),
        "depths": tree.depths[0].tolist(),
        "paths": sorted(tree.paths()),
    }


def token_paths(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    """Every node as the tokens on its way from the root: the tree without its numbering."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return set(paths)


def is_fragile(recorded: Record) -> bool:
    """Whether rounding on another machine may change this cycle's tree (a gap of null is infinite)."""
    gaps = [recorded[name] for name in ("gap_order", "gap_select") if recorded[name] is not None]
    return min(gaps, default=1.0) < FRAGILE_GAP


def same_tree(tree: DraftTree, recorded: Record) -> bool:
    """Equal in every detail; for a fragile cycle, up to the numbering and one exchanged node."""
    if not is_fragile(recorded):
        return observed_tree(tree) == recorded_tree(recorded)
    ours = token_paths(tree.tokens[0].tolist(), tree.parents[0].tolist())
    return len(ours ^ token_paths(recorded["draft_tokens"], recorded["parents"])) <= 2


def observed_outcome(accepted: Accepted, row: int = 0) -> Record:
    """What a cycle decided, in the words of the recordings."""
    count = int(accepted.count[row])
    emitted: Tensor = accepted.emitted[row, : count + 1]
    return {"accepted": emitted[:-1].tolist(), "next_root": int(emitted[-1]), "nodes": accepted.path[row].tolist()}


def recorded_outcome(recorded: Record, levels: int) -> Record:
    """The same of a recorded cycle: the nodes are the accepted part of its best path, padded with 0."""
    count = recorded["accept_length"]
    nodes = recorded["retrieve_indices"][recorded["best_candidate"]][: count + 1]
    return {
        "accepted": recorded["accepted"],
        "next_root": recorded["next_root"],
        "nodes": nodes + [0] * (levels + 1 - len(nodes)),
    }
