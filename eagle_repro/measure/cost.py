"""The cost model: what a speculation cycle costs, and the speedup that follows.

    speedup = tau * t_plain / (t_verify(nodes) + (depth + 1) * t_draft + t_rest)

tau tokens come out of one cycle; plain decoding would have paid t_plain for each. The cycle pays one verification
pass over the whole tree, one draft pass per drafted level (the reference's `depth` counts the draft passes after
the first, hence depth + 1) and whatever is left. So width is nearly free while a verification pass is flat in its
tokens, and depth is paid level by level. Times are in seconds; any one unit used throughout does as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseCosts:
    """Seconds that a cycle spends, by phase.

    `verify`: one target pass over the tree; `draft`: one pass of the head, of which a cycle makes depth + 1;
    `rest`: everything else, that is choosing the path, committing it and the host's share.
    """

    verify: float
    draft: float
    rest: float


def cycle_seconds(t_verify: float, depth: int, t_draft: float, t_rest: float) -> float:
    """Seconds of one cycle: t_verify + (depth + 1) * t_draft + t_rest.

    Raises ValueError for a negative depth and for times that are negative or not finite.
    """
    levels = _levels(depth)
    for name, seconds in (("t_verify", t_verify), ("t_draft", t_draft), ("t_rest", t_rest)):
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{name} {seconds} s was given: a finite time of 0 or more is needed")
    return t_verify + levels * t_draft + t_rest


def speedup(tau: float, t_plain: float, costs: PhaseCosts, depth: int) -> float:
    """Predicted speedup of decoding: tau * t_plain over the seconds of a cycle at `depth`.

    tau: tokens that a cycle gives, the bonus token included; t_plain: seconds of one plain token.
    Raises ValueError for tau below 1, for a plain time that is not positive and for a cycle that takes no time.
    """
    if not (math.isfinite(tau) and tau >= 1):
        raise ValueError(f"tau {tau} was given: a cycle gives at least its bonus token, so 1 or more is needed")
    if not (math.isfinite(t_plain) and t_plain > 0):
        raise ValueError(f"t_plain {t_plain} s was given: a positive time is needed")
    cycle = cycle_seconds(costs.verify, depth, costs.draft, costs.rest)
    if cycle <= 0:
        raise ValueError("a cycle of 0 s was given: give measured phases")
    return tau * t_plain / cycle


def phase_costs(cycles: Sequence[Mapping[str, float | None]], *, depth: int, decode_s: float) -> PhaseCosts | None:
    """The phases of an instrumented run, as means over its cycles; None if its stack cannot tell them apart.

    cycles: one mapping a cycle with `draft_s` and `verify_s`; decode_s: seconds of that run's decoding loop.
    Means and not medians, because means add up: the rest is what decode_s holds beyond drafting and verifying,
    so that the phases of the average cycle sum to decode_s / len(cycles).
    Raises ValueError for no cycles, and for phases that add up to more than decode_s.
    """
    levels = _levels(depth)
    if not cycles:
        raise ValueError("no cycles were given: the phases need at least one instrumented cycle")
    drafts, verifies = ([cycle.get(name) for cycle in cycles] for name in ("draft_s", "verify_s"))
    draft_s = math.fsum(seconds for seconds in drafts if seconds is not None)
    verify_s = math.fsum(seconds for seconds in verifies if seconds is not None)
    if None in drafts or None in verifies:
        return None
    rest_s = decode_s - draft_s - verify_s
    if rest_s < 0:
        raise ValueError(
            f"drafting and verifying took {draft_s + verify_s:.4g} s out of decode_s={decode_s:.4g} s: "
            "give phases and decode_s of the same run"
        )
    count = len(cycles)
    return PhaseCosts(verify_s / count, draft_s / (count * levels), rest_s / count)


def _levels(depth: int) -> int:
    if depth < 0:
        raise ValueError(f"depth {depth} was given: 0 or more is needed (depth 0 drafts one level)")
    return depth + 1


def flat_until(tokens: Sequence[int], seconds: Sequence[float], tolerance: float = 0.25) -> int:
    """The largest token count up to which a pass costs at most (1 + tolerance) times the pass of one token.

    Every smaller measured count keeps to it as well. If all do, this is the last count: the curve is flat at least
    up to there. tokens: rising, from 1; seconds: of each pass. Raises ValueError for anything else.
    """
    rising = list(tokens) == sorted(set(tokens))
    if len(tokens) != len(seconds) or not rising or not tokens or tokens[0] != 1:
        raise ValueError(f"token counts {list(tokens)} with {len(seconds)} times: rising counts from 1 are needed")
    flat = 1
    for count, cost in zip(tokens, seconds, strict=True):
        if cost > (1 + tolerance) * seconds[0]:
            break
        flat = count
    return flat
