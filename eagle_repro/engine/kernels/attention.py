"""Attention of a few queries to a long cache."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 8
QUERIES = 16  # rows of one program: the fewest that a tensor core takes
BLOCKS = (128, 64, 32, 16)  # slots read at a time, by what fits
STAGES = 3  # of such blocks, on their way at once
SPLIT, LONG = 128, 2048  # slots that are worth a program of their own; a span in which more programs pay
MOST_SPLITS = 32


@triton.jit
def _attend(
    query, keys, values, mask, out, sums, scale, span, tokens, share,
    q_row, q_head, q_group, q_token, k_row, k_head, k_slot, m_row, m_token,
    GROUPS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, row, split = tl.program_id(1), tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    number = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)  # of a query: those of one group in a row
    group, token = number // tokens, number % tokens
    along, inside = tl.arange(0, BLOCK_D), number < GROUPS * tokens
    deep = along < D
    start = query + row * q_row + head * q_head + (group * q_group + token * q_token)[:, None]
    asked = tl.load(start + along[None, :], mask=inside[:, None] & deep[None, :], other=0.0)
    keys += row.to(tl.int64) * k_row + head * k_head
    values += row.to(tl.int64) * k_row + head * k_head
    seen = mask + row.to(tl.int64) * m_row + token[:, None].to(tl.int64) * m_token
    best = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    result = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    for begin in range(split * share, tl.minimum(split * share + share, span), BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        there = slot < span
        far = slot.to(tl.int64) * k_slot
        key = tl.load(keys + far[None, :] + along[:, None], mask=there[None, :] & deep[:, None], other=0.0)
        added = tl.load(seen + slot[None, :], mask=inside[:, None] & there[None, :], other=float("-inf"))
        score = tl.dot(asked, key, input_precision=PRECISION) * scale + added.to(tl.float32)
        highest = tl.maximum(best, tl.max(score, 1))
        highest = tl.where(highest == float("-inf"), 0.0, highest)  # of a row that is none
        weight = tl.exp(score - highest[:, None])
        shrunk = tl.exp(best - highest)
        value = tl.load(values + far[:, None] + along[None, :], mask=there[:, None] & deep[None, :], other=0.0)
        result = result * shrunk[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=PRECISION)
        total = total * shrunk + tl.sum(weight, 1)
        best = highest
    place = ((row * tokens + token) * tl.num_programs(1) + head) * GROUPS + group
    whole = tl.num_programs(2) // SPLITS * tokens * tl.num_programs(1) * GROUPS  # places of one split
    place += split * whole
    if SPLITS == 1:
        result /= tl.where(inside, total, 1.0)[:, None]
    else:
        tl.store(sums + 2 * place, best, mask=inside)
        tl.store(sums + 2 * place + 1, total, mask=inside)
    written = inside[:, None] & deep[None, :]
    tl.store(out + place[:, None].to(tl.int64) * D + along[None, :], result.to(out.dtype.element_ty), mask=written)


@triton.jit
def _merge(parts, sums, out, places, D: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    split, along = tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    own = split * places + place
    best = tl.load(sums + 2 * own, mask=split < SPLITS, other=float("-inf"))
    weight = tl.exp(best - tl.max(best, 0))
    total = tl.load(sums + 2 * own + 1, mask=split < SPLITS, other=0.0)
    read = (split < SPLITS)[:, None] & (along < D)[None, :]
    part = tl.load(parts + own[:, None].to(tl.int64) * D + along[None, :], mask=read, other=0.0)
    result = tl.sum(part * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + place.to(tl.int64) * D + along, result.to(out.dtype.element_ty), mask=along < D)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of queries (B, kv_heads, groups, n, d) over keys, values (B, kv_heads, span, d): (B, n, kv_heads,
    groups, d). mask (B or 1, 1, n, span) additive, its rows unbroken; any other raises ValueError.

    A program takes a few queries of one key/value head through all slots (the running softmax of FlashAttention,
    arXiv:2205.14135), and queries that share keys and values share the reading. Long spans are split among programs
    and the parts put together afterwards.
    """
    batch, kv_heads, groups, tokens, d = query.shape
    span, wide = keys.shape[2], triton.next_power_of_2(d)
    if tuple(mask.shape[1:]) != (1, tokens, span) or len(mask) not in (1, batch) or mask.stride(3) != 1:
        given = f"{tuple(mask.shape)} with strides {mask.stride()}"
        raise ValueError(f"attention needs a mask of shape {(batch, 1, tokens, span)} in unbroken rows, got {given}")
    blocks = triton.cdiv(groups * tokens, QUERIES)
    splits = _splits(span, blocks * kv_heads * batch, query.device)
    block, stages = _block(wide * query.dtype.itemsize, query.device)
    share = triton.cdiv(triton.cdiv(span, block), splits) * block  # slots that one program reads
    places = batch * tokens * kv_heads * groups
    shape, device = (batch, tokens, kv_heads, groups, d), query.device
    out = torch.empty(shape, dtype=query.dtype, device=device)
    parts = torch.empty((splits, *shape), dtype=torch.float32, device=device) if splits > 1 else out
    sums = torch.empty((splits, places, 2), dtype=torch.float32, device=device) if splits > 1 else None
    _attend[blocks, kv_heads, batch * splits](
        query, keys, values, mask, parts, sums, scale, span, tokens, share,
        *query.stride()[:4], *keys.stride()[:3], mask.stride(0) if len(mask) > 1 else 0, mask.stride(2),
        GROUPS=groups, D=d, BLOCK_D=max(16, wide), QUERIES=QUERIES, BLOCK=block, SPLITS=splits,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=WARPS,
        num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        _merge[places,](
            parts, sums, out, places, D=d, BLOCK_D=wide, SPLITS=splits, BLOCK=triton.next_power_of_2(splits),
            num_warps=WARPS,
        )  # fmt: skip
    return out


def _splits(span: int, programs: int, device: torch.device) -> int:
    """Programs that share the slots of one block of queries: until each multiprocessor has one, in a long span two."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    wanted = processors if span < LONG else 2 * processors
    return max(1, min(triton.cdiv(span, SPLIT), MOST_SPLITS, wanted // programs))


def _block(row_bytes: int, device: torch.device) -> tuple[int, int]:
    """Slots read at a time, and such blocks on their way at once: their keys and values, and the queries, lie in shared
    memory. Where not even the smallest blocks fit so, one is read after the other."""
    if device.type != "cuda":
        return BLOCKS[-1], 1
    properties: Any = torch.cuda.get_device_properties(device)
    room = properties.shared_memory_per_block_optin
    fitting = (block for block in BLOCKS if (2 * STAGES * block + QUERIES) * row_bytes <= room)
    return next(((block, STAGES) for block in fitting), (BLOCKS[-1], 1))
