"""The notebooks keep to their form, and nbval really compares their checked cells."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.reading import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
IGNORED = "nbval-ignore-output"
MODELS = {"PAIR", "TARGET", "HEAD", "DEVICE", "DTYPE", "STACK", "RECORDS", "OVERRIDES"}
LONGEST_CELL = 15  # lines
MACHINE = re.compile(r"/(?:home|root|tmp|work|usr|Users|opt)/|[A-Z]:\\\\")
RELATIVE = re.compile(r"""["'](?:\.{1,2}/|[\w.-]+/[\w./-]*\.\w+)""")
CELL_TIMEOUT_S = 120  # as `make check-notebooks` has it
SHORT_TIMEOUT_S = 15  # for a cell that never answers: nbval waits all of it


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def faults(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """One line for each rule that a notebook breaks."""
    cells = code_cells(notebook)
    if notebook.cells[0].cell_type != "markdown" or not notebook.cells[0].source.startswith("# "):
        yield "the first cell is not a title"
    if [number for number, cell in enumerate(cells) if "parameters" in tags(cell)] != [0]:
        yield "not exactly the first code cell is tagged parameters"
    if literal_names(cells[0].source) != MODELS:
        yield f"MODELS must be the plain literals {sorted(MODELS)}"
    if literal_names(cells[1].source) != {"PROTOCOL"}:
        yield "the second code cell is not the literal PROTOCOL"
    if not all(line.startswith(("import ", "from ")) for line in cells[2].source.splitlines()):
        yield "the third code cell is more than imports"
    if "session.close(" not in cells[-1].source:
        yield "the last code cell does not close the session"
    if not 1 <= sum(checked(cell) for cell in cells) <= 2:
        yield "there must be one or two checked cells"
    yield from (f"metadata has {name}" for name in ("widgets", "papermill") if name in notebook.metadata)
    for number, cell in enumerate(cells):
        yield from (f"code cell {number}: {fault}" for fault in cell_faults(cell))


def checked(cell: nbformat.NotebookNode) -> bool:
    """Whether nbval compares the cell."""
    return bool(cell.outputs) and IGNORED not in tags(cell)


def literal_names(source: str) -> set[str] | None:
    """The names that a cell assigns plain literals to; None if it does anything else."""
    try:
        statements = ast.parse(source).body
        for statement in statements:
            assert isinstance(statement, ast.Assign) and len(statement.targets) == 1
            ast.literal_eval(statement.value)
        return {ast.unparse(statement.targets[0]) for statement in statements}
    except (AssertionError, ValueError, SyntaxError):
        return None


def cell_faults(cell: nbformat.NotebookNode) -> Iterator[str]:
    if len(cell.source.splitlines()) > LONGEST_CELL:
        yield f"longer than {LONGEST_CELL} lines"
    if re.search(r"^\s*(?:def|class|async|!|%|@)|sys\.exit|\bexit\(|\bquit\(", cell.source, re.MULTILINE):
        yield "def, class, shell command, magic or exit"
    if RELATIVE.search(cell.source):
        yield "a path"
    outputs = str(cell.outputs)
    if cell.outputs and cell.execution_count is None:
        yield "output without an execution count: nbval would not run it"
    if any(out.output_type == "error" or out.get("name") == "stderr" for out in cell.outputs):
        yield "an error or stderr in the output"
    if MACHINE.search(outputs):
        yield "a path of one machine in the output"
    if checked(cell) and not re.fullmatch(r"checked\.\w+\(\)", cell.source):
        yield f"output without the tag {IGNORED}, and not of the checked cells' own call"
    if checked(cell) and not all(out.output_type == "stream" for out in cell.outputs):
        yield "a checked cell that does more than print"


@pytest.fixture(params=NOTEBOOKS, ids=NAMES)
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=4)


def test_names_are_numbered() -> None:
    assert NAMES, "no notebooks"
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+", name) for name in NAMES)
    assert len({name[:2] for name in NAMES}) == len(NAMES)


def test_a_notebook_keeps_to_the_form(notebook: nbformat.NotebookNode) -> None:
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert list(faults(notebook)) == []


