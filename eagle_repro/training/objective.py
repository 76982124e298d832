"""The training-time test of EAGLE-3 (arXiv:2503.01840, section 3.2): the head learns on its own outputs.

The head is unrolled for K steps. Row i of every step starts from the same true prefix 0..i: step 1 reads true features
and predicts token i + 2; step k reads the output of step k - 1 and token i + k, stands at position i + k - 1, attends
to the true prefix and to its own rows of steps 2..k, and predicts token i + k + 1. That is what a chain drafted after
position i computes (engine.cycle.draft_candidates), with the text's tokens in place of drafted ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from eagle_repro.engine.attention import planned
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.target import Target
from eagle_repro.training.batches import Batch

STEP_WEIGHT = 0.8  # the loss of step k counts STEP_WEIGHT ** (k - 1)


class Observed(NamedTuple):
    """What the target says of a batch: features (B, S, 3H) and, over the draft vocabulary, probabilities (B, S, D)."""

    features: Tensor
    probabilities: Tensor


class Losses(NamedTuple):
    """Sums over positions by step, each (K,): cross-entropy, argmax agreements with the target, positions counted."""

    entropy: Tensor
    right: Tensor
    counted: Tensor

    def total(self) -> Tensor:
        """The loss: cross-entropy a counted position, steps weighted."""
        weights = STEP_WEIGHT ** torch.arange(len(self.counted), device=self.counted.device)
        return (weights * self.entropy / self.counted.clamp(min=1)).sum()


class DiagonalCache:
    """Keys and values of the unrolled steps: step 1 is causal, step k adds for every row its own row of steps 2..k."""

    def __init__(self, attention: Callable[..., Tensor]) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.attention = attention

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
        """A step: query (B, heads, S, d), key and value (B, kv_heads, S, d), mask (B, 1, S, S) -> (B, S, heads, d)."""
        self.keys.append(key)
        self.values.append(value)
        return self.attention(query * scale, self.keys, self.values, mask)


def diagonal_attention(query: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor) -> Tensor:
    """Attention of scaled queries (B, heads, S, d) to keys[0] under the mask and to their own row of the other keys.

    The two parts are joined exactly by their log-sum-exps. Returns (B, S, heads, d).
    """
    batch, heads, length, head_dim = query.shape
    kv_heads = keys[0].shape[1]
    query = query.reshape(batch, kv_heads, -1, head_dim)  # grouped heads share keys: (B, kv, groups * S, d)
    scores = (query @ keys[0].transpose(2, 3)).unflatten(2, (-1, length)).float() + mask.unsqueeze(2)
    seen = scores.softmax(dim=-1).to(query.dtype).flatten(2, 3) @ values[0]
    out = seen.unflatten(2, (-1, length))
    if len(keys) > 1:
        own_keys, own_values = (torch.stack(each[1:], dim=3).unsqueeze(2) for each in (keys, values))
        own = (query.unflatten(2, (-1, length)).unsqueeze(4) * own_keys).sum(dim=-1).float()  # (B, kv, groups, S, k-1)
        share = (scores.logsumexp(dim=-1) - own.logsumexp(dim=-1)).sigmoid().unsqueeze(-1).to(query.dtype)
        drafted = (own.softmax(dim=-1).to(query.dtype).unsqueeze(-1) * own_values).sum(dim=-2)
        out = share * out + (1 - share) * drafted
    return out.reshape(batch, heads, length, head_dim).transpose(1, 2)


def step_loss(logits: Tensor, probabilities: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over counted positions (B, S) bool of the cross-entropy and of argmax agreements; both others (B, S, D)."""
    logits = logits.float()
    entropy = logits.logsumexp(dim=-1) - (probabilities * logits).sum(dim=-1)
    right = logits.argmax(dim=-1) == probabilities.argmax(dim=-1)
    return (entropy * counted).sum(), (right & counted).sum()


