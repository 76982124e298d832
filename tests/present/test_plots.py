"""Every figure says one thing, says it without a warning in both languages, and is the same file every time."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

from eagle_repro.measure.records import Record
from eagle_repro.present import plots
from eagle_repro.present.theme import METHOD_COLOURS, Picture
from eagle_repro.present.words import WORDS
from tests.reading import REPOSITORY

FIGURES = {
    "roofline": plots.roofline,
    "speedup": plots.speedup_by_set,
    "tau": plots.tau_by_set,
    "phases": plots.cycle_phases,
    "prediction": plots.predicted_vs_measured,
}
CPU_CARD = "Процессор, 2 ядра".encode("unicode_escape")
Draw = Callable[[str, str], Picture]


@pytest.fixture(scope="module")
def draw(roofline: Record, speedup: Record) -> Draw:
    """Draw a figure by name and language, once, with every warning an error."""

    @cache
    def drawn(name: str, lang: str = "en") -> Picture:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            picture = FIGURES[name](roofline if name == "roofline" else speedup, lang)
            assert picture.png().startswith(b"\x89PNG")
        return picture

    return drawn


def texts(picture: Picture) -> list[Text]:
    found = [text for text in picture.figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return found


def said(picture: Picture) -> str:
    return "\n".join(text.get_text() for text in texts(picture))


@pytest.mark.parametrize("lang", WORDS)
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_draws_without_warning_and_names_its_bench(draw: Draw, name: str, lang: str) -> None:
    picture = draw(name, lang)
    words = said(picture)
    for part in (CPU_CARD.decode("unicode_escape"), "made-up", "float32", "eager"):
        assert part in words
    assert picture.finding.split()[0] in words
    assert all(axes.get_xlabel() for axes in picture.figure.axes)
    assert picture.finding == repr(picture).removeprefix("Figure: ")


@pytest.mark.parametrize("lang", WORDS)
@pytest.mark.parametrize("name", FIGURES)
def test_no_label_covers_another_or_leaves_the_figure(draw: Draw, name: str, lang: str) -> None:
    require_readable(draw(name, lang))


def require_readable(picture: Picture) -> None:
    """Every label within the figure, and none over another."""
    figure = picture.figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in shown(figure)]
    for text, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0, text
        assert box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height, text
    covered = [(a, b) for (a, one), (b, two) in combinations(boxes, 2) if one.shrunk(0.9, 0.7).overlaps(two)]
    assert covered == []


def shown(figure: object) -> list[Text]:
    """The texts that are really drawn: ticks beyond the axis limits are not."""
    out = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            inside = {id(tick.label1) for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high}
            out += [t for t in axis.get_majorticklabels() if id(t) in inside and t.get_visible() and t.get_text()]
        out += [text for text in [*axes.texts, axes.xaxis.label, axes.yaxis.label] if text.get_text()]
        out += [axes._left_title] if axes._left_title.get_text() else []
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    return [*out, *legends, *figure.texts]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_file_every_time(
    draw: Draw, roofline: Record, speedup: Record, name: str, tmp_path: Path
) -> None:
    picture = FIGURES[name](roofline if name == "roofline" else speedup)
    assert picture.png() == draw(name).png()
    assert plots.save(picture, name, tmp_path) is picture
    stored = (tmp_path / "figures" / f"{name}.png").read_bytes()
    assert stored == picture.png() == picture._repr_png_()
    assert b"tEXt" not in stored and b"tIME" not in stored


def test_titles_follow_the_record(draw: Draw) -> None:
    assert "Up to 8 tokens" in draw("roofline").finding
    # 48 tokens after the prefill's: Russian takes 29 cycles of 0.4 s (1, 0, 1 accepted) and 18 (2, 1, 2); 0.1 s a step.
    worst = 2 * 48 * 0.1 / ((29 + 18) * 0.4)
    assert draw("speedup").finding.endswith(f"on code and {worst:.2f}x on russian")
    assert "A cycle costs 4.0 plain steps" in draw("phases").finding


def test_the_steepest_roofline_claims_nothing_flat(write: Callable[..., Record]) -> None:
    rows = [{"key": f"pass/{n}/0", "tokens": n, "repeat": 0, "context": 1, "seconds": 0.1 * n} for n in (1, 2, 4)]
    record = write("01_roofline", rows, {}, bandwidth_gb_s=None, peak_gb_s=None, weight_bytes=None)
    assert plots.roofline(record).finding == WORDS["en"]["pass_not_flat"]


def test_a_loss_stands_left_of_the_line_of_its_baseline(draw: Draw) -> None:
    against_plain, against_hf = draw("speedup").figure.axes
    for axes, method in ((against_plain, "plain"), (against_hf, "hf")):
        line = next(line for line in axes.lines if list(line.get_xdata()) == [1.0, 1.0])
        assert line.get_color() == METHOD_COLOURS[method]
    dots = [line for line in against_plain.lines if line.get_marker() == "o"]
    assert [float(dot.get_xdata()[0]) < 1 for dot in dots] == [False, False, True, True]
    assert {to_hex(dot.get_color()) for dot in dots} == {METHOD_COLOURS["eagle"]}


def test_missing_measurements_are_refused_by_name(write: Callable[..., Record], speedup: Record) -> None:
    rows = [dict(row) for row in speedup.rows if row["kind"] == "run" and not row["instrumented"]]
    bare = write("02_speedup", [{k: v for k, v in row.items() if k != "kind"} for row in rows], {})
    for figure in (plots.cycle_phases, plots.predicted_vs_measured):
        with pytest.raises(ValueError, match="02_speedup.jsonl has no .* instrument_cycles"):
            figure(bare)
    with pytest.raises(ValueError, match="lang='de'.*en and ru"):
        plots.tau_by_set(bare, lang="de")


def test_methods_stay_apart_in_grey() -> None:
    grey = sorted(0.299 * r + 0.587 * g + 0.114 * b for r, g, b in map(to_rgb, METHOD_COLOURS.values()))
    assert min(high - low for low, high in zip(grey, grey[1:], strict=False)) > 0.05


def test_both_languages_say_everything() -> None:
    assert WORDS["en"].keys() == WORDS["ru"].keys()


def test_a_cyrillic_figure_and_table_survive_a_c_locale(speedup: Record, tmp_path: Path) -> None:
    code = f"""
from eagle_repro.measure.records import read_record
from eagle_repro.present import plots, tables
import sys
record = read_record({str(speedup.path)!r})
plots.save(plots.tau_by_set(record, lang="ru"), "tau", {str(tmp_path)!r})
tables.show(tables.speedup(record))
assert record.header["bench"]["card"].encode("unicode_escape") == {CPU_CARD!r}
assert "torch" not in sys.modules, "present must not import torch"
"""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"\\u041f\\u0440" in done.stdout  # the terminal's encoding has no Cyrillic: escaped, not lost
    assert (tmp_path / "figures" / "tau.png").read_bytes() == plots.tau_by_set(speedup, lang="ru").png()
