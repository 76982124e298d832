"""Stacks launch one cycle in different ways: the texts, trees and times they give must not depend on which."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_repro.api import Pair
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.attention import attention_kernels
from eagle_repro.engine.capture import captured
from eagle_repro.engine.devices import resolve_stack
from eagle_repro.engine.generate import Request, run, run_batch
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.shape import BUCKET, TreeShape
from eagle_repro.engine.stacks import Eager, Graph, make_stack, most_graphs
from eagle_repro.engine.target import Target
from tests.conftest import Text
from tests.engine.tiny import random_head, random_target

CPU = torch.device("cpu")
TREE = TreeShape(12, 3, 4)
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


def moved(device: str) -> tuple[Target, Eagle3Head]:
    """The random pair on a device, in fp32."""
    target = random_target()
    head = random_head(target, 32)
    if device == "cpu":
        return target, head
    there = Target(deepcopy(target.model).to(device))
    on = Eagle3Head(head.config, there.embedding).to(device)
    on.load_state_dict(head.state_dict())
    return there, on.eval().requires_grad_(False)


def request(prompt: list[int], **options: Any) -> Request:
    return Request(prompt, **{"shape": TREE, "max_new_tokens": 40, "stop": "never", **options})


def story(out: Any) -> Any:
    return out.ids, out.stop_reason, [(cycle.accepted, cycle.emitted, cycle.context) for cycle in out.cycles]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, 0.9, 20, seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("fused", [False, True], ids=["stock", "fused"])
def test_replayed_graphs_write_what_eager_writes(device: str, sampling: Sampling, fused: bool) -> None:
    target, head = moved(device)
    fast, drafting = (Target(deepcopy(target.model), fused=True), deepcopy(head)) if fused else (target, head)
    if fused:
        drafting.use_fused()
    graph = Graph()
    texts = [
        request([1, 2, 3], sampling=sampling),
        request([9] * 70, method="plain", sampling=sampling),
        request([5], shape=TreeShape(30, 5, 8), sampling=sampling),
        request([1, 2, 3], method="chain", shape=TreeShape.chain(3), sampling=sampling),
        request([1, 2, 3], sampling=sampling),  # over buffers that other texts have used
    ]
    for each in texts:
        assert story(run(fast, drafting, each, stack=graph)) == story(run(target, head, each)), each


@pytest.mark.parametrize("device", DEVICES)
def test_a_text_is_captured_once_and_its_cycles_are_replayed(device: str) -> None:
    target, head = moved(device)
    graph = Graph()
    first = run(target, head, request([1, 2, 3]), stack=graph)
    again = run(target, head, request([3, 2, 1]), stack=graph)
    assert first.capture_s > 0
    assert again.capture_s == 0, "the second text has the first one's shapes and buckets"
    grown = run(target, head, request([1] * 3 * BUCKET), stack=graph)
    assert grown.capture_s > 0, "longer buffers are new ones"
    assert run(target, head, request([1, 2, 3]), stack=graph).capture_s > 0, "graphs over the old buffers are gone"


@pytest.mark.parametrize(
    "options", [{}, {"instrument": True}, {"method": "adaptive"}], ids=["eagle", "apart", "adaptive"]
)
def test_times_leave_out_what_was_captured_and_add_up(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    target, head = moved("cpu")
    monkeypatch.setattr("eagle_repro.engine.stacks.most_graphs", lambda device: 1)
    graph = Graph()
    start = time.perf_counter()
    asked = request([1, 2, 3], max_new_tokens=150, candidates=(TREE, TreeShape.chain(2)), **options)
    out = run(target, head, asked, stack=graph)
    seconds = time.perf_counter() - start
    assert 0 < out.capture_s == graph.capture_s, "nothing is captured without being told"
    assert out.prefill_s > 0 and out.decode_s > 0
    assert out.prefill_s + out.decode_s + out.capture_s <= seconds
    assert out.prefill_s + out.decode_s + out.capture_s >= 0.8 * seconds


def test_phases_of_captured_cycles_are_timed_apart() -> None:
    target, head = moved("cpu")
    out = run(target, head, request([1, 2, 3], instrument=True), stack=Graph())
    assert story(out) == story(run(target, head, request([1, 2, 3])))
    for cycle in out.cycles:
        assert None not in (cycle.draft_s, cycle.verify_s, cycle.accept_s, cycle.commit_s)


def test_recorded_trees_are_not_overwritten_by_the_next_replay() -> None:
    target, head = moved("cpu")
    expected = run(target, head, request([1, 2, 3], record_trees=True))
    found = run(target, head, request([1, 2, 3], record_trees=True), stack=Graph())
    assert same_trees(found, expected) and not same_trees(found, run(target, head, request([5, 6], record_trees=True)))


def same_trees(one: Any, other: Any) -> bool:
    pairs = [(a.tree, b.tree) for a, b in zip(one.cycles, other.cycles, strict=False)]
    return all(torch.equal(a.tokens, b.tokens) and torch.allclose(a.scores, b.scores, atol=1e-4) for a, b in pairs)


def test_buffers_are_not_shared_by_texts_at_the_same_time() -> None:
    target, head = moved("cpu")
    graph = Graph()
    expected = story(run(target, head, request([1, 2, 3])))

    def clock() -> float:
        with pytest.raises(RuntimeError, match="buffers already"):
            run(target, head, request([4, 5]), stack=graph)
        return time.perf_counter()

    assert story(run(target, head, request([1, 2, 3]), clock=clock, stack=graph)) == expected
    assert story(run(target, head, request([1, 2, 3]), stack=graph)) == expected


def test_the_number_of_kept_graphs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    target, head = moved("cpu")
    monkeypatch.setattr("eagle_repro.engine.stacks.most_graphs", lambda device: 2)
    graph = Graph()
    expected = run(target, head, request([1, 2], max_new_tokens=4))
    for nodes in (5, 6, 7, 8):
        run(target, head, request([1, 2], shape=TreeShape(nodes, 3, 4), max_new_tokens=4), stack=graph)
    assert story(run(target, head, request([1, 2], max_new_tokens=4), stack=graph))[0] == expected.ids[:4]
    assert len(graph._graphs) <= 2 + 1, "two kept, and those of the latest text"


@pytest.mark.parametrize(("gigabytes", "graphs"), [(0, 96), (8, 96), (16, 160), (141, 1410)])
def test_large_cards_keep_more_graphs(gigabytes: int, graphs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        total_memory = gigabytes * 10**9

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    assert most_graphs(torch.device("cuda" if gigabytes else "cpu")) == graphs


@torch.inference_mode()
def test_a_small_tree_after_a_large_one_has_the_room_that_it_needs() -> None:
    """And no more, though the buffers stay: else each of its cycles would show the head more than there is."""
    target, head = moved("cpu")
    graph, asked = Graph(), [request([1, 2], shape=TreeShape(8, depth, 4), max_new_tokens=9) for depth in (6, 1, 6)]
    rooms = []
    for each in asked:
        assert story(run(target, head, each, stack=graph)) == story(run(target, head, each))
        rows = each.shape.levels + 1
        rooms.append(graph.state(target, head, 1, 64, rows, few=rows, sampled=False).features.shape[1])
    assert rooms == [8, 3, 8] and graph._state is not None and graph._state.features.shape[1] == 8
    assert {key[-1] for key in graph._graphs} == {(8, 8), (3, 3)}


@torch.inference_mode()
def test_logits_that_are_not_finite_do_not_outlive_their_text() -> None:
    target, head = moved("cpu")
    graph = Graph()
    expected = story(run(target, head, request([1, 2, 3])))
    run(target, head, request([1, 2, 3]), stack=graph)
    assert graph._state is not None and graph._state.head_cache is not None
    graph._state.target_cache.kv.fill_(float("nan"))
    graph._state.head_cache.kv.fill_(float("nan"))
    graph._state.features.fill_(float("nan"))
    again = run(target, head, request([1, 2, 3], shape=TreeShape(6, 1, 4), record_trees=True), stack=graph)
    assert story(again)[0] == expected[0]
    assert all(cycle.tree is not None and cycle.tree.scores.isfinite().all() for cycle in again.cycles)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stack", ["eager", "graph", "graph, fused"])
@pytest.mark.parametrize("method", ["eagle", "plain", "chain"])
def test_rows_of_a_batch_are_their_own_single_runs(method: str, stack: str, device: str) -> None:
    target, head = moved(device)
    shape = TREE if method == "eagle" else TreeShape.chain(3)
    prompts = [[1, 2, 3], [40] * 90, [7], [9, 8, 7, 6]]
    options: dict[str, Any] = {"method": method, "shape": shape, "stop": "eos", "max_length": 100}
    rows = [request(prompt, record_trees=True, **options) for prompt in prompts]
    alone = [run(target, head, row) for row in rows]
    if stack == "graph, fused":  # where masks of several texts are folded, and not of one
        target, head = Target(target.model, fused=True), head.use_fused()
    together = run_batch(target, head, rows, stack=Eager() if stack == "eager" else Graph())
    assert [story(out) for out in together] == [story(out) for out in alone]
    assert all(same_trees(*pair) for pair in zip(together, alone, strict=True))
    assert len({len(out.ids) for out in alone}) > 1, "rows that end together prove little"


@pytest.mark.parametrize("device", DEVICES)
def test_prompts_in_any_order_are_not_touched_by_what_came_before(device: str) -> None:
    target, head = moved(device)
    dice = random.Random(0)
    prompts = [[dice.randrange(63) for _ in range(dice.randrange(1, 120))] for _ in range(20)]
    expected = [story(run(target, head, request(prompt, max_new_tokens=12))) for prompt in prompts]
    for _ in range(2):
        graph, order = Graph(), dice.sample(range(20), 20)
        found = {place: run(target, head, request(prompts[place], max_new_tokens=12), stack=graph) for place in order}
        assert [story(found[place]) for place in range(20)] == expected


@pytest.mark.parametrize("stack", ["eager", "graph"])
def test_a_row_that_ends_early_leaves_the_others_alone(stack: str, pair: Pair, text: Text) -> None:
    prompts = [[7] * 3, [9] * 17, [11] * 40, [13] * 9]
    ends = text(prompts[1], 8)[-1]
    generation_config = pair.target.model.generation_config
    before, generation_config.eos_token_id = generation_config.eos_token_id, ends
    try:
        rows = [Request(prompt, shape=TREE, max_new_tokens=30) for prompt in prompts]
        together = run_batch(pair.target, pair.head, rows, stack=Graph() if stack == "graph" else Eager())
        alone = [run(pair.target, pair.head, row) for row in rows]
    finally:
        generation_config.eos_token_id = before
    assert [story(out) for out in together] == [story(out) for out in alone]
    assert together[1].stop_reason == "eos" and len(together[1].ids) <= 8
    assert max(len(out.ids) for out in together) == 30


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(st.integers(0, 62), min_size=1, max_size=30), min_size=1, max_size=5), st.integers(1, 20))
def test_any_batch_equals_its_single_runs(prompts: list[list[int]], budget: int) -> None:
    target, head = moved("cpu")
    rows = [request(prompt, stop="eos", max_new_tokens=budget) for prompt in prompts]
    together = run_batch(target, head, rows)
    assert [story(out) for out in together] == [story(run(target, head, row)) for row in rows]


@pytest.mark.parametrize("device", DEVICES)
def test_captured_work_restores_what_it_changes_and_is_done_by_a_call(device: str) -> None:
    where = torch.device(device)
    counter, seen = torch.zeros(3, device=where), torch.tensor([1.0, 2.0, 3.0], device=where)

    def work() -> torch.Tensor:
        counter.add_(seen)
        return counter * 2

    step = captured(work, where, [counter])
    assert counter.tolist() == [0, 0, 0]
    assert step().tolist() == [2, 4, 6]
    seen.mul_(10)
    assert step().tolist() == [22, 44, 66]
    assert counter.tolist() == [11, 22, 33]


def test_the_stack_follows_the_device() -> None:
    assert resolve_stack("auto", CPU) == "eager"
    assert resolve_stack("auto", torch.device("cuda")) == "graph"
    assert isinstance(make_stack("graph"), Graph) and not isinstance(make_stack("eager"), Graph)
    with pytest.raises(ValueError, match='needs a CUDA device.*use "eager"'):
        resolve_stack("graph", CPU)
    assert resolve_stack("auto", torch.device("cuda"), split=True) == "eager"
    with pytest.raises(ValueError, match='cannot hold a target that is split over devices: use "eager"'):
        resolve_stack("graph", torch.device("cuda"), split=True)
    with pytest.raises(ValueError, match="not known"):
        resolve_stack("fast", CPU)


def test_only_what_is_captured_may_take_attention_kernels_that_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning takes a tenth of a second for each new shape, and each prompt is one."""
    target, head = moved("cpu")
    seen: dict[int, set[bool]] = {}
    forward = Target.forward

    def watched(self: Target, tokens: torch.Tensor, *args: Any, **options: Any) -> Any:
        planned = isinstance(attention_kernels(torch.device("cuda")), nullcontext)
        seen.setdefault(tokens.shape[1], set()).add(planned)
        return forward(self, tokens, *args, **options)

    monkeypatch.setattr(Target, "forward", watched)
    for stack, cycles in ((Graph(), True), (Eager(), False)):
        seen.clear()
        run(target, head, request([1, 2, 3, 4, 5], shape=TreeShape(9, 2, 4), max_new_tokens=6), stack=stack)
        assert seen == {5: {False}, 9: {cycles}}
    assert isinstance(attention_kernels(torch.device("cpu")), nullcontext)


@pytest.mark.parametrize(("took", "cycles"), [(0.1, 3), (0.012, 3), (0.007, 5), (0.001, 12)])
def test_what_a_cycle_takes_is_timed_more_often_where_that_takes_little(took: float, cycles: int) -> None:
    class Timed(Eager):
        now, done = 0.0, 0

        def cycle(self, *given: Any, **named: Any) -> Any:
            self.now, self.done = self.now + took, self.done + 1
            return super().cycle(*given, **named)

        def seconds(self, *given: Any) -> float:
            before, median = self.done, super().seconds(*given)
            timed.append((self.done - before - 1, median))  # the first is thrown away
            return median

    timed: list[tuple[int, float]] = []
    stack = Timed()
    asked = request([1, 2], method="adaptive", candidates=(TREE,), max_new_tokens=3)
    run(*moved("cpu"), asked, clock=lambda: stack.now, stack=stack)
    assert timed == [(cycles, pytest.approx(took))] * 2, "a plain step and the tree"
