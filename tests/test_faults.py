"""docs/FAULTS.md promises nothing that no test holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.reading import REPOSITORY, syntax_tree

TEXT = (REPOSITORY / "docs" / "FAULTS.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| fault")]
#: What the project says it survives; each must have a row.
PROMISED = (
    "killed", "disk is full", "cut short", "unknown name", "another prefix", "run code", "corrupt line", "checksum",
    "out of memory", "interrupted", "Ctrl-C", "two runs", "clock jumps", "not finite", "cannot be written",
    "wrong type", "not a decoder", "locale",
)  # fmt: skip


def functions_of(file: Path) -> set[str]:
    """The functions of a test file."""
    return {node.name for node in syntax_tree(file).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_every_fault_says_what_is_seen_and_names_a_test_that_exists(row: str) -> None:
    _, fault, seen, _, test, _ = (cell.strip() for cell in row.split("|"))
    assert fault and seen
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(\w+)`", test)
    assert named, test
    assert named[2] in functions_of(REPOSITORY / named[1])


@pytest.mark.parametrize("words", PROMISED)
def test_what_is_promised_has_a_row(words: str) -> None:
    assert any(words in row.split("|")[1] for row in ROWS)
