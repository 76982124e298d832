"""The forward of the Llama, Qwen2 and Qwen3 family written for few kernels.

On a small batch a pass is a row of short kernels, and what starts them costs as much as what they do. So projections
that read the same input are joined, the residual stream is added to in place by the projection that ends a block, keys
are rotated together with queries, and rotary tables are made once a pass. The stock model's parameters become views of
the joined storage: but for the norms of single heads nothing is kept twice, and the stock forward gives what it gave.
Weights must not change afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_repro.engine.attention import SlotCache, fold, fold_mask, folded_attention, store
from eagle_repro.engine.compiled import compilable, compiled

AT_ONCE = 64  # tokens up to which the rotary tables of all layers are made in one kernel; more would take memory
FUSED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class FusedDecoder:
    """The decoder of a model in `FUSED`; called with what Target.forward is called with."""

    def __init__(self, model: Any) -> None:
        config, decoder = model.config, model.get_decoder()
        heads: int = config.num_attention_heads
        kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self.embedding: Tensor = decoder.embed_tokens.weight
        self.rotary = Rotary(lambda positions: self._angles(decoder.rotary_emb, positions))
        self.layers = [_Layer(each, heads, kv_heads, each.self_attn.scaling) for each in decoder.layers]
        self.norm = _Norm(decoder.norm)
        norms = [layer.norms for layer in self.layers if layer.norms is not None]
        self.norms = torch.stack(norms) if norms else None  # (layers, heads + 2 kv_heads, d)

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache, taps: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Last hidden states (B, n, H) and the inputs of the tapped layers (B, n, taps * H).

        tokens, positions (B, n); mask (B, 1, n, span) additive; cache set with at().
        """
        batch, count = tokens.shape
        mask = self.layers[0].folded(mask)
        x = rows_of(self.embedding, tokens).flatten(0, 1)  # (B * n, H)
        tapped = x.new_empty(len(x), len(taps), x.shape[1])
        for number, (layer, tables) in enumerate(zip(self.layers, self._tables(positions), strict=False)):
            for place, tap in enumerate(taps):
                if tap == number:
                    tapped[:, place] = x
            query = layer.enter(x, layer.input_norm, tables, positions, cache, number)
            x = layer.leave(x, layer.attend(query, mask, cache, number))
        return self.norm(x).view(batch, count, -1), tapped.view(batch, count, -1) if taps else None

    def _angles(self, rotary: Any, positions: Tensor) -> Tensor:
        cos, sin = rotary(self.embedding, positions)  # which only tells it dtype and device
        return torch.stack((cos, signed(sin)))

    def _tables(self, positions: Tensor) -> Iterable[Tensor]:
        """What _Layer.enter takes of each layer, for positions (B, n)."""
        if compiled():
            return repeat(self.rotary.tables)
        tables = self.layers[0].by_head(self.rotary(positions))
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
        self.layer = _Layer(layer, config.heads, config.kv_heads, config.head_dim**-0.5)
        self.hidden_norm = _Norm(layer.hidden_norm)
        self.targets = head.d2t + torch.arange(len(head.d2t), device=head.d2t.device)  # target ids by draft ids
        self.rotary = Rotary(head.rotary)

    def __call__(self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        layer, x = self.layer, hidden.flatten(0, 1)
        tables = self.rotary.tables if compiled() else layer.by_head(self.rotary(positions))
        query = layer.enter(head_inputs(self, hidden, tokens), None, tables, positions, cache, 0)
        x = layer.leave(x.clone(), layer.attend(query, layer.folded(mask), cache, 0))
        return x.view(*tokens.shape, -1)

    def likeliest(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """cycle.best_children from logits (B, n, D), compiled."""
        return kernels().likeliest(logits, self.targets, count)


class Rotary:
    """Cosines and signed sines of positions 0, 1, ..., made beforehand. make: (2, B, n, d) of positions (B, n)."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        self.make = make
        self.all_tables: list[Tensor] = []

    @property
    def tables(self) -> Tensor:
        """(positions, 2 * d)."""
        return self.all_tables[-1]

    def reach(self, positions: int, device: torch.device) -> None:
        """Have tables for positions 0..positions-1. Shorter ones are kept: captured graphs read where they are."""
        known = len(self.tables) if self.all_tables else 0
        if known < positions:
            longer = torch.arange(max(positions, 2 * known), device=device)
            self.all_tables.append(self.make(longer.unsqueeze(0))[:, 0].transpose(0, 1).flatten(1).contiguous())

    def __call__(self, positions: Tensor) -> Tensor:
        """Tables (2, B, n, d) of positions (B, n)."""
        return at_positions(self.tables, positions)


class _Norm:
    """RMSNorm in one kernel."""

    def __init__(self, norm: Any) -> None:
        self.weight: Tensor = norm.weight
        self.eps: float | None = norm.eps if isinstance(norm, nn.RMSNorm) else norm.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _Layer:
    """One decoder layer. Queries, keys and values have one projection, one rotation and one cache write together.

    Values go through the rotation by no angle, which leaves them as they are: one kernel over all that lies in a row is
    cheaper than two over parts of it.
    """

    def __init__(self, layer: Any, heads: int, kv_heads: int, scale: float) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.heads, self.kv_heads, self.groups, self.scale = heads, kv_heads, heads // kv_heads, scale
        self.input_norm, self.mlp_norm = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.qkv, self.bias = join((attention.q_proj, attention.k_proj, attention.v_proj))
        self.out: Tensor = attention.o_proj.weight
        self.gate_up = join((mlp.gate_proj, mlp.up_proj))[0].unflatten(0, (2, -1)).transpose(1, 2)  # (2, H, mlp)
        self.down: Tensor = mlp.down_proj.weight
        self.rotated = torch.arange(heads + 2 * kv_heads, device=self.qkv.device).view(-1, 1) < heads + kv_heads
        self.unmoved = torch.tensor([1.0, 0.0], dtype=self.qkv.dtype, device=self.qkv.device).view(2, 1, 1, 1, 1)
        query, key = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.norms, self.eps = None, 0.0
        if query is not None and key is not None:  # (heads + 2 kv_heads, d), 1 for the values, which have none
            each = (query.weight, key.weight, torch.ones_like(key.weight))
            counts = torch.tensor((heads, kv_heads, kv_heads), device=self.qkv.device)
            self.norms, self.eps = torch.stack(each).repeat_interleave(counts, dim=0), query.variance_epsilon

    def by_head(self, tables: Tensor) -> Tensor:
        """Rotary tables (2, B, n, d) for every head: (2, B, n, heads + 2 kv_heads, d)."""
        return torch.where(self.rotated, tables.unsqueeze(3), self.unmoved)

    def enter(
        self, x: Tensor, norm: _Norm | None, tables: Tensor, positions: Tensor, cache: SlotCache, number: int
    ) -> Tensor:
        """Folded queries of inputs x (B * n, H or 2H), normed by `norm`; keys and values go to the cache's slots.

        tables of positions (B, n): (2, B, n, heads + 2 kv_heads, d), the norms of heads multiplied in; compiled, those
        of all positions (N, 2 * d).
        """
        joined = product(x, self.qkv, norm=norm, bias=self.bias).unflatten(0, positions.shape)
        joined = joined.unflatten(-1, (self.heads + 2 * self.kv_heads, -1))
        if compiled():
            query = kernels().turned(joined, self.norms, self.eps, tables, positions, cache.kv[number], cache.slots)
            return fold(query, self.kv_heads)
        if self.norms is None:
            joined = turned(joined, tables)
        else:  # the norm of the values is not theirs
            normed = turned(F.rms_norm(joined, joined.shape[-1:], eps=self.eps), tables)
            joined = torch.where(self.rotated, normed, joined)
        query, both = joined.split((self.heads, 2 * self.kv_heads), dim=2)
        store(cache.kv[number], cache.places, both.unflatten(2, (2, self.kv_heads)))
        return fold(query, self.kv_heads)

    def folded(self, mask: Tensor) -> Tensor:
        """The mask that attend() takes: of one text the mask itself, else repeated for heads that share keys."""
        return mask if len(mask) == 1 or compiled() else fold_mask(mask, self.groups)

    def attend(self, query: Tensor, mask: Tensor, cache: SlotCache, number: int) -> Tensor:
        """folded_attention() to what the pass reads of this layer, the cache's layer `number`."""
        attention = kernels().attend if compiled() else folded_attention
        return attention(query, *cache.read(number), mask, self.scale)

    def leave(self, x: Tensor, out: Tensor) -> Tensor:
        """x (B * n, H) with the attention's outputs (B, n, kv_heads, groups, d) and the MLP added, in place if it can.

        The product that ends a block adds to x itself, which saves a kernel.
        """
        x = added(x, out.flatten(2).flatten(0, 1), self.out)
        if single(x):
            inner = kernels().product(x, self.gate_up.transpose(1, 2), norm=self.mlp_norm.weight, eps=self.mlp_norm.eps)
        else:
            inner = gated(*torch.matmul(self.mlp_norm(x), self.gate_up))  # one product, so that both lie in a row
        return added(x, inner, self.down)


@compilable(hidden=(0, 1), tokens=(0, 1))
def head_inputs(head: FusedHead, hidden: Tensor, tokens: Tensor) -> Tensor:
    """What the head's layer reads, (B * n, 2H): the tokens' embeddings and the hidden states (B, n, H), each normed."""
    embedded = head.layer.input_norm(rows_of(head.head.embedding, tokens))
    return torch.cat((embedded, head.hidden_norm(hidden)), dim=-1).flatten(0, 1)


@compilable(gate=(0,), up=(0,))
def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, (T, mlp)."""
    return F.silu(gate).mul_(up)


def product(x: Tensor, weight: Tensor, *, norm: _Norm | None = None, bias: Tensor | None = None) -> Tensor:
    """x (T, in), normed where a norm is given, through a linear layer of weight (out, in)."""
    if not single(x):
        return F.linear(x if norm is None else norm(x), weight, bias)
    if norm is None:
        return kernels().product(x, weight, added=bias)
    return kernels().product(x, weight, norm=norm.weight, eps=norm.eps, added=bias)


def added(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """x (T, H) plus y (T, in) through a linear layer of weight (H, in); x is changed, unless it is a single token."""
    return kernels().product(y, weight, added=x) if single(x) else x.addmm_(y, weight.t())


def single(x: Tensor) -> bool:
    """Whether x (T, ...) is of one token and compiled, so that there is a faster product than the library's."""
    return compiled() and len(x) == 1


def kernels() -> Any:
    """The module of Triton kernels; where Triton is missing nothing asks for it."""
    from eagle_repro.engine import kernels

    return kernels


def rows_of(table: Tensor, ids: Tensor) -> Tensor:
    """Rows (B, n, W) of a table (N, W) by ids (B, n). A gather: an embedding's kernel takes four times as long."""
    return table.gather(0, ids.reshape(-1, 1).expand(-1, table.shape[1])).view(*ids.shape, -1)


def at_positions(tables: Tensor, positions: Tensor) -> Tensor:
    """Rotary tables (2, B, n, d) of positions (B, n) from those of all positions (N, 2 * d)."""
    return rows_of(tables, positions).unflatten(-1, (2, -1)).movedim(-2, 0)


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
