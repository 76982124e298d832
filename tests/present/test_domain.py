"""Figures, tables and answers of 07_domain: readable in both languages, and words that follow the numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from eagle_repro.measure import domain
from eagle_repro.measure.records import Record
from eagle_repro.present import console, domain_answers, domain_plots, domain_tables, gallery
from eagle_repro.present.words import WORDS
from eagle_repro.present.words_domain import SENTENCES, STATEMENTS
from tests.present.head_rows import head_rows
from tests.present.test_plots import require_readable, said

Write = Callable[..., Record]
FIGURES = (domain_plots.heat_tau, domain_plots.heat_speedup, domain_plots.gains)
TABLES = (
    domain_tables.heads,
    domain_tables.taus,
    domain_tables.speedups,
    domain_tables.differences,
    domain_tables.answers,
)


@pytest.fixture(scope="module")
def record(write: Write) -> Record:
    return write("07_domain", list(head_rows()), {})


@pytest.fixture(scope="module")
def alone(write: Write) -> Record:
    return write("07_domain", list(head_rows(("general",))), {})


@pytest.fixture(scope="module")
def turned(write: Write) -> Record:
    return write("07_domain", list(head_rows(scale=-1)), {})


@pytest.mark.parametrize("lang", WORDS)
@pytest.mark.parametrize("figure", FIGURES)
def test_figures_are_readable(record: Record, figure: Any, lang: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = figure(record, lang)
    assert "2026-01-31" in said(picture) and picture.finding.split()[0] in said(picture)
    assert all(axes.get_xlabel() for axes in picture.figure.axes)
    require_readable(picture)
    assert picture.png() == figure(record, lang).png()


def test_every_question_counts_once_whether_timed_or_not(record: Record) -> None:
    counted = domain.counts(record)
    assert not counted.duplicated(["head", "set", "question"]).any()
    frame = domain.by_group(record).set_index(["head", "group"])
    assert frame.loc[("general", "chat"), "questions"] == 10 and frame.loc[("general", "chat"), "timed"] == 2
    assert frame.loc[("general", "math"), "questions"] == 8 and frame.loc[("general", "math"), "timed"] == 0
    part = counted[(counted["head"] == "code") & (counted["set"] == "math")]
    assert frame.loc[("code", "math"), "tau"] == pytest.approx(part["emitted"].sum() / part["cycles"].sum())
    assert list(domain.mean_of_sets(record)) == list(domain.HEADS)


def test_differences_are_paired_by_question(record: Record) -> None:
    frame = domain.differences(record).set_index(["left", "right", "group"])
    row = frame.loc[("code", "no-code", "math")]
    assert row["tau_gain"] == pytest.approx(row["tau_left"] - row["tau_right"]) == pytest.approx(-0.6, abs=0.05)
    # Every question gains about as much, however long it is: the paired interval is narrow.
    assert row["tau_gain_low"] < row["tau_gain"] < row["tau_gain_high"] < row["tau_gain_low"] + 0.1


def verdicts(record: Record) -> dict[str, str | None]:
    return {each.statement.name: each.tau.verdict if each.tau else None for each in domain.answers(record)}


def test_verdicts_follow_the_numbers(record: Record, turned: Record, alone: Record) -> None:
    assert set(verdicts(record).values()) == {"holds"}
    assert set(verdicts(turned).values()) == {"does not hold"}
    assert set(verdicts(alone).values()) == {None}


def test_equal_heads_leave_everything_undecided(write: Write) -> None:
    equal = write("07_domain", list(head_rows(scale=0)), {})
    assert set(verdicts(equal).values()) == {"undecided"}
    assert domain_plots.gains(equal).finding == "No difference between the heads is established here"
    assert SENTENCES["en"]["mix_open"] in str(domain_answers.answers(equal))


@pytest.mark.parametrize(("lang", "point"), [("en", "."), ("ru", ",")])
def test_the_answers_say_what_the_record_says(
    record: Record, turned: Record, alone: Record, lang: str, point: str
) -> None:
    text = str(domain_answers.answers(record, lang))
    row = domain.differences(record).set_index(["left", "right", "group"]).loc[("russian-mix", "general", "russian")]
    assert (
        f"{row['tau_left']:.2f}".replace(".", point) in text and f"+{row['tau_gain']:.2f}".replace(".", point) in text
    )
    assert SENTENCES[lang]["mix_both"] in text and "{" not in text and "2026-01-31" in text
    closed = domain.gap_closed(record)
    assert closed is not None and 0 < closed < 1 and f"{100 * closed:.0f}" in text
    assert SENTENCES[lang]["mix_opposite"] in str(domain_answers.answers(turned, lang))
    assert SENTENCES[lang]["russian_language"] in str(domain_answers.answers(turned, lang))
    assert "{repeats" not in text and SENTENCES[lang]["repeats"].split("{")[0].strip() not in text
    missing = str(domain_answers.answers(alone, lang))
    assert missing.count(STATEMENTS[lang]["code_helps"]) == 1 and "no-code" in missing
    assert SENTENCES[lang]["russian_open"] in missing


@pytest.mark.parametrize(("lang", "gap"), [("en", "42% of"), ("ru", "42\u00a0% русского")])
def test_a_head_that_gives_more_on_russian_than_on_english_is_not_said_to_close_a_gap(
    write: Write, lang: str, gap: str
) -> None:
    rows = list(head_rows())
    for row in rows:
        if row.get("set") == "russian" and row["head"] == "russian-mix":
            many = {"accepted": [5] * 20, "emitted": [6 * cycles for cycles in row.get("cycles", ())]}
            row |= {name: value for name, value in many.items() if name in row}
        if row["what"] == "text":
            row["loop_share"] = 0.42 if row["set"] == "russian" else 0.1
    record = write("07_domain", rows, {})
    closed, text = domain.gap_closed(record), str(domain_answers.answers(record, lang))
    assert closed is not None and closed > 1
    assert SENTENCES[lang]["russian_all"] in text and gap in text
    assert SENTENCES[lang]["russian_data"].split("{")[0] not in text


def test_languages_say_the_same_things() -> None:
    assert STATEMENTS["en"].keys() == STATEMENTS["ru"].keys() == {each.name for each in domain.STATEMENTS}
    assert SENTENCES["en"].keys() == SENTENCES["ru"].keys()


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_complete_and_name_their_bench(record: Record, alone: Record, table: Any) -> None:
    for each in (record, alone):
        text = table(each).text()
        assert "torch 2.13.0" in text and "nan" not in text and "None" not in text


def test_a_head_that_is_not_here_is_a_row_with_the_reason(alone: Record, tmp_path: Any) -> None:
    assert "code is not here: no code head for made-up" in domain_tables.heads(alone).text()
    assert "not here (code, no-code)" in domain_tables.answers(alone).text()
    with pytest.raises(ValueError, match="no two heads that are compared"):
        domain_plots.gains(alone)
    absent = repr(gallery.drawn(domain_plots.gains, alone, "07_gains", tmp_path))
    assert absent.startswith("no figure 07_gains: ") and "no two heads that are compared" in absent


def test_titles_follow_the_record(record: Record, alone: Record) -> None:
    assert domain_plots.heat_tau(record).finding.startswith("On code a head trained on code gives 4.8 tokens a cycle")
    assert domain_plots.heat_tau(alone).finding.startswith("A cycle gives from 2.2 (general on russian) to 4.")
    assert domain_plots.gains(record).finding.endswith("on chat code gives 0.91 tokens a cycle fewer than no-code")


def test_the_command_line_prints_the_tables(record: Record) -> None:
    assert len(console.of(record)) == 4


def test_another_record_is_refused(bench: Record) -> None:
    with pytest.raises(ValueError, match="no record of 07_domain"):
        domain.heads(bench)
