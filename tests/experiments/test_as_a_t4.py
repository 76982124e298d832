"""A larger card behaves like a T4: what a T4 has not is refused, and what it has decodes as everywhere."""

from __future__ import annotations

import pytest
import torch

from eagle_repro.api import Pair, generate, load_pair
from eagle_repro.engine.devices import free_bytes, resolve_dtype, resolve_stack
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.stack_costs import stacks_of
from eagle_repro.experiments.timing_pairs import free_memory, random_pair
from eagle_repro.sources.pairs import PAIRS, SHAPES
from tests.t4 import T4_BYTES, as_a_t4

CARD = torch.device("cuda:0")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def written(pair: Pair, method: str) -> list[int]:
    return generate(pair, [322, 27], method=method, shape=TreeShape(12, 3, 4), max_new_tokens=24, stop="never").ids


def test_it_is_offered_what_a_t4_has_and_the_card_is_itself_again_afterwards() -> None:
    before = torch.cuda.get_device_capability(CARD), torch.cuda.mem_get_info(CARD)[1]
    with as_a_t4(CARD):
        assert resolve_dtype("auto", CARD) == torch.float16 and resolve_stack("auto", CARD) == "graph"
        assert stacks_of(CARD) == ["eager", "graph"] and free_bytes(CARD) <= T4_BYTES
        with pytest.raises(ValueError, match=r"capability 8.0, and cuda:0 has 7.5"):
            resolve_stack("compiled", CARD)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(T4_BYTES + 2**30, dtype=torch.uint8, device=CARD)
    assert (torch.cuda.get_device_capability(CARD), torch.cuda.mem_get_info(CARD)[1]) == before


@pytest.mark.parametrize("name", ["tiny", pytest.param("smollm2-135m", marks=pytest.mark.real)])
def test_texts_there_are_the_targets_own(name: str) -> None:
    with as_a_t4(CARD):
        pair = load_pair(name, device="cuda:0", dtype="float32")
        assert pair.stack == "graph"
        assert written(pair, "eagle") == written(pair, "plain") == written(pair, "hf")
        assert load_pair(name, device="cuda:0").dtype == (PAIRS[name].dtype or "float16")


def test_a_timing_only_pair_runs_there_and_one_that_is_too_large_is_refused_beforehand() -> None:
    free_memory()
    with as_a_t4(CARD):
        pair = random_pair(SHAPES["qwen3-1.7b"], "cuda:0", torch.float16, stack="graph")
        done = generate(pair, list(range(1, 65)), shape=TreeShape(), max_new_tokens=4, stop="never")
        assert len(done.ids) == 4 and torch.cuda.memory_reserved(CARD) < T4_BYTES
        del pair, done
        free_memory()
        with pytest.raises(RuntimeError, match="needs .* GB in float16, and .* are free: a larger card"):
            random_pair(SHAPES["qwen3-8b"], "cuda:0", torch.float16)
    free_memory()
