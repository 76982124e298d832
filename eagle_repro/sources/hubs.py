"""Fetching a model from Kaggle (through kagglehub) or from the Hugging Face Hub. Both are imported when asked."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from eagle_repro.sources.complete import IncompleteModel, Role, check_complete
from eagle_repro.sources.mounts import download_root
from eagle_repro.sources.pairs import WeightRef
from eagle_repro.sources.paths import NotEnoughSpace, require_space

UNKNOWN_BYTES = 500_000_000  # a lower bound for a model nothing is known of
ATTACH_SECONDS = 600.0
BESIDE_WEIGHTS = (".json", ".txt", ".model", ".jinja")


class Unavailable(RuntimeError):
    """A source does not have the weights, or cannot be asked; the message is its reason."""


def fetch_from_kagglehub(handle: str, *, offline: bool, least_bytes: int = 0) -> Path:
    """Attach (in a Kaggle session) or download a Kaggle model; the folder it lies in.

    least_bytes: lower bound of the download. Raises Unavailable, or NotEnoughSpace before a download.
    """
    if offline:
        raise Unavailable(f"kagglehub: offline, and {handle} is not in its cache")
    try:
        import kagglehub
    except ImportError:
        raise Unavailable("kagglehub: not installed (pip install kagglehub)") from None
    session = bool(os.environ.get("KAGGLE_KERNEL_RUN_TYPE") and os.environ.get("KAGGLE_DATA_PROXY_URL"))
    if not session:
        require_space(download_root(), least_bytes or UNKNOWN_BYTES, f"downloading {handle}")
    try:
        # In a session kagglehub waits for the mount in a loop without an end (its kaggle_cache_resolver.py).
        return Path(_within(ATTACH_SECONDS if session else None, lambda: kagglehub.model_download(handle)))
    except Exception as error:  # its errors share no base class; each is a reason to ask the next source
        raise Unavailable(f"kagglehub: {_first_line(error)}") from error


def fetch_from_hub(ref: WeightRef, role: Role, *, offline: bool) -> tuple[Path, str]:
    """A snapshot of `ref.repo` at `ref.revision` and where it was: the cache if it is complete there, else the Hub.

    The folder's name is the commit. No token is read or sent. Raises Unavailable, or NotEnoughSpace.
    """
    try:
        import huggingface_hub as hub
    except ImportError:
        raise Unavailable("Hugging Face Hub: not installed (pip install huggingface_hub)") from None
    repo, revision = str(ref.repo), ref.revision
    cached = hub.try_to_load_from_cache(repo, "config.json", revision=revision)
    if isinstance(cached, str):
        try:
            check_complete(Path(cached).parent, role)
            return Path(cached).parent, "Hugging Face cache"
        except IncompleteModel as error:
            if offline:
                raise Unavailable(f"Hugging Face Hub: offline, and {error}") from None
    if offline:
        raise Unavailable(f"Hugging Face Hub: offline, and {repo} at {revision} is not in its cache")
    try:
        info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True, token=False)
        sizes = {entry.rfilename: entry.size or 0 for entry in info.siblings or ()}
        names = wanted_files(sizes, role)
        missing = [name for name in names if not _cached(hub, repo, name, info.sha)]
        needed = sum(sizes[name] for name in missing) or ref.least_bytes or UNKNOWN_BYTES
        require_space(Path(hub.constants.HF_HUB_CACHE), needed, f"downloading {repo}")
        return Path(
            hub.snapshot_download(repo, revision=revision, allow_patterns=names, token=False)
        ), "Hugging Face Hub"
    except (NotEnoughSpace, Unavailable):
        raise
    except Exception as error:  # network, HTTP, cache and name errors share no base class
        raise Unavailable(f"Hugging Face Hub: {repo}: {_first_line(error)}") from error


def wanted_files(sizes: Mapping[str, int], role: Role) -> list[str]:
    """Of a repository's files those that a load reads: top level, safetensors without their .bin duplicates.

    A head may come as .bin when there is nothing else. Raises Unavailable when there are no weights to read.
    """
    top = [name for name in sizes if "/" not in name]
    weights = [name for name in top if name.endswith(".safetensors")]
    weights = [name for name in weights if name.startswith("model")] or weights
    if not weights and role == "head":
        weights = [name for name in top if name.startswith("pytorch_model") and name.endswith(".bin")]
    if not weights:
        raise Unavailable(
            f"Hugging Face Hub: it has no safetensors weights for a {role}, only {', '.join(top) or 'nothing'}"
        )
    return sorted([name for name in top if name.endswith(BESIDE_WEIGHTS)] + weights)


def _cached(hub: object, repo: str, name: str, commit: str | None) -> bool:
    return isinstance(hub.try_to_load_from_cache(repo, name, revision=commit), str)  # type: ignore[attr-defined]


def _within(seconds: float | None, call: Callable[[], str]) -> str:
    """The call's result; TimeoutError after `seconds` (the call then goes on in a daemon thread, without effect)."""
    if seconds is None:
        return call()
    answers: queue.Queue[tuple[str | None, BaseException | None]] = queue.Queue()

    def work() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:  # handed to the caller's thread
            answers.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"nothing was mounted in {seconds:.0f} s: attach it by hand (Add Input)") from None
    if error is not None:
        raise error
    return str(value)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
