"""Shared fixtures: one tiny random target (Qwen3, 8 layers, float32), one random head, and their texts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported: its kernels then run on a CPU

from eagle_repro.api import Pair, load_pair
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.target import Target
from tests.models import pair_of, save_target, stock_text, tiny_head, tiny_target

Text = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="session")
def target() -> Target:
    """The tiny random target. Shared by all tests: one that changes it must put it back (monkeypatch does)."""
    return Target(tiny_target())


@pytest.fixture(scope="session")
def head(target: Target) -> Eagle3Head:
    """A random head for `target`: a draft vocabulary of 128, draft id i meaning target id 3 * i."""
    return tiny_head(target)


@pytest.fixture(scope="session")
def pair(target: Target, head: Eagle3Head) -> Pair:
    return pair_of(target, head)


@pytest.fixture(scope="session")
def text(target: Target) -> Text:
    """text(prompt, count): the target's own greedy continuation by transformers' generate."""
    known: dict[tuple[int, ...], list[int]] = {}

    def continued(prompt: list[int], count: int) -> list[int]:
        if len(known.get(tuple(prompt), [])) < count:
            known[tuple(prompt)] = stock_text(target.model, prompt, count)
        return known[tuple(prompt)][:count]

    return continued


@pytest.fixture(scope="session")
def trained() -> Pair:
    """The committed pair "tiny": its head was trained, so that whole paths are accepted."""
    return load_pair("tiny", device="cpu")


@pytest.fixture(scope="session")
def target_folder(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`target` on disk with a tokenizer. Shared by all tests: copy it to change it."""
    return save_target(tmp_path_factory.mktemp("target"), target.model)
