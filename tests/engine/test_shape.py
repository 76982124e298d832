"""Tree shapes: what is refused and how, and that the room a shape asks for is the room a cycle uses."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_repro.engine.attention import SlotCache
from eagle_repro.engine.generate import Request, run
from eagle_repro.engine.shape import BUCKET, TreeShape, node_capacity, read_span
from eagle_repro.engine.target import Target
from tests.engine.tiny import random_head, random_target


@pytest.mark.parametrize(
    ("depth", "top_k", "capacity"),
    [(7, 10, 711), (2, 10, 211), (1, 4, 21), (2, 4, 37), (0, 8, 9), (7, 1, 9), (0, 1, 2)],
)
def test_a_shape_may_ask_for_all_nodes_there_can_be_and_not_one_more(depth: int, top_k: int, capacity: int) -> None:
    assert node_capacity(depth, top_k) == capacity
    assert TreeShape(capacity, depth, top_k).capacity == capacity
    with pytest.raises(ValueError, match=rf"total_tokens={capacity + 1} is more than the {capacity} nodes"):
        TreeShape(capacity + 1, depth, top_k)


@pytest.mark.parametrize("total_tokens", [1, 0, -3])
def test_a_shape_without_a_drafted_token_is_refused(total_tokens: int) -> None:
    with pytest.raises(ValueError, match=rf"total_tokens={total_tokens} leaves nothing to draft"):
        TreeShape(total_tokens, 3, 4)


@pytest.mark.parametrize(("depth", "top_k"), [(-1, 4), (3, 0), (3, -2)])
def test_impossible_depth_and_width_are_refused_with_both(depth: int, top_k: int) -> None:
    with pytest.raises(ValueError, match=rf"got depth={depth}, top_k={top_k}"):
        TreeShape(4, depth, top_k)


@pytest.mark.parametrize("field", ["total_tokens", "depth", "top_k"])
@pytest.mark.parametrize("value", [4.0, "4", True, None])
def test_sizes_that_are_no_whole_numbers_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"TreeShape.{field} must be a whole number"):
        TreeShape(**{field: value})


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_a_chain_is_the_largest_tree_of_width_one(depth: int) -> None:
    chain = TreeShape.chain(depth)
    assert chain == TreeShape(chain.capacity, depth, 1)
    assert chain.total_tokens - 1 == chain.levels == depth + 1


def test_a_sweeps_point_is_clipped_to_its_capacity_and_marked() -> None:
    assert TreeShape.clipped(60, 0, 10) == (TreeShape(11, 0, 10), True)
    assert TreeShape.clipped(60, 2, 10) == (TreeShape(60, 2, 10), False)


def test_the_default_is_the_official_one() -> None:
    assert TreeShape() == TreeShape(total_tokens=60, depth=7, top_k=10)


class Unused(Target):
    """A target that must not be run."""

    def forward(self, *args: Any, **options: Any) -> Any:
        raise AssertionError("a forward pass before the refusal")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": TreeShape(60, 2, 33)}, "top_k=33 is more than the head's draft vocabulary of 32"),
        ({"max_new_tokens": -1}, "max_new_tokens .* at least 1, got -1"),
        ({"max_new_tokens": 0}, "max_new_tokens .* at least 1, got 0"),
        ({"shape": None}, "needs a head and a shape"),
    ],
)
def test_a_request_that_cannot_be_drafted_is_refused_before_any_pass(options: dict[str, Any], message: str) -> None:
    target = random_target()
    with pytest.raises(ValueError, match=message):
        run(Unused(target.model), random_head(target, 32), Request(**{"prompt": [1], "shape": TreeShape(), **options}))


def test_as_many_children_as_the_draft_vocabulary_has_tokens_are_fine() -> None:
    target = random_target()
    shape = TreeShape(60, 2, 32)
    plain = run(target, None, Request([1, 2], method="plain", max_new_tokens=12, stop="never"))
    eagle = run(target, random_head(target, 32), Request([1, 2], shape=shape, max_new_tokens=12, stop="never"))
    assert eagle.ids == plain.ids and {cycle.nodes for cycle in eagle.cycles} == {60}


@pytest.mark.parametrize("vocabulary", [4, 64])
def test_depth_0_drafts_one_level(vocabulary: int) -> None:
    target, shape = random_target(vocabulary=vocabulary), TreeShape(4, 0, 3)
    plain = run(target, None, Request([1, 2], method="plain", max_new_tokens=30, stop="never"))
    request = Request([1, 2], shape=shape, max_new_tokens=30, stop="never", record_trees=True)
    eagle = run(target, random_head(target), request)
    assert eagle.ids == plain.ids
    assert all(cycle.tree is not None and cycle.tree.depths.tolist() == [[0, 1, 1, 1]] for cycle in eagle.cycles)
    assert max(cycle.accepted for cycle in eagle.cycles) == 1


# --- room ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.integers(1, 600))
@settings(deadline=None)
def test_a_pass_reads_whole_buckets_that_hold_what_it_needs(longest: int, slots: int) -> None:
    span = read_span(longest, slots)
    assert span % 64 == 0 and longest + slots <= span < longest + slots + 64


SHAPES = [(2, 7, 10), (2, 0, 1), (5, 1, 4), (60, 7, 10), (60, 2, 10), (9, 7, 1), (100, 2, 10), (12, 11, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("length", [1, 50, 63, 64, 65])
def test_no_pass_touches_a_slot_outside_its_span_or_its_cache(
    shape: tuple[int, int, int], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots beyond the cache would be clamped and overwrite each other in silence; the lengths are around a bucket."""
    target, touched = random_target(vocabulary=16), []

    def watched(cache: SlotCache, slots: Tensor, span: int, at: Any = SlotCache.at) -> SlotCache:
        touched.append((int(slots.max()), span, cache.kv.shape[3]))
        return at(cache, slots, span)

    monkeypatch.setattr(SlotCache, "at", watched)
    prompt = [random.Random(length).randrange(16) for _ in range(length)]
    request = Request(prompt, shape=TreeShape(*shape), max_new_tokens=12, max_length=length + 12, stop="never")
    out = run(target, random_head(target), request)
    assert len(out.ids) == 12
    assert len(touched) > 2 * len(out.cycles)
    assert all(last < span <= slots for last, span, slots in touched)


