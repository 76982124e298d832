"""Greedy texts in every precision, first tokens, tests of sampled texts: each once, and a wrong engine shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle_repro.api import Pair
from eagle_repro.engine import cycle
from eagle_repro.engine.request import NonFiniteLogits
from eagle_repro.experiments import lossless
from eagle_repro.experiments.lossless import NAME, first_token_row, greedy_row, other_dtypes, require_speed
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.rows import Item
from eagle_repro.experiments.sampled_arms import Arms
from eagle_repro.experiments.session import Session
from eagle_repro.measure import exactness
from eagle_repro.measure.records import Record
from tests.experiments.test_sampling import PROMPT, TREE, WARM
from tests.reading import REPOSITORY

ITEM = Item("chat", "0", [322, 27, 302, 347, 363, 292, 362, 261, 293, 66, 81, 32, 200, 323, 27])


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Pair) -> Protocol:
    """Two sets, short texts, and a permutation test of a few texts."""
    few = Arms(trained, PROMPT, WARM, samples=20, runs=8, run=10, tokens=4)
    monkeypatch.setattr(lossless, "toy_arms", lambda: few)
    settings = {"sets": ("chat", "russian"), "new_tokens": 8, "out": str(tmp_path)}
    return build_protocol({}, {"profile": "smoke"}, settings)


def measured(protocol: Protocol, pair: Pair) -> Record:
    return lossless.measure(Session(NAME, protocol, pair))


def keys(record: Record) -> list[str]:
    return [row["key"] for row in record.rows]


def test_every_precision_every_set_and_every_test_is_in_the_record_once(trained: Pair, protocol: Protocol) -> None:
    record = measured(protocol, trained)
    tests = [f"permutation/tiny/{name}" for name in ("plain-plain", "eagle", *(f"broken-{r}" for r in lossless.BROKEN))]
    sets = [("chat", "chat-00"), ("russian", "russian-00")]
    texts = [
        f"{what}/{dtype}/{name}/{question}"
        for dtype in ("float32", "bfloat16")
        for what in ("greedy", "first_token")
        for name, question in sets
    ]
    assert keys(record) == tests + texts
    frame = exactness.greedy(record)
    assert frame.loc[0, ["dtype", "identical", "mismatches"]].tolist() == ["float32", 2, 0]
    assert exactness.first_tokens(record)["identical"].tolist() == [2, 2]
    row = next(row for row in record.rows if row["key"] == "permutation/tiny/eagle")
    assert row["same_seed_equal"] == row["same_seed_texts"] == 20 and 0 < row["p"] <= 1


def test_another_pair_is_tested_beside_tiny_without_the_wrong_rules(trained: Pair, protocol: Protocol) -> None:
    own = lossless.own_arms(trained, protocol, PROMPT)
    assert own.samples == 50 and own.runs * own.run >= 2 * own.samples
    folders = {role: str(REPOSITORY / "data" / "pairs" / "tiny" / role) for role in ("target", "head")}
    record = measured(replace(protocol, pair=None, **folders), replace(trained, name="target + head"))
    tests = [key.split("/")[1:] for key in keys(record) if key.startswith("permutation/")]
    assert [name for pair, name in tests if pair == "target + head"] == ["plain-plain", "eagle"]


def test_a_pair_that_the_protocol_does_not_name_is_refused(trained: Pair, protocol: Protocol) -> None:
    with pytest.raises(ValueError, match="the pair mine was given and the protocol names tiny"):
        lossless.run(replace(trained, name="mine"), protocol, Path(protocol.out))


def test_a_precision_without_finite_logits_is_a_row_and_the_runs_own_still_raises(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = lossless.greedy_row, "bfloat16"

    def overflows(pair: Pair, *rest: Any) -> Any:
        if pair.dtype == broken:
            raise NonFiniteLogits(f"the logits are not finite in {pair.dtype}")
        return whole(pair, *rest)

    monkeypatch.setattr(lossless, "require_speed", lambda dtype, device: None)
    monkeypatch.setattr(lossless, "greedy_row", overflows)
    record = measured(protocol, trained)
    reason = "the logits are not finite in bfloat16"
    assert exactness.skipped(record).to_dict("records") == [{"dtype": "bfloat16", "reason": reason}]
    assert record.complete and set(exactness.greedy(record)["dtype"]) == {"float32"}
    broken = "float32"
    with pytest.raises(NonFiniteLogits):
        measured(replace(protocol, out=str(Path(protocol.out) / "again")), trained)


def test_greedy_texts_of_the_engine_are_plain_decodings(trained: Pair) -> None:
    row = greedy_row(trained, ITEM, TREE, 24)
    assert (row["verdict"], row["same_as_plain"], row["mismatches"], row["plain_mismatches"]) == (
        "identical", True, [], 0,
    )  # fmt: skip
    assert row["tokens"] == 24 and 1 < row["typical_gap"] < 10 and row["max_gap"] == 1e-4


def test_an_engine_that_accepts_what_the_target_did_not_choose_shows(
    trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cycle.accept

    def lenient(tree: Any, choices: Any, logits: Any, levels: int) -> Any:
        spoiled = choices.clone()
        spoiled[:, 0] = tree.tokens[:, 1] if tree.tokens.shape[1] > 1 else choices[:, 0]
        return whole(tree, spoiled, logits, levels)

    monkeypatch.setattr(cycle, "accept", lenient)
    row = greedy_row(trained, ITEM, TREE, 24)
    assert row["verdict"] == "different" and not row["same_as_plain"] and row["plain_mismatches"] == 0
    assert max(mismatch["gap"] for mismatch in row["mismatches"]) > 0.1
    assert not row["mismatches"][0]["excused"]


def test_a_first_token_row_says_of_what(trained: Pair) -> None:
    row = first_token_row(trained, ITEM, 0.7)
    assert (row["identical"], row["entries"], row["temperature"], row["dtype"]) == (True, 512, 0.7, "float32")


def test_a_slow_or_missing_precision_is_a_row_and_not_the_end(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lossless, "SLOWEST", 0)
    with pytest.raises(RuntimeError, match="slower in bfloat16 than in float32"):
        require_speed("bfloat16", "cpu")
    require_speed("float32", "cpu")
    record = measured(protocol, trained)
    (skipped,) = exactness.skipped(record).to_dict("records")
    assert skipped["dtype"] == "bfloat16" and "this CPU computes" in skipped["reason"]
    assert record.complete and set(exactness.greedy(record)["dtype"]) == {"float32"}


def test_other_precisions_are_those_of_the_device(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert other_dtypes(trained) == ["bfloat16"]
    assert other_dtypes(replace(trained, dtype="bfloat16")) == ["float32"]
    card = replace(trained, device="cuda:0", dtype="float16")
    for capability, expected in (((9, 0), ["float32", "bfloat16"]), ((7, 5), ["float32"])):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert other_dtypes(card) == expected


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = lossless.greedy_row, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(lossless, "greedy_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(protocol, trained)
    monkeypatch.setattr(lossless, "control_row", lambda arms: pytest.fail("this was done already"))
    record = measured(protocol, trained)
    assert record.complete and len(calls) == 3 + 2 and len(keys(record)) == len(set(keys(record)))


def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lossless, "toy_arms", lambda: pytest.fail("this ran"))
    with pytest.raises(ValueError, match="do not fit max_length=20"):
        measured(protocol, replace(trained, max_length=20))
