"""Ways of writing run in turns on the same questions, and their texts compared as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from eagle_repro.api import Pair
from eagle_repro.engine.generate import Generation
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import WARM_UP_TOKENS, Item, Row, Way, run_key, run_row, text_digest, write_text
from eagle_repro.measure import lossless
from eagle_repro.measure.records import RecordWriter
from eagle_repro.measure.timing import TimedRun, alternate

Runs = Iterable[TimedRun[Generation]]


def alternated(
    writer: RecordWriter,
    pair: Pair,
    protocol: Protocol,
    ways: Sequence[Way],
    items: Sequence[Item],
    others: Mapping[str, Pair] | None = None,
) -> Iterator[TimedRun[Generation]]:
    """The runs that the record lacks, in turns; before the first, each way is warmed up on a question, thrown away.

    others: by variant, the pairs (the same target with another head) that write instead of `pair`.
    """
    pairs = others or {}
    named = {way.name: way for way in ways}

    def skip(method: str, item: int, repeat: int) -> bool:
        return writer.has(run_key(items[item], named[method], repeat))

    methods = {
        name: (lambda item, way=way: write_text(pairs.get(way.variant, pair), way, item, protocol.new_tokens))
        for name, way in named.items()
    }
    repeats = range(protocol.repeats)
    if all(skip(name, item, repeat) for name in named for item in range(len(items)) for repeat in repeats):
        return
    for way in ways:
        write_text(pairs.get(way.variant, pair), way, items[0], WARM_UP_TOKENS)
    yield from alternate(methods, items, device=pair.device, warmup=0, repeats=protocol.repeats, skip=skip)


def no_label(way: Way) -> Row:
    """The default for `label`: a run's row says nothing more."""
    return {}


def write_compared(
    writer: RecordWriter,
    pair: Pair,
    ways: Sequence[Way],
    items: Sequence[Item],
    runs: Runs,
    known: Sequence[Row],
    label: Callable[[Way], Row] = no_label,
) -> None:
    """Write each run with what became of its text; a run that comes before its plain one waits for that, unwritten.

    known: rows of an earlier session, for the plain texts among them. label: what a row says of its way beyond that.
    """
    named = {way.name: way for way in ways}
    plain = next(way for way in ways if way.method == "plain")
    texts = {
        (row["set"], row["question"]): row["ids_sha256"]
        for row in known
        if row["kind"] == "run" and (row.get("method"), row.get("variant")) == (plain.method, plain.variant)
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
            writer.write(run_key(item, way, done.repeat), row | verdict | label(way))


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
