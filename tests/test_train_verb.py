"""The verb train: from a pair to a head in one command, and again without doing anything twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eagle_repro.cli import main
from eagle_repro.cli.arguments import build_parser
from eagle_repro.cli.train import train
from tests.reading import REPOSITORY

QUICK = "train --pair tiny --device cpu --recipe code --tokens 3e2 --positions 48 --turn 4 --rows 8 --length 48"
QUICK += " --batch-tokens 96 --steps 3 --unrolled 2 --tau-prompts 1 --tau-tokens 8 --shape 8,3,4 --json"


def test_help_has_an_example_that_parses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    out = capsys.readouterr().out
    assert "a finished corpus is kept, an unfinished one is begun again" in " ".join(out.split())
    [example] = [line for line in out.splitlines() if "python -m eagle_repro train --pair" in line]
    args = build_parser().parse_args(example.split()[3:])
    assert (args.verb, args.tokens, args.minutes) == (train, 12_000_000, 5)


def test_it_writes_a_head_and_ends_with_one_json_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*QUICK.split(), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    said = capsys.readouterr()
    document = json.loads(said.out.splitlines()[-1])
    assert document["steps"] == 3 and document["corpus"]["answer_tokens"] >= 300
    assert set(document["tau"]) == {"before", "after"} and document["tau"]["after"] >= 1
    assert "training needs about" in said.err
    assert f"held-out tau {document['tau']['before']:.2f} before, {document['tau']['after']:.2f} after\n" in said.out
    for name in ("model.safetensors", "config.json", "PROVENANCE.json"):
        assert (tmp_path / "out" / "head" / name).is_file()
    provenance = json.loads((tmp_path / "out" / "head" / "PROVENANCE.json").read_text(encoding="utf-8"))
    assert provenance["corpus"]["recipe"] == "code" and provenance["pair"]["name"] == "tiny"
    assert {"torch", "transformers"} <= set(provenance["versions"]) and "git" in provenance
    assert str(tmp_path) not in json.dumps(provenance)

    assert main(command) == 0  # everything is there: the corpus is read, no step is done again
    said = capsys.readouterr()
    again = json.loads(said.out.splitlines()[-1])
    assert "the target writes" not in said.err
    assert again["steps_before_this_session"] == 3 and again["head"]["sha256"] == document["head"]["sha256"]


@pytest.mark.slow
def test_two_processes_share_a_run_and_one_speaks(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "eagle_repro"]
    done = subprocess.run(
        [*run, *QUICK.split(), "--out", str(tmp_path)],
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert json.loads(lines[-1])["steps"] == 3 and sum(line.startswith("held-out tau") for line in lines) == 1
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["run"]["processes"] == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--recipe poetry", "unknown recipe 'poetry'"),
        ("--steps 3 --unrolled 12", "unrolled=12 must lie in 1..8"),
        ("--corpus nowhere", "no corpus.json in nowhere"),
    ],
)
def test_a_refusal_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, said: str) -> None:
    assert main([*f"train --pair tiny --device cpu --tokens 100 {more} --out".split(), str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error


@pytest.mark.parametrize("count", ["inf", "nan", "1.5", "-1"])
def test_a_count_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], count: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "--out", str(tmp_path), f"--tokens={count}"])
    assert end.value.code == 2 and "a whole number such as 12000 or 12e6 is needed" in capsys.readouterr().err


def test_steps_and_minutes_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--out", str(tmp_path), "--steps", "3", "--minutes", "1"])
    assert "not allowed with argument" in capsys.readouterr().err
