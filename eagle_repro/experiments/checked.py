"""What the notebooks' checked cells print: integers and verdicts of the pair `tiny`, the same on every machine.

They run in float32 on the CPU, along a text in which no choice is closer than 1e-3 to another one, neither of the
target nor in what the tree keeps (the recorded gaps of the official code, reference trace 16/3/4, prompt "chat"). So
threads, cards and library versions cannot change them; a changed digit is a changed method.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from eagle_repro.api import Pair, generate
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.generate import Generation, Request, run
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.stacks import Eager, Graph
from eagle_repro.experiments.broken import BROKEN
from eagle_repro.experiments.guards import covers
from eagle_repro.experiments.long_prompts import lengthened, pooled
from eagle_repro.experiments.recordings import along, look_ahead
from eagle_repro.experiments.report import article, made_up_verdicts
from eagle_repro.experiments.roofline import Passes
from eagle_repro.experiments.sampling import first_probabilities, sample_texts
from eagle_repro.experiments.session import load_quietly
from eagle_repro.measure import lossless
from eagle_repro.measure.claims.formula import residuals
from eagle_repro.measure.cost import flat_until
from eagle_repro.measure.curves import REFERENCE_DIVISORS, reference_pick
from eagle_repro.measure.permutation import two_sample
from eagle_repro.measure.replay import replay
from eagle_repro.measure.roofline import CARDS, bus_utilisation
from eagle_repro.measure.scaling import crossing
from eagle_repro.measure.stacks import overhead_share
from eagle_repro.measure.stats import Work, chain_acceptance, measured_speedup, tau
from eagle_repro.sources.pairs import SHAPES as PUBLISHED
from eagle_repro.sources.pairs import PairShape
from eagle_repro.sources.questions import SETS, load_questions

#: "User: Where can I get a map?\\nAssistant:" in the tokenizer of `tiny`.
PROMPT = [322, 27, 302, 347, 363, 292, 362, 261, 293, 66, 81, 32, 200, 323, 27]
SHAPE = TreeShape(total_tokens=16, depth=3, top_k=4)
NEW_TOKENS = 40
#: No accepted count below hangs on a difference of less than 2e-3 in what the head or the target thinks of a token.
SHAPES = (SHAPE, TreeShape(6, 2, 2), TreeShape(9, 7, 1), TreeShape(48, 5, 6), TreeShape(12, 2, 10))
CLEAR_GAP = 1e-3  # logits


@cache
def tiny() -> Pair:
    """The pair that checked cells run."""
    return load_quietly("tiny", device="cpu", dtype="float32", stack="eager")


def bench() -> None:
    """Sizes of the pair, the cards that a torch build serves, and the project's own question sets."""
    target, head = (tiny().provenance[role] for role in ("target", "head"))
    print(f"tiny target: {target['parameters']} parameters, features from layers {listed(tiny().target.taps)}")
    print(
        f"tiny head: {head['parameters']} parameters, {head['draft_vocabulary']} of {tiny().target.vocabulary} tokens"
    )
    for card, capability in (("P100", (6, 0)), ("T4", (7, 5)), ("L4", (8, 9)), ("H200", (9, 0))):
        served = covers(capability, ["sm_70", "sm_75", "sm_80", "sm_90"])
        print(f"kernels for sm_70, sm_75, sm_80, sm_90 on a {card}: {'ok' if served else 'refused'}")
    own = {name: len(load_questions(name)) for name, info in SETS.items() if not info.external}
    print("questions, checksums verified: " + ", ".join(f"{name} {count}" for name, count in own.items()))


def roofline() -> None:
    """A pass over many tokens says what passes over one say, and the arithmetic of the floor."""
    passes, count = Passes(tiny(), PROMPT), len(PROMPT)
    together = passes(0, count)
    one_by_one = torch.cat([passes(place, place + 1) for place in range(count)])
    best, second = together.topk(2, dim=-1).values.unbind(-1)
    clear = best - second > CLEAR_GAP
    same = together.argmax(-1)[clear].equal(one_by_one.argmax(-1)[clear])
    print(
        f"one pass over {count} tokens and {count} passes over one, {int(clear.sum())} clear choices: {verdict(same)}"
    )
    print(f"the article's passes of 44.7, 51.8 and 125.6 ms: flat to {flat_until([1, 192, 512], [44.7, 51.8, 125.6])}")
    t4 = next(card for card in CARDS if card.name == "T4")
    share = bus_utilisation(3_440_000_000, 0.0447, t4.bandwidth_gbs)
    print(f"3440 MB of weights in 44.7 ms on a T4: {100 * (share or 0):.0f}% of the bus")


