"""Texts that mark their numbers, and whether a run agrees with them.

A mark is a pair of HTML comments, which Markdown does not show, around one number with or without its unit:

    On code it is <!--n:speedup set=code-->2.6x<!--/n--> as fast.

After `n:` stands what the number is: the id of a claim (this run's number for it, or a direction's effect), the name of
a number with its arguments (numbers.py), or article.ID for what the article states. The run's number is compared at
the precision that is written: 2.6 is right for 2.55 to 2.65. Decimal points and commas are both read; thousands may be
set apart by a comma or a no-break space. What stands in Markdown's code spans and blocks is no mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_repro.measure.claims.article import Claim
from eagle_repro.measure.claims.numbers import UNIT_OF, find
from eagle_repro.measure.claims.run import NotMeasured, Run
from eagle_repro.measure.claims.verdicts import check_one

CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]+`", re.DOTALL | re.MULTILINE)
ANY = re.compile(r"<!--\s*(?:n:\s*(?P<what>.*?)|(?P<end>/n))\s*-->", re.DOTALL)
SPACES = "\u00a0\u202f"  # no-break ones, which set thousands apart
#: What may stand behind a number of each unit, spaces aside; nothing may always.
WRITTEN = {
    "ms": ("ms", "мс"), "x": ("x", "×", "х", "times", "раз", "раза"), "%": ("%",), "M": ("M", "млн", "million"),
    "per_thousand": ("‰",), "tokens": ("tokens", "токен", "токена", "токенов"),
    "tau": ("tokens", "токен", "токена", "токенов"),
}  # fmt: skip
NUMBER = re.compile(rf"[-+−]?\d+(?:[{SPACES},]\d{{3}})*(?:[.,]\d+)?")


@dataclass(frozen=True)
class Mark:
    """One marked number: its line in the text, what it is, what is written, what the run says, and why it fails."""

    line: int
    what: str
    written: str
    value: float | None
    fault: str | None

    @property
    def ok(self) -> bool:
        """Whether the text and the run agree."""
        return self.fault is None


def mark(what: str, text: str) -> str:
    """The text with its mark."""
    return f"<!--n:{what}-->{text}<!--/n-->"


def unmarked(text: str) -> str:
    """The text without its marks."""
    return ANY.sub("", text)


def check_text(text: str, claims: Sequence[Claim], run: Run) -> list[Mark]:
    """Every marked number of a text beside the run. Raises ValueError for a text that marks none."""
    known = {claim.id: claim for claim in claims}
    found = [_compared(line, what, written, known, run) for line, what, written in _marks(text)]
    if not found:
        raise ValueError("the text marks no numbers: write <!--n:ID-->2.6<!--/n--> around those that are to be checked")
    return found


def agrees(written: str, value: float) -> bool:
    """Whether one written number is the value, rounded as it is written."""
    return any(abs(value - number) <= half * (1 + 1e-9) for number, half in _readings(written))


def _marks(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Line, what and written text of every mark; None where a mark is not closed or not opened."""
    text = CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    opened: re.Match[str] | None = None
    for found in ANY.finditer(text):
        line = text.count("\n", 0, (opened or found).start()) + 1
        if found["end"]:
            yield line, opened["what"] if opened else "", text[opened.end() : found.start()] if opened else None
            opened = None
        else:
            if opened:
                yield line, opened["what"], None
            opened = found
    if opened:
        yield text.count("\n", 0, opened.start()) + 1, opened["what"], None


def _compared(line: int, what: str, written: str | None, claims: Mapping[str, Claim], run: Run) -> Mark:
    if written is None:
        return Mark(line, what, "", None, "the mark is not closed" if what else "a mark is closed that was not opened")
    if len(NUMBER.findall(written)) != 1:
        return Mark(line, what, written, None, "the mark holds not exactly one number")
    try:
        value = _value(what, claims, run)
    except NotMeasured as error:
        return Mark(line, what, written, None, f"not measured in this run ({error})")
    except ValueError as error:
        return Mark(line, what, written, None, str(error))
    unit = _unit(what, claims)
    around = NUMBER.sub("", written).strip(f" ≈~{SPACES}")
    if around and around not in WRITTEN.get(unit, ()):
        fault: str | None = f"{around!r} beside the number, which is in {unit}"
    else:
        fault = None if agrees(written, value) else f"the record says {value:.6g}"
    return Mark(line, what, written, value, fault)


def _value(what: str, claims: Mapping[str, Claim], run: Run) -> float:
    """The run's number that a mark names. Raises NotMeasured and ValueError."""
    name, *pairs = what.split()
    if name.startswith("article."):
        claim = claims.get(name.removeprefix("article."))
        if claim is None or len(claim.stated) != 1:
            raise ValueError(f"{name} is not the one number of a claim")
        return claim.stated[0]
    if name in claims and not pairs:
        result = check_one(claims[name], run)
        if result.effect:
            return result.effect.estimate.value
        if result.found is None:
            record, why = result.lacks or (name, "missing")
            raise NotMeasured(record, why)
        value = result.found.value
    else:
        value = find(run, name, dict(_argument(pair) for pair in pairs)).value
    if isinstance(value, tuple):
        raise ValueError(f"{name} is {len(value)} numbers: mark one")
    return value


def _unit(what: str, claims: Mapping[str, Claim]) -> str:
    """The unit of the number that a mark names."""
    name = what.split()[0].removeprefix("article.")
    return claims[name].unit if name in claims else UNIT_OF[name]


def _argument(pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise ValueError(f"{pair!r} is not NAME=VALUE, as in <!--n:speedup set=code-->")
    return name, int(value) if value.isdigit() else value


def _readings(written: str) -> Iterator[tuple[float, float]]:
    """The numbers that a text can mean, each with half of its last digit; 1,234 can be two."""
    text = NUMBER.findall(written)[0].replace("−", "-")
    text = re.sub(f"[{SPACES}]", "", text)
    readings = {text.replace(",", "")} if re.search(r",\d{3}(?!\d)", text) else set()
    readings |= {text.replace(",", ".")} if text.count(",") + text.count(".") <= 1 else set()
    for reading in readings:
        yield float(reading), 0.5 * 10.0 ** -len(reading.partition(".")[2])
