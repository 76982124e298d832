"""On a CUDA device: a head that is of no use costs method="adaptive" next to nothing once it is found out."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch

import eagle_repro as er
from eagle_repro.api import Pair
from eagle_repro.engine.head import Eagle3Head

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.real,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
REPEATS, WARM, TOKENS, LEAST = 5, 20, 256, 0.97


@pytest.fixture(scope="module")
def pair() -> Pair:
    return er.load_pair("smollm2-135m", device="cuda", stack="graph")


def useless(pair: Pair, kind: str) -> Pair:
    """The pair with a head of random weights, or with its own that names another token than it means."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = Eagle3Head(pair.head.config, pair.target.embedding)
    own = pair.head.state_dict()
    if kind == "wrong":
        head.load_state_dict(own)
    drafts = torch.arange(len(own["d2t"]), device=own["d2t"].device)
    head.d2t = (own["d2t"] + drafts).roll(len(drafts) // 2) - drafts  # neighbours in the vocabulary are alike
    return replace(pair, head=head.settle(pair.target.embedding).use_fused())


@pytest.mark.parametrize("kind", ["wrong", "random"])
def test_a_useless_head_costs_little_after_the_first_tokens(kind: str, pair: Pair) -> None:
    measured = useless(pair, kind)
    prompt = [1 + 7 * place % (pair.target.vocabulary - 1) for place in range(60)]
    ways = [(method, tokens) for method in ("plain", "adaptive") for tokens in (WARM, TOKENS)]
    seconds: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    texts: dict[tuple[str, int], list[int]] = {}
    trees: dict[tuple[str, int], int] = {}
    for turn in range(REPEATS + 1):
        for method, tokens in ways if turn % 2 else ways[::-1]:
            done = er.generate(measured, prompt, method=method, max_new_tokens=tokens, stop="never")
            seconds[method, tokens] += [done.decode_s] if turn else []  # the first turn warms up
            texts[method, tokens] = done.ids
            trees[method, tokens] = sum(cycle.nodes > 1 for cycle in done.cycles)
    assert texts["plain", TOKENS][:WARM] == texts["plain", WARM]
    median = {way: statistics.median(times) for way, times in seconds.items()}
    plain, adaptive = (median[method, TOKENS] - median[method, WARM] for method in ("plain", "adaptive"))
    assert plain / adaptive >= LEAST, (
        f"{1e3 * plain:.1f} ms by plain decoding, {1e3 * adaptive:.1f} ms by adaptive after {WARM} tokens: "
        f"{plain / adaptive:.3f}, and {LEAST} is the least; {trees['adaptive', TOKENS]} trees in the text, "
        f"{trees['adaptive', WARM]} among its first {WARM} tokens"
    )
