"""The rooms of the library keep to their directions: who may import whom, at any level of a file.

An import inside a function or under TYPE_CHECKING counts like any other: a room that names another room's
type depends on it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle_repro import HOMES
from tests.reading import REPOSITORY, syntax_tree

PACKAGE = "eagle_repro"
PUBLIC = {f"{PACKAGE}.{name}" for name in HOMES}

# The part of measure that works on records alone; the rest measures, and loads torch.
READS_RECORDS = ("records", "stats", "cost", "summary", "claims")
READS_RECORDS += ("replay", "curves", "tree_shape", "branching", "sizes", "exactness", "lines", "training", "domain")
READS_RECORDS += ("stacks", "scaling")

# What of ours a module may import; the longest matching name rules. None: on top of all rooms, free.
OURS: dict[str, tuple[str, ...] | None] = {
    "engine": ("engine",),
    "sources": ("sources",),
    "measure": ("measure",),
    "measure.lossless": ("measure", "engine"),
    "measure.roofline": ("measure", "engine"),
    "present": ("present", *(f"measure.{name}" for name in READS_RECORDS)),
    "training": ("training", "engine", "sources"),
    "api": ("engine", "sources", "measure.timing", "measure.roofline"),
    "experiments": ("experiments", "api", "engine", "measure", "sources", "training"),
    "notebooks": ("", "experiments", "present", "runner"),
    **dict.fromkeys(["__init__", "__about__", "__main__", "cli", "runner", "kaggle"], None),
}

TORCH = ("torch", "transformers", "accelerate", "safetensors.torch")
PLOTS = ("matplotlib", "seaborn", "ipywidgets")

# What of others a room never imports, but for the modules named.
OTHERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "engine": (("transformers", "pandas", *PLOTS), ("engine.target", "engine.attention")),
    "sources": (("torch", "safetensors.torch", *PLOTS), ("sources.embedded",)),
    "measure": (PLOTS, ()),
    "present": (TORCH, ()),
}


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether the dotted name is one of the prefixes or lies under one."""
    return any(name == prefix or (prefix and name.startswith(f"{prefix}.")) for prefix in prefixes)


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports; relative imports start from `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def module_of(root: Path, name: str) -> str:
    """The module of ours that a dotted name comes from: itself, the module that defines it, or its home."""
    parts = name.split(".")
    if len(parts) == 2 and parts[1] in HOMES:
        return HOMES[parts[1]]
    if len(parts) == 2 and parts[1] == "__version__":
        return f"{PACKAGE}.__about__"
    path = root.joinpath(*parts)
    return name if path.is_dir() or path.with_suffix(".py").is_file() else name.rpartition(".")[0]


def verdict(root: Path, module: str, name: str) -> str | None:
    """Why `module` (its name inside the package, or "notebooks") may not import `name`; None: it may."""
    rule = max((known for known in OURS if within(module, (known,))), key=len, default=None)
    if rule is None:
        return "belongs to no known room: give it a row in tests/test_rooms.py"
    if within(name, (PACKAGE,)):
        inside = module_of(root, name).removeprefix(PACKAGE).removeprefix(".")
        public = module == "notebooks" and name in PUBLIC
        allowed = OURS[rule]
        if not (allowed is None or public or inside == "__about__" or within(inside, allowed)):
            return f"imports {name}; of ours it may import {', '.join(filter(None, allowed))}"
        return None
    never, but = OTHERS.get(module.split(".")[0], ((), ()))
    if within(name, never) and module not in but:
        return f"imports {name}, which is not for {module.split('.')[0]}"
    return None


def sources(root: Path) -> Iterator[tuple[Path, str, str, ast.AST]]:
    """File, module name, package of relative imports and syntax tree of every module and notebook."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = list(path.relative_to(root / PACKAGE).with_suffix("").parts)
        package = ".".join([PACKAGE, *parts[:-1]])
        module = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        yield path, module, package, syntax_tree(path)
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        yield path, "notebooks", "", syntax_tree(path)


def violations(root: Path) -> list[str]:
    """One line for every import that goes against the directions."""
    found = []
    for path, module, package, tree in sources(root):
        for line, name in imports(tree, package):
            reason = verdict(root, module, name)
            if reason:
                found.append(f"{path.relative_to(root)}:{line} {reason}")
    return found


def test_rooms_import_only_what_they_may() -> None:
    assert violations(REPOSITORY) == []


def plant(root: Path, where: str, text: str) -> None:
    path = root / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small package in which every import is legal."""
    plant(tmp_path, "eagle_repro/__init__.py", "from eagle_repro.__about__ import __version__\n")
    plant(tmp_path, "eagle_repro/__about__.py", "__version__ = '1'\n")
    plant(tmp_path, "eagle_repro/api.py", "from eagle_repro.measure import timing\n")
    plant(tmp_path, "eagle_repro/cli.py", "from eagle_repro import runner\nfrom .present import plots\n")
    plant(tmp_path, "eagle_repro/runner.py", "import papermill\n")
    plant(tmp_path, "eagle_repro/engine/__init__.py", "")
    plant(tmp_path, "eagle_repro/engine/tree.py", "import torch\nfrom .shape import TreeShape\n")
    plant(tmp_path, "eagle_repro/engine/shape.py", "class TreeShape: ...\n")
    plant(tmp_path, "eagle_repro/engine/target.py", "def f():\n    import transformers\n")
    plant(tmp_path, "eagle_repro/measure/__init__.py", "")
    plant(tmp_path, "eagle_repro/measure/timing.py", "import torch\n")
    plant(tmp_path, "eagle_repro/measure/records.py", "from eagle_repro import __version__\n")
    plant(tmp_path, "eagle_repro/measure/lossless.py", "from eagle_repro.engine.tree import DraftTree\n")
    plant(tmp_path, "eagle_repro/present/plots.py", "from eagle_repro.measure.records import read_record\n")
    plant(tmp_path, "eagle_repro/sources/embedded.py", "import torch\n")
    plant(tmp_path, "eagle_repro/experiments/speedup.py", "from eagle_repro.api import generate\n")
    notebook = "%matplotlib inline\nimport eagle_repro as er\nfrom eagle_repro import load_pair\n"
    cells = [{"cell_type": "code", "source": notebook + "from eagle_repro.experiments import speedup\n"}]
    plant(tmp_path, "notebooks/00_bench.ipynb", json.dumps({"cells": cells}))
    return tmp_path


def test_a_legal_package_passes(package: Path) -> None:
    assert violations(package) == []


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("engine/tree.py", "from eagle_repro.sources.pairs import PAIRS"),
        ("engine/tree.py", "def f():\n    from ..measure import timing"),
        ("engine/tree.py", "from eagle_repro import generate"),
        ("engine/tree.py", "import eagle_repro as er"),
        ("engine/cycle.py", "import transformers"),
        ("engine/cycle.py", "from transformers.cache_utils import Cache"),
        ("sources/resolve.py", "import torch"),
        ("sources/resolve.py", "from safetensors.torch import load_file"),
        ("sources/embedded.py", "from eagle_repro.engine import head"),
        ("measure/timing.py", "from eagle_repro.engine.shape import TreeShape"),
        ("measure/lossless.py", "from eagle_repro.api import Pair"),
        ("measure/stats.py", "import matplotlib.pyplot as plt"),
        ("present/plots.py", "def f():\n    import torch.nn as nn"),
        ("present/plots.py", "from eagle_repro.measure import timing"),
        ("present/plots.py", "from eagle_repro.measure import *"),
        ("present/plots.py", "from eagle_repro import TreeShape"),
        ("present/plots.py", "if TYPE_CHECKING:\n    from eagle_repro.api import Pair"),
        ("training/train.py", "from eagle_repro.measure import records"),
        ("api.py", "from .measure import bench"),
        ("api.py", "from eagle_repro import cli"),
        ("experiments/speedup.py", "from eagle_repro.present import plots"),
        ("experiments/speedup.py", "import importlib\nimportlib.import_module('eagle_repro.runner')"),
        ("newcomer/thing.py", "import json"),
    ],
)
def test_a_wrong_import_is_caught(package: Path, where: str, text: str) -> None:
    plant(package, f"eagle_repro/{where}", text)
    found = violations(package)
    assert len(found) == 1, found
    assert where in found[0]


@pytest.mark.parametrize(
    "text", ["from eagle_repro.engine.tree import DraftTree", "import eagle_repro.measure.records"]
)
def test_a_wrong_import_in_a_notebook_is_caught(package: Path, text: str) -> None:
    plant(package, "notebooks/01.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": [text]}]}))
    found = violations(package)
    assert len(found) == 1, found
    assert "notebooks/01.ipynb:1" in found[0]
