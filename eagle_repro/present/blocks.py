"""Tables in a Markdown page that come from committed records: a page says where one stands, this writes it.

    <!-- table: speedup results/BENCH/02_speedup.jsonl -->
    ... replaced by present.tables.speedup of that record ...
    <!-- end -->

`python -m eagle_repro.present.blocks README.md` rewrites every block; a test says when a page is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from eagle_repro.measure.records import read_record
from eagle_repro.present import tables

BLOCK = re.compile(r"(<!-- table: (?P<name>\w+) (?P<record>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refresh(page: str, root: Path) -> str:
    """The page with every block written anew from its record, a path below `root`.

    Raises ValueError for a table that present.tables does not have, FileNotFoundError for a missing record.
    """

    def written(block: re.Match[str]) -> str:
        make = getattr(tables, block["name"], None)
        if make is None:
            raise ValueError(f"there is no table {block['name']!r} in present.tables: mend the mark in the page")
        return f"{block[1]}{make(read_record(root / block['record'])).markdown()}\n{block[4]}"

    return BLOCK.sub(written, page)


def main(paths: list[str]) -> None:
    """Rewrite the blocks of these pages in place; records are looked up beside each page."""
    for path in map(Path, paths):
        path.write_text(refresh(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
