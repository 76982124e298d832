"""The target model: any stock Hugging Face decoder behind one adapter.

Nothing is stored on the model: masks, positions and cache are arguments, the attention implementation and the feature
taps last for one pass and are taken back even when it raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from eagle_repro.engine.attention import (
    TREE_ATTENTION,
    SlotCache,
    attention_kernels,
    attention_of,
    fold_mask,
    visibility,
)
from eagle_repro.engine.fused import FusedDecoder, fusible
from eagle_repro.engine.split import SplitCache
from eagle_repro.engine.tree import ancestor_mask

PROOF_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}
"""Largest logit difference, relative to the largest logit, that rounding explains in a pass of six tokens."""


class UnsupportedTarget(ValueError):
    """The model is not a decoder that the engine can drive; the message says why."""


class Target:
    """A causal language model of transformers, driven with explicit masks, positions and cache slots.

    model: the stock module. taps: the decoder layers whose inputs are the head's three features (hidden_states at
    2, L // 2 and L - 3). Raises UnsupportedTarget for models this attention would get wrong.
    """

    def __init__(self, model: Any, *, fused: bool = False) -> None:
        _require_plain_decoder(model)
        self.model: Any = model
        self.fused = FusedDecoder(model) if fused and fusible(model) else None
        self.config: Any = model.config
        self.decoder: Any = self.model.get_decoder()
        self.lm_head: Any = self.model.get_output_embeddings()
        self.embedding: Tensor = self.model.get_input_embeddings().weight
        self.layers = len(self.decoder.layers)
        self.hidden_size: int = self.config.hidden_size
        self.vocabulary: int = self.lm_head.weight.shape[0]
        self.heads: int = self.config.num_attention_heads
        self.kv_heads: int = getattr(self.config, "num_key_value_heads", None) or self.heads
        self.head_dim: int = getattr(self.config, "head_dim", None) or self.hidden_size // self.heads
        #: Where each layer lies: on several devices for a target that is split.
        self.places = [next(layer.parameters()).device for layer in self.decoder.layers]
        self.taps = (2, self.layers // 2, self.layers - 3)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def split(self) -> bool:
        """Whether the layers lie on several devices."""
        return set(self.places) != {self.device}

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that the generation config declares as end of text."""
        declared = getattr(self.model.generation_config, "eos_token_id", None)
        return frozenset([declared] if isinstance(declared, int) else declared or [])

    def cache(self, batch: int, slots: int) -> SlotCache:
        """A blank cache of all layers for `batch` texts of `slots` slots, each part beside its layers."""
        if self.split:
            return SplitCache(self.places, batch, slots, self.kv_heads, self.head_dim, self.dtype)
        if self.fused is not None:
            self.fused.rotary.reach(slots, self.device)
        return SlotCache(self.layers, batch, slots, self.kv_heads, self.head_dim, self.dtype, self.device)

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache, *, features: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """One pass: tokens, positions (B, n); mask (B, 1, n, span) additive; cache set with at().

        Returns the last hidden states (B, n, H) and, when asked, the tapped features (B, n, 3H).
        """
        with attention_kernels(self.device):
            if self.fused is not None:
                return self.fused(tokens, positions, mask, cache, self.taps if features else ())
            return self._stock(tokens, positions, mask, cache, features=features)

    def _stock(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache, *, features: bool
    ) -> tuple[Tensor, Tensor | None]:
        mask = fold_mask(mask, self.heads // self.kv_heads)
        with attention_of(self.model, TREE_ATTENTION), self._tapped(self.taps if features else ()) as tapped:
            # The cache goes fourth by position: its keyword was renamed between transformers versions.
            hidden = self.decoder(tokens, mask, positions, cache)[0]
        # Of a split target they come from several devices; else they are where they should be.
        taken = [tapped[layer].to(self.device) for layer in self.taps] if features else []
        return hidden.to(self.device), torch.cat(taken, dim=-1) if features else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) in the model's dtype from last hidden states (..., H)."""
        return self.lm_head(hidden)

    @contextmanager
    def _tapped(self, layers: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
        tapped: dict[int, Tensor] = {}

        def tap(layer: int) -> Any:
            return lambda module, args, kwargs: tapped.update({layer: args[0] if args else kwargs["hidden_states"]})

        # Temporary pre-hooks: output_hidden_states would install permanent ones and keep every layer.
        hooks = [self.decoder.layers[i].register_forward_pre_hook(tap(i), with_kwargs=True) for i in set(layers)]
        try:
            yield tapped
        finally:
            for hook in hooks:
                hook.remove()

    @torch.inference_mode()
    def prove(self) -> None:
        """Check on a small branching tree that this model, here, honours mask, positions and cache slots.

        Both branches of a six-node tree must get the logits that the stock model gives their plain texts. Raises
        UnsupportedTarget when they do not.
        """
        parents = torch.tensor([[-1, 0, 0, 1, 2, 3]], device=self.device)
        tokens = torch.arange(1, 7, device=self.device).unsqueeze(0) * 7 % self.vocabulary
        depths = torch.tensor([[0, 1, 1, 2, 2, 3]], device=self.device)
        start = torch.zeros(1, dtype=torch.long, device=self.device)
        cache = self.cache(1, 8).at(torch.arange(6, device=self.device).unsqueeze(0), 8)
        mask = visibility(start, ancestor_mask(parents, 2), 8, self.dtype)
        try:
            hidden, _ = self.forward(tokens, depths, mask, cache)
        except torch.OutOfMemoryError:
            raise
        except Exception as cause:  # whatever a foreign decoder makes of arguments that it does not expect
            raise UnsupportedTarget(
                f"{type(self.model).__name__} cannot run a tree pass ({type(cause).__name__}: {cause}); use a decoder "
                "with standard rotary attention"
            ) from cause
        ours = self.logits(hidden)[0].float()
        for path in ([0, 1, 3, 5], [0, 2, 4]):
            stock = self.model(tokens[:, path], use_cache=False).logits[0, -1].float()
            error = float((ours[path[-1]] - stock).abs().max() / stock.abs().max().clamp(min=1.0))
            if not error <= PROOF_TOLERANCE[self.dtype]:
                raise UnsupportedTarget(
                    f"{type(self.model).__name__} does not give the same logits for a tree as for plain text (relative "
                    f"difference {error:.2g}): its attention ignores masks, positions or the cache given to it, or its "
                    "logits are not finite in this dtype; use a decoder with standard rotary attention"
                )


def _require_plain_decoder(model: Any) -> None:
    name, config = type(model).__name__, getattr(model, "config", None)
    if config is None or not all(
        hasattr(model, needed) for needed in ("get_decoder", "get_output_embeddings", "generation_config")
    ):
        raise UnsupportedTarget(f"{name} is not a Hugging Face causal language model: give an AutoModelForCausalLM")
    decoder = model.get_decoder()
    if not hasattr(decoder, "layers") or not hasattr(decoder, "rotary_emb") or config.is_encoder_decoder:
        raise UnsupportedTarget(f"{name} is not a decoder with rotary positions and a list of layers")
    if len(decoder.layers) < 4:
        raise UnsupportedTarget(f"{name} has {len(decoder.layers)} layers; three feature taps need at least 4")
    unusual = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if unusual or getattr(config, "use_sliding_window", False):
        raise UnsupportedTarget(
            f"{name} uses {', '.join(sorted(unusual)) or 'sliding windows'}; full attention is needed"
        )
    for field in ("final_logit_softcapping", "attn_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(config, field, None):
            raise UnsupportedTarget(f"{name} sets {field}, which tree verification does not apply")
    rotary = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rotary.get("rope_type", "default") in ("dynamic", "longrope"):
        raise UnsupportedTarget(
            f"{name} uses {rotary['rope_type']} rotary positions, which change with the text's length"
        )