class Unrolled(nn.Module):
    """The head unrolled for `steps` steps. compiled: torch.compile for the attention and the loss."""

    def __init__(self, head: Eagle3Head, steps: int, *, compiled: bool = False) -> None:
        super().__init__()
        self.head, self.steps = head, steps
        self.attention: Callable[..., Tensor] = diagonal_attention
        self.loss: Callable[..., tuple[Tensor, Tensor]] = step_loss
        if compiled:
            options: dict[str, Any] = {"dynamic": False}
            self.attention = torch.compile(diagonal_attention, **options)
            self.loss = torch.compile(step_loss, **options)

    def hidden_states(self, features: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor) -> list[Tensor]:
        """Pre-norm hidden states (B, S, H) of steps 1..K; step k's rows near the end of a text follow padding."""
        cache, hidden, found = DiagonalCache(self.attention), self.head.fuse(features), []
        for step in range(self.steps):
            hidden = self.head(hidden, ahead(tokens, step + 1), positions + step, mask, cache)
            found.append(hidden)
        return found

    def forward(self, batch: Batch, observed: Observed, mask: Tensor) -> Losses:
        hidden = self.hidden_states(observed.features, batch.tokens, batch.positions, mask)
        # One copy with room at the end, so that every step reads a view of the same shape.
        padded = F.pad(observed.probabilities, (0, 0, 0, self.steps))
        sums, counts = [], []
        for step, state in enumerate(hidden, start=1):
            counted = counted_rows(batch, self.head.t2d, step)
            wanted = padded[:, step : step + state.shape[1]]
            sums.append(self.loss(self.head.lm_head(self.head.norm(state)), wanted, counted))
            counts.append(counted.sum())
        entropy, right = (torch.stack(each) for each in zip(*sums, strict=True))
        return Losses(entropy, right, torch.stack(counts))


class Objective(nn.Module):
    """Unrolled losses of a head whose weights are float32, computed in `dtype`: nothing else depends on autocast."""

    def __init__(self, head: Eagle3Head, steps: int, dtype: torch.dtype, *, compiled: bool = False) -> None:
        super().__init__()
        self.unrolled, self.dtype = Unrolled(head, steps, compiled=compiled), dtype

    def forward(self, batch: Batch, observed: Observed) -> Losses:
        weights = {name: weight.to(self.dtype) for name, weight in self.unrolled.named_parameters()}
        cast = Observed(observed.features.to(self.dtype), observed.probabilities)
        mask = document_mask(batch.document, self.dtype)
        losses: Losses = functional_call(self.unrolled, weights, (batch, cast, mask))
        return losses


def ahead(values: Tensor, count: int) -> Tensor:
    """values (B, S) read `count` places further on, zeros (or False) past the end."""
    return F.pad(values[:, count:], (0, min(count, values.shape[1])))


def counted_rows(batch: Batch, t2d: Tensor, step: int) -> Tensor:
    """Rows (B, S) bool whose step is learnt from.

    A draft starts behind an answer token, so row i counts where token i + 1 is one; the predicted token i + step + 1
    must belong to the same text and to the draft vocabulary.
    """
    predicted, inside = ahead(batch.tokens, step + 1), ahead(batch.document, step + 1)
    return ahead(batch.answer, 1) & (inside == batch.document) & (batch.document > 0) & t2d[predicted]


def document_mask(document: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask (B, 1, S, S): each token sees itself and what came before it in its own text."""
    same = (document.unsqueeze(2) == document.unsqueeze(1)).tril()
    hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=document.device)
    return torch.where(same, torch.zeros_like(hidden), hidden).unsqueeze(1)


class Observer:
    """Runs the target over batches of (B, S) tokens; its cache is made once and written anew by each batch."""

    def __init__(self, target: Target, head: Eagle3Head, sequences: int, length: int) -> None:
        self.target, self.length = target, length
        self.cache = target.cache(sequences, length)
        drafted = torch.arange(head.config.draft_vocabulary, device=target.device) + head.d2t
        self.rows = target.lm_head.weight[drafted]  # (D, H): the output layer restricted to the draft vocabulary
        bias = getattr(target.lm_head, "bias", None)
        self.bias = None if bias is None else bias[drafted]

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Observed:
        slots = torch.arange(self.length, device=batch.tokens.device).expand_as(batch.tokens)
        mask = document_mask(batch.document, self.target.dtype)
        cache = self.cache.at(slots, self.length)
        forward = planned(partial(self.target.forward, batch.tokens, batch.positions, mask, cache))
        hidden, features = forward()  # all batches are of one shape
        assert features is not None
        probabilities = F.linear(hidden, self.rows, self.bias).softmax(dim=-1, dtype=torch.float32)
        return Observed(features, probabilities.to(features.dtype))
