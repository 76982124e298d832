"""What the notebooks' checked cells print: integers and verdicts of the pair `tiny`, the same on every machine.

They run in float32 on the CPU, along a text in which no choice is closer than 1e-3 to another one, neither of the
target nor in what the tree keeps (the recorded gaps of the official code, reference trace 16/3/4, prompt "chat"). So
threads, cards and library versions cannot change them; a changed digit is a changed method.
"""

from __future__ import annotations

from functools import cache

import torch

from eagle_repro.api import Pair, generate
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.guards import covers
from eagle_repro.experiments.roofline import Passes
from eagle_repro.experiments.session import load_quietly
from eagle_repro.measure import lossless
from eagle_repro.measure.roofline import CARDS, bus_utilisation, flat_until
from eagle_repro.measure.stats import Work, measured_speedup, tau
from eagle_repro.sources.questions import SETS, load_questions

#: "User: Where can I get a map?\\nAssistant:" in the tokenizer of `tiny`.
PROMPT = [322, 27, 302, 347, 363, 292, 362, 261, 293, 66, 81, 32, 200, 323, 27]
SHAPE = TreeShape(total_tokens=16, depth=3, top_k=4)
NEW_TOKENS = 40
CLEAR_GAP = 1e-3  # logits


@cache
def tiny() -> Pair:
    """The pair that checked cells run."""
    return load_quietly("tiny", device="cpu", dtype="float32", stack="eager")


def bench() -> None:
    """Sizes of the pair, the cards that a torch build serves, and the project's own question sets."""
    target, head = (tiny().provenance[role] for role in ("target", "head"))
    print(f"tiny target: {target['parameters']} parameters, features from layers {_listed(tiny().target.taps)}")
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
        f"one pass over {count} tokens and {count} passes over one, {int(clear.sum())} clear choices: {_verdict(same)}"
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
    print(f"accepted a cycle: {_listed(cycle.accepted for cycle in eagle.cycles)}")
    print(f"{len(eagle.ids)} tokens in {len(eagle.cycles)} cycles of {SHAPE.total_tokens} nodes")
    tree = eagle.cycles[0].tree
    print(f"parents in the first tree: {_listed(tree.parents[0].tolist() if tree else ())}")
    for method in ("plain", "hf"):
        print(f"eagle and {method}: {_verdict(eagle.ids == texts[method].ids)}")
    print(f"replayed through the target: {lossless.check(tiny(), PROMPT, eagle.ids).verdict}")
    print(f"accepted 3, 0, 2: {3 * (tau([3, 0, 2]) or 0):.0f} tokens in 3 cycles")
    ratio = measured_speedup([Work(100, 10.0, 2.0)], [Work(100, 4.0, 2.0)])
    print(f"10 s against 4 s: {100 * ratio.headline.value:.0f}%, with 2 s of prefill {100 * ratio.end_to_end:.0f}%")


def _listed(values: object) -> str:
    return " ".join(str(value) for value in values)  # type: ignore[attr-defined]


def _verdict(same: bool) -> str:
    return "identical" if same else "different"
