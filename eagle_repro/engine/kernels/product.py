"""The linear layers of a pass of one token, with what comes before and after them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


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
    # Rows of a program, columns at a time, and warps that read most a second on an H200.
    tile, block, warps = (4, 1024, 2) if up is not gate else (8, 1024, 4) if norm is not None else (2, 2048, 2)
    block = min(block, triton.next_power_of_2(width))
    out = torch.empty(1, rows, dtype=x.dtype, device=x.device)
    _product[triton.cdiv(rows, tile),](
        x, norm, gate, up, added, out, eps, width, rows,
        ROWS=tile, BLOCK=block, NORMED=norm is not None, GATED=up is not gate, ADDED=added is not None,
        num_warps=warps,
    )  # fmt: skip
    return out
