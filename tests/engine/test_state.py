"""What is kept between cycles is what a fresh start would give, and nothing is kept between calls or on the target."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eagle_repro as er
from eagle_repro import Generation, Pair, Sampling, TreeShape
from eagle_repro.engine.attention import visibility
from eagle_repro.engine.cycle import catch_up, cycle, draft
from eagle_repro.engine.generate import NonFiniteLogits, Request, run
from eagle_repro.engine.head import load_head
from eagle_repro.engine.shape import read_span
from eagle_repro.engine.target import Target
from tests.conftest import Text
from tests.engine.tiny import begun
from tests.models import head_tensors, oracle, pair_of, save_head, tiny_head, tiny_target, uneven, wrong

PROMPT = [17, 300, 4, 255, 63]
TREE = TreeShape(16, 3, 4)
METHODS = ("plain", "eagle", "chain", "hf")


# --- incremental = fresh ---------------------------------------------------------------------------------------------


def same_tree(tree: Any, other: Any) -> None:
    assert torch.equal(tree.tokens, other.tokens)
    assert torch.equal(tree.parents, other.parents)
    assert torch.equal(tree.depths, other.depths)
    torch.testing.assert_close(tree.scores, other.scores, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("shape", "cycles"), [(TreeShape(60, 7, 10), 8), (TREE, 10), (TreeShape.chain(5), 10), (TreeShape(5, 0, 4), 10)]
)
@pytest.mark.parametrize("which", ["trained", "pair"])
def test_every_cycles_tree_is_that_of_a_head_prefilled_afresh(
    which: str, shape: TreeShape, cycles: int, request: pytest.FixtureRequest
) -> None:
    pair: Pair = request.getfixturevalue(which)
    prompt = [5, 6, 7]
    out = er.generate(pair, prompt, shape=shape, max_new_tokens=48, stop="never", record_trees=True)
    if which == "trained":
        assert len({cycle.accepted for cycle in out.cycles}) > 1, "paths of one length prove little"
    for number, done in enumerate(out.cycles[:cycles]):
        committed = (prompt + out.ids)[: done.context]
        fresh = er.generate(pair, committed, shape=shape, max_new_tokens=2, stop="never", record_trees=True)
        assert done.tree is not None and fresh.cycles[0].tree is not None, number
        same_tree(done.tree, fresh.cycles[0].tree)


@torch.inference_mode()
@pytest.mark.parametrize("shape", [TreeShape(60, 7, 10), TREE], ids=["large", "small"])
def test_a_nodes_score_is_what_drafting_its_path_alone_gives(shape: TreeShape, trained: Pair) -> None:
    target, head, prompt = trained.target, trained.head, [5, 6, 7, 30, 31]
    state, _ = begun(target, head, Request(prompt, shape=shape), shape)
    assert state.head_cache is not None
    span = read_span(len(prompt), shape.slots)
    tree = draft(head, state, shape, span)
    draft_ids = {int(i): number for number, i in enumerate(head.to_target(torch.arange(head.config.draft_vocabulary)))}
    for path in tree.paths():
        hidden, score = catch_up(head, state, span), 0.0
        for step, node in enumerate(path[1:]):
            token = tree.tokens[:, node : node + 1]
            score += float(head.log_probabilities(hidden)[0, 0, draft_ids[int(token)]])
            assert score == pytest.approx(float(tree.scores[0, node]), abs=1e-4), f"node {node} of path {path}"
            place = state.length + step
            mask = visibility(place, torch.ones(1, 1, 1, dtype=torch.bool), span, hidden.dtype)
            hidden = head(hidden, token, place.unsqueeze(1), mask, state.head_cache.at(place.unsqueeze(1), span))


@torch.inference_mode()
def test_both_caches_hold_the_committed_text_and_the_pending_features(trained: Pair) -> None:
    prompt, shape = [5, 6, 7], TREE
    target, head = trained.target, trained.head
    state, first = begun(target, head, Request(prompt, shape=shape), shape)
    text, pendings = [*prompt, first], set()
    for _ in range(10):
        span = read_span(len(text), shape.slots)
        _, accepted = cycle(target, head, state, shape, span, Sampling())
        text += accepted.emitted[0, : int(accepted.count) + 1].tolist()
        length, pending = int(state.length), int(state.pending)
        pendings.add(pending)
        assert length == len(text) - 1, "all but the root is committed"
        assert int(state.root) == text[-1]
        assert state.followers[0, :pending].tolist() == text[len(text) - pending :]
        fresh, root = begun(target, head, Request(text[:-1], shape=shape), shape)
        assert root == text[-1]
        kept, expected = state.target_cache.kv[:, :, 0, :length], fresh.target_cache.kv[:, :, 0, :length]
        torch.testing.assert_close(kept, expected, atol=1e-4, rtol=1e-4)
        assert state.head_cache is not None and fresh.head_cache is not None
        seen = length - pending  # the head has not seen the pending positions yet
        kept, expected = state.head_cache.kv[:, :, 0, :seen], fresh.head_cache.kv[:, :, 0, :seen]
        torch.testing.assert_close(kept, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(state.features[:, pending - 1], fresh.features[:, 0], atol=1e-4, rtol=1e-4)
    assert len(pendings) > 1, "paths of one length prove little"


def test_rejected_drafts_leave_the_committed_length_at_one_more_a_cycle(target: Target, text: Text) -> None:
    prompt = [9]
    pair = pair_of(target, wrong(prompt + text(prompt, 24)))
    out = er.generate(pair, prompt, shape=TREE, max_new_tokens=11, stop="never")
    assert [cycle.context for cycle in out.cycles] == list(range(1, 11))
    assert out.ids == text(prompt, 11)


# --- the target stays as it was --------------------------------------------------------------------------------------


def hooks_of(module: nn.Module) -> list[int]:
    return [len(hooks) for name, hooks in vars(module).items() if name.endswith(("_hooks", "_hooks_with_kwargs"))]


@torch.no_grad()
def fingerprint(target: Target) -> dict[str, Any]:
    """All that could change on a model: weights, buffers, configs, hooks, attributes, flags, and what it computes."""
    model = target.model
    modules = dict(model.named_modules())
    return {
        "weights": {name: (tensor.clone(), tensor.data_ptr()) for name, tensor in model.state_dict().items()},
        "buffers": {name: tensor.clone() for name, tensor in model.named_buffers()},
        "config": model.config.to_dict(),
        "same config": id(model.config),
        "generation config": model.generation_config.to_dict(),
        "same generation config": id(model.generation_config),
        "attention": [module.config._attn_implementation for module in modules.values() if hasattr(module, "config")],
        "hooks": {name: hooks_of(module) for name, module in modules.items()},
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "training": [module.training for module in modules.values()],
        "gradients": [parameter.requires_grad for parameter in model.parameters()],
        "outputs": model(torch.tensor([PROMPT * 3]), use_cache=False).logits.clone(),
    }


def require_unchanged(before: dict[str, Any], target: Target) -> None:
    after = fingerprint(target)
    for what in ("weights", "buffers"):
        assert before[what].keys() == after[what].keys(), what
    for name, (tensor, place) in before["weights"].items():
        assert torch.equal(tensor, after["weights"][name][0]) and place == after["weights"][name][1], name
    for name, buffer in before["buffers"].items():
        assert torch.equal(buffer, after["buffers"][name]), name
    assert torch.equal(before["outputs"], after["outputs"]), "the same input gives other logits"
    for what in before.keys() - {"weights", "buffers", "outputs"}:
        assert before[what] == after[what], what


@pytest.fixture(params=["sdpa", "eager"])
def own_pair(request: pytest.FixtureRequest) -> Pair:
    """A pair that no other test shares, with the stock attention named."""
    target = Target(tiny_target(layers=4, attn_implementation=request.param))
    return pair_of(target, tiny_head(target))


@pytest.mark.parametrize("method", METHODS)
def test_the_target_is_unchanged_after_a_run(method: str, own_pair: Pair) -> None:
    before = fingerprint(own_pair.target)
    for options in ({}, {"stop": "never"}, {"instrument": True, "record_trees": True}):
        er.generate(own_pair, PROMPT, method=method, shape=TREE, max_new_tokens=6, **options)
        require_unchanged(before, own_pair.target)
    assert er.lossless.check(own_pair, PROMPT, [1, 2, 3]).tokens == 3
    own_pair.target.prove()
    require_unchanged(before, own_pair.target)


class Stop(BaseException):
    """Like a keyboard interrupt: no handler for ordinary errors sees it."""


@pytest.mark.parametrize("error", [RuntimeError, Stop])
@pytest.mark.parametrize("after", [0, 2], ids=["in the prefill", "in a cycle"])
@pytest.mark.parametrize("method", METHODS)
def test_the_target_is_unchanged_after_a_run_that_raised(
    method: str, after: int, error: type[BaseException], own_pair: Pair
) -> None:
    before, passes = fingerprint(own_pair.target), iter(range(100))

    def fail(module: nn.Module, args: Any) -> None:
        if next(passes) == after:
            raise error("in the middle of a pass")

    hook = own_pair.target.decoder.layers[2].register_forward_pre_hook(fail)
    with pytest.raises(error, match="in the middle"):
        er.generate(own_pair, PROMPT, method=method, shape=TREE, max_new_tokens=8, stop="never")
    hook.remove()
    require_unchanged(before, own_pair.target)
    fresh = er.generate(own_pair, PROMPT, method="plain", max_new_tokens=8, stop="never").ids
    assert er.generate(own_pair, PROMPT, method=method, shape=TREE, max_new_tokens=8, stop="never").ids == fresh


def test_a_user_can_train_the_target_after_a_run(own_pair: Pair) -> None:
    for method in METHODS:
        er.generate(own_pair, PROMPT, method=method, shape=TREE, max_new_tokens=4)
    model = own_pair.target.model.requires_grad_(True)
    model(torch.tensor([PROMPT])).logits.sum().backward()  # fails on anything left over from inference mode
    assert all(parameter.grad is not None for parameter in model.parameters())


# --- logits that are not finite --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(("after", "budget"), [(0, 1), (0, 8), (1, 8)], ids=["only token", "prefill", "cycle"])
@pytest.mark.parametrize("method", METHODS)
def test_logits_that_are_not_finite_stop_the_run(
    method: str, after: int, budget: int, value: float, pair: Pair
) -> None:
    passes = iter(range(100))

    def overflow(module: nn.Module, args: Any, output: Any) -> Any:
        hidden: Tensor = output if isinstance(output, Tensor) else output[0]
        broken = torch.full_like(hidden, value) if next(passes) >= after else hidden
        return broken if isinstance(output, Tensor) else (broken, *output[1:])

    before = fingerprint(pair.target)
    hook = pair.target.decoder.layers[3].register_forward_hook(overflow)
    try:
        with pytest.raises(NonFiniteLogits, match="not finite in torch.float32"):
            er.generate(pair, PROMPT, method=method, shape=TREE, max_new_tokens=budget, stop="never")
    finally:
        hook.remove()
    require_unchanged(before, pair.target)


# --- calls do not influence each other -------------------------------------------------------------------------------


def jobs(pair: Pair, text: Text) -> list[Callable[[], Generation]]:
    """Calls that differ in every way: method, drafter, shape, prompt length, sampling, stop rule, budget."""
    target = pair.target
    long, short = [(11 * i) % 512 for i in range(70)], [9]

    def job(pair: Pair, prompt: list[int], **options: Any) -> Callable[[], Generation]:
        return lambda: er.generate(pair, prompt, **{"max_new_tokens": 10, "stop": "never", **options})

    right, mixed = (pair_of(target, make(PROMPT + text(PROMPT, 40))) for make in (oracle, uneven))
    return [
        job(pair, PROMPT, method="plain"),
        job(pair, long, shape=TreeShape(60, 7, 10)),
        job(pair, short, shape=TREE, max_new_tokens=17),
        job(pair, PROMPT, method="hf"),
        job(right, PROMPT, shape=TREE, stop="eos"),
        job(mixed, PROMPT, method="chain", shape=TreeShape(60, 7, 10)),
        job(pair, short, sampling=Sampling(temperature=0.8, seed=3), shape=TREE),
        job(pair, long, sampling=Sampling(temperature=1.1, top_k=20, seed=4), method="plain"),
    ]


def story(out: Generation) -> tuple[Any, ...]:
    """All of a result but its times."""
    return out.ids, out.stop_reason, [(c.nodes, c.accepted, c.emitted, c.context) for c in out.cycles]


def test_the_order_of_calls_does_not_matter(pair: Pair, text: Text) -> None:
    calls = jobs(pair, text)
    alone = [story(call()) for call in calls]
    for seed in (1, 2, 3):
        order = random.Random(seed).sample(range(len(calls)), len(calls))
        assert {i: story(calls[i]()) for i in order} == dict(enumerate(alone))


def test_a_call_in_the_middle_of_another_changes_neither(pair: Pair, text: Text) -> None:
    calls = jobs(pair, text)
    alone = [story(call()) for call in calls]
    inner: list[tuple[int, tuple[Any, ...]]] = []

    def interrupting_clock() -> float:  # an instrumented run reads its clock between all phases of a cycle
        number = len(inner) % len(calls)
        inner.append((number, story(calls[number]())))
        return float(len(inner))

    for sampling in (Sampling(), Sampling(temperature=0.8, seed=3)):
        request = Request([9], shape=TREE, max_new_tokens=4, stop="never", sampling=sampling, instrument=True)
        expected = story(run(pair.target, pair.head, request))
        assert story(run(pair.target, pair.head, request, interrupting_clock)) == expected
    assert len(inner) > 2 * len(calls)
    assert all(alone[number] == told for number, told in inner)


def test_cycles_of_two_texts_taken_in_turns_are_those_of_each_alone(trained: Pair) -> None:
    target, head = trained.target, trained.head
    prompts = [[5, 6, 7], [30, 31, 32, 33, 34, 35, 36]]

    def start(prompt: list[int]) -> Any:
        return begun(target, head, Request(prompt, shape=TREE), TREE)[0]

    def step(state: Any) -> list[int]:
        _, accepted = cycle(target, head, state, TREE, read_span(int(state.length), TREE.slots), Sampling())
        return accepted.emitted[0, : int(accepted.count) + 1].tolist()

    with torch.inference_mode():
        alone = []
        for prompt in prompts:
            state = start(prompt)
            alone.append([step(state) for _ in range(6)])
        one, two = map(start, prompts)
        turns = [(step(one), step(two)) for _ in range(6)]
    assert [list(told) for told in zip(*turns, strict=True)] == alone


def test_two_heads_on_one_target_do_not_mix(target: Target, text: Text, tmp_path: Path) -> None:
    heads = [tiny_head(target, seed) for seed in (1, 2)]
    heads.append(load_head(save_head(tmp_path, head_tensors(drafted=512), draft_vocab_size=512), target.embedding))
    told = [[story(er.generate(pair_of(target, head), PROMPT, shape=TREE, max_new_tokens=8)) for head in heads]]
    told.append([story(er.generate(pair_of(target, head), PROMPT, shape=TREE, max_new_tokens=8)) for head in heads])
    assert told[0] == told[1]


def test_results_do_not_change_when_the_next_run_reuses_memory(trained: Pair) -> None:
    first = er.generate(trained, [5, 6, 7], shape=TREE, max_new_tokens=24, stop="never", record_trees=True)
    kept = [cycle.tree.tokens.clone() for cycle in first.cycles if cycle.tree]
    er.generate(trained, [40, 41], shape=TREE, max_new_tokens=24, stop="never", record_trees=True)
    assert kept and all(torch.equal(old, c.tree.tokens) for old, c in zip(kept, first.cycles, strict=True) if c.tree)


def test_greedy_runs_touch_no_global_generator(pair: Pair) -> None:
    before = torch.get_rng_state(), random.getstate()
    er.generate(pair, PROMPT, shape=TREE, max_new_tokens=6)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