def speedup() -> None:
    """One text three ways, the tree behind it, and the arithmetic of tau and speedup."""
    texts = {
        method: generate(tiny(), PROMPT, method=method, shape=SHAPE, max_new_tokens=NEW_TOKENS, record_trees=True)
        for method in ("plain", "hf", "eagle")
    }
    eagle = texts["eagle"]
    print(f"accepted a cycle: {listed(cycle.accepted for cycle in eagle.cycles)}")
    print(f"{len(eagle.ids)} tokens in {len(eagle.cycles)} cycles of {SHAPE.total_tokens} nodes")
    tree = eagle.cycles[0].tree
    print(f"parents in the first tree: {listed(tree.parents[0].tolist() if tree else ())}")
    for method in ("plain", "hf"):
        print(f"eagle and {method}: {verdict(eagle.ids == texts[method].ids)}")
    print(f"replayed through the target: {lossless.check(tiny(), PROMPT, eagle.ids).verdict}")
    print(f"accepted 3, 0, 2: {3 * (tau([3, 0, 2]) or 0):.0f} tokens in 3 cycles")
    ratio = measured_speedup([Work(100, 10.0, 2.0)], [Work(100, 4.0, 2.0)])
    print(f"10 s against 4 s: {100 * ratio.headline.value:.0f}%, with 2 s of prefill {100 * ratio.end_to_end:.0f}%")


def tree_shape() -> None:
    """Trees of five shapes: what each accepts, by decoding with it and by replay; and the arithmetic of choosing."""
    deepest = max(shape.depth for shape in SHAPES)
    ids = generate(tiny(), PROMPT, method="plain", max_new_tokens=NEW_TOKENS + look_ahead(deepest), stop="never").ids
    for shape in SHAPES:
        decoded = generate(tiny(), PROMPT, shape=shape, max_new_tokens=NEW_TOKENS, stop="never")
        accepted = [cycle.accepted for cycle in decoded.cycles]
        recording = along(tiny(), PROMPT, ids, shape.depth, shape.top_k, NEW_TOKENS)
        same = accepted == replay(recording, shape.total_tokens, shape.depth, NEW_TOKENS)
        size = f"({shape.total_tokens}, {shape.depth}, {shape.top_k})"
        print(f"{size} accepts {listed(accepted)}; replayed: {verdict(same)}")
    cut, clipped = TreeShape.clipped(60, 7, 1)
    print(f"60 nodes at depth 7 and width 1: {cut.total_tokens}, {'cut' if clipped else 'whole'}")
    for title, times in (
        ("flat", dict.fromkeys(REFERENCE_DIVISORS, 1.0)),
        ("linear", {n: n for n in REFERENCE_DIVISORS}),
    ):
        print(f"the reference picks {reference_pick(times)} nodes where a pass is {title}")


def chain_vs_tree() -> None:
    """One text by a chain and by a tree of one depth, and the three acceptance rates of a chain."""
    plain = generate(tiny(), PROMPT, method="plain", max_new_tokens=NEW_TOKENS, stop="never")
    for name, method in (("chain", "chain"), ("tree", "eagle")):
        done = generate(tiny(), PROMPT, method=method, shape=SHAPE, max_new_tokens=NEW_TOKENS, stop="never")
        print(f"{name}, depth {SHAPE.depth}: {done.cycles[0].nodes} nodes a pass, {len(done.cycles)} passes")
        print(f"{name} accepts {listed(cycle.accepted for cycle in done.cycles)}")
        print(f"{name} and plain: {verdict(done.ids == plain.ids)}")
    rates = chain_acceptance([3, 0, 2], 3)
    print(f"a chain of 3 that accepts 3, 0, 2: {_percent(rates.accepted_per_drafted)} of what it drafted")
    print(f"per position: {listed(map(_percent, rates.per_position))}")
    print(f"conditional: {listed(map(_percent, rates.conditional))}")


def target_size() -> None:
    """The sizes of published targets and heads, the formula beside a real head, and the article's cycle."""
    for shape in PUBLISHED.values():
        target, head = shape.target_parameters, shape.head_parameters
        print(f"{shape.name}: target {target / 1e6:.0f} M, head {head / 1e6:.0f} M: {1e3 * head / target:.0f} in 1000")
    common: dict[str, Any] = {"hidden": 64, "layers": 8, "heads": 4, "kv_heads": 2, "tied": True, "vocabulary": 512}
    target = PairShape("target of tiny", mlp=160, head_dim=32, **common).target_parameters
    head = PairShape("head of tiny", mlp=128, head_dim=16, draft_vocabulary=208, **common).head_parameters
    counted = [tiny().provenance[role]["parameters"] for role in ("target", "head")]
    print(f"both formulas and what tiny holds: {verdict(counted == [target, head])}")
    cycle = residuals(article())[0]
    print(f"the article's cycle at tau {cycle.tau:g} and depth {cycle.depth}: {100 * cycle.predicted:.0f}%")


