"""Where a text ends: end of text, budget, room. And that what is counted is what was emitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import eagle_repro as er
from eagle_repro import Generation, Pair, TreeShape
from eagle_repro.engine.target import Target
from tests.conftest import Text
from tests.models import oracle, pair_of, room, uneven, wrong

PROMPT = [17, 300, 4, 255, 63]
LONG = 48
TREE = TreeShape(16, 4, 4)
FORWARDS = "eagle_repro.engine.target.Target.forward"

# Every loop, with drafters that end a text in the middle of a path and with ones that never do.
LOOPS: dict[str, tuple[str, TreeShape, Callable[[list[int]], Any] | None]] = {
    "plain": ("plain", TREE, None),
    "hf": ("hf", TREE, None),
    "random head": ("eagle", TREE, None),
    "oracle tree": ("eagle", TREE, oracle),
    "oracle chain": ("chain", TREE, oracle),
    "uneven tree": ("eagle", TreeShape(60, 7, 10), uneven),
    "wrong tree": ("eagle", TREE, wrong),
}


@pytest.fixture(params=LOOPS)
def write(request: pytest.FixtureRequest, target: Target, pair: Pair, text: Text) -> Callable[..., Generation]:
    """write(max_new_tokens=.., stop=..): one of LOOPS on PROMPT."""
    method, shape, drafter = LOOPS[request.param]
    if drafter is not None:
        pair = pair_of(target, drafter(PROMPT + text(PROMPT, LONG + room(TreeShape()))))

    def run(prompt: list[int] = PROMPT, max_length: int = 512, **options: Any) -> Generation:
        return er.generate(replace(pair, max_length=max_length), prompt, method=method, shape=shape, **options)

    return run


def declare_eos(monkeypatch: pytest.MonkeyPatch, target: Target, ids: int | list[int]) -> None:
    monkeypatch.setattr(target.model.generation_config, "eos_token_id", ids)


def require_sound_counts(out: Generation, prompt: list[int]) -> None:
    """Cycles and ids must tell one story: the prefill's token, then what each cycle emitted, context following on."""
    assert 1 + sum(cycle.emitted for cycle in out.cycles) == len(out.ids)
    written = 1
    for cycle in out.cycles:
        assert cycle.context == len(prompt) + written - 1
        assert 1 <= cycle.emitted <= cycle.accepted + 1 <= cycle.nodes
        written += cycle.emitted
    assert all(cycle.emitted == cycle.accepted + 1 for cycle in out.cycles[:-1]), "only the last cycle is cut"


# --- end of text -----------------------------------------------------------------------------------------------------


