"""The notebook that people fork: several of ours in one, with the two cells to change first.

Every cell is taken over as it is, but for the cells MODELS and PROTOCOL, which stand once, at the top, and titles,
which become headings. What is added is a title and the one cell that installs the library.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from eagle_repro.present import notebook

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}

TITLE = """\
# {title}

**A speedup belongs to the bench, not to the method.** This notebook measures speculative decoding with EAGLE-3 on your
own session, a free T4 is enough, and says after each step what was seen. Records are kept as they grow.

1. *Settings, Accelerator*: choose **GPU T4 x2**. One of the two is used.
2. Change the two cells MODELS and PROTOCOL, or leave them as they are.
3. *Run All*. Records, figures and a report appear in the output.

It runs with the internet on (what is not attached is downloaded) and off (attach the models and the dataset with the
library: *Add Input*). Source: {repository}
"""

# The library of the attached dataset comes first: a fork then runs what its author ran, also without the internet.
# --no-deps, because nothing that this session has imported may be replaced under it.
SETUP = """\
# SETUP: the library, from the attached dataset or else from its repository. Nothing to change here.
import importlib.util, os, subprocess, sys
from pathlib import Path

inputs = Path(os.environ.get("KAGGLE_CACHE_MOUNT_FOLDER") or "/kaggle/input")
wheels = [wheel for place in ("*", "datasets/*/*") for wheel in inputs.glob(f"{{place}}/eagle_repro-*.whl")]
source, index = (str(max(wheels)), ["--no-index"]) if wheels else ("git+{address}", [])
advice = "{advice}"
if importlib.util.find_spec("eagle_repro") is None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", *index, source]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip cannot install {{source}}: {{advice}} ({{done.stderr.strip()[-300:]}})")
    importlib.invalidate_caches()
os.environ["EAGLE_REPRO_REVISION"] = "{revision}"
"""


def join(
    folder: Path, names: Sequence[str], *, title: str, profile: str, repository: str, dataset: str, revision: str | None
) -> Any:
    """The notebooks `names` of `folder` as one, without outputs.

    title: its heading; profile: what its PROTOCOL names; repository: where pip finds the library when `dataset`
    (OWNER/SLUG) is not attached, at the commit of `revision` (as git_revision gives it) where that is known. Raises
    ValueError for notebooks whose first two code cells are not MODELS and PROTOCOL, or whose MODELS differ.
    """
    parts = {name: notebook.read(folder / f"{name}.ipynb") for name in names}
    heads = {name: _two_cells(part, name) for name, part in parts.items()}
    models, protocol = next(iter(heads.values()))[0], {"profile": profile}
    for name, (own, settings) in heads.items():
        if own != models:
            raise ValueError(f"the cell MODELS of {name} is not that of {names[0]}: make them equal")
        protocol |= {key: value for key, value in settings.items() if key != "profile"}
    commit = f"@{revision.removesuffix('+dirty')}" if revision else ""
    setup = SETUP.format(
        address=repository + commit,
        advice=f"attach the dataset {dataset} (Add Input), or turn the internet on (Settings)",
        revision=revision or "",
    )
    cells = [
        _markdown("title", TITLE.format(title=title, repository=repository)),
        _code("models", models, tags=["parameters"]),
        _code("protocol", _protocol_cell(protocol)),
        _code("setup", setup.strip()),
        *(cell for name, part in parts.items() for cell in _section(part, name[:2])),
    ]
    return nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}
    )


def _two_cells(part: Any, name: str) -> tuple[str, dict[str, Any]]:
    """The text of MODELS, and what PROTOCOL says."""
    notebook.require_parameter(part, "OVERRIDES", name)
    models, protocol = notebook.code_cells(part)[:2]
    statement = ast.parse(protocol.source).body[0]
    if not (isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "PROTOCOL"):
        raise ValueError(f"the second code cell of {name} is not PROTOCOL: put it there")
    return models.source, ast.literal_eval(statement.value)


def _protocol_cell(protocol: Mapping[str, Any]) -> str:
    lines = "\n".join(f'    "{name}": {_literal(value)},' for name, value in protocol.items())
    comment = "# PROTOCOL: the second cell to change. None takes the value of the profile."
    return f"{comment}\nPROTOCOL = {{\n{lines}\n}}"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _section(part: Any, number: str) -> list[Any]:
    """The cells of one notebook after its two first code cells, its title as a heading."""
    kept = [cell for cell in part.cells if cell not in notebook.code_cells(part)[:2]]
    made = []
    for cell in kept:
        name = f"{number}-{cell.id}"
        if cell.cell_type == "code":
            made.append(_code(name, cell.source, tags=cell.metadata.get("tags", [])))
        else:
            made.append(_markdown(name, f"#{cell.source}" if cell.source.startswith("# ") else cell.source))
    return made


def _code(name: str, source: str, tags: Sequence[str] = ()) -> Any:
    return nbformat.v4.new_code_cell(source, id=name, metadata={"tags": list(tags)} if tags else {})


def _markdown(name: str, source: str) -> Any:
    return nbformat.v4.new_markdown_cell(source.strip(), id=name)