def exactness() -> None:
    """Sampled texts of one seed by both loops and by rules that are wrong; what the first token is drawn from."""
    sampling, prompt, seeds, tokens = Sampling(temperature=1.3), PROMPT[:2], range(24), 8
    plain = sample_texts(tiny(), prompt, seeds, tokens, sampling)
    for name, rule in {"engine": None, **BROKEN}.items():
        texts = sample_texts(tiny(), prompt, seeds, tokens, sampling, shape=SHAPE, rule=rule)
        print(f"{len(seeds)} sampled texts, plain and {name}: {verdict(bool((texts == plain).all()))}")
    first = [first_probabilities(tiny(), PROMPT, method, sampling) for method in ("plain", "eagle")]
    print(f"{len(first[0])} probabilities of the first token, bit for bit: {verdict(torch.equal(*first))}")
    one, other = np.zeros((20, 2), dtype=int), np.ones((20, 2), dtype=int)
    for name, texts in (("the same", one), ("nothing in common", other)):
        print(f"20 texts against 20 with {name}: p is {1e4 * two_sample(one, texts).p:.0f} in 10000")


def stack() -> None:
    """One text operation by operation and by recorded phases done again, and the arithmetic of overhead."""
    for method in ("plain", "eagle"):
        eager, recorded = (_launched(method, stack) for stack in (Eager(), Graph()))
        same = eager.ids == recorded.ids and eager.cycles == recorded.cycles
        print(f"{method}, {len(eager.cycles)} cycles, one by one and recorded: {verdict(same)}")
    again = Graph()
    for text in ("first", "second"):
        print(f"the {text} text records its phases: {'yes' if _launched('eagle', again).capture_s else 'no'}")
    share = overhead_share(20, 30 / 3, 1, 2 / 3)
    print(f"3 tokens in a cycle of 30 against steps of 20, then of 2 against 1: {100 * share:.0f}% was overhead")


def batch_context() -> None:
    """Texts side by side and alone, a question behind more and more text, and where a falling gain is gone."""
    prompts = [PROMPT, PROMPT[:5], PROMPT[3:]]
    for method in ("plain", "eagle"):
        options: dict[str, Any] = {"method": method, "shape": SHAPE, "max_new_tokens": NEW_TOKENS, "stop": "never"}
        beside = [text.ids for text in generate(tiny(), prompts, **options)]
        alone = [generate(tiny(), prompt, **options).ids for prompt in prompts]
        print(f"{method}, prompts of {listed(map(len, prompts))} tokens side by side: {verdict(beside == alone)}")
    (asked,) = pooled(tiny().tokenizer, ["chat"], 1, 100)
    for length in (150, 300):
        (longer,) = lengthened(tiny().tokenizer, [asked], length)
        kept = longer.prompt[-len(asked.prompt) :] == asked.prompt
        print(f"a question of {len(asked.prompt)} tokens behind others, {len(longer.prompt)} in all: {verdict(kept)}")
    for speedups in ([3.0, 2.0, 0.0], [3.0, 2.0, 1.5], [0.9, 0.8, 0.7]):
        at = float(crossing([1, 4, 16], np.array(speedups)))
        said = f"gone at {at:.0f}" if np.isfinite(at) else "not gone"
        print(f"a gain of {listed(speedups)} at 1, 4, 16: {said}")


def report() -> None:
    """The article's claims judged on made-up numbers, its cost formula, and a number that a text marks."""
    print("\n".join(made_up_verdicts()))


def _launched(method: str, stack: Eager) -> Generation:
    """The text of the checked cells by one method on one stack."""
    request = Request(PROMPT, method=method, shape=SHAPE, max_new_tokens=NEW_TOKENS, stop="never")
    return run(tiny().target, tiny().head, request, stack=stack)


def listed(values: object) -> str:
    return " ".join(str(value) for value in values)  # type: ignore[attr-defined]


def _percent(rate: float | None) -> str:
    return "none" if rate is None else f"{100 * rate:.0f}%"


def verdict(same: bool) -> str:
    return "identical" if same else "different"
