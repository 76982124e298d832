"""What the phases of a cycle cost: few instrumented cycles of many shapes, plain steps among them.

A stack that launches a whole cycle at once takes less for it than for its phases with a clock in between. There the
same text is written once more without clocks: its cycles are what a cycle costs, the instrumented ones say how that is
divided among the phases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from eagle_repro.api import Pair
from eagle_repro.engine.request import Cycle
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.long_prompts import meaningless
from eagle_repro.experiments.roofline import Passes
from eagle_repro.experiments.rows import Item, Row, Way, tree_key, write_text
from eagle_repro.measure.timing import measure

WARM_UP_CYCLES = 2


def cost_rows(
    pair: Pair,
    items: Sequence[Item],
    shapes: Sequence[TreeShape],
    *,
    cycles: int,
    rounds: int,
    tokens: int | None = None,
    has: Callable[[str], bool] = lambda key: False,
) -> Iterator[tuple[str, Row]]:
    """Key and row of each measured cost, `cycles` cycles (or plain steps) of a shape in all, in `rounds` turns.

    tokens: of the texts in which cycles are timed where they are replayed, and so short that a text's ends and the
    length of what is read show; there are then more of them. Elsewhere a text is as long as it takes.

    The order of shapes is reversed from turn to turn, so that a card that slows down bends no curve; questions
    alternate. What `has` knows is left out. Raises RuntimeError on a stack whose phases cannot be told apart.
    """
    each = math.ceil(cycles / rounds)
    whole = tokens if pair.stack != "eager" else None
    steps: list[TreeShape | None] = [None, *shapes]
    warm: set[TreeShape | None] = set()
    for turn in range(rounds):
        for place, shape in enumerate(steps if turn % 2 == 0 else steps[::-1]):
            keys = [f"cost/{phase}/{_label(shape)}/{turn}" for phase in _phases(shape)]
            if all(map(has, keys)):
                continue
            chosen = [items[(turn + place + n) % len(items)] for n in range(len(items))]
            if shape not in warm:
                _timed(pair, chosen, shape, WARM_UP_CYCLES, None)
                warm.add(shape)
            costs = _timed(pair, chosen, shape, each, whole)
            found = {f"cost/{row['phase']}/{_label(shape)}/{turn}": row for row in costs}
            yield from ((key, row | {"repeat": turn}) for key, row in found.items() if not has(key))


def reference_times(pair: Pair, counts: Sequence[int], passes: int) -> Mapping[int, float]:
    """Seconds of a pass of so many tokens, as the reference's rule times them: nothing before, the mean of `passes`."""
    run = Passes(pair, meaningless(pair.target.vocabulary, max(counts)))
    timed = {count: measure(partial(run, 0, count), device=pair.device, repeats=passes) for count in counts}
    return {count: math.fsum(each.values) / passes for count, each in timed.items()}


def _phases(shape: TreeShape | None) -> tuple[str, ...]:
    return ("plain",) if shape is None else ("verify", "draft", "rest")


def _label(shape: TreeShape | None) -> str:
    return "1" if shape is None else tree_key(shape)


def _timed(
    pair: Pair, items: Sequence[Item], shape: TreeShape | None, cycles: int, tokens: int | None
) -> Iterator[Row]:
    """The costs of at least `cycles` cycles of a shape, from the first question on; means, for means add up. tokens: of
    a text, None for as many as make up the cycles."""
    done: list[Cycle] = []
    seconds, whole, place = 0.0, 0.0, 0
    apart = shape is not None and pair.stack != "eager"
    way = Way("plain") if shape is None else Way("eagle", "-", shape)
    while len(done) < cycles:
        left = cycles - len(done)
        # Two tokens a cycle are a guess; too few is made up for by the next question. A plain cycle gives just one.
        budget = tokens or 1 + (left if shape is None else 2 * left)
        item = items[place % len(items)]
        text = write_text(pair, way, item, budget, instrument=shape is not None)
        done, seconds, place = done + text.cycles, seconds + text.decode_s, place + 1
        whole += (write_text(pair, way, item, budget) if apart else text).decode_s
    count, part = len(done), whole / seconds
    common = {"what": "cost", "cycles": count, "context": sum(cycle.context for cycle in done) / count}
    common |= {"nodes": None, "depth": None, "top_k": None}
    if shape is None:
        return iter([common | {"phase": "plain", "nodes": 1, "seconds": whole / count}])
    draft, verify = part * _sum(done, "draft_s"), part * _sum(done, "verify_s")
    nodes, drafted = {"nodes": shape.total_tokens}, {"depth": shape.depth, "top_k": shape.top_k}
    return iter(
        [
            common | nodes | {"phase": "verify", "seconds": verify / count},
            common | drafted | {"phase": "draft", "seconds": draft / count},
            common | nodes | {"phase": "rest", "seconds": max(0.0, whole - draft - verify) / count},
        ]
    )


def _sum(cycles: Sequence[Cycle], phase: str) -> float:
    times = [getattr(cycle, phase) for cycle in cycles]
    if None in times:
        raise RuntimeError("this stack cannot time the phases of a cycle, which the cost curves need: use stack=eager")
    return math.fsum(times)
