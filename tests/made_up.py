"""A made-up run on the article's bench whose records say exactly what the claims say, or what they are told to say.

`write_run(folder, {"speedup_code": 3.0})` writes records 00 to 06 in the rows that the experiments write;
`made_up_run` gives the same run without a disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eagle_repro.measure.claims import Claim, Run, load_claims
from eagle_repro.measure.records import Record, RecordWriter
from tests.reading import REPOSITORY

Row = dict[str, Any]
Numbers = Mapping[str, float]
CLAIMS: list[Claim] = load_claims(REPOSITORY / "data" / "claims.yaml")

BENCH = {
    "card": "Tesla T4", "memory_bytes": 15_828_320_256, "capability": [7, 5], "driver": "550.54", "device": "cuda",
    "cpu": "Xeon", "threads": 2, "cuda": "12.8", "python": "3.11.7", "torch": "2.10.0", "transformers": "5.0.0",
    "numpy": "2.0.2", "package": "0.1.0", "git": "0" * 40, "dtype": "float16", "stack": "eager",
    "pair": {"name": "qwen3-1.7b"}, "question_sets": {"mt_bench": "ab" * 32},
    "now": {"utc": "2026-01-31T12:00:00+00:00", "clocks": {"sm_mhz": 1590, "memory_mhz": 5000, "temperature_c": 60}},
}  # fmt: skip
QUESTIONS, TOKENS, CYCLES = 5, 193, 100
ENGLISH = ("mt_bench", "humaneval", "gsm8k", "alpaca")
SETS = {**dict.fromkeys(ENGLISH, ("in", "en")), "outside": ("out", "en"), "russian": ("out", "ru")}
STEP_S = 0.0447
SPREAD = (0.94, 0.97, 1.0, 1.03, 1.06)  # of a question's seconds, mean 1
DEPTHS = (2, 3, 4, 6, 8, 10)  # of the sweep, which has as many taus as the article names
DEFAULT, SHALLOW = (60, 7, 10), (64, 2, 10)
NAMES = (
    "00_bench", "01_roofline", "02_speedup", "03_tree_shape", "04_chain_vs_tree", "05_target_size", "06_lossless",
)  # fmt: skip


def stated() -> dict[str, float | list[float]]:
    """What the claims say, a range by its middle."""
    numbers: dict[str, float | list[float]] = {}
    for claim in CLAIMS:
        if claim.kind == "value":
            several = list(claim.stated)
            numbers[claim.id] = sum(several) / 2 if claim.is_range else several if len(several) > 1 else several[0]
    return numbers


def made_up_run(said: Mapping[str, Any] | None = None, *, only: Sequence[str] = NAMES) -> Run:
    """The run in memory: records that say what the claims say, but for what is told in `said`."""
    records = {}
    for name, (rows, footer) in record_parts(consistent(said or {}), only).items():
        header = {
            "kind": "header",
            "schema": 1,
            "name": name,
            "hash": "0",
            "bench": BENCH,
            "protocol": footer["protocol"],
        }
        records[name] = Record(header, rows, footer, Path(f"{name}.jsonl"))
    return Run("made-up", records)


def write_run(
    folder: Path, said: Mapping[str, Any] | None = None, *, only: Sequence[str] = NAMES, bench: Row = BENCH
) -> Path:
    """The same run written as records into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (rows, footer) in record_parts(consistent(said or {}), only).items():
        protocol = footer.pop("protocol")
        with RecordWriter(folder / f"{name}.jsonl", bench=bench, protocol=protocol) as writer:
            cycles: list[Row] = []
            for row in rows:
                bare = {field: value for field, value in row.items() if field not in ("kind", "key")}
                if row["kind"] == "cycle":
                    cycles.append(bare)
                else:
                    writer.write(row["key"], bare, cycles)
                    cycles = []
            writer.complete(**{field: value for field, value in footer.items() if field not in ("kind", "lines")})
    return folder


