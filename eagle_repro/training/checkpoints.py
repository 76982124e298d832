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

    run: plain data that says which run this is. Raises ValueError for a checkpoint of another one or a damaged one.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        changed = [name for name in run if state["run"].get(name) != run[name]]
    except Exception as error:  # which of many depends on where it was cut, and PyTorch names none
        message = f"{path} is damaged (cut short?): delete it to train from the start, or choose another output folder"
        raise ValueError(message) from error
    if state["run"] != run:
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
    """The rows of a log, a torn last line left out; empty where there is none. Raises ValueError for a damaged line."""
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            if not isinstance(row["step"], int):
                raise ValueError("no step")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged (line {number}): delete it and {NAME} to train from the start, or choose another "
                "output folder"
            ) from error
        rows.append(row)
    return rows
