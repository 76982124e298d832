"""One prompt, several methods: what `python -m eagle_repro generate` runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_repro.api import Pair, generate
from eagle_repro.engine.generate import Generation
from eagle_repro.experiments.rows import WARM_UP_TOKENS, Row
from eagle_repro.measure import lossless


def write_texts(pair: Pair, prompt: list[int], methods: Sequence[str], **options: Any) -> list[tuple[Generation, Row]]:
    """The answer by each method, with a row of what it took; options: those of `generate`.

    Several methods are warmed up first, so that none pays for being the first. The rows have method, tokens,
    stop_reason, tau (None for baselines), capture_s (of making ready), prefill_s, decode_s, tokens_per_s, identical (to
    the first method's ids, None where no other text was written to compare with).
    """
    if len(methods) > 1:
        for method in methods:
            generate(pair, prompt, method=method, **options | {"max_new_tokens": WARM_UP_TOKENS, "stop": "eos"})
    written = [(method, generate(pair, prompt, method=method, **options)) for method in methods]
    first = written[0][1].ids
    compared = len(written) > 1
    return [(done, _row(method, done, done.ids == first if compared else None)) for method, done in written]


def verdict(pair: Pair, prompt: list[int], ids: list[int], same: bool, *, greedy: bool) -> tuple[str, str]:
    """Is a text what the target would have written? "identical", "near-ties" or "different", and a line on it."""
    if same:
        return "identical", f"identical: yes, all {len(ids)} tokens"
    if not greedy:
        half = pair.dtype != "float32"
        said = "no (texts drawn in half precision may part at a near-tie of the noise)"
        return "different", f"identical: {said if half else 'NO, and float32 leaves no ties to excuse that'}"
    report = lossless.check(pair, prompt, ids)
    if report.ok:
        ties = f"{len(report.mismatches)} near-ties within {report.max_gap} of the best logit"
        return "near-ties", f"identical: no, but every token is the target's choice up to {ties}"
    worst = next(mismatch for mismatch in report.mismatches if not mismatch.excused)
    told = f"token {worst.index} is {worst.emitted}, the target's best is {worst.best}, {worst.gap:.3g} logits above it"
    return "different", f"identical: NO, {told}"


def _row(method: str, done: Generation, same: bool | None) -> Row:
    steps = len(done.ids) - 1  # the first token comes from prefill
    return {
        "method": method,
        "tokens": len(done.ids),
        "stop_reason": done.stop_reason,
        "tau": done.tau if method not in ("plain", "hf") else None,
        "capture_s": done.capture_s,
        "prefill_s": done.prefill_s,
        "decode_s": done.decode_s,
        "tokens_per_s": steps / done.decode_s if steps and done.decode_s > 0 else None,
        "identical": same,
    }
