"""method="adaptive": the text is plain decoding's whatever is picked, and what is picked pays."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
import torch

import eagle_repro as er
from eagle_repro import api
from eagle_repro.api import Pair
from eagle_repro.engine import cycle as cycles
from eagle_repro.engine import generate as loops
from eagle_repro.engine import shape as sizes
from eagle_repro.engine import stacks
from eagle_repro.engine.accept import Accepted, Sampling, Told
from eagle_repro.engine.adaptive import (
    CANDIDATES,
    FIRST_GUESS,
    FIRST_PROBE,
    GROWTH,
    MEMORY,
    PRIOR,
    Chooser,
    Levels,
    worth_picking,
)
from eagle_repro.engine.request import Request
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import Eager, Graph
from tests.conftest import Text
from tests.engine.drafts import told
from tests.engine.trees import tree_of
from tests.models import oracle, pair_of, wrong

SMALL, MIDDLE, LARGE = TreeShape(3, 1, 4), TreeShape(8, 2, 4), TreeShape(20, 5, 4)
SECONDS: dict[Any, float] = {None: 1.0, SMALL: 1.3, MIDDLE: 1.5, LARGE: 2.0}


class Dice(Chooser):
    """Picks at random, long runs of plain steps among them; every candidate is worth picking."""

    dice = random.Random(0)

    def __init__(self, seconds: Mapping[TreeShape | None, float]) -> None:
        super().__init__({shape: float(shape.total_tokens if shape else 1) for shape in seconds})

    def pick(self) -> TreeShape | None:
        return self.dice.choice([None, None, None, None, *self.shapes])


@pytest.mark.parametrize("stack", ["eager", "graph"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, 0.95, 40, seed=5)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_picked_the_text_is_plain_decodings(
    seed: int, sampling: Sampling, stack: str, trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "Chooser", Dice)
    Dice.dice = random.Random(seed)
    prompts = [[5, 6, 7], [9] * 40, [30 + seed]]
    options: dict[str, Any] = {"max_new_tokens": 60, "sampling": sampling}
    if stack == "graph":
        monkeypatch.setattr(trained, "launcher", Graph())
    plain = er.generate(trained, prompts, method="plain", **options)
    together = er.generate(trained, prompts, method="adaptive", shape=[SMALL, MIDDLE, LARGE], **options)
    options["stop"] = "never"
    for prompt, out, expected in zip(prompts, together, plain, strict=True):
        assert out.ids == expected.ids
        assert sum(cycle.emitted for cycle in out.cycles) == len(out.ids) - 1
        alone = er.generate(trained, prompt, method="adaptive", shape=[SMALL, LARGE], **options)
        assert alone.ids == er.generate(trained, prompt, method="plain", **options).ids
        assert len({cycle.nodes for cycle in alone.cycles}) > 1, "plain steps and trees"


@pytest.mark.parametrize("room", [MIDDLE.levels + 1, loops.WAITING])
def test_a_tree_after_plain_steps_is_that_of_a_head_that_saw_everything(
    room: int, trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features of plain steps wait for the head, longer than there is room for at once."""
    monkeypatch.setattr(loops, "room_for_features", lambda *_: room)
    monkeypatch.setattr(loops, "Chooser", Dice)
    Dice.dice = random.Random(11)
    options = {"max_new_tokens": 70, "stop": "never", "record_trees": True}
    out = er.generate(trained, [5, 6, 7], method="adaptive", shape=[MIDDLE], **options)
    text, seen, plain, longest = [5, 6, 7, out.ids[0]], 0, 0, 0
    for done in out.cycles:
        if done.nodes > 1:
            fresh = er.generate(trained, text[:-1], shape=MIDDLE, max_new_tokens=2, stop="never", record_trees=True)
            assert done.tree is not None and fresh.cycles[0].tree is not None
            assert torch.equal(done.tree.tokens, fresh.cycles[0].tree.tokens)
            torch.testing.assert_close(done.tree.scores, fresh.cycles[0].tree.scores, atol=1e-4, rtol=1e-4)
            seen, plain = seen + 1, 0
        else:
            plain += 1
            longest = max(longest, plain)
        text = [5, 6, 7, *out.ids[: len(text) - 3 + done.emitted]]
    assert seen > 5 and longest > MIDDLE.levels + 1, "long waits and trees after them"


