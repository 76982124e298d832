"""Both axes ask the same questions at every point, batches end with their last row, and nothing is done twice."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_repro.api import Pair, generate
from eagle_repro.experiments import batch_context
from eagle_repro.experiments.batch_context import NAME, PLANS, Plan
from eagle_repro.experiments.long_prompts import in_domain, lengthened, pooled
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.session import Session
from eagle_repro.measure import scaling
from eagle_repro.measure.records import Record
from tests.experiments.test_stack import TOY

PLAN = Plan((1, 2), (100, 150, 2060), ((12, 2, 4),), pool=3, longest=100, asked=2, tokens=6, shape=TOY, cycles=2)


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Protocol:
    monkeypatch.setitem(PLANS, "smoke", PLAN)
    return build_protocol({}, {"profile": "smoke"}, {"sets": ("chat", "code", "russian"), "out": str(tmp_path)})


def measured(protocol: Protocol, pair: Pair) -> Record:
    return batch_context.measure(Session(NAME, protocol, pair))


def test_every_point_asks_the_same_questions_and_writes_the_same_texts(trained: Pair, protocol: Protocol) -> None:
    record = measured(protocol, trained)
    frame = record.frame()
    for axis in ("batch", "context"):
        rows = frame[frame["what"] == axis]
        asked = rows.groupby(["value", "method"])["questions"].sum().map(sorted)
        assert all(each == asked.iloc[0] and len(each) == 2 for each in asked), "three fit no whole batch of two"
    points = scaling.points(record)
    assert list(zip(points["axis"], points["value"], points["units"], strict=True)) == [
        ("batch", 1, 2), ("batch", 2, 1), ("context", 100, 2), ("context", 150, 2),
    ]  # fmt: skip
    assert points["same"].eq(1).all() and points["tau"].ge(1).all() and points["speedup"].gt(0).all()
    lengths = frame[frame["what"] == "context"]
    assert all(prompt == [value] for prompt, value in zip(lengths["prompt_tokens"], lengths["value"], strict=True))
    assert set(zip(scaling.timing(record)["axis"], scaling.timing(record)["value"], strict=True)) == {
        ("batch", 1), ("batch", 2), ("context", 100), ("context", 150), ("context", 2060),
    }  # fmt: skip

    (row,) = scaling.skipped(record).to_dict("records")
    assert (row["axis"], row["value"]) == ("context", 2060), "too far for the target is a row that says why"
    assert "beyond the 2048 positions of tiny" in row["reason"]


def test_too_few_questions_for_the_largest_batch_are_still_the_same_in_all_others(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLANS, "smoke", replace(PLAN, batches=(1, 2, 4), contexts=(100,)))
    record = measured(protocol, trained)
    rows = record.frame()[record.frame()["what"] == "batch"]
    asked = rows.groupby(["value", "method"])["questions"].sum().map(sorted)
    assert set(rows["value"]) == {1, 2} and all(each == asked.iloc[0] and len(each) == 2 for each in asked)
    (row,) = scaling.skipped(record).to_dict("records")
    assert row["value"] == 4 and row["reason"] == "3 questions of at most 100 tokens are fewer than 4"


def test_a_batch_that_does_not_fit_ends_its_axis_and_not_the_run(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(pair: Pair, prompts: list[list[int]], **options: Any) -> Any:
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("no memory\nfor that")
        return generate(pair, prompts, **options)

    monkeypatch.setattr(batch_context, "generate", small)
    record = measured(protocol, trained)
    skipped = scaling.skipped(record)
    assert ("batch", 2, "no memory") in set(zip(skipped["axis"], skipped["value"], skipped["reason"], strict=True))
    points = scaling.points(record)
    assert list(points[points["axis"] == "batch"]["value"]) == [1] and (points["axis"] == "context").any()


def test_nothing_of_one_axis_takes_memory_from_the_next(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    launchers: list[weakref.ref[Any]] = []
    left: list[bool] = []

    def seen(pair: Pair, prompts: list[list[int]], **options: Any) -> Any:
        if not launchers or launchers[-1]() is not pair.launcher:
            left.append(any(each() is not None for each in launchers))
            launchers.append(weakref.ref(pair.launcher))
        return generate(pair, prompts, **options)

    made = batch_context.random_pair
    monkeypatch.setattr(batch_context, "generate", seen)
    monkeypatch.setattr(
        batch_context,
        "random_pair",
        lambda *given, **named: left.append(any(each() is not None for each in launchers)) or made(*given, **named),
    )
    measured(protocol, replace(trained, stack="graph"))
    assert left == [False] * 3, "batches, contexts, the timing-only pair"


def test_a_run_that_was_cut_off_goes_on(trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batch_context, "random_pair", broken)
        with pytest.raises(KeyboardInterrupt):
            measured(protocol, trained)
    with monkeypatch.context() as patched:
        patched.setattr(batch_context, "generate", broken)  # the texts are there, so only the shape is left
        record = measured(protocol, trained)
    assert record.complete and not scaling.timing(record).empty
    monkeypatch.setattr("eagle_repro.experiments.published.published", lambda name: [])
    assert batch_context.measured_far(record) is record, "where nothing was published, a CPU shows its own"


def test_lengthened_prompts_keep_opening_and_question(trained: Pair) -> None:
    items = pooled(trained.tokenizer, ["chat", "code"], 4, 120)
    assert [item.set for item in items[:2]] == ["chat", "code"] and all(len(item.prompt) <= 120 for item in items)
    longer = lengthened(trained.tokenizer, items, 400)
    assert {len(item.prompt) for item in longer} == {400}
    assert all(long.prompt[-len(item.prompt) :] == item.prompt for long, item in zip(longer, items, strict=True))
    assert len({tuple(item.prompt[:50]) for item in longer}) == len(items), "no two begin alike"
    assert (
        lengthened(trained.tokenizer, items, 5000)[0].prompt[:50]
        == lengthened(trained.tokenizer, items, 400)[0].prompt[:50]
    )
    with pytest.raises(ValueError, match="by itself"):
        lengthened(trained.tokenizer, items, 20)
    with pytest.raises(ValueError, match="at most 3 tokens"):
        pooled(trained.tokenizer, ["chat"], 1, 3)
    assert in_domain(["russian", "chat"]) == ["chat"] and in_domain(["russian"]) == ["russian"]


class Templated:
    """A tokenizer of bytes with a chat template."""

    chat_template = "yes"

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        return f"<user>{messages[-1]['content']}</user><answer>"

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


def test_a_template_opens_before_the_filler_and_closes_after_the_question() -> None:
    (item,) = pooled(Templated(), ["chat"], 1, 1000)
    (longer,) = lengthened(Templated(), [item], len(item.prompt) + 300)
    text, question = bytes(longer.prompt).decode(), bytes(item.prompt).decode().removeprefix("<user>")
    assert text.startswith("<user>") and text.endswith(question) and len(text) == len(question) + 306
    assert text.count("<user>") == text.count("</user>") == 1


def test_what_does_not_fit_is_refused_before_a_record_is_begun(trained: Pair, protocol: Protocol) -> None:
    session = Session(NAME, protocol, replace(trained, max_length=100))
    with pytest.raises(ValueError, match="do not fit max_length=100: raise it to"):
        batch_context.measure(session)
    assert not list(session.out.glob("*.jsonl*"))
