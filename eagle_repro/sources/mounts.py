"""Models in folders laid out by Kaggle: input mounts of both conventions, and kagglehub's own cache.

A mount is read-only, and may be MODEL/FRAMEWORK/VARIATION/VERSION or SLUG under the root (the older convention), or
models/OWNER/MODEL/FRAMEWORK/VARIATION/VERSION or datasets/OWNER/SLUG. kagglehub's cache is laid out like the newer one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from eagle_repro.sources.pairs import WeightRef

MOUNT_VARIABLE = "KAGGLE_CACHE_MOUNT_FOLDER"
DEPTH = 4  # FRAMEWORK/VARIATION/VERSION below a model, and one folder to spare


def mount_root() -> Path:
    """Where Kaggle mounts inputs: $KAGGLE_CACHE_MOUNT_FOLDER as kagglehub reads it, or /kaggle/input."""
    return Path(os.environ.get(MOUNT_VARIABLE) or "/kaggle/input")


def download_root() -> Path:
    """Where kagglehub keeps downloads: $KAGGLEHUB_CACHE, or ~/.cache/kagglehub."""
    return Path(os.environ.get("KAGGLEHUB_CACHE") or "~/.cache/kagglehub").expanduser()


def find_mounted(ref: WeightRef, root: Path) -> list[Path]:
    """Model folders under `root` that may be `ref`'s, the likeliest first; they are not checked for completeness.

    A Kaggle handle names its folders; a hub id is looked for by its name as a slug, also among the heads that a
    dataset carries (heads/NAME). Of a handle with a version that version comes first, else the newest.
    """
    found: list[Path] = []
    if ref.kaggle:
        owner, *parts = ref.kaggle.split("/")
        model, version = parts[:3], parts[3:]
        for folder in _under(root, model) + _under(root, ["models", owner, *model]):
            exact = [folder / number for number in version if (folder / number).is_dir()]
            found += exact or [model_folder(folder)]
    if ref.repo:
        name = ref.repo.split("/")[-1]
        places = [[name], ["datasets", "*", name], ["models", "*", name]]
        places += [["*", "heads", name], ["datasets", "*", "*", "heads", name]]
        found += [model_folder(folder) for place in places for folder in _under(root, place)]
    return found


def find_file(name: str, root: Path) -> Path | None:
    """The file `name` (a path relative to an attached dataset) of the first dataset under `root` that has it."""
    places = ("*", "datasets/*/*")
    found = (file for place in places for file in sorted(root.glob(f"{place}/{name}")) if file.is_file())
    return next(found, None)


def model_folder(folder: Path) -> Path:
    """The folder with config.json at `folder` or below it: the newest version, or the only subfolder, step by step.

    Returns `folder` itself when nothing is found. Raises ValueError when several models lie there.
    """
    place = folder
    for _ in range(DEPTH):
        if (place / "config.json").is_file():
            return place
        children = _folders(place)
        versions = [child for child in children if child.name.isdecimal()]
        if versions:
            place = max(versions, key=lambda child: int(child.name))
        elif len(children) == 1:
            place = children[0]
        elif children:
            names = ", ".join(child.name for child in children[:5])
            raise ValueError(f"{place} holds several folders ({names}) and no config.json: name the one you mean")
        else:
            break
    return place if (place / "config.json").is_file() else folder


def slug(name: str) -> str:
    """A name as Kaggle writes it in an address: 'Qwen3-1.7B_eagle3' -> 'qwen3-1-7b-eagle3'."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _under(root: Path, parts: Sequence[str]) -> list[Path]:
    """Folders at root/part/part/.. where '*' is any folder and case and punctuation do not matter."""
    folders = [root]
    for part in parts:
        children = [child for folder in folders for child in _folders(folder)]
        folders = [child for child in children if part == "*" or slug(child.name) == slug(part)]
    return folders


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
