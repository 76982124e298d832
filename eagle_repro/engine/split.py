"""A target split over devices: which layer lies where, and a cache whose keys and values lie beside their layers.

The layers go in order; all else (embedding, norm, output layer) stays on the first device, where a cycle's tensors and
the head are. A pass crosses over with the hidden states and comes back with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from eagle_repro.engine.attention import SlotCache


def layer_places(layers: int, layer_bytes: int, other_bytes: int, devices: int) -> list[int]:
    """The device (0, 1, ...) of every layer, so that all carry about as much; the first has `other_bytes` beside."""
    each = (other_bytes + layers * layer_bytes) / devices
    return [min(int((other_bytes + (layer + 0.5) * layer_bytes) / each), devices - 1) for layer in range(layers)]


def device_map(model: Any, devices: Sequence[torch.device]) -> dict[str, torch.device]:
    """Where each module of a causal language model goes, by name; its parameters may be on the meta device."""
    decoder = model.get_decoder()
    names = {id(module): name for name, module in model.named_modules()}
    layer_bytes = sum(each.nbytes for each in decoder.layers[0].parameters())
    other_bytes = sum(each.nbytes for each in model.parameters()) - len(decoder.layers) * layer_bytes
    places = layer_places(len(decoder.layers), layer_bytes, other_bytes, len(devices))
    beside = [*(each for each in decoder.children() if each is not decoder.layers), model.get_output_embeddings()]
    layers = {names[id(layer)]: devices[place] for layer, place in zip(decoder.layers, places, strict=True)}
    return {names[id(module)]: devices[0] for module in beside} | layers


class SplitCache(SlotCache):
    """A SlotCache for each run of layers on one device; slots are given, and what a pass reads is got, as there."""

    def __init__(
        self, places: Sequence[torch.device], batch: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        runs = [(device, len(list(run))) for device, run in groupby(places)]
        self.parts = [SlotCache(count, batch, slots, kv_heads, head_dim, dtype, device) for device, count in runs]
        self.where = [(part, layer) for part, (_, count) in enumerate(runs) for layer in range(count)]

    @property
    def capacity(self) -> int:
        return self.parts[0].capacity

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def at(self, slots: Tensor, span: int) -> SlotCache:
        for part in self.parts:
            part.at(slots.to(part.device), span)
        return self

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        part, own = self.where[layer]
        return self.parts[part].update(key, value, own)

    def row(self, index: int) -> SlotCache:
        alone = copy(self)
        alone.parts = [part.row(index) for part in self.parts]
        return alone

    def fill(self, other: SlotCache) -> None:
        assert isinstance(other, SplitCache)
        for ours, theirs in zip(self.parts, other.parts, strict=True):
            ours.fill(theirs)

    def move(self, source: Tensor, destination: Tensor) -> None:
        for part in self.parts:
            part.move(source.to(part.device), destination.to(part.device))
