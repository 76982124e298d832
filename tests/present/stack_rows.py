"""Made-up rows of 08_stack and 09_batch_context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.present.conftest import SETS, TOKENS, enough, run_row

Row = dict[str, Any]
#: Seconds of a plain step, and of the parts of a cycle, by stack.
STEP_S = {"eager": 0.022, "graph": 0.001, "compiled": 0.0007}
CYCLE_S = {
    "eager": {"draft": 0.012, "verify": 0.021, "accept": 0.0005, "commit": 0.0003, "host": 0.0002},
    "graph": {"draft": 0.0013, "verify": 0.0014, "accept": 0.0001, "commit": 0.0001, "host": 0.0001},
    "compiled": {"draft": 0.001, "verify": 0.0012, "accept": 0.0001, "commit": 0.0001, "host": 0.0001},
}
TREES = {"default": (60, 7, 10), "picked": (96, 4, 16)}
PAIRS = {"smollm2-135m": 1.0, "qwen3-1.7b (random weights)": 3.0}
WEIGHTS = 270_000_000


def cost_rows(stacks: Sequence[str] = tuple(STEP_S), turns: int = 2) -> Iterator[Row]:
    """Every pair on every stack; the second turn is 4% slower than the first."""
    for stack in stacks:
        for pair, slower in PAIRS.items():
            for turn in range(turns):
                factor = slower * (1 + 0.04 * turn)
                step = dict.fromkeys(("draft", "accept", "commit", "host"), 0.0) | {"verify": STEP_S[stack]}
                for shape, parts in (((1, None, None), step), *((tree, CYCLE_S[stack]) for tree in TREES.values())):
                    whole = factor * sum(parts.values())
                    yield {
                        "key": f"cost/{pair}/{stack}/{shape[0]}-{shape[1]}-{shape[2]}/{turn}", "what": "cost",
                        "pair": pair, "stack": stack, "dtype": "float16", "weight_bytes": WEIGHTS, "turn": turn,
                        "nodes": shape[0], "depth": shape[1], "top_k": shape[2], "cycles": 100, "context": 320.0,
                        "cycle_s": whole, "cycle_low": 0.98 * whole, "cycle_high": 1.05 * whole,
                        **{f"{name}_s": factor * value for name, value in parts.items()},
                        "capture_s": 0.0 if stack == "eager" else 1.5, "compile_s": 0.0 if stack == "eager" else 1.0,
                        "buffer_bytes": 50_000_000,
                        "graph_bytes": 0 if stack == "eager" else 30_000_000,
                    }  # fmt: skip


def text_rows(stacks: Sequence[str] = tuple(STEP_S)) -> Iterator[Row]:
    """Two questions a set on every stack, plainly and with each tree; the picked one accepts a token more."""
    for stack in stacks:
        for place, (name, (domain, language)) in enumerate(SETS.items()):
            for question in range(2):
                common = {"set": name, "domain": domain, "language": language, "question": str(question)}
                common |= {"what": "text", "stack": stack}
                seconds = (TOKENS - 1) * STEP_S[stack]
                yield run_row(common | {"tree": None}, "plain", stack, seconds, None) | {"stack": stack}
                for tree, (nodes, depth, top_k) in TREES.items():
                    accepted = enough(3 - place + question + (tree == "picked") for _ in iter(int, 1))
                    spent = len(accepted) * sum(CYCLE_S[stack].values())
                    row = run_row(common | {"tree": tree}, "eagle", f"{stack} {tree}", spent, accepted)
                    yield row | {"total_tokens": nodes, "depth": depth, "top_k": top_k, "levels": depth + 1}


def skipped_stack_row() -> Row:
    return {
        "key": "skipped/qwen3-8b/graph",
        "what": "skipped",
        "pair": "qwen3-8b",
        "stack": "graph",
        "reason": "no room",
    }


BATCHES, CONTEXTS = (1, 2, 4, 8, 16, 32, 64), (300, 1000, 4000, 8000)
SHAPES = {(60, 7, 10): 0.0, (16, 3, 4): 0.3}  # what the speedup loses by its tree
TEXTS = 64


def batch_rows(loss: float = 0.5, values: Sequence[int] = BATCHES) -> Iterator[Row]:
    """The same texts at every batch size; each doubling takes `loss` from a speedup of 3.5."""
    for doubling, size in enumerate(values):
        for place in range(TEXTS // size):
            yield from _point("batch", size, place, size, 3.5 - loss * doubling)


def context_rows(loss: float = 0.4, values: Sequence[int] = CONTEXTS) -> Iterator[Row]:
    """Four questions at every context; each point takes `loss` from a speedup of 3.5."""
    for number, length in enumerate(values):
        for place in range(4):
            yield from _point("context", length, place, 1, 3.5 - loss * number)


def _point(axis: str, value: int, place: int, rows: int, speedup: float) -> Iterator[Row]:
    questions = [f"chat/{place * rows + row}" for row in range(rows)]
    seconds = 0.1 * (1 + 0.02 * (place % 3))
    common = {
        "what": axis, "value": value, "place": place, "order": 0, "questions": questions, "tokens": 97 * rows,
        "prompt_tokens": [value if axis == "context" else 60] * rows, "prefill_s": 0.1, "capture_s": 0.0,
        "ids_sha256": [f"text of {question}" for question in questions],
    }  # fmt: skip
    plain = {"method": "plain", "nodes": 1, "depth": None, "top_k": None, "emitted": None, "cycles": None}
    yield common | plain | {"key": f"{axis}/{value}/plain/-/{place}", "decode_s": seconds}
    for (nodes, depth, top_k), less in SHAPES.items():
        tree = {"method": "eagle", "nodes": nodes, "depth": depth, "top_k": top_k}
        taken = seconds / max(0.2, speedup - less) * (1 + 0.01 * (place % 4))
        work = {"decode_s": taken, "emitted": [96 + place % 2] * rows, "cycles": [30] * rows}
        yield common | tree | work | {"key": f"{axis}/{value}/eagle/{nodes}/{place}"}


def scaling_timing_rows() -> Iterator[Row]:
    """A timing-only pair whose cycle grows faster with the batch than its step, and hardly with the context."""
    places = [("batch", size, 0.3 * size) for size in BATCHES] + [("context", length, 0.1) for length in CONTEXTS]
    for axis, value, more in places:
        for nodes, depth, top_k in ((1, None, None), *SHAPES):
            whole = 0.002 if nodes == 1 else 0.004 + 0.001 * more * nodes / 60
            yield {
                "key": f"timing/{axis}/{value}/{nodes}", "what": "timing", "axis": axis, "value": value,
                "pair": "qwen3-1.7b (random weights)", "dtype": "float16", "nodes": nodes, "depth": depth,
                "top_k": top_k, "cycles": 40,
                "context": 320.0, "cycle_s": whole, "cycle_low": 0.98 * whole, "cycle_high": 1.1 * whole,
            }  # fmt: skip


def skipped_point_row() -> Row:
    return {
        "key": "skipped/context/16000", "what": "skipped", "axis": "context", "value": 16_000, "pair": "smollm2-135m",
        "reason": "16000 tokens and an answer are beyond the 8192 positions of smollm2-135m",
    }  # fmt: skip
