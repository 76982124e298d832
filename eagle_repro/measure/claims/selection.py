"""Which rows of a run's records answer a question: the sets, trees, depths, pairs and precisions that are compared."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from eagle_repro.measure import summary
from eagle_repro.measure.claims.run import NotMeasured, Run, conditions
from eagle_repro.measure.curves import Shape
from eagle_repro.measure.totals import Totals, aligned, headline
from eagle_repro.measure.tree_shape import IN_DOMAIN, Study, study

BENCH, ROOFLINE, SPEEDUP, SHAPES = "00_bench", "01_roofline", "02_speedup", "03_tree_shape"
BRANCHING, SIZE, LOSSLESS = "04_chain_vs_tree", "05_target_size", "06_lossless"
#: EAGLE's sets and this project's own of the same kind.
SAME_KIND = {"mt_bench": "chat", "humaneval": "code", "gsm8k": "math", "alpaca": "instruct"}
TREE = ("total_tokens", "depth", "top_k")
HALF = ("float16", "bfloat16")
Conditions = dict[str, Any]
Ways = dict[str, Totals]


@dataclass(frozen=True)
class Selected:
    """Baseline runs on some sets and the runs with one tree; `record`: where they were measured."""

    record: str
    sets: tuple[str, ...]
    rows: pd.DataFrame
    conditions: Conditions


def roofline(run: Run) -> pd.DataFrame:
    """What a pass costs by its tokens (see summary.roofline)."""
    run.rows(ROOFLINE)
    return run.once("roofline", lambda: summary.roofline(run.record(ROOFLINE)))


def phase_row(run: Run, tree: Sequence[int | None]) -> tuple[Mapping[Any, Any], Conditions]:
    """The phases of a cycle with the tree nearest to (total_tokens, depth, top_k) (see summary.phases)."""
    texts(run)
    frame = run.once("phases", lambda: summary.phases(run.record(SPEEDUP)))
    frame = frame[frame["verify_ms"].notna()] if len(frame) else frame
    if frame.empty:
        raise NotMeasured(SPEEDUP, "no instrumented cycles")
    row = nearest_tree(frame, tree)
    return row, conditions(run.record(SPEEDUP)) | tree_of(row)


def texts_of(run: Run, name: str, tree: Sequence[int | None]) -> Selected:
    """The runs on the sets that `name` means, with the tree nearest to `tree`: of 02_speedup, or of the sweeps in 03.

    The sweeps are asked only for a tree that 02_speedup does not have, and only answer with that very tree.
    """
    rows = texts(run)
    chosen = _with_tree(rows, SPEEDUP, name, tree)
    if distance(chosen.conditions, tree) > 0:
        with contextlib.suppress(NotMeasured):
            other = _with_tree(_swept(run), SHAPES, name, tree)
            if distance(other.conditions, tree) == 0:
                chosen = other
    return replace(chosen, conditions=conditions(run.record(chosen.record)) | chosen.conditions)


def texts(run: Run) -> pd.DataFrame:
    """The greedy headline runs of 02_speedup."""
    rows = run.rows(SPEEDUP)
    if not {"method", "accepted", "decode_s"} <= set(rows):
        raise NotMeasured(SPEEDUP, "no speculative runs")
    return headline(rows)


def sets_of(rows: pd.DataFrame, name: str) -> list[str]:
    """The sets behind a name: "english", "five" (those and Russian), "out", a set, or our own set of its kind."""
    there = [str(each) for each in dict.fromkeys(rows["set"])]
    russian = [each for each in there if each == "russian"]
    english, outside = english_sets(rows), set(rows.loc[rows["domain"] == "out", "set"])
    groups = {"english": english, "five": [*english, *russian], "out": [each for each in there if each in outside]}
    found = groups.get(name) or [each for each in (name, SAME_KIND.get(name, name)) if each in there][:1]
    if not found or (name == "five" and not russian):
        raise NotMeasured(SPEEDUP, f"no runs on {name}")
    return found


def english_sets(rows: pd.DataFrame) -> list[str]:
    """The in-domain English sets of a record, in the article's order."""
    there = dict.fromkeys(rows.loc[(rows["domain"] == "in") & (rows["language"] == "en"), "set"])
    order = {name: place for place, name in enumerate([*SAME_KIND, *SAME_KIND.values()])}
    return sorted(there, key=lambda name: order.get(name, len(order)))