@pytest.mark.parametrize("stack", [Eager, Graph])
def test_the_head_reads_many_waiting_features_where_many_wait_and_else_few(
    stack: type[Eager], trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass of 32 rows takes longer than one of 6, in every cycle of a tree."""
    monkeypatch.setattr(loops, "room_for_features", lambda *_: loops.WAITING)
    monkeypatch.setattr(loops, "Chooser", Dice)
    Dice.dice = random.Random(3)
    monkeypatch.setattr(trained, "launcher", stack())
    waited, seen = [], cycles.catch_up

    def watched(head: Any, state: Any, span: int) -> torch.Tensor:
        waited.append((int(state.pending.max()), state.few))
        return seen(head, state, span)

    monkeypatch.setattr(cycles, "catch_up", watched)
    options: dict[str, Any] = {"max_new_tokens": 150, "stop": "never"}
    out = er.generate(trained, [5, 6, 7], method="adaptive", shape=[SMALL, LARGE], **options)
    assert out.ids == er.generate(trained, [5, 6, 7], method="plain", **options).ids
    few = LARGE.levels + 1
    assert {rows for _, rows in waited} == {few, None}
    assert all((rows == few) == (waiting <= few) for waiting, rows in waited), "none is left out, no more is read"


def with_room_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    room, gpu = loops.room_for_features, torch.device("cuda")
    monkeypatch.setattr(loops, "room_for_features", lambda request, batch, _: room(request, batch, gpu))


@pytest.mark.parametrize("stack", [Eager, Graph])
@pytest.mark.parametrize("seed", range(12, 20))
def test_rows_may_end_while_many_features_wait(
    seed: int, stack: type[Eager], trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The passes of the others go on over theirs, and read few again."""
    with_room_as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(loops, "Chooser", Dice)
    monkeypatch.setattr(trained, "launcher", stack())
    prompts = [[5, 6, 7], [9] * 40]
    options: dict[str, Any] = {"max_new_tokens": 60, "sampling": Sampling(0.9, 0.95, 40, seed=seed)}
    plain = er.generate(trained, prompts, method="plain", **options)
    Dice.dice = random.Random(seed)
    out = er.generate(trained, prompts, method="adaptive", shape=[SMALL, MIDDLE], **options)
    assert [each.ids for each in out] == [each.ids for each in plain]


@pytest.mark.parametrize("before", [0, 2])
def test_phases_of_a_tree_after_many_plain_steps_hold_nothing_of_making_it_ready(
    before: int, trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    picks = iter([*[LARGE] * before, *[None] * 10, *[LARGE] * 60])

    class Script(Chooser):
        def pick(self) -> TreeShape | None:
            return next(picks)

    def slow(*given: Any) -> None:
        time.sleep(0.1)
        warm_up(*given)

    warm_up = stacks.warm_up
    monkeypatch.setattr(stacks, "warm_up", slow)
    with_room_as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(loops, "Chooser", Script)
    monkeypatch.setattr(trained, "launcher", Graph())
    options: dict[str, Any] = {"max_new_tokens": 40, "stop": "never", "instrument": True}
    out = er.generate(trained, [5, 6, 7], method="adaptive", shape=[SMALL, LARGE], **options)
    phases = [seconds for done in out.cycles for seconds in (done.draft_s, done.verify_s, done.accept_s, done.commit_s)]
    assert sum(seconds or 0.0 for seconds in phases) <= out.decode_s


def test_a_head_that_is_always_right_is_followed_and_one_that_never_is_is_not(target: Any, text: Text) -> None:
    prompt = [9, 8]
    story = prompt + text(prompt, 100)  # the oracle looks ahead of what is written

    def cycles(head: Any) -> Sequence[Any]:
        pair = pair_of(target, head)
        pair.launcher.seconds = lambda *a: SECONDS[a[1]]  # type: ignore[method-assign]
        shapes = [SMALL, MIDDLE, LARGE]
        out = er.generate(pair, prompt, method="adaptive", shape=shapes, max_new_tokens=80, stop="never")
        assert out.ids == story[2:82]
        return out.cycles

    right, never = cycles(oracle(story)), cycles(wrong(story))
    assert all(cycle.nodes > 1 for cycle in right[1:])
    assert sum(cycle.nodes == LARGE.total_tokens for cycle in right) > len(right) / 2, "the deepest gives most"
    assert sum(cycle.nodes > 1 for cycle in never[12:]) <= len(never) / FIRST_PROBE + 1, "but for a probe now and then"


def test_on_a_gpu_more_plain_steps_wait_for_the_head_but_no_more_tokens_in_a_larger_batch() -> None:
    adaptive = Request([1], method="adaptive", candidates=(SMALL, MIDDLE))
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [loops.room_for_features(adaptive, batch, gpu) for batch in (1, 4, 64)] == [32, 8, MIDDLE.levels + 1]
    eagle = Request([1], shape=MIDDLE)
    others = [(adaptive, 1, cpu), (eagle, 1, gpu), (Request([1], method="plain"), 1, gpu)]
    assert [loops.room_for_features(*each) for each in others] == [MIDDLE.levels + 1, MIDDLE.levels + 1, 1]


def test_what_comes_next_is_picked_before_a_cycle_is_read_back(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the device does not wait for it: a pick knows of the cycles before the last one."""
    done: list[str] = []
    monkeypatch.setattr(Chooser, "pick", lambda self: done.append("pick") or MIDDLE)
    monkeypatch.setattr(Chooser, "observe", lambda self, shape, counts, *_: done.append(f"observe {counts.tolist()}"))
    out = er.generate(trained, [5, 6, 7], method="adaptive", shape=[MIDDLE], max_new_tokens=30, stop="never")
    seen = [f"observe {[cycle.accepted]}" for cycle in out.cycles]
    assert done[:2] == ["pick", "pick"] and done[2::2] == seen[:-1] and set(done[3::2]) == {"pick"}


def test_a_head_of_no_use_is_given_up_soon_and_probed_more_and_more_rarely() -> None:
    chooser = Chooser(SECONDS)
    picked = []
    for _ in range(600):
        shape = chooser.pick()
        picked.append(shape is not None)
        if shape is not None:
            chooser.observe(shape, *told(shape, 0, [0.9] * shape.levels))
    assert sum(picked[:20]) <= 12
    tries = [step for step in range(20, 600) if picked[step]]
    gaps = [after - before for before, after in zip(tries, tries[1:], strict=False)]
    assert gaps == sorted(gaps) and gaps[-1] > 2 * gaps[0]


def test_tries_become_frequent_again_when_a_cycle_pays_and_not_when_one_is_merely_expected_to() -> None:
    chooser = Chooser(SECONDS)
    chooser.patience = 48
    chooser.levels[LARGE.total_tokens].observe(np.full((50, LARGE.levels), 1.0))
    assert chooser.pick() is LARGE and chooser.patience == 48
    chooser.observe(LARGE, *told(LARGE, 0, [0.9] * LARGE.levels))
    assert chooser.patience == 48
    chooser.observe(LARGE, *told(LARGE, 1, [0.9] * LARGE.levels))
    assert chooser.patience == FIRST_PROBE, "two tokens in two steps' time"


def test_a_head_whose_scores_are_not_numbers_is_given_up_and_found_again_when_they_are() -> None:
    chooser = Chooser(SECONDS)
    for _ in range(20):
        chooser.observe(LARGE, *told(LARGE, 0, [math.nan] * LARGE.levels))
    assert max(chooser.speeds().values()) < 1 / SECONDS[None] and chooser.pick() is None
    for _ in range(20):
        chooser.observe(LARGE, *told(LARGE, LARGE.levels, [0.9] * LARGE.levels))
    assert chooser.pick() == LARGE


def test_a_head_that_turns_good_is_found_again() -> None:
    chooser = Chooser(SECONDS)
    for step in range(400):
        shape = chooser.pick()
        if shape is not None:
            chooser.observe(shape, *told(shape, shape.levels if step > 100 else 0, [0.9] * shape.levels))
    assert chooser.pick() == LARGE


def speed(shape: TreeShape | None, chance: float) -> float:
    """Tokens a second where every level is agreed with by one chance."""
    return sum(chance**level for level in range((shape.levels if shape else 0) + 1)) / SECONDS[shape]


@pytest.mark.parametrize("belief", [0.8, 1.0, 1.05])
@pytest.mark.parametrize("chance", [0.05, 0.2, 0.3, 0.375, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95])
def test_picks_come_close_to_the_best_fixed_choice_whatever_the_chances(chance: float, belief: float) -> None:
    """And whatever the head makes of them."""
    shares = []
    for seed in range(20):
        dice, chooser, picks = random.Random(seed), Chooser(SECONDS), []
        for _ in range(400):
            picks.append(shape := chooser.pick())
            if shape is not None:
                accepted = list(takewhile(lambda _: dice.random() < chance, range(shape.levels)))  # noqa: B023
                chooser.observe(shape, *told(shape, len(accepted), [chance * belief] * shape.levels))
        best = max(speed(shape, chance) for shape in SECONDS)
        shares.append(len(picks) / sum(1 / speed(shape, chance) for shape in picks) / best)
    assert min(shares) > 0.85 and sum(shares) / len(shares) > 0.96, shares


def test_a_smaller_trees_chances_are_those_of_its_best_nodes() -> None:
    chooser = Chooser(SECONDS)
    scores = np.full((1, 19), -60.0, np.float32)
    depths = np.ones((1, 19), int)
    # Two nodes of the first level and one of the second are the best, in that order; then one of the third.
    scores[0, [3, 7, 8, 15]], depths[0, [3, 7, 8, 15]] = np.log([0.5, 0.3, 0.25, 0.2]), [1, 1, 2, 3]
    chooser.observe(LARGE, np.array([1]), scores, depths)
    small, middle, large = (chooser.levels[shape.total_tokens] for shape in (SMALL, MIDDLE, LARGE))
    assert small.reached.tolist() == pytest.approx([0.8, 0, 0, 0, 0, 0], abs=1e-6), "it keeps two nodes"
    assert middle.reached.tolist() == pytest.approx([0.8, 0.25, 0.2, 0, 0, 0], abs=1e-6)
    assert large.reached.tolist() == pytest.approx([0.8, 0.25, 0.2, 0, 0, 0], abs=1e-6)
    assert large.tried.tolist() == pytest.approx([1, 0.8, 0.25, 0.2, 0, 0], abs=1e-6)
    chooser.observe(SMALL, *told(SMALL, 1, [0.9]))
    assert large.tried[0] == pytest.approx(MEMORY), "a smaller tree says nothing of a larger one"
    assert small.tried[0] == pytest.approx(1 + MEMORY)


def test_the_head_is_believed_as_far_as_it_was_right() -> None:
    chooser = Chooser(SECONDS)
    before = chooser.speeds()[LARGE]
    for _ in range(30):
        chooser.observe(LARGE, *told(LARGE, 0, [0.8] * LARGE.levels))
    assert chooser.kept / chooser.said < 0.2 and chooser.speeds()[LARGE] < before / 2
    chooser = Chooser(SECONDS)
    for _ in range(30):
        chooser.observe(LARGE, *told(LARGE, LARGE.levels, [0.8] * LARGE.levels))
    assert chooser.kept / chooser.said == pytest.approx(1.25, abs=0.02)
    assert chooser.speeds()[LARGE] == pytest.approx((1 + LARGE.levels) / SECONDS[LARGE], rel=0.1)


def test_unseen_levels_are_guessed_from_the_one_above_and_from_the_smaller_tree() -> None:
    small, large = Levels(3), Levels(3, growth=4)
    assert small.rates(None) == pytest.approx([FIRST_GUESS] * 3)
    for _ in range(2000):
        small.observe(np.array([[0.99, 0.0]]))
    rates = small.rates(None)
    assert rates[0] > 0.98 and rates[1] < 0.01 and rates[2] == pytest.approx(rates[1])
    still = 4**-GROWTH
    first = 1 - still * (1 - rates[0])
    assert large.rates(rates)[:2] == pytest.approx([first, (first + 1 - still * (1 - rates[1])) / 2])
    for _ in range(int(PRIOR)):
        large.observe(np.array([[0.0]]))
    assert large.rates(rates)[0] == pytest.approx(first / 2), "a guess counts like PRIOR cycles"


def test_what_the_host_reads_of_a_cycle_is_what_the_tree_holds() -> None:
    tree = tree_of([[-1, 0, 0, 1], [-1, 0, 1, 2]], [[0, 1, 2, 3], [0, 1, 2, 3]])
    tree.scores.copy_(torch.tensor([[0.0, -1.5, -3.0, -2.25], [0.0, -0.1, -1e-8, -77.0]]))
    path, emitted = torch.tensor([[0, 1, 3], [0, 0, 0]]), torch.tensor([[11, 12, 13], [14, 15, 16]])
    accepted = Accepted.of(tree, path, torch.tensor([True, False]), torch.tensor([2, 0]), emitted)
    assert accepted.finite.tolist() == [True, False] and accepted.count.tolist() == [2, 0]
    assert torch.equal(accepted.emitted, emitted)
    read = Told(accepted.told, 2)
    assert read.text(0) == (True, [11, 12, 13]) and read.text(1) == (False, [14])
    assert read.counts.tolist() == [2, 0] and read.scores.dtype == np.float32
    assert np.array_equal(read.scores, tree.scores[:, 1:].numpy())
    assert np.array_equal(read.depths, tree.depths[:, 1:].numpy())


@pytest.mark.parametrize("shape", [(60, 7, 10), [TreeShape(8, 2, 4), None], []])
def test_candidates_that_are_no_shapes_are_refused(shape: Any, pair: Pair) -> None:
    with pytest.raises(ValueError, match="shape must be a TreeShape, or a list of them"):
        er.generate(pair, [1, 2], method="adaptive", shape=shape, max_new_tokens=4)


def test_every_cycle_reads_what_its_own_tree_needs_and_a_plain_step_what_it_needs_in_plain_decoding(
    trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spy(Eager):
        def cycle(self, batch: Any, shape: TreeShape | None, span: int, *rest: Any, **options: Any) -> Any:
            read.append((shape, span))
            return super().cycle(batch, shape, span, *rest, **options)

    read: list[tuple[TreeShape | None, int]] = []
    monkeypatch.setattr(trained, "launcher", Spy())
    monkeypatch.setattr(loops, "Chooser", Dice)
    monkeypatch.setattr(Spy, "seconds", lambda *_: 1.0)
    Dice.dice = random.Random(3)
    wide = TreeShape(60, 7, 10)
    out = er.generate(trained, [5] * 50, method="adaptive", shape=[SMALL, wide], max_new_tokens=90, stop="never")
    contexts = [cycle.context for cycle in out.cycles]
    assert [span for _, span in read] == [
        -(-(context + (shape.slots if shape else 2)) // 64) * 64
        for (shape, _), context in zip(read, contexts, strict=True)
    ]
    assert (None, 64) in read and {shape for shape, _ in read} == {None, SMALL, wide}


def test_a_span_without_a_slot_to_spare_is_enough(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding up to buckets would hide one that is too short, but for the lengths at which buckets end."""
    monkeypatch.setattr(loops, "Chooser", Dice)
    monkeypatch.setattr(trained, "launcher", Eager())
    monkeypatch.setattr(Eager, "seconds", lambda *_: 1.0)
    shapes = [TreeShape(2, 0, 1), LARGE, TreeShape(2, 5, 10), TreeShape(60, 7, 10)]
    options = {"method": "adaptive", "shape": shapes, "max_new_tokens": 40, "record_trees": True}

    def written(prompts: list[list[int]]) -> list[er.Generation]:
        Dice.dice = random.Random(7)
        return er.generate(trained, prompts, **options)

    for prompts in ([[5, 6, 7]], [[9] * 40, [5, 6, 7], [30]]):
        with monkeypatch.context() as exact:
            roomy = written(prompts)
            exact.setattr(sizes, "BUCKET", 1)
            exact.setattr(loops, "BUCKET", 1)
            tight = written(prompts)
        assert [out.ids for out in tight] == [out.ids for out in roomy]
        for one, other in zip(tight, roomy, strict=True):
            for done, expected in zip(one.cycles, other.cycles, strict=True):
                assert done.tree is not None and expected.tree is not None
                assert torch.equal(done.tree.tokens, expected.tree.tokens)
                torch.testing.assert_close(done.tree.scores, expected.tree.scores, atol=1e-4, rtol=1e-4)


def test_where_nobody_names_candidates_they_are_the_usual_ones(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "run_batch", lambda target, head, requests, *_: requests)
    monkeypatch.setattr(api, "clock", lambda device: None)

    def asked(device: str) -> Any:
        request: Any = er.generate(replace(trained, device=device), [1], method="adaptive", max_new_tokens=4)
        return request.shapes

    assert asked("cpu") == asked("cuda:1") == CANDIDATES
    assert max(shape.total_tokens for shape in CANDIDATES) <= 60, "a CPU would time larger ones longer than texts take"


def test_small_trees_are_candidates_where_a_pass_costs_by_the_token_alone() -> None:
    """Seconds as measured with smollm2-135m, of a captured stack on an H200 and operation by operation on two cores."""
    gpu = dict(zip((None, *CANDIDATES), (1.35, 1.71, 1.86, 1.96, 2.10, 1.91, 2.09, 2.21, 2.33, 2.45), strict=True))
    cpu = dict(zip((None, *CANDIDATES), (43, 47, 53, 78, 99, 115, 161, 168, 175, 182), strict=True))
    assert set(worth_picking(cpu)) == set(CANDIDATES)
    assert set(worth_picking(gpu)) == {shape for shape in CANDIDATES if shape.top_k == 10}
    assert set(Chooser(gpu).speeds()) == set(worth_picking(gpu))


def test_a_tree_is_left_out_for_one_that_is_kept_itself() -> None:
    """Not for one that a third stands for, which may take a third more."""
    seconds: dict[Any, float] = {None: 1.0, TreeShape(4, 1, 2): 1.0, TreeShape(8, 1, 4): 1.1, TreeShape(16, 1, 8): 1.2}
    assert worth_picking(seconds) == [TreeShape(16, 1, 8), TreeShape(4, 1, 2)]


@pytest.mark.parametrize("large", [TreeShape(7, 1, 4), TreeShape(8, 0, 7), TreeShape(8, 2, 3)])
def test_a_tree_is_left_out_for_no_smaller_shallower_or_narrower_one(large: TreeShape) -> None:
    small = TreeShape(4, 1, 4)
    assert set(worth_picking({None: 1.0, small: 1.2, large: 1.2})) == {small, large}


def test_candidates_are_made_ready_where_they_are_picked(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each length: a long budget costs no more than what is drafted within it."""

    class Middling(Chooser):
        def pick(self) -> TreeShape | None:
            return MIDDLE

    stack = Graph()
    monkeypatch.setattr(trained, "launcher", stack)
    monkeypatch.setattr(loops, "Chooser", Middling)
    shapes = [SMALL, MIDDLE, LARGE]
    out = er.generate(trained, [5, 6, 7], method="adaptive", shape=shapes, max_new_tokens=150, stop="never")
    assert out.capture_s == stack.capture_s > 0
    made = {(key[2], key[3]) for key in stack._graphs}
    first, *later = sorted({span for _, span in made})
    assert {shape for shape, span in made if span == first} == {None, *shapes}, "all are timed"
    assert len(later) > 1
    assert all({shape for shape, span in made if span == each} == {MIDDLE} for each in later)
    again = er.generate(trained, [7] * 60, method="adaptive", shape=shapes, max_new_tokens=9, stop="never")
    assert again.capture_s == 0, "what its first cycles might draft is timed already, and the rest is not picked"


def test_costs_are_measured_once_for_lengths_up_to_the_next_power_of_two(trained: Pair) -> None:
    trained = replace(trained)  # a launcher that knows nothing
    options: dict[str, Any] = {"method": "adaptive", "shape": [SMALL, LARGE], "max_new_tokens": 2, "stop": "never"}
    times = [er.generate(trained, [7] * length, **options).capture_s for length in (130, 150, 190)]
    assert times[0] > 0 and times[1:] == [0, 0]
    assert er.generate(trained, [7] * 260, **options).capture_s > 0
    assert er.generate(trained, [[7] * 130] * 2, **options)[0].capture_s > 0, "another batch"


@pytest.mark.parametrize("lengths", [(10, 40, 62), (70, 100, 127), (900, 980, 1020)])
def test_all_candidates_are_timed_at_one_length_however_much_each_reads(lengths: list[int], trained: Pair) -> None:
    """Else the slots of one would be counted twice: a tree timed with four times the slots of a plain step."""
    trained = replace(trained)
    shapes = [SMALL, TreeShape(60, 7, 10)]
    for length in lengths:
        er.generate(trained, [7] * length, method="adaptive", shape=shapes, max_new_tokens=2, stop="never")
        assert len(trained.launcher.known) == 3, length
