"""method="adaptive": the text is plain decoding's whatever is picked, and what is picked pays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pytest
import torch

import eagle_repro as er
from eagle_repro.api import Pair
from eagle_repro.engine import generate as loops
from eagle_repro.engine.adaptive import FIRST_PROBE, GROWTH, MEMORY, Chooser, Levels
from eagle_repro.engine.request import Request
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import Graph
from eagle_repro.engine.tree import score_ranks
from tests.conftest import Text
from tests.engine.trees import tree_of
from tests.models import oracle, pair_of, wrong

SMALL, MIDDLE, LARGE = TreeShape(3, 1, 4), TreeShape(8, 2, 4), TreeShape(20, 5, 4)
SECONDS: dict[Any, float] = {None: 1.0, SMALL: 1.3, MIDDLE: 1.5, LARGE: 2.0}


class Dice(Chooser):
    """Picks at random, long runs of plain steps among them."""

    dice = random.Random(0)

    def pick(self) -> TreeShape | None:
        return self.dice.choice([None, None, None, None, *self.shapes])


@pytest.mark.parametrize("stack", ["eager", "graph"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_picked_the_text_is_plain_decodings(
    seed: int, stack: str, trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "Chooser", Dice)
    Dice.dice = random.Random(seed)
    prompts = [[5, 6, 7], [9] * 40, [30 + seed]]
    if stack == "graph":
        monkeypatch.setattr(trained, "launcher", Graph())
    together = er.generate(trained, prompts, method="adaptive", shape=[SMALL, MIDDLE, LARGE], max_new_tokens=60)
    for prompt, out in zip(prompts, together, strict=True):
        assert out.ids == er.generate(trained, prompt, method="plain", max_new_tokens=60).ids
        assert sum(cycle.emitted for cycle in out.cycles) == len(out.ids) - 1
        alone = er.generate(trained, prompt, method="adaptive", shape=[SMALL, LARGE], max_new_tokens=60, stop="never")
        assert alone.ids == er.generate(trained, prompt, method="plain", max_new_tokens=60, stop="never").ids
        assert len({cycle.nodes for cycle in alone.cycles}) > 1, "plain steps and trees"


@pytest.mark.parametrize("room", [MIDDLE.levels + 1, loops.WAITING])
def test_a_tree_after_plain_steps_is_that_of_a_head_that_saw_everything(
    room: int, trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "room_for_features", lambda *_: room)
    """Features of plain steps wait for the head, longer than there is room for at once."""
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
    told: list[str] = []
    monkeypatch.setattr(Chooser, "pick", lambda self: told.append("pick") or MIDDLE)
    monkeypatch.setattr(Chooser, "observe", lambda self, shape, ranks: told.append(f"observe {len(ranks)}"))
    out = er.generate(trained, [5, 6, 7], method="adaptive", shape=[MIDDLE], max_new_tokens=30, stop="never")
    seen = [f"observe {cycle.accepted}" for cycle in out.cycles]
    assert told[:2] == ["pick", "pick"] and told[2::2] == seen[:-1] and set(told[3::2]) == {"pick"}


def test_a_head_of_no_use_is_given_up_soon_and_probed_more_and_more_rarely() -> None:
    chooser = Chooser(SECONDS)
    picked = []
    for _ in range(600):
        shape = chooser.pick()
        picked.append(shape is not None)
        if shape is not None:
            chooser.fade()
            chooser.observe(shape, [])
    assert sum(picked[:20]) <= 12
    tries = [step for step in range(20, 600) if picked[step]]
    gaps = [after - before for before, after in zip(tries, tries[1:], strict=False)]
    assert gaps == sorted(gaps) and gaps[-1] > 2 * gaps[0]


def test_a_head_that_turns_good_is_found_again() -> None:
    chooser = Chooser(SECONDS)
    for step in range(400):
        shape = chooser.pick()
        if shape is not None:
            chooser.fade()
            chooser.observe(shape, [0] * shape.levels if step > 100 else [])
    assert chooser.pick() == LARGE


def speed(shape: TreeShape | None, chance: float) -> float:
    """Tokens a second where every level is agreed with by one chance."""
    return sum(chance**level for level in range((shape.levels if shape else 0) + 1)) / SECONDS[shape]


@pytest.mark.parametrize("chance", [0.05, 0.2, 0.3, 0.375, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95])
def test_picks_come_close_to_the_best_fixed_choice_whatever_the_chances(chance: float) -> None:
    shares = []
    for seed in range(20):
        dice, chooser, picks = random.Random(seed), Chooser(SECONDS), []
        for _ in range(400):
            picks.append(shape := chooser.pick())
            if shape is not None:
                accepted = list(takewhile(lambda _: dice.random() < chance, range(shape.levels)))  # noqa: B023
                chooser.fade()
                chooser.observe(shape, [0] * len(accepted))
        best = max(speed(shape, chance) for shape in SECONDS)
        shares.append(len(picks) / sum(1 / speed(shape, chance) for shape in picks) / best)
    assert min(shares) > 0.85 and sum(shares) / len(shares) > 0.96, shares


def test_a_smaller_trees_chances_are_learnt_from_the_ranks() -> None:
    chooser = Chooser(SECONDS)
    chooser.observe(LARGE, [0, 6, 12])  # of 20: the smaller ones keep 2 and 7 nodes
    small, middle, large = (chooser.levels[shape.total_tokens] for shape in (SMALL, MIDDLE, LARGE))
    assert (small.agreed[:2], small.seen[:3]) == ([1, 0], [1, 1, 0])
    assert (middle.agreed[:3], middle.seen[:4]) == ([1, 1, 0], [1, 1, 1, 0])
    assert (large.agreed[:4], large.seen[:5]) == ([1, 1, 1, 0], [1, 1, 1, 1, 0])
    chooser.fade()
    chooser.observe(SMALL, [0])
    assert large.seen[:4] == pytest.approx([MEMORY] * 4), "a smaller tree says nothing of a larger one"


def test_unseen_levels_are_guessed_from_the_one_above_and_from_the_smaller_tree() -> None:
    small, large = Levels(3), Levels(3, growth=4)
    for _ in range(2000):
        small.observe(0, True)
        small.observe(1, False)
    rates = small.rates(None)
    assert rates[0] > 0.99 and rates[1] < 0.02 and rates[2] == rates[1]
    still = 4**-GROWTH
    first = 1 - still * (1 - rates[0])
    assert large.rates(rates)[:2] == pytest.approx([first, (first + 1 - still * (1 - rates[1])) / 2])
    for _ in range(30):
        large.observe(0, False)
    assert large.rates(rates)[0] == pytest.approx(first / 2), "a guess counts like 30 cycles"


def test_what_a_larger_tree_adds_is_learnt_where_the_smaller_one_missed() -> None:
    chooser = Chooser(SECONDS)
    before = [levels.still / levels.missed for levels in chooser.levels.values()]
    assert before[0] == 1 > before[1] and before[2] < 1
    for _ in range(50):
        chooser.observe(LARGE, [4])  # of 8 nodes the middle tree has it, of 3 the small one has not
        chooser.observe(LARGE, [])
        chooser.observe(LARGE, [0])
    _, middle, large = (levels.still / levels.missed for levels in chooser.levels.values())
    assert middle == pytest.approx(0.5, abs=0.02) and large > 0.98


def test_ranks_count_the_drafted_nodes_that_score_higher() -> None:
    tree = tree_of([[-1, 0, 0, 1]], [[0, 1, 2, 3]])
    tree.scores.copy_(torch.tensor([[0.0, -1.0, -3.0, -2.0]]))
    assert score_ranks(tree, torch.tensor([[1, 3, 2, 0]])).tolist() == [[0, 1, 2, 0]]


@pytest.mark.parametrize("shape", [(60, 7, 10), [TreeShape(8, 2, 4), None], []])
def test_candidates_that_are_no_shapes_are_refused(shape: Any, pair: Pair) -> None:
    with pytest.raises(ValueError, match="shape must be a TreeShape, or a list of them"):
        er.generate(pair, [1, 2], method="adaptive", shape=shape, max_new_tokens=4)