def record_parts(numbers: Mapping[str, Any], only: Sequence[str]) -> dict[str, tuple[list[Row], Row]]:
    """Rows and footer of each record; the footer carries the protocol along."""
    protocol = {"profile": "t4", "pair": "qwen3-1.7b", "total_tokens": 60, "depth": 7, "top_k": 10, "temperature": 0.7,
                "sets": list(SETS)}  # fmt: skip
    protocol |= {name: int(numbers[f"protocol_{name}"]) for name in ("questions", "new_tokens", "repeats")}
    peak = 3.44 / (numbers["bus_share"] / 100 * numbers["pass_1_ms"] / 1e3)
    footers = {"01_roofline": {"weight_bytes": 3_440_000_000, "bandwidth_gb_s": 240.0, "peak_gb_s": peak}}
    parts = {}
    for name in only:
        rows = [{"kind": "run"} | row for row in ROWS[name](numbers)]
        footer = {"kind": "complete", "lines": len(rows) + 1, "clocks_after": None, **footers.get(name, {})}
        parts[name] = (rows, footer | {"protocol": protocol})
    return parts


def consistent(said: Mapping[str, Any]) -> dict[str, Any]:
    """All numbers, those that follow from others brought in line with what is said."""
    numbers = stated() | dict(said)
    if "memory_ratio" in said:
        numbers["bus_share"] = 100 / said["memory_ratio"]
    if "cycle_verify_share" in said:
        others = sum(numbers[f"cycle_{name}_ms"] for name in ("draft", "accept", "rest"))
        numbers["cycle_verify_ms"] = others * said["cycle_verify_share"] / (100 - said["cycle_verify_share"])
    if "speedup_five_plain" in said:
        numbers["speedup_english"] = (5 * said["speedup_five_plain"] - numbers["speedup_russian"]) / 4
    if "tau_out" in said:
        numbers["tau_russian_default"] = said["tau_out"]
    if "branching_gain" in said:
        numbers["tau_tree"] = numbers["tau_chain"] * (1 + said["branching_gain"] / 100)
    return numbers


def bench_rows(numbers: Numbers) -> Iterator[Row]:
    for role, parameters in (("target", 1_720_000_000), ("head", 136_800_000)):
        yield {"key": f"weights/{role}", "role": role, "source": "hub", "revision": "main", "parameters": parameters,
               "weight_bytes": 2 * parameters, "licence": "Apache-2.0"}  # fmt: skip
    yield {"key": "guard/gpu", "check": "gpu", "verdict": "ok", "detail": "Tesla T4, capability 7.5"}


def pass_rows(numbers: Numbers) -> Iterator[Row]:
    flat, first = int(numbers["flat_until"]), numbers["pass_1_ms"]
    ends = {1: first, 192: numbers["pass_192_ms"], flat: 1.24 * first, 512: numbers["pass_512_ms"]}
    for count in sorted({1, 2, 8, 32, 64, 128, *ends}):
        ms = ends.get(count) or float(np.interp(count, [1, 192], [ends[1], ends[192]]))
        for repeat, noise in enumerate((0.999, 1.0, 1.001)):
            yield {"key": f"pass/{count}/{repeat}", "tokens": count, "repeat": repeat, "context": 320,
                   "seconds": ms * noise / 1e3}  # fmt: skip


def text_rows(numbers: Numbers) -> Iterator[Row]:
    """02_speedup: every set by plain, hf and both trees, and one instrumented run a tree."""
    rest = (4 * numbers["speedup_english"] - numbers["speedup_code"] - numbers["speedup_chat"]) / 2
    gains = dict(zip(ENGLISH, (numbers["speedup_chat"], numbers["speedup_code"], rest, rest), strict=True))
    gains |= {"russian": numbers["speedup_russian"], "outside": 1.1}
    five = (sum(gains[name] for name in ENGLISH) + gains["russian"]) / 5
    stock = numbers["speedup_five_hf"] / five
    for name in SETS:
        inside = SETS[name][0] == "in"
        tau = numbers["tau_in"] if inside else numbers["tau_russian_default"]
        shallow_tau = 2.5 if inside else numbers["tau_russian_depth_2"]
        shallow_gain = numbers["speedup_russian_depth_2"] if name == "russian" else gains[name] * 1.05
        for question in range(QUESTIONS):
            yield text(name, question, "plain", 1.0)
            yield text(name, question, "hf", stock)
            yield text(name, question, "eagle", 1 / gains[name], tau=tau, tree=DEFAULT, variant="default")
            yield text(name, question, "eagle", 1 / shallow_gain, tau=shallow_tau, tree=SHALLOW, variant="shallow")
        for tree, variant in ((DEFAULT, "default"), (SHALLOW, "shallow")):
            row = text(name, 0, "eagle", 1.0, tau=2.5, tree=tree, variant=variant) | {"instrumented": True}
            row["key"] += "/instrumented"
            cycles, row["decode_s"] = phases(numbers, row, tree[1])
            yield from ({"kind": "cycle", "key": row["key"], **cycle} for cycle in cycles)
            yield row


