"""Which drafted tokens the target agrees with, and the next token: one rule for greedy decoding and for sampling.

The target's choice at a node is the argmax of (filtered logits / temperature + Gumbel noise), or of the logits alone
when greedy. The noise belongs to the position in the text, never to the draft, so the text does not depend on what
was drafted: each choice is an exact draw from the filtered distribution (the Gumbel-max trick), and walking the tree
along the choices is the same as decoding plainly with that noise.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eagle_repro.engine.tree import DraftTree

GREEDY_BELOW = 1e-5
"""Temperatures up to this one are greedy, in every loop."""


@dataclass(frozen=True)
class Sampling:
    """How the target's choices are made.

    temperature 0 (or up to GREEDY_BELOW) is greedy. top_k 0 and top_p 1 are off; filters run in transformers' order:
    temperature, top_k, top_p. seed governs every draw; nothing global is read.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("temperature", self.temperature), ("top_p", self.top_p)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name} must be a number, got {value!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be 0 (greedy) or a positive number, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p} (1 is off)")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise ValueError(f"top_k must be a whole number >= 0, got {self.top_k!r} (0 is off)")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be a whole number, got {self.seed!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_BELOW


@dataclass(frozen=True)
class Accepted:
    """What one cycle decided, m = drafted levels + 1.

    told (B, 2 + m + 2 * (n - 1)): all that the host reads of a cycle, in one tensor: finite, count and emitted, see
    below; then of each drafted node its score, as the bits of a float32, and its depth, see Told. path (B, m): node at
    each depth of the accepted path, node 0 past its end.
    """

    told: Tensor
    path: Tensor

    @classmethod
    def of(cls, tree: DraftTree, path: Tensor, finite: Tensor, count: Tensor, emitted: Tensor) -> Accepted:
        """From a tree and what the properties below give."""
        nodes = (tree.scores[:, 1:].view(torch.int32), tree.depths[:, 1:])
        return cls(torch.cat((finite.unsqueeze(1), count.unsqueeze(1), emitted, *nodes), dim=1), path)

    @property
    def finite(self) -> Tensor:
        """(B,) bool: every choice was made from finite logits."""
        return self.told[:, 0].bool()

    @property
    def count(self) -> Tensor:
        """(B,): drafted tokens accepted."""
        return self.told[:, 1]

    @property
    def emitted(self) -> Tensor:
        """(B, m): the count accepted tokens and then the target's own next token; the rest is padding."""
        return self.told[:, 2 : 2 + self.path.shape[1]]


class Told:
    """Accepted.told on the host, of a tree of up to `levels` drafted levels.

    counts (B,): levels accepted; scores float32 and depths (B, n - 1): of the drafted nodes.
    """

    def __init__(self, told: Tensor, levels: int) -> None:
        self.rows = told.cpu().numpy()  # waits for the device
        self.counts = self.rows[:, 1]
        bits, self.depths = np.split(self.rows[:, 3 + levels :], 2, axis=1)
        self.scores = bits.astype(np.int32).view(np.float32)

    def text(self, row: int) -> tuple[bool, list[int]]:
        """Whether a row was finite, and what it emitted: the accepted tokens and the target's own next one."""
        finite, count, *ids = self.rows[row, : 3 + self.counts[row]].tolist()
        return bool(finite), ids


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits (..., V) as float32, divided by the temperature, with the tokens that top_k and top_p drop at -inf."""
    scores = logits.float() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if sampling.top_p < 1:
        ordered, order = scores.sort(dim=-1)
        below = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - sampling.top_p
        below[..., -1] = False
        scores = scores.masked_fill(below.scatter(-1, order, below), -math.inf)
    return scores


def choose(logits: Tensor, sampling: Sampling, noise: Tensor | None) -> Tensor:
    """The target's choice (B, n) at each node from logits (B, n, V) and, when sampling, noise (B, n, V).

    Equal scores go to the lowest token id, in every loop.
    """
    if sampling.greedy:
        return logits.argmax(dim=-1)
    if noise is None:
        raise ValueError("sampling needs noise for every node; greedy decoding needs none")
    return (filtered(logits, sampling) + noise).argmax(dim=-1)


def gumbel_noise(sampling: Sampling, row: int, position: int, vocabulary: int, device: torch.device) -> Tensor:
    """Gumbel noise (V,) float32 for the token at `position` of row `row`'s text, the same whenever it is asked for.

    Gumbel = -log(Exponential(1)); drawn in float64, so that the tail of a large vocabulary is not cut off. The stream
    depends on the kind of device: one seed gives one text on a CPU and another on a GPU.
    """
    digest = hashlib.blake2b(f"{sampling.seed}/{row}/{position}".encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "little", signed=True))
    draws = torch.empty(vocabulary, dtype=torch.float64, device=device).exponential_(generator=generator)
    return draws.log_().neg_().float()


def finite_choices(logits: Tensor, choices: Tensor) -> Tensor:
    """(B,) bool: whether all choices (B, n) were made from finite logits (B, n, V).

    NaN wins any argmax and +inf is its own argmax, so the chosen logit tells whether its row was finite.
    """
    return logits.gather(-1, choices.unsqueeze(-1)).isfinite().flatten(1).all(dim=1)


def accept(tree: DraftTree, choices: Tensor, finite: Tensor, levels: int) -> Accepted:
    """Walk a tree of up to `levels` drafted levels along the target's choices (B, n); finite (B,) is passed on.

    A node is accepted when it and all its ancestors are what the target chose at their parents. With distinct siblings
    the accepted nodes are one path; were siblings equal, the first of the deepest paths would win.
    """
    agrees = (tree.tokens == choices.gather(1, tree.parents.clamp(min=0))) | (tree.depths == 0)
    accepted = (agrees.unsqueeze(1) | ~tree.ancestors).all(dim=-1)  # (B, n)
    deepest = torch.where(accepted, tree.depths, -1).argmax(dim=1, keepdim=True)  # (B, 1)
    nodes = tree.ancestors.shape[-1]
    on_path = tree.ancestors.gather(1, deepest.unsqueeze(-1).expand(-1, 1, nodes))  # (B, 1, n)
    level = torch.arange(levels + 1, device=choices.device).unsqueeze(-1)
    path = (on_path & (tree.depths.unsqueeze(1) == level)).long().argmax(dim=-1)  # (B, m)
    count, emitted = tree.depths.gather(1, deepest).squeeze(1), choices.gather(1, path)
    return Accepted.of(tree, path, finite, count, emitted)
