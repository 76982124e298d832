"""The check of a text against its target: it passes the target's own text and names everything else."""

from __future__ import annotations

import pytest
import torch

import eagle_repro as er
from eagle_repro import Pair, TreeShape
from eagle_repro.engine.generate import NonFiniteLogits
from eagle_repro.engine.target import Target
from tests.conftest import Text
from tests.models import pair_of, stock_choices, stock_text, tiny_head, tiny_target

PROMPT = [17, 300, 4, 255, 63]


def logits_after(pair: Pair, ids: list[int]) -> torch.Tensor:
    return pair.target.model(torch.tensor([PROMPT + ids]), use_cache=False).logits[0, -1]


def test_the_check_passes_the_targets_own_text_in_one_pass(pair: Pair, text: Text) -> None:
    ids, passes = text(PROMPT, 30), []
    hook = pair.target.model.register_forward_hook(lambda *_: passes.append(1))
    report = er.lossless.check(pair, PROMPT, ids)
    hook.remove()
    assert (report.verdict, report.mismatches, report.tokens, report.ok) == ("identical", [], 30, True)
    assert len(passes) == 1
    assert report.typical_gap > 0.01


@pytest.mark.parametrize("place", [0, 7, 29])
def test_the_check_names_a_real_mismatch(place: int, pair: Pair, text: Text) -> None:
    ids = text(PROMPT, 30)
    best = ids[place]
    logits = logits_after(pair, ids[:place])
    emitted = int(logits.argsort()[-5])
    changed = [*ids[:place], emitted]
    changed += stock_text(pair.target.model, PROMPT + changed, 3)  # right again after the one wrong token
    report = er.lossless.check(pair, PROMPT, changed)
    assert report.verdict == "different" and not report.ok
    (mismatch,) = report.mismatches
    assert (mismatch.index, mismatch.emitted, mismatch.best, mismatch.excused) == (place, emitted, best, False)
    assert mismatch.gap == pytest.approx(float(logits[best] - logits[emitted]), abs=1e-4)


def test_the_check_names_every_mismatch(pair: Pair, text: Text) -> None:
    ids = text(PROMPT, 12)
    for place in (2, 6, 9):
        ids[place] = (ids[place] + 1) % 512
    named = {mismatch.index for mismatch in er.lossless.check(pair, PROMPT, ids).mismatches}
    assert named >= {2, 6, 9}
    choices = stock_choices(pair.target.model, PROMPT, ids)
    assert named == {i for i, (own, best) in enumerate(zip(ids, choices, strict=True)) if own != best}


def test_the_check_excuses_a_mismatch_within_the_gap_alone(pair: Pair, text: Text) -> None:
    ids = text(PROMPT, 8)
    second, best = logits_after(pair, ids[:7]).sort().values[-2:].tolist()
    ids[7] = int(logits_after(pair, ids[:7]).argsort()[-2])
    excused = er.lossless.check(pair, PROMPT, ids, max_gap=best - second + 1e-3)
    assert (excused.verdict, excused.ok, excused.mismatches[0].excused) == ("near-ties", True, True)
    assert not er.lossless.check(pair, PROMPT, ids, max_gap=best - second - 1e-3).ok
    assert not er.lossless.check(pair, PROMPT, ids).ok


def test_one_real_mismatch_among_near_ties_is_different(pair: Pair, text: Text) -> None:
    ids, gaps = text(PROMPT, 3), []
    for rank in (-2, -60):
        logits = logits_after(pair, ids)
        ids = [*ids, int(logits.argsort()[rank])]
        gaps.append(float(logits.max() - logits[ids[-1]]))
        ids += stock_text(pair.target.model, PROMPT + ids, 3)
    report = er.lossless.check(pair, PROMPT, ids, max_gap=gaps[0] + 1e-3)
    assert [(mismatch.index, mismatch.excused) for mismatch in report.mismatches] == [(3, True), (7, False)]
    assert report.verdict == "different"


def test_the_default_gap_is_far_below_what_matters_in_float32(target: Target) -> None:
    """Two tokens with the same output row tie exactly; nudged apart by less than the gap they still count as tied."""
    model = tiny_target(layers=4, tie_word_embeddings=False)
    twins = Target(model)
    first = stock_choices(model, PROMPT, [0])[0]
    twin = (first + 1) % 512
    rows = model.lm_head.weight.data
    rows[twin] = rows[first]
    pair = pair_of(twins, tiny_head(twins))
    emitted = max(first, twin)  # a tie goes to the lower id
    report = er.lossless.check(pair, PROMPT, [emitted])
    assert (report.verdict, report.mismatches[0].best, report.mismatches[0].gap) == ("near-ties", min(first, twin), 0.0)
    rows[emitted] *= 0.99
    assert er.lossless.check(pair, PROMPT, [emitted]).verdict == "different"


def test_the_check_refuses_what_it_cannot_replay(pair: Pair) -> None:
    with pytest.raises(ValueError, match="the text to check is empty: at least one token is needed"):
        er.lossless.check(pair, PROMPT, [])
    with pytest.raises(ValueError, match="the prompt is empty"):
        er.lossless.check(pair, [], [1])
    for ids in ([512], [-1]):
        with pytest.raises(ValueError, match="outside the target's vocabulary"):
            er.lossless.check(pair, PROMPT, ids)


def test_the_check_passes_nothing_over_broken_logits(pair: Pair) -> None:
    hook = pair.target.decoder.layers[3].register_forward_pre_hook(
        lambda module, args: (args[0] * float("nan"), *args[1:])
    )
    try:
        with pytest.raises(NonFiniteLogits):
            er.lossless.check(pair, PROMPT, [0, 0, 0])
    finally:
        hook.remove()


def test_half_precision_text_is_excused_by_near_ties_alone(text: Text) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        halved = Target(tiny_target(layers=8).to(dtype))
        pair = pair_of(halved, tiny_head(halved))
        for shape in (TreeShape(16, 3, 4), TreeShape(60, 7, 10)):
            ids = er.generate(pair, PROMPT, shape=shape, max_new_tokens=24, stop="never").ids
            assert er.lossless.check(pair, PROMPT, ids).ok
        ids[5] = (ids[5] + 1) % 512
        assert not er.lossless.check(pair, PROMPT, ids).ok
