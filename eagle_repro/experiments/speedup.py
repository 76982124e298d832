"""02_speedup: what does the method give, by question set?

Every question is written by each way of decoding, to equally many tokens, in turns: the order is reversed from one
question to the next, so that a card that slows down hurts all alike. The texts are compared as they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from eagle_repro.api import Pair
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.generate import Generation
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import Item, Row, Way, cycle_rows, run_key, run_row, text_digest, write_text
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.measure import lossless, summary
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.measure.timing import TimedRun, alternate
from eagle_repro.sources.questions import SETS, load_questions, pick, prompt_ids

WARM_UP_TOKENS = 4  # on a CPU nothing is compiled or captured, so that a few tokens warm up as well as a whole run
TOKENS_A_CYCLE = 3  # what an instrumented run is planned with
INSTRUMENTED = "instrumented"  # stands in the key where other runs have their repeat
Runs = Iterable[TimedRun[Generation]]


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
            runs = _alternated(writer, pair, protocol, ways, chosen)
            total = len(ways) * len(chosen) * protocol.repeats
            _write_compared(writer, pair, ways, chosen, progress(runs, ways[-1].variant, total), known)
        for _ in progress(_instrumented(writer, pair, protocol, items), "phases", None):
            pass
        writer.complete(clocks_after=clocks(pair.device))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """tau and speedup by set and tree, measured on a pair that is loaded already."""
    return summary.speedup(measure(Session("02_speedup", replace(protocol, out=str(out)), pair)))


def read_items(protocol: Protocol, pair: Pair) -> list[Item]:
    """The questions of all sets as prompts. Raises ValueError for one that does not fit max_length with its answer."""
    items = []
    for name in protocol.sets:
        for question in pick(load_questions(name), protocol.questions):
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


def _alternated(
    writer: RecordWriter, pair: Pair, protocol: Protocol, ways: Sequence[Way], items: Sequence[Item]
) -> Iterator[TimedRun[Generation]]:
    """The runs that the record lacks, in turns; before the first, each way is warmed up on a question, thrown away."""
    named = {way.name: way for way in ways}

    def skip(method: str, item: int, repeat: int) -> bool:
        return writer.has(run_key(items[item], named[method], repeat))

    methods = {
        name: (lambda item, way=way: write_text(pair, way, item, protocol.new_tokens)) for name, way in named.items()
    }
    repeats = range(protocol.repeats)
    if all(skip(name, item, repeat) for name in named for item in range(len(items)) for repeat in repeats):
        return
    on_gpu = pair.device != "cpu"
    for way in ways:
        write_text(pair, way, items[0], protocol.new_tokens if on_gpu else WARM_UP_TOKENS)
    yield from alternate(methods, items, device=pair.device, warmup=0, repeats=protocol.repeats, skip=skip)


def _write_compared(
    writer: RecordWriter, pair: Pair, ways: Sequence[Way], items: Sequence[Item], runs: Runs, known: Sequence[Row]
) -> None:
    """Write each run with what became of its text; a run that comes before its plain one waits for that, unwritten.

    known: rows of an earlier session, for the plain texts among them.
    """
    named = {way.name: way for way in ways}
    plain = next(way for way in ways if way.method == "plain")
    texts = {
        (row["set"], row["question"]): row["ids_sha256"]
        for row in known
        if row["kind"] == "run" and (row["method"], row["variant"]) == (plain.method, plain.variant)
    }
    waiting: dict[tuple[str, str], list[TimedRun[Generation]]] = {}
    for run in runs:
        item = items[run.item]
        place = (item.set, item.question)
        waiting.setdefault(place, []).append(run)
        if run.method == plain.name:
            texts.setdefault(place, text_digest(run.result.ids))
        for done in waiting.pop(place) if place in texts else ():
            way, ids = named[done.method], done.result.ids
            verdict = compare_texts(pair, item, way, ids, same=text_digest(ids) == texts[place])
            row = run_row(pair, item, way, done.result, repeat=done.repeat, order=done.order)
            writer.write(run_key(item, way, done.repeat), row | verdict)


def compare_texts(pair: Pair, item: Item, way: Way, ids: list[int], *, same: bool) -> Row:
    """What to say of a text: the same as plain decoding's, else how many of its mismatches are near-ties.

    Sampled texts that differ are not replayed: a near-tie there is one of noise, which the replay does not see.
    """
    if same:
        return {"same_as_plain": True, "near_ties": 0, "verdict": "identical"}
    if not way.sampling.greedy:
        return {"same_as_plain": False, "near_ties": None, "verdict": "different"}
    report = lossless.check(pair, item.prompt, ids)
    excused = sum(mismatch.excused for mismatch in report.mismatches)
    # Identical to the replay, yet not to the plain text: then it was the plain run that took the other way at a tie.
    verdict = "near-ties" if report.ok else "different"
    return {"same_as_plain": False, "near_ties": excused, "verdict": verdict}


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
