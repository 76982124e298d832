"""Tree attention and the slot-addressed key/value cache, shared by the target and the head.

A pass of n tokens writes n cache slots named beforehand and reads slots 0..span-1 under an additive mask. Masks are in
the compute dtype and use its own minimum, never -inf: a boolean mask is silently wrong in stock eager attention, and a
row of -inf becomes NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface

T = TypeVar("T")
TREE_ATTENTION = "eagle_repro_tree"
#: Kernels that take any length as it comes.
UNPLANNED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
LONG, FEW = 2048, 128  # slots from which, and queries up to which, by_products() is faster on a GPU than a fused kernel
#: Queries of a block of torch's memory-efficient kernel, or of half of one. Where heads share keys by a stride of 0, it
#: takes a query that is the only one of the last block for the only one of all, and is wrong for it (torch 2.11).
BLOCK = 32
_planned: ContextVar[bool] = ContextVar("inside planned()", default=False)


class SlotCache:
    """Keys and values of every layer in one tensor (layers, 2, B, slots, kv_heads, head_dim).

    transformers only calls update() and get_seq_length(); where a pass writes and how far it reads is set with at().
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: Any,
    ) -> None:
        self.kv = torch.zeros(layers, 2, batch, slots, kv_heads, head_dim, dtype=dtype, device=device)
        self.rows = torch.arange(batch, device=device).unsqueeze(1)

    @property
    def capacity(self) -> int:
        """Slots of a row."""
        return self.kv.shape[3]

    @property
    def device(self) -> torch.device:
        return self.kv.device

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes

    def at(self, slots: Tensor, span: int) -> SlotCache:
        """Make the next pass write slots (B, n) and read 0..span-1. Slots out of range are clamped to the last one."""
        self.span = span
        return self.writing(slots.clamp(max=self.capacity - 1))

    def writing(self, slots: Tensor) -> SlotCache:
        """Make the next pass write slots (B, n), none out of range, and read as before."""
        self.slots = slots
        self.places = (slots if len(slots) == 1 else slots + self.capacity * self.rows).flatten()  # among all rows'
        return self

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store key, value (B, kv_heads, n, head_dim); return what the pass reads, (B, kv_heads, span, d) twice."""
        both = torch.stack((key.transpose(1, 2), value.transpose(1, 2)), dim=2)
        store(self.kv[layer], self.places, both)
        return self.read(layer)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """What the pass reads of a layer: keys and values (B, kv_heads, span, head_dim)."""
        keys, values = self.kv[layer, :, :, : self.span].transpose(2, 3)
        return keys, values

    def row(self, index: int) -> SlotCache:
        """The cache of one row alone, in the same memory."""
        alone = copy(self)
        alone.kv, alone.rows = self.kv[:, :, index : index + 1], self.rows[:1]
        return alone

    def fill(self, other: SlotCache) -> None:
        """Take over the keys and values of another cache, of one row into every row if it has but one."""
        self.kv.copy_(other.kv)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Store key and value in layer 0 and attend to what the pass reads: (B, n, heads, d) from (B, heads, n, d)."""
        keys, values = self.update(key, value, 0)
        mask = fold_mask(mask, query.shape[1] // key.shape[1])
        return grouped_attention(query, keys, values, mask, scale)

    def get_seq_length(self, layer: int = 0) -> int:
        """Always 0: positions are given to every pass, none is derived from the cache."""
        return 0

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copy slots source (B, m) to destination (B, m) in every layer, through a temporary: they may overlap."""
        last = self.capacity - 1
        moved = self.kv[:, :, self.rows, source.clamp(max=last)]
        self.kv[:, :, self.rows, destination.clamp(max=last)] = moved


def store(kv: Tensor, places: Tensor, both: Tensor) -> None:
    """Write `both`, keys and values (B, n, 2, kv_heads, d), to a layer (2, B, slots, kv_heads, d).

    places (B * n,): slots counted through all rows. One index serves keys and values; two indices take twice as long.
    """
    kv.flatten(1, 2).index_copy_(1, places, both.flatten(0, 1).transpose(0, 1))


def prefix_mask(lengths: Tensor, span: int, dtype: torch.dtype) -> Tensor:
    """Additive mask (B, n, span): each query sees the slots below its own of lengths (B, n)."""
    behind = torch.arange(span, device=lengths.device) >= lengths.unsqueeze(-1)
    return behind.to(dtype).mul_(torch.finfo(dtype).min)


def visibility(length: Tensor, block: Tensor, span: int, dtype: torch.dtype) -> Tensor:
    """Additive mask (B, 1, n, span): every query sees slots below length (B,) and what `block` says of the newest.

    block (B or 1, n, m) bool: which of the m slots length..length+m-1 each of the n queries sees.
    """
    queries, newest = block.shape[1:]
    offset = torch.arange(span, device=length.device) - length.unsqueeze(1)  # (B, span)
    index = offset.clamp(0, newest - 1).unsqueeze(1).expand(-1, queries, -1)
    seen = block.expand(length.shape[0], -1, -1).gather(2, index) & (offset < newest).unsqueeze(1)
    seen = seen | (offset < 0).unsqueeze(1)
    return (~seen).to(dtype).mul_(torch.finfo(dtype).min).unsqueeze(1)


def fold_mask(mask: Tensor, groups: int) -> Tensor:
    """Mask (B, 1, n, span) repeated for `groups` query heads folded into the query axis: (B, 1, groups * n, span)."""
    return mask if groups == 1 else mask.repeat(1, 1, groups, 1)


def fold(query: Tensor, kv_heads: int) -> Tensor:
    """Queries (B, n, heads, d) beside those that share their key/value head: (B, kv_heads, groups, n, d)."""
    return query.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)


def folded_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of queries from fold() over key, value (B, kv_heads, span, d): (B, n, kv_heads, groups, d), a view.

    mask: from fold_mask; of a single text also (1, 1, n, span), which is faster. Any other raises ValueError: without
    it this would silently look at every slot.
    """
    batch, _, groups, tokens, _ = query.shape
    if mask is not None and batch == 1 and tuple(mask.shape) == (1, 1, tokens, key.shape[2]):
        if query.is_cuda and 1 < tokens <= FEW and key.shape[2] >= LONG:
            return by_products(query, key, value, mask, scale)
        if tokens == 1 or tokens % BLOCK != 1:
            return _of_one_text(query, key, value, mask, scale)
        mask = fold_mask(mask, groups)
    expected = (batch, 1, groups * tokens, key.shape[2])
    if mask is None or tuple(mask.shape) != expected:
        given = None if mask is None else tuple(mask.shape)
        raise ValueError(f"tree attention needs a mask of shape {expected}, got {given}")
    # Heads that share keys and values go into the query axis, so that keys and values are never repeated.
    out = F.scaled_dot_product_attention(query.flatten(2, 3), key, value, attn_mask=mask, scale=scale)
    return out.unflatten(2, (groups, tokens)).permute(0, 3, 1, 2, 4)


def _of_one_text(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """folded_attention() that copies nothing: key/value heads go as rows, and the heads of a row read the same memory.

    The kernels for a GPU take that.
    """
    groups = query.shape[2]
    key, value = (each.transpose(0, 1).expand(-1, groups, -1, -1) for each in (key, value))
    out = F.scaled_dot_product_attention(query[0], key, value, attn_mask=mask, scale=scale)
    return out.permute(2, 0, 1, 3).unsqueeze(0)


def by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """folded_attention() of one text, mask (1, 1, n, span), by two matrix products with float32 scores in between.

    A fused kernel gives a head and its queries to one multiprocessor, however long the cache is; a matrix product
    spreads over all of them. On an H200, 60 nodes and 16,000 slots of Qwen3-1.7B's layer take a third of the time.
    """
    groups, tokens = query.shape[2:4]
    exact: dict[str, Any] = {"out_dtype": torch.float32} if query.dtype.itemsize == 2 else {}
    scores = torch.bmm(query[0].flatten(1, 2), key[0].transpose(1, 2), **exact).unflatten(1, (groups, tokens))
    weights = torch.add(mask, scores, alpha=scale).softmax(dim=-1).to(value.dtype)
    out = torch.bmm(weights.flatten(1, 2), value[0])
    return out.unflatten(1, (groups, tokens)).permute(2, 0, 1, 3).unsqueeze(0)


def planned(work: Callable[[], T]) -> Callable[[], T]:
    """The work, with whichever attention kernel torch picks. On an H200 that is cuDNN's, twice as fast as the others;
    but for each new shape it is planned for a tenth of a second: good for what is captured and replayed, not for a
    prompt.
    """

    def inside() -> T:
        token = _planned.set(True)
        try:
            return work()
        finally:
            _planned.reset(token)

    return inside


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """For a pass: outside planned() the attention kernels that need no planning."""
    return sdpa_kernel(UNPLANNED) if device.type == "cuda" and not _planned.get() else nullcontext()


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of query (B, heads, n, d) over key, value (B, kv_heads, span, d) -> (B, n, heads, d).

    mask: from fold_mask with heads / kv_heads groups, (B, 1, heads / kv_heads * n, span); any other raises ValueError.
    """
    return folded_attention(fold(query.transpose(1, 2), key.shape[1]), key, value, mask, scale).flatten(2, 3)


def _hf_tree_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    for name in ("sliding_window", "softcap", "s_aux"):
        if options.get(name) is not None:
            raise ValueError(f"attention with {name} is not plain attention: a tree pass would leave it out")
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    return grouped_attention(query, key, value, attention_mask, scale), None


AttentionInterface.register(TREE_ATTENTION, _hf_tree_attention)


@contextmanager
def attention_of(model: nn.Module, implementation: str) -> Iterator[None]:
    """Let a transformers model use an attention implementation inside the block, and put its own back afterwards."""
    config: Any = model.config
    before = config._attn_implementation
    config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = before
