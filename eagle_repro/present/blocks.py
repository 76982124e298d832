"""Tables and figures in a Markdown page that come from committed records: a page says where one stands, this makes it.

    <!-- table: speedup results/BENCH/02_speedup.jsonl -->
    ... replaced by present.tables.speedup of that record; training_tables.run would be present.training_tables.run ...
    <!-- end -->

    ![What it shows](figures/BENCH/speedup_by_set.png)    drawn from results/BENCH: the gallery's figure of that name

`python -m eagle_repro.present.blocks README.md` rewrites both; a test says when a page or a figure is out of date.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from eagle_repro.measure.claims import read_run
from eagle_repro.measure.records import read_record
from eagle_repro.present.gallery import draw
from eagle_repro.present.theme import Picture

BLOCK = re.compile(r"(<!-- table: (?P<name>[\w.]+) (?P<record>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"\((?P<path>figures/(?P<bench>[\w.-]+)/(?P<name>\w+)\.png)\)")


def refresh(page: str, root: Path) -> str:
    """The page with every table written anew from its record, a path below `root`.

    Raises ValueError for a table that present does not have, FileNotFoundError for a missing record.
    """

    def written(block: re.Match[str]) -> str:
        module, _, name = block["name"].rpartition(".")
        try:
            make = getattr(import_module(f"eagle_repro.present.{module or 'tables'}"), name)
        except (ModuleNotFoundError, AttributeError):
            raise ValueError(f"there is no table {block['name']!r} in present: mend the mark in the page") from None
        return f"{block[1]}{make(read_record(root / block['record'])).markdown()}\n{block[4]}"

    return BLOCK.sub(written, page)


def pictures(page: str, root: Path) -> dict[Path, Picture]:
    """The figures that a page shows, by the path below `root` that they belong to.

    Raises ValueError for a figure that the gallery does not have or its records cannot give.
    """
    drawn = {}
    for found in FIGURE.finditer(page):
        picture = draw(read_run(root / "results" / found["bench"]), found["name"], "en")
        if picture is None:
            raise ValueError(
                f"results/{found['bench']} has no record for the figure {found['name']!r}: measure it first"
            )
        drawn[root / found["path"]] = picture
    return drawn


def main(paths: list[str]) -> None:
    """Rewrite the tables of these pages in place and draw their figures; records are looked up beside each page."""
    for path in map(Path, paths):
        path.write_text(refresh(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")
        for place, picture in pictures(path.read_text(encoding="utf-8"), path.parent).items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(picture.png())


if __name__ == "__main__":
    main(sys.argv[1:])
