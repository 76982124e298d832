"""The engine does what the official EAGLE-3 code was recorded to do: trees, accepted paths, texts, tensors."""

from __future__ import annotations

from dataclasses import fields
from itertools import islice
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from eagle_repro.engine import generate as loops
from eagle_repro.engine import prefill, stacks
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.cycle import State, cycle
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.shape import TreeShape, read_span
from eagle_repro.engine.teacher import draft_along
from eagle_repro.engine.tree import Candidates, build_tree
from tests.engine import reference as ref
from tests.engine.tiny import begun

STRIDE = 9
"""Every how many cycles the short run of the teacher-forced test takes; the slow one takes all."""

PORTIONS = [pytest.param(STRIDE, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
TOLERANCE = 2e-4
"""Absolute, as the recording suggests."""


@pytest.mark.parametrize("stride", PORTIONS)
@pytest.mark.parametrize("name", ref.recordings("trace"))
def test_each_cycle_on_the_recorded_prefix_is_the_official_one(name: str, stride: int) -> None:
    trace = ref.read(name)
    shape, head = ref.shape_of(trace), ref.reference_head(trace["head"])
    for number, run in enumerate(trace["runs"]):
        for committed, recorded in islice(ref.prefixes(run), number % stride, None, stride):
            chosen, tree, accepted = ref.teacher_forced(head, committed, recorded["root"], shape)
            where = f"{run['prompt']}, {len(committed)} committed tokens"
            assert chosen == recorded["root"], where
            if ref.is_fragile(recorded):
                assert ref.same_tree(tree, recorded), where
                continue
            assert ref.observed_tree(tree) == ref.recorded_tree(recorded), where
            assert ref.observed_outcome(accepted) == ref.recorded_outcome(recorded, shape.levels), where


@pytest.mark.parametrize("name", ref.recordings("trace"))
def test_one_draft_only_pass_over_a_text_holds_every_tree_of_its_cycles(name: str) -> None:
    trace = ref.read(name)
    shape, head = ref.shape_of(trace), ref.reference_head(trace["head"])
    for run in trace["runs"]:
        first = len(ref.prompts()[run["prompt"]]["ids"])
        along = draft_along(ref.reference_target(), head, run["output_ids"], first, shape.depth, shape.top_k)
        for committed, recorded in ref.prefixes(run):
            row = len(committed) - first
            here = Candidates(*(getattr(along, field.name)[row : row + 1] for field in fields(along)))
            tree = build_tree(torch.tensor([recorded["root"]]), here, shape)
            assert ref.same_tree(tree, recorded), f"{run['prompt']}, {len(committed)} committed tokens"


class Watched:
    """Runs a request and notes the lengths that every cycle starts from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lengths: list[tuple[int, int]] = []

        def watched(target: Any, head: Any, state: State, *args: Any, **options: Any) -> Any:
            self.lengths.append((int(state.length), int(state.pending)))
            return cycle(target, head, state, *args, **options)

        monkeypatch.setattr(stacks, "cycle", watched)

    def run(self, head: Eagle3Head, prompt: list[int], shape: TreeShape, count: int, **options: Any) -> Any:
        self.lengths.clear()
        request = loops.Request(prompt, shape=shape, max_new_tokens=count, stop="never", record_trees=True, **options)
        return loops.run(ref.reference_target(), head, request)


def assert_same_run(watched: Watched, out: loops.Generation, run: dict[str, Any]) -> None:
    """Cycle by cycle up to the first fragile one: tree, accepted tokens, cached lengths of target and head."""
    for i, (ours, recorded) in enumerate(zip(out.cycles, run["cycles"], strict=False)):
        where = f"{run['prompt']}, cycle {i}"
        if ref.is_fragile(recorded):
            return
        assert ours.tree is not None
        assert ref.observed_tree(ours.tree) == ref.recorded_tree(recorded), where
        length, pending = watched.lengths[i]
        before, with_tree, after = recorded["cache"]
        assert (ours.context, ours.context + ours.nodes, ours.context + ours.accepted + 1) == (before, with_tree, after)
        kept, fed, caught_up = recorded["kv"]
        assert length == before == caught_up, where
        # The prefill gives our head all but the prompt's last position, which the official code feeds with the rest.
        assert (length - pending, pending) == ((kept, fed) if i else (caught_up - 1, 1)), where
        assert ours.accepted == recorded["accept_length"], where


@pytest.mark.parametrize("part", [pytest.param(4, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ref.recordings("trace"))
def test_free_running_decoding_goes_through_the_official_cycles(
    name: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = ref.read(name)
    shape, watched = ref.shape_of(trace), Watched(monkeypatch)
    # Another part of the eight prompts for every recording.
    for run in trace["runs"][trace["depth"] % part :: part]:
        prompt = ref.prompts()[run["prompt"]]["ids"]
        expected = run["output_ids"][len(prompt) :]
        out = watched.run(ref.reference_head(trace["head"]), prompt, shape, len(expected) + 1)
        assert out.ids == [*expected, run["cycles"][-1]["next_root"]], run["prompt"]
        assert_same_run(watched, out, run)


def test_text_that_ends_is_the_recorded_plain_output() -> None:
    head, shape = ref.reference_head("qwen3-eagle3-dv208"), TreeShape(16, 3, 4)
    for prompt in (ref.prompts()[name] for name in ("code", "one_token", "long")):
        expected = prompt["naive"]["output_ids"][len(prompt["ids"]) :][:48]
        for method in ("plain", "eagle"):
            request = loops.Request(prompt["ids"], method=method, shape=shape, max_new_tokens=48)
            out = loops.run(ref.reference_target(), head, request)
            assert out.ids == expected, (method, prompt["id"])
            assert out.stop_reason == ("eos" if expected[-1] == 0 else "budget")


@pytest.mark.parametrize("name", ref.recordings("sampled"))
def test_sampled_runs_replay_when_the_recorded_draws_are_fed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our draws belong to positions: noise that makes each position draw its recorded token replays the whole run.

    A recorded token that our filter dropped could not be drawn, so the filters are compared too.
    """
    record = ref.read(name)
    watched = Watched(monkeypatch)
    for run in record["runs"]:
        text = [*run["output_ids"], run["cycles"][-1]["next_root"]]

        def recorded_noise(
            sampling: Sampling, row: int, position: int, size: int, device: Any, text: list[int] = text
        ) -> Tensor:
            noise = torch.zeros(size, device=device)
            noise[text[position] if position < len(text) else 0] = 1e6
            return noise

        monkeypatch.setattr(prefill, "gumbel_noise", recorded_noise)
        prompt = ref.prompts()[run["prompt"]]["ids"]
        sampling = Sampling(run["temperature"], run["top_p"] or 1.0, run["sample_top_k"])
        head, shape = ref.reference_head(record["head"]), ref.shape_of(run)
        out = watched.run(head, prompt, shape, len(text) - len(prompt), sampling=sampling)
        assert out.ids == text[len(prompt) :], run["prompt"]
        assert_same_run(watched, out, run)
        assert len(out.cycles) == len(run["cycles"])


@pytest.mark.parametrize("name", ref.recordings("stop"))
def test_short_runs_accept_what_the_official_ones_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official stop rules overrun the budget; ours do not, so texts are compared over the common length."""
    record = ref.read(name)
    watched = Watched(monkeypatch)
    for prompt_id in {case["prompt"] for case in record["cases"]}:
        prompt = ref.prompts()[prompt_id]["ids"]
        out = watched.run(ref.reference_head(record["head"]), prompt, ref.shape_of(record), 30)
        for case in (case for case in record["cases"] if case["prompt"] == prompt_id):
            lengths = case["eagle"]["accept_lengths"]
            assert [cycle.accepted for cycle in out.cycles[: len(lengths)]] == lengths
            for recorded in (case["eagle"]["output_ids"], case["naive"]["output_ids"]):
                assert out.ids[: len(recorded) - len(prompt)] == recorded[len(prompt) :]


@pytest.mark.parametrize("name", ref.recordings("numeric"))
@torch.inference_mode()
def test_tensors_of_the_first_draft_and_verification(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_file(ref.recording(name))
    head_name, prompt_id = name.removesuffix(".safetensors").split("_")[1:]
    target, head = ref.reference_target(), ref.reference_head(head_name)
    prompt = expected["prompt_ids"].tolist()
    assert prompt == ref.prompts()[prompt_id]["ids"]
    with safe_open(ref.recording(name), "pt") as file:
        shape = ref.shape_of({key: int(value) for key, value in file.metadata().items()})
    target_passes, head_passes = [], []
    forward = target.forward

    def watched(*args: Any, **options: Any) -> Any:
        target_passes.append(forward(*args, **options))
        return target_passes[-1]

    monkeypatch.setattr(target, "forward", watched)
    watch = head.register_forward_hook(lambda module, given, out: head_passes.append(out[0]))
    state, first = begun(target, head, loops.Request(prompt, shape=shape, max_new_tokens=32), shape)
    span = read_span(len(prompt) + 8, shape.slots)
    tree, accepted = cycle(target, head, state, shape, span, Sampling())
    keys, values = state.head_cache.kv[0, :, 0, : len(prompt)].transpose(1, 2).clone()
    cycle(target, head, state, shape, span, Sampling())
    watch.remove()

    def close(key: str, ours: Tensor) -> None:
        torch.testing.assert_close(ours, expected[key], rtol=0, atol=TOLERANCE, msg=lambda text: f"{key}: {text}")

    def close_head(key: str, hidden: Tensor) -> None:
        close(f"{key}.head_hidden", hidden)
        close(f"{key}.head_logits", head.lm_head(head.norm(hidden)))

    (prefill_hidden, prefill_taps), (tree_hidden, tree_taps) = target_passes[:2]
    close("prefill.final_hidden", prefill_hidden[0])
    close("prefill.taps", prefill_taps[0])
    close("prefill.target_logits", target.logits(prefill_hidden)[0])
    prefilled, caught_up, *drafted = head_passes
    close_head("prefill", torch.cat((prefilled, caught_up[:1])))
    close("prefill.head_key", keys)
    close("prefill.head_value", values)
    for level in range(shape.depth):
        close_head(f"expand{level}", drafted[level])
    assert first == int(expected["cycle0.draft_tokens"][0])
    for field in ("tokens", "parents", "depths"):
        recorded = {"tokens": "draft_tokens", "depths": "position_ids"}.get(field, field)
        assert torch.equal(getattr(tree, field)[0], expected[f"cycle0.{recorded}"]), field
    close("cycle0.tree_taps", tree_taps[0])
    close("cycle0.tree_logits", target.logits(tree_hidden)[0])
    outcome = ref.observed_outcome(accepted)
    assert outcome["accepted"] == expected["cycle0.accepted"].tolist()
    assert outcome["next_root"] == int(expected["cycle0.next_root"])
    close_head("cycle1", drafted[shape.depth][: int(accepted.count) + 1])


@pytest.mark.shared
@pytest.mark.skipif(not ref.HAS_WHOLE, reason=f"the whole recording is not in {ref.WHOLE}")
def test_committed_recordings_are_the_recorded_bytes() -> None:
    committed = sorted((ref.COMMITTED / "traces").iterdir())
    assert len(committed) >= 9
    for path in committed:
        assert path.read_bytes() == (ref.WHOLE / "traces" / path.name).read_bytes(), path.name
    for ours, theirs in (("target", "qwen3-target"), ("head", "qwen3-eagle3-dv208")):
        weights = ref.REPOSITORY / "data" / "pairs" / "tiny" / ours / "model.safetensors"
        assert weights.read_bytes() == (ref.WHOLE / theirs / "model.safetensors").read_bytes(), ours


def test_the_comparison_of_trees_bites() -> None:
    """A tree that differs in one token, one parent or one exchanged node is told apart; a fragile one as a set."""
    recorded = ref.read("trace_qwen3-eagle3-dv208_16_3_4.json")["runs"][0]["cycles"][0]
    head, prompt = ref.reference_head("qwen3-eagle3-dv208"), ref.prompts()["story"]["ids"]
    shape = TreeShape(16, 3, 4)
    _, tree, _ = ref.teacher_forced(head, prompt, recorded["root"], shape)
    assert ref.same_tree(tree, recorded)
    fragile = {**recorded, "gap_select": 1e-6}
    for field, value in (("draft_tokens", 511), ("parents", 0)):
        leaf = len(recorded["parents"]) - 1
        changed = {**recorded, field: [*recorded[field][:leaf], value]}
        assert not ref.same_tree(tree, changed)
        assert ref.same_tree(tree, {**fragile, field: changed[field]})
    assert not ref.same_tree(tree, {**fragile, "draft_tokens": [*recorded["draft_tokens"][:-2], 511, 510]})
