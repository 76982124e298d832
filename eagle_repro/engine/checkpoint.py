"""Reading EAGLE-3 head checkpoints in the official layout: strict names, and sizes taken from the weights."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

FILES = ("model.safetensors", "pytorch_model.bin")
PROJECTIONS = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
NORMS = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
REQUIRED = {f"{name}.weight" for name in ("fc", "norm", "lm_head")}
REQUIRED |= {f"midlayer.{name}.weight" for name in (*PROJECTIONS, *NORMS)}
OPTIONAL = {"d2t", "t2d", "embed_tokens.weight", "fc.bias"} | {f"midlayer.{name}.bias" for name in PROJECTIONS}
PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DERIVED = re.compile(r"(midlayer\.self_attn\.)?rotary_emb\.inv_freq")


class HeadMismatch(ValueError):
    """The checkpoint is not an EAGLE-3 head that fits this target; the message says what does not fit."""


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and constants of a head. hidden is the target's hidden size too; mlp the width of the head's MLP."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    draft_vocabulary: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_factor: float = 1.0
    biases: frozenset[str] = frozenset()
    own_embedding: bool = False


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors under their official names, and config.json, of a head folder.

    Raises FileNotFoundError for missing files and HeadMismatch for unreadable ones or names that are not a head's.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no config.json in the head folder {folder}: give the folder of an EAGLE-3 head")
    weights = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if weights is None:
        raise FileNotFoundError(f"no {' or '.join(FILES)} in the head folder {folder}: the head's weights are missing")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(weights) if weights.suffix == ".safetensors" else _load_bin(weights)
    except (SafetensorError, ValueError, RuntimeError, EOFError) as error:
        raise HeadMismatch(f"cannot read the head in {folder}: {error}") from error
    if not isinstance(config, dict):
        raise HeadMismatch(f"config.json of the head in {folder} holds no JSON object")
    return official_names(tensors), config


def _load_bin(path: Path) -> dict[str, Tensor]:
    try:
        # weights_only: a checkpoint is data, and code hidden in a pickle must not run.
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise HeadMismatch(f"{path.name} holds more than plain tensors or is damaged and was not loaded") from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise HeadMismatch(f"{path.name} is not a table of tensors: give the head's state dict")
    return tensors


def official_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the known spellings of the one layer (layers.0.*, with or without model.) to midlayer.*.

    Raises HeadMismatch naming what is missing, and what is there that no EAGLE-3 head has.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        official = re.sub(r"^layers\.0\.", "midlayer.", name.removeprefix("model."))
        if official in renamed:
            raise HeadMismatch(f"the head's file holds {official} twice under different spellings")
        if not DERIVED.fullmatch(official):
            renamed[official] = tensor
    missing, unknown = sorted(REQUIRED - set(renamed)), sorted(set(renamed) - REQUIRED - OPTIONAL)
    if missing or unknown:
        raise HeadMismatch(
            f"not an EAGLE-3 head: missing {_some(missing)}; unexpected {_some(unknown)}. A head holds fc, midlayer.*, "
            "norm, lm_head and, for a reduced vocabulary, d2t and t2d"
        )
    return renamed


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return (", ".join(names[:4]) + more) if names else "nothing"


def head_config(tensors: dict[str, Tensor], config: dict[str, Any], hidden: int, vocabulary: int) -> HeadConfig:
    """The head's configuration for a target of this hidden size and vocabulary, sizes from the weights.

    Raises HeadMismatch naming the tensor and both shapes where weights, config and target disagree.
    """
    _require_plain_weights(tensors)
    query, key = tensors["midlayer.self_attn.q_proj.weight"], tensors["midlayer.self_attn.k_proj.weight"]
    if tuple(tensors["fc.weight"].shape) != (hidden, 3 * hidden):
        raise HeadMismatch(
            f"fc.weight is {tuple(tensors['fc.weight'].shape)}, but a target of hidden size {hidden} needs "
            f"{(hidden, 3 * hidden)}: this head belongs to another target, or takes other than three features"
        )
    heads: Any = config.get("num_attention_heads")
    kv_heads: Any = heads if config.get("num_key_value_heads") is None else config["num_key_value_heads"]
    if not all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in (heads, kv_heads)):
        raise HeadMismatch(
            f"q_proj is {tuple(query.shape)} and k_proj {tuple(key.shape)}, and config.json's {heads!r} heads and "
            f"{kv_heads!r} key/value heads must be positive whole numbers"
        )
    epsilon = config.get("rms_norm_eps", 1e-6)
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 <= epsilon < 1:
        raise HeadMismatch(f"config.json's rms_norm_eps {epsilon!r} must be a small number, such as 1e-6")
    head_dim = query.shape[0] // heads
    if query.shape[0] != heads * head_dim or key.shape[0] != kv_heads * head_dim or head_dim % 2:
        raise HeadMismatch(
            f"q_proj is {tuple(query.shape)} and k_proj {tuple(key.shape)}, which config.json's {heads} heads and "
            f"{kv_heads} key/value heads do not divide into one head_dim (config says {config.get('head_dim')})"
        )
    if config.get("num_hidden_layers", 1) != 1 or config.get("hidden_act", "silu") != "silu":
        raise HeadMismatch("an EAGLE-3 head has one layer with silu; config.json says otherwise")
    theta, factor = _rotary(config)
    sizes = HeadConfig(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=tensors["midlayer.mlp.gate_proj.weight"].shape[0],
        vocabulary=vocabulary,
        draft_vocabulary=tensors["lm_head.weight"].shape[0],
        rms_norm_eps=float(epsilon),
        rope_theta=theta,
        rope_factor=factor,
        biases=frozenset(name.removesuffix(".bias") for name in tensors if name.endswith(".bias")),
        own_embedding="embed_tokens.weight" in tensors,
    )
    declared = config.get("draft_vocab_size")
    if declared not in (None, sizes.draft_vocabulary):
        raise HeadMismatch(
            f"lm_head has {sizes.draft_vocabulary} rows, but config.json declares a draft vocabulary of {declared}"
        )
    return sizes


def _require_plain_weights(tensors: dict[str, Tensor]) -> None:
    """Refuse what is not a plain head: quantised weights would lack their scales here, and maps hold whole numbers."""
    for name, tensor in tensors.items():
        wanted = 1 if "norm" in name or name.endswith(".bias") or name in ("d2t", "t2d") else 2
        whole = tensor.dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
        plain = whole if name in ("d2t", "t2d") else tensor.dtype in PLAIN
        if tensor.dim() != wanted or not plain:
            raise HeadMismatch(
                f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, but a head has plain floating-point weights "
                "and whole-number maps of one or two dimensions; quantised heads are not supported"
            )


def _rotary(config: dict[str, Any]) -> tuple[float, float]:
    """Base and linear factor of the head's rotary positions; transformers 5 moved the base into rope_parameters."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise HeadMismatch(f"config.json's rotary settings must be a table, got {scaling!r}")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear"):
        raise HeadMismatch(f"rotary scaling {kind!r} of the head is not supported: default and linear are")
    # 10000 is what a head without an entry was trained and is run with (the reference implementation's default).
    theta = scaling.get("rope_theta", config.get("rope_theta"))
    theta = 10000.0 if theta is None else theta
    factor: Any = scaling.get("factor") if kind == "linear" else 1.0
    if not all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e300
        for value in (theta, factor)
    ):
        raise HeadMismatch(f"the head's rotary base {theta!r} and factor {factor!r} must be positive numbers")
    return float(theta), float(factor)


