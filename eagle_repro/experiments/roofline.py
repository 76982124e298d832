"""01_roofline: what does a pass cost? Seconds of one verification pass of the target against its tokens.

The passes are chunks of text after a committed context, taken as a verification takes them: through the tree attention
and the slot cache, with the head's features, and logits at every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from eagle_repro.api import Pair
from eagle_repro.engine.attention import visibility
from eagle_repro.engine.cycle import causal
from eagle_repro.engine.stacks import read_span
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
LEAST_REPEATS = 3  # a pass is short, so that a spread costs little
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


def verification_pass(pair: Pair, context: int, longest: int) -> Callable[[int], None]:
    """A function of n <= longest that runs one pass over n tokens behind `context` committed tokens.

    The committed tokens and those of the pass are ids of no meaning: what a pass costs does not depend on them.
    """
    target = pair.target
    cache = target.cache(1, read_span(context, longest))
    ids = (torch.arange(context + longest, device=target.device) * 7 % target.vocabulary).unsqueeze(0)

    def forward(start: int, count: int) -> None:
        positions = torch.arange(start, start + count, device=target.device).unsqueeze(0)
        span = read_span(start, count)
        length = torch.tensor([start], device=target.device)
        mask = visibility(length, causal(count, target.device), span, target.dtype)
        hidden, _ = target.forward(ids[:, start : start + count], positions, mask, cache.at(positions, span))
        target.logits(hidden)

    with torch.inference_mode():
        forward(0, context)

    @torch.inference_mode()
    def step(count: int) -> None:
        forward(context, count)

    return step


def _time_passes(writer: RecordWriter, pair: Pair, protocol: Protocol, progress: Progress) -> None:
    """One row a pass; the order of the token counts is reversed from repeat to repeat."""
    counts = TOKENS.get(protocol.profile, TOKENS["full"])
    repeats = max(LEAST_REPEATS, protocol.repeats)
    step = verification_pass(pair, CONTEXT, max(counts))
    methods = {str(count): (lambda _, count=count: step(count)) for count in counts}
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
