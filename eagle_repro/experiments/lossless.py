"""06_lossless: is the text the same?

Greedy texts are compared with plain decoding's and replayed through the stock model, in float32 and in half precision.
Sampled texts differ by nature, so what is compared is the distribution: the probabilities that the first token is
drawn from, bit for bit, and whole texts by a permutation test, with plain decoding against itself as its control and
with rules of acceptance that are wrong on purpose, to see that it notices them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from eagle_repro.api import Pair
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.devices import DTYPES, resolve_dtype
from eagle_repro.engine.request import NonFiniteLogits
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.broken import BROKEN
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import Item, Row, Way, reason_of, write_text
from eagle_repro.experiments.sampled_arms import Arms, broken_row, control_row, eagle_row, own_arms, toy_arms
from eagle_repro.experiments.sampling import first_probabilities
from eagle_repro.experiments.session import Progress, Session, open_pair, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.experiments.timing_pairs import free_memory
from eagle_repro.measure import exactness
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.lossless import check
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.measure.timing import measure as timed
from eagle_repro.sources.questions import SETS

NAME = "06_lossless"
#: The tree whose greedy texts are checked: on a GPU the default one, whose passes differ most from plain steps.
GREEDY_TREE = {"smoke": (8, 3, 4), "quick": (8, 3, 4)}
#: Questions of each set in the precision of the run; one in the others.
QUESTIONS = {"smoke": 1, "quick": 1}
SLOWEST = 4  # times float32, beyond which a CPU is not asked for half precision


def measure(session: Session, progress: Progress = silent) -> Record:
    """Write and compare the texts; what an earlier session has written is not done again.

    Raises NonFiniteLogits of the run's own precision (another one is then a row that says so), and ValueError before
    any run for a prompt that does not fit max_length.
    """
    if session.records_from:
        return session.record()
    protocol, device = session.protocol, session.pair.device
    read_items(protocol, session.pair)  # raises before anything runs
    with session.writer() as writer:
        for label, steps in (
            ("texts", _permutations(writer, session)),
            ("precisions", _precisions(writer, session)),
        ):
            for _ in progress(steps, label, None):
                pass
        writer.complete(clocks_after=clocks(device), temperature=protocol.temperature)
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """Greedy texts against plain decoding's by precision, measured on a pair that is loaded already."""
    return exactness.greedy(measure(Session(NAME, replace(protocol, out=str(out)), pair)))


# --- sampled texts ---------------------------------------------------------------------------------------------------


def _permutations(writer: RecordWriter, session: Session) -> Iterator[None]:
    yield from _tests(writer, "tiny", toy_arms, broken=True)
    if session.pair.name != "tiny":
        pair, protocol = session.pair, session.protocol
        prompt = read_items(replace(protocol, questions=1), pair)[0].prompt
        yield from _tests(writer, pair.name, lambda: own_arms(pair, protocol, prompt), broken=False)


def _tests(writer: RecordWriter, name: str, make: Callable[[], Arms], *, broken: bool) -> Iterator[None]:
    """The control, the engine against plain decoding, and rules that are wrong."""
    tests: dict[str, Callable[[Arms], Row]] = {"plain-plain": control_row, "eagle": eagle_row}
    for number, rule in enumerate(BROKEN if broken else ()):
        tests[f"broken-{rule}"] = partial(broken_row, number=number)
    left = [test for test in tests if not writer.has(f"permutation/{name}/{test}")]
    arms = make() if left else None
    for test in left:
        assert arms is not None
        known = {"temperature": arms.sampling.temperature, "samples": arms.samples, "tokens": arms.tokens}
        row = {"what": "permutation", "pair": name, "name": test, **known, **tests[test](arms)}
        writer.write(f"permutation/{name}/{test}", row)
        yield


# --- greedy texts and first tokens -----------------------------------------------------------------------------------