def phases(numbers: Numbers, row: Row, depth: int) -> tuple[list[Row], float]:
    """The cycles of an instrumented run and its seconds: drafting takes a third of the stated time a pass."""
    ms = {name: numbers[f"cycle_{name}_ms"] for name in ("draft", "verify", "accept", "rest")}
    ms["draft"] *= (depth + 1) / 3
    each = {"draft_s": ms["draft"] / 1e3, "verify_s": ms["verify"] / 1e3, "accept_s": ms["accept"] / 1e3}
    each["commit_s"] = 0.3 * ms["rest"] / 1e3
    listed = [
        {"nodes": row["total_tokens"], "accepted": count, "emitted": count + 1, "context": 40, **each}
        for count in row["accepted"]
    ]
    return listed, len(listed) * sum(ms.values()) / 1e3


def shape_rows(numbers: Numbers) -> Iterator[Row]:
    """03_tree_shape: the depth sweep, costs, picks, and recordings in which two levels always agree."""
    taus = [numbers["depth_2_tau"], *numbers["depth_inner_tau"], numbers["depth_10_tau"]]
    gains = np.linspace(numbers["depth_2_speedup"], numbers["depth_10_speedup"], len(DEPTHS))
    for name in ("mt_bench", "humaneval", "russian"):
        for question in range(QUESTIONS):
            yield shape(text(name, question, "plain", 1.0), "plain")
            for depth, tau, gain in zip(DEPTHS, taus, gains, strict=True):
                tau, gain = (tau, gain) if name != "russian" else (1.37, gain / 2)
                tree = (60, depth, 10)
                yield shape(text(name, question, "eagle", 1 / gain, tau=tau, tree=tree, variant="-"), "depth")
            yield shape(text(name, question, "eagle", 0.5, tau=2.9, tree=DEFAULT, variant="-"), "pick")
            yield shape(text(name, question, "adaptive", 0.1, tau=9.0), "adaptive")  # which no claim speaks of
    yield from cost_rows()
    for depth in DEPTHS:
        yield {"key": f"point/{depth}", "what": "point", "sweep": "depth", "rule": None, "asked": depth,
               "total_tokens": 60, "depth": depth, "top_k": 10, "clipped": False}  # fmt: skip
    for rule, depth in (("default", 7), ("cost model", 2), ("reference", 6)):
        yield {"key": f"point/{rule}", "what": "point", "sweep": "pick", "rule": rule, "asked": None,
               "total_tokens": 60, "depth": depth, "top_k": 10, "clipped": False}  # fmt: skip
    yield {"key": "autopick/reference", "what": "autopick", "rule": "reference", "times": {"40": 0.045}, "nodes": 60}
    yield {"key": "autopick/model", "what": "autopick", "rule": "cost model", "total_tokens": 60, "depth": 2,
           "top_k": 10, "predicted_speedup": 2.3, "predicted_tau": 2.8, "set": "all in-domain",
           "ranking": []}  # fmt: skip
    path = [list(range(level, max(DEPTHS) + 1)) for level in range(2)]
    for name in ("mt_bench", "humaneval", "russian"):
        for question in range(QUESTIONS):
            yield {"key": f"recording/{name}/{question}/10", "what": "recording", "set": name, "domain": SETS[name][0],
                   "question": f"q{question}", "top_k": 10, "depth": max(DEPTHS), "ranks": [path] * 80, "tokens": 65,
                   "prompt_tokens": 40}  # fmt: skip


