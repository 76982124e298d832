"""Tables show what is known, say n/a for what is not, mark a loss, and come out of every printer the same."""

from __future__ import annotations

import io

import pytest

from eagle_repro.measure.records import Record
from eagle_repro.present import tables
from eagle_repro.present.layout import Column, Table, fixed, interval, table, times


@pytest.fixture
def small() -> Table:
    rows = [
        {"name": "a|b <x>", "value": 1234.5},
        {"name": "Привет", "value": None},
        {"name": "nan", "value": float("nan")},
    ]
    return table("Small", rows, (Column("name", "name"), Column("value", "value (ms)", fixed(1), right=True)), ["note"])


def test_plain_text_is_aligned(small: Table) -> None:
    assert str(small).splitlines() == [
        "Small",
        "",
        "name     value (ms)",
        "-------  ----------",
        "a|b <x>     1,234.5",
        "Привет          n/a",
        "nan             n/a",
        "",
        "note",
    ]


def test_markdown_and_html_escape_what_would_break_them(small: Table) -> None:
    assert "| a\\|b <x> | 1,234.5 |" in small.markdown()
    assert "| --- | ---: |" in small.markdown()
    html = small._repr_html_()
    assert "a|b &lt;x&gt;" in html and "<x>" not in html


def test_intervals_and_trees_are_not_broken_into_lines_and_sentences_are() -> None:
    found = Table(
        "t",
        ("a long heading of two lines", "b"),
        (("[4.13, 4.57]", "a reason in many words, as long as it"),),
        (True, False),
    )
    head, body = found._repr_html_().split("<td", 1)
    assert "nowrap" not in head and body.index("nowrap") < body.index("[4.13") and body.count("nowrap") == 1


def test_a_terminal_without_cyrillic_gets_escapes(small: Table) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    tables.show(small, small, file=stream)
    stream.flush()
    assert raw.getvalue().count(b"\\u041f\\u0440") == 2


def test_a_loss_is_marked_and_a_gain_is_not() -> None:
    assert times(0.994) == "0.99x (slower)"
    assert times(1.0) == times(0.997) == "1.00x"
    assert fixed(2)(-0.004) == "0.00" and fixed(2)(-0.006) == "-0.01"
    assert interval(1.0, 2.0) == "[1.00, 2.00]"
    assert interval(None, float("nan")) == "n/a"


def test_the_speedup_table_labels_both_averages_and_marks_losses(speedup: Record) -> None:
    text = str(tables.speedup(speedup))
    line = next(line for line in text.splitlines() if line.startswith("russian") and "default" in line)
    assert "(slower)" in line and "(60, 7, 10)" in line
    assert "(slower)" not in next(line for line in text.splitlines() if line.startswith("code"))
    assert "step-weighted" in text and "95% bootstrap" in text
    assert "mean of questions" in str(tables.details(speedup))
    assert "T=0.7" in text


def test_every_table_of_a_record_prints(bench: Record, roofline: Record, speedup: Record) -> None:
    made = [
        tables.bench_sheet(bench),
        tables.weights(bench),
        tables.guards(bench),
        tables.roofline(roofline),
        tables.speedup(speedup),
        tables.details(speedup),
        tables.phases(speedup),
    ]
    assert all(each.rows for each in made)
    sheet = str(made[0])
    assert "clocks before" in sheet and "sha256 abababababab" in sheet
    assert ["driver", "n/a"] in [line.split() for line in sheet.splitlines()]
    assert "134.5" in str(made[1]) and "n/a" in str(made[1])
    assert "warning" in str(made[2])
    assert "data sheet n/a GB/s" in str(made[3])
