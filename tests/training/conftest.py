"""The pair `tiny` and a corpus that its target wrote, made once for all tests of training."""

from __future__ import annotations

import pytest
import torch

from eagle_repro.api import Pair, load_pair
from eagle_repro.training.corpus import Corpus
from eagle_repro.training.recipes import find_recipe
from eagle_repro.training.write import CorpusSettings, write_corpus

SMALL = CorpusSettings(answer_tokens=1200, seed=3, positions=48, turn=4, rows=8)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Bit-equality holds for one number of threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> Pair:
    return load_pair("tiny", device="cpu")


@pytest.fixture(scope="session")
def corpus(tiny: Pair) -> Corpus:
    torch.set_num_threads(1)
    return write_corpus(tiny.target, tiny.tokenizer, find_recipe("general"), SMALL)