def cost_rows() -> Iterator[Row]:
    """Costs by phase: verification hardly rises with its nodes, drafting takes 3 ms a pass."""
    counts = (8, 16, 64, 128, 512)
    costs: list[tuple[str, Row, float]] = [("plain", {"nodes": 1}, STEP_S)]
    costs += [("verify", {"nodes": nodes}, STEP_S * (1 + nodes / 1200)) for nodes in counts]
    costs += [("rest", {"nodes": nodes}, 0.0018) for nodes in counts]
    costs += [("draft", {"depth": depth, "top_k": 10}, 0.003 * (depth + 1)) for depth in DEPTHS]
    for phase, what, seconds in costs:
        for repeat, noise in enumerate((0.999, 1.0, 1.001)):
            place = "-".join(map(str, what.values()))
            yield {"key": f"cost/{phase}/{place}/{repeat}", "what": "cost", "phase": phase, "nodes": None,
                   "depth": None, "top_k": None, **what, "repeat": repeat, "seconds": seconds * noise,
                   "context": 320}  # fmt: skip


def shape(row: Row, sweep: str) -> Row:
    return row | {"what": "shape", "sweep": sweep, "clipped": False, "key": f"shape/{sweep}/{row['key']}"}


def branch_rows(numbers: Numbers) -> Iterator[Row]:
    """04_chain_vs_tree."""
    for name in SETS:
        for question in range(QUESTIONS):
            rows = [text(name, question, "plain", 1.0)]
            for method, tree in (("chain", (8, 7, 1)), ("eagle", DEFAULT)):
                tau = numbers["tau_chain" if method == "chain" else "tau_tree"]
                rows.append(text(name, question, method, 1 / (tau / 1.2), tau=tau, tree=tree, variant="default"))
            yield from (row | {"what": "text", "key": f"text/{row['key']}"} for row in rows)


def size_rows(numbers: Numbers) -> Iterator[Row]:
    """05_target_size: two pairs of the article's sizes."""
    gain, tau = (1 + numbers[f"larger_{name}"] / 100 for name in ("speedup", "tau"))
    yield from timing_rows()
    for pair, end, faster, more in (("qwen3-1.7b", "17b", 1.0, 1.0), ("qwen3-4b", "4b", gain, tau)):
        head = 1e6 * numbers[f"head_parameters_{end}"]
        target = head / (numbers[f"head_share_{end}"] / 100)
        yield {"key": f"pair/{pair}", "what": "pair", "pair": pair, "target_parameters": int(target),
               "head_parameters": int(head), "head_share": head / target}  # fmt: skip
        for name in ENGLISH:
            for question in range(QUESTIONS):
                rows = [text(name, question, "plain", 1.0)]
                rows.append(
                    text(name, question, "eagle", 1 / (2 * faster), tau=3.0 * more, tree=DEFAULT, variant="default")
                )
                yield from (row | {"what": "text", "pair": pair, "key": f"{pair}/{row['key']}"} for row in rows)


def timing_rows() -> Iterator[Row]:
    """Timing-only pairs of two published shapes."""
    for shape_name, scale in (("qwen3-8b", 4.0), ("qwen3-14b", 7.0)):
        for tree in (DEFAULT, (60, 2, 10)):
            costs = {"plain": scale, "verify": 1.1 * scale, "draft": 0.4 * (tree[1] + 1), "rest": 0.3}
            costs["cycle"] = costs["verify"] + costs["draft"] + costs["rest"]
            for (phase, ms), repeat in itertools.product(costs.items(), range(3)):
                yield {"key": f"timing/{shape_name}/{tree[1]}/{phase}/{repeat}", "what": "timing", "shape": shape_name,
                       "phase": phase, "nodes": 1 if phase == "plain" else tree[0], "depth": tree[1], "top_k": tree[2],
                       "seconds": ms * (1 + 0.01 * repeat) / 1e3, "repeat": repeat, "dtype": "float16",
                       "weight_bytes": int(4e9 * scale), "target_parameters": int(2e9 * scale),
                       "head_parameters": int(1e8 * scale)}  # fmt: skip


