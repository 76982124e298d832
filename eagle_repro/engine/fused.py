"""The forward of the Llama, Qwen2 and Qwen3 family written for few kernels.

On a small batch a pass is a row of short kernels, and what starts them costs as much as what they do. So projections
that read the same input are joined, the residual stream is added to in place by the projection that ends a block, keys
are rotated together with queries, and rotary tables are made once a pass. The stock model's parameters become views of
the joined storage: but for the norms of single heads nothing is kept twice, and the stock forward gives what it gave.
Weights must not change afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_repro.engine.attention import SlotCache, attend, fold_mask

AT_ONCE = 64  # tokens up to which the rotary tables of all layers are made in one kernel; more would take memory
FUSED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class FusedDecoder:
    """The decoder of a model in `FUSED`; called with what Target.forward is called with."""

    def __init__(self, model: Any) -> None:
        config, decoder = model.config, model.get_decoder()
        heads: int = config.num_attention_heads
        kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self.embedding: Tensor = decoder.embed_tokens.weight
        self.rotary: Any = decoder.rotary_emb
        self.layers = [_Layer(layer, heads, kv_heads) for layer in decoder.layers]
        self.norm = _Norm(decoder.norm)
        norms = [layer.block.norms for layer in self.layers if layer.block.norms is not None]
        self.norms = torch.stack(norms) if norms else None  # (layers, heads + 2 kv_heads, d)

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache, taps: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Last hidden states (B, n, H) and the inputs of the tapped layers (B, n, taps * H).

        tokens, positions (B, n); mask folded, (B, 1, heads / kv_heads * n, span); cache set with at().
        """
        batch, count = tokens.shape
        embedded = rows_of(self.embedding, tokens)
        x = embedded.flatten(0, 1)  # (B * n, H), added to in place
        cos, sin = self.rotary(embedded, positions)
        tables = self._tables(torch.stack((cos, signed(sin))))
        tapped = {}
        for number, (layer, rotary) in enumerate(zip(self.layers, tables, strict=False)):
            if number in taps:
                tapped[number] = x.clone()
            out = layer.block.attend(layer.input_norm(x), rotary, mask, cache, number)
            x.addmm_(out, layer.block.out.t())
            x.addmm_(layer.mlp.activated(layer.mlp_norm(x)), layer.mlp.down.t())
        hidden = self.norm(x).view(batch, count, -1)
        if not taps:
            return hidden, None
        return hidden, torch.cat([tapped[number] for number in taps], dim=-1).view(batch, count, -1)

    def _tables(self, tables: Tensor) -> Iterable[Tensor]:
        """Each layer's rotary tables (2, B, n, heads + 2 kv_heads, d) from cos and signed sin (2, B, n, d)."""
        block = self.layers[0].block
        tables = block.by_head(tables)
        if self.norms is None:
            return repeat(tables)
        # A head's norm is multiplied in: w * x * cos + roll(w * x) * sin = x * (w * cos) + roll(x) * (roll(w) * sin).
        rolled = self.norms.roll(self.norms.shape[-1] // 2, -1)
        norms = torch.stack((self.norms, rolled), dim=1)  # (layers, 2, heads + 2 kv_heads, d)
        if tables.shape[1] * tables.shape[2] > AT_ONCE:
            return (norm[:, None, None] * tables for norm in norms)
        return (norms[:, :, None, None] * tables).unbind(0)


class FusedHead:
    """The layer of an EAGLE-3 head, called as Eagle3Head is."""

    def __init__(self, head: Any) -> None:
        config, layer = head.config, head.midlayer
        self.head = head
        self.block = _Attention(layer.self_attn, config.heads, config.kv_heads, config.head_dim**-0.5)
        self.mlp = _Mlp(layer.mlp)
        self.all_tables = [torch.empty(0, 2 * config.head_dim, device=head.d2t.device)]

    @property
    def tables(self) -> Tensor:
        """Cosines and signed sines of positions 0, 1, ...: (positions, 2 * d)."""
        return self.all_tables[-1]

    def reach(self, positions: int) -> None:
        """Have tables for positions 0..positions-1. Shorter ones are kept: captured graphs read where they are."""
        if len(self.tables) < positions:
            longer = torch.arange(max(positions, 2 * len(self.tables)), device=self.tables.device)
            tables = self.head.rotary(longer.unsqueeze(0))
            self.all_tables.append(tables[:, 0].transpose(0, 1).flatten(1).contiguous())

    def __call__(self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        layer = self.head.midlayer
        embedded = rows_of(self.head.embedding, tokens)
        x = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(hidden)), dim=-1)
        tables = rows_of(self.tables, positions).unflatten(-1, (2, -1)).movedim(-2, 0)
        tables = self.block.by_head(tables)
        out = self.block.attend(x.flatten(0, 1), tables, fold_mask(mask, self.block.groups), cache, 0)
        hidden = torch.addmm(hidden.flatten(0, 1), out, self.block.out.t())
        hidden.addmm_(self.mlp.activated(layer.post_attention_layernorm(hidden)), self.mlp.down.t())
        return hidden.view(*tokens.shape, -1)


