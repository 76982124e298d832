"""Where the package's own data lies, where it keeps what it made, whether a disk has room, what a file is."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

CACHE_VARIABLE = "EAGLE_REPRO_CACHE"
PACKAGE = Path(__file__).resolve().parents[1]


class NotEnoughSpace(RuntimeError):
    """The disk has less room than a download or conversion needs; the message gives both sizes."""


def data_folder() -> Path:
    """Folder with the committed heads, pairs and questions: inside an installed wheel, or beside a checkout.

    Raises FileNotFoundError when neither is there (an installation without its data).
    """
    for folder in (PACKAGE / "data", PACKAGE.parent / "data"):
        if (folder / "heads").is_dir():
            return folder
    raise FileNotFoundError(
        f"the package's data are neither in {PACKAGE / 'data'} nor in {PACKAGE.parent / 'data'}: "
        "install the wheel again, or run from a full checkout"
    )


def cache_folder() -> Path:
    """User cache for what is prepared once: $EAGLE_REPRO_CACHE, or ~/.cache/eagle_repro. May not exist yet."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/eagle_repro").expanduser()


def require_space(folder: Path, needed: int, what: str) -> None:
    """Check that the disk of `folder` (which may not exist yet) has `needed` bytes free.

    Raises NotEnoughSpace with what is needed, what is free, and where.
    """
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise NotEnoughSpace(
            f"{what} needs {in_units(needed)} and the disk of {folder} has {in_units(free)} free: "
            "make room, or point its cache to another disk"
        )


def in_units(count: int) -> str:
    """A number of bytes for people, in powers of ten: 98362432 -> '98.4 MB'."""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def sha256_of(file: Path) -> str:
    """sha256 of a file, as hex digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
