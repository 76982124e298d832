"""Made-up rows of 04_chain_vs_tree, 05_target_size and 06_lossless."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eagle_repro.sources.pairs import SHAPES
from tests.present.conftest import ACCEPTED, PLAIN_S, SETS, TOKENS, enough, run_row

Row = dict[str, Any]
WAYS = {"chain": (5, 3, 1), "eagle": (16, 3, 4)}
WAY_S = {"chain": 0.18, "eagle": 0.2}  # seconds a cycle
TREES = ((60, 7, 10), (60, 2, 10), (16, 3, 4))


def cycle_counts(name: str, question: int, less: int) -> list[int]:
    """Accepted counts of a text: those of its set, `less` fewer in every cycle."""
    counts = [max(0, count + question - less) for count in ACCEPTED[name]]
    return enough(counts[place % len(counts)] for place in range(10**6))


def branching_rows(less: int = 1) -> Iterator[Row]:
    """Two questions a set; the chain accepts `less` tokens fewer in every cycle than the tree."""
    for name, (domain, language) in SETS.items():
        for question in range(2):
            common = {"set": name, "domain": domain, "language": language, "question": str(question), "what": "text"}
            yield run_row(common, "plain", "-", (TOKENS - 1) * PLAIN_S, None)
            for method, (nodes, depth, top_k) in WAYS.items():
                accepted = [min(4, count) for count in cycle_counts(name, question, less if method == "chain" else 0)]
                row = run_row(common, method, "tree", WAY_S[method] * len(accepted), accepted)
                yield row | {"total_tokens": nodes, "depth": depth, "top_k": top_k, "levels": depth + 1}


def pair_rows() -> Iterator[Row]:
    """Two trained pairs; the larger accepts more from a question's second cycle on, and takes twice as long."""
    for number, name in enumerate(("qwen3-1.7b", "qwen3-4b")):
        shape = SHAPES[name]
        target, head = shape.target_parameters, shape.head_parameters
        yield {
            "key": f"pair/{name}", "what": "pair", "pair": name, "target_parameters": target, "head_parameters": head,
            "head_share": head / target, "weight_bytes": 2 * target,
        }  # fmt: skip
        for row in branching_rows(less=0):
            if row["method"] == "chain":
                continue
            slower = row["decode_s"] * (1 + number) * (1 - 0.05 * number * (row["method"] == "eagle"))
            row = row | {"pair": name, "key": f"{name}/{row['key']}", "decode_s": slower}
            if row["accepted"] and number:
                row["accepted"] = [
                    count + 1 if place % 3 == 0 else count for place, count in enumerate(row["accepted"])
                ]
            yield row


def timing_rows(shapes: int = 5, repeats: int = 3) -> Iterator[Row]:
    """Published shapes whose plain step grows with their layers; the head's passes hardly grow."""
    for shape in list(SHAPES.values())[:shapes]:
        plain = 0.0008 * shape.layers
        for nodes, depth, top_k in TREES:
            parts = {"plain": plain, "verify": 1.05 * plain, "draft": 0.0015 * (depth + 1), "rest": 0.002}
            parts["cycle"] = parts["verify"] + parts["draft"] + parts["rest"]
            for phase, seconds in parts.items():
                for repeat in range(repeats):
                    yield {
                        "key": f"timing/{shape.name}/{nodes}-{depth}-{top_k}/{repeat}/{phase}", "what": "timing",
                        "shape": shape.name, "phase": phase, "nodes": 1 if phase == "plain" else nodes, "depth": depth,
                        "top_k": top_k, "seconds": seconds * (1 + 0.02 * (repeat - 1)), "repeat": repeat,
                        "dtype": "float16", "weight_bytes": 2 * shape.target_parameters,
                        "target_parameters": shape.target_parameters, "head_parameters": shape.head_parameters,
                    }  # fmt: skip


def skipped_row() -> Row:
    return {"key": "skipped/qwen3-8b", "what": "skipped", "pair": "qwen3-8b", "reason": "it needs 19 GB of memory"}


def lossless_rows(gap: float = 0.0) -> Iterator[Row]:
    """Greedy texts in three precisions, mismatches in the halves alone; first tokens; tests of two pairs."""
    for dtype, mismatches, allowed in (("bfloat16", 3, 0.25), ("float32", 0, 1e-4), ("float16", 1, 0.05)):
        for name, (domain, _) in SETS.items():
            found = [
                {"index": place, "emitted": 1, "best": 2, "gap": gap + place * allowed / 8, "excused": not gap}
                for place in range(mismatches)
            ]
            yield {
                "key": f"greedy/{dtype}/{name}/0", "what": "greedy", "set": name, "domain": domain, "question": "0",
                "dtype": dtype, "nodes": 60, "tokens": 200, "same_as_plain": not found, "mismatches": found,
                "verdict": "identical" if not found else "different" if gap else "near-ties", "plain_mismatches": 1,
                "typical_gap": 2.84, "max_gap": allowed,
            }  # fmt: skip
            yield {
                "key": f"first_token/{dtype}/{name}/0", "what": "first_token", "set": name, "question": "0",
                "dtype": dtype, "temperature": 0.7, "identical": True, "entries": 512,
            }  # fmt: skip
    yield {"key": "skipped/float64", "what": "skipped", "dtype": "float64", "reason": "nobody wants it"}
    for pair, samples in (("tiny", 500), ("smollm2-135m", 50)):
        for name in ("plain-plain", "eagle", *(["broken-top-2", "broken-head-bonus"] if pair == "tiny" else [])):
            yield permutation_row(pair, name, samples)


def permutation_row(pair: str, name: str, samples: int, **changes: Any) -> Row:
    p = {"plain-plain": 0.5, "eagle": 0.31}.get(name, 0.0002)
    row = {
        "key": f"permutation/{pair}/{name}", "what": "permutation", "pair": pair, "name": name, "samples": samples,
        "tokens": 8, "temperature": 1.3, "p": p, "splits_below_005": None, "detectable_effect": None,
    }  # fmt: skip
    if name == "plain-plain":
        row |= {"splits": [(place + 0.5) / 100 for place in range(100)], "splits_below_005": 0.05}
    if name == "eagle":
        row |= {"detectable_effect": 0.1, "same_seed_texts": 100, "same_seed_equal": 100}
    return row | changes
