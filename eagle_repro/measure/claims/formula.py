"""The cost formula on the article's own figures: what follows from its 64-node cycle, and how far the rest is from it.

    speedup = tau * t_plain / (t_verify + (depth + 1) * t_draft + t_rest)

The article gives the phases of one cycle, of 64 nodes, and not its depth. Three drafting passes fit the depth-2 shape
that it recommends, so its 8.9 ms are taken as three. Everything else is then a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_repro.measure.claims.article import Claim
from eagle_repro.measure.cost import PhaseCosts, speedup

DEPTH = 2
TAU = 2.5  # "two and a half tokens", the article's section on the acceptance length
#: What the article gives both tau and speedup of: the claims of tau and speedup, and the depth.
PAIRS = (
    ("depth_2_tau", "depth_2_speedup", 2),
    ("depth_10_tau", "depth_10_speedup", 10),
    ("tau_in", "speedup_english", 7),
    ("tau_russian_default", "speedup_russian", 7),
    ("tau_russian_depth_2", "speedup_russian_depth_2", 2),
)


@dataclass(frozen=True)
class Residual:
    """One point: tau at a depth, the speedup that the formula gives, the stated one (None: not stated), both off in %.

    id: the claim of the speedup; a range counts as its middle.
    """

    id: str
    depth: int
    tau: float
    predicted: float
    stated: float | None

    @property
    def percent(self) -> float | None:
        """Predicted above stated, in percent."""
        return None if self.stated is None else 100 * (self.predicted / self.stated - 1)


def residuals(claims: Sequence[Claim]) -> list[Residual]:
    """The article's 64-node cycle first, then every pair of tau and speedup that it gives."""
    stated = {claim.id: sum(claim.stated) / len(claim.stated) for claim in claims if claim.stated}
    draft, verify, accept, rest = (stated[f"cycle_{name}_ms"] for name in ("draft", "verify", "accept", "rest"))
    costs = PhaseCosts(verify, draft / (DEPTH + 1), accept + rest)
    plain = stated["pass_1_ms"]
    points = [Residual("cycle", DEPTH, TAU, speedup(TAU, plain, costs, DEPTH), None)]
    for tau, gain, depth in PAIRS:
        predicted = speedup(stated[tau], plain, costs, depth)
        points.append(Residual(gain, depth, stated[tau], predicted, stated[gain]))
    return points
