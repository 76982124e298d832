"""The report of a run: an article in English or Russian whose every number is read from the records.

The text is a Jinja2 template a language. It asks for numbers by the names that marked texts use (measure.claims.marks),
and each is written with its mark, so that `check --run DIR --text report.en.md` can compare the finished text with the
records again. A section whose record is missing says so in one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eagle_repro.measure.claims import Claim, NotMeasured, Result, Run, check, counts
from eagle_repro.measure.claims.formula import residuals
from eagle_repro.measure.claims.marks import mark, unmarked
from eagle_repro.measure.claims.numbers import UNIT_OF, find
from eagle_repro.measure.claims.run import bench_differences, main_record
from eagle_repro.measure.records import Record
from eagle_repro.present import claim_tables, domain_answers, report_tables
from eagle_repro.present.gallery import draw
from eagle_repro.present.layout import Passage
from eagle_repro.present.numerals import as_stated, interval, number, percent_digits, quantity
from eagle_repro.present.pages import TEMPLATES, html_page, require_pdf, write_pdf
from eagle_repro.present.report_facts import facts
from eagle_repro.present.words import bench_line

LANGUAGES = ("en", "ru")
#: How the heading of the section with the five questions begins.
QUESTIONS = {"en": "Five questions", "ru": "Пять вопросов"}
TABLES: dict[str, tuple[str, Callable[[Record, str], Any]]] = {
    "bench": ("00_bench", report_tables.bench),
    "protocol": ("02_speedup", report_tables.protocol),
    "weights": ("00_bench", report_tables.weights),
    "passes": ("01_roofline", report_tables.passes),
    "by_set": ("02_speedup", report_tables.by_set),
    "phases": ("02_speedup", report_tables.phases),
    "depths": ("03_tree_shape", report_tables.depths),
    "picks": ("03_tree_shape", report_tables.picks),
    "pairs": ("05_target_size", report_tables.pairs),
    "sizes": ("05_target_size", report_tables.shapes),
    "texts": ("06_lossless", report_tables.texts),
    "permutations": ("06_lossless", report_tables.permutations),
}


@dataclass(frozen=True)
class Report:
    """A run with the claims, in one language; folder: where its figures go, None for a text without figures."""

    run: Run
    claims: Sequence[Claim]
    lang: str
    folder: Path | None = None

    @cached_property
    def results(self) -> list[Result]:
        """Every claim beside the run."""
        return check(self.claims, self.run)

    @cached_property
    def rows(self) -> dict[str, Mapping[str, Any]]:
        """The same as plain data, by id."""
        return {result.claim.id: result.as_row() for result in self.results}

    def markdown(self) -> str:
        """The whole text."""
        environment = Environment(
            loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
            keep_trailing_newline=True,
        )  # fmt: skip
        environment.globals.update(
            n=self.n, v=self.v, share=self.share, num=self.num, quantity=self.quantity, interval=self.interval,
            stated=self.stated, has=self.has, lacking=self.lacking, elsewhere=self.elsewhere, effect=self.effect,
            side=self.side, figure=self.figure, table=self.table, claims=self.claims_table, closing=self.closing,
            heads=self.heads, counted=claim_tables.counted(counts(self.results), self.lang),
        )  # fmt: skip
        text = environment.get_template(f"report.{self.lang}.md.j2").render(**facts(self.run))
        return re.sub(r"\n{3,}", "\n\n", text)

    def n(self, name: str, digits: int | None = None, **arguments: Any) -> str:
        """A number of the run with its unit and its mark, or a dash."""
        value = self.v(name, **arguments)
        text = quantity(value, UNIT_OF[name], self.lang, digits=digits)
        return text if value is None else mark(" ".join([name, *(f"{k}={w}" for k, w in arguments.items())]), text)

    def share(self, name: str, **arguments: Any) -> str:
        """A percentage, rounded to what counts of it."""
        value = self.v(name, **arguments)
        return self.n(name, percent_digits(value), **arguments)

    def v(self, name: str, **arguments: Any) -> float | None:
        """The same as a plain value; None where it was not measured."""
        try:
            value = find(self.run, name, arguments).value
        except NotMeasured:
            return None
        return None if isinstance(value, tuple) else value

    def num(self, value: float | None, digits: int = 2) -> str:
        """A number in this language."""
        return number(value, digits, self.lang)

    def quantity(self, value: float | None, unit: str, *, sign: bool = False) -> str:
        """A number with a unit in this language."""
        return quantity(value, unit, self.lang, sign=sign)

    def interval(self, row: Mapping[str, Any], digits: int = 2) -> str:
        """The interval of an effect or of a table's row."""
        return interval(row.get("low"), row.get("high"), digits, self.lang)

    def has(self, record: str) -> bool:
        """Whether the run holds a finished record."""
        return record in self.run.records

    def lacking(self, record: str) -> str:
        """Why a record is not there."""
        why = claim_tables.lacks(self.run.states.get(record, "missing"), self.lang)
        differs = self.run.others.get(record)
        return f"{why}: {claim_tables.differing(differs, self.lang)}" if differs else why

    def effect(self, name: str) -> Mapping[str, Any] | None:
        """A direction's row, None where it was not measured."""
        row = self.rows[name]
        return row if row.get("effect") is not None else None

    def stated(self, name: str) -> str:
        """A number as the article has it."""
        row = self.rows[name]
        return as_stated(row["stated"], row["unit"], self.lang, is_range=row["is_range"])

    def elsewhere(self, record: str) -> str | None:
        """The bench of a record that was measured on another than the run's, else None."""
        main, this = main_record(self.run.records), self.run.records[record]
        return bench_line(this) if main and bench_differences(this, main) else None

    def side(self, name: str) -> str:
        """The name of one side of an effect."""
        return claim_tables.side(name, self.lang)

    @property
    def closing(self) -> dict[str, float]:
        """How well the article's own figures fit together: the speedup of its cycle, the worst residual in percent."""
        points = residuals(self.claims)
        return {"cycle": points[0].predicted, "worst": max(abs(point.percent or 0.0) for point in points)}

    def figure(self, name: str) -> str:
        """A figure as a Markdown image, written beside the text; empty where the record holds too little for it."""
        picture = draw(self.run, name, self.lang) if self.folder else None
        if picture is None or self.folder is None:
            return ""
        path = Path("figures") / self.lang / f"{name}.png"
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(picture.png())
        return f"![{picture.finding}]({path.as_posix()})"

    def table(self, name: str) -> str:
        """A table in Markdown without its title; empty where the record holds too little for it."""
        record, make = TABLES[name]
        if not self.has(record):
            return ""
        try:
            return _bare(make(self.run.records[record], self.lang))
        except ValueError:  # the summaries' way to say what a record lacks
            return ""

    def heads(self) -> str:
        """The answers of 07_domain in words, without their bench."""
        return domain_answers.sections(self.run.records["07_domain"], self.lang)

    def claims_table(self, name: str) -> str:
        """A table of claims in Markdown with its notes."""
        rows = list(self.rows.values())
        if name == "formula":
            return _bare(claim_tables.formula(residuals(self.claims), self.rows, self.lang))
        return _bare(getattr(claim_tables, name)(rows, self.lang))


