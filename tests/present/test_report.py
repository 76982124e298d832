"""The report says what the records say, in both languages, and its words follow its numbers."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle_repro.measure.claims import Run, check
from eagle_repro.measure.claims.marks import check_text
from eagle_repro.measure.records import Record, RecordWriter, read_record
from eagle_repro.present import claim_tables, tables
from eagle_repro.present.gallery import FIGURES, figure
from eagle_repro.present.numerals import as_stated, interval, number, quantity
from eagle_repro.present.report import LANGUAGES, TABLES, Report, answers, write_report
from tests.made_up import CLAIMS, NAMES, made_up_run
from tests.present import stack_rows

CYRILLIC = re.compile(r"[а-яё]", re.IGNORECASE)


@pytest.fixture(scope="module")
def article() -> Run:
    return made_up_run()


@pytest.fixture(scope="module")
def texts(article: Run) -> dict[str, str]:
    """The text without figures, by language."""
    return {lang: Report(article, CLAIMS, lang).markdown() for lang in LANGUAGES}


@pytest.fixture(scope="module")
def folder(article: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with its figures, in Russian."""
    place = tmp_path_factory.mktemp("report")
    write_report(article, CLAIMS, "ru", place)
    return place


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_marked_number_of_a_report_agrees_with_the_records(lang: str, texts: dict, article: Run) -> None:
    found = check_text(texts[lang], CLAIMS, article)
    assert len(found) > 30
    assert [mark for mark in found if not mark.ok] == []


def test_a_report_of_another_run_fails_against_this_one(texts: dict) -> None:
    other = made_up_run({"speedup_code": 2.2})
    wrong = {mark.what for mark in check_text(texts["en"], CLAIMS, other) if not mark.ok}
    assert "speedup set=humaneval" in wrong


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_text_has_no_holes(lang: str, texts: dict) -> None:
    assert not re.search(r"\bNone\b|\bnan\b|\{\{|\{%|\}\}|\n\n\n", texts[lang])
    # 0.31 or less beside a unit is an unknown value only in tables, where a dash stands for it.
    prose = [line for line in texts[lang].splitlines() if not line.startswith(("|", ">"))]
    assert not [line for line in prose if re.search(r"-->—<|\( ?—|— ?(?:x|ms|мс|%)", line)]


def test_both_languages_have_the_same_sections_tables_and_marks(texts: dict) -> None:
    for pattern in (r"^#+ ", r"^\| ---", r"<!--n:([^>]*)-->"):
        found = {lang: len(re.findall(pattern, text, re.MULTILINE)) for lang, text in texts.items()}
        # Where Russian declines a number with its noun, it is written without a mark.
        assert abs(found["en"] - found["ru"]) <= 1, (pattern, found)
    assert CYRILLIC.search(texts["ru"]) and not CYRILLIC.search(texts["en"])


def test_numbers_are_written_as_the_language_does(texts: dict) -> None:
    assert "2.60x" in texts["en"] and "3,440 MB" in texts["en"].replace("\u00a0", " ")
    assert "2,60x" in texts["ru"] and "3\u00a0440\u00a0MB" in texts["ru"]
    prose = re.sub(
        r"<!--.*?-->|`[^`]*`|^\|.*$|^>.*$|T4.*?\d\.\d\w|Qwen\S+|qwen\S+|\d{4}-\d\d-\d\d", "", texts["ru"], flags=re.M
    )
    assert re.findall(r"\d\.\d", prose) == []