def vocabulary_maps(tensors: dict[str, Tensor], config: HeadConfig) -> tuple[Tensor, Tensor]:
    """d2t (D,) offsets, target id = draft id + d2t[draft id], and t2d (V,) bool, checked against each other.

    A head over the whole vocabulary may have no map; a reduced one without d2t is refused, because ids would be
    misread without any error: only acceptance would collapse. Raises HeadMismatch naming the tensor.
    """
    drafted, vocabulary = config.draft_vocabulary, config.vocabulary
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if d2t is None:
        if drafted != vocabulary:
            raise HeadMismatch(f"d2t is missing: a head with {drafted} of {vocabulary} tokens needs its vocabulary map")
        d2t = torch.zeros(drafted, dtype=torch.long)
    if tuple(d2t.shape) != (drafted,):
        raise HeadMismatch(f"d2t has shape {tuple(d2t.shape)}, but lm_head has {drafted} rows")
    d2t = d2t.long()
    targets = d2t + torch.arange(drafted)
    if targets.min() < 0 or targets.max() >= vocabulary or targets.unique().numel() != drafted:
        raise HeadMismatch(f"d2t does not map the {drafted} draft ids to different ids of the target's {vocabulary}")
    expected = torch.zeros(vocabulary, dtype=torch.bool)
    expected[targets] = True
    if t2d is not None and (tuple(t2d.shape) != (vocabulary,) or not torch.equal(t2d.bool(), expected)):
        raise HeadMismatch(f"t2d marks {int(t2d.sum())} tokens that are not exactly the {drafted} that d2t maps to")
    return d2t, expected
