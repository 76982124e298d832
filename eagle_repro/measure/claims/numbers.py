"""The numbers that claims and marked texts name, each read from a run's records.

Every function here takes a run and its arguments and gives a Found: the value and the conditions it belongs to. Where
the record has no such tree, set or token count, the nearest one is given, and its conditions say which it is. A number
that is not there raises NotMeasured. Percentages are in percent, times in milliseconds.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from eagle_repro.measure import summary
from eagle_repro.measure.claims.run import Found, NotMeasured, Run, conditions
from eagle_repro.measure.claims.selection import (
    BRANCHING,
    LOSSLESS,
    ROOFLINE,
    SHAPES,
    SIZE,
    SPEEDUP,
    branches,
    depth_sweep,
    half_precision,
    pair_row,
    phase_row,
    roofline,
    texts_of,
    two_pairs,
)
from eagle_repro.measure.totals import aligned, whole
from eagle_repro.measure.totals import speedup as speedup_of


def pass_ms(run: Run, tokens: int) -> Found:
    """Milliseconds of a pass over `tokens` tokens (median), or over the nearest count that was measured."""
    frame = roofline(run)
    nearest = min(frame["tokens"], key=lambda count: abs(math.log(count / tokens)))
    value = float(frame.loc[frame["tokens"] == nearest, "ms"].iloc[0])
    return Found(value, ROOFLINE, conditions(run.record(ROOFLINE)) | {"tokens": int(nearest)})


def flat_until(run: Run) -> Found:
    """Up to how many tokens a pass costs at most a quarter more than one token's."""
    return Found(float(summary.flat_until(roofline(run))), ROOFLINE, conditions(run.record(ROOFLINE)))


def bus_share(run: Run) -> Found:
    """Percent of the memory bus that a pass over one token uses (of the card's peak, or of what was measured)."""
    value = float(roofline(run)["utilisation"].iloc[0])
    if math.isnan(value):
        raise NotMeasured(ROOFLINE, "no bandwidth")
    return Found(100 * value, ROOFLINE, conditions(run.record(ROOFLINE)))


def memory_ratio(run: Run) -> Found:
    """How many times longer a pass over one token takes than reading the weights once."""
    share = bus_share(run)
    return Found(100 / _one(share), ROOFLINE, share.conditions)


def phase_ms(run: Run, phase: str, total_tokens: int | None = None, depth: int | None = None) -> Found:
    """Milliseconds of one phase of a cycle: draft, verify, accept, or rest (commit included), or the whole cycle."""
    row, found = phase_row(run, (total_tokens, depth, None))
    value = row["rest_ms"] + row["commit_ms"] if phase == "rest" else row[f"{phase}_ms"]
    return Found(float(value), SPEEDUP, found)


def verify_share(run: Run, total_tokens: int | None = None, depth: int | None = None) -> Found:
    """Percent of a cycle that verification takes."""
    row, found = phase_row(run, (total_tokens, depth, None))
    return Found(100 * row["verify_ms"] / row["cycle_ms"], SPEEDUP, found)


def speedup(
    run: Run,
    set: str,  # noqa: A002 - the name it has in every record
    total_tokens: int | None = None,
    depth: int | None = None,
    top_k: int | None = None,
    baseline: str = "plain",
) -> Found:
    """Speedup of a question set, or the mean over the sets of a group ("english", "five": those and Russian)."""
    chosen = texts_of(run, set, (total_tokens, depth, top_k))
    values = []
    for name in chosen.sets:
        same = chosen.rows[chosen.rows["set"] == name]
        ways = aligned({method: same[same["method"] == method] for method in (baseline, "eagle")})
        if not ways:
            raise NotMeasured(chosen.record, f"no {baseline} runs on {name}")
        values.append(whole(speedup_of(ways[baseline], ways["eagle"]), ways["eagle"]))
    return Found(float(np.mean(values)), chosen.record, chosen.conditions)


def tau(
    run: Run,
    set: str,  # noqa: A002
    total_tokens: int | None = None,
    depth: int | None = None,
    top_k: int | None = None,
) -> Found:
    """Step-weighted tau of a question set or group (see `speedup`), over all its cycles."""
    chosen = texts_of(run, set, (total_tokens, depth, top_k))
    eagle = aligned({"eagle": chosen.rows[chosen.rows["method"] == "eagle"]})["eagle"]
    return Found(whole(eagle.tau, eagle), chosen.record, chosen.conditions)


def depth_tau(run: Run, depth: int) -> Found:
    """tau of the in-domain sets at one depth of the sweep at fixed width, or at the nearest one that was measured."""
    points, found = depth_sweep(run)
    nearest = min(points, key=lambda each: abs(each - depth))
    eagle = points[nearest]["eagle"]
    return Found(whole(eagle.tau, eagle), SHAPES, found | {"depth": nearest})


def depth_speedup(run: Run, depth: int) -> Found:
    """Speedup of the in-domain sets at one depth of the sweep, or at the nearest one that was measured."""
    points, found = depth_sweep(run)
    nearest = min(points, key=lambda each: abs(each - depth))
    ways = points[nearest]
    value = whole(speedup_of(ways["plain"], ways["eagle"]), ways["eagle"])
    return Found(value, SHAPES, found | {"depth": nearest})


