"""Kernels of the stack "compiled" give what the functions give that they stand for: by Triton's interpreter on a CPU,
and on a GPU in half precision too."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.nn import functional as F

from eagle_repro.engine.attention import SlotCache, fold, fold_mask, folded_attention

pytest.importorskip("triton")
from triton.runtime.errors import OutOfResources  # noqa: E402 - Triton may be missing

kernels = importlib.import_module("eagle_repro.engine.kernels")
attention = importlib.import_module("eagle_repro.engine.kernels.attention")
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
ON_GPU = [pytest.mark.gpu, NO_GPU]
WHERE = pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param("cpu", torch.float32, marks=pytest.mark.skipif(torch.cuda.is_available(), reason="on the GPU")),
        pytest.param("cuda", torch.float32, marks=ON_GPU),
        pytest.param("cuda", torch.float16, marks=ON_GPU),
        pytest.param("cuda", torch.bfloat16, marks=ON_GPU),
    ],
    ids=["cpu", "float32", "float16", "bfloat16"],
)
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def close(ours: torch.Tensor, exact: torch.Tensor) -> None:
    """exact: computed in float32 from the same rounded inputs."""
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.float(), exact.float(), atol=tolerance, rtol=tolerance)


@WHERE
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (576, 101), (2050, 7)])
@pytest.mark.parametrize("normed", [False, True], ids=["", "normed"])
@pytest.mark.parametrize("kind", ["", "gated", "added"])
def test_a_product_of_one_token(
    device: str, dtype: torch.dtype, inputs: int, outputs: int, normed: bool, kind: str
) -> None:
    torch.manual_seed(0)
    x, norm = torch.randn(1, inputs, device=device).to(dtype), torch.rand(inputs, device=device).to(dtype)
    weight = (torch.randn(2, outputs, inputs, device=device) * inputs**-0.5).to(dtype)
    added = torch.randn(1, outputs, device=device).to(dtype)
    exact = F.rms_norm(x.float(), (inputs,), norm.float(), 1e-6) if normed else x.float()
    gate, up = (F.linear(exact, each.float()) for each in weight)
    ours = kernels.product(
        x,
        weight if kind == "gated" else weight[0],
        norm=norm if normed else None,
        eps=1e-6,
        added=added if kind == "added" else None,
    )
    close(ours, F.silu(gate) * up if kind == "gated" else gate + added.float() if kind == "added" else gate)


@WHERE
@pytest.mark.parametrize("normed", [False, True], ids=["", "normed"])
@pytest.mark.parametrize(("batch", "tokens", "d"), [(1, 1, 16), (1, 5, 64), (2, 3, 48)])
def test_heads_are_normed_turned_and_stored(
    device: str, dtype: torch.dtype, batch: int, tokens: int, d: int, normed: bool
) -> None:
    torch.manual_seed(0)
    heads, kv_heads, slots = 6, 2, 32
    joined = torch.randn(batch, tokens, heads + 2 * kv_heads, d, device=device).to(dtype)
    norms = torch.rand(heads + 2 * kv_heads, d, device=device).to(dtype)
    tables = torch.randn(40, 2 * d, device=device).to(dtype)
    positions = torch.randint(0, 40, (batch, tokens), device=device)
    cache = SlotCache(1, batch, slots, kv_heads, d, dtype, device)
    places = torch.stack([torch.randperm(slots, device=device)[:tokens] for _ in range(batch)])

    query = kernels.turned(joined, norms if normed else None, 1e-6, tables, positions, cache.kv[0], places)

    x = joined.float()
    if normed:
        x = F.rms_norm(x, (d,), eps=1e-6) * norms.float()
    cos, sin = tables.float()[positions].unsqueeze(2).chunk(2, dim=-1)
    exact = x * cos + x.roll(d // 2, -1) * sin
    close(query, exact[:, :, :heads])
    rows = torch.arange(batch, device=device).unsqueeze(1)
    close(cache.kv[0, 0][rows, places], exact[:, :, heads : heads + kv_heads])
    assert torch.equal(cache.kv[0, 1][rows, places], joined[:, :, heads + kv_heads :]), "values stay as they are"
    written = torch.zeros(batch, slots, dtype=torch.bool, device=device)
    written[rows, places] = True
    assert not cache.kv[0].movedim(0, 2)[~written].any(), "no other slot is touched"


@WHERE
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(("batch", "tokens", "span"), [(1, 1, 64), (1, 1, 192), (1, 13, 128), (3, 5, 192)])
@pytest.mark.parametrize(("kv_heads", "groups", "d"), [(2, 2, 16), (3, 3, 64), (1, 1, 40)])
def test_attention_under_a_mask(
    device: str,
    dtype: torch.dtype,
    kv_heads: int,
    groups: int,
    d: int,
    batch: int,
    tokens: int,
    span: int,
    splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "_splits", lambda *_: splits)
    torch.manual_seed(0)
    joined = torch.randn(batch, tokens, kv_heads * groups + 2, d, device=device).to(dtype)
    query = fold(joined[:, :, : kv_heads * groups], kv_heads)
    cache = SlotCache(2, batch, span + 64, kv_heads, d, dtype, device).at(torch.zeros(1, 1), span)
    cache.kv.copy_(torch.randn_like(cache.kv))
    cache.kv[:, :, :, span:] = 1e4  # what lies behind the span would show
    hidden = torch.rand(batch, 1, tokens, span, device=device) > 0.3
    hidden[..., 0] = False  # every query sees one slot at least
    hidden[-1, :, :, span // 2 :] = True  # whole blocks that nobody sees
    mask = hidden.to(dtype) * torch.finfo(dtype).min
    keys, values = cache.read(1)
    ours = kernels.attend(query, keys, values, mask, 0.2)
    plain = (query.float(), keys.float(), values.float(), fold_mask(mask.float(), groups))
    close(ours, folded_attention(*plain, 0.2))
    # And the kernels of torch, which differ from card to card and from type to type.
    close(folded_attention(query, keys, values, mask if batch == 1 else fold_mask(mask, groups), 0.2), ours)


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 60])
def test_long_spans_are_split_among_programs(tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query = fold(torch.randn(1, tokens, 16, 128, device="cuda").to(dtype), 8)
    cache = SlotCache(1, 1, 8192, 8, 128, dtype, "cuda").at(torch.zeros(1, 1), 8192)
    cache.kv.copy_(torch.randn_like(cache.kv))
    assert attention._splits(8192, 8, query.device) > 1
    mask = (torch.rand(1, 1, tokens, 8192, device="cuda") > 0.5).to(dtype) * torch.finfo(dtype).min
    keys, values = cache.read(0)
    ours = kernels.attend(query, keys, values, mask, 0.1)
    close(ours, folded_attention(query.float(), keys.float(), values.float(), mask.float(), 0.1))


def test_blocks_are_as_large_as_the_shared_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        shared_memory_per_block_optin = 99 * 1024

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    card = torch.device("cuda:0")
    sizes = (128, 256, 512, 1024)
    assert [attention._block(row_bytes, card) for row_bytes in sizes] == [(128, 3), (32, 3), (16, 3), (16, 1)]
    Card.shared_memory_per_block_optin = 227 * 1024
    assert [attention._block(row_bytes, card) for row_bytes in sizes] == [(128, 3), (128, 3), (64, 3), (32, 3)]


def test_only_slots_that_are_worth_it_are_split_and_only_among_idle_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        multi_processor_count = 132

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    card = torch.device("cuda:0")
    given = {(64, 8): 1, (320, 8): 3, (1024, 8): 8, (1024, 60): 2, (8192, 8): 32, (8192, 100): 2, (8192, 1000): 1}
    assert {each: attention._splits(*each, card) for each in given} == given


def test_a_mask_that_does_not_belong_to_the_queries_is_refused() -> None:
    query, keys = torch.zeros(2, 1, 2, 3, 16), torch.zeros(2, 1, 64, 16)
    for mask in (
        torch.zeros(2, 1, 6, 64),  # of folded queries, as the plain functions take it
        torch.zeros(2, 1, 3, 32),
        torch.zeros(3, 1, 3, 64),
        torch.zeros(2, 1, 3, 1).expand(-1, -1, -1, 64),
    ):
        with pytest.raises(ValueError, match=r"needs a mask of shape \(2, 1, 3, 64\) in unbroken rows, got "):
            kernels.attend(query, keys, keys, mask, 1.0)


@WHERE
@pytest.mark.parametrize(("size", "count"), [(40, 40), (1024, 3), (5000, 10), (5000, 1)])
def test_the_likeliest_tokens_best_first(device: str, dtype: torch.dtype, size: int, count: int) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(2, 3, size, device=device)).to(dtype)
    targets = torch.randperm(2 * size, device=device)[:size]
    tokens, logprobs = kernels.likeliest(logits, targets, count)
    exact = logits.float().log_softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    assert torch.equal(tokens, targets[exact.indices[..., :count]]), "the first of equals comes first"
    torch.testing.assert_close(logprobs, exact.values[..., :count], atol=1e-5, rtol=1e-5)


@WHERE
def test_a_token_that_is_certain_has_a_log_probability_of_zero_and_none_is_above(
    device: str, dtype: torch.dtype
) -> None:
    logits = torch.full((1, 1, 3000), -50.0, device=device, dtype=dtype)
    logits[..., 2999] = 60.0
    tokens, logprobs = kernels.likeliest(logits, torch.arange(3000, device=device), 2)
    assert tokens.flatten().tolist() == [2999, 0] and logprobs.flatten().tolist() == [0.0, -110.0]


@WHERE
def test_parts_of_a_vocabulary_that_are_minus_infinity_spoil_nothing(device: str, dtype: torch.dtype) -> None:
    logits = torch.full((1, 1, 2500), float("-inf"), device=device, dtype=dtype)
    logits[..., 1100], logits[..., 7] = 1.0, 0.5
    tokens, logprobs = kernels.likeliest(logits, torch.arange(2500, device=device), 2)
    assert tokens.flatten().tolist() == [1100, 7]
    torch.testing.assert_close(logprobs.flatten(), logits.float().log_softmax(dim=-1)[0, 0, [1100, 7]])


def test_what_triton_lacks_is_one_line_that_names_another_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object, **__: object) -> None:
        raise OutOfResources(300_000, 101_376, "shared memory")

    search = importlib.import_module("eagle_repro.engine.kernels.search")
    monkeypatch.setattr(search, "_best_of_part", {(1, 1): short})
    with pytest.raises(
        RuntimeError, match=r'Triton cannot make code of likeliest here \(.*\): use stack="graph"$'
    ) as told:
        kernels.likeliest(torch.zeros(1, 20), torch.arange(20), 2)
    assert "\n" not in str(told.value) and "shared memory" in str(told.value)
