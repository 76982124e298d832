"""The verbs check and report as a person calls them, on a made-up run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from eagle_repro.cli import arguments, claims
from eagle_repro.experiments import protocol
from eagle_repro.measure.claims.marks import mark
from eagle_repro.present import claim_tables
from tests.made_up import BENCH, CLAIMS, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with records of the article's bench, where code is faster than the article says."""
    return write_run(tmp_path_factory.mktemp("run") / "made-up", {"speedup_code": 3.0})


def call(*words: object) -> int:
    """What the command line does with these words."""
    parser = argparse.ArgumentParser()
    claims.add_parsers(parser.add_subparsers(), arguments._verb)
    args = parser.parse_args([str(word) for word in words])
    return int(args.verb(args))


def document(capsys: pytest.CaptureFixture[str]) -> dict:
    """The JSON document on the last line."""
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_check_puts_every_claim_beside_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("check", "--run", run, "--json") == 0
    out = capsys.readouterr().out
    assert "Speedup on code" in out and "differs by +0.40x (tolerance 0.20x)" in out and "numbers that differ: 1" in out
    said = json.loads(out.splitlines()[-1])
    rows = {row["id"]: row for row in said["claims"]}
    assert list(rows) == [claim.id for claim in CLAIMS]
    assert said["run"] == "made-up" and said["counts"]["differs"] == 1
    assert rows["speedup_code"]["measured"] == [pytest.approx(3.0)] and rows["speedup_code"]["verdict"] == "differs"
    assert rows["deeper_tau_up"]["low"] <= rows["deeper_tau_up"]["effect"] <= rows["deeper_tau_up"]["high"]
    assert [round(point["predicted"], 2) for point in said["formula"]][0] == 2.02


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """The run with chains and trees of another card in it."""
    write_run(tmp_path / "mixed", only=["02_speedup"])
    return write_run(tmp_path / "mixed", only=["04_chain_vs_tree"], bench=BENCH | {"card": "Xeon"})


@pytest.mark.parametrize(
    ("lang", "line"),
    [
        ("en", "04_chain_vs_tree is of another bench (card Xeon instead of Tesla T4): left out."),
        ("ru", "04_chain_vs_tree: снято на другом стенде (карта Xeon вместо Tesla T4), не учтено."),
    ],
)
def test_check_and_report_leave_out_a_record_of_another_bench(
    mixed: Path, lang: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("check", "--run", mixed, "--lang", lang, "--json") == 0
    out = capsys.readouterr().out
    assert line in out.splitlines()
    said = json.loads(out.splitlines()[-1])
    verdicts = {row["id"]: row["verdict"] for row in said["claims"]}
    assert verdicts["tree_beats_chain"] == "not measured here" and said["left_out"] == [line]
    assert call("report", "--run", mixed, "--lang", lang) == 0
    assert line in capsys.readouterr().err
    text = (mixed / f"report.{lang}.md").read_text(encoding="utf-8")
    differs = line[line.index("(") + 1 : line.index(")")]
    assert f"{claim_tables.lacks('of another bench', lang)}: {differs}" in text


def test_check_speaks_russian(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("check", "--run", run, "--lang", "ru") == 0
    assert "Ускорение на коде" in capsys.readouterr().out


def test_a_text_that_agrees_with_the_records_passes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "README.md"
    text.write_text(f"На коде {mark('speedup set=humaneval', '3,0x')}.", encoding="utf-8")
    assert call("check", "--run", run, "--text", text, "--json") == 0
    assert [found["ok"] for found in document(capsys)["marks"]] == [True]


def test_a_text_that_is_wrong_fails_with_file_line_and_both_numbers(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong = tmp_path / "right.md", tmp_path / "wrong.md"
    right.write_text(mark("tau_in", "3.4"), encoding="utf-8")
    wrong.write_text(f"first\nsecond {mark('speedup_code', '2.6x')}\n", encoding="utf-8")
    assert call("check", "--run", run, "--text", right, wrong) == 1
    assert f"{wrong}:2: '2.6x': the record says 3" in capsys.readouterr().out.splitlines()[-1]


def test_a_text_that_marks_nothing_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "plain.md"
    text.write_text("On code it is 2.6x as fast.", encoding="utf-8")
    with pytest.raises(ValueError, match=r"plain\.md: the text marks no numbers"):
        call("check", "--run", run, "--text", text)


def test_report_writes_one_language_where_it_is_told_to(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert call("report", "--run", run, "--lang", "en", "--out", out, "--json") == 0
    assert [Path(name).name for name in document(capsys)["files"]] == ["report.en.md", "report.en.html"]
    assert {path.name for path in out.iterdir()} == {"report.en.md", "report.en.html", "figures"}
    assert call("check", "--run", run, "--text", out / "report.en.md") == 0


def test_without_a_name_the_newest_run_is_taken(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(protocol, "default_out", lambda profile: tmp_path / "build" / profile)
    with pytest.raises(FileNotFoundError, match="no run was found"):
        call("check")
    write_run(tmp_path / "build" / "reproduce", only=["01_roofline"])
    assert call("check", "--json") == 0
    assert document(capsys)["run"] == "reproduce"


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        call("check", "--run", tmp_path / "nowhere")
