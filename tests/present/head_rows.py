"""Made-up rows of 07_domain: four heads, two timed and eight counted questions a set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.present.comparison_rows import cycle_counts
from tests.present.conftest import PLAIN_S, SETS, TOKENS, run_row

Row = dict[str, Any]
ALL_SETS = {**SETS, "math": ("in", "en")}
#: Tokens that a head gives beyond `general` in ten cycles, by set.
BEYOND = {
    "general": dict.fromkeys(ALL_SETS, 0),
    "code": {"code": 3, "chat": -8, "math": -6, "outside": -5, "russian": -2},
    "no-code": {"code": -6, "chat": 1, "math": 0, "outside": 0, "russian": 0},
    "russian-mix": {"code": -1, "chat": -1, "math": -1, "outside": -1, "russian": 6},
}
TAU = {"code": 44, "chat": 36, "math": 40, "outside": 30, "russian": 22}  # tokens in ten cycles
CYCLE_S = 0.2


def head_rows(heads: tuple[str, ...] = tuple(BEYOND), scale: int = 1) -> Iterator[Row]:
    """scale: of the differences between the heads; -1 turns them round."""
    for name, beyond in BEYOND.items():
        here = {"recipe": name, "answer_tokens": 12_000_000, "steps": 1891, "minutes": 5.0, "draft_vocabulary": 8192}
        reason = f"no {name} head for made-up among the committed ones"
        row = {"sha256": "ab" * 32, **here} if name in heads else {"reason": reason}
        yield {"key": f"head/{name}", "what": "head", "head": name, "here": name in heads, **row}
        if name not in heads:
            continue
        for chosen, (domain, language) in ALL_SETS.items():
            cycles = [10 + number for number in range(8)]
            rate = TAU[chosen] + scale * beyond[chosen]
            emitted = [round(count * rate / 10) + number % 2 for number, count in enumerate(cycles)]
            common = {"set": chosen, "domain": domain, "language": language, "what": "tau", "head": name}
            questions = [str(number) for number in range(2, 10)]
            yield {"key": f"tau/{name}/{chosen}", **common} | {
                "question": questions, "emitted": emitted, "cycles": cycles,
            }  # fmt: skip
    yield from text_rows(heads, scale)


def text_rows(heads: tuple[str, ...], scale: int) -> Iterator[Row]:
    for chosen, (domain, language) in SETS.items():
        for question in ("0", "1"):
            common = {"set": chosen, "domain": domain, "language": language, "question": question, "what": "text"}
            yield run_row(common, "plain", "-", (TOKENS - 1) * PLAIN_S, None) | {"head": None}
            for name in heads:
                accepted = cycle_counts(chosen, int(question), int(scale * BEYOND[name][chosen] < 0))
                yield run_row(common, "eagle", name, CYCLE_S * len(accepted), accepted) | {"head": name}
