"""The statements of the article that any bench can test: each an effect with its interval.

Every rule takes a run and gives an Effect. Intervals are bootstrap intervals over questions, which are paired wherever
both sides answered the same ones; passes of 01_roofline and costs of 03_tree_shape are resampled over their repeats.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from eagle_repro.measure.claims.effects import Effect, difference, two_groups
from eagle_repro.measure.claims.run import NotMeasured, Run
from eagle_repro.measure.claims.selection import (
    LOSSLESS,
    ROOFLINE,
    SHAPES,
    SPEEDUP,
    branches,
    depth_sweep,
    nearest_tree,
    sets_of,
    texts,
    texts_of,
    tree_of,
    two_pairs,
)
from eagle_repro.measure.stats import estimate
from eagle_repro.measure.totals import Statistic, Totals, aligned, speedup, whole

FLAT = 1.25  # a pass that costs at most so many times one token's counts as flat, as in measure.cost.flat_until
TREE_TOKENS = 64  # about the nodes of a default tree
STRUCTURED, CHAT = ("humaneval", "gsm8k", "code", "math"), ("mt_bench", "chat")


def pass_flat_then_rising(run: Run) -> Effect:
    """The lesser of two margins: how far a pass over a tree's tokens stays below FLAT, and one over many exceeds it."""
    rows = run.rows(ROOFLINE)
    table = rows.pivot_table(index="repeat", columns="tokens", values="seconds").dropna()
    tree = max((count for count in table.columns if count <= TREE_TOKENS), default=None)
    most = table.columns.max()
    if tree is None or tree == most or 1 not in table.columns:
        raise NotMeasured(ROOFLINE, "no passes of 1, of about 64 and of more tokens")
    one, middle, last = (table[count].to_numpy() for count in (1, tree, most))

    def margin(picks: np.ndarray) -> np.ndarray:
        base = np.median(one[picks], axis=-1)
        flat = FLAT - np.median(middle[picks], axis=-1) / base
        rising = np.median(last[picks], axis=-1) / base - FLAT
        return np.minimum(flat, rising)

    ratios = (float(np.median(part) / np.median(one)) for part in (middle, last))
    sides = [(f"{count} tokens", ratio) for count, ratio in zip((tree, most), ratios, strict=True)]
    return Effect(estimate(margin, len(table)), ROOFLINE, sides[0], sides[1])


def verification_dominates(run: Run) -> Effect:
    """The share of verification in the cycles of the default tree, resampled over instrumented runs."""
    rows, cycles = run.rows(SPEEDUP), run.record(SPEEDUP).frame("cycle")
    inside = rows[rows["instrumented"].astype(bool)] if "instrumented" in rows else rows.iloc[:0]
    if inside.empty or cycles.empty or "verify_s" not in cycles or cycles["verify_s"].isna().all():
        raise NotMeasured(SPEEDUP, "no instrumented cycles")
    first = tree_of(nearest_tree(inside, (None, None, None)))
    inside = inside[(inside[list(first)] == pd.Series(first)).all(axis=1)]
    verify = cycles.groupby("key")["verify_s"].sum().reindex(inside["key"]).to_numpy(dtype=float)
    whole_s = inside["decode_s"].to_numpy(dtype=float)
    share = estimate(lambda picks: verify[picks].sum(-1) / whole_s[picks].sum(-1), len(inside))
    return Effect(share, SPEEDUP, ("verification", share.value), ("the rest", 1 - share.value), border=0.5)


