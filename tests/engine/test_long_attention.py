"""Attention of a few queries to a long cache, as two matrix products."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eagle_repro.engine.attention import FEW, LONG, SlotCache, by_products, fold, fold_mask, folded_attention


def case(
    kv_heads: int, groups: int, tokens: int, span: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Folded queries, keys and values of a cache that goes on behind the span, and a mask in which each query sees
    about half of the slots."""
    torch.manual_seed(0)
    query = fold(torch.randn(1, tokens, kv_heads * groups, 16, device=device).to(dtype), kv_heads)
    cache = SlotCache(1, 1, span + 64, kv_heads, 16, dtype, device).at(torch.zeros(1, 1), span)
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
@pytest.mark.parametrize(("tokens", "span"), [(2, LONG), (60, 4 * LONG), (FEW, LONG), (FEW + 1, LONG), (60, LONG - 1)])
def test_long_spans_on_a_gpu(tokens: int, span: int, dtype: torch.dtype) -> None:
    query, keys, values, mask = case(8, 2, tokens, span, dtype, "cuda")
    exact = folded_attention(query.double(), keys.double(), values.double(), mask.double(), 0.2)
    within = 1e-5 if dtype == torch.float32 else 2e-3  # half precision rounds weights and values; scores it does not
    found = folded_attention(query, keys, values, mask, 0.2)
    torch.testing.assert_close(found.double(), exact, atol=within, rtol=within)
