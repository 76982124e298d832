"""A timed pass is a real verification pass, and a roofline that was cut off goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle_repro.api import Pair
from eagle_repro.experiments import roofline
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.roofline import Passes
from eagle_repro.experiments.session import Session
from eagle_repro.measure import summary


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Protocol:
    monkeypatch.setattr(roofline, "CONTEXT", 24)
    monkeypatch.setattr(roofline, "LEAST_REPEATS", 3)
    monkeypatch.setitem(roofline.TOKENS, "smoke", (1, 2, 4))
    monkeypatch.setitem(roofline.BUFFER_BYTES, "smoke", 2**16)
    return build_protocol({}, {"profile": "smoke"}, {"out": str(tmp_path)})


@torch.inference_mode()
def test_a_chunk_behind_a_context_gets_the_stock_models_logits(trained: Pair) -> None:
    ids = [7 * place % trained.target.vocabulary for place in range(40)]
    passes = Passes(trained, ids)
    passes(0, 24)
    stock = trained.target.model(torch.tensor([ids]), use_cache=False).logits[0]
    for end in (25, 40, 26, 40):  # a longer pass before must not leak into a shorter one
        torch.testing.assert_close(passes(24, end), stock[24:end], atol=1e-4, rtol=1e-4)


def test_every_count_is_timed_in_each_repeat(trained: Pair, protocol: Protocol) -> None:
    record = roofline.measure(Session("01_roofline", protocol, trained))
    rows = [row for row in record.rows if row["kind"] == "run"]
    assert {row["key"] for row in rows} == {f"pass/{n}/{r}" for n in (1, 2, 4) for r in range(3)}
    # The order is reversed from repeat to repeat, so that a card that slows down bends no curve.
    assert [row["tokens"] for row in rows] == [1, 2, 4, 4, 2, 1, 1, 2, 4]
    assert all(row["seconds"] > 0 and row["context"] == 24 for row in rows)
    assert record.footer["weight_bytes"] == 1_906_944 and record.footer["bandwidth_gb_s"] > 0
    assert record.footer["peak_gb_s"] is None
    frame = summary.roofline(record)
    assert list(frame["tokens"]) == [1, 2, 4] and (frame["utilisation"] < 1).all()


def test_a_roofline_that_was_cut_off_goes_on(
    trained: Pair, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, passed = Session("01_roofline", protocol, trained), []
    whole = Passes.__call__

    def dying(self: Passes, start: int, end: int) -> torch.Tensor:
        passed.append(end - start)
        if len(passed) == 9:  # the context, three to warm up, four timed, and then
            raise KeyboardInterrupt
        return whole(self, start, end)

    monkeypatch.setattr(Passes, "__call__", dying)
    with pytest.raises(KeyboardInterrupt):
        roofline.measure(session)
    assert len(session.partial_rows()) == 4
    record = roofline.measure(session)
    assert record.complete and len(record.rows) == 9
    assert len(passed) == 9 + 1 + 3 + 5  # context, warm-up of what is left, and the five that were missing


def test_the_frame_of_a_loaded_pair_is_the_summary(trained: Pair, protocol: Protocol, tmp_path: Path) -> None:
    frame = roofline.run(trained, protocol, tmp_path)
    assert list(frame["tokens"]) == [1, 2, 4] and (tmp_path / "01_roofline.jsonl").exists()
