"""Checkpoints and log of a training run, written so that a kill leaves a whole checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

NAME = "checkpoint.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint beside the old one and put it in its place."""
    temporary = folder / f"{NAME}.part"
    torch.save(state, temporary)
    temporary.replace(folder / NAME)


def load_checkpoint(folder: Path, run: dict[str, Any]) -> dict[str, Any] | None:
    """The checkpoint of a folder, None where there is none.

    run: plain data that says which run this is. Raises ValueError for a checkpoint of another one.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if state["run"] != run:
        changed = [name for name in run if state["run"].get(name) != run[name]]
        raise ValueError(
            f"{path} belongs to a run with other contents or settings ({', '.join(changed) or 'unknown'}): "
            "repeat them, or choose another output folder"
        )
    return state


class Log:
    """A JSON Lines file of a run; what comes after the step that a resumed run starts from is dropped."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        kept = [row for row in read_log(path) if row["step"] <= step] if step else []
        self.last: dict[str, Any] = kept[-1] if kept else {}
        path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, allow_nan=False) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log, a torn last line left out; empty where there is none."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]
