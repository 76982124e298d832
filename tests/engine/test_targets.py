"""Which models the engine drives: stock decoders with rotary attention exactly, and others not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import eagle_repro as er
from eagle_repro import TreeShape
from eagle_repro.engine.attention import TREE_ATTENTION, visibility
from eagle_repro.engine.cycle import causal
from eagle_repro.engine.target import Target, UnsupportedTarget
from tests.models import HIDDEN, pair_of, stock_text, tiny_head, tiny_target, uneven

PROMPT = [17, 300, 4, 255, 63]
TREE = TreeShape(24, 3, 5)


def require_driven_exactly(model: Any, count: int = 16) -> None:
    """Proof, plain, eagle with a head that is sometimes right, eagle with a random head: all the stock text."""
    target = Target(model)
    target.prove()
    text = stock_text(model, PROMPT, count + 10)
    for head in (uneven(PROMPT + text), tiny_head(target)):
        out = er.generate(pair_of(target, head), PROMPT, shape=TREE, max_new_tokens=count, stop="never")
        assert out.ids == text[:count]
    out = er.generate(pair_of(target, None), PROMPT, method="plain", max_new_tokens=count, stop="never")
    assert out.ids == text[:count]


# --- families --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_each_family_is_driven_exactly_with_tied_and_untied_embeddings(family: str, tied: bool) -> None:
    model = tiny_target(family, layers=5, tie_word_embeddings=tied)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    require_driven_exactly(model)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_attention_biases_are_driven_exactly(family: str) -> None:
    model = tiny_target(family, layers=4, **({} if family == "qwen2" else {"attention_bias": True}))
    assert model.model.layers[0].self_attn.q_proj.bias.abs().max() > 0.1
    require_driven_exactly(model)


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_one_shared_key_head_and_one_per_query_head_work(kv_heads: int) -> None:
    require_driven_exactly(tiny_target(layers=4, num_key_value_heads=kv_heads))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_models_own_attention_setting_does_not_matter(attention: str) -> None:
    model = tiny_target(layers=4, attn_implementation=attention)
    require_driven_exactly(model)
    assert model.config._attn_implementation == attention


# Other stock decoders that differ where it could matter: fused projections, partial rotary, parallel blocks, experts.
OTHERS: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": None},
    "Phi3": {},
    "Phi": {},
    "Gemma": {"head_dim": 16},
    "Olmo2": {},
    "Glm": {"head_dim": 16},
    "SmolLM3": {},
    "Qwen3Moe": {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
}


def made(name: str, **settings: Any) -> Any:
    """A tiny random model of a transformers class pair NAMEConfig / NAMEForCausalLM."""
    sizes = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": 511,
    }
    config = getattr(transformers, f"{name}Config")(**{**sizes, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"{name}ForCausalLM")(config).float().eval().requires_grad_(False)


@pytest.mark.parametrize("name", OTHERS)
def test_other_plain_decoders_are_driven_exactly(name: str) -> None:
    model = made(name, **OTHERS[name])
    target = Target(model)
    target.prove()
    text = stock_text(model, PROMPT, 26)
    out = er.generate(pair_of(target, uneven(PROMPT + text)), PROMPT, shape=TREE, max_new_tokens=16, stop="never")
    assert out.ids == text[:16]


# --- rotary scaling --------------------------------------------------------------------------------------------------

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_rotary_scaling_that_is_fixed_is_driven_exactly(kind: str, family: str) -> None:
    scaling = {"rope_type": kind, "rope_theta": 10000.0, **SCALINGS[kind]}
    scaled, plain = tiny_target(family, layers=4, rope_parameters=scaling), tiny_target(family, layers=4)
    assert stock_text(scaled, PROMPT * 8, 16) != stock_text(plain, PROMPT * 8, 16), "the scaling was meant to matter"
    require_driven_exactly(scaled)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_scaling_that_follows_the_length_is_refused(kind: str) -> None:
    factors = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16} if kind == "longrope" else {}
    scaling = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **factors}
    scaling["original_max_position_embeddings"] = 64
    with pytest.raises(UnsupportedTarget, match=kind):
        Target(tiny_target("llama", layers=4, rope_parameters=scaling))


# --- feature taps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "taps"), [(4, (2, 2, 1)), (6, (2, 3, 3)), (8, (2, 4, 5)), (28, (2, 14, 25)), (36, (2, 18, 33))]
)
def test_features_are_the_inputs_of_layers_2_half_and_last_but_two(layers: int, taps: tuple[int, ...]) -> None:
    target = Target(tiny_target(layers=layers))
    assert target.taps == taps
    tokens = torch.tensor([PROMPT])
    mask = visibility(torch.tensor([0]), causal(5, tokens.device), 8, torch.float32)
    positions = torch.arange(5).unsqueeze(0)
    with torch.inference_mode():
        _, features = target.forward(tokens, positions, mask, target.cache(1, 8).at(positions, 8))
        states = target.model(tokens, output_hidden_states=True, use_cache=False).hidden_states
    assert features is not None and features.shape == (1, 5, 3 * HIDDEN)
    torch.testing.assert_close(features, torch.cat([states[tap] for tap in taps], dim=-1), atol=1e-4, rtol=1e-4)


def test_small_targets_whose_taps_coincide_work_and_smaller_ones_are_refused() -> None:
    for layers in (4, 6):
        require_driven_exactly(tiny_target(layers=layers), count=8)
    with pytest.raises(UnsupportedTarget, match="3 layers"):
        Target(tiny_target(layers=3))


# --- refused ---------------------------------------------------------------------------------------------------------


def bert() -> Any:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=512, **sizes))


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=512, n_embd=64, n_layer=4, n_head=4))


def t5() -> Any:
    sizes = {"d_model": 64, "d_ff": 64, "num_layers": 4, "num_heads": 4, "d_kv": 16}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=512, **sizes))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "gpt2": (gpt2, "rotary positions"),
    "t5": (t5, "rotary positions"),
    "bert": (bert, "causal language model|rotary positions"),
    "a bare module": (lambda: torch.nn.Linear(3, 3), "causal language model"),
    "qwen2 with windows": (
        lambda: tiny_target("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=2),
        "sliding",
    ),
    "mistral with windows": (lambda: made("Mistral", sliding_window=4096), "sliding_window"),
    "phi3 with windows": (lambda: made("Phi3", sliding_window=128), "sliding_window"),
    "gemma2": (lambda: made("Gemma2", head_dim=16), "sliding|softcap"),
    "gemma2 without windows": (
        lambda: made("Gemma2", head_dim=16, layer_types=["full_attention"] * 4),
        "softcap",
    ),
    "granite": (lambda: made("Granite", logits_scaling=8.0), "logits_scaling"),
    "cohere": (lambda: made("Cohere"), "logit_scale"),
    "deepseek": (lambda: made("DeepseekV3"), "DeepseekV3ForCausalLM cannot run a tree pass"),
    "gpt-neox": (lambda: made("GPTNeoX"), "GPTNeoXForCausalLM cannot run a tree pass"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_would_be_got_wrong_are_refused_in_one_line(name: str) -> None:
    build, reason = REFUSED[name]
    model = build()
    with pytest.raises(UnsupportedTarget, match=reason) as error:
        Target(model.eval()).prove()
    assert "\n" not in str(error.value)


# --- the proof -------------------------------------------------------------------------------------------------------


def replacing(**replaced: Callable[[Tensor], Any]) -> Any:
    """A forward pre-hook that replaces keyword arguments in a tree pass and leaves the stock pass alone."""

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if module.config._attn_implementation == TREE_ATTENTION:
            kwargs = {**kwargs, **{name: make(kwargs[name]) for name, make in replaced.items()}}
        return args, kwargs

    return hook


def sees_all(mask: Tensor) -> Tensor:
    return torch.zeros_like(mask)


def sees_the_past(mask: Tensor) -> Tensor:
    nodes, span = 6, mask.shape[-1]
    row = torch.full((nodes, span), torch.finfo(mask.dtype).min).triu(1)
    return row.repeat(mask.shape[-2] // nodes, 1).expand_as(mask)


def sees_booleans(mask: Tensor) -> Tensor:
    return (mask == 0).to(mask.dtype)  # 0 / 1 instead of 0 / -inf


@pytest.mark.parametrize("fault", [sees_all, sees_the_past, sees_booleans, lambda mask: None])
@pytest.mark.parametrize("layers", [[0], [3], [0, 1, 2, 3]], ids=["first", "last", "all"])
def test_the_proof_catches_a_model_that_ignores_the_mask(fault: Callable[[Tensor], Any], layers: list[int]) -> None:
    target = Target(tiny_target(layers=4))
    target.prove()
    for layer in layers:
        hook = replacing(attention_mask=fault)
        target.decoder.layers[layer].self_attn.register_forward_pre_hook(hook, with_kwargs=True)
    with pytest.raises(UnsupportedTarget, match="ignores masks|cannot run a tree pass"):
        target.prove()


def test_the_proof_catches_a_model_that_counts_positions_itself() -> None:
    target = Target(tiny_target(layers=4))

    def count(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        kwargs = {name: value for name, value in kwargs.items() if name != "position_ids"}
        return (args[0], torch.arange(args[0].shape[1]).unsqueeze(0)), kwargs

    target.decoder.rotary_emb.register_forward_pre_hook(count, with_kwargs=True)
    with pytest.raises(UnsupportedTarget, match="ignores masks, positions"):
        target.prove()


def test_the_proof_catches_logits_that_are_not_finite() -> None:
    model = tiny_target(layers=4)
    model.model.layers[1].mlp.up_proj.weight.fill_(float("inf"))
    with pytest.raises(UnsupportedTarget, match="not finite"):
        Target(model).prove()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_the_proof_holds_in_every_dtype(family: str, dtype: torch.dtype) -> None:
    Target(tiny_target(family, layers=8).to(dtype)).prove()
