"""The EAGLE-3 head as one module.

At head position i go in the fused target features of token i and the embedding of token i + 1; out comes a pre-norm
hidden state, from which token i + 2 is drafted and which stands in for true features on the next drafted level.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_repro.engine.attention import SlotCache, attention_kernels
from eagle_repro.engine.checkpoint import (
    HeadConfig,
    HeadMismatch,
    head_config,
    read_checkpoint,
    vocabulary_maps,
)
from eagle_repro.engine.devices import dtype_name
from eagle_repro.engine.fused import FusedHead, turned

QKV = {f"midlayer.self_attn.{name}_proj" for name in "qkv"}


class HeadCache(Protocol):
    """Keys and values of the head's one layer: what a pass writes and reads is the cache's business."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor: ...


class HeadAttention(nn.Module):
    """Self-attention whose queries, keys and values read [embedding ; hidden], 2H wide."""

    def __init__(self, config: HeadConfig, linear: Any) -> None:
        super().__init__()
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.config = config
        self.q_proj = linear("self_attn.q_proj", 2 * config.hidden, queries)
        self.k_proj = linear("self_attn.k_proj", 2 * config.hidden, keys)
        self.v_proj = linear("self_attn.v_proj", 2 * config.hidden, keys)
        self.o_proj = linear("self_attn.o_proj", queries, config.hidden)

    def forward(self, x: Tensor, rotary: Tensor, mask: Tensor, cache: HeadCache) -> Tensor:
        """x (B, n, 2H) -> (B, n, H); rotary (2, B, 1, n, head_dim); mask (B, 1, n, span)."""
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        scale = self.config.head_dim**-0.5
        out = cache.attend(turned(query, rotary), turned(key, rotary), value, mask, scale)
        return self.o_proj(out.flatten(2))


