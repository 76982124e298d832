"""The verbs check and report: the article's claims, and a report, from the records of a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_repro.cli.verbs import finish, tell

if TYPE_CHECKING:
    from eagle_repro.measure.claims import Claim, Run

LANGUAGES = ("en", "ru")
Verb = Callable[..., argparse.ArgumentParser]


def add_parsers(parsers: Any, verb: Verb) -> None:
    """Add both verbs; `verb` makes the parser of one (cli.arguments)."""
    added = verb(
        parsers,
        check,
        "put every claim of the article beside a run",
        "Numbers are judged on the article's bench, statements on any. With --text the numbers that a text marks, as "
        "in <!--n:speedup set=code-->2.6<!--/n-->, are compared with the records; exit code 1 if one is wrong.",
        "check --run build/reproduce\n  python -m eagle_repro check --run build/reproduce --text README.md",
    )
    _run_argument(added)
    added.add_argument("--text", type=Path, nargs="+", metavar="FILE", help="texts whose marked numbers to compare")
    added.add_argument("--lang", default="en", choices=LANGUAGES, help="language of the tables; default: en")
    added = verb(
        parsers,
        report,
        "write a report of a run, in English and Russian",
        "Markdown and HTML, every number from the records. A PDF needs pip install 'eagle-repro[pdf]'.",
        "report --run build/reproduce --lang ru --pdf",
    )
    _run_argument(added)
    added.add_argument("--lang", choices=LANGUAGES, help="one language; default: both")
    added.add_argument("--pdf", action="store_true", help="write a PDF as well")
    added.add_argument("--out", type=Path, metavar="DIR", help="where it goes; default: into the folder of the run")


def check(args: argparse.Namespace) -> int:
    """check: every claim beside the run, or the marked numbers of texts."""
    from eagle_repro.experiments.report import article
    from eagle_repro.measure.claims import check as judge
    from eagle_repro.measure.claims import counts
    from eagle_repro.measure.claims.formula import residuals
    from eagle_repro.present import claim_tables, tables

    run, claims = _read(args.run), article()
    if args.text:
        return _check_texts(args, claims, run)
    results = judge(claims, run)
    rows = [result.as_row() for result in results]
    named = {row["id"]: row for row in rows}
    points = residuals(claims)
    makers = (claim_tables.directions, claim_tables.values, claim_tables.published)
    tables.show(*(make(rows, args.lang) for make in makers), claim_tables.formula(points, named, args.lang))
    found = counts(results)
    print("\n" + ", ".join(f"{words}: {count}" for count, words in claim_tables.counted(found, args.lang)))
    left_out = _left_out(run, args.lang)
    print("".join(f"{line}\n" for line in left_out), end="")
    formula = [vars(point) | {"percent": point.percent} for point in points]
    document = {"run": run.name, "left_out": left_out, "counts": found, "claims": rows, "formula": formula}
    return finish(args, document)


def report(args: argparse.Namespace) -> int:
    """report: a text about the run in one language or both."""
    from eagle_repro.experiments.report import article
    from eagle_repro.present.report import write_report

    run, claims = _read(args.run), article()
    folder = args.out or _folder(args.run)
    written: list[Path] = []
    for lang in [args.lang] if args.lang else LANGUAGES:
        tell(f"writing the report ({lang})")
        written += write_report(run, claims, lang, folder, pdf=args.pdf)
    left_out = _left_out(run, args.lang or LANGUAGES[0])
    for line in left_out:
        tell(line)
    for path in written:
        print(path)
    return finish(args, {"run": run.name, "left_out": left_out, "files": [str(path) for path in written]})


def _left_out(run: Run, lang: str) -> list[str]:
    """A line for each record of the run's folder that was not used."""
    from eagle_repro.present import claim_tables

    return [*claim_tables.left_out(run.others, lang), *run.faults.values()]


def _check_texts(args: argparse.Namespace, claims: Sequence[Claim], run: Run) -> int:
    from eagle_repro.measure.claims.marks import check_text
    from eagle_repro.present import claim_tables, tables

    document: list[dict[str, Any]] = []
    wrong: list[str] = []
    for path in args.text:
        try:
            marks = check_text(path.read_text(encoding="utf-8"), claims, run)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        tables.show(claim_tables.marks(marks, path.name, args.lang))
        wrong += [f"{path}:{mark.line}: {mark.written or mark.what!r}: {mark.fault}" for mark in marks if not mark.ok]
        document += [{"file": str(path), **vars(mark), "ok": mark.ok} for mark in marks]
    print("\n" + ("\n".join(wrong) if wrong else f"{len(document)} marked numbers agree with the records."))
    return finish(args, {"run": run.name, "marks": document}, 1 if wrong else 0)


def _run_argument(added: argparse.ArgumentParser) -> None:
    text = "a folder with records, or the name of one under results/; default: the newest run under build/"
    added.add_argument("--run", metavar="DIR", help=text)


def _read(named: str | None) -> Run:
    from eagle_repro.measure.claims import read_run

    return read_run(_folder(named))


def _folder(named: str | None) -> Path:
    """The folder of a run. Raises FileNotFoundError where none is named and none is found."""
    from eagle_repro.experiments.protocol import default_out
    from eagle_repro.experiments.session import records_folder

    if named:
        return records_folder(named)
    usual = default_out("quick")
    records = [*usual.glob("[0-9][0-9]_*.jsonl"), *usual.parent.glob("*/[0-9][0-9]_*.jsonl")]
    if not records:
        raise FileNotFoundError("no run was found: name its folder with --run DIR, or measure first (make reproduce)")
    newest = max(records, key=lambda path: path.stat().st_mtime).parent
    tell(f"the run in {newest}")
    return newest
