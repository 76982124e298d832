"""Batches: whole conversations packed into sequences of one length, in an order that the seed and the step fix."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from eagle_repro.training.corpus import ANSWER, LENGTH, Corpus

POOL = 256  # conversations that are packed together: enough to leave few gaps, few enough to stay shuffled


@dataclass(frozen=True)
class Batch:
    """tokens, positions, document, answer: (B, S). document numbers the conversations of a sequence from 1, 0 is
    padding; positions count within the conversation; answer marks the tokens that the target wrote as its answer."""

    tokens: Tensor
    positions: Tensor
    document: Tensor
    answer: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)))


def batches(
    corpus: Corpus, *, sequences: int, length: int, seed: int, first: int = 0, stride: int = 1
) -> Iterator[Batch]:
    """Batches number first, first + stride, ... of an endless row, each `sequences` sequences of `length` tokens.

    Raises ValueError where the corpus does not fill one batch or a conversation is longer than a sequence.
    """
    longest = int(corpus.rows[:, LENGTH].max())
    if longest > length:
        raise ValueError(f"sequences of {length} tokens do not hold conversations of {longest}: make them longer")
    wanted, begin = first, 0  # the next batch to give, and the number of this epoch's first
    for epoch in itertools.count():
        packed = packed_epoch(corpus, length, seed, epoch)
        whole = len(packed) // sequences
        if not whole:
            raise ValueError(
                f"the corpus fills {len(packed)} sequences of {length} tokens, a step needs {sequences}: "
                "write more answer tokens (--tokens), or take fewer a step (--batch-tokens)"
            )
        for number in range(wanted, begin + whole, stride):
            start = (number - begin) * sequences
            yield _collated(corpus, packed[start : start + sequences], length)
            wanted = number + stride
        begin += whole


def packed_epoch(corpus: Corpus, length: int, seed: int, epoch: int) -> list[list[int]]:
    """Sequences as lists of conversation numbers, every training conversation once, in random order."""
    order = np.random.default_rng((seed, epoch)).permutation(corpus.train)
    packed: list[list[int]] = []
    for start in range(0, len(order), POOL):
        pool = order[start : start + POOL]
        bins = pack(corpus.rows[pool, LENGTH].tolist(), length)
        packed += [[int(pool[i]) for i in each] for each in bins]
    mixed = np.random.default_rng((seed, epoch, 1)).permutation(len(packed))
    return [packed[i] for i in mixed]


def pack(lengths: list[int], capacity: int) -> list[list[int]]:
    """Items by number in as few bins of this capacity as best-fit decreasing finds."""
    bins: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [b for b, free in enumerate(room) if free >= lengths[item]]
        if fitting:
            best = min(fitting, key=lambda b: room[b])
            bins[best].append(item)
            room[best] -= lengths[item]
        else:
            bins.append([item])
            room.append(capacity - lengths[item])
    return bins


def _collated(corpus: Corpus, sequences: list[list[int]], length: int) -> Batch:
    shape = len(sequences), length
    tokens, positions, document = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    answer = np.zeros(shape, dtype=bool)
    starts = corpus.starts
    for row, sequence in enumerate(sequences):
        begin = 0
        for number, conversation in enumerate(sequence, start=1):
            size, first = int(corpus.rows[conversation, LENGTH]), int(starts[conversation])
            here = slice(begin, begin + size)
            tokens[row, here] = corpus.tokens[first : first + size]
            positions[row, here] = np.arange(size)
            document[row, here] = number
            answer[row, begin + int(corpus.rows[conversation, ANSWER]) : begin + size] = True
            begin += size
    return Batch(*(torch.from_numpy(each) for each in (tokens, positions, document, answer)))