def answers(run: Run, claims: Sequence[Claim], lang: str = "en") -> Passage:
    """The five questions, answered for the bench of this run."""
    sections = Report(run, claims, lang).markdown().split("\n## ")
    found = next(section for section in sections if section.startswith(QUESTIONS[lang]))
    return Passage(unmarked(f"### {found}").strip())


def write_reports(run: Run, claims: Sequence[Claim], folder: Path) -> list[str]:
    """Write the report in every language; gives the names of the files."""
    return [path.name for lang in LANGUAGES for path in write_report(run, claims, lang, folder)]


def write_report(run: Run, claims: Sequence[Claim], lang: str, folder: Path, *, pdf: bool = False) -> list[Path]:
    """Write report.LANG.md, report.LANG.html and, if asked for, report.LANG.pdf into a folder; gives their paths.

    Raises ValueError for another language, and RuntimeError for a PDF without its library.
    """
    if lang not in LANGUAGES:
        raise ValueError(f"lang={lang!r} was given: reports are written in {' and '.join(LANGUAGES)}")
    if pdf:
        require_pdf()
    folder.mkdir(parents=True, exist_ok=True)
    text = Report(run, claims, lang, folder).markdown()
    page = html_page(text, lang, folder)
    written = [folder / f"report.{lang}.{end}" for end in ("md", "html")]
    written[0].write_text(text, encoding="utf-8")
    written[1].write_text(page, encoding="utf-8")
    if pdf:
        written.append(folder / f"report.{lang}.pdf")
        write_pdf(page, written[-1])
    return written


def _bare(table: Any) -> str:
    """A table's Markdown without the title line: the text around it has said what it is."""
    return str(table.markdown()).split("\n", 2)[2]