class _Norm:
    """RMSNorm in one kernel."""

    def __init__(self, norm: Any) -> None:
        self.weight: Tensor = norm.weight
        self.eps: float = norm.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _Attention:
    """Attention with one projection, one rotation and one cache write for queries, keys and values together.

    Values go through the rotation by no angle, which leaves them as they are: one kernel over all that lies in a row is
    cheaper than two over parts of it.
    """

    def __init__(self, attention: Any, heads: int, kv_heads: int, scale: float) -> None:
        self.heads, self.kv_heads, self.groups, self.scale = heads, kv_heads, heads // kv_heads, scale
        self.qkv, self.bias = join((attention.q_proj, attention.k_proj, attention.v_proj))
        self.out: Tensor = attention.o_proj.weight
        self.rotated = torch.arange(heads + 2 * kv_heads, device=self.qkv.device).view(-1, 1) < heads + kv_heads
        self.unmoved = torch.tensor([1.0, 0.0], dtype=self.qkv.dtype, device=self.qkv.device).view(2, 1, 1, 1, 1)
        query, key = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.norms: Tensor | None = None
        if query is not None and key is not None:  # (heads + 2 kv_heads, d), 1 for the values, which have none
            each = (query.weight, key.weight, torch.ones_like(key.weight))
            counts = torch.tensor((heads, kv_heads, kv_heads), device=self.qkv.device)
            self.norms, self.eps = torch.stack(each).repeat_interleave(counts, dim=0), query.variance_epsilon

    def by_head(self, tables: Tensor) -> Tensor:
        """Rotary tables (2, B, n, d) for every head: (2, B, n, heads + 2 kv_heads, d)."""
        return torch.where(self.rotated, tables.unsqueeze(3), self.unmoved)

    def attend(self, x: Tensor, tables: Tensor, mask: Tensor, cache: SlotCache, layer: int) -> Tensor:
        """Outputs (B * n, heads * d), before the last projection, of normed inputs x (B * n, H or 2H).

        tables (2, B, n, heads + 2 kv_heads, d); mask folded.
        """
        joined = F.linear(x, self.qkv, self.bias).view(tables.shape[1:])  # (B, n, heads + 2 kv_heads, d)
        if self.norms is None:
            query, both = self._parted(turned(joined, tables))
        else:  # the norm of the values is not theirs
            query, both = self._parted(turned(F.rms_norm(joined, joined.shape[-1:], eps=self.eps), tables))
            both = torch.stack((both[:, :, 0], joined[:, :, -self.kv_heads :]), dim=2)
        keys, values = cache.write(layer, both)
        return attend(query, keys, values, mask, self.scale).flatten(2).flatten(0, 1)

    def _parted(self, joined: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, n, heads, d); keys and values (B, n, 2, kv_heads, d)."""
        query, both = joined.split((self.heads, 2 * self.kv_heads), dim=2)
        return query, both.unflatten(2, (2, self.kv_heads))


class _Mlp:
    def __init__(self, mlp: Any) -> None:
        joined, _ = join((mlp.gate_proj, mlp.up_proj))
        self.gate_up = joined.unflatten(0, (2, -1)).transpose(1, 2)  # (2, H, mlp)
        self.down: Tensor = mlp.down_proj.weight

    def activated(self, x: Tensor) -> Tensor:
        """What the last projection reads, (B * n, mlp), from normed inputs (B * n, H)."""
        gate, up = torch.matmul(x, self.gate_up)  # one batched product, so that both halves lie in a row
        return F.silu(gate).mul_(up)


class _Layer:
    """One decoder layer."""

    def __init__(self, layer: Any, heads: int, kv_heads: int) -> None:
        self.input_norm, self.mlp_norm = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.block = _Attention(layer.self_attn, heads, kv_heads, layer.self_attn.scaling)
        self.mlp = _Mlp(layer.mlp)


def rows_of(table: Tensor, ids: Tensor) -> Tensor:
    """Rows (B, n, W) of a table (N, W) by ids (B, n). A gather: an embedding's kernel takes four times as long."""
    return table.gather(0, ids.reshape(-1, 1).expand(-1, table.shape[1])).view(*ids.shape, -1)


def signed(sin: Tensor) -> Tensor:
    """Sines (..., d) for x * cos + roll(x) * sin: the half whose partner comes in with a minus carries it."""
    half = sin.shape[-1] // 2
    return torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)


def turned(x: Tensor, tables: Tensor) -> Tensor:
    """Rotary positions on x (B, n, heads, d), halves convention; tables: cos and signed sin, (2, B, n, heads, d)."""
    cos, sin = tables
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def join(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weights, and biases if any, of linears in one tensor each; the linears' own become views of it."""
    weight = _joined([linear.weight for linear in linears])
    bias = _joined([linear.bias for linear in linears]) if linears[0].bias is not None else None
    return weight, bias


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([each.data for each in parameters])
    for each, part in zip(parameters, whole.split([len(each) for each in parameters]), strict=True):
        each.data = part
    return whole


def fusible(model: Any) -> bool:
    """Whether FusedDecoder knows this model: its family, no bias but on queries, keys and values, on one device."""
    decoder = model.get_decoder()
    if type(model).__name__ not in FUSED or getattr(model.config, "hidden_act", None) != "silu":
        return False
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return False
    plain = (linear for each in decoder.layers for linear in (each.self_attn.o_proj, *each.mlp.children()))
    return all(not isinstance(linear, nn.Linear) or linear.bias is None for linear in plain)
