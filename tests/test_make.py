"""The environment that make builds: made once, brought up to date, never taken as whole when it is torn."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from eagle_repro.cli.arguments import build_parser
from tests.reading import REPOSITORY

# A Python that only notes what it was asked for; its environments hold a copy of it.
STUB = """#!/bin/sh
echo "$@" >> "$STUB_LOG"
case "$*" in
  *sys.version_info*) exit "${STUB_OLD:-0}" ;;
  --version) echo "Python 3.8.10" ;;
  *"-m venv"*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python" ;;
  *"pip install"*) exit "${STUB_PIP:-0}" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with all that making the environment reads, and the stub."""
    for name in ("Makefile", "pyproject.toml", "requirements.txt", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    stub = tmp_path / "stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    return tmp_path


def make(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    log = checkout / "log"
    log.write_text("")
    return subprocess.run(
        ["make", "--silent", "install", f"PYTHON={checkout / 'stub'}", *arguments],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], "STUB_LOG": str(log), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def asked(checkout: Path) -> str:
    return (checkout / "log").read_text()


def test_an_old_python_is_refused_in_one_line(checkout: Path) -> None:
    done = make(checkout, STUB_OLD="1")
    assert done.returncode != 0
    line = done.stderr.splitlines()[0]
    assert "Python 3.8.10" in line
    assert "Python >= 3.11" in line
    assert "PYTHON=" in line
    assert not (checkout / ".venv").exists()


def test_no_python_at_all_is_said_in_one_line(checkout: Path) -> None:
    done = make(checkout, "PYTHON=")
    assert done.returncode != 0
    assert "Python >= 3.11 with venv needed" in done.stderr.splitlines()[0]
    assert not (checkout / ".venv").exists()


def test_the_environment_is_made_once(checkout: Path) -> None:
    assert make(checkout).returncode == 0
    assert "-m venv" in asked(checkout)
    assert "--constraint constraints.txt --editable .[embedded,dev]" in asked(checkout)
    assert make(checkout).returncode == 0
    assert asked(checkout) == ""


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml", "requirements.txt"])
def test_changed_requirements_are_installed_into_the_same_environment(checkout: Path, name: str) -> None:
    make(checkout)
    later = (checkout / ".venv" / "complete").stat().st_mtime + 10
    os.utime(checkout / name, (later, later))
    assert make(checkout).returncode == 0
    assert "pip install" in asked(checkout)
    assert "-m venv" not in asked(checkout)


def test_a_torn_install_is_never_taken_as_complete(checkout: Path) -> None:
    assert make(checkout, STUB_PIP="1").returncode != 0
    assert not (checkout / ".venv" / "complete").exists()
    assert make(checkout).returncode == 0
    assert "-m venv --clear" in asked(checkout)


def test_a_torn_update_starts_from_an_empty_environment(checkout: Path) -> None:
    make(checkout)
    later = (checkout / ".venv" / "complete").stat().st_mtime + 10
    os.utime(checkout / "constraints.txt", (later, later))
    assert make(checkout, STUB_PIP="1").returncode != 0
    assert make(checkout).returncode == 0
    assert "-m venv --clear" in asked(checkout)


def test_another_index_is_used_for_torch_alone(checkout: Path) -> None:
    assert make(checkout, "TORCH_INDEX=https://example.org/cpu").returncode == 0
    installs = [line for line in asked(checkout).splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert installs[0].endswith("--no-deps --index-url https://example.org/cpu torch")
    assert "--index-url" not in installs[1]


def test_what_the_workflow_calls_is_there() -> None:
    """A fork's first push runs these lines; a target or an option that was renamed would fail only there."""
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    lines = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = {shlex.split(line)[1] for line in lines if line.startswith("make ")}
    assert called == {"install", "reproduce", "test"} and called <= targets
    verbs = [shlex.split(line)[3:] for line in lines if line.startswith(".venv/bin/python -m eagle_repro ")]
    assert [build_parser().parse_args(words).profile for words in verbs] == ["smoke"]
