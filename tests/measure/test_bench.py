"""The bench sheet tells the conditions, guesses nothing and gives nobody away."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eagle_repro.__about__ import __version__
from eagle_repro.measure import bench


def sheet(**changed: Any) -> dict[str, Any]:
    settings = {
        "device": "cpu",
        "dtype": torch.float32,
        "stack": "eager",
        "pair": {"name": "tiny"},
        "protocol": {"max_new_tokens": 16},
        "question_sets": {"chat": "ab12"},
    }
    return bench.bench_sheet(**(settings | changed))


@pytest.fixture
def t4(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A T4 as torch and nvidia-smi would show it; gives the commands that were run."""
    asked: list[list[str]] = []
    answers = {"driver_version": "570.86.15", "clocks.sm,clocks.mem,temperature.gpu": "1590, 5000, 61"}

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        if command[0] != "nvidia-smi":
            raise FileNotFoundError(command[0])
        fields = next(word for word in command if word.startswith("--query-gpu=")).removeprefix("--query-gpu=")
        return SimpleNamespace(stdout=(answers[fields] + "\n").encode())

    card = SimpleNamespace(name="Tesla T4", total_memory=15828320256, major=7, minor=5, uuid="aaaa-bbbb")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(bench.subprocess, "run", run)
    return asked


def test_the_sheet_of_a_cpu_has_every_field_and_unknowns_are_none() -> None:
    made = sheet()
    wanted = "card memory_bytes capability driver device cpu threads cuda python torch transformers numpy package git"
    assert set(made) == {*wanted.split(), "dtype", "stack", "pair", "protocol", "question_sets", "now"}
    assert made["card"] == made["cpu"] and made["device"] == "cpu" and made["dtype"] == "float32"
    assert made["capability"] is None and made["driver"] is None and made["memory_bytes"] > 2**28
    assert made["torch"] == torch.__version__ and made["package"] == __version__
    assert made["now"]["clocks"] == {"sm_mhz": None, "memory_mhz": None, "temperature_c": None}
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_the_sheet_of_a_gpu_is_of_the_very_card_that_torch_uses(t4: list[list[str]]) -> None:
    made = sheet(device="cuda:0", dtype="float16")
    assert (made["card"], made["capability"], made["driver"]) == ("Tesla T4", [7, 5], "570.86.15")
    assert (made["device"], made["dtype"], made["memory_bytes"]) == ("cuda", "float16", 15828320256)
    assert made["now"]["clocks"] == {"sm_mhz": 1590.0, "memory_mhz": 5000.0, "temperature_c": 61.0}
    smi = [command for command in t4 if command[0] == "nvidia-smi"]
    assert smi and all("--id=GPU-aaaa-bbbb" in command for command in smi)


def test_a_card_without_a_known_identity_is_not_asked_about(t4: list, monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="Tesla T4", total_memory=1, major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    assert set(bench.clocks("cuda").values()) == {None} and t4 == []


@pytest.mark.parametrize("answer", ["[N/A], [Not Supported], N/A", "", "No devices were found", "1, 2", "x, y, z"])
def test_what_nvidia_smi_does_not_tell_is_unknown(t4: list, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=answer.encode()))
    assert bench.clocks("cuda") == {"sm_mhz": None, "memory_mhz": None, "temperature_c": None}


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), subprocess.TimeoutExpired("x", 1), subprocess.CalledProcessError(9, "x")]
)
def test_a_program_that_is_missing_hangs_or_fails_leaves_unknowns(
    t4: list, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(bench.subprocess, "run", fail)
    assert set(bench.clocks("cuda").values()) == {None}
    assert sheet()["git"] is None


def test_every_program_is_called_with_a_timeout(t4: list, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Any] = []
    monkeypatch.setattr(
        bench.subprocess,
        "run",
        lambda *_, **options: limits.append(options.get("timeout")) or SimpleNamespace(stdout=b""),
    )
    sheet(device="cuda")
    assert len(limits) >= 3 and all(limits)


def test_identity_leaves_out_what_changes_by_itself_and_nothing_else() -> None:
    made = sheet()
    later = made | {"now": {"clocks": {"sm_mhz": 900}, "utc": "2030"}}
    assert bench.identity(made) == bench.identity(later)
    assert set(made) - set(bench.identity(made)) == {"now"}
    for name in bench.identity(made):
        assert bench.identity(made | {name: "other"}) != bench.identity(made)


def test_the_sheet_names_no_host_no_user_and_no_path() -> None:
    text = json.dumps(sheet())
    names = {socket.gethostname(), os.environ.get("USER", ""), str(Path.home()), str(Path.cwd())}
    if getpass.getuser() != "root":
        names.add(getpass.getuser())
    assert not [name for name in names if len(name) > 1 and name in text]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the package in a folder of its own, one file tracked."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "code.py").write_text("one = 1\n")
    (tmp_path / "README").write_text("text\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_the_revision_is_the_commit_and_says_when_code_differs(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert bench.git_revision(checkout / "package") == commit
    (checkout / "README").write_text("results of this very run\n")
    assert bench.git_revision(checkout / "package") == commit
    (checkout / "package" / "code.py").write_text("one = 2\n")
    assert bench.git_revision(checkout / "package") == commit + "+dirty"


def test_a_new_file_in_the_package_counts_as_a_difference(checkout: Path) -> None:
    (checkout / "package" / "more.py").write_text("")
    assert str(bench.git_revision(checkout / "package")).endswith("+dirty")


def test_an_installed_package_has_no_revision_of_somebody_elses_checkout(checkout: Path) -> None:
    (checkout / ".gitignore").write_text(".venv\n")
    site = checkout / ".venv" / "site-packages"
    site.mkdir(parents=True)
    (site / "code.py").write_text("")
    assert bench.git_revision(site) is None


def test_no_checkout_means_no_revision(tmp_path: Path) -> None:
    assert bench.git_revision(tmp_path) is None


def test_a_copy_without_history_may_state_its_revision(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE_REPRO_REVISION", "abc123")
    elsewhere = tmp_path / "copy"
    elsewhere.mkdir()
    assert bench.git_revision(elsewhere) == "abc123 (stated)"
    assert "stated" not in str(bench.git_revision(checkout / "package"))


def test_variables_of_a_git_hook_do_not_mislead(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(checkout / "nowhere"))
    assert bench.git_revision(checkout / "package") is not None
