"""Compiled functions give what they give uncompiled, are compiled once for all lengths, and only where one asks."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from eagle_repro.engine import compiled
from eagle_repro.engine.compiled import Compilable, compilable, compiling
from eagle_repro.engine.cycle import best_children, next_frontier
from eagle_repro.engine.devices import resolve_stack
from eagle_repro.engine.generate import Request, run
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import Compiled, make_stack
from eagle_repro.engine.target import Target
from tests.engine.tiny import random_head, random_target

CARD, VOCABULARY = torch.device("cuda:0"), 2048  # large enough to be searched by parts
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def pair_on(device: str, architecture: str = "qwen3") -> tuple[Target, Eagle3Head]:
    """A fused random pair."""
    target = random_target(architecture, VOCABULARY)
    head = random_head(target, VOCABULARY // 2)
    there = Target(deepcopy(target.model).to(device), fused=True)
    on = Eagle3Head(head.config, there.embedding).to(device)
    on.load_state_dict(head.state_dict())
    return there, on.eval().requires_grad_(False).use_fused()


def compiled_forms() -> int:
    return int(counters["stats"]["unique_graphs"])


@torch.inference_mode()
def test_a_function_is_compiled_for_one_token_and_for_several_and_then_no_more() -> None:
    def doubled(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return (x + row) * 2

    marked = Compilable(doubled, {"x": (0, 1)})
    row = torch.arange(8.0)
    marked(torch.ones(1, 3, 8), row)
    before = compiled_forms()
    with compiling():
        for count in (5, 1, 7, 30, 1):
            x = torch.randn(1, count, 8)
            assert torch.equal(marked(x, row), doubled(x, row))
            # What is cut out of a longer tensor has other strides along an axis of size 1.
            assert torch.equal(marked(torch.randn(1, 40, 8)[:, :count] * 0 + x, row), doubled(x, row))
            assert torch.equal(marked(x.expand(2, -1, -1).contiguous()[1:], row), doubled(x, row))
    assert compiled_forms() - before == 2


def test_outside_the_block_nothing_is_compiled() -> None:
    @compilable(x=(0,))
    def form(x: torch.Tensor) -> bool:
        return torch.compiler.is_compiling()

    with compiling():
        pass
    assert form(torch.ones(3)) is False and "form" not in vars(form)


def test_code_that_cannot_be_made_is_one_line_that_names_another_stack() -> None:
    @torch.compiler.disable
    def apart(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @compilable(x=(0,))
    def odd(x: torch.Tensor) -> torch.Tensor:
        return apart(x)  # would cut the code in two

    assert odd(torch.ones(3)).tolist() == [2.0] * 3
    with (
        compiling(),
        pytest.raises(RuntimeError, match=r'cannot make code of odd here \(.*\): use stack="graph"$') as told,
    ):
        odd(torch.ones(3))
    assert "\n" not in str(told.value)


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize(("batch", "count"), [(1, 1), (1, 5), (3, 1), (2, 5)])
@pytest.mark.parametrize("architecture", ["qwen3", "qwen2"])
def test_compiled_layers_give_what_plain_ones_give(architecture: str, batch: int, count: int) -> None:
    target, _ = pair_on("cpu", architecture)
    assert target.fused is not None
    layer, span = target.fused.layers[1], 64
    torch.manual_seed(0)
    x = torch.randn(batch * count, 32)
    positions = torch.arange(9, 9 + count) + 7 * torch.arange(batch).unsqueeze(1)
    mask = (torch.rand(batch, 1, count, span) > 0.5) * torch.finfo(torch.float32).min

    def passed() -> list[torch.Tensor]:
        assert target.fused is not None
        cache = target.cache(batch, 128).at(positions, span)
        tables = list(zip(range(2), target.fused._tables(positions), strict=False))[1][1]
        query = layer.enter(x.clone(), layer.input_norm, tables, positions, cache, 1)
        return [query, layer.leave(x.clone(), layer.attend(query, layer.folded(mask), cache, 1)), cache.kv]

    expected = passed()
    with compiling():
        found = passed()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@torch.inference_mode()
def test_compiled_drafting_keeps_the_order_of_equal_scores() -> None:
    _, head = pair_on("cpu")
    torch.manual_seed(0)
    hidden = torch.randn(1, 4, 32)
    tokens, scores = torch.arange(16).view(1, 16), torch.randint(-3, 0, (1, 16)).float()
    seen = torch.randn(1, 4, 64)
    plain = [*best_children(head, hidden, 4), *next_frontier(tokens, scores, hidden, seen)]
    with compiling():
        found = [*best_children(head, hidden, 4), *next_frontier(tokens, scores, hidden, seen)]
    for ours, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert len(scores.unique()) < 16, "without equal scores there is no order to keep"


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]
)
def test_the_compiled_stack_writes_what_eager_writes_and_compiles_for_all_lengths_at_once(device: str) -> None:
    target, head = pair_on(device)
    plain = Target(deepcopy(target.model)), deepcopy(head)
    plain[1].fused = None
    stack = make_stack("compiled")
    options: dict[str, Any] = {"max_new_tokens": 5, "stop": "never"}
    asked = [Request([1, 2, 3], shape=TreeShape(12, 3, 4), **options), Request([4, 5], method="plain", **options)]
    asked += [
        Request([9] * 80, shape=TreeShape(12, 3, 4), **options),
        Request([7], shape=TreeShape(9, 2, 4), **options),
    ]
    counts = []
    for request in asked:
        out, expected = run(target, head, request, stack=stack), run(*plain, request)
        assert out.ids == expected.ids
        assert [cycle.accepted for cycle in out.cycles] == [cycle.accepted for cycle in expected.cycles]
        counts.append(compiled_forms())
    assert counts[-1] == counts[1], "a longer text and a smaller tree need nothing compiled"
    assert isinstance(stack, Compiled) and 0 < stack.compile_s <= stack.capture_s


# Which cards have it


def lacking(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0), reason: str | None = None) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr("eagle_repro.engine.devices.missing", lambda: reason)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_a_card_that_compiles_has_the_stack_but_is_not_given_it_unasked(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking(monkeypatch, capability)
    assert resolve_stack("compiled", CARD) == "compiled" and resolve_stack("auto", CARD) == "graph"


@pytest.mark.parametrize("capability", [(6, 0), (7, 5)])
def test_an_older_card_is_refused(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch, capability)
    with pytest.raises(
        ValueError, match=rf'capability 8.0, and cuda:0 has {capability[0]}.{capability[1]}: use "graph"'
    ):
        resolve_stack("compiled", CARD)


def test_what_compiling_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lacking(monkeypatch, reason="a C compiler (gcc)")
    with pytest.raises(ValueError, match='stack="compiled" needs a C compiler .*use "graph"'):
        resolve_stack("compiled", CARD)
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert "C compiler" in (compiled.missing() or "")
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: None)
    assert "Triton" in (compiled.missing() or "")


def test_a_cpu_and_a_split_target_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch)
    with pytest.raises(ValueError, match='"compiled" needs a CUDA device, and the device is cpu: use "eager"'):
        resolve_stack("compiled", torch.device("cpu"))
    with pytest.raises(ValueError, match='"compiled" cannot hold a target that is split'):
        resolve_stack("compiled", CARD, split=True)
