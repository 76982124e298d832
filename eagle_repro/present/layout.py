"""A table and the one place that prints it: plain text for a terminal, Markdown for a file, HTML for a notebook."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import pandas as pd

UNKNOWN = "n/a"
SLOWER = "(slower)"
SHORT = 20  # characters of a cell of a table that are not broken into lines

Form = Callable[[Any], str]


@dataclass(frozen=True)
class Column:
    """A column: the field of a row it shows, its heading, how a known value is written, and its alignment."""

    field: str
    heading: str
    form: Form = str
    right: bool = False


@dataclass(frozen=True)
class Table:
    """A finished table of text. A notebook shows it as HTML, print() as aligned plain text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Aligned plain text."""
        lines = [self.headings, *self.rows]
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.headings))]
        body = ["  ".join(self._pad(line, widths)).rstrip() for line in lines]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, "", body[0], rule, *body[1:], *self._after(self.notes)])

    def markdown(self) -> str:
        """A GitHub table below a bold title."""
        rule = ["---:" if right else "---" for right in self.right]
        lines = [self._cells(self.headings), rule, *map(self._cells, self.rows)]
        body = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([f"**{self.title}**", "", *body, *self._after(self.notes)])

    def _repr_html_(self) -> str:
        head = self._html(self.headings, "th")
        body = "\n".join(self._html(row, "td") for row in self.rows)
        notes = "<br>\n".join(map(html.escape, self.notes))
        after = f"\n<p><small>{notes}</small></p>" if notes else ""
        return f"<p><b>{html.escape(self.title)}</b></p>\n<table>\n{head}\n{body}\n</table>{after}"

    def __repr__(self) -> str:
        return self.text()

    def _pad(self, line: Sequence[str], widths: Sequence[int]) -> list[str]:
        aligned = zip(line, widths, self.right, strict=True)
        return [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in aligned]

    def _html(self, line: Sequence[str], tag: str) -> str:
        sides = ("right" if right else "left" for right in self.right)
        cells = ""
        for cell, side in zip(line, sides, strict=True):
            whole = ";white-space:nowrap" if tag == "td" and len(cell) <= SHORT else ""  # an interval, a tree
            cells += f'<{tag} style="text-align:{side}{whole}">{html.escape(cell)}</{tag}>'
        return f"<tr>{cells}</tr>"

    @staticmethod
    def _cells(line: Iterable[str]) -> list[str]:
        return [cell.replace("|", "\\|") for cell in line]

    @staticmethod
    def _after(notes: Sequence[str]) -> list[str]:
        return ["", *notes] if notes else []


@dataclass(frozen=True)
class Passage:
    """Text in Markdown, which a notebook shows as such."""

    text: str

    def _repr_markdown_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def table(
    title: str, rows: pd.DataFrame | Iterable[Mapping[Any, Any]], columns: Sequence[Column], notes: Iterable[str] = ()
) -> Table:
    """Make a table of `rows`; a value that is None, NaN or missing is shown as n/a."""
    found = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else list(rows)
    cells = tuple(tuple(write(row.get(column.field), column.form) for column in columns) for row in found)
    headings, right = tuple(c.heading for c in columns), tuple(c.right for c in columns)
    return Table(title, headings, cells, right, tuple(filter(None, notes)))


def show(*tables: Table, file: TextIO | None = None) -> None:
    """Print tables as plain text; a character that the terminal cannot encode is escaped, never an error."""
    stream = file or sys.stdout
    encoding = stream.encoding or "utf-8"
    for number, each in enumerate(tables):
        text = ("\n" if number else "") + each.text() + "\n"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def write(value: Any, form: Form = str) -> str:
    """A value as text by its form, n/a for what is not known."""
    unknown = value is None or (isinstance(value, float) and value != value) or value is pd.NA
    return UNKNOWN if unknown else form(value)


def tree_label(row: Mapping[Any, Any], gap: str = " ") -> str:
    """A tree as (nodes, depth, top_k), from a row that calls its nodes total_tokens or nodes, with T if sampled."""
    nodes = row["total_tokens"] if "total_tokens" in row else row["nodes"]
    shape = f"({nodes:.0f},{gap}{row['depth']:.0f},{gap}{row['top_k']:.0f})"
    return f"{shape} T={row['temperature']:g}" if row.get("temperature") else shape


def fixed(digits: int, unit: str = "") -> Form:
    """A number with so many decimals; what rounds to nothing has no sign."""
    return lambda value: f"{value:z,.{digits}f}{unit}"


def share(value: float) -> str:
    """A share of 1 in percent; a small one is not rounded to nothing."""
    return f"{100 * value:.{1 if 0 < value < 0.01 else 0}f}%"


def yes_no(value: bool) -> str:
    """A truth in words."""
    return "yes" if value else "no"


def times(value: float) -> str:
    """A speedup, marked when it is a loss in the digits shown."""
    return f"{value:.2f}x" + (f" {SLOWER}" if round(value, 2) < 1 else "")


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """An interval; n/a where one question alone gives none."""
    if write(low) == UNKNOWN or write(high) == UNKNOWN:
        return UNKNOWN
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def spans(row: Mapping[Any, Any], *names: str) -> dict[str, str]:
    """The intervals of these values of a row (NAME_low, NAME_high), as the fields NAME_span."""
    return {f"{name}_span": interval(row.get(f"{name}_low"), row.get(f"{name}_high")) for name in names}


#: tau and speedup, each with its interval (see `spans`).
GAINS = (
    Column("tau", "tau", fixed(2), right=True),
    Column("tau_span", "", right=True),
    Column("speedup", "against plain", times, right=True),
    Column("speedup_span", "", right=True),
)
#: Tokens a second by speculation, and by plain decoding beside it.
RATES = (
    Column("tokens_per_s", "tokens/s", fixed(0), right=True),
    Column("plain_tokens_per_s", "plain", fixed(0), right=True),
)
