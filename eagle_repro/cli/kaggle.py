"""The verb kaggle: build makes the folders that Kaggle's client uploads, check holds them to its rules."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle_repro.cli.verbs import finish

Verb = Callable[..., argparse.ArgumentParser]


def add_parsers(parsers: Any, verb: Verb) -> None:
    """Add `kaggle build` and `kaggle check`; `verb` makes the parser of one (cli.arguments)."""
    group = parsers.add_parser(
        "kaggle",
        help="make and check what goes to Kaggle",
        description="A notebook to fork, and its dataset.",
    )
    steps = group.add_subparsers(title="steps", metavar="STEP", required=True)
    added = verb(
        steps,
        build,
        "make the notebook to fork and the dataset with the library",
        "Everything comes from kaggle-metadata.json and this checkout; nothing is downloaded or uploaded.",
        "kaggle build --owner YOU --repo https://github.com/YOU/eagle_repro\n"
        "  kaggle datasets create -p build/kaggle/dataset -r zip\n"
        "  kaggle kernels push -p build/kaggle/kernels/eagle-3-speedup-belongs-to-the-bench",
    )
    added.add_argument("--owner", metavar="NAME", help="your Kaggle user name")
    added.add_argument("--repo", metavar="URL", help="where pip finds the library when the dataset is not attached")
    added.add_argument(
        "--head", type=Path, action="append", default=[], metavar="DIR",
        help="pack a head with its LICENSE, for sessions without the internet; DIR is named as on the hub, "
        "Qwen3-1.7B_eagle3 for example; may be repeated",
    )  # fmt: skip
    added.add_argument("--out", type=Path, metavar="DIR", help="where it goes; default: build/kaggle")
    added = verb(
        steps,
        check,
        "hold the metadata to the rules of Kaggle's client",
        "Offline. kaggle-metadata.json, and what was built if it is there; exit code 1 if a rule is broken.",
        "kaggle check\n  python -m eagle_repro kaggle check build/kaggle",
    )
    added.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="a build; default: build/kaggle, if it is")


def build(args: argparse.Namespace) -> int:
    """kaggle build: the folders of the kernels and of the dataset."""
    from eagle_repro.kaggle.build import build as make

    built = make(args.out or _usual(), owner=args.owner, repository=args.repo, heads=args.head)
    for kernel in built.kernels:
        print(f"kernel:  {kernel}")
    packed = ", ".join([*built.sets, *built.heads]) or "nothing else"
    print(f"dataset: {built.dataset} (the library with its own data; beside it {packed})")
    kernels = [str(kernel) for kernel in built.kernels]
    document = {"kernels": kernels, "dataset": str(built.dataset), "sets": built.sets, "heads": built.heads}
    return finish(args, document)


def check(args: argparse.Namespace) -> int:
    """kaggle check: every rule that is broken, one a line."""
    from eagle_repro.kaggle.build import SOURCE
    from eagle_repro.kaggle.build import check as judge

    usual = _usual()
    folder = args.folder or (usual if usual.exists() else None)
    faults = judge(SOURCE, folder)
    looked = f"{SOURCE.name}" + (f" and {folder}" if folder else "")
    print("\n".join(faults) if faults else f"{looked}: every rule of Kaggle's client is kept")
    return finish(args, {"checked": looked, "faults": faults}, 1 if faults else 0)


def _usual() -> Path:
    from eagle_repro.sources.paths import PACKAGE

    return PACKAGE.parent / "build" / "kaggle"
