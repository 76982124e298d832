"""The verb bench prints one table for every stack of the card, and the same numbers as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from eagle_repro.api import Pair
from eagle_repro.cli import bench, main
from eagle_repro.engine import devices
from eagle_repro.experiments import timing_pairs
from eagle_repro.measure import roofline
from eagle_repro.sources import pairs
from eagle_repro.sources.pairs import PairShape

TOY = PairShape("toy", hidden=32, layers=6, heads=4, kv_heads=2, mlp=64, tied=True, head_dim=8, vocabulary=256,
                draft_vocabulary=64)  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, trained: Pair) -> None:
    monkeypatch.setattr(roofline, "measured_bandwidth", lambda device: 10.0)
    monkeypatch.setattr(bench, "TOKENS", 8)
    monkeypatch.setattr(bench, "load", lambda args: trained)
    monkeypatch.setitem(pairs.SHAPES, "toy", TOY)


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["bench", "--cycles", "2", "--device", "cpu", *words])
    return code, *capsys.readouterr()


def test_several_cards_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr(devices, "target_devices", lambda *_: cards)
    code, _, err = called(capsys, "--pair", "tiny", "--device", "cuda:0,cuda:1")
    assert code == 2 and "--device cuda:0,cuda:1 was given, and bench times one card" in err


@pytest.mark.parametrize("words", [("--pair", "tiny"), ("--shape-of", "toy")], ids=["pair", "shape"])
def test_every_stack_has_its_steps_and_phases(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, out, err = called(capsys, *words, "--json")
    document: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert code == 0 and "Context 320, batch 1, at least 2 cycles" in out and "eager, 60 nodes" in err
    assert document["bandwidth_gb_s"] == 10.0 and document["bench"]["stack"] == "eager"
    assert [(row["stack"], row["nodes"], row["depth"]) for row in document["costs"]] == [
        ("eager", 60, 7),
        ("eager", 60, 2),
    ]
    for row in document["costs"]:
        parts = sum(row[f"{phase}_ms"] for phase in ("draft", "verify", "accept", "commit"))
        # Of two other cycles, on a machine that may do other work: they show the unit, not the sum.
        assert 0.1 * row["cycle_ms"] < parts < 10 * row["cycle_ms"] and row["plain_ms"] > 0 and row["host_ms"] >= 0
        assert row["steps"] == pytest.approx(row["cycle_ms"] / row["plain_ms"])
        assert row["utilisation"] == pytest.approx(row["floor_ms"] / row["plain_ms"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--shape-of", "qwen4"), "--shape-of qwen4 was given: known shapes are qwen3-1.7b"),
        (("--shape-of", "toy", "--pair", "tiny"), "was given beside a pair"),
        (("--stack", "graph"), "needs a CUDA device"),
        (("--stack", "fast"), "'fast' is not known"),
        (("--device", ""), "device='' is not known"),
        (("--dtype", ""), "dtype='' is not known"),
        (("--stack", ""), "stack='' is not known"),
        (("--shape-of", "toy", "--dtype", "int8"), "dtype='int8' is not known"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("something ran")

    for module, name in ((roofline, "measured_bandwidth"), (bench, "load"), (timing_pairs, "random_pair")):
        monkeypatch.setattr(module, name, never)
    code, _, err = called(capsys, *words)
    assert code == 2 and said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [("--pair", "tiny"), ("--shape-of", "toy")], ids=["pair", "shape"])
def test_the_sheet_says_which_precision_auto_was(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, out, _ = called(capsys, *words, "--dtype", "auto", "--json")
    document = json.loads(out.splitlines()[-1])
    assert code == 0 and document["bench"]["dtype"] == document["costs"][0]["dtype"] == "float32"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert "bench --shape-of qwen3-1.7b --json" in capsys.readouterr().out
