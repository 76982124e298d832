"""Notebook documents: what the runner reads in an executed one, and what of it is fit to be committed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

#: Folders of one machine; Kaggle's own are the same for everybody.
MACHINE_PATH = re.compile(r"(?<![\w.~:/-])/(?:home|root|tmp|work|Users|mnt|var|opt)/[^\s'\"<>]*")


def read(path: Path) -> Any:
    """The notebook at `path`, in the current format."""
    return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    """Its code cells in order, papermill's own parameter cell left out."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and not has_tag(cell, "injected-parameters")]


def has_tag(cell: Any, tag: str) -> bool:
    return tag in cell.get("metadata", {}).get("tags", [])


def require_parameter(notebook: Any, name: str, label: str) -> None:
    """Raise ValueError unless exactly one cell is tagged `parameters` and assigns `name`: papermill writes after it."""
    tagged = [cell for cell in notebook.cells if has_tag(cell, "parameters")]
    if len(tagged) != 1:
        raise ValueError(f"{label} has {len(tagged)} cells tagged parameters: exactly one is needed")
    assigned = {
        target.id
        for node in ast.walk(ast.parse(tagged[0].source))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if name not in assigned:
        raise ValueError(f"{label} does not set {name} in its cell tagged parameters: what is passed would be lost")


def same_sources(executed: Any, original: Any) -> bool:
    """Whether an executed notebook has the text of the original one, cell by cell."""
    texts = [
        [cell.source for cell in each.cells if not has_tag(cell, "injected-parameters")]
        for each in (executed, original)
    ]
    return texts[0] == texts[1]


def ran_to_its_end(notebook: Any, words: str) -> bool:
    """Whether the last code cell was executed and printed a line that starts with `words`."""
    cells = code_cells(notebook)
    if not cells or cells[-1].execution_count is None:
        return False
    printed = "".join(output.text for output in cells[-1].outputs if output.output_type == "stream")
    return any(line.startswith(words) for line in printed.splitlines())


def committable(executed: Any, label: str) -> Any:
    """A copy without what belongs to one run: the injected cell, timestamps, versions, widgets, what went to stderr.

    Cells are numbered afresh. Raises ValueError for an output that names a folder of this machine.
    """
    notebook = nbformat.from_dict(executed)
    notebook.cells = [cell for cell in notebook.cells if not has_tag(cell, "injected-parameters")]
    kept = {"kernelspec": notebook.metadata.get("kernelspec"), "language_info": {"name": "python"}}
    notebook.metadata = nbformat.from_dict({key: value for key, value in kept.items() if value})
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags" and value}
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            for text in _texts(output):
                if found := MACHINE_PATH.search(text):
                    raise ValueError(
                        f"{label}, cell {number} prints a folder of this machine ({found[0]}): print its name"
                    )
    for cell in notebook.cells:
        if cell.cell_type != "code":
            cell.metadata = {}
    return notebook


def write(notebook: Any, path: Path) -> None:
    """Write a notebook so that the file is whole or as before."""
    part = path.with_name(path.name + ".part")
    nbformat.write(notebook, part)
    part.replace(path)


def _texts(output: Any) -> Iterable[str]:
    yield str(output.get("text", ""))
    for kind, value in output.get("data", {}).items():
        if kind.startswith("text/"):
            yield str(value)