def lossless_rows(numbers: Numbers) -> Iterator[Row]:
    """06_lossless: 25 texts of 200 tokens in half precision, as many in fp32."""
    tokens, texts = 200, 25
    left = round(numbers["mismatches"] * tokens * texts / 1e3)
    for place in range(texts):
        common = {"set": ENGLISH[place % 4], "question": str(place), "tokens": tokens, "what": "greedy"}
        count = min(left, 1 + numbers["mismatches"] // 3)
        left -= int(count)
        found = [
            {"index": 7 + step, "emitted": 11, "best": 12, "gap": numbers["mismatch_gap"], "excused": True}
            for step in range(int(count))
        ]
        half = {"dtype": "float16", "verdict": "near-ties" if found else "identical", "mismatches": found}
        common |= {"same_as_plain": not found, "plain_mismatches": 0, "max_gap": 0.05}
        yield {"key": f"greedy/half/{place}", **common, **half, "typical_gap": numbers["typical_gap"]}
        yield {"key": f"greedy/fp32/{place}", **common, "dtype": "float32", "verdict": "identical", "mismatches": [],
               "typical_gap": 2.9}  # fmt: skip
    yield {"key": "first/0", "what": "first_token", "set": "mt_bench", "question": "0", "dtype": "float16",
           "identical": True, "entries": 151_936}  # fmt: skip
    control = {"name": "plain-plain", "p": 0.5, "splits_below_005": 0.05, "detectable_effect": 0.1}
    control["splits"] = [place / 100 for place in range(100)]
    broken = [{"name": f"broken-{rule}", "p": 0.0001} for rule in ("top-2", "head-bonus", "no-temperature")]
    for row in (control, {"name": "eagle", "p": 0.4}, *broken):
        yield {"key": f"permutation/{row['name']}", "what": "permutation", "pair": "tiny", "samples": 500, "tokens": 12,
               "temperature": 1.0, **row}  # fmt: skip


def text(
    name: str, question: int, method: str, factor: float, *, tau: float | None = None,
    tree: tuple[int, int, int] | None = None, variant: str = "-",
) -> Row:  # fmt: skip
    """One run of TOKENS tokens that takes `factor` of plain decoding's time; tau is exact over QUESTIONS questions."""
    domain, language = SETS[name]
    accepted = None if tau is None else _accepted(tau, question)
    noise = 1.0 if method == "plain" else SPREAD[question]
    return {
        "key": f"{name}/{question}/{method}/{variant}/{tree[1] if tree else '-'}/0", "set": name, "domain": domain,
        "language": language, "question": f"q{question}", "method": method, "variant": variant, "temperature": 0.0,
        "total_tokens": tree and tree[0], "depth": tree and tree[1], "top_k": tree and tree[2],
        "levels": tree and tree[1] + 1, "repeat": 0, "order": 0, "prompt_tokens": 40, "tokens": TOKENS,
        "prefill_s": 0.1, "decode_s": (TOKENS - 1) * STEP_S * factor * noise, "accepted": accepted,
        "tau": accepted and 1 + sum(accepted) / len(accepted), "stop_reason": "budget", "after_eos": 0.2,
        "loop_share": 0.05, "same_as_plain": True, "near_ties": 0, "instrumented": False,
    }  # fmt: skip


def _accepted(tau: float, question: int) -> list[int]:
    """CYCLES accepted counts; over the questions their mean is tau - 1, a question differs by a few counts."""
    total = round(QUESTIONS * CYCLES * (tau - 1))
    own = total // QUESTIONS + (question < total % QUESTIONS) + (-4, -2, 0, 2, 4)[question]
    return [own // CYCLES + (place < own % CYCLES) for place in range(CYCLES)]


ROWS = dict(
    zip(NAMES, (bench_rows, pass_rows, text_rows, shape_rows, branch_rows, size_rows, lossless_rows), strict=True)
)
