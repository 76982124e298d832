"""The figures, tables and panel of 03_tree_shape: no warning, no overlap, words that follow the numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from eagle_repro.measure.records import Record
from eagle_repro.measure.tree_shape import comparison, study
from eagle_repro.present import console, panel, shape_plots, shape_tables
from eagle_repro.present.theme import Picture
from eagle_repro.present.words import WORDS
from tests.present.test_plots import require_readable, said
from tests.shape_rows import made_up_rows

FIGURES = {
    "depth": shape_plots.depth_sweep,
    "nodes": shape_plots.node_sweep,
    "top_k": shape_plots.top_k_sweep,
    "costs": shape_plots.cost_curves,
    "prediction": shape_plots.prediction,
    "trap": shape_plots.depth_trap,
    "panel": panel.break_even,
}
PROFILES = ("full", "quick")


@pytest.fixture(scope="module")
def records(write: Callable[..., Record]) -> dict[str, Record]:
    """A study where every point was measured, and one where few were."""
    made = {}
    for profile in PROFILES:
        rows, protocol = made_up_rows(profile)
        made[profile] = write("03_tree_shape", rows, {})
        made[profile].header["protocol"] = protocol.as_record()
    return made


@pytest.fixture(scope="module")
def draw(records: dict[str, Record]) -> Callable[..., Picture]:
    @cache
    def drawn(name: str, profile: str = "full", lang: str = "en") -> Picture:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return FIGURES[name](records[profile], lang)

    return drawn


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("lang", WORDS)
@pytest.mark.parametrize("name", FIGURES)
def test_no_label_covers_another_or_leaves_the_figure(
    draw: Callable[..., Picture], name: str, lang: str, profile: str
) -> None:
    picture = draw(name, profile, lang)
    assert "made-up" in said(picture) and picture.finding.split()[0] in said(picture)
    assert all(axes.get_xlabel() for axes in picture.figure.axes)
    require_readable(picture)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_file_every_time(draw: Callable[..., Picture], records: Any, name: str) -> None:
    assert draw(name).png() == FIGURES[name](records["full"]).png()


def test_titles_follow_the_record(draw: Callable[..., Picture], records: dict[str, Record]) -> None:
    assert draw("depth").finding.startswith("From depth 2 to 10: tau ")
    assert ", speedup " in draw("nodes").finding and ", predicted speedup " in draw("nodes", "quick").finding
    frame = comparison(records["full"])
    worst = 100 * frame["error"].abs().max()
    assert f"{worst:.0f}% at most" in draw("prediction").finding
    assert draw("trap").finding.startswith("On russian the default tree gives 0.")


def test_a_cut_point_carries_the_nodes_it_has(draw: Callable[..., Picture]) -> None:
    assert "1\n(9)" in said(draw("top_k")) and "2\n(31)" in said(draw("top_k"))
    assert "(60)" not in said(draw("top_k")) and "brackets" not in said(draw("depth"))


def test_dots_stand_only_where_something_was_measured(draw: Callable[..., Picture]) -> None:
    def dots(profile: str) -> int:
        lines = draw("depth", profile).figure.axes[1].lines
        return sum(len(line.get_xdata()) for line in lines if line.get_marker() not in ("", "None"))

    assert dots("full") == 3 * 9  # three groups of questions, nine depths
    assert 0 < dots("quick") < 3 * 9


def test_tables_say_what_was_measured_and_what_not(records: dict[str, Record]) -> None:
    picks = shape_tables.picks(records["quick"]).text()
    assert "not measured" in picks and "default, reference, article  (60, 7, 10)" in picks
    assert "(slower)" in picks
    compared = shape_tables.comparison(records["full"])
    assert f"({len(compared.rows)} of {len(compared.rows)})" in compared.text()
    for each in (shape_tables.sweep(records["full"], "top_k"), shape_tables.costs(records["full"])):
        assert "made-up" in each.text() and "nan" not in each.text()
    assert "draft, top_k 10" in shape_tables.costs(records["full"]).text()


def test_the_adaptive_table_says_what_it_is_compared_with(records: dict[str, Record]) -> None:
    made = shape_tables.adaptive(records["full"])
    assert len(made.rows) == 4 and "luck is on its side" in made.text() and "nan" not in made.text()
    before = replace(records["full"], rows=[row for row in records["full"].rows if row.get("method") != "adaptive"])
    assert shape_tables.adaptive(before).rows == ()
    assert "no runs of the adaptive method" in shape_tables.adaptive(before).text()
    assert [each.title for each in console.of(records["quick"])][-1] == made.title


# The panel


def test_nobody_watching_gets_the_picture(records: dict[str, Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "watched_in", lambda: None)
    assert isinstance(panel.panel(records["full"]), Picture)


def test_a_slider_that_moves_changes_what_is_said(records: dict[str, Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "watched_in", lambda: "notebook")
    box = panel.panel(records["full"])
    *sliders, html = box.children
    moved = {slider.description: slider for slider in sliders}
    assert set(moved) == {"tau", "nodes", "depth", "batch"}
    before = html.value
    assert "as fast as plain decoding" in before
    moved["tau"].value = 5.0
    assert html.value != before
    twice = float(html.value.split(">")[1].split("x")[0])
    moved["tau"].value = 2.5
    assert float(html.value.split(">")[1].split("x")[0]) == pytest.approx(twice / 2, abs=0.01)
    moved["batch"].value = 64
    assert "not measured here" in html.value


def test_the_panel_guesses_nothing_beyond_the_curves(records: dict[str, Record]) -> None:
    known = study(records["quick"])
    text = panel.predicted(known.curves, 3.0, known.default, 3)
    assert text == "not measured here: t_verify(nodes) was measured from 2 to 128, and 180 was asked for"
