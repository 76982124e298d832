"""On a CUDA device: timing-only pairs of a published shape, and sampled texts side by side."""

from __future__ import annotations

import pytest
import torch

from eagle_repro.api import generate, load_pair
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.sampling import first_probabilities, sample_texts
from eagle_repro.experiments.timing_pairs import free_memory, random_pair, require_memory
from eagle_repro.sources.pairs import SHAPES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPT = [322, 27]


def test_a_published_shape_is_made_on_the_card_runs_there_and_goes() -> None:
    shape = SHAPES["qwen3-1.7b"]
    require_memory(shape, "cuda:0", torch.float16)
    before = torch.cuda.memory_allocated()
    pair = random_pair(shape, "cuda:0", torch.float16)
    held = torch.cuda.memory_allocated() - before
    assert held == pytest.approx(2 * (shape.target_parameters + shape.head_parameters), rel=0.02)
    pair.target.prove()
    done = generate(pair, list(range(1, 65)), shape=TreeShape(), max_new_tokens=4, stop="never")
    assert len(done.ids) == 4 and pair.head.fc.weight.is_cuda
    del pair, done
    free_memory()
    assert torch.cuda.memory_allocated() - before < 0.01 * held


def test_texts_side_by_side_are_generates_own_and_first_tokens_equal_in_every_bit() -> None:
    pair = load_pair("tiny", device="cuda", dtype="float32")
    sampling = Sampling(temperature=1.5, seed=7)
    plain, eagle = (sample_texts(pair, PROMPT, [7, 8], 8, sampling, shape=s) for s in (None, TreeShape(8, 3, 4)))
    single = generate(pair, PROMPT, method="plain", sampling=sampling, max_new_tokens=8, stop="never").ids
    assert plain[0].tolist() == eagle[0].tolist() == single and plain.tolist() == eagle.tolist()
    first = [first_probabilities(pair, PROMPT, method, sampling) for method in ("plain", "eagle")]
    assert torch.equal(*first) and first[0].is_cuda
