"""Stacks are measured one after another on the same weights and questions; what cannot be had is a row of its own."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_repro.api import Pair, generate
from eagle_repro.engine.devices import STACKS
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import Graph
from eagle_repro.experiments import published as published_records
from eagle_repro.experiments import stack
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.session import Session
from eagle_repro.experiments.stack import NAME, PLANS, Plan
from eagle_repro.experiments.stack_costs import Watching, stacks_of
from eagle_repro.experiments.watched import PHASES, watch
from eagle_repro.measure import stacks
from eagle_repro.measure.records import Record, RecordError
from eagle_repro.sources.pairs import PairShape
from tests.models import oracle, pair_of

TOY = PairShape("toy", hidden=32, layers=6, heads=4, kv_heads=2, mlp=64, tied=True, head_dim=8, vocabulary=256,
                draft_vocabulary=64)  # fmt: skip
TREE, PROMPTS = TreeShape(12, 3, 4), [[[1, 2, 3]], [[5, 6, 7]]]


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Protocol:
    monkeypatch.setitem(PLANS, "smoke", Plan(((12, 2, 4),), TOY, Watching(2, turns=2, context=132, tokens=6), tokens=6))
    monkeypatch.setattr(published_records, "PACKAGE", tmp_path / "eagle_repro")
    settings = {"sets": ("chat", "russian"), "out": str(tmp_path), "total_tokens": 16, "depth": 3, "top_k": 4}
    return build_protocol({}, {"profile": "smoke"}, settings)


@pytest.fixture
def two_stacks(monkeypatch: pytest.MonkeyPatch, trained: Pair) -> None:
    """A CPU with a second stack: recorded phases, done again."""
    monkeypatch.setattr(stack, "stacks_of", lambda device, **_: ["eager", "graph"])
    monkeypatch.setattr(stack, "open_pair", lambda asked: replace(trained, stack=asked.stack))
    made = stack.random_pair
    monkeypatch.setattr(stack, "random_pair", lambda *given, stack: replace(made(*given, stack="eager"), stack=stack))


def measured(protocol: Protocol, pair: Pair) -> Record:
    return stack.measure(Session(NAME, protocol, pair))


@pytest.mark.usefixtures("two_stacks")
def test_every_stack_is_timed_and_writes_the_same_texts(trained: Pair, protocol: Protocol) -> None:
    record = measured(protocol, trained)
    frame = record.frame()
    costs, texts = frame[frame["what"] == "cost"], frame[frame["what"] == "text"]
    assert stacks.names(record) == ["eager", "graph"]
    assert len(costs) == 2 * 2 * 3 * 2, "stacks, pairs, plain and two trees, turns"
    assert (costs[["cycle_s", "verify_s"]] > 0).all(axis=None) and (costs["cycles"] >= 2).all()
    made = costs.groupby(["stack", "turn"])["capture_s"]
    assert made.min()["graph", 0] > 0 and made.max()["eager"].eq(0).all()
    assert made.max()["graph", 1] == 0, "the largest tree came first, so that its buffers served all others"
    assert texts.groupby(["set", "question"])["ids_sha256"].nunique().eq(1).all()
    assert set(texts["tokens"]) == {6} and texts["same_as_plain"].all()
    split = stacks.overhead(record)
    assert set(split["stack"]) == {"graph"} and set(split["group"]) == {"chat", "russian", "all"}
    footer = record.footer or {}
    assert footer["bandwidth_gb_s"] > 0 and stacks.costs(record)["utilisation"].gt(0).all()


@pytest.mark.usefixtures("two_stacks")
def test_a_run_that_was_cut_off_goes_on_with_the_stack_it_stopped_at(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stack, "open_pair", broken)
        with pytest.raises(KeyboardInterrupt):
            measured(protocol, trained)
    path = Session(NAME, protocol, trained).path
    begun = [json.loads(line) for line in path.with_name(f"{path.name}.partial").read_text().splitlines()]
    record = measured(protocol, trained)
    assert record.rows[: len(begun) - 1] == begun[1:], "what was there stays as it was"
    assert {row["stack"] for row in begun[1:]} == {"eager"}


def test_a_shape_that_does_not_fit_is_a_row_that_says_why(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: Any, **__: Any) -> Pair:
        raise RuntimeError("toy needs 3 GB\nand more lines")

    monkeypatch.setattr(stack, "random_pair", too_large)
    record = measured(protocol, trained)
    (row,) = stacks.skipped(record).to_dict("records")
    assert row == {"pair": "toy", "stack": "eager", "reason": "toy needs 3 GB"}
    assert list(stacks.costs(record)["pair"].unique()) == ["tiny"] and stacks.overhead(record).empty


def test_the_picked_tree_is_that_of_this_pair_on_this_card(trained: Pair, protocol: Protocol, tmp_path: Path) -> None:
    session = Session(NAME, protocol, trained)
    assert stack.picked_tree(session) is None
    card = session.bench()["card"]
    for bench, number, folder in (("another card", 8, "a"), (card, 9, "b")):
        rows = [{"kind": "run", "key": "autopick/cost model", "total_tokens": number, "depth": 2, "top_k": 3}]
        header = {"kind": "header", "schema": 1, "name": "03_tree_shape", "hash": "0", "protocol": {}}
        header |= {"bench": {"card": bench, "pair": {"name": "tiny"}}}
        path = tmp_path / "results" / folder / "03_tree_shape.jsonl"
        path.parent.mkdir(parents=True)
        lines = [header, *rows, {"kind": "complete", "lines": 2}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert stack.picked_tree(session) == TreeShape(9, 2, 3)
    assert stack.trees_of(session)["picked"] == TreeShape(9, 2, 3)


def test_a_session_that_goes_on_keeps_the_tree_that_it_was_begun_with(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(NAME, protocol, trained)
    key = "chat/one/eagle/eager picked/0"

    def cut_off(writer: Any, *_: Any) -> None:
        writer.write(key, {"what": "text", "tree": "picked", "total_tokens": 9, "depth": 2, "top_k": 3})
        raise KeyboardInterrupt

    monkeypatch.setattr(stack, "write_compared", cut_off)
    with pytest.raises(KeyboardInterrupt):
        stack.measure(session)
    monkeypatch.setattr(stack, "published", lambda name: pytest.fail(f"{name} was asked for another one"))
    assert stack.picked_tree(session) == TreeShape(9, 2, 3)


def test_a_record_without_a_pick_or_a_pair_is_passed_over(trained: Pair, protocol: Protocol, tmp_path: Path) -> None:
    session = Session(NAME, protocol, trained)
    card = session.bench()["card"]
    for folder, bench in (("a", {"card": card, "pair": {"name": "tiny"}}), ("b", {"card": card, "pair": None})):
        header = {"kind": "header", "schema": 1, "name": "03_tree_shape", "hash": "0", "protocol": {}, "bench": bench}
        path = tmp_path / "results" / folder / "03_tree_shape.jsonl"
        path.parent.mkdir(parents=True)
        lines = [header, {"kind": "complete", "lines": 1}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert stack.picked_tree(session) is None


def test_a_pick_that_cannot_be_names_the_record_that_it_stands_in(
    trained: Pair, protocol: Protocol, tmp_path: Path
) -> None:
    session = Session(NAME, protocol, trained)
    bench = {"card": session.bench()["card"], "pair": {"name": "tiny"}}
    header = {"kind": "header", "schema": 1, "name": "03_tree_shape", "hash": "0", "protocol": {}, "bench": bench}
    pick = {"kind": "run", "key": "autopick/cost model", "total_tokens": 5000, "depth": 2, "top_k": 3}
    path = tmp_path / "results" / "a" / "03_tree_shape.jsonl"
    path.parent.mkdir(parents=True)
    lines = [header, pick, {"kind": "complete", "lines": 2}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(RecordError, match=r"03_tree_shape\.jsonl: the tree that its cost model picked cannot be: "):
        stack.picked_tree(session)


def test_one_stack_gives_way_to_a_published_record_of_several(
    trained: Pair, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = measured(protocol, trained)
    assert stack.compared(own) is own
    monkeypatch.setattr(stack.stacks, "names", lambda record: ["eager"] if record is own else ["eager", "graph"])
    other = tmp_path / "results" / "h200" / own.path.name
    other.parent.mkdir(parents=True)
    other.write_text(own.path.read_text().replace('"device": "cpu"', '"device": "cuda"', 1), encoding="utf-8")
    assert stack.compared(own).path == other


def test_a_published_record_that_timed_nothing_is_passed_over(
    trained: Pair, protocol: Protocol, tmp_path: Path
) -> None:
    own = measured(protocol, trained)
    other = tmp_path / "results" / "h200" / own.path.name
    other.parent.mkdir(parents=True)
    header = own.header | {"bench": own.header["bench"] | {"device": "cuda"}}
    lines = [header, {"kind": "complete", "lines": 1}]
    other.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert stack.compared(own) is own


def test_a_cpu_has_one_stack() -> None:
    assert stacks_of("cpu") == ["eager"]


def test_a_target_that_is_split_over_cards_is_measured_on_eager_alone(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stacks_of("cuda:0", split=True) == ["eager"]
    asked = []
    monkeypatch.setattr(stack, "stacks_of", lambda device, split: asked.append(split) or ["eager"])
    pair = replace(trained, target=copy(trained.target))
    pair.target.places = [torch.device("cpu"), *[torch.device("cpu", 0)] * (pair.target.layers - 1)]
    assert stacks.names(measured(protocol, pair)) == ["eager"] and asked == [True]


# Watching


@pytest.mark.parametrize("launcher", [None, Graph], ids=["eager", "graph"])
@pytest.mark.parametrize("shape", [None, TREE], ids=["plain", "tree"])
def test_phases_and_the_host_make_up_a_cycle(trained: Pair, shape: TreeShape | None, launcher: Any) -> None:
    pair = replace(trained)
    pair.launcher = launcher() if launcher else pair.launcher
    row, made = watch(pair, shape, PROMPTS, 8, 12)
    inside = sum(row[f"{phase}_s"] for phase in PHASES)
    assert 0 < inside < 2 * row["cycle_s"] and row["host_s"] >= 0
    assert row["cycle_low"] <= row["cycle_s"] <= row["cycle_high"] and row["cycles"] >= 12
    assert 3 <= row["context"] <= 11
    assert made["buffer_bytes"] > 0 and (made["capture_s"] > 0) == (launcher is not None)


def test_a_batch_is_watched_until_its_last_row_has_ended(trained: Pair) -> None:
    row, _ = watch(trained, TREE, [[[1, 2, 3], [4, 5, 6, 7]]], 8, 3)
    assert row["cycles"] >= 3


def test_texts_that_one_cycle_writes_are_refused_and_not_watched_for_ever(trained: Pair) -> None:
    story = [1, 2, 3] + generate(trained, [1, 2, 3], method="plain", max_new_tokens=30, stop="never").ids
    pair = pair_of(trained.target, oracle(story))
    with pytest.raises(ValueError, match="texts of 4 tokens end within a cycle of TreeShape.*: watch longer ones"):
        watch(pair, TREE, [[[1, 2, 3]]], 4, 3)
    assert watch(pair, TREE, [[[1, 2, 3]]], 12, 3)[0]["cycles"] >= 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [name for name in STACKS if name != "eager"])
def test_events_see_the_replays_and_the_host_adds_little(name: str) -> None:
    if name not in stacks_of("cuda:0"):
        pytest.skip(f"no {name} here")
    pair = stack.random_pair(TOY, "cuda:0", torch.float16, stack=name)
    row, made = watch(pair, TREE, [[list(range(1, 65))]], 64, 100)
    inside = sum(row[f"{phase}_s"] for phase in PHASES)
    assert 0.2 * row["cycle_s"] < inside < 2 * row["cycle_s"] and 0 < row["host_s"] < 1e-3
    assert made["capture_s"] > 0 and made["graph_bytes"] >= 0


def test_what_does_not_fit_is_refused_before_a_record_is_begun(trained: Pair, protocol: Protocol) -> None:
    session = Session(NAME, protocol, replace(trained, max_length=100))
    with pytest.raises(ValueError, match="do not fit max_length=100: raise it to"):
        stack.measure(session)
    assert not list(session.out.glob("*.jsonl*"))