@given(st.integers(0, 12), st.integers(1, 12), st.data())
@settings(deadline=None)
def test_slots_hold_a_verified_tree_all_drafted_levels_and_the_padded_features(
    depth: int, top_k: int, data: st.DataObject
) -> None:
    total = data.draw(st.integers(2, node_capacity(depth, top_k)))
    shape = TreeShape(total, depth, top_k)
    assert shape.slots >= max(total, depth * top_k, shape.levels + 1)


def test_a_cache_clamps_what_lies_outside_instead_of_failing() -> None:
    cache = SlotCache(1, 1, 4, 1, 2, torch.float32, "cpu")
    assert cache.at(torch.tensor([[2, 3, 9]]), 4).slots.tolist() == [[2, 3, 3]]


@given(
    length=st.integers(0, 5000),
    depth=st.integers(0, 10),
    top_k=st.integers(1, 160),
    nodes=st.integers(2, 700),
    more=st.integers(0, 300),
)
def test_a_pass_reads_its_tree_whole_and_little_beyond(
    length: int, depth: int, top_k: int, nodes: int, more: int
) -> None:
    shape, _ = TreeShape.clipped(max(2, nodes), depth, top_k)
    span = read_span(length, shape.slots + more)  # more: where one span serves a whole text
    read = shape.pass_span(span)
    assert length + shape.total_tokens <= read <= span
    assert read % BUCKET == 0
    assert read <= length + shape.total_tokens + more + 2 * BUCKET


def test_a_pass_reads_no_less_where_the_span_is_no_multiple_of_a_bucket() -> None:
    shape = TreeShape(12, 3, 4)
    assert shape.pass_span(40) == 40
