"""The figures of 04 to 06, 08 and 09: no warning, no overlap, in both languages, and the same file every time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eagle_repro.measure.records import Record
from eagle_repro.present.theme import Picture
from eagle_repro.present.words import WORDS
from tests.present import test_comparison_plots as comparisons
from tests.present import test_stack_plots as stacks
from tests.present.test_plots import require_readable, said

FIGURES = comparisons.FIGURES | stacks.FIGURES


@pytest.fixture(scope="module")
def records(write: Callable[..., Record]) -> dict[str, Record]:
    return comparisons.made(write) | stacks.made(write)


@pytest.mark.parametrize("lang", WORDS)
@pytest.mark.parametrize("name", FIGURES)
def test_no_label_covers_another_or_leaves_the_figure(draw: Callable[..., Picture], name: str, lang: str) -> None:
    picture = draw(name, lang)
    assert "2026-01-31" in said(picture) and picture.finding.split()[0] in said(picture)
    assert all(axes.get_xlabel() for axes in picture.figure.axes)
    require_readable(picture)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_file_every_time(
    draw: Callable[..., Picture], records: dict[str, Record], name: str
) -> None:
    record, figure = FIGURES[name]
    assert draw(name).png() == figure(records[record]).png()