def _precisions(writer: RecordWriter, session: Session) -> Iterator[None]:
    """Greedy texts and first tokens in the precision of the run, then in the others, one pair at a time."""
    protocol = session.protocol
    device, others = session.pair.device, other_dtypes(session.pair)
    count = min(protocol.questions, QUESTIONS.get(protocol.profile, protocol.questions))
    yield from _one_precision(writer, session.pair, protocol, count)
    session.release()  # a second copy of a large target would not fit beside it
    for dtype in others:
        if writer.has(f"skipped/{dtype}"):
            continue
        try:
            require_speed(dtype, device)
            pair = open_pair(replace(protocol, dtype=dtype))
        except (OSError, RuntimeError, ValueError) as error:  # torch's own out-of-memory error is one, too
            _skip(writer, dtype, error)
            continue
        try:
            yield from _one_precision(writer, pair, protocol, 1)
        except (NonFiniteLogits, torch.OutOfMemoryError) as error:
            _skip(writer, dtype, error)
        del pair
        free_memory()


def _skip(writer: RecordWriter, dtype: str, error: Exception) -> None:
    writer.write(f"skipped/{dtype}", {"what": "skipped", "dtype": dtype, "reason": reason_of(error)})


def other_dtypes(pair: Pair) -> list[str]:
    """The precisions beside the pair's own: float32 and what the device computes in halves."""
    device = torch.device(pair.device)
    halves = ["bfloat16"]
    if device.type == "cuda":
        native = resolve_dtype("auto", device) == torch.bfloat16
        halves = ["float16", "bfloat16"] if native else ["float16"]
    return [dtype for dtype in ("float32", *halves) if dtype != pair.dtype]


def require_speed(dtype: str, device: str) -> None:
    """Raise RuntimeError where a CPU computes in this precision many times slower than in float32."""
    if device != "cpu" or dtype == "float32":
        return

    def product(kind: str) -> float:
        left, right = (torch.ones(rows, 1024, dtype=DTYPES[kind]) for rows in (16, 1024))
        return timed(lambda: left @ right.T, device=device, repeats=5).median

    slower = product(dtype) / product("float32")
    if slower > SLOWEST:
        raise RuntimeError(f"this CPU computes {slower:.0f} times slower in {dtype} than in float32")


def _one_precision(writer: RecordWriter, pair: Pair, protocol: Protocol, questions: int) -> Iterator[None]:
    shape = TreeShape(*GREEDY_TREE[protocol.profile]) if protocol.profile in GREEDY_TREE else protocol.trees["default"]
    items = read_items(replace(protocol, questions=questions), pair)
    first: dict[str, Item] = {}
    for item in items:
        first.setdefault(item.set, item)
    for item in items:
        key = f"greedy/{pair.dtype}/{item.set}/{item.question}"
        if not writer.has(key):
            writer.write(key, greedy_row(pair, item, shape, protocol.new_tokens))
            yield
    for item in first.values():
        key = f"first_token/{pair.dtype}/{item.set}/{item.question}"
        if not writer.has(key):
            writer.write(key, first_token_row(pair, item, protocol.temperature or 1.0))
            yield


def greedy_row(pair: Pair, item: Item, shape: TreeShape, tokens: int) -> Row:
    """The greedy text by speculation beside plain decoding's, both replayed through the stock model."""
    plain = write_text(pair, Way("plain"), item, tokens)
    eagle = write_text(pair, Way("eagle", "-", shape), item, tokens)
    report, of_plain = (check(pair, item.prompt, done.ids) for done in (eagle, plain))
    return {
        "what": "greedy",
        "set": item.set,
        "domain": SETS[item.set].domain,
        "question": item.question,
        "dtype": pair.dtype,
        "nodes": shape.total_tokens,
        "tokens": len(eagle.ids),
        "verdict": report.verdict,
        "same_as_plain": eagle.ids == plain.ids,
        "mismatches": [asdict(mismatch) for mismatch in report.mismatches],
        "plain_mismatches": len(of_plain.mismatches),
        "typical_gap": report.typical_gap,
        "max_gap": report.max_gap,
    }


def first_token_row(pair: Pair, item: Item, temperature: float) -> Row:
    """Whether both loops draw the first token from the same probabilities, bit for bit."""
    sampling = Sampling(temperature=temperature)
    plain, eagle = (first_probabilities(pair, item.prompt, method, sampling) for method in ("plain", "eagle"))
    same = bool(plain.isfinite().all()) and torch.equal(plain, eagle)
    row: Row = {"what": "first_token", "set": item.set, "question": item.question, "dtype": pair.dtype}
    return row | {"temperature": temperature, "identical": same, "entries": plain.numel()}
