"""Every claim beside a run: what the run says, and the verdict.

A value is judged only where the run's conditions are the claim's: reproduced or differs. Elsewhere the run's own number
stands beside it as another bench's. A direction is tested on any bench. What a run does not hold is not measured here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_repro.measure.claims.article import NOT_COMPARED, Claim
from eagle_repro.measure.claims.directions import RULES, Effect
from eagle_repro.measure.claims.numbers import find
from eagle_repro.measure.claims.run import Found, NotMeasured, Run

REPRODUCED, DIFFERS, OTHER_BENCH, NOT_MEASURED = "reproduced", "differs", "other bench", "not measured here"
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
VERDICTS = (REPRODUCED, DIFFERS, OTHER_BENCH, HOLDS, FAILS, UNDECIDED, NOT_MEASURED)


@dataclass(frozen=True)
class Result:
    """A claim with what a run says of it.

    found: the run's number(s), None where there is none; off: how far the farthest is from what was stated (signed, in
    the unit), for a value that was judged; other: the conditions in which the run differs, by name (claim's, run's);
    effect: of a direction; lacks: the record that does not hold it, and why.
    """

    claim: Claim
    verdict: str
    found: Found | None = None
    off: float | None = None
    other: Mapping[str, tuple[Any, Any]] | None = None
    effect: Effect | None = None
    lacks: tuple[str, str] | None = None

    def as_row(self) -> dict[str, Any]:
        """The result as plain data, for a record or JSON."""
        claim, effect = self.claim, self.effect
        row: dict[str, Any] = {
            "id": claim.id,
            "claim_kind": claim.kind,
            "text": dict(claim.text),
            "section": dict(claim.section),
            "unit": claim.unit,
            "stated": list(claim.stated),
            "is_range": claim.is_range,
            "tolerance": claim.tolerance or None,
            "tolerance_reason": dict(claim.reason) if claim.reason else None,
            "conditions": dict(claim.conditions) if claim.conditions else None,
            "verdict": self.verdict,
            "measured": list(_several(self.found.value)) if self.found else None,
            "record": (self.found or effect or self).record,
            "off": self.off,
            "other": {name: list(pair) for name, pair in self.other.items()} if self.other else None,
            "lacks": self.lacks[1] if self.lacks else None,
        }
        if effect:
            found = effect.estimate
            row |= {"effect": found.value, "low": found.low, "high": found.high, "border": effect.border}
            row |= {"left": list(effect.left), "right": list(effect.right), "wanted_above": effect.above}
        return row

    @property
    def record(self) -> str | None:
        """The record that lacks the number."""
        return self.lacks[0] if self.lacks else None


def check(claims: Sequence[Claim], run: Run) -> list[Result]:
    """Every claim beside the run, in order."""
    return [check_one(claim, run) for claim in claims]


def check_one(claim: Claim, run: Run) -> Result:
    """One claim beside the run."""
    try:
        if claim.rule:
            rule = RULES[claim.rule]
            effect = run.once(claim.rule, lambda: rule(run))
            return Result(claim, effect.verdict, effect=effect)
        if not claim.measure:
            raise NotMeasured(str(claim.record), run.states.get(str(claim.record), "missing"))
        arguments = {name: value for name, value in claim.measure.items() if name != "name"}
        if len(claim.stated) > 1 and not claim.is_range:
            arguments["near"] = claim.stated
        return judge(claim, find(run, claim.measure["name"], arguments))
    except NotMeasured as error:
        return Result(claim, NOT_MEASURED, lacks=(error.record, error.why))


def judge(claim: Claim, found: Found) -> Result:
    """The verdict on a number that was found."""
    other = differing(claim.conditions or {}, found.conditions)
    if claim.kind == "published" or other:
        return Result(claim, OTHER_BENCH, found, other=other)
    off = deviation(claim, _several(found.value))
    # The slack is for the last bit of a sum, not for a measurement.
    verdict = REPRODUCED if abs(off) <= claim.tolerance * (1 + 1e-9) else DIFFERS
    return Result(claim, verdict, found, off=off, other={})


def stated_as_found(claim: Claim, steps: float = 0.0) -> Found:
    """What a run on the article's bench would say that lies so many tolerances above the article (a range: its end)."""
    values = claim.stated[-1:] if claim.is_range else claim.stated
    moved = tuple(float(value + steps * claim.tolerance) for value in values)
    return Found(moved if len(moved) > 1 else moved[0], "made-up", dict(claim.conditions or {}))


def deviation(claim: Claim, values: Sequence[float]) -> float:
    """How far the farthest value is from what was stated: from its own number, or from the nearer end of the range."""
    if claim.is_range:
        low, high = claim.stated
        away = [value - min(max(value, low), high) for value in values]
    else:
        away = [value - stated for value, stated in zip(values, claim.stated, strict=True)]
    return max(away, key=abs)


def differing(wanted: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The compared conditions in which a run differs: name -> (the claim's, the run's or None where it tells none)."""
    compared = {name: value for name, value in wanted.items() if name not in NOT_COMPARED}
    return {name: (value, here.get(name)) for name, value in compared.items() if not _same(name, value, here.get(name))}


def counts(results: Sequence[Result]) -> dict[str, int]:
    """How many claims got each verdict."""
    found = [result.verdict for result in results]
    return {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found}


def _same(name: str, wanted: Any, here: Any) -> bool:
    if name == "card" and here is not None:
        # "Tesla T4" is a T4, an L40 is no L4.
        return re.search(rf"(?<!\w){re.escape(str(wanted))}(?!\w)", str(here)) is not None
    return bool(wanted == here)


def _several(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)
