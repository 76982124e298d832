"""The bench sheet: the conditions that a measured number belongs to, as one plain dictionary.

Nothing in it is a guess: what cannot be found out is None. It names no host, no user and no path. `now` holds what
changes by itself from minute to minute; all the rest is the bench's identity, and two sessions must agree in it for
their rows to stand in one record. torch is imported where it is used, so that reading records does not need it.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_repro.__about__ import __version__

if TYPE_CHECKING:
    import torch

SHELL_TIMEOUT_S = 10
REVISION_VARIABLE = "EAGLE_REPRO_REVISION"
_CLOCKS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "temperature_c": "temperature.gpu"}


def bench_sheet(
    *,
    device: torch.device | str,
    dtype: torch.dtype | str,
    stack: str,
    pair: Mapping[str, Any],
    protocol: Mapping[str, Any],
    question_sets: Mapping[str, str],
) -> dict[str, Any]:
    """The sheet of this process.

    device, dtype, stack: where and how decoding runs; pair: names, revisions and sizes of target and head (a
    pair's provenance); protocol: the settings of the measurement; question_sets: checksum by name of set.
    """
    import torch

    place = torch.device(device)
    return {
        **_card(place),
        "device": place.type,
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "numpy": _version("numpy"),
        "package": __version__,
        "git": git_revision(Path(__file__).parents[1]),
        "dtype": str(dtype).removeprefix("torch."),
        "stack": stack,
        "pair": dict(pair),
        "protocol": dict(protocol),
        "question_sets": dict(question_sets),
        "now": {
            "clocks": clocks(place),
            "utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        },
    }


def identity(sheet: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a sheet that a record's header hash covers: all but `now`."""
    return {name: value for name, value in sheet.items() if name != "now"}


def clocks(device: torch.device | str) -> dict[str, float | None]:
    """Clocks and temperature of the card at this moment: sm_mhz, memory_mhz (MHz) and temperature_c.

    Ask right after work: an idle card lowers its clocks within seconds. All None on a CPU.
    """
    values = _query_card(device, list(_CLOCKS.values()))
    return dict(zip(_CLOCKS, map(_number, values), strict=True))


def git_revision(folder: Path) -> str | None:
    """The commit of the checkout that `folder` is tracked in, "+dirty" added if files in the folder differ from it.

    Where there is no checkout (an installed package, also one whose environment lies inside somebody's checkout) or its
    files are not those of its commit, what $EAGLE_REPRO_REVISION says of a copy that left its history behind, marked
    "(stated)"; where there is neither, None.
    """
    stated = os.environ.get(REVISION_VARIABLE)
    told = f"{stated} (stated)" if stated else None
    if not _git(folder, "ls-files", "--", "."):
        return told
    commit, state = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--", ".")
    if not commit or state is None:
        return None
    return (told or f"{commit}+dirty") if state else commit


def _card(place: torch.device) -> dict[str, Any]:
    """What does the work: its name, its memory in bytes, and for a GPU compute capability and driver."""
    import torch

    if place.type != "cuda":
        return {"card": _cpu_name(), "memory_bytes": _cpu_memory(), "capability": None, "driver": None}
    properties = torch.cuda.get_device_properties(place)
    return {
        "card": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": [properties.major, properties.minor],
        "driver": _query_card(place, ["driver_version"])[0],
    }


def _query_card(device: torch.device | str, fields: list[str]) -> list[str | None]:
    """Ask nvidia-smi about the very card that `device` means here; None for each field it does not tell."""
    import torch

    unknown: list[str | None] = [None] * len(fields)
    place = torch.device(device)
    if place.type != "cuda":
        return unknown
    # By UUID, because torch's numbers change with CUDA_VISIBLE_DEVICES and nvidia-smi's do not.
    uuid = getattr(torch.cuda.get_device_properties(place), "uuid", None)
    if uuid is None:
        return unknown
    wanted = [f"--id=GPU-{uuid}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    answer = _output(["nvidia-smi", *wanted])
    values = [value.strip() for value in (answer or "").split(",")]
    if len(values) != len(fields):
        return unknown
    return [None if value in ("", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]") else value for value in values]


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None


def _cpu_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(folder: Path, *words: str) -> str | None:
    # GIT_DIR and its like, set inside hooks, would point at some other checkout.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return _output(["git", "-C", str(folder), *words], env=clean)


def _output(command: list[str], env: dict[str, str] | None = None) -> str | None:
    """What a program printed, None if it is missing, fails or does not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=SHELL_TIMEOUT_S, check=True, env=env)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()
