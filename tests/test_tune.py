"""The verb tune prints the tree to use, and the same as one JSON line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from eagle_repro.api import Pair
from eagle_repro.cli import main
from eagle_repro.cli.arguments import build_parser
from eagle_repro.cli.tune import tune
from eagle_repro.experiments import session, shape_points
from eagle_repro.experiments import tune as tuning
from eagle_repro.measure.curves import Prediction, Shape

FEW = replace(
    shape_points.POINTS["smoke"], depths=(1, 2), nodes=(4,), widths=(2,), cost_depths=(0, 2), cost_nodes=(2, 8),
    cost_widths=(2,), cycles=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def quick(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shape_points.POINTS, "smoke", FEW)
    monkeypatch.setattr(session, "open_pair", lambda protocol: trained)


def test_help_has_an_example_that_parses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    [example] = [line for line in capsys.readouterr().out.splitlines() if "python -m eagle_repro tune" in line]
    assert build_parser().parse_args(example.split()[3:]).verb is tune


def test_it_names_a_tree_and_the_runners_up(capsys: pytest.CaptureFixture[str]) -> None:
    words = "tune --pair tiny --profile smoke --sets chat --questions 1 --new-tokens 8 --json"
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    document = json.loads(out.splitlines()[-1])
    best = document["best"]
    shape = Shape(best["total_tokens"], best["depth"], best["top_k"])
    assert f"({shape.total_tokens}, {shape.depth}, {shape.top_k})" in out
    if best["speedup"] >= 1:
        assert f"Use --shape {shape.total_tokens},{shape.depth},{shape.top_k}:" in out
    gains = [best["speedup"], *(each["speedup"] for each in document["runners_up"])]
    assert len(gains) == 10 and gains == sorted(gains, reverse=True)
    assert (document["sets"], document["questions"], document["new_tokens"]) == (["chat"], 1, 8)


def test_sets_default_to_those_in_domain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--pair", "tiny", "--profile", "smoke", "--new-tokens", "4"]) == 0
    said = capsys.readouterr()
    assert "chat, code, math, instruct" in said.err and "russian" not in said.err


def test_a_machine_where_every_tree_loses_is_told_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tuning.best_shapes

    def slow(*args: Any) -> list[Prediction]:
        return [replace(each, speedup=0.9) for each in whole(*args)]

    monkeypatch.setattr(tuning, "best_shapes", slow)
    assert main(["tune", "--pair", "tiny", "--profile", "smoke", "--sets", "chat", "--new-tokens", "4"]) == 0
    out = capsys.readouterr().out
    assert "Use plain decoding" in out and "Use --shape" not in out


def test_an_unknown_set_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--pair", "tiny", "--profile", "smoke", "--sets", "chats"]) == 2
    assert capsys.readouterr().err.startswith("eagle_repro: unknown question set 'chats'")
