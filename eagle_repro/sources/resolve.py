"""From a name to a complete model folder: local folder, Kaggle mounts, kagglehub, Hugging Face Hub, in this order.

Every source either gives a folder that passed check_complete, or says why it cannot, and the next one is asked. What
was passed over stays in the answer, so that nobody wonders where the weights came from. No credential is read here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from eagle_repro.sources.complete import IncompleteModel, Role, check_complete
from eagle_repro.sources.embedded import prepare, prepared_sha256
from eagle_repro.sources.hubs import Unavailable, fetch_from_hub, fetch_from_kagglehub
from eagle_repro.sources.mounts import download_root, find_mounted, model_folder, mount_root
from eagle_repro.sources.pairs import PAIRS, WeightRef
from eagle_repro.sources.paths import cache_folder, data_folder, sha256_of

__all__ = ["Resolved", "check_complete", "resolve"]


@dataclass(frozen=True)
class Resolved:
    """A complete model folder and how it was found.

    name: hub id, Kaggle handle, wheel or folder name, fit for a record; source: which place won; revision: commit of
    a hub snapshot, "version N" of a Kaggle model, version of a wheel; sha256: of model.safetensors where it is
    known; passed_over: the places asked before, each with its reason.
    """

    folder: Path
    name: str
    source: str
    revision: str | None = None
    sha256: str | None = None
    passed_over: tuple[str, ...] = ()


def resolve(ref: WeightRef | str | Path, role: Role, *, offline: bool = False, mounts: Path | None = None) -> Resolved:
    """Find or fetch the weights of a target or a head; see the module for the order of the places.

    ref: a WeightRef of a named pair, or a folder, a hub id or a Kaggle handle. offline (or HF_HUB_OFFLINE): only what
    is already on this machine. mounts: where Kaggle inputs lie, if not in the usual place.
    Raises FileNotFoundError or ValueError for a bad name or a broken folder, NotEnoughSpace before a download that
    does not fit, and FileNotFoundError with every place's reason when none has the weights.
    """
    if role not in get_args(Role):
        raise ValueError(f"unknown role {role!r}: it is 'target' or 'head'")
    offline = offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if not isinstance(ref, WeightRef):
        folder = Path(ref).expanduser()
        if str(ref).strip() and folder.exists():
            return _from_folder(folder, role)
        ref = parse_reference(str(ref))
    if ref.wheel is not None:
        folder = prepare(ref.wheel, cache_folder(), offline=offline)
        name = f"{ref.wheel.project} {ref.wheel.version} (PyPI)"
        return Resolved(folder, name, "wheel", ref.wheel.version, prepared_sha256(folder))
    if ref.folder is not None:
        folder = data_folder() / ref.folder
        check_complete(folder, role)
        return Resolved(folder, ref.folder, "packaged", sha256=sha256_of(folder / "model.safetensors"))
    return _first_source(ref, role, offline, mounts or mount_root())


def parse_reference(text: str) -> WeightRef:
    """A hub id (OWNER/NAME) or a Kaggle handle (OWNER/MODEL/FRAMEWORK/VARIATION[/VERSION]) as a WeightRef.

    Raises ValueError when it is neither, FileNotFoundError when it looks like a folder that does not exist.
    """
    parts = text.split("/")
    if text.startswith(("/", "./", "../", "~")) or "\\" in text:
        raise FileNotFoundError(
            f"the folder {text} does not exist: check the path, or give a hub id or a Kaggle handle"
        )
    if all(parts) and len(parts) == 2:
        return WeightRef(repo=text)
    if all(parts) and (len(parts) == 4 or (len(parts) == 5 and parts[4].isdecimal())):
        return WeightRef(kaggle=text)
    pair = f"; {text!r} is a pair: load it by its name, without target and head" if text in PAIRS else ""
    raise ValueError(
        f"{text!r} is neither a folder nor a hub id (OWNER/NAME) nor a Kaggle handle "
        f"(OWNER/MODEL/FRAMEWORK/VARIATION[/VERSION]){pair}"
    )


def _first_source(ref: WeightRef, role: Role, offline: bool, mounts: Path) -> Resolved:
    """Ask the places in order; the first complete folder wins."""
    name = ref.repo or ref.kaggle or "a reference without a place"
    attached = _with_other_names(ref)
    places: tuple[Callable[[], Resolved | None], ...] = (
        lambda: _from_mounted(attached, role, mounts, "Kaggle mount"),
        lambda: _from_mounted(replace(ref, repo=None), role, download_root(), "kagglehub cache"),
        lambda: _from_kagglehub(ref, role, offline),
        lambda: _from_hub(ref, role, offline),
    )
    reasons: list[str] = []
    for place in places:
        try:
            found = place()
        except (Unavailable, IncompleteModel, ValueError, OSError) as error:  # a full disk ends the search instead
            reasons.append(str(error))
            continue
        if found is not None:
            return replace(found, passed_over=tuple(reasons))
    why = "; ".join(reasons) or f"nothing is attached under {mounts}, and no place to download from is known"
    raise FileNotFoundError(f"no weights for the {role} {name}: {why}")


def _with_other_names(ref: WeightRef) -> WeightRef:
    """A reference with all names of the same weights, so that an attached Kaggle model serves for its hub id too."""
    for pair in PAIRS.values():
        for known in (pair.target, pair.head):
            if (ref.repo and ref.repo == known.repo) or (ref.kaggle and ref.kaggle == known.kaggle):
                return known
    return ref


def _from_folder(folder: Path, role: Role) -> Resolved:
    if folder.is_file():
        raise ValueError(f"{folder} is a file: give the folder that holds it, with its config.json")
    place = model_folder(folder)
    check_complete(place, role)
    return Resolved(place, folder.resolve().name, "folder")


def _from_mounted(ref: WeightRef, role: Role, root: Path, source: str) -> Resolved | None:
    """The first complete model among what lies under `root`; None when nothing there bears a name of `ref`."""
    fault: IncompleteModel | None = None
    for folder in find_mounted(ref, root):
        try:
            check_complete(folder, role)
        except IncompleteModel as error:
            fault = fault or error
            continue
        version = f"version {folder.name}" if folder.name.isdecimal() else None
        return Resolved(folder, ref.kaggle or ref.repo or "", f"{source} {folder.relative_to(root)}", version)
    if fault is not None:
        raise fault
    return None


def _from_kagglehub(ref: WeightRef, role: Role, offline: bool) -> Resolved | None:
    if ref.kaggle is None:
        return None
    folder = model_folder(fetch_from_kagglehub(ref.kaggle, offline=offline, least_bytes=ref.least_bytes))
    check_complete(folder, role)
    version = f"version {folder.name}" if folder.name.isdecimal() else None
    return Resolved(folder, ref.kaggle, "kagglehub", version)


def _from_hub(ref: WeightRef, role: Role, offline: bool) -> Resolved | None:
    if ref.repo is None:
        return None
    folder, source = fetch_from_hub(ref, role, offline=offline)
    check_complete(folder, role)
    return Resolved(folder, ref.repo, source, folder.name)


def half_bytes(ref: WeightRef | str) -> int | None:
    """Bytes of these weights at two bytes a parameter, None where nothing is known of them beforehand."""
    if isinstance(ref, str) or ref.folder is not None:
        folder = Path(ref).expanduser() if isinstance(ref, str) else data_folder() / str(ref.folder)
        return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if ref.wheel is not None:
        return ref.wheel.bytes * 16 // 5  # Q4_1: five bits a weight
    return ref.least_bytes or None
