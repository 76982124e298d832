"""Attention of one text: to a long cache as two matrix products, and past a fault of a kernel of torch."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from eagle_repro.engine.attention import FEW, LONG, UNPLANNED, SlotCache, by_products, fold, fold_mask, folded_attention


def case(
    kv_heads: int,
    groups: int,
    tokens: int,
    span: int,
    d: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Folded queries, keys and values of a cache that goes on behind the span, and a mask in which each query sees
    about half of the slots."""
    torch.manual_seed(0)
    query = fold(torch.randn(1, tokens, kv_heads * groups, d, device=device).to(dtype), kv_heads)
    cache = SlotCache(1, 1, span + 64, kv_heads, d, dtype, device).at(torch.zeros(1, 1), span)
    cache.kv.copy_(torch.randn_like(cache.kv))
    cache.kv[:, :, :, span:] = 1e4  # what lies behind the span would show
    hidden = torch.rand(1, 1, tokens, span, device=device) > 0.5
    hidden[..., 0] = False  # every query sees one slot at least
    keys, values = cache.read(0)
    return query, keys, values, hidden.to(dtype) * torch.finfo(dtype).min


@given(kv_heads=st.integers(1, 3), groups=st.integers(1, 3), tokens=st.integers(1, 9), span=st.integers(1, 70))
def test_products_give_what_the_fused_kernel_gives(kv_heads: int, groups: int, tokens: int, span: int) -> None:
    query, keys, values, mask = case(kv_heads, groups, tokens, span)
    expected = folded_attention(query, keys, values, fold_mask(mask, groups), 0.2)
    torch.testing.assert_close(by_products(query, keys, values, mask, 0.2), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("d", [16, 64, 128])
@pytest.mark.parametrize("span", [64, LONG - 64, 4 * LONG])
def test_every_number_of_queries_on_a_gpu(span: int, d: int, dtype: torch.dtype) -> None:
    within = 1e-4 if dtype == torch.float32 else 5e-3  # half precision rounds weights and values; scores it does not
    for tokens in (1, 2, 31, 32, 33, 60, 64, 65, 97, FEW, FEW + 1, 193, 257):
        query, keys, values, mask = case(4, 2, tokens, span, d, dtype, "cuda")
        exact = folded_attention(query.double(), keys.double(), values.double(), mask.double(), 0.2)
        for kernels in (nullcontext(), sdpa_kernel(UNPLANNED)):
            with kernels:
                found = folded_attention(query, keys, values, mask, 0.2)
            worst = (found.double() - exact).abs().amax(dim=(0, 2, 3, 4))
            assert worst.max() < within, f"{tokens} queries: query {int(worst.argmax())} is off by {worst.max():.4f}"