def test_text_ends_right_after_the_first_end_of_text_wherever_it_comes(
    write: Callable[..., Generation], target: Target, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = text(PROMPT, 20)
    places = sorted({whole.index(token) for token in whole})
    assert len(places) > 12, "a text that repeats itself has too few places to end at"
    for place in places:
        declare_eos(monkeypatch, target, whole[place])
        out = write(max_new_tokens=LONG)
        assert out.ids == whole[: place + 1], f"end of text as token {place}"
        assert out.stop_reason == "eos"
        require_sound_counts(out, PROMPT)


def test_end_of_text_as_the_very_first_token_needs_no_cycle(
    target: Target, pair: Pair, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_eos(monkeypatch, target, text(PROMPT, 1))
    for method in ("plain", "eagle", "chain", "hf"):
        out = er.generate(pair, PROMPT, method=method, shape=TREE)
        assert (out.ids, out.cycles, out.tau, out.stop_reason) == (text(PROMPT, 1), [], None, "eos")


def test_the_last_cycle_counts_uncut_in_tau(target: Target, text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of(target, oracle(PROMPT + text(PROMPT, LONG)))
    declare_eos(monkeypatch, target, text(PROMPT, 8)[-1])  # 1 + 6 tokens, then one of six
    out = er.generate(pair, PROMPT, method="chain", shape=TreeShape.chain(4), max_new_tokens=LONG)
    assert [(cycle.accepted, cycle.emitted) for cycle in out.cycles] == [(5, 6), (5, 1)]
    assert out.tau == 6.0


def test_any_of_several_declared_ids_ends_the_text(
    write: Callable[..., Generation], target: Target, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = text(PROMPT, 20)
    declare_eos(monkeypatch, target, [whole[9], whole[5], 511])
    out = write(max_new_tokens=LONG)
    assert out.ids == whole[:6]
    assert out.stop_reason == "eos"


def test_a_target_that_declares_no_end_of_text_writes_its_whole_budget(
    write: Callable[..., Generation], target: Target, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target.model.generation_config, "eos_token_id", None)
    out = write(max_new_tokens=20)
    assert (out.ids, out.stop_reason) == (text(PROMPT, 20), "budget")


def test_end_of_text_on_the_last_token_of_the_budget_is_end_of_text(
    write: Callable[..., Generation], target: Target, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = text(PROMPT, 8)
    assert whole.index(whole[7]) == 7
    declare_eos(monkeypatch, target, whole[7])
    assert write(max_new_tokens=8).stop_reason == "eos"


# --- stop="never" ----------------------------------------------------------------------------------------------------


def test_never_writes_end_of_text_like_any_token_and_exactly_the_budget(
    write: Callable[..., Generation], target: Target, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = text(PROMPT, 20)
    declare_eos(monkeypatch, target, sorted(set(whole)))
    out = write(max_new_tokens=20, stop="never")
    assert (out.ids, out.stop_reason) == (whole, "budget")
    require_sound_counts(out, PROMPT)


# Fields of a generation config that would change a greedy text. One that transformers refuses to use is no better.
MEDDLING = {
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 1,
    "min_new_tokens": 15,
    "suppress_tokens": "seen",
    "bad_words_ids": "seen",
    "forced_eos_token_id": 3,
    "num_beams": 3,
    "do_sample": True,
    "max_time": 1e-6,
}


@pytest.mark.parametrize("field", MEDDLING)
def test_the_stock_baseline_is_plain_greedy_whatever_the_generation_config_asks(
    field: str, target: Target, pair: Pair, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = text(PROMPT, 20)
    seen = {"suppress_tokens": [whole[3]], "bad_words_ids": [[whole[3]]]}
    declare_eos(monkeypatch, target, whole[9])
    config = target.model.generation_config
    monkeypatch.setattr(config, field, seen.get(field, MEDDLING[field]))
    before = config.to_dict()
    for method in ("hf", "plain"):
        ids = {
            stop: er.generate(pair, PROMPT, method=method, max_new_tokens=20, stop=stop).ids
            for stop in ("eos", "never")
        }
        assert ids == {"eos": whole[:10], "never": whole}, method
    assert target.model.generation_config is config
    assert config.to_dict() == before


# --- budget ----------------------------------------------------------------------------------------------------------


def test_every_budget_is_met_exactly(write: Callable[..., Generation], text: Text) -> None:
    for budget in range(1, 21):
        out = write(max_new_tokens=budget, stop="never")
        assert (out.ids, out.stop_reason) == (text(PROMPT, budget), "budget"), f"max_new_tokens={budget}"
        require_sound_counts(out, PROMPT)


@pytest.mark.parametrize("budget", [0, -1, True, False, 2.0, 3.5, float("inf"), "8", None])
def test_a_budget_that_is_no_whole_number_above_zero_is_refused(budget: Any, pair: Pair) -> None:
    for method in ("plain", "eagle", "hf"):
        with pytest.raises(ValueError, match="max_new_tokens must be a whole number of at least 1"):
            er.generate(pair, PROMPT, method=method, max_new_tokens=budget)


# --- room ------------------------------------------------------------------------------------------------------------


def test_a_text_that_fills_max_length_ends_with_length(write: Callable[..., Generation], text: Text) -> None:
    for new in (1, 2, 8):
        out = write(max_new_tokens=60, max_length=len(PROMPT) + new)
        assert (out.ids, out.stop_reason) == (text(PROMPT, new), "length")
        require_sound_counts(out, PROMPT)


def test_a_budget_that_just_fits_ends_with_budget(write: Callable[..., Generation], text: Text) -> None:
    for stop in ("eos", "never"):
        out = write(max_new_tokens=8, max_length=len(PROMPT) + 8, stop=stop)
        assert (out.ids, out.stop_reason) == (text(PROMPT, 8), "budget")


@pytest.mark.parametrize("left", [8, 3, 1])
def test_a_large_tree_at_the_end_of_the_room_is_no_trouble(left: int, pair: Pair, text: Text) -> None:
    prompt = [(7 * i) % 512 for i in range(128 - left)]
    out = er.generate(replace(pair, max_length=128), prompt, shape=TreeShape(60, 7, 10), max_new_tokens=60)
    assert (out.ids, out.stop_reason) == (text(prompt, left), "length")


@pytest.mark.parametrize(("length", "stop", "budget"), [(140, "eos", 8), (128, "eos", 1), (120, "never", 9)])
def test_what_cannot_fit_is_refused_with_the_numbers_before_any_pass(
    length: int, stop: str, budget: int, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FORWARDS, lambda *_, **__: pytest.fail("a pass was run"))
    monkeypatch.setattr(pair.target.model, "generate", lambda *_, **__: pytest.fail("generate was run"))
    for method in ("plain", "eagle", "chain", "hf"):
        with pytest.raises(ValueError, match=rf"{length} tokens and {budget} new ones .* max_length=128"):
            er.generate(replace(pair, max_length=128), [1] * length, method=method, max_new_tokens=budget, stop=stop)
