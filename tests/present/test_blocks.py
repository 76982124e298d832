"""The README's tables and figures are what the committed records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eagle_repro.present import blocks
from tests.reading import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_tables_of_the_readme_come_from_the_records() -> None:
    assert blocks.BLOCK.search(README), "the README shows no table"
    assert blocks.refresh(README, REPOSITORY) == README, "run: python -m eagle_repro.present.blocks README.md"


def test_the_figures_of_the_readme_are_there_and_have_their_records() -> None:
    shown = blocks.pictures(README, REPOSITORY)
    assert shown, "the README shows no figure"
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in shown)


def test_a_changed_number_is_noticed() -> None:
    number = re.search(r"\d\.\d\d(?=x )", README)
    assert number is not None, "the README's table has no speedup"
    changed = README[: number.start()] + "9.99" + README[number.end() :]
    assert blocks.refresh(changed, REPOSITORY) != changed


@pytest.mark.parametrize("name", ["nothing", "training_tables.nothing", "nowhere.run"])
def test_a_table_that_does_not_exist_is_refused(name: str) -> None:
    page = f"<!-- table: {name} results/x/02_speedup.jsonl -->\n<!-- end -->"
    with pytest.raises(ValueError, match=f"no table '{name}'"):
        blocks.refresh(page, REPOSITORY)


def test_a_missing_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="02_speedup"):
        blocks.refresh("<!-- table: speedup 02_speedup.jsonl -->\n<!-- end -->", tmp_path)
