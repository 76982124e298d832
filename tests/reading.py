"""Reading the repository's own files, for the tests that hold rules over them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def syntax_tree(path: Path) -> ast.Module:
    """The syntax tree of a Python file, or of all code cells of a notebook without its magics."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        lines = "\n".join("".join(cell["source"]) for cell in cells).split("\n")
        text = "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))
    return ast.parse(text, filename=str(path))
