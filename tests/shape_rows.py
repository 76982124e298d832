"""A made-up 03_tree_shape without a model: recordings by chance, costs by formula, runs that follow from both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.shape_points import (
    POINTS,
    cost_shapes,
    depth_of,
    measured_points,
    pick_points,
    sweep_points,
    widths_of,
)
from eagle_repro.experiments.tree_shape import best_shapes, in_domain, model_row
from eagle_repro.measure.curves import Shape, read_curves
from eagle_repro.measure.replay import Ranks, replay
from eagle_repro.measure.tree_shape import read_recordings

Row = dict[str, Any]
SETS = {"chat": ("in", "en"), "code": ("in", "en"), "outside": ("out", "en"), "russian": ("out", "ru")}
AGREEING = {"chat": 0.72, "code": 0.8, "outside": 0.62, "russian": 0.3}  # how often the next level has the text's token
PLAIN_S, NEW_TOKENS, NOISE = 0.02, 40, 0.03


def verify_s(nodes: float) -> float:
    """Flat up to 64 nodes, then rising."""
    return 0.021 + 0.0001 * max(0.0, nodes - 64)


def draft_s(depth: float, top_k: float) -> float:
    return (depth + 1) * (0.0011 + 0.00002 * top_k)


REST_S = 0.001


def made_up_rows(profile: str = "full", questions: int = 2, repeats: int = 2) -> tuple[list[Row], Protocol]:
    """All rows of a record with these sets, and its protocol."""
    protocol = build_protocol(
        {"pair": "tiny"},
        {"profile": profile, "sets": list(SETS), "questions": questions, "new_tokens": NEW_TOKENS, "repeats": repeats},
        {},
    )
    rows = [*recordings(protocol), *costs(protocol)]
    times = {str(count): verify_s(count) for count in (40, 48, 50, 56, 60)}
    rows.append({"key": "autopick/reference", "what": "autopick", "rule": "reference", "times": times, "nodes": 60})
    ranking = best_shapes(protocol, in_domain(rows), read_curves(rows))
    rows.append({"key": "autopick/cost model", **model_row(ranking, rows)})
    points = [*sweep_points(protocol), *pick_points(protocol, 60, ranking)]
    rows += [{"key": f"point/{number}"} | point for number, point in enumerate(points)]
    return [*rows, *runs(protocol, rows, points)], protocol


def recordings(protocol: Protocol) -> Iterator[Row]:
    depth, dice = depth_of(protocol), np.random.default_rng(0)
    for name, (domain, _) in SETS.items():
        for question in range(protocol.questions):
            for top_k in widths_of(protocol):
                ranks = random_ranks(dice, AGREEING[name] * (0.55 + 0.45 * min(1.0, top_k / 10)), depth, top_k)
                yield {
                    "key": f"recording/{name}/{question}/{top_k}", "what": "recording", "set": name, "domain": domain,
                    "question": str(question), "top_k": top_k, "depth": depth, "ranks": ranks, "tokens": NEW_TOKENS,
                    "prompt_tokens": 20,
                }  # fmt: skip


def random_ranks(dice: np.random.Generator, agreeing: float, depth: int, top_k: int) -> Ranks:
    """Ranks as a recording has them: no smaller from level to level nor from depth to depth."""
    ranks: Ranks = []
    for _ in range(NEW_TOKENS - 1):
        path: list[list[int]] = []
        last = 0
        while len(path) <= depth and dice.random() < agreeing:
            last += int(dice.geometric(0.4 if top_k > 1 else 1.0)) - 1 + (len(path) > 0)
            path.append([last + (deep - len(path)) // 2 * (top_k > 1) for deep in range(len(path), depth + 1)])
        ranks.append(path)
    return ranks


def costs(protocol: Protocol) -> Iterator[Row]:
    dice = np.random.default_rng(1)
    for repeat in range(POINTS[protocol.profile].rounds):
        noise = iter(1 + NOISE * dice.standard_normal(1000))
        common = {"what": "cost", "repeat": repeat, "cycles": 8, "context": 50.0}
        common |= {"nodes": None, "depth": None, "top_k": None}
        yield common | {"key": f"cost/plain/1/{repeat}", "phase": "plain", "nodes": 1, "seconds": PLAIN_S * next(noise)}
        for shape in cost_shapes(protocol, 8192):
            label = f"{shape.total_tokens}-{shape.depth}-{shape.top_k}/{repeat}"
            nodes, drafted = {"nodes": shape.total_tokens}, {"depth": shape.depth, "top_k": shape.top_k}
            phases = (
                ("verify", nodes, verify_s(shape.total_tokens)),
                ("draft", drafted, draft_s(shape.depth, shape.top_k)),
                ("rest", nodes, REST_S),
            )
            for phase, of, seconds in phases:
                row = common | of | {"key": f"cost/{phase}/{label}", "phase": phase}
                yield row | {"seconds": seconds * next(noise)}


def runs(protocol: Protocol, rows: list[Row], points: list[Row]) -> Iterator[Row]:
    recorded, dice = read_recordings(rows), np.random.default_rng(2)
    chosen = measured_points(points, every=POINTS[protocol.profile].every)
    for (name, question), of_question in recorded.items():
        for repeat in range(protocol.repeats):
            yield run(name, question, "plain", None, (NEW_TOKENS - 1) * PLAIN_S, None, repeat, {"sweep": "plain"})
            every = []
            for tree, point in chosen.items():
                shape = Shape(tree.total_tokens, tree.depth, tree.top_k)
                recording = next(each for each in of_question if each.top_k == shape.top_k)
                accepted = replay(recording, shape.total_tokens, shape.depth, NEW_TOKENS)
                cycle = verify_s(shape.total_tokens) + draft_s(shape.depth, shape.top_k) + REST_S
                seconds = len(accepted) * cycle * (1 + NOISE * dice.standard_normal())
                yield run(name, question, "eagle", tree, seconds, accepted, repeat, point)
                every.append((seconds, accepted))
            seconds, accepted = min(every)
            yield run(name, question, "adaptive", None, 1.02 * seconds, accepted, repeat, {"sweep": "adaptive"})


def run(
    name: str, question: str, method: str, tree: TreeShape | None, decode_s: float, accepted: list[int] | None,
    repeat: int, point: Row,
) -> Row:  # fmt: skip
    variant = f"{tree.total_tokens}-{tree.depth}-{tree.top_k}" if tree else "-"
    return {
        "key": f"{name}/{question}/{method}/{variant}/{repeat}", "what": "shape", "set": name, "domain": SETS[name][0],
        "language": SETS[name][1], "question": question, "method": method, "variant": variant, "temperature": 0.0,
        "total_tokens": tree and tree.total_tokens, "depth": tree and tree.depth, "top_k": tree and tree.top_k,
        "levels": tree and tree.levels, "repeat": repeat, "order": 0, "prompt_tokens": 20, "tokens": NEW_TOKENS,
        "prefill_s": 0.1, "decode_s": decode_s, "accepted": accepted, "stop_reason": "budget", "after_eos": 0.0,
        "tau": 1 + sum(accepted) / len(accepted) if accepted else None, "loop_share": 0.0, "same_as_plain": True,
        "near_ties": 0, "instrumented": False, "sweep": point["sweep"], "clipped": point.get("clipped", False),
    }  # fmt: skip
