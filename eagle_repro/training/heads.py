"""Heads in training: a new one or one to go on from, its draft vocabulary, and saving it in the official layout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from eagle_repro.engine.checkpoint import HeadConfig, HeadMismatch
from eagle_repro.engine.head import Eagle3Head, load_head
from eagle_repro.engine.target import Target


def draft_vocabulary(counts: NDArray[np.int64], size: int) -> Tensor:
    """The `size` most frequent ids, ascending (D,); where fewer occur, the lowest of the others fill up.

    Raises ValueError for a size beyond the vocabulary.
    """
    require_draft(size, len(counts))
    best = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(best))


def require_draft(size: int, vocabulary: int) -> None:
    """Raise ValueError for a draft vocabulary that is empty or larger than the target's."""
    if not 1 <= size <= vocabulary:
        raise ValueError(f"a draft vocabulary of {size} asked of {vocabulary} ids: ask for 1 to {vocabulary}")


def new_head(target: Target, sizes: HeadConfig, drafted: Tensor, seed: int) -> Eagle3Head:
    """A float32 head for a target that drafts the ids `drafted` (D,), its other sizes those of `sizes`.

    Its norm and output rows begin as the target's own, so that it has only the hidden state to learn.
    """
    config = replace(sizes, draft_vocabulary=len(drafted), own_embedding=False, biases=frozenset())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3Head(config, target.embedding)
    head.d2t.copy_(drafted - torch.arange(len(drafted)))
    head.t2d[drafted] = True
    with torch.no_grad():
        head.lm_head.weight.copy_(target.lm_head.weight[drafted.to(target.device)])
        norm = getattr(target.decoder, "norm", None)
        if norm is not None and norm.weight.shape == head.norm.weight.shape:
            head.norm.weight.copy_(norm.weight)
    return head.to(target.device)


def head_from(folder: Path, target: Target) -> Eagle3Head:
    """The head of a folder as float32, to train on from; its draft vocabulary and its maps stay as they are."""
    head = load_head(folder, target.embedding.float()).requires_grad_(True)
    head.shared_embedding = target.embedding.detach()  # a parameter would become one of the head's
    return head


def save_head(head: Eagle3Head, folder: Path, provenance: dict[str, Any]) -> None:
    """Write model.safetensors (float16), config.json and PROVENANCE.json, which load_head reads.

    Raises HeadMismatch for weights that float16 does not hold.
    """
    tensors = {
        name: (tensor.half() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in head.state_dict().items()
    }
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise HeadMismatch(f"{', '.join(broken)} is not finite in float16: the training diverged, lower its rate")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    write_json(folder / "config.json", config_of(head.config))
    write_json(folder / "PROVENANCE.json", provenance)


def config_of(config: HeadConfig) -> dict[str, Any]:
    """config.json of a head, as the official layout has it."""
    scaling = None if config.rope_factor == 1 else {"rope_type": "linear", "factor": config.rope_factor}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden,
        "intermediate_size": config.mlp,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "vocab_size": config.vocabulary,
        "draft_vocab_size": config.draft_vocabulary,
        "hidden_act": "silu",
        "torch_dtype": "float16",
    }


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a file. Raises FileNotFoundError, and ValueError for another content."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise ValueError(f"{path} holds no JSON object (cut short?): make it again, or name another folder")
    return read


def write_json(path: Path, value: Any) -> None:
    """Write JSON through a temporary file, so that a reader never sees half of it."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)
