"""Made-up records with the rows that the experiments write, so that figures and tables need no model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from typing import Any

import pytest

from eagle_repro.measure.records import Record, RecordWriter, read_record
from eagle_repro.present.theme import Picture

CPU = {
    "card": "Процессор, 2 ядра",  # a name that a narrow font or a C locale would trip over
    "device": "cpu",
    "threads": 2,
    "dtype": "float32",
    "stack": "eager",
    "torch": "2.13.0",
    "pair": {"name": "made-up"},
    "question_sets": {"chat": "ab" * 32},
    "now": {"utc": "2026-01-31T12:00:00+00:00", "clocks": {"sm_mhz": None, "memory_mhz": None, "temperature_c": None}},
}
SETS = {"chat": ("in", "en"), "code": ("in", "en"), "outside": ("out", "en"), "russian": ("out", "ru")}
SHAPES = {"default": (60, 7, 10), "small": (8, 3, 4), "sampled": (8, 3, 4)}
PLAIN_S, HF_S, TOKENS = 0.1, 0.12, 49  # seconds a step, tokens a run (the first one is the prefill's)
ACCEPTED = {"chat": [3, 2, 3], "code": [4, 3, 4], "outside": [2, 1, 2], "russian": [1, 0, 1]}
CYCLE_S = {"default": 0.4, "small": 0.2, "sampled": 0.2}


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Record]:
    """Write rows as a finished record and read it back."""

    def make(name: str, rows: list[dict[str, Any]], cycles: dict[str, list[dict[str, Any]]], **footer: Any) -> Record:
        with RecordWriter(
            tmp_path_factory.mktemp(name) / f"{name}.jsonl", bench=CPU, protocol={"profile": "quick"}
        ) as writer:
            for row in rows:
                key = row["key"]
                plain = {field: value for field, value in row.items() if field != "key"}
                writer.write(key, plain, cycles.get(key, []))
            return read_record(writer.complete(**footer))

    return make


@pytest.fixture(scope="session")
def bench(write: Callable[..., Record]) -> Record:
    rows = [
        {"key": f"weights/{role}", "role": role, "source": "wheel", "revision": None, "parameters": 134_500_000,
         "weight_bytes": 538_000_000, "licence": "Apache-2.0"}
        for role in ("target", "head")
    ]  # fmt: skip
    rows.append({"key": "guard/gpu", "check": "gpu", "verdict": "warning", "detail": "no GPU: numbers are of a CPU"})
    return write("00_bench", rows, {}, clocks_after=None)


@pytest.fixture(scope="session")
def roofline(write: Callable[..., Record]) -> Record:
    seconds = {1: 0.1, 2: 0.1, 4: 0.11, 8: 0.12, 16: 0.2, 32: 0.4}
    rows = [
        {"key": f"pass/{n}/{r}", "tokens": n, "repeat": r, "context": 320, "seconds": s * (1 + 0.05 * r)}
        for n, s in seconds.items()
        for r in range(3)
    ]
    return write("01_roofline", rows, {}, bandwidth_gb_s=20.0, peak_gb_s=None, weight_bytes=538_000_000)


@pytest.fixture(scope="session")
def speedup(write: Callable[..., Record]) -> Record:
    rows = list(speedup_rows())
    cycles = {row["key"]: cycles_of(row) for row in rows if row["instrumented"]}
    return write("02_speedup", rows, cycles, clocks_after=None)


@pytest.fixture(scope="module")
def draw(request: pytest.FixtureRequest, records: dict[str, Record]) -> Callable[..., Picture]:
    """draw(name, lang): a figure of the module's FIGURES, {name: (record, how)}, from its `records`; warnings raise."""

    @cache
    def drawn(name: str, lang: str = "en") -> Picture:
        record, figure = request.module.FIGURES[name]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return figure(records[record], lang)

    return drawn


def speedup_rows() -> Iterator[dict[str, Any]]:
    """Two questions a set, plain and hf and eagle with each tree, one instrumented run a tree; sampled on Russian."""
    for name, (domain, language) in SETS.items():
        for question in range(2):
            common = {"set": name, "domain": domain, "language": language, "question": question}
            yield run_row(common, "plain", "-", (TOKENS - 1) * PLAIN_S, None)
            yield run_row(common, "hf", "-", (TOKENS - 1) * HF_S, None)
            for variant in ("default", "small", *(["sampled"] if name == "russian" else [])):
                if variant == "sampled":
                    yield run_row(common, "plain", variant, (TOKENS - 1) * PLAIN_S, None)
                accepted = enough(count + question for count in cycle(ACCEPTED[name]))
                seconds = CYCLE_S[variant] * len(accepted)
                yield run_row(common, "eagle", variant, seconds, accepted)
                if question == 0:
                    yield run_row(common, "eagle", variant, seconds, accepted, instrumented=True)


def enough(counts: Iterator[int]) -> list[int]:
    """Accepted counts of as many cycles as a run of TOKENS tokens needs."""
    accepted: list[int] = []
    while sum(accepted) + len(accepted) < TOKENS - 1:
        accepted.append(next(counts))
    return accepted


def run_row(
    common: dict[str, Any], method: str, variant: str, decode_s: float, accepted: list[int] | None, *,
    instrumented: bool = False,
) -> dict[str, Any]:  # fmt: skip
    shape = SHAPES.get(variant, (None, None, None)) if method == "eagle" else (None, None, None)
    tau = 1 + sum(accepted) / len(accepted) if accepted else None
    end = "/instrumented" if instrumented else ""
    return common | {
        "key": f"{common['set']}/{common['question']}/{method}/{variant}/0{end}",
        "method": method, "variant": variant, "temperature": 0.7 if variant == "sampled" else 0.0,
        "total_tokens": shape[0], "depth": shape[1], "top_k": shape[2], "levels": shape[1] and shape[1] + 1,
        "repeat": 0, "order": 0, "prompt_tokens": 20, "tokens": TOKENS, "prefill_s": 0.3, "decode_s": decode_s,
        "accepted": accepted, "tau": tau, "stop_reason": "budget", "after_eos": 0.25, "loop_share": 0.1,
        "same_as_plain": True, "near_ties": 0, "instrumented": instrumented,
    }  # fmt: skip


def cycles_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The cycles of an instrumented run, their phases adding up to the seconds of the run."""
    each = row["decode_s"] / len(row["accepted"])
    parts = {"draft_s": 0.3, "verify_s": 0.6, "accept_s": 0.02, "commit_s": 0.03}
    phases = {name: part * each for name, part in parts.items()}
    return [
        {"nodes": row["total_tokens"], "accepted": count, "emitted": count + 1, "context": 20, **phases}
        for count in row["accepted"]
    ]