def wider_is_cheap(run: Run) -> Effect:
    """What a deeper draft adds to a cycle beyond what a wider tree adds, in plain steps."""
    costs = run.rows(SHAPES, "cost")
    plain = costs.loc[costs["phase"] == "plain", "seconds"].to_numpy(dtype=float)
    verify = costs[costs["phase"] == "verify"]
    drafts = costs[costs["phase"] == "draft"].reindex(columns=["depth", "top_k", "seconds"])
    nodes = [count for count in sorted(verify["nodes"].unique()) if 8 <= count <= TREE_TOKENS]
    drafts = (
        drafts[drafts["top_k"] == run.record(SHAPES).header["protocol"].get("top_k", 10)] if len(drafts) else drafts
    )
    depths = [depth for depth in sorted(drafts["depth"].unique()) if 2 <= depth <= 10]
    if len(nodes) < 2 or len(depths) < 2 or not len(plain):
        raise NotMeasured(SHAPES, "no costs of two node counts and two depths")
    ends = [verify.loc[verify["nodes"] == count, "seconds"] for count in (nodes[0], nodes[-1])]
    ends += [drafts.loc[drafts["depth"] == depth, "seconds"] for depth in (depths[0], depths[-1])]
    narrow, wide, shallow, deep = (part.to_numpy(dtype=float) for part in ends)
    count = min(map(len, (narrow, wide, shallow, deep)))

    def added(more: np.ndarray, less: np.ndarray) -> Statistic:
        step = float(np.median(plain))
        return lambda picks: (np.median(more[picks], axis=-1) - np.median(less[picks], axis=-1)) / step

    width, depth = added(wide[:count], narrow[:count]), added(deep[:count], shallow[:count])
    every = np.arange(count)
    return Effect(
        estimate(lambda picks: depth(picks) - width(picks), count),
        SHAPES,
        (f"{nodes[0]:.0f} to {nodes[-1]:.0f} nodes", float(width(every))),
        (f"depth {depths[0]:.0f} to {depths[-1]:.0f}", float(depth(every))),
    )


def structured_text_faster(run: Run) -> Effect:
    """Speedup on code and arithmetic less that on chat, with the default tree."""
    rows = texts_of(run, "english", (None, None, None)).rows
    sides = [rows[rows["set"].isin(names)] for names in (STRUCTURED, CHAT)]
    return two_groups(sides[0], sides[1], ("code, math", "chat"), "speedup", SPEEDUP, above=True)


def stock_generate_narrows(run: Run) -> Effect:
    """Speedup against the stock generate less that against the plain loop, over the English sets."""
    rows = texts_of(run, "english", (None, None, None)).rows
    ways = aligned({method: rows[rows["method"] == method] for method in ("plain", "hf", "eagle")})
    if not ways:
        raise NotMeasured(SPEEDUP, "no runs of the stock generate")
    stock, plain = speedup(ways["hf"], ways["eagle"]), speedup(ways["plain"], ways["eagle"])
    return difference(stock, plain, ways["eagle"], SPEEDUP, ("stock generate", "plain loop"), above=False)


def out_of_domain_tau_lower(run: Run) -> Effect:
    """tau out of domain less tau in domain, with the default tree."""
    return _domains(run, "tau")


def out_of_domain_speedup_lower(run: Run) -> Effect:
    """Speedup out of domain less speedup in domain, with the default tree."""
    return _domains(run, "speedup")


def deeper_tau_up(run: Run) -> Effect:
    """tau at the sweep's largest depth less tau at its smallest."""
    (shallow, less), (deep, more) = _sweep_ends(run)
    return difference(
        more["eagle"].tau, less["eagle"].tau, more["eagle"], SHAPES, (f"depth {deep}", f"depth {shallow}")
    )


def deeper_speedup_down(run: Run) -> Effect:
    """Speedup at the sweep's largest depth less speedup at its smallest."""
    (shallow, less), (deep, more) = _sweep_ends(run)
    sides = (speedup(more["plain"], more["eagle"]), speedup(less["plain"], less["eagle"]))
    return difference(*sides, more["eagle"], SHAPES, (f"depth {deep}", f"depth {shallow}"), above=False)


