"""The one progress bar: shown where a person watches, silent everywhere else, and never a flood of lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

Item = TypeVar("Item")
Watcher = Literal["notebook", "terminal"]

#: Seconds between two updates: often enough to see life, rare enough that a log of hours stays small.
INTERVAL_S = 1.0


def bar(items: Iterable[Item], label: str = "", total: int | None = None) -> Iterator[Item]:
    """Pass `items` on one by one, with a progress bar where a person watches.

    total: how many will come, if `items` has no length. The bar goes away when it is done.
    """
    watcher = watched_in()
    if watcher is None:
        yield from items
        return
    # tqdm.notebook ignores TQDM_DISABLE, so the decision is ours and the bar is only made where it is wanted.
    if watcher == "notebook":
        from tqdm.auto import tqdm
    else:
        from tqdm.std import tqdm
    yield from tqdm(items, desc=label, total=total, mininterval=INTERVAL_S, leave=False, file=sys.stderr)


def watched_in() -> Watcher | None:
    """Where a person watches: "notebook" (a live front end), "terminal", or None.

    None whenever EAGLE_REPRO_QUIET is set (the runner does), in a Kaggle batch run, in a pipe or a file, and where
    papermill or nbval runs the kernel: they, unlike a front end with a person, promise no answer to input().
    """
    if os.environ.get("EAGLE_REPRO_QUIET", "0") not in ("", "0"):
        return None
    if os.environ.get("KAGGLE_KERNEL_RUN_TYPE", "").lower() == "batch":
        return None
    kernel = _kernel()
    if kernel is not None:
        return "notebook" if getattr(kernel, "_allow_stdin", False) else None
    return "terminal" if sys.stderr is not None and sys.stderr.isatty() else None


def _kernel() -> Any:
    """The Jupyter kernel that runs this code, None outside one. A kernel has imported IPython long ago."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None)
