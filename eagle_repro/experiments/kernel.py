"""Running one notebook through papermill, in a kernel of this very Python."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle_repro.experiments.protocol import PROFILE_VARIABLE
from eagle_repro.sources.paths import PACKAGE

QUIET_VARIABLE = "EAGLE_REPRO_QUIET"
LOG_LEVEL = "--IPKernelApp.log_level=CRITICAL"  # what goes wrong is reported by `execute`, in one line


def execute(
    source: Path,
    target: Path,
    *,
    parameters: Mapping[str, Any],
    profile: str,
    start_timeout: int,
    cell_timeout: int,
) -> str | None:
    """Run the notebook `source`, write it with its outputs to `target`; what went wrong in one line, None if nothing.

    None is not a proof of success: a dead kernel or an early exit can look like it. Timeouts are in seconds, for the
    kernel's start and for each cell.
    """
    from papermill import execute_notebook
    from papermill.exceptions import PapermillException, PapermillExecutionError

    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # so that what lies there afterwards is of this run
    try:
        with _environment(profile), _silence("papermill", "asyncio"):
            execute_notebook(
                source,
                target,
                parameters=dict(parameters),
                kernel_name="python3",
                language="python",
                progress_bar=False,
                start_timeout=start_timeout,
                execution_timeout=cell_timeout,
                cwd=target.parent,
            )
    except PapermillExecutionError as error:
        return f"{error.ename}: {_line(error.evalue)}"
    except TimeoutError:
        return f"a cell took longer than {cell_timeout} s, or the kernel longer than {start_timeout} s to start"
    except (PapermillException, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {_line(error)}"
    return None


@contextmanager
def _environment(profile: str) -> Iterator[None]:
    """What the kernel inherits: the profile, silence, this very package, and this very Python as its "python3"."""
    with tempfile.TemporaryDirectory(prefix="eagle_repro-kernel-") as folder:
        spec = Path(folder) / "kernels" / "python3" / "kernel.json"
        spec.parent.mkdir(parents=True)
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", LOG_LEVEL]
        spec.write_text(json.dumps({"argv": command, "display_name": "Python 3", "language": "python"}))
        paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        wanted = {
            PROFILE_VARIABLE: profile,
            QUIET_VARIABLE: "1",
            "JUPYTER_PATH": os.pathsep.join([folder, *filter(None, [os.environ.get("JUPYTER_PATH")])]),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextmanager
def _silence(*names: str) -> Iterator[None]:
    """Keep these loggers quiet: they repeat, in many lines, what `execute` says in one."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _line(text: object) -> str:
    return " ".join(str(text).split())[:400]