def depth_trap(run: Run) -> Effect:
    """Out of domain: speedup of the shallowest tree of 02_speedup less that of the deepest."""
    rows = texts(run)
    rows = rows[rows["set"].isin(sets_of(rows, "out"))]
    eagle = rows[rows["method"] == "eagle"]
    depths = sorted(eagle["depth"].unique())
    if len(depths) < 2:
        raise NotMeasured(SPEEDUP, "no trees of two depths")
    ways = aligned(
        {"plain": rows[rows["method"] == "plain"]}
        | {str(depth): eagle[eagle["depth"] == depth] for depth in (depths[0], depths[-1])}
    )
    if not ways:
        raise NotMeasured(SPEEDUP, "no trees of two depths")
    shallow, deep = ways[str(depths[0])], ways[str(depths[-1])]
    names = (f"depth {depths[0]:.0f}", f"depth {depths[-1]:.0f}")
    return difference(speedup(ways["plain"], shallow), speedup(ways["plain"], deep), deep, SPEEDUP, names)


def tree_beats_chain(run: Run) -> Effect:
    """tau of the tree less tau of the chain, at the same depth."""
    ways, _ = branches(run)
    return difference(ways["eagle"].tau, ways["chain"].tau, ways["eagle"], "04_chain_vs_tree", ("tree", "chain"))


def larger_target_tau_up(run: Run) -> Effect:
    """tau of the larger pair less tau of the smaller."""
    smaller, larger, found = two_pairs(run)
    names = tuple(reversed(found["pair"].split(", ")))
    sides = (larger["eagle"].tau, smaller["eagle"].tau)
    return difference(*sides, larger["eagle"], "05_target_size", (names[0], names[1]))


def larger_target_no_faster(run: Run) -> Effect:
    """Speedup of the larger pair less that of the smaller, which the article found within 0.03 of it."""
    smaller, larger, found = two_pairs(run)
    names = tuple(reversed(found["pair"].split(", ")))
    sides = (speedup(larger["plain"], larger["eagle"]), speedup(smaller["plain"], smaller["eagle"]))
    return difference(
        *sides, larger["eagle"], "05_target_size", (names[0], names[1]), border=0.03 * whole(sides[1], larger["eagle"]),
        above=False,
    )  # fmt: skip


def same_text(run: Run) -> Effect:
    """Greedy mismatches per thousand tokens that no tie excuses, in every precision that was measured."""
    rows = run.rows(LOSSLESS, "greedy")
    listed = rows["mismatches"] if "mismatches" in rows else pd.Series([[]] * len(rows))
    wrong, ties = (
        np.array([sum(bool(each["excused"]) is excused for each in found or []) for found in listed], dtype=float)
        for excused in (False, True)
    )
    tokens = rows["tokens"].to_numpy(dtype=float)
    found = estimate(lambda picks: 1e3 * wrong[picks].sum(-1) / tokens[picks].sum(-1), len(rows))
    real, tied = ("real", found.value), ("at ties", float(1e3 * ties.sum() / tokens.sum()))
    # A count has no negative side: none at all is below the border of half a mismatch in all that was written.
    return Effect(found, LOSSLESS, real, tied, border=float(500 / tokens.sum()), above=False)


RULES: dict[str, Callable[[Run], Effect]] = {
    function.__name__: function
    for function in (
        pass_flat_then_rising, verification_dominates, wider_is_cheap, structured_text_faster, stock_generate_narrows,
        out_of_domain_tau_lower, out_of_domain_speedup_lower, deeper_tau_up, deeper_speedup_down, depth_trap,
        tree_beats_chain, larger_target_tau_up, larger_target_no_faster, same_text,
    )
}  # fmt: skip


def _sweep_ends(run: Run) -> tuple[tuple[int, dict[str, Totals]], tuple[int, dict[str, Totals]]]:
    """The smallest depth from 2 up, and the largest."""
    points, _ = depth_sweep(run)
    depths = [depth for depth in sorted(points) if depth >= 2]
    if len(depths) < 2:
        raise NotMeasured(SHAPES, "no two depths from 2 up")
    return (depths[0], points[depths[0]]), (depths[-1], points[depths[-1]])


def _domains(run: Run, what: str) -> Effect:
    rows = texts_of(run, "english", (None, None, None)).rows
    outside = texts_of(run, "out", (None, None, None)).rows
    return two_groups(outside, rows, ("out of domain", "in domain"), what, SPEEDUP, above=False)
