"""Trained pairs and timing-only shapes: one at a time, what does not fit is a row that says why, nothing twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle_repro.api import Pair
from eagle_repro.engine.request import NonFiniteLogits
from eagle_repro.experiments import published as published_records
from eagle_repro.experiments import target_size
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.session import Session
from eagle_repro.experiments.target_size import NAME, PLANS, Plan
from eagle_repro.measure import sizes
from eagle_repro.measure.records import Record, RecordWriter, read_record
from eagle_repro.sources.pairs import SHAPES, PairShape
from tests.present.comparison_rows import timing_rows

TOYS = [
    PairShape(f"toy-{layers}", hidden=32, layers=layers, heads=4, kv_heads=2, mlp=64, tied=True, head_dim=8,
              vocabulary=256, draft_vocabulary=64)
    for layers in (6, 8)
]  # fmt: skip
PHASES = {"plain", "verify", "draft", "rest", "cycle"}


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Protocol:
    monkeypatch.setitem(PLANS, "smoke", Plan(TOYS, ((12, 2, 4), (6, 1, 3)), cycles=2, context=4))
    settings = {"sets": ("chat", "russian"), "new_tokens": 6, "repeats": 2, "out": str(tmp_path)}
    return build_protocol({}, {"profile": "smoke"}, settings)


def measured(protocol: Protocol, pair: Pair) -> Record:
    return target_size.measure(Session(NAME, protocol, pair))


def rows_of(record: Record, what: str) -> list[dict[str, Any]]:
    return [row for row in record.rows if row.get("what") == what]


def test_every_phase_of_every_shape_tree_and_repeat_is_timed_once(trained: Pair, protocol: Protocol) -> None:
    record = measured(protocol, trained)
    rows = rows_of(record, "timing")
    assert len(rows) == len(TOYS) * 2 * protocol.repeats * len(PHASES)
    assert {row["phase"] for row in rows} == PHASES
    assert {(row["nodes"], row["depth"], row["top_k"]) for row in rows if row["phase"] == "cycle"} == {
        (12, 2, 4),
        (6, 1, 3),
    }
    assert all(row["seconds"] > 0 or row["phase"] == "rest" for row in rows)
    assert {row["nodes"] for row in rows if row["phase"] == "plain"} == {1}
    frame = sizes.timing(record)
    assert list(frame["shape"]) == ["toy-6", "toy-6", "toy-8", "toy-8"]
    assert list(frame["target_parameters"].unique()) == [shape.target_parameters for shape in TOYS]
    assert list(frame["head_parameters"].unique()) == [TOYS[0].head_parameters]


def test_a_pair_alone_is_written_on_one_question_a_set(trained: Pair, protocol: Protocol) -> None:
    record = measured(replace(protocol, questions=2), trained)
    (pair,) = rows_of(record, "pair")
    assert pair["head_share"] == pytest.approx(pair["head_parameters"] / pair["target_parameters"])
    texts = rows_of(record, "text")
    assert [row["key"] for row in texts if row["set"] == "chat"] == [
        "chat/chat-00/plain/tiny/0",
        "chat/chat-00/eagle/tiny/0",
    ]
    assert {row["pair"] for row in texts} == {"tiny"} and all(row["same_as_plain"] for row in texts)


def test_the_larger_sibling_answers_the_same_questions(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_size, "LARGER", {"tiny": "qwen3-1.7b"})
    monkeypatch.setattr(target_size, "open_pair", lambda asked: replace(trained, name=asked.pair))
    record = measured(protocol, trained)
    texts = rows_of(record, "text")
    places = {name: [(r["set"], r["question"], r["method"]) for r in texts if r["pair"] == name]
              for name in ("tiny", "qwen3-1.7b")}  # fmt: skip
    assert sorted(places["tiny"]) == sorted(places["qwen3-1.7b"]) and len(texts) == 2 * 2 * 2
    frame = sizes.by_group(record)
    assert frame["tau_gain"].abs().max() == 0  # one pair under two names


def test_what_cannot_be_had_is_a_row_and_not_the_end(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(asked: Protocol) -> Pair:
        raise FileNotFoundError(f"{asked.pair} is nowhere\nand more lines")

    def one_fits(shape: PairShape, *rest: Any, **named: Any) -> Pair:
        if shape is TOYS[1]:
            raise RuntimeError("toy-8 needs 1 GB")
        return made(shape, *rest, **named)

    made = target_size.random_pair
    monkeypatch.setattr(target_size, "LARGER", {"tiny": "qwen3-1.7b"})
    monkeypatch.setattr(target_size, "open_pair", no_network)
    monkeypatch.setattr(target_size, "random_pair", one_fits)
    record = measured(protocol, trained)
    assert sizes.skipped(record).to_dict("records") == [
        {"pair": "qwen3-1.7b", "reason": "qwen3-1.7b is nowhere"},
        {"pair": "toy-8", "reason": "toy-8 needs 1 GB"},
    ]
    assert record.complete and sizes.timed_shapes(record) == {"toy-6"}


def test_logits_that_are_not_finite_end_a_pair_or_shape_and_not_the_run(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflows(*arguments: Any) -> Any:
        raise NonFiniteLogits("not finite")

    whole = target_size._write_pair
    monkeypatch.setattr(target_size, "LARGER", {"tiny": "qwen3-1.7b"})
    monkeypatch.setattr(target_size, "open_pair", lambda asked: replace(trained, name=asked.pair))
    monkeypatch.setattr(
        target_size,
        "_write_pair",
        lambda writer, pair, *rest: (whole if pair is trained else overflows)(writer, pair, *rest),
    )
    monkeypatch.setattr(target_size, "_time_tree", overflows)
    record = measured(protocol, trained)
    assert list(sizes.skipped(record)["pair"]) == ["qwen3-1.7b", "toy-6", "toy-8"] and record.complete


def test_one_shape_is_gone_before_the_next_is_made(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gc
    import weakref

    made, alive = target_size.random_pair, []

    def watched(shape: PairShape, *rest: Any, **named: Any) -> Pair:
        gc.collect()
        assert not any(each() is not None for each in alive), "the one before is still in memory"
        pair = made(shape, *rest, **named)
        alive.append(weakref.ref(pair.target.model))
        return pair

    monkeypatch.setattr(target_size, "random_pair", watched)
    measured(protocol, trained)
    assert len(alive) == len(TOYS)


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = target_size._time_tree, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        yield from whole(*arguments)

    monkeypatch.setattr(target_size, "_time_tree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(protocol, trained)
    record = measured(protocol, trained)
    assert len(calls) == 3 + 2 + 4  # two of the first shape are left, and all four of the second
    keys = [row["key"] for row in record.rows]
    assert record.complete and len(keys) == len(set(keys))


# Records of another machine


def published(folder: Path, shapes: int) -> Record:
    with RecordWriter(folder / f"{NAME}.jsonl", bench={"card": f"card {shapes}"}, protocol={}) as writer:
        for row in timing_rows(shapes, repeats=1):
            writer.write(row["key"], {name: value for name, value in row.items() if name != "key"})
        return read_record(writer.complete())


def test_without_published_shapes_of_its_own_a_record_gives_way_to_a_published_one(
    trained: Pair, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_records, "PACKAGE", tmp_path / "eagle_repro")
    own = measured(protocol, trained)
    assert target_size.timings(own) is own
    for name, shapes in (("a", 2), ("b", 5)):
        (tmp_path / "results" / name).mkdir(parents=True)
        published(tmp_path / "results" / name, shapes)
    (tmp_path / "results" / "broken").mkdir()
    (tmp_path / "results" / "broken" / f"{NAME}.jsonl").write_text("no record\n")
    shown = target_size.timings(own)
    assert shown.header["bench"]["card"] == "card 5" and sizes.timed_shapes(shown) == set(SHAPES)
    here = published(tmp_path, 1)
    assert target_size.timings(here) is here
