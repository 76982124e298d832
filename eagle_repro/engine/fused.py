"""The forward of the Llama, Qwen2 and Qwen3 family written for few kernels.

On a small batch a pass is a row of short kernels, and what starts them costs as much as what they do. So projections
that read the same input are joined, the residual stream is added to in place by the projection that ends a block, keys
are rotated together with queries, and rotary tables are made once a pass. The stock model's parameters become views of
the joined storage: nothing is kept twice, and the stock forward gives what it gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_repro.engine.attention import SlotCache, attend

AT_ONCE = 64  # tokens up to which the rotary tables of all layers are made in one kernel; more would take memory
FUSED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class FusedDecoder:
    """The decoder of a model in `FUSED`; called with what Target.forward is called with."""

    def __init__(self, model: Any) -> None:
        config, decoder = model.config, model.get_decoder()
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.embedding: Tensor = decoder.embed_tokens.weight
        self.rotary: Any = decoder.rotary_emb
        self.layers = [_Layer(layer) for layer in decoder.layers]
        self.norm = _Norm(decoder.norm)
        self.normed = self.layers[0].head_norms is not None
        if self.normed:  # (layers, heads + kv_heads, d): what each head's norm multiplies by
            norms = [layer.head_norms for layer in self.layers if layer.head_norms is not None]
            self.head_norms = torch.stack([self._by_head(*each) for each in norms])

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache, taps: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Last hidden states (B, n, H) and the inputs of the tapped layers (B, n, taps * H).

        tokens, positions (B, n); mask folded, (B, 1, heads / kv_heads * n, span); cache set with at().
        """
        batch, count = tokens.shape
        embedded = F.embedding(tokens, self.embedding)
        x = embedded.flatten(0, 1)  # (B * n, H), added to in place
        tables = self._tables(*self.rotary(embedded, positions))
        tapped = {}
        for number, (layer, rotary) in enumerate(zip(self.layers, tables, strict=False)):
            if number in taps:
                tapped[number] = x.clone()
            self._attend(layer, x, (batch, count), rotary, mask, cache, number)
            layer.feed(x)
        hidden = self.norm(x).view(batch, count, -1)
        if not taps:
            return hidden, None
        return hidden, torch.cat([tapped[number] for number in taps], dim=-1).view(batch, count, -1)

    def _attend(
        self,
        layer: _Layer,
        x: Tensor,
        sizes: tuple[int, int],
        rotary: tuple[Tensor, Tensor],
        mask: Tensor,
        cache: SlotCache,
        number: int,
    ) -> None:
        cos, sin = rotary
        joined = F.linear(layer.input_norm(x), layer.qkv, layer.qkv_bias)
        joined = joined.view(*sizes, self.heads + 2 * self.kv_heads, -1)  # (B, n, heads + 2 kv_heads, d)
        turning, value = joined.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
        if self.normed:  # the values are normed in vain: one kernel over all is cheaper than two over parts
            turning = F.rms_norm(joined, joined.shape[-1:], eps=layer.head_eps)[:, :, : self.heads + self.kv_heads]
        swapped = turning.roll(turning.shape[-1] // 2, -1)
        turned = torch.addcmul(turning * cos, swapped, sin)
        query, key = turned.split((self.heads, self.kv_heads), dim=2)
        keys, values = cache.write(number, key, value)
        out = attend(query, keys, values, mask, layer.scale)
        x.addmm_(out.flatten(2).flatten(0, 1), layer.out.t())

    def _tables(self, cos: Tensor, sin: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        """Each layer's rotary tables for x * cos + roll(x) * sin, (B, n, 1 or heads + kv_heads, d).

        The half whose partner comes in with a minus carries it in its sine; a head's norm is multiplied in.
        """
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
        if not self.normed:
            return repeat((cos, sin))
        by_cos, by_sin = self.head_norms, self.head_norms.roll(half, -1)  # (layers, heads + kv_heads, d)
        if cos.shape[0] * cos.shape[1] > AT_ONCE:
            return ((weight * cos, rolled * sin) for weight, rolled in zip(by_cos, by_sin, strict=True))
        at_once = (by[:, None, None] * table for by, table in ((by_cos, cos), (by_sin, sin)))
        return zip(*at_once, strict=True)

    def _by_head(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.cat((query.expand(self.heads, -1), key.expand(self.kv_heads, -1)))


class _Norm:
    """RMSNorm in one kernel."""

    def __init__(self, norm: Any) -> None:
        self.weight: Tensor = norm.weight
        self.eps: float = norm.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _Layer:
    """The weights of one decoder layer, joined where they read the same input."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.input_norm, self.mlp_norm = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.qkv, self.qkv_bias = join((attention.q_proj, attention.k_proj, attention.v_proj))
        self.gate_up, _ = join((mlp.gate_proj, mlp.up_proj))
        self.out, self.down = attention.o_proj.weight, mlp.down_proj.weight
        self.scale: float = attention.scaling
        norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self.head_norms = None if norms[0] is None else (norms[0].weight, norms[1].weight)  # type: ignore[union-attr]
        self.head_eps = None if norms[0] is None else norms[0].variance_epsilon

    def feed(self, x: Tensor) -> None:
        """Add the MLP's output to the residual stream x (B * n, H)."""
        gate, up = F.linear(self.mlp_norm(x), self.gate_up).chunk(2, dim=-1)
        x.addmm_(F.silu(gate).mul_(up), self.down.t())


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