def nearest_tree(rows: pd.DataFrame, tree: Sequence[int | None]) -> Mapping[Any, Any]:
    """The first row whose tree is nearest to (total_tokens, depth, top_k), None meaning any."""
    order = {name: place for place, name in enumerate(summary.VARIANTS)}
    listed = rows.drop_duplicates(list(TREE)).to_dict("records")
    return min(listed, key=lambda row: (distance(row, tree), order.get(row.get("variant"), len(order))))


def distance(row: Mapping[Any, Any], tree: Sequence[int | None]) -> float:
    """How far the tree of a row is from the wanted one: the ratios of its numbers, as logarithms."""
    asked = [(row[name], wanted) for name, wanted in zip(TREE, tree, strict=True) if wanted is not None]
    return sum(abs(math.log((there + 1) / (wanted + 1))) for there, wanted in asked)


def tree_of(row: Mapping[Any, Any]) -> dict[str, int]:
    """The tree of a row."""
    return {name: int(row[name]) for name in TREE}


def depth_sweep(run: Run) -> tuple[dict[int, Ways], Conditions]:
    """Plain and speculative totals of the in-domain questions at each depth of the sweep at fixed width, rising.

    From measured texts where both ends of the sweep were measured, else from replayed acceptance with the measured cost
    of a cycle ("how" in the conditions says which).
    """
    return run.once("depth sweep", lambda: _depth_sweep(run))


def _depth_sweep(run: Run) -> tuple[dict[int, Ways], Conditions]:
    record = run.record(SHAPES)
    try:
        known = study(record)
    except (KeyError, ValueError):
        raise NotMeasured(SHAPES, "no depth sweep") from None
    points = known.points[known.points["sweep"] == "depth"].sort_values("depth").to_dict("records")
    shapes = {int(point["depth"]): Shape(*(int(point[name]) for name in TREE)) for point in points}
    texts = _swept(run)
    texts = texts[texts["domain"] == "in"]
    sources = {"measured": lambda shape: _measured(texts, shape), "replayed": lambda shape: _replayed(known, shape)}
    for how, totals in sources.items():
        found = {depth: ways for depth, shape in shapes.items() if (ways := totals(shape))}
        if len(found) > 1 and {min(shapes), max(shapes)} <= set(found):
            return found, conditions(record) | {"how": how}
    raise NotMeasured(SHAPES, "no depth sweep")


def branches(run: Run) -> tuple[Ways, Conditions]:
    """Plain, chain and tree totals at the same depth, over the in-domain sets."""
    rows = headline(run.rows(BRANCHING, "text"))
    inside = rows[rows["domain"] == "in"]
    names = ("plain", "chain", "eagle")
    ways = aligned({name: inside[inside["method"] == name] for name in names})
    if not ways:
        raise NotMeasured(BRANCHING, "no texts by chain and tree")
    return ways, conditions(run.record(BRANCHING))


def two_pairs(run: Run) -> tuple[Ways, Ways, Conditions]:
    """Plain and speculative totals of the smaller and of the larger pair, over the in-domain questions of both."""
    rows = headline(run.rows(SIZE, "text"))
    sizes = run.rows(SIZE, "pair").set_index("pair")["target_parameters"].sort_values()
    names = [name for name in sizes.index if name in set(rows["pair"])]
    if len(names) < 2:
        raise NotMeasured(SIZE, "no texts of two pairs")
    inside = rows[rows["domain"] == "in"]
    chosen = {
        (name, method): inside[(inside["pair"] == name) & (inside["method"] == method)]
        for name in (names[0], names[-1])
        for method in ("plain", "eagle")
    }
    totals = aligned({f"{name}/{method}": frame for (name, method), frame in chosen.items()})
    if not totals:
        raise NotMeasured(SIZE, "no questions that both pairs answered")
    smaller, larger = (
        {method: totals[f"{name}/{method}"] for method in ("plain", "eagle")} for name in (names[0], names[-1])
    )
    return smaller, larger, conditions(run.record(SIZE)) | {"pair": f"{names[0]}, {names[-1]}"}


