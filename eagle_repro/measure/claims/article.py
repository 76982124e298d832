"""The article's numbers as data: reading and checking claims.yaml (its form is described at its top)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from eagle_repro.measure.claims.directions import RULES
from eagle_repro.measure.claims.numbers import UNIT_OF, check_name

Kind = Literal["value", "direction", "published"]
Words = Mapping[str, str]
LANGUAGES = ("en", "ru")
UNITS = ("ms", "x", "tau", "%", "M", "tokens", "logits", "per_thousand", "count", "share", "steps")
#: Conditions that are told and not compared (see claims.yaml).
NOT_COMPARED = ("code", "batch")


@dataclass(frozen=True)
class Claim:
    """One statement of the article.

    text, section, reason: in both languages; stated: its numbers, one, several in a row, or the ends of a range
    (`is_range`), none for a direction; measure: name and arguments of the number in a run's records, or record: the
    one that would hold it; rule: the name of a direction's test; conditions: what the number belongs to; tolerance: in
    the unit of the number.
    """

    id: str
    kind: Kind
    text: Words
    section: Words
    unit: str
    stated: tuple[float, ...] = ()
    is_range: bool = False
    measure: Mapping[str, Any] | None = None
    record: str | None = None
    rule: str | None = None
    conditions: Mapping[str, Any] | None = None
    tolerance: float = 0.0
    reason: Words | None = None


def load_claims(path: Path | str) -> list[Claim]:
    """The claims of a file.

    Raises FileNotFoundError, and ValueError that names the claim for whatever does not fit the form: a missing
    language, an unknown number, rule, unit or reason, a value without tolerance or conditions.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is not in {path.parent}: install the package's data again")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        claims = [_claim(entry, document) for entry in document["claims"]]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not a file of claims: {error}") from None
    names = [claim.id for claim in claims]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path.name} names {', '.join(twice)} more than once")
    return claims


def _claim(entry: Mapping[str, Any], document: Mapping[str, Any]) -> Claim:
    name = str(entry.get("id"))
    try:
        stated, is_range = _stated(entry)
        claim = Claim(
            id=name,
            kind=entry["kind"],
            text=_both(entry["text"]),
            section=_both(document["sections"][entry["section"]]),
            unit=entry["unit"],
            stated=stated,
            is_range=is_range,
            measure=entry.get("measure"),
            record=entry.get("record"),
            rule=entry.get("rule"),
            conditions=entry.get("conditions"),
            tolerance=float(entry.get("tolerance", 0)),
            reason=_both(document["reasons"][entry["reason"]]) if "reason" in entry else None,
        )
        _check(claim)
    except KeyError as error:
        raise ValueError(f"claim {name}: {error.args[0]!r} is missing or unknown") from None
    except ValueError as error:
        raise ValueError(f"claim {name}: {error}") from None
    return claim


def _check(claim: Claim) -> None:
    """Raise ValueError for a claim whose parts do not go together."""
    if claim.unit not in UNITS:
        raise ValueError(f"unit {claim.unit!r} is unknown: known are {', '.join(UNITS)}")
    if claim.kind not in ("value", "direction", "published"):
        raise ValueError(f"kind {claim.kind!r} is unknown: value, direction or published")
    if claim.kind == "direction":
        if claim.rule not in RULES:
            raise ValueError(f"rule {claim.rule!r} is unknown: known are {', '.join(RULES)}")
        return
    if not claim.stated or not claim.conditions:
        raise ValueError("a number and the conditions it belongs to are needed")
    if claim.kind == "value" and not (claim.tolerance > 0 and claim.reason and claim.measure):
        raise ValueError("a value needs a measure, and a tolerance above 0 with its reason")
    if claim.measure:
        check_name(claim.measure["name"], {name: given for name, given in claim.measure.items() if name != "name"})
        if claim.id in UNIT_OF and dict(claim.measure) != {"name": claim.id}:
            raise ValueError("its id is the name of another number: a text that marks it would be ambiguous")
    elif not claim.record:
        raise ValueError("a measure, or the record that would hold it, is needed")


def _stated(entry: Mapping[str, Any]) -> tuple[tuple[float, ...], bool]:
    given = [name for name in ("value", "range", "series") if name in entry]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are given: one of them is needed")
    if not given:
        return (), False
    value = entry[given[0]]
    numbers: Sequence[float] = value if isinstance(value, list) else [value]
    if given == ["range"] and not (len(numbers) == 2 and numbers[0] <= numbers[1]):
        raise ValueError(f"range {numbers} is not a low and a high end")
    return tuple(numbers), given == ["range"]


def _both(words: Mapping[str, str]) -> Words:
    """The words in both languages."""
    if not isinstance(words, Mapping) or set(words) != set(LANGUAGES):
        raise ValueError(f"{words!r} is not given in both {' and '.join(LANGUAGES)}")
    return words
