"""Asking for a text: what is understood, what is refused in one clear line, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

import eagle_repro as er
from eagle_repro import Pair, Sampling, TreeShape
from eagle_repro.engine.target import Target
from tests.conftest import Text
from tests.models import pair_of, tiny_head, tiny_target, uneven

PROMPT = [17, 300, 4, 255, 63]
TREE = TreeShape(16, 3, 4)
METHODS = ("plain", "eagle", "chain", "hf")


# --- asking for a text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        tuple,
        np.array,
        torch.tensor,
        lambda ids: [np.int64(i) for i in ids],
        lambda ids: torch.tensor(ids, dtype=torch.int32),
    ],
    ids=["tuple", "array", "tensor", "numpy ints", "int32 tensor"],
)
def test_prompt_ids_of_any_library_are_understood(kind: Callable[[list[int]], Any], pair: Pair, text: Text) -> None:
    for method in METHODS:
        out = er.generate(pair, kind(PROMPT), method=method, shape=TREE, max_new_tokens=4, stop="never")
        assert out.ids == text(PROMPT, 4)
        assert all(type(i) is int for i in out.ids)
    assert er.lossless.check(pair, kind(PROMPT), kind(text(PROMPT, 4))).verdict == "identical"


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([], "the prompt is empty"),
        (np.array([], dtype=np.int64), "the prompt is empty"),
        ([1, 512], "token id 512 is outside the target's vocabulary of 512"),
        ([-1], "token id -1 is outside"),
        ("hello", "one list of whole numbers, got 'hello'"),
        ([1.0, 2.0], "one list of whole numbers"),
        (np.array([1.5]), "one list of whole numbers"),
        ([True, 1], "one list of whole numbers"),
        (["a"], "one list of whole numbers"),
        ({"input_ids": [1]}, "one list of whole numbers"),
        ({1, 2}, "one list of whole numbers"),
        (b"ab", "one list of whole numbers"),
        (memoryview(b"ab"), "one list of whole numbers"),
        ({1: 2}.keys(), "one list of whole numbers"),
        (iter([1, 2]), "one list of whole numbers, got <list_iterator"),
        (None, "one list of whole numbers, got None"),
        (7, "one list of whole numbers, got 7"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_prompts_that_are_no_token_ids_are_refused(prompt: Any, reason: str, pair: Pair) -> None:
    for method in METHODS:
        with pytest.raises(ValueError) as error:
            er.generate(pair, prompt, method=method, shape=TREE, max_new_tokens=4)
        assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("prompts", [[[1, 2], [3, 4]], [(1, 2)], np.ones((2, 3), dtype=int), torch.ones(2, 3).long()])
def test_a_batch_gives_each_prompts_own_text(prompts: Any, pair: Pair) -> None:
    together = er.generate(pair, prompts, shape=TREE, max_new_tokens=4)
    assert [out.ids for out in together] == [
        er.generate(pair, row, shape=TREE, max_new_tokens=4).ids for row in prompts
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "Eagle"}, "method='Eagle' is not known: use one of plain, eagle, chain, adaptive, hf"),
        ({"stop": None}, "stop=None is not known"),
        ({"stop": "EOS"}, "stop='EOS' is not known"),
        ({"shape": (60, 7, 10)}, "shape must be a TreeShape, got (60, 7, 10)"),
        ({"shape": (60, 7, 10), "method": "chain"}, "shape must be a TreeShape"),
        ({"sampling": 0.7}, "sampling must be a Sampling, got 0.7"),
        ({"shape": TreeShape(60, 7, 200)}, "top_k=200 is more than the head's draft vocabulary of 128"),
        ({"method": "hf", "sampling": Sampling(temperature=0.7)}, "greedy stock generate"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_requests_that_cannot_be_carried_out_are_refused_before_any_pass(
    options: dict[str, Any], reason: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "forward", lambda *_, **__: pytest.fail("a pass was run"))
    with pytest.raises(ValueError) as error:
        er.generate(pair, PROMPT, **options)
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_drafting_without_a_head_is_refused(target: Target) -> None:
    with pytest.raises(ValueError, match='needs a head and a shape; method="plain" does without'):
        er.generate(pair_of(target, None), PROMPT)


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_are_refused_and_never_left_out(name: str, pair: Pair) -> None:
    with pytest.raises(TypeError, match=name):
        er.generate(pair, PROMPT, **{name: 1.3})
    with pytest.raises(TypeError, match=name):
        Sampling(**{name: 1.3})


# --- what comes back -------------------------------------------------------------------------------------------------

PHASES = ("draft_s", "verify_s", "accept_s", "commit_s")


@pytest.mark.parametrize("method", ["plain", "eagle", "chain"])
def test_an_instrumented_run_times_every_phase_and_writes_the_same(method: str, pair: Pair) -> None:
    bare, timed = (
        er.generate(pair, PROMPT, method=method, shape=TREE, max_new_tokens=8, stop="never", instrument=flag)
        for flag in (False, True)
    )
    assert bare.ids == timed.ids
    assert all(getattr(cycle, phase) is None for cycle in bare.cycles for phase in PHASES)
    for cycle in timed.cycles:
        phases = [getattr(cycle, phase) for phase in PHASES]
        assert all(seconds >= 0 for seconds in phases) and cycle.verify_s > 0
    assert sum(getattr(cycle, phase) for cycle in timed.cycles for phase in PHASES) <= timed.decode_s
    assert bare.prefill_s > 0 and bare.decode_s > 0


def test_phases_are_what_the_clock_says(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr("eagle_repro.api.clock", lambda device: lambda: float(next(ticks)))
    out = er.generate(pair, PROMPT, shape=TREE, max_new_tokens=3, stop="never", instrument=True)
    assert all(getattr(cycle, phase) == 1.0 for cycle in out.cycles for phase in PHASES)
    assert out.prefill_s == 1.0
    assert out.decode_s == 5.0 * len(out.cycles) + 1.0


def test_a_headline_run_reads_its_clock_three_times(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("plain", "eagle", "chain"):
        ticks = count()
        monkeypatch.setattr("eagle_repro.api.clock", lambda device, ticks=ticks: lambda: float(next(ticks)))
        er.generate(pair, PROMPT, method=method, shape=TREE, max_new_tokens=8, stop="never")
        assert next(ticks) == 3, f"{method} synchronised inside decoding"


def test_recorded_trees_are_what_was_verified(pair: Pair, target: Target, text: Text) -> None:
    told = pair_of(target, uneven(PROMPT + text(PROMPT, 40)))
    out = er.generate(told, PROMPT, shape=TreeShape(24, 3, 6), max_new_tokens=16, stop="never", record_trees=True)
    written = PROMPT + out.ids
    for cycle in out.cycles:
        tree = cycle.tree
        assert tree is not None and tree.tokens.device.type == "cpu"
        assert tree.tokens.shape[1] == cycle.nodes == 24
        assert int(tree.tokens[0, 0]) == written[cycle.context], "node 0 is the root"
        agreed = written[cycle.context : cycle.context + min(cycle.accepted + 1, cycle.emitted)]
        assert any(tree.tokens[0, path].tolist()[: len(agreed)] == agreed for path in tree.paths())
    bare = er.generate(told, PROMPT, shape=TreeShape(24, 3, 6), max_new_tokens=16, stop="never")
    assert bare.ids == out.ids and all(cycle.tree is None for cycle in bare.cycles)


def test_chain_is_a_width_one_tree_of_the_shapes_depth(pair: Pair) -> None:
    out = er.generate(pair, PROMPT, method="chain", shape=TreeShape(60, 5, 10), max_new_tokens=6, record_trees=True)
    assert {cycle.nodes for cycle in out.cycles} == {7}
    assert all(cycle.tree.depths[0].tolist() == list(range(7)) for cycle in out.cycles if cycle.tree)


def test_plain_and_hf_count_one_token_a_cycle(pair: Pair) -> None:
    for method in ("plain", "hf"):
        out = er.generate(pair, PROMPT, method=method, max_new_tokens=9, stop="never")
        assert [(c.nodes, c.accepted, c.emitted, c.context) for c in out.cycles] == [(1, 0, 1, 5 + i) for i in range(8)]
        assert out.tau == 1.0


def test_every_loop_breaks_a_tie_towards_the_lower_id(target: Target) -> None:
    model = tiny_target(layers=4, tie_word_embeddings=False)
    rows = model.lm_head.weight.data
    rows[256:] = rows[:256]  # every token has a twin with exactly its logit
    twins = Target(model)
    told = {}
    for method in METHODS:
        told[method] = er.generate(
            pair_of(twins, tiny_head(twins)), PROMPT, method=method, shape=TREE, max_new_tokens=24, stop="never"
        ).ids
    assert max(told["plain"]) < 256
    assert all(ids == told["plain"] for ids in told.values())