def pair_row(run: Run, pair: str) -> Mapping[Any, Any]:
    """Parameters of target and head of a pair: from 05_target_size, or from the weights of 00_bench."""
    rows: list[dict[Any, Any]] = []
    with contextlib.suppress(NotMeasured):
        rows = run.rows(SIZE, "pair").to_dict("records")
    with contextlib.suppress(NotMeasured):
        # Timing-only pairs have the weights' shapes and no trained weights, so that their counts are as good.
        timed = run.rows(SIZE, "timing").drop_duplicates("shape").to_dict("records")
        rows += [row | {"pair": row["shape"]} for row in timed if "head_parameters" in row]
    rows = [row | {"record": SIZE} for row in rows]
    if not any(row["pair"] == pair for row in rows) and BENCH in run.records:
        rows.insert(0, _bench_pair(run))
    if not rows:
        raise NotMeasured(SIZE, run.states.get(SIZE, "missing"))
    return next((row for row in rows if row["pair"] == pair), rows[0])


def half_precision(run: Run) -> tuple[pd.DataFrame, Conditions]:
    """The greedy texts of 06_lossless in one half precision: in float16, the article's, where there are any."""
    rows = run.rows(LOSSLESS, "greedy")
    written = set(rows["dtype"])
    half = next((dtype for dtype in HALF if dtype in written), None)
    if half is None:
        raise NotMeasured(LOSSLESS, "no texts in half precision")
    return rows[rows["dtype"] == half], conditions(run.record(LOSSLESS)) | {"dtype": half}


def _bench_pair(run: Run) -> dict[Any, Any]:
    record = run.record(BENCH)
    weights = {row["role"]: row["parameters"] for row in record.rows if row.get("key", "").startswith("weights/")}
    name = (record.header["bench"].get("pair") or {}).get("name")
    if not {"target", "head"} <= set(weights):
        raise NotMeasured(BENCH, "no weights")
    return {"pair": name, "target_parameters": weights["target"], "head_parameters": weights["head"], "record": BENCH}


def _with_tree(rows: pd.DataFrame, record: str, name: str, tree: Sequence[int | None]) -> Selected:
    names = sets_of(rows, name)
    rows = rows[rows["set"].isin(names)]
    eagle = rows[rows["method"] == "eagle"]
    if eagle.empty:
        raise NotMeasured(record, f"no runs on {name}")
    chosen = tree_of(nearest_tree(eagle, tree))
    same = (eagle[list(chosen)] == pd.Series(chosen)).all(axis=1)
    kept = pd.concat([rows[rows["method"] != "eagle"], eagle[same]])
    return Selected(record, tuple(names), kept, chosen | {"set": ", ".join(names)})


def _swept(run: Run) -> pd.DataFrame:
    """The texts of plain decoding and of the fixed trees: of what "adaptive" wrote beside them no claim speaks."""
    rows = headline(run.rows(SHAPES, "shape"))
    return rows[rows["method"] != "adaptive"]


def _measured(texts: pd.DataFrame, shape: Shape) -> Ways:
    """Totals of the texts that were written with this tree, and of plain ones."""
    same = (texts[list(TREE)] == list(shape)).all(axis=1)
    return aligned({"plain": texts[texts["method"] == "plain"], "eagle": texts[same & (texts["method"] == "eagle")]})


def _replayed(known: Study, shape: Shape) -> Ways:
    """Totals of replayed texts whose cycles all cost what the curves say, beside plain ones."""
    counts = known.counts(shape, known.groups.get(IN_DOMAIN, []))
    if not counts or not known.curves.covers(shape):
        return {}
    emitted, cycles = (np.array([float(count) for count in part]) for part in zip(*map(_sums, counts), strict=True))
    tokens = np.full_like(cycles, known.new_tokens - 1)
    nothing = np.zeros_like(cycles)
    plain = Totals(nothing, nothing, tokens, tokens * known.curves.plain)
    return {"plain": plain, "eagle": Totals(emitted, cycles, tokens, cycles * known.curves.cycle(shape))}


def _sums(accepted: Sequence[int]) -> tuple[int, int]:
    return sum(accepted) + len(accepted), len(accepted)
