"""06_lossless: is the text the same?

Greedy texts are compared with plain decoding's and replayed through the stock model, in float32 and in half precision.
Sampled texts differ by nature, so what is compared is the distribution: the probabilities that the first token is
drawn from, bit for bit, and whole texts by a permutation test, with plain decoding against itself as its control and
with rules of acceptance that are wrong on purpose, to see that it notices them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from eagle_repro.api import DTYPES, Pair, generate, resolve_dtype
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.broken import BROKEN
from eagle_repro.experiments.checked import tiny
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import Item, Row, Way, write_text
from eagle_repro.experiments.sampling import Rule, first_probabilities, sample_texts
from eagle_repro.experiments.session import Progress, Session, open_pair, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.measure import exactness
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.lossless import check
from eagle_repro.measure.permutation import ALPHA, Compared, control, detectable_share, two_sample
from eagle_repro.measure.records import Record, RecordWriter
from eagle_repro.measure.timing import measure as timed
from eagle_repro.sources.questions import SETS

NAME = "06_lossless"
#: The tree whose greedy texts are checked: on a GPU the default one, whose passes differ most from plain steps.
GREEDY_TREE = {"smoke": (8, 3, 4), "quick": (8, 3, 4)}
#: Questions of each set in the precision of the run; one in the others.
QUESTIONS = {"smoke": 1, "quick": 1}
SAMPLED_TREE = TreeShape(8, 3, 4)
FAR = 1_000_000  # seeds of one arm are this far from those of the next
SAME_SEED_TEXTS = 100
SLOWEST = 4  # times float32, beyond which a CPU is not asked for half precision


@dataclass(frozen=True)
class Arms:
    """The sampled texts of one pair after one prompt, (runs, run, tokens) of plain decoding, (samples, tokens) of
    others. Every text has a seed of its own: those of plain decoding are 0, 1, ...; run: texts of a plain run."""

    pair: Pair
    prompt: list[int]
    sampling: Sampling
    samples: int
    runs: int
    run: int
    tokens: int

    @cached_property
    def plain(self) -> np.ndarray:
        """Texts by plain decoding, run by run."""
        seeds = range(self.runs * self.run)
        texts = sample_texts(self.pair, self.prompt, seeds, self.tokens, self.sampling, rows=self.run)
        return texts.reshape(self.runs, self.run, self.tokens)

    def speculative(self, *, first_seed: int, samples: int, rule: Rule | None = None) -> np.ndarray:
        """Texts by speculation, by the engine's own rule or another one."""
        options: dict[str, Any] = {"shape": SAMPLED_TREE, "rule": rule, "rows": self.run}
        seeds = range(first_seed, first_seed + samples)
        return sample_texts(self.pair, self.prompt, seeds, self.tokens, self.sampling, **options)


def toy_arms() -> Arms:
    """The test that must hold everywhere: 500 texts an arm of the pair `tiny`, on the CPU, after "User:"."""
    return Arms(tiny(), [322, 27], Sampling(temperature=1.5), samples=500, runs=60, run=50, tokens=8)


def own_arms(pair: Pair, protocol: Protocol, prompt: list[int]) -> Arms:
    """The same for the pair of the run; on a CPU with few texts, which see little, as the record says."""
    samples = 50 if pair.device == "cpu" else 500
    sampling = Sampling(temperature=protocol.temperature or 1.0)
    return Arms(pair, prompt, sampling, samples, runs=12, run=samples // 5, tokens=6)


def measure(session: Session, progress: Progress = silent) -> Record:
    """Write and compare the texts; what an earlier session has written is not done again.

    Raises NonFiniteLogits, and ValueError before any run for a prompt that does not fit max_length.
    """
    if session.records_from:
        return session.record()
    protocol, device = session.protocol, session.pair.device
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


def control_row(arms: Arms) -> Row:
    """Plain decoding against itself, a hundred times: p of each, and the share below 0.05."""
    found = control(arms.plain, arms.samples)
    return {
        "p": float(np.median(found)),
        "splits": found,
        "splits_below_005": sum(p < ALPHA for p in found) / len(found),
        "detectable_effect": None,
    }


def eagle_row(arms: Arms) -> Row:
    """The engine's texts against plain ones of other seeds, what a difference would have had to be, and one seed's
    texts by both."""
    plain = arms.plain.reshape(-1, arms.tokens)
    greedy = generate(arms.pair, arms.prompt, method="plain", max_new_tokens=arms.tokens, stop="never").ids
    effect = detectable_share(plain, np.array([greedy]), arms.samples)
    count = min(SAME_SEED_TEXTS, arms.samples)
    twins = arms.speculative(first_seed=0, samples=count)
    same = int((twins == plain[:count]).all(axis=1).sum())
    compared = two_sample(plain[: arms.samples], arms.speculative(first_seed=FAR, samples=arms.samples))
    return _outcome(compared) | {"detectable_effect": effect, "same_seed_texts": count, "same_seed_equal": same}


def broken_row(arms: Arms, number: int) -> Row:
    """Texts by a wrong rule (the number of one in BROKEN) against plain ones."""
    rule = list(BROKEN.values())[number]
    texts = arms.speculative(first_seed=(2 + number) * FAR, samples=arms.samples, rule=rule)
    return _outcome(two_sample(arms.plain.reshape(-1, arms.tokens)[: arms.samples], texts))


def _outcome(compared: Compared) -> Row:
    found = {"p": compared.p, "statistic": compared.statistic, "permutations": compared.permutations}
    return found | {"splits_below_005": None, "detectable_effect": None}


# --- greedy texts and first tokens -----------------------------------------------------------------------------------


def _precisions(writer: RecordWriter, session: Session) -> Iterator[None]:
    """Greedy texts and first tokens in the precision of the run, then in the others, one pair at a time."""
    protocol = session.protocol
    device, others = session.pair.device, other_dtypes(session.pair)
    count = min(protocol.questions, QUESTIONS.get(protocol.profile, protocol.questions))
    yield from _one_precision(writer, session.pair, protocol, count)
    if session.given is None:
        session.__dict__.pop("pair", None)  # a second copy of a large target would not fit beside it
    for dtype in others:
        if writer.has(f"skipped/{dtype}"):
            continue
        try:
            require_speed(dtype, device)
            pair = open_pair(replace(protocol, dtype=dtype))
        except RuntimeError as error:  # torch's own out-of-memory error is one, too
            reason = str(error).partition("\n")[0]
            writer.write(f"skipped/{dtype}", {"what": "skipped", "dtype": dtype, "reason": reason})
            continue
        yield from _one_precision(writer, pair, protocol, 1)
        del pair


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
