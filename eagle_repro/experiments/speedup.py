"""02_speedup: what does the method give, by question set?

Every question is written by each way of decoding, to equally many tokens, in turns: the order is reversed from one
question to the next, so that a card that slows down hurts all alike. The texts are compared as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from eagle_repro.api import Pair
from eagle_repro.engine.accept import Sampling
from eagle_repro.experiments.compared import alternated, write_compared
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import WARM_UP_TOKENS, Item, Way, cycle_rows, run_key, run_row, write_text
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.measure import summary
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.sources.questions import SETS, load_questions, pick, prompt_ids

TOKENS_A_CYCLE = 3  # what an instrumented run is planned with
INSTRUMENTED = "instrumented"  # stands in the key where other runs have their repeat


def measure(session: Session, progress: Progress = silent) -> Record:
    """Run every question both ways and write the record; what an earlier session has written is not run again.

    Raises NonFiniteLogits (nothing of that run is written), and ValueError before any run for a prompt that does not
    fit max_length.
    """
    if session.records_from:
        return session.record()
    protocol, pair = session.protocol, session.pair
    items = read_items(protocol, pair)
    with session.writer() as writer:
        known = session.partial_rows()
        for ways, chosen in plans(protocol, items):
            runs = alternated(writer, pair, protocol, ways, chosen)
            total = len(ways) * len(chosen) * protocol.repeats
            write_compared(writer, pair, ways, chosen, progress(runs, ways[-1].variant, total), known)
        for _ in progress(_instrumented(writer, pair, protocol, items), "phases", None):
            pass
        writer.complete(clocks_after=clocks(pair.device))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """tau and speedup by set and tree, measured on a pair that is loaded already."""
    return summary.speedup(measure(Session("02_speedup", replace(protocol, out=str(out)), pair)))


def read_items(protocol: Protocol, pair: Pair, questions: int | None = None) -> list[Item]:
    """The questions of all sets as prompts. Raises ValueError for one that does not fit max_length with its answer.

    questions: of each set, or all that it has if these are fewer; None for the protocol's.
    """
    items = []
    for name in protocol.sets:
        known = load_questions(name)
        for question in pick(known, min(questions or protocol.questions, len(known))):
            prompt = prompt_ids(pair.tokenizer, question, thinking=protocol.thinking)
            if len(prompt) + protocol.new_tokens > pair.max_length:
                raise ValueError(
                    f"question {question.id} of {name} has {len(prompt)} tokens, which with new_tokens="
                    f"{protocol.new_tokens} do not fit max_length={pair.max_length}: lower one or raise the other"
                )
            items.append(Item(name, question.id, prompt))
    return items


def plans(protocol: Protocol, items: Sequence[Item]) -> Iterator[tuple[list[Way], list[Item]]]:
    """What is run in turns with what: all ways on all questions when greedy, plain and one tree when sampling."""
    trees = [Way("eagle", name, shape) for name, shape in protocol.trees.items()]
    yield [*(Way(method) for method in protocol.baselines), *trees], list(items)
    russian = [item for item in items if SETS[item.set].language == "ru"][: protocol.sampled_questions]
    if russian and protocol.temperature > 0:
        sampling = Sampling(temperature=protocol.temperature, seed=protocol.seed)
        yield [Way(way.method, "sampled", way.shape, sampling) for way in (Way("plain"), trees[-1])], russian


def _instrumented(writer: RecordWriter, pair: Pair, protocol: Protocol, items: Sequence[Item]) -> Iterator[None]:
    """Extra runs with every phase timed: of each set its first question, with every tree."""
    tokens = min(protocol.new_tokens, TOKENS_A_CYCLE * protocol.instrument_cycles)
    first = {item.set: item for item in reversed(items)}
    ways = [Way("eagle", name, shape) for name, shape in protocol.trees.items()]
    left = [(item, way) for item in first.values() for way in ways if not writer.has(run_key(item, way, INSTRUMENTED))]
    if tokens < 2 or not left:
        return
    for way in ways:
        write_text(pair, way, items[0], WARM_UP_TOKENS, instrument=True)
    for item, way in reversed(left):
        done = write_text(pair, way, item, tokens, instrument=True)
        row = run_row(pair, item, way, done, repeat=0, order=None) | {"instrumented": True}
        writer.write(run_key(item, way, INSTRUMENTED), row, cycle_rows(done))
        yield
