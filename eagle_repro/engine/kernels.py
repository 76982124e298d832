"""Triton kernels of the stack "compiled": what a layer does between its matrix products, and those of a single token.

Each does in one kernel what functions of fused.py and attention.py do in several. Imported where that stack runs and
nowhere else: Triton comes with a CUDA build of torch and with no other.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 4
QUERIES = 16  # rows of one program of attention: the fewest that a tensor core takes
BLOCKS = (128, 64, 32, 16)  # slots read at a time, by what fits
SPLIT = 512  # slots from which a second program shares the reading
MOST_SPLITS = 32


@triton.jit
def _product(
    x, norm, weight, up, added, out, eps, width, rows,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, NORMED: tl.constexpr, GATED: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    start = row[:, None].to(tl.int64) * width
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    sums_up = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        read = inside[:, None] & (column < width)[None, :]
        value = tl.load(x + column, mask=column < width, other=0.0).to(tl.float32)
        if NORMED:
            squares += value * value
            value *= tl.load(norm + column, mask=column < width, other=0.0).to(tl.float32)
        sums += tl.load(weight + start + column[None, :], mask=read, other=0.0).to(tl.float32) * value[None, :]
        if GATED:
            sums_up += tl.load(up + start + column[None, :], mask=read, other=0.0).to(tl.float32) * value[None, :]
    result = tl.sum(sums, 1)
    if NORMED:
        scale = tl.rsqrt(tl.sum(squares, 0) / width + eps)
        result *= scale
    if GATED:
        result_up = tl.sum(sums_up, 1)
        if NORMED:
            result_up *= scale
        result = result * tl.sigmoid(result) * result_up
    if ADDED:
        result += tl.load(added + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=inside)


def product(
    x: Tensor, weight: Tensor, *, norm: Tensor | None = None, eps: float = 0.0, added: Tensor | None = None
) -> Tensor:
    """One token x (1, in) through a linear layer of weight (out, in): (1, out).

    norm (in,): the weight of an RMSNorm before it. added (out,) or (1, out): what is added to the result. A weight
    (2, out, in) is a gate and what it gates: silu(gate @ x) * (up @ x). A row of the weight is read in one go, by as
    many threads as have the memory busy, which a library's matrix product for one row does not manage.
    """
    gate, up = weight if weight.dim() == 3 else (weight, weight)
    rows, width = gate.shape
    # Rows of a program and columns at a time; measured on an H200.
    shape, stages = ((4, 2048), 1) if up is not gate else ((8, 1024), 3) if norm is not None else ((2, 2048), 1)
    block = min(shape[1], triton.next_power_of_2(width))
    out = torch.empty(1, rows, dtype=x.dtype, device=x.device)
    _product[triton.cdiv(rows, shape[0]),](
        x, norm, gate, up, added, out, eps, width, rows,
        ROWS=shape[0], BLOCK=block, NORMED=norm is not None, GATED=up is not gate, ADDED=added is not None,
        num_warps=WARPS, num_stages=stages,
    )  # fmt: skip
    return out


@triton.jit
def _turned(
    joined, norms, tables, positions, kv, slots, query, eps, tokens, kv_half, kv_row, kv_slot,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
    NORMED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    along = tl.arange(0, BLOCK_D)
    inside = (head < HEADS + 2 * KV_HEADS)[:, None] & (along < D)[None, :]
    partner = (along + D // 2) % D
    start = joined + (token * (HEADS + 2 * KV_HEADS) + head[:, None]) * D
    raw = tl.load(start + along[None, :], mask=inside, other=0.0)
    value = raw.to(tl.float32)
    other = tl.load(start + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(value * value, 1) / D + eps)[:, None]
        own = norms + head[:, None] * D
        value *= scale * tl.load(own + along[None, :], mask=inside, other=0.0).to(tl.float32)
        other *= scale * tl.load(own + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    table = tables + tl.load(positions + token) * 2 * D
    cos = tl.load(table + along, mask=along < D, other=0.0).to(tl.float32)
    sin = tl.load(table + D + along, mask=along < D, other=0.0).to(tl.float32)
    rotated = (value * cos[None, :] + other * sin[None, :]).to(raw.dtype)
    result = tl.where((head < HEADS + KV_HEADS)[:, None], rotated, raw)
    asked = inside & (head < HEADS)[:, None]
    tl.store(query + (token * HEADS + head[:, None]) * D + along[None, :], result, mask=asked)
    kept = head - HEADS  # keys, then values
    place = kv + (token // tokens) * kv_row + tl.load(slots + token) * kv_slot
    place += (kept // KV_HEADS)[:, None] * kv_half + (kept % KV_HEADS)[:, None] * D
    tl.store(place + along[None, :], result, mask=inside & ~asked)


def turned(
    joined: Tensor, norms: Tensor | None, eps: float, tables: Tensor, positions: Tensor, kv: Tensor, slots: Tensor
) -> Tensor:
    """Queries (B, n, heads, d) normed and rotated; keys, likewise, and values go to slots (B, n) of a layer's cache.

    joined (B, n, heads + 2 kv_heads, d), norms (heads + 2 kv_heads, d) or None; tables (N, 2 * d): cosines and signed
    sines of all positions; positions (B, n); kv (2, B, slots, kv_heads, d).
    """
    batch, tokens, count, d = joined.shape
    kv_heads = kv.shape[3]
    heads = count - 2 * kv_heads
    query = torch.empty(batch, tokens, heads, d, dtype=joined.dtype, device=joined.device)
    block = min(8, triton.next_power_of_2(count))
    _turned[batch * tokens, triton.cdiv(count, block)](
        joined, norms, tables, positions.contiguous(), kv, slots.contiguous(), query, eps, tokens, *kv.stride()[:3],
        HEADS=heads, KV_HEADS=kv_heads, D=d, BLOCK_D=triton.next_power_of_2(d), BLOCK=block, NORMED=norms is not None,
        num_warps=WARPS,
    )  # fmt: skip
    return query


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
    groups, d). mask (B or 1, 1, n, span) additive.

    A program takes a few queries of one key/value head through all slots (the running softmax of FlashAttention,
    arXiv:2205.14135), and queries that share keys and values share the reading. Long spans are split among programs
    and the parts put together afterwards.
    """
    batch, kv_heads, groups, tokens, d = query.shape
    span, wide = keys.shape[2], triton.next_power_of_2(d)
    blocks = triton.cdiv(groups * tokens, QUERIES)
    splits = _splits(span, blocks * kv_heads * batch, query.device)
    block = _block(wide * query.dtype.itemsize, query.device)
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
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=2 * WARPS, num_stages=2,
    )  # fmt: skip
    if splits > 1:
        _merge[places,](
            parts, sums, out, places, D=d, BLOCK_D=wide, SPLITS=splits, BLOCK=triton.next_power_of_2(splits),
            num_warps=WARPS,
        )  # fmt: skip
    return out


def _splits(span: int, programs: int, device: torch.device) -> int:
    """Programs that share the slots of one block of queries: until the card has several for each multiprocessor."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return max(1, min(span // SPLIT, MOST_SPLITS, 8 * processors // programs))


def _block(row_bytes: int, device: torch.device) -> int:
    """Slots read at a time: keys and values of two such blocks lie in a multiprocessor's shared memory."""
    if device.type != "cuda":
        return BLOCKS[-1]
    properties: Any = torch.cuda.get_device_properties(device)
    room = properties.shared_memory_per_block_optin
    return next((block for block in BLOCKS if 4 * block * row_bytes <= room), BLOCKS[-1])
