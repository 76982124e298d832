"""The notebook to fork is our notebooks, whole and in order, with two cells to change and one that installs."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

from eagle_repro.experiments.protocol import build_protocol
from eagle_repro.kaggle.joined import join
from eagle_repro.kaggle.metadata import read
from eagle_repro.present import notebook
from tests.reading import REPOSITORY

NOTEBOOKS = REPOSITORY / "notebooks"
NAMES = read(REPOSITORY / "kaggle-metadata.json")["kernels"][0]["notebooks"]
OPTIONS = {"title": "T", "profile": "t4", "repository": "https://example.org/x", "dataset": "me/kit", "revision": "abc"}


@pytest.fixture(scope="module")
def joined() -> Any:
    return join(NOTEBOOKS, NAMES, **OPTIONS)


def test_it_joins_00_to_06_and_the_report() -> None:
    numbers = [name[:2] for name in NAMES]
    assert numbers == ["00", "01", "02", "03", "04", "05", "06", "11"]


def test_it_is_a_valid_notebook_without_outputs_or_traces_of_a_run(joined: Any) -> None:
    nbformat.validate(joined)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in joined.cells)
    assert set(joined.metadata) == {"kernelspec", "language_info"}


def test_the_two_cells_to_change_come_first_then_the_one_that_installs(joined: Any) -> None:
    models, protocol, setup = notebook.code_cells(joined)[:3]
    notebook.require_parameter(joined, "OVERRIDES", "joined")
    assert models.source == notebook.code_cells(notebook.read(NOTEBOOKS / "00_bench.ipynb"))[0].source
    settings = ast.literal_eval(ast.parse(protocol.source).body[0].value)  # type: ignore[attr-defined]
    assert settings.pop("profile") == "t4" and set(settings.values()) == {None}
    assert {"sets", "questions", "new_tokens", "repeats"} <= set(settings)
    build_protocol({}, settings | {"profile": "smoke"}, {})  # every name is one of a protocol
    assert len(setup.source.splitlines()) <= 16
    assert "git+https://example.org/x@abc" in setup.source and "me/kit" in setup.source
    ast.parse(setup.source)


def test_every_other_cell_is_there_once_and_in_order(joined: Any) -> None:
    wanted = []
    for name in NAMES:
        part = notebook.read(NOTEBOOKS / f"{name}.ipynb")
        wanted += [cell.source for cell in part.cells if cell not in notebook.code_cells(part)[:2]]
    found = [cell.source for cell in joined.cells[4:]]
    assert [text.lstrip("#") for text in found] == [text.lstrip("#") for text in wanted]
    assert sum(cell.source.startswith("# ") for cell in joined.cells if cell.cell_type == "markdown") == 1


def test_nothing_but_the_one_cell_runs_another_program(joined: Any) -> None:
    others = [cell.source for cell in notebook.code_cells(joined) if cell.id != "setup"]
    assert not any(word in source for source in others for word in ("subprocess", "!pip", "%pip", "sys.exit"))


def test_a_tree_that_is_not_committed_says_so_and_an_unknown_one_pins_nothing() -> None:
    for revision, address, stated in (("abc+dirty", "x@abc", "abc+dirty"), (None, "x", "")):
        setup = notebook.code_cells(join(NOTEBOOKS, NAMES[:1], **OPTIONS | {"revision": revision}))[2].source
        assert f'"git+https://example.org/{address}"' in setup
        assert setup.endswith(f'os.environ["EAGLE_REPRO_REVISION"] = "{stated}"')


@pytest.mark.parametrize(
    ("number", "source", "said"),
    [(0, "PAIR = 'x'\nOVERRIDES = {}", "MODELS of 01_roofline"), (0, "PAIR = 1", "does not set OVERRIDES"),
     (1, "x = 1", "not PROTOCOL")],
)  # fmt: skip
def test_notebooks_that_cannot_be_joined_are_refused(tmp_path: Path, number: int, source: str, said: str) -> None:
    for name in NAMES[:2]:
        shutil.copy(NOTEBOOKS / f"{name}.ipynb", tmp_path)
    broken = notebook.read(tmp_path / "01_roofline.ipynb")
    notebook.code_cells(broken)[number].source = source
    notebook.write(broken, tmp_path / "01_roofline.ipynb")
    with pytest.raises(ValueError, match=said):
        join(tmp_path, NAMES[:2], **OPTIONS)
