"""Recordings replay what decoding really does, every shape is measured once, and a run that was cut off goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle_repro.api import Pair, generate
from eagle_repro.engine.shape import TreeShape, node_capacity
from eagle_repro.experiments import cycle_costs, shape_points, tree_shape
from eagle_repro.experiments.cycle_costs import cost_rows
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.recordings import along, look_ahead
from eagle_repro.experiments.rows import Item
from eagle_repro.experiments.session import Session
from eagle_repro.experiments.shape_points import POINTS, Points, cost_shapes, grid, measured_points, sweep_points
from eagle_repro.experiments.tune import tune
from eagle_repro.measure.curves import Curves, Line, Prediction, Shape
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.measure.replay import replay
from eagle_repro.measure.tree_shape import adaptive, comparison
from tests.models import oracle, pair_of, uneven, wrong

DEPTH, NEW_TOKENS = 4, 24
SHAPES = [(4, 0, 4), (7, 1, 2), (6, 4, 1), (3, 4, 1), (9, 2, 3), (30, 4, 3), (16, 3, 4), (40, 4, 6), (12, 2, 10)]
SMALL = Points(
    depths=(1, 2), nodes=(4, 200), widths=(1, 3), cost_depths=(0, 2), cost_nodes=(2, 20), cost_widths=(1, 3),
    cycles=2, rounds=1, reference_passes=1, every=True,
)  # fmt: skip


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Protocol:
    """A study of two sets and few trees around (20, 2, 3)."""
    monkeypatch.setitem(POINTS, "smoke", SMALL)
    monkeypatch.setattr(shape_points, "ARTICLE", (Shape(8, 2, 3),))
    settings = {"sets": ["chat", "russian"], "total_tokens": 20, "depth": 2, "top_k": 3, "new_tokens": 12}
    return build_protocol({}, {"profile": "smoke"}, {"out": str(tmp_path)} | settings)


def texts(pair: Pair, prompts: list[list[int]]) -> list[tuple[list[int], list[int]]]:
    tokens = NEW_TOKENS + look_ahead(DEPTH)
    return [(p, generate(pair, p, method="plain", max_new_tokens=tokens, stop="never").ids) for p in prompts]


def accepted(pair: Pair, prompt: list[int], shape: TreeShape) -> list[int]:
    return [
        cycle.accepted for cycle in generate(pair, prompt, shape=shape, max_new_tokens=NEW_TOKENS, stop="never").cycles
    ]


# Recordings


@pytest.mark.parametrize("which", ["trained", "pair"])
def test_replay_is_what_decoding_accepts_cycle_by_cycle(which: str, request: pytest.FixtureRequest) -> None:
    pair: Pair = request.getfixturevalue(which)
    vocabulary, seen = pair.target.vocabulary, set()
    for prompt, ids in texts(pair, [[(start + 37 * n) % (vocabulary - 1) for n in range(9)] for start in (3, 77)]):
        for total_tokens, depth, top_k in SHAPES:
            recording = along(pair, prompt, ids, DEPTH, top_k, NEW_TOKENS)
            assert len(recording.ranks) == NEW_TOKENS - 1
            found = replay(recording, total_tokens, depth, NEW_TOKENS)
            assert found == accepted(pair, prompt, TreeShape(total_tokens, depth, top_k)), (total_tokens, depth, top_k)
            seen.update(found)
    assert which == "pair" or len(seen) > 3  # a random head accepts next to nothing, a trained one paths of all lengths


@pytest.mark.parametrize("stub", [oracle, uneven, wrong])
def test_replay_knows_stub_drafters(target: Any, stub: Callable[[list[int]], Any]) -> None:
    prompt = [5, 9, 2, 400]
    plain = pair_of(target, None)
    [(_, ids)] = texts(plain, [prompt])
    longer = generate(plain, prompt, method="plain", max_new_tokens=len(ids) + DEPTH + 4, stop="never").ids
    pair = pair_of(target, stub(prompt + longer))
    for total_tokens, depth, top_k in SHAPES:
        recording = along(pair, prompt, ids, DEPTH, top_k, NEW_TOKENS)
        found = replay(recording, total_tokens, depth, NEW_TOKENS)
        assert found == accepted(pair, prompt, TreeShape(total_tokens, depth, top_k)), (total_tokens, depth, top_k)
        if stub is wrong:
            assert set(found) == {0}


def test_a_recording_of_another_text_is_noticed(trained: Pair) -> None:
    [(prompt, ids)] = texts(trained, [[322, 27, 302, 347, 363]])
    shifted = along(trained, prompt, ids[1:] + ids[:1], DEPTH, 4, NEW_TOKENS)
    assert replay(shifted, 16, 3, NEW_TOKENS) != accepted(trained, prompt, TreeShape(16, 3, 4))


# Points


def test_points_beyond_capacity_are_cut_and_marked() -> None:
    protocol = build_protocol({"pair": "tiny"}, {"profile": "full", "sets": ["chat"]}, {})
    points = list(sweep_points(protocol))
    cut = {(row["sweep"], row["asked"]): row["total_tokens"] for row in points if row["clipped"]}
    assert cut == {("top_k", 1): 9, ("top_k", 2): 31}
    for row in points:
        assert row["total_tokens"] <= node_capacity(row["depth"], row["top_k"])
    of = {name: [row["asked"] for row in points if row["sweep"] == name] for name in ("depth", "nodes", "top_k")}
    assert of["depth"] == list(range(2, 11))
    assert (of["nodes"][0], of["nodes"][-1]) == (8, 512) and (of["top_k"][0], of["top_k"][-1]) == (1, 16)
    # Every sweep goes through the default tree.
    assert sum((row["total_tokens"], row["depth"], row["top_k"]) == (60, 7, 10) for row in points) == 3


@pytest.mark.parametrize("profile", POINTS)
def test_the_curves_reach_every_point_and_the_grid(profile: str) -> None:
    protocol = build_protocol({"pair": "tiny"}, {"profile": profile, "sets": ["chat"]}, {})
    shapes = cost_shapes(protocol, 8192)
    nodes = sorted({shape.total_tokens for shape in shapes})
    line = Line("any", tuple(nodes), (1.0,) * len(nodes))
    drafts = {}
    for top_k in {shape.top_k for shape in shapes}:
        depths = sorted({shape.depth for shape in shapes if shape.top_k == top_k})
        drafts[top_k] = Line("any", tuple(depths), (1.0,) * len(depths))
    curves = Curves(1.0, line, line, drafts)
    wanted = [Shape(row["total_tokens"], row["depth"], row["top_k"]) for row in sweep_points(protocol)]
    assert all(curves.covers(shape) for shape in [*wanted, *grid(protocol), *shape_points.ARTICLE])
    assert all(TreeShape(*shape) for shape in grid(protocol))
    assert profile != "quick" or nodes[-1] <= 128
    narrow = cost_shapes(protocol, 20)  # a head with few tokens is not asked for more
    assert max(shape.top_k for shape in narrow) <= 20


def test_a_shape_is_measured_once_and_stands_for_its_sweep() -> None:
    protocol = build_protocol({"pair": "tiny"}, {"profile": "full", "sets": ["chat"]}, {})
    ranking = [Prediction(Shape(*sizes), 2.0, 1.5, 0.1) for sizes in ((24, 3, 4), (60, 7, 10), (20, 3, 4), (16, 3, 4))]
    points = [*sweep_points(protocol), *shape_points.pick_points(protocol, 60, ranking)]
    everything = measured_points(points, every=True)
    sizes = {(row["total_tokens"], row["depth"], row["top_k"]) for row in points}
    assert {(s.total_tokens, s.depth, s.top_k) for s in everything} == sizes
    # The default tree is the reference's pick here and in all sweeps: the depth sweep counts it.
    assert everything[TreeShape(60, 7, 10)]["sweep"] == "depth"
    assert everything[TreeShape(24, 3, 4)]["rule"] == "cost model"
    few = measured_points(points, every=False)
    assert list(few) == [TreeShape(60, 7, 10), TreeShape(24, 3, 4), TreeShape(60, 2, 10), TreeShape.chain(7)]


# Costs


def test_costs_are_those_of_the_instrumented_cycles(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item("chat", str(n), [322, 27, 302, 347, 363 - n]) for n in range(3)]
    done = []
    whole = cycle_costs.write_text

    def noted(*args: Any, **options: Any) -> Any:
        done.append(whole(*args, **options))
        return done[-1]

    monkeypatch.setattr(cycle_costs, "write_text", noted)
    shape = TreeShape(9, 1, 3)
    rows = dict(cost_rows(trained, items, [shape], cycles=5, rounds=1))
    assert list(rows) == ["cost/plain/1/0", "cost/verify/9-1-3/0", "cost/draft/9-1-3/0", "cost/rest/9-1-3/0"]
    texts = [text for text in done if text.cycles[0].verify_s is not None][1:]  # the first one warmed up
    cycles = [cycle for text in texts for cycle in text.cycles]
    assert len(cycles) == rows["cost/draft/9-1-3/0"]["cycles"] >= 5
    phases = {phase: rows[f"cost/{phase}/9-1-3/0"]["seconds"] * len(cycles) for phase in ("verify", "draft", "rest")}
    assert phases["verify"] == pytest.approx(sum(cycle.verify_s for cycle in cycles))
    assert phases["draft"] == pytest.approx(sum(cycle.draft_s for cycle in cycles))
    assert sum(phases.values()) == pytest.approx(sum(text.decode_s for text in texts))
    assert (rows["cost/plain/1/0"]["cycles"], rows["cost/plain/1/0"]["nodes"]) == (5, 1)
    assert rows["cost/draft/9-1-3/0"]["nodes"] is None and rows["cost/verify/9-1-3/0"]["top_k"] is None


def test_where_a_cycle_is_launched_whole_the_phases_add_up_to_whole_cycles(
    trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Any = cycle_costs.write_text
    seconds: list[float] = []

    def slow_apart(*args: Any, instrument: bool = False, **options: Any) -> Any:
        text = whole(*args, instrument=instrument, **options)
        if not instrument:
            seconds.append(text.decode_s / len(text.cycles))
            return text
        # A clock between phases makes each of them twice as long.
        twice = [replace(each, draft_s=2 * each.draft_s, verify_s=2 * each.verify_s) for each in text.cycles]
        return replace(text, cycles=twice, decode_s=2 * text.decode_s)

    monkeypatch.setattr(cycle_costs, "write_text", slow_apart)
    pair, items = replace(trained, stack="graph"), [Item("chat", "0", [322, 27, 302])]
    rows = dict(cost_rows(pair, items, [TreeShape(9, 1, 3)], cycles=3, rounds=1))
    parts = [rows[f"cost/{phase}/9-1-3/0"]["seconds"] for phase in ("draft", "verify", "rest")]
    assert min(parts) > 0 and sum(parts) == pytest.approx(seconds[-1])


def test_the_order_of_cost_shapes_is_reversed_from_turn_to_turn(trained: Pair) -> None:
    items = [Item("chat", "0", [322, 27, 302])]
    shapes = [TreeShape(3, 0, 2), TreeShape(5, 1, 2)]
    keys = [key for key, row in cost_rows(trained, items, shapes, cycles=2, rounds=2) if row["phase"] != "rest"]
    assert [key.split("/")[2] for key in keys if "draft" not in key] == ["1", "3-0-2", "5-1-2", "5-1-2", "3-0-2", "1"]


def test_a_stack_that_hides_its_phases_is_refused(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cycle_costs.write_text

    def hidden(*args: Any, **options: Any) -> Any:
        text = whole(*args, **options)
        return replace(text, cycles=[replace(cycle, draft_s=None) for cycle in text.cycles])

    monkeypatch.setattr(cycle_costs, "write_text", hidden)
    with pytest.raises(RuntimeError, match="cannot time the phases"):
        list(cost_rows(trained, [Item("chat", "0", [322, 27])], [TreeShape(3, 0, 2)], cycles=1, rounds=1))


# The whole


def keys_of(record: Record) -> list[str]:
    return [row["key"] for row in record.rows if row["kind"] == "run"]


def test_a_study_that_was_cut_off_goes_on(
    trained: Pair, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tree_shape.measure(Session("03_tree_shape", replace(protocol, out=str(tmp_path / "whole")), trained))
    session, written = Session("03_tree_shape", protocol, trained), []
    write = RecordWriter.write

    def dying(self: Any, key: str, *rest: Any) -> None:
        write(self, key, *rest)
        written.append(key)
        if len(written) in (3, 12, 26, 45):
            raise KeyboardInterrupt

    monkeypatch.setattr(RecordWriter, "write", dying)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            tree_shape.measure(session)
    record = tree_shape.measure(session)
    assert record.complete and len(written) == len(set(written))
    assert sorted(key for key in written if "/eagle/" not in key) == sorted(
        key for key in keys_of(whole) if "/eagle/" not in key
    )
    assert keys_of(record) == written
    # Done once, it is not done again: a second call finds the file and writes nothing but a fresh record.
    parts = {key.split("/")[0] for key in written}
    assert parts == {"recording", "cost", "autopick", "point", "chat", "russian"}


def test_measured_trees_do_equal_work_and_replay_exactly(trained: Pair, protocol: Protocol) -> None:
    record = tree_shape.measure(Session("03_tree_shape", protocol, trained))
    rows = [row for row in record.rows if row.get("what") == "shape"]
    assert {row["tokens"] for row in rows} == {12} and all(row["same_as_plain"] for row in rows)
    assert {row["sweep"] for row in rows} >= {"plain", "depth", "nodes", "top_k", "adaptive"}
    clipped = {(row["total_tokens"], row["depth"], row["top_k"]) for row in rows if row["clipped"]}
    assert clipped == {(13, 1, 3), (22, 2, 3), (4, 2, 1)}
    # Turns: the order is reversed from the first set to the second.
    order = [(row["method"], row["variant"]) for row in sorted(rows, key=lambda row: row["order"])]
    assert order[: len(order) // 2] == order[: len(order) // 2 - 1 : -1] and order[0] == ("plain", "-")
    frame = comparison(record)
    assert len(frame) == len([row for row in rows if row["method"] == "eagle"]) and frame["exact"].all()
    assert (frame["tau"] == frame["tau_replayed"]).all()
    ours = [row for row in rows if row["method"] == "adaptive"]
    assert [row["set"] for row in ours] == ["chat", "russian"] and not any(row["depth"] for row in ours)
    assert all(sum(row["accepted"]) + len(row["accepted"]) >= 11 for row in ours), "as many as were written, or more"
    assert list(adaptive(record)["set"]) == ["chat", "russian"]


def test_no_room_for_the_look_ahead_is_said_before_any_run(trained: Pair, protocol: Protocol) -> None:
    tight = replace(trained, max_length=60)
    with pytest.raises(ValueError, match=r"with new_tokens=15 do not fit max_length=60"):
        tree_shape.read_prompts(protocol, tight)


def test_tuning_ranks_the_grid_without_a_record(trained: Pair, protocol: Protocol, tmp_path: Path) -> None:
    found = tune(trained, protocol)
    assert {each.shape for each in found.ranking} == set(grid(protocol))
    gains = [each.speedup for each in found.ranking]
    assert gains == sorted(gains, reverse=True)
    assert list(tmp_path.iterdir()) == []