CASES: list[tuple[dict, dict[str, list[str]]]] = [
    (
        {"speedup_russian": 0.6, "speedup_five_hf": 2.5, "memory_ratio": 1.25, "tau_tree": 1.5},
        {
            "en": ["loses on `russian`", "look 28% better", "little overhead left", "that does not hold here"],
            "ru": ["проигрывает на `russian`", "приукрашивает метод на 28 %", "почти не осталось", "здесь это не так"],
        },
    ),
    (
        {"speedup_russian": 1.0, "speedup_code": 1.7, "speedup_chat": 1.6, "speedup_english": 1.65, "pass_192_ms": 90},
        {
            "en": ["neither gains nor loses on `russian`", "bench gains on `humaneval`", "up to 32 tokens"],
            "ru": ["не выигрывает и не проигрывает на `russian`", "стенде выигрывает на `humaneval`", "до 32 токенов"],
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("said", "words"), CASES, ids=["slow", "even"])
def test_words_follow_the_numbers(said: dict, words: dict[str, list[str]]) -> None:
    run = made_up_run(said)
    for lang in LANGUAGES:
        text = re.sub(r"<!--.*?-->", "", Report(run, CLAIMS, lang).markdown()).replace("\u00a0", " ")
        assert [each for each in words[lang] if each not in text] == []


@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_is_not_there_is_named_and_not_made_up(lang: str) -> None:
    run = replace(made_up_run(only=["00_bench", "01_roofline"]), states={"03_tree_shape": "unfinished"})
    text = Report(run, CLAIMS, lang).markdown()
    unfinished = {"en": "`03_tree_shape`: unfinished", "ru": "`03_tree_shape`: не закончено"}[lang]
    assert unfinished in text
    assert all(f"`{name}`" in text for name in NAMES if name not in run.records)
    assert {mark.what.split()[0] for mark in check_text(text, CLAIMS, run)} <= {
        "pass_ms",
        "flat_until",
        "bus_share",
        "memory_ratio",
    }


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_run_without_records_still_gives_a_text(lang: str) -> None:
    text = Report(Run("nothing", {}), CLAIMS, lang).markdown()
    assert all(f"`{name}`" in text for name in NAMES)


def test_a_section_from_another_bench_says_so(article: Run) -> None:
    record = article.record("05_target_size")
    moved = replace(record, header=record.header | {"bench": record.header["bench"] | {"card": "NVIDIA H200"}})
    other = replace(article, records=article.records | {"05_target_size": moved})
    text = Report(other, CLAIMS, "en").markdown()
    assert text.count("from another bench than the rest") == 1
    assert "NVIDIA H200" in text and "NVIDIA H200" not in Report(article, CLAIMS, "en").markdown()


def test_the_open_question_of_size_is_answered_by_large_targets_alone(article: Run, texts: dict) -> None:
    assert "1.72x with qwen3-8b and 2.12x with qwen3-14b on this bench: the gain grows" in texts["en"]
    record = article.record("05_target_size")
    small = [row | {"target_parameters": 10**8} if row["what"] == "timing" else row for row in record.rows]
    toys = replace(article, records={"05_target_size": replace(record, rows=small)})
    assert "8B and beyond" not in Report(toys, CLAIMS, "en").markdown()


def test_answers_are_the_five_questions_alone(article: Run) -> None:
    for lang in LANGUAGES:
        text = answers(article, CLAIMS, lang).text
        assert re.findall(r"^\*\*(\d)\.", text, re.MULTILINE) == list("12345")
        assert text.count("#") == 3 and "<!--" not in text


@pytest.mark.parametrize("lang", LANGUAGES)
def test_stacks_and_batches_have_a_section_where_they_were_measured(article: Run, lang: str, tmp_path: Path) -> None:
    header, named = article.record("02_speedup").header, {}
    parts: dict[str, list[dict[str, Any]]] = {
        "08_stack": [*stack_rows.cost_rows(), *stack_rows.text_rows()],
        "09_batch_context": [*stack_rows.batch_rows(), *stack_rows.context_rows(), *stack_rows.scaling_timing_rows()],
    }
    for name, rows in parts.items():
        listed = [{"kind": "run", **row} for row in rows]
        named[name] = Record(header | {"name": name}, listed, {"kind": "complete"}, Path(f"{name}.jsonl"))
    whole = replace(article, records=article.records | named)
    text, bare = (Report(run, CLAIMS, lang, tmp_path).markdown() for run in (whole, article))
    for name in ("stack_steps", "stack_gains", "batches", "contexts", "scaling_timing"):
        assert f"/{name}.png)" in text and f"/{name}.png)" not in bare
    assert text.count("\n## ") == bare.count("\n## ") + 2
    for name in parts:
        assert f"`{name}`" in bare and f"`{name}`" not in text


# The page.


@pytest.mark.slow
def test_a_page_carries_its_figures_and_nothing_from_elsewhere(folder: Path) -> None:
    page, text = ((folder / f"report.ru.{end}").read_text(encoding="utf-8") for end in ("html", "md"))
    figures = re.findall(r"!\[[^]]+\]\((figures/ru/\w+\.png)\)", text)
    drawn = [name for name, (record, _) in FIGURES.items() if record in NAMES]
    assert len(figures) == len(set(figures)) == len(drawn)
    assert all((folder / path).stat().st_size > 10_000 for path in figures)
    assert page.count('src="data:image/png;base64,') == len(figures)
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert "<!--" not in page and "|---" not in page
    assert page.count("<table>") == text.count("\n| ---") and len(TABLES) < page.count("<table>")
    assert '<html lang="ru">' in page and "<title>Что даёт спекулятивное декодирование" in page


def test_figures_of_a_russian_report_have_decimal_commas(article: Run) -> None:
    picture = figure(article, "speedup_by_set", "ru")
    texts = [text.get_text() for text in picture.figure.findobj(lambda each: hasattr(each, "get_text"))]
    assert "2,60x на humaneval" in picture.finding and "2,60x" in texts
    assert not [text for text in texts if re.search(r"\d\.\d+x", text)]
    assert any("torch 2.10.0" in text for text in texts)
    assert picture.png() == picture.png()


def test_a_figure_that_the_run_cannot_draw_is_said_to_be_absent() -> None:
    run = made_up_run(only=["01_roofline"])
    assert figure(run, "roofline").png().startswith(b"\x89PNG")
    assert repr(figure(run, "speedup_by_set")) == (
        "no figure speedup_by_set: the run has no finished 02_speedup that holds enough for it"
    )


def test_another_language_is_refused(article: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reports are written in en and ru"):
        write_report(article, CLAIMS, "de", tmp_path)


def test_a_pdf_without_its_library_is_refused_in_one_line_before_anything_is_written(
    article: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(RuntimeError, match=r"a PDF needs WeasyPrint.*eagle-repro\[pdf\]") as caught:
        write_report(article, CLAIMS, "en", tmp_path / "out", pdf=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


# The tables of claims.


def test_tables_of_claims_say_the_verdict_and_what_is_behind_it(article: Run) -> None:
    rows = [result.as_row() for result in check(CLAIMS, made_up_run({"speedup_code": 3.0}, only=["02_speedup"]))]
    text = claim_tables.values(rows).text()
    assert re.search(r"Speedup on code +2\.6x +3\.00x +differs by \+0\.40x \(tolerance 0\.20x\)", text)
    assert re.search(r"Tau of the chain +1\.64 +— +not measured here \(04_chain_vs_tree\)", text)
    assert "Another bench" not in text
    moved = {name: replace(record, header=record.header | {"bench": record.header["bench"] | {"card": "L4"}})
             for name, record in article.records.items()}  # fmt: skip
    elsewhere = claim_tables.values([result.as_row() for result in check(CLAIMS, Run("l4", moved))], "ru").text()
    assert "Другой стенд: карта L4 (в статье T4)." in elsewhere
    assert "воспроизвелось" in elsewhere  # what no card changes: the parameters of heads


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (number(1234.5, 1, "en"), "1,234.5"),
        (number(1234.5, 1, "ru"), "1\u00a0234,5"),
        (number(-0.04, 1, "en"), "0.0"),
        (number(-0.06, 1, "en", sign=True), "−0.1"),
        (number(0.06, 1, "en", sign=True), "+0.1"),
        (number(float("nan"), 1, "en"), "—"),
        (quantity(25, "%", "ru", digits=0), "25\u00a0%"),
        (quantity(1720, "M", "en"), "1,720\u00a0M"),
        (interval(1, 2, 1, "ru"), "[1,0;\u00a02,0]"),
        (interval(None, 2, 1, "en"), "—"),
        (as_stated([1.04, 1.1], "x", "en", is_range=True), "1.04–1.10x"),
        (as_stated([-3, 3], "%", "en", is_range=True), "−3 to 3%"),
        (as_stated([8.0], "%", "en"), "8.0%"),
        (as_stated([2.78, 2.9], "tau", "ru"), "2,78; 2,90"),
    ],
)
def test_numerals(written: str, text: str) -> None:
    assert written == text


@pytest.mark.parametrize(
    ("lang", "said", "stated"), [("en", "was not measured here", "1.3–2.0x"), ("ru", "здесь не измерено", "1,3–2,0x")]
)
def test_what_another_stack_would_leave_is_not_foretold(lang: str, said: str, stated: str, texts: dict) -> None:
    answer = next(line for line in texts[lang].splitlines() if line.startswith("**3."))
    assert said in answer and stated in answer


def test_the_level_stands_beside_the_effect_that_would_have_been_seen(texts: dict) -> None:
    assert re.search(r"\| 0\.100 \(p\s<\s0\.050\) \|", texts["en"])
    assert re.search(r"\| 0,100 \(p\s<\s0,050\) \|", texts["ru"])


def test_the_table_of_claims_belongs_to_the_bench_of_the_records_that_were_judged(article: Run, tmp_path: Path) -> None:
    bench = {"card": "Tesla T4", "stack": "eager"}
    with RecordWriter(tmp_path / "11_report.jsonl", bench={"card": "another"}, protocol={}) as writer:
        for result in check(CLAIMS, article):
            writer.write(f"claim/{result.claim.id}", result.as_row())
        record = read_record(
            writer.complete(evidence=bench, others={"04_chain_vs_tree": {"stack": ["graph", "eager"]}})
        )
    made = tables.claims(record)
    assert made.rows == claim_tables.directions([result.as_row() for result in check(CLAIMS, article)]).rows
    assert made.notes[-1] == "Tesla T4 | eager"
    assert made.notes[-2] == "04_chain_vs_tree is of another bench (stack graph instead of eager): left out."
    with pytest.raises(ValueError, match="holds no claims"):
        tables.claims(article.records["02_speedup"])
