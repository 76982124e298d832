"""Tiny targets, heads and drafters, in memory and on disk: the whole engine without weights, GPU or network."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from eagle_repro.api import Pair
from eagle_repro.engine.attention import SlotCache
from eagle_repro.engine.head import Eagle3Head, load_head
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.target import Target
from tests.engine.tiny import ARCHITECTURES

VOCABULARY, HIDDEN, DRAFTED = 512, 64, 128
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}  # 4 * 32 is not the hidden size
LAYER = "midlayer."


def tiny_target(family: str = "qwen3", *, layers: int = 8, seed: int = 0, **changes: Any) -> Any:
    """A random transformers model in float32 whose greedy text varies and has few near-ties. changes: config fields."""
    configuration, model = ARCHITECTURES[family]
    sizes = ATTENTION if family != "qwen2" else {**ATTENTION, "head_dim": None}
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": layers,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": VOCABULARY - 1,
        "pad_token_id": None,
        "initializer_range": 0.2,
        **{name: value for name, value in sizes.items() if value is not None},
        **changes,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = model(configuration(**settings))
        for name, parameter in made.named_parameters():  # biases start at zero, where they would test nothing
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=0.2)
    return made.float().eval().requires_grad_(False)


def save_target(folder: Path, model: Any) -> Path:
    """A target's folder as a hub has it: config, safetensors and a tokenizer of the words t0, t1, and so on."""
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(model.config.vocab_size)}, unk_token="t0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0").save_pretrained(folder)
    return folder


def head_tensors(
    hidden: int = HIDDEN, drafted: int = DRAFTED, vocabulary: int = VOCABULARY, seed: int = 1
) -> dict[str, Tensor]:
    """A random head in the official layout, without an embedding of its own; draft id i means target id 3 * i."""
    generator = torch.Generator().manual_seed(seed)
    queries = ATTENTION["num_attention_heads"] * ATTENTION["head_dim"]
    keys = ATTENTION["num_key_value_heads"] * ATTENTION["head_dim"]
    sizes = {
        "fc": (hidden, 3 * hidden),
        "lm_head": (drafted, hidden),
        f"{LAYER}self_attn.q_proj": (queries, 2 * hidden),
        f"{LAYER}self_attn.k_proj": (keys, 2 * hidden),
        f"{LAYER}self_attn.v_proj": (keys, 2 * hidden),
        f"{LAYER}self_attn.o_proj": (hidden, queries),
        f"{LAYER}mlp.gate_proj": (2 * hidden, hidden),
        f"{LAYER}mlp.up_proj": (2 * hidden, hidden),
        f"{LAYER}mlp.down_proj": (hidden, 2 * hidden),
    }
    norms = ["norm", *(LAYER + name for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"))]
    tensors = {f"{name}.weight": torch.randn(size, generator=generator) * 0.1 for name, size in sizes.items()}
    tensors |= {f"{name}.weight": torch.ones(hidden) for name in norms}
    drafts = torch.arange(drafted)
    if drafted < vocabulary:
        tensors["d2t"] = 2 * drafts
        tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool)
        tensors["t2d"][3 * drafts] = True
    return tensors


def head_settings(**changes: Any) -> dict[str, Any]:
    """config.json of head_tensors(), with the fields that published heads have. A change to None drops the field."""
    settings = {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        **ATTENTION,
        "num_hidden_layers": 1,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": DRAFTED,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        **changes,
    }
    return {name: value for name, value in settings.items() if value is not None or name not in changes}


def save_head(
    folder: Path, tensors: dict[str, Any] | None = None, file: str = "model.safetensors", **changes: Any
) -> Path:
    """A head's folder: the tensors (head_tensors() by default) in `file`, and head_settings(**changes)."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = head_tensors() if tensors is None else tensors
    if file.endswith(".safetensors"):
        save_file(tensors, folder / file)
    else:
        torch.save(tensors, folder / file)
    (folder / "config.json").write_text(json.dumps(head_settings(**changes)), encoding="utf-8")
    return folder


def tiny_head(target: Target, seed: int = 1) -> Eagle3Head:
    """A random head for a target of the tiny sizes, through the loader that users' heads go through."""
    with tempfile.TemporaryDirectory() as folder:
        return load_head(save_head(Path(folder), head_tensors(seed=seed)), target.embedding)


def pair_of(target: Target, head: Any, max_length: int = 512) -> Pair:
    """Target and head as load_pair would hand them out on a CPU."""
    return Pair("tiny random", target, head, None, "cpu", str(target.dtype).removeprefix("torch."), "eager", max_length)


def stock_text(model: Any, prompt: list[int], count: int) -> list[int]:
    """The next `count` greedy ids by transformers' own generate: what every loop must write."""
    tokens = torch.tensor([prompt])
    out = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


@torch.inference_mode()
def stock_choices(model: Any, prompt: list[int], ids: list[int]) -> list[int]:
    """What the stock model would write after prompt + ids[:i], for every i: equal to ids just when ids are its text."""
    logits = model(torch.tensor([prompt + ids[:-1]]), use_cache=False).logits
    return logits[0, len(prompt) - 1 :].argmax(dim=-1).tolist()


class Drafter(nn.Module):
    """Stands in for Eagle3Head and knows the text: after position i it drafts token i + 2 at a rank of its choosing.

    text: prompt and continuation, longer than what is decoded. rank(position): 0 proposes the text's own token first,
    r behind r others, None never. A hidden state is just the position.
    """

    def __init__(self, text: list[int], rank: Callable[[int], int | None], vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.text, self.rank = text, rank
        self.config = SimpleNamespace(draft_vocabulary=vocabulary)

    def cache(self, batch: int, slots: int) -> SlotCache:
        return SlotCache(1, batch, slots, 1, 2, torch.float32, "cpu")

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        return positions.unsqueeze(-1).float()

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        positions = hidden[..., 0].long()
        rows = [self._scores(position) for position in positions.flatten().tolist()]
        return torch.stack(rows).unflatten(0, positions.shape).log_softmax(dim=-1)

    def _scores(self, position: int) -> Tensor:
        vocabulary, rank = self.config.draft_vocabulary, self.rank(position)
        scores = -4.0 * ((torch.arange(vocabulary) + position) % vocabulary)  # another order at every position
        scores[self.text[position + 2]] = -1e6 if rank is None else 2.0 - 4.0 * rank
        return scores

    def to_target(self, draft_ids: Tensor) -> Tensor:
        return draft_ids


def oracle(text: list[int]) -> Drafter:
    """Always drafts the text itself first."""
    return Drafter(text, lambda position: 0)


def wrong(text: list[int]) -> Drafter:
    """Never drafts the text's next token."""
    return Drafter(text, lambda position: None)


def uneven(text: list[int]) -> Drafter:
    """Drafts the text's token at ranks 0, 0, 1, 0, 4, never, ...: accepted paths of every length, through branches."""
    ranks = (0, 0, 1, 0, 4, None, 0, 2)
    return Drafter(text, lambda position: ranks[position % len(ranks)])


def room(shape: TreeShape) -> int:
    """How far beyond the emitted text a Drafter may be asked to look."""
    return shape.levels + 2