def test_every_call_is_followed_by_a_sentence(notebook: nbformat.NotebookNode) -> None:
    kinds = [cell.cell_type for cell in notebook.cells[4:-1]]
    assert kinds == ["code", "markdown"] * (len(kinds) // 2)


@pytest.mark.parametrize(
    ("number", "source", "fault"),
    [
        (0, "PAIR = 'a'.upper()", "plain literals"),
        (0, "PAIR = 'auto'", "plain literals"),
        (1, "PROTOCOL = {'questions': len('ab')}", "literal PROTOCOL"),
        (1, "PROTOCOL = {}\nsys.exit(0)", "exit"),
        (2, "import torch\ntorch.manual_seed(0)", "more than imports"),
        (3, "def f():\n    pass", "def"),
        (3, "!pip install x", "shell command"),
        (3, "open('../data/x.json')", "a path"),
        (3, "x = 1\n" * 16, "longer"),
        (-1, "print('done')", "close the session"),
    ],
)
def test_a_broken_cell_is_caught(number: int, source: str, fault: str) -> None:
    broken = nbformat.read(NOTEBOOKS[0], as_version=4)
    code_cells(broken)[number].source = source
    assert any(fault in found for found in faults(broken))


def test_an_output_that_is_neither_checked_nor_ignored_is_caught() -> None:
    broken = nbformat.read(NOTEBOOKS[0], as_version=4)
    cell = next(cell for cell in code_cells(broken) if IGNORED in tags(cell) and cell.outputs)
    cell.metadata.tags.remove(IGNORED)
    assert any(IGNORED in found for found in faults(broken))


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (nbformat.v4.new_output("stream", name="stderr", text="careful"), "stderr"),
        (nbformat.v4.new_output("stream", name="stdout", text="in /home/me/x"), "a path of one machine"),
        (nbformat.v4.new_output("execute_result", data={"text/plain": "7"}, execution_count=1), "more than print"),
    ],
)
def test_a_bad_output_is_caught(output: nbformat.NotebookNode, fault: str) -> None:
    broken = nbformat.read(NOTEBOOKS[0], as_version=4)
    cell = next(cell for cell in code_cells(broken) if checked(cell))
    cell.outputs.append(output)
    assert any(fault in found for found in faults(broken))
    cell.execution_count = None
    assert any("execution count" in found for found in faults(broken))


# nbval itself, on the quickest notebook: the documented command of `make check-notebooks`.


def nbval(path: Path, cell_timeout: int = CELL_TIMEOUT_S, package: Path | None = None) -> tuple[int, str, float]:
    """Exit status, output and seconds of a strict nbval run; `package` comes first on the kernel's path."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]
    command += ["--nbval-cell-timeout", str(cell_timeout), "--rootdir", str(path.parent), "-c", os.devnull, str(path)]
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "EAGLE_REPRO_"))}
    environment = {**keep, "EAGLE_REPRO_PROFILE": "smoke", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(package)} if package else {}
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the first notebook that writes its record beside itself."""
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    models = code_cells(notebook)[0]
    assert "OVERRIDES = {}" in models.source
    models.source = models.source.replace("OVERRIDES = {}", f"OVERRIDES = {{'out': {str(tmp_path / 'out')!r}}}")
    path = tmp_path / NOTEBOOKS[0].name
    nbformat.write(notebook, path)
    return path


@pytest.mark.slow
def test_nbval_passes_twice_in_a_row(copy: Path) -> None:
    for _ in range(2):
        status, said, _ = nbval(copy)
        assert status == 0, said


@pytest.mark.slow
def test_nbval_bites_on_a_changed_digit(copy: Path) -> None:
    changed = nbformat.read(copy, as_version=4)
    cell = next(cell for cell in code_cells(changed) if checked(cell))
    text = cell.outputs[0].text
    digit = re.search(r"\d", text)
    assert digit, "a checked cell prints integers"
    cell.outputs[0].text = text[: digit.start()] + str((int(digit[0]) + 1) % 10) + text[digit.end() :]
    nbformat.write(changed, copy)
    status, said, _ = nbval(copy)
    assert status == 1, said
    assert "1 failed" in said and "checked." in said


#: One line that a slip could change: its file, what stands there, and the slip.
SLIPS = {
    "nothing": ("__about__.py", "__version__ = ", "__version__ = "),
    "tap layer": ("engine/target.py", "self.taps = (2, self.layers // 2,", "self.taps = (3, self.layers // 2,"),
    "mask": ("engine/tree.py", "return reach > 0", "return reach >= 0"),
    "average": ("measure/stats.py", "len(accepted) + 1", "len(accepted)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("slip", SLIPS)
def test_nbval_bites_on_one_wrong_line_of_the_package(slip: str, tmp_path: Path) -> None:
    file, right, wrong = SLIPS[slip]
    package = shutil.copytree(REPOSITORY / "eagle_repro", tmp_path / "package" / "eagle_repro")
    (tmp_path / "package" / "data").symlink_to(REPOSITORY / "data")
    text = (package / file).read_text(encoding="utf-8")
    assert text.count(right) == 1, f"{file} reads differently now: choose the line anew"
    (package / file).write_text(text.replace(right, wrong), encoding="utf-8")
    short = nbformat.read(REPOSITORY / "notebooks" / "02_speedup.ipynb", as_version=4)
    short.cells = [cell for cell in code_cells(short) if checked(cell) or cell.source.startswith("from ")]
    nbformat.write(short, tmp_path / "short.ipynb")
    status, said, _ = nbval(tmp_path / "short.ipynb", package=tmp_path / "package")
    assert status == (0 if slip == "nothing" else 1), said
    assert slip == "nothing" or "checked.speedup()" in said


@pytest.mark.slow
def test_a_dead_kernel_fails_in_time(copy: Path) -> None:
    deadly = nbformat.read(copy, as_version=4)
    code_cells(deadly)[3].source = "import os\nos._exit(9)"
    nbformat.write(deadly, copy)
    status, said, seconds = nbval(copy, SHORT_TIMEOUT_S)
    assert status != 0, said
    assert seconds < SHORT_TIMEOUT_S + 60
