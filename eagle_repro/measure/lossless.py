"""Is the text what the target would have written? A replay of the ids through the target, position by position."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from eagle_repro.engine.ids import token_ids
from eagle_repro.engine.prefill import raise_non_finite

GAP = {torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.25}
"""How far below the best logit an emitted token may lie and still count as a tie broken by rounding, by dtype.

Half precision logits near 16 are spaced 2**-6 (fp16) and 2**-3 (bf16) apart; these are two to four such steps.
"""


@dataclass(frozen=True)
class Mismatch:
    """A position where the emitted token is not the target's best. index counts new tokens; gap is in logits."""

    index: int
    emitted: int
    best: int
    gap: float
    excused: bool


@dataclass(frozen=True)
class LosslessReport:
    """verdict: "identical", "near-ties" (every mismatch within max_gap) or "different".

    typical_gap: median distance between the best and the second logit over all positions, for scale.
    """

    verdict: str
    mismatches: list[Mismatch]
    tokens: int
    max_gap: float
    typical_gap: float

    @property
    def ok(self) -> bool:
        return self.verdict != "different"


@torch.inference_mode()
def check(pair: Any, prompt_ids: list[int], ids: list[int], *, max_gap: float | None = None) -> LosslessReport:
    """Replay prompt_ids + ids through the stock target in one pass and compare each id with the greedy choice there.

    A mismatch is excused only when the emitted token's logit lies within max_gap (default: GAP of the dtype) of the
    best. Raises ValueError for an empty prompt or text and ids outside the vocabulary, NonFiniteLogits when there is no
    best.
    """
    target = pair.target
    prompt_ids, ids = token_ids(prompt_ids, target.vocabulary), token_ids(ids, target.vocabulary)
    for ids_of, what in ((prompt_ids, "the prompt is"), (ids, "the text to check is")):
        if not ids_of:
            raise ValueError(f"{what} empty: at least one token is needed")
    limit = GAP[target.dtype] if max_gap is None else max_gap
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < math.inf:
        raise ValueError(f"max_gap must be a number of logits >= 0, got {limit!r}")
    tokens = torch.tensor([prompt_ids + ids[:-1]], device=target.device)
    logits = target.model(tokens, use_cache=False, logits_to_keep=len(ids)).logits[0].float()  # (len(ids), V)
    if not logits.amax(dim=-1).isfinite().all():
        raise_non_finite(target)
    emitted = torch.tensor(ids, device=target.device)
    best, second = logits.topk(2, dim=-1).values.unbind(-1)
    choice = logits.argmax(dim=-1)
    gaps = best - logits.gather(1, emitted.unsqueeze(1)).squeeze(1)
    mismatches = [
        Mismatch(i, ids[i], int(choice[i]), float(gaps[i]), float(gaps[i]) <= limit)
        for i in torch.nonzero(choice != emitted).flatten().tolist()
    ]
    verdict = "identical" if not mismatches else "near-ties" if all(m.excused for m in mismatches) else "different"
    return LosslessReport(verdict, mismatches, len(ids), limit, float((best - second).median()))
