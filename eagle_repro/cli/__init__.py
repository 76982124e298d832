"""The command line: `python -m eagle_repro VERB`.

With --json the last line on stdout is one JSON document with every printed number. An error of ours is one line on
stderr and exit code 2; a result that is incomplete, refused or different is exit code 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from eagle_repro.cli.arguments import PROGRAM, build_parser

OURS = (ValueError, OSError, RuntimeError, ArithmeticError)  # NotImplementedError is a RuntimeError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (>&-): what would be printed is not wanted
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, as long as the process
    args = build_parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):  # a terminal without Cyrillic gets escapes instead of an error
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = int(args.verb(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted; the same command goes on from what was finished", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OURS as error:
        if args.debug:
            raise
        print(f"{PROGRAM}: {error_line(error)}", file=sys.stderr)
        return 2


def error_line(error: BaseException) -> str:
    """An error in one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    if type(error).__name__ == "OutOfMemoryError":
        advice = "use a smaller max_length, tree or pair, or a dtype of two bytes"
        return f"the GPU is out of memory: {advice} ({said[:120]})"
    return said
