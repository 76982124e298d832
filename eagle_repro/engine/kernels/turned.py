"""Queries and keys of all heads: their norms, the rotation, and the way into the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 4


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