def depth_inner_tau(run: Run, near: Sequence[float] = ()) -> Found:
    """tau at as many depths between the sweep's ends as `near` has values, chosen to be closest to them in order.

    The article gives four such values without their depths, so the benefit of the doubt is given.
    """
    points, found = depth_sweep(run)
    inner = {depth: ways["eagle"] for depth, ways in points.items() if min(points) < depth < max(points)}
    values = {depth: whole(totals.tau, totals) for depth, totals in inner.items()}
    if len(values) < max(1, len(near)):
        raise NotMeasured(SHAPES, f"{len(values)} depths between the ends")
    choices = itertools.combinations(sorted(values), len(near) or len(values))
    best = min(choices, key=lambda depths: _worst([values[depth] for depth in depths], near))
    return Found(tuple(values[depth] for depth in best), SHAPES, found)


def branching_tau(run: Run, method: str) -> Found:
    """tau of the tree ("eagle") or of the chain ("chain") at the same depth, over the in-domain sets."""
    ways, found = branches(run)
    totals = ways[method]
    return Found(whole(totals.tau, totals), BRANCHING, found)


def branching_gain(run: Run) -> Found:
    """Percent that branching adds to tau at the same depth."""
    tree, chain = (_one(branching_tau(run, method)) for method in ("eagle", "chain"))
    return Found(100 * (tree / chain - 1), BRANCHING, branches(run)[1])


def branching_speedup(run: Run, method: str) -> Found:
    """Speedup of the tree ("eagle") or of the chain ("chain") at the same depth, over the in-domain sets."""
    ways, found = branches(run)
    return Found(whole(speedup_of(ways["plain"], ways[method]), ways[method]), BRANCHING, found)


def larger_gain(run: Run, of: str) -> Found:
    """Percent by which tau or speedup (`of`) of the larger of two pairs is above the smaller's, in domain."""
    smaller, larger, found = two_pairs(run)
    values = []
    for ways in (smaller, larger):
        ratio = ways["eagle"].tau if of == "tau" else speedup_of(ways["plain"], ways["eagle"])
        values.append(whole(ratio, ways["eagle"]))
    return Found(100 * (values[1] / values[0] - 1), SIZE, found)


def head_parameters(run: Run, pair: str) -> Found:
    """Parameters of a pair's head in millions, or of the pair that was measured."""
    row = pair_row(run, pair)
    return Found(row["head_parameters"] / 1e6, row["record"], {"pair": row["pair"]})


def head_share(run: Run, pair: str) -> Found:
    """The head's parameters in percent of the target's."""
    row = pair_row(run, pair)
    return Found(100 * row["head_parameters"] / row["target_parameters"], row["record"], {"pair": row["pair"]})


def mismatches(run: Run) -> Found:
    """Greedy mismatches per thousand tokens in half precision, excused ones included."""
    rows, found = half_precision(run)
    return Found(1e3 * sum(map(len, rows["mismatches"])) / float(rows["tokens"].sum()), LOSSLESS, found)


def mismatch_gap(run: Run) -> Found:
    """Median gap between the best and the emitted logit where half-precision texts differ."""
    rows, found = half_precision(run)
    gaps = [each["gap"] for listed in rows["mismatches"] for each in listed]
    if not gaps:
        raise NotMeasured(LOSSLESS, "no mismatch in half precision")
    return Found(float(np.median(gaps)), LOSSLESS, found)


def typical_gap(run: Run) -> Found:
    """Median over texts of the typical gap between the two best logits, in half precision."""
    rows, found = half_precision(run)
    return Found(float(np.median(rows["typical_gap"].astype(float))), LOSSLESS, found)


def protocol(run: Run, setting: str) -> Found:
    """A number of the protocol under which 02_speedup was run."""
    record = run.record(SPEEDUP)
    value = record.header["protocol"].get(setting)
    if not isinstance(value, int | float):
        raise NotMeasured(SPEEDUP, f"no setting {setting}")
    return Found(float(value), SPEEDUP, conditions(record))


#: What there is, and the unit of each.
UNIT_OF: dict[str, str] = {
    "pass_ms": "ms", "flat_until": "tokens", "bus_share": "%", "memory_ratio": "x", "phase_ms": "ms",
    "verify_share": "%", "speedup": "x", "tau": "tau", "depth_tau": "tau", "depth_speedup": "x",
    "depth_inner_tau": "tau", "branching_tau": "tau", "branching_gain": "%", "branching_speedup": "x",
    "larger_gain": "%", "head_parameters": "M", "head_share": "%", "mismatches": "per_thousand",
    "mismatch_gap": "logits", "typical_gap": "logits", "protocol": "count",
}  # fmt: skip
NUMBERS: dict[str, Callable[..., Found]] = {name: globals()[name] for name in UNIT_OF}


def find(run: Run, name: str, arguments: Mapping[str, Any]) -> Found:
    """The number `name` with its arguments. Raises NotMeasured, and ValueError for a name or arguments unknown here."""
    check_name(name, arguments)
    return run.once((name, *sorted(arguments.items())), lambda: NUMBERS[name](run, **arguments))


def check_name(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError unless there is a number `name` that takes these arguments."""
    if name not in NUMBERS:
        raise ValueError(f"unknown number {name!r}: known are {', '.join(NUMBERS)}")
    try:
        inspect.signature(NUMBERS[name]).bind(None, **arguments)
    except TypeError as error:
        takes = list(inspect.signature(NUMBERS[name]).parameters)[1:]
        raise ValueError(f"{name} with {dict(arguments)}: {error}; it takes {', '.join(takes) or 'nothing'}") from None


def _one(found: Found) -> float:
    assert isinstance(found.value, float)
    return found.value


def _worst(values: Sequence[float], near: Sequence[float]) -> float:
    """The largest distance between values and what they should be near; 0 where nothing is asked for."""
    return max((abs(a - b) for a, b in zip(values, near, strict=False)), default=0.0)