class HeadMLP(nn.Module):
    def __init__(self, config: HeadConfig, linear: Any) -> None:
        super().__init__()
        self.gate_proj = linear("mlp.gate_proj", config.hidden, config.mlp)
        self.up_proj = linear("mlp.up_proj", config.hidden, config.mlp)
        self.down_proj = linear("mlp.down_proj", config.mlp, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class HeadLayer(nn.Module):
    """The head's one decoder layer; the residual stream is the hidden state, not the embedding."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()

        def linear(name: str, inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=f"midlayer.{name}" in config.biases)

        self.hidden_norm = nn.RMSNorm(config.hidden, config.rms_norm_eps)
        self.input_layernorm = nn.RMSNorm(config.hidden, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, config.rms_norm_eps)
        self.self_attn = HeadAttention(config, linear)
        self.mlp = HeadMLP(config, linear)

    def forward(self, hidden: Tensor, embedded: Tensor, rotary: Tensor, mask: Tensor, cache: HeadCache) -> Tensor:
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)
        hidden = hidden + self.self_attn(x, rotary, mask, cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Head(nn.Module):
    """Drafts tokens from the target's features. Parameters and buffers carry the official checkpoint names.

    embedding: the target's table (V, H), used, not copied, unless the config says that the head has its own.
    """

    inv_freq: Tensor
    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: HeadConfig, embedding: Tensor) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * config.hidden, config.hidden, bias="fc" in config.biases)
        self.midlayer = HeadLayer(config)
        self.norm = nn.RMSNorm(config.hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden, config.draft_vocabulary, bias=False)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.shared_embedding = embedding.detach()
        self.register_buffer("d2t", torch.zeros(config.draft_vocabulary, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(config.vocabulary, dtype=torch.bool))
        powers = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self.register_buffer("inv_freq", config.rope_theta**-powers / config.rope_factor, persistent=False)
        self.fused: FusedHead | None = None

    def settle(self, like: Tensor) -> Eagle3Head:
        """Ready to draft on the device and in the dtype of `like`; gives itself."""
        self.to(like.device).eval().requires_grad_(False)
        for parameter in self.parameters():  # the parameters alone: rotary frequencies stay float32
            parameter.data = parameter.data.to(like.dtype)
        return self

    @property
    def embedding(self) -> Tensor:
        """(V, H): the head's own table where the checkpoint has one, else exactly the target's."""
        return self.embed_tokens.weight if self.config.own_embedding else self.shared_embedding

    def use_fused(self) -> Eagle3Head:
        """Run in few kernels from now on, for decoding alone: gradients do not pass, weights must not change. A head
        with biases elsewhere than on its queries, keys and values stays as it is. Returns the head."""
        if self.config.biases - {"fc"} in (set(), QKV):
            self.fused = FusedHead(self)
        return self

    def cache(self, batch: int, slots: int) -> SlotCache:
        """A blank cache of the one layer for `batch` texts of `slots` slots."""
        like = self.fc.weight
        if self.fused is not None:
            self.fused.rotary.reach(slots, like.device)
        return SlotCache(1, batch, slots, self.config.kv_heads, self.config.head_dim, like.dtype, like.device)

    def fuse(self, features: Tensor) -> Tensor:
        """True features (B, n, 3H) -> hidden (B, n, H)."""
        return self.fc(features)

    def forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: HeadCache) -> Tensor:
        """hidden (B, n, H) of positions (B, n) and the tokens (B, n) that follow them -> pre-norm hidden (B, n, H).

        mask (B, 1, n, span) additive; cache set with at().
        """
        if not isinstance(cache, SlotCache):  # a head in training, which attends in its own way
            return self._stock(hidden, tokens, positions, mask, cache)
        with attention_kernels(hidden.device):
            run = self.fused or self._stock
            return run(hidden, tokens, positions, mask, cache)

    def _stock(self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: HeadCache) -> Tensor:
        # A head in training computes in another dtype than the target whose table it borrows.
        embedded = F.embedding(tokens, self.embedding).to(hidden.dtype)
        return self.midlayer(hidden, embedded, self.rotary(positions).unsqueeze(2), mask, cache)

    def rotary(self, positions: Tensor) -> Tensor:
        """Cosines and signed sines (2, B, n, head_dim) of positions (B, n), for turned()."""
        angles = positions.unsqueeze(-1) * self.inv_freq  # (B, n, head_dim / 2)
        cos, sin = angles.cos(), angles.sin()
        tables = torch.cat((cos, cos, -sin, sin), dim=-1).to(self.fc.weight.dtype)
        return tables.unflatten(-1, (2, -1)).movedim(-2, 0)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Log-probabilities (..., D) float32 over the draft vocabulary from pre-norm hidden states (..., H)."""
        return self.logits(hidden).log_softmax(dim=-1, dtype=torch.float32)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., D) over the draft vocabulary from pre-norm hidden states (..., H)."""
        return self.lm_head(self.norm(hidden))

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, any shape."""
        if self.fused is not None:
            return self.fused.targets.gather(0, draft_ids.flatten()).view_as(draft_ids)
        return draft_ids + self.d2t.gather(0, draft_ids.flatten()).view_as(draft_ids)


def load_head(folder: str | Path, embedding: Tensor, *, rope_theta: float | None = None) -> Eagle3Head:
    """The head of a checkpoint folder, for the target whose embedding table (V, H) is given, in its dtype and device.

    rope_theta overrides the config's base. Raises FileNotFoundError or HeadMismatch: a head that does not fit is
    refused with the reason.
    """
    folder = Path(folder)
    tensors, raw = read_checkpoint(folder)
    if rope_theta is not None:
        raw = {**raw, "rope_theta": rope_theta, "rope_scaling": None, "rope_parameters": None}
    config = head_config(tensors, raw, embedding.shape[1], embedding.shape[0])
    tensors["d2t"], tensors["t2d"] = vocabulary_maps(tensors, config)
    head = Eagle3Head(config, embedding)
    try:
        head.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise HeadMismatch(f"the head in {folder.name} does not fit: {' '.join(str(error).split())}") from error
    head.settle(embedding)
    broken = [name for name, tensor in head.state_dict().items() if not tensor.isfinite().all()]
    if broken:
        damaged = any(not tensors[name].isfinite().all() for name in broken if name in tensors)
        precision = dtype_name(embedding.dtype)
        raise HeadMismatch(
            f"{', '.join(broken)} of the head in {folder.name} is not finite"
            + (": the file is damaged, get it again" if damaged else f" in {precision}: use float32 or bfloat16")
        )
    return head
