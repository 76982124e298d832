"""A pretend Kaggle session: an image of packages without ours, read-only inputs, variables, no network.

The image is a virtual environment that sees every package of this one by links, but for eagle_repro: an editable
install of the checkout is not among them, so what runs there is what the notebook itself installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Any address but this machine's is out of reach, in every Python process of the session.
NO_NETWORK = """
import sys

def refuse(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple) and not str(arguments[1][0]).startswith("127."):
        raise OSError(101, "Network is unreachable (simulated)")
    if event == "socket.getaddrinfo" and arguments[0] not in (None, "", "localhost", "127.0.0.1", b"localhost"):
        raise OSError(101, f"Network is unreachable (simulated): {arguments[0]}")

sys.addaudithook(refuse)
"""


@dataclass(frozen=True)
class Session:
    """The places of a session below `root`: inputs, the working folder, home, and the image's Python."""

    root: Path

    @property
    def inputs(self) -> Path:
        return self.root / "input"

    @property
    def working(self) -> Path:
        return self.root / "working"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def python(self) -> Path:
        return self.root / "image" / "bin" / "python"

    def run(self, notebook: Path, overrides: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run All by papermill; the executed notebook is working/executed.ipynb."""
        command = [str(self.python), "-m", "papermill", str(notebook), "executed.ipynb", "--kernel", "python3"]
        command += ["--no-progress-bar", "--execution-timeout", "300", "-y", json.dumps({"OVERRIDES": overrides})]
        return self.call(command)

    def call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a program in the working folder with the session's variables."""
        environment = {
            "PATH": os.pathsep.join([str(self.python.parent), os.environ.get("PATH", "")]),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            "KAGGLE_CACHE_MOUNT_FOLDER": str(self.inputs),
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as "no isolation": the build backend of the image serves
            "JUPYTER_PATH": str(self.root / "jupyter"),
        }
        return subprocess.run(
            command, cwd=self.working, env=environment, capture_output=True, text=True, timeout=600, check=False
        )


def start(root: Path) -> Session:
    """A session with nothing attached."""
    session = Session(root)
    for folder in (session.inputs, session.working, session.home):
        folder.mkdir(parents=True)
    venv.EnvBuilder(symlinks=True, with_pip=False).create(root / "image")
    packages = root / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "eagle_repro" not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    own = next((root / "image").glob("lib/python3*/site-packages"))
    (own / "image.pth").write_text(f"{packages}\n", encoding="utf-8")
    (own / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    kernel = root / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [str(session.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    return session


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of everything below a folder: equal when nothing was written there."""
    states = {str(path.relative_to(folder)): path.stat() for path in sorted(folder.rglob("*"))}
    return {name: (state.st_size, state.st_mtime_ns) for name, state in states.items()}


def make_read_only(folder: Path) -> None:
    """Take away the right to write below a folder (a superuser keeps it: compare `contents` too)."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
