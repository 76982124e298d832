"""The likeliest tokens of a draft vocabulary."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 4
PART = 1024  # of the vocabulary, searched by one program


@triton.jit
def _best_of_part(logits, values, numbers, sums, size, count, PART: tl.constexpr):
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    number = part * PART + tl.arange(0, PART)
    value = tl.load(logits + row * size + number, mask=number < size, other=float("-inf")).to(tl.float32)
    highest = tl.max(value, 0)
    tl.store(sums + 2 * (row * parts + part), highest)
    base = tl.where(highest == float("-inf"), 0.0, highest)  # of a part that is -inf throughout
    tl.store(sums + 2 * (row * parts + part) + 1, tl.sum(tl.exp(value - base), 0))
    for place in range(count):
        best = tl.max(value, 0)
        found = tl.min(tl.where(value == best, number, size), 0)  # the first of equals
        tl.store(values + (row * parts + part) * count + place, best)
        tl.store(numbers + (row * parts + part) * count + place, found)
        value = tl.where(number == found, float("-inf"), value)


@triton.jit
def _best_of_all(
    values, numbers, sums, targets, tokens, logprobs, parts, count, size, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    part, place = tl.arange(0, PARTS), tl.arange(0, BLOCK)
    highest = tl.load(sums + 2 * (row * parts + part), mask=part < parts, other=float("-inf"))
    total = tl.load(sums + 2 * (row * parts + part) + 1, mask=part < parts, other=0.0)
    top = tl.max(highest, 0)
    spread = tl.log(tl.sum(total * tl.exp(highest - top), 0))
    inside = place < parts * count
    value = tl.load(values + row * parts * count + place, mask=inside, other=float("-inf"))
    number = tl.load(numbers + row * parts * count + place, mask=inside, other=size)
    for order in range(count):
        best = tl.max(value, 0)
        found = tl.min(tl.where(value == best, number, size), 0)
        tl.store(tokens + row * count + order, tl.load(targets + found, mask=found < size, other=0))
        tl.store(logprobs + row * count + order, best - top - spread)
        value = tl.where(number == found, float("-inf"), value)


def likeliest(logits: Tensor, targets: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens, as targets (D,) names them, and their log-probabilities float32, (..., count), best
    first and the first of equals before the others; logits (..., D) contiguous.

    The best of each part of the vocabulary are taken out one by one, then the best of those: a few tokens are wanted,
    and torch's topk goes through the whole vocabulary sixteen times.
    """
    size, device = logits.shape[-1], logits.device
    rows, parts = logits.numel() // size, triton.cdiv(size, PART)
    values = torch.empty(rows, parts, count, dtype=torch.float32, device=device)
    numbers = torch.empty(rows, parts, count, dtype=torch.int32, device=device)
    sums = torch.empty(rows, parts, 2, dtype=torch.float32, device=device)
    tokens = torch.empty(*logits.shape[:-1], count, dtype=targets.dtype, device=device)
    logprobs = torch.empty(tokens.shape, dtype=torch.float32, device=device)
    _best_of_part[rows, parts](logits, values, numbers, sums, size, count, PART=PART, num_warps=WARPS)
    _best_of_all[rows,](
        values, numbers, sums, targets, tokens, logprobs, parts, count, size,
        PARTS=triton.next_power_of_2(parts), BLOCK=triton.next_power_of_2(parts * count), num_warps=WARPS,
    )  # fmt: skip
    return tokens, logprobs
