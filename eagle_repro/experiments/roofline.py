"""01_roofline: what does a pass cost? Seconds of one verification pass of the target against its tokens.

The passes are chunks of text after a committed context, taken as a verification takes them: through the tree attention
and the slot cache, with the head's features, and logits at every token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from eagle_repro.api import Pair
from eagle_repro.engine.prefill import prefix_pass
from eagle_repro.engine.shape import read_span
from eagle_repro.experiments.long_prompts import meaningless
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.measure import summary
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.measure.roofline import card_of, measured_bandwidth, weight_bytes
from eagle_repro.measure.timing import alternate

CONTEXT = 320  # committed tokens before a pass, as many as a question with half of its answer
TOKENS = {
    "smoke": (1, 2, 4, 8, 16, 64),
    "quick": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    "full": (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512),
}
LEAST_REPEATS = 7  # a pass is short, and the median has to outvote a busy host
BUFFER_BYTES = {"smoke": 2**24}  # a real measurement of bandwidth needs more than the caches: the default


def measure(session: Session, progress: Progress = silent) -> Record:
    """Time passes of 1 to 512 tokens and the memory's bandwidth; write the record."""
    if session.records_from:
        return session.record()
    protocol, pair = session.protocol, session.pair
    with session.writer() as writer:
        bandwidth = measured_bandwidth(pair.device, buffer_bytes=BUFFER_BYTES.get(protocol.profile, 2**30))
        _time_passes(writer, pair, protocol, progress)
        card = card_of(pair.device)
        writer.complete(
            bandwidth_gb_s=bandwidth,
            peak_gb_s=card.bandwidth_gbs if card else None,
            weight_bytes=weight_bytes(pair.target.model),
            clocks_after=clocks(pair.device),
        )
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """Milliseconds of a pass by its tokens, measured on a pair that is loaded already."""
    return summary.roofline(measure(Session("01_roofline", replace(protocol, out=str(out)), pair)))


class Passes:
    """Verification passes over a row of ids, one chunk behind another; call it with where a chunk starts and ends.

    It gives the logits (n, V) of the chunk. What lies behind the chunk in the cache is not seen, so that the same
    chunk may be passed again and again.
    """

    def __init__(self, pair: Pair, ids: Sequence[int]) -> None:
        self.target, self.launched = pair.target, pair.launcher.launched
        self.passes: dict[tuple[int, int], Callable[[], Tensor]] = {}
        self.ids = torch.tensor([list(ids)], device=self.target.device)
        self.cache = self.target.cache(1, read_span(len(ids), 0))

    @torch.inference_mode()
    def __call__(self, start: int, end: int) -> Tensor:
        place = (start, end)
        if place not in self.passes:
            self.passes[place] = self.launched(partial(self._pass, start, end), self.target.device)
        return self.passes[place]()

    def _pass(self, start: int, end: int) -> Tensor:
        target = self.target
        positions, mask, span = prefix_pass(start, end - start, target)
        hidden, _ = target.forward(self.ids[:, start:end], positions, mask, self.cache.at(positions, span))
        return target.logits(hidden)[0]


def _time_passes(writer: RecordWriter, pair: Pair, protocol: Protocol, progress: Progress) -> None:
    """One row a pass; the order of the token counts is reversed from repeat to repeat."""
    counts = TOKENS.get(protocol.profile, TOKENS["full"])
    repeats = max(LEAST_REPEATS, protocol.repeats)
    passes = Passes(pair, meaningless(pair.target.vocabulary, CONTEXT + max(counts)))
    passes(0, CONTEXT)
    methods = {str(count): (lambda _, end=CONTEXT + count: passes(CONTEXT, end)) for count in counts}
    runs = alternate(
        methods,
        [None],
        device=pair.device,
        repeats=repeats,
        skip=lambda method, _, repeat: writer.has(f"pass/{method}/{repeat}"),
    )
    for run in progress(runs, "passes", len(counts) * repeats):
        row = {"tokens": int(run.method), "repeat": run.repeat, "context": CONTEXT, "seconds": run.seconds}
        writer.write(f"pass/{run.method}/{run.repeat}", row)
