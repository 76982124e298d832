"""Reading a head: every published spelling gives the same module, and what does not fit is refused with the reason."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import eagle_repro as er
from eagle_repro import TreeShape
from eagle_repro.engine.attention import visibility
from eagle_repro.engine.checkpoint import HeadMismatch, head_config
from eagle_repro.engine.cycle import causal
from eagle_repro.engine.head import Eagle3Head, load_head
from eagle_repro.engine.target import Target
from tests.conftest import Text
from tests.models import DRAFTED, HIDDEN, LAYER, VOCABULARY, head_tensors, pair_of, save_head, save_target, tiny_target

PROMPT = [17, 300, 4, 255, 63]
TREE = TreeShape(16, 3, 4)


@torch.inference_mode()
def first_logits(head: Eagle3Head, first: int = 0) -> Tensor:
    """Log-probabilities (1, 4, D) of a head for fixed random features and tokens at positions first, first + 1, ..."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(1, 4, 3 * HIDDEN, generator=generator).to(head.fc.weight.dtype)
    tokens = torch.tensor([[3, 99, 250, 7]])
    positions = torch.arange(first, first + 4).unsqueeze(0)
    mask = visibility(torch.tensor([0]), causal(4, positions.device), 8, features.dtype)
    cache = head.cache(1, 8).at(torch.arange(4).unsqueeze(0), 8)
    return head.log_probabilities(head(head.fuse(features), tokens, positions, mask, cache))


def require_lossless(target: Target, head: Any, text: Text) -> None:
    out = er.generate(pair_of(target, head), PROMPT, shape=TREE, max_new_tokens=16, stop="never")
    assert out.ids == text(PROMPT, 16)


def refused(folder: Path, target: Target, *reasons: str, **options: Any) -> str:
    """The one-line message with which the head in `folder` is refused; it must name every reason."""
    with pytest.raises((HeadMismatch, FileNotFoundError)) as error:
        load_head(folder, target.embedding, **options)
    message = str(error.value)
    for reason in reasons:
        assert reason in message
    assert "\n" not in message
    return message


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [32, 16, 80, None])
def test_head_dim_comes_from_the_weights(declared: int | None, target: Target, head: Any, tmp_path: Path) -> None:
    loaded = load_head(save_head(tmp_path, head_dim=declared), target.embedding)
    assert loaded.config.head_dim == 32
    assert torch.equal(first_logits(loaded), first_logits(head))


@pytest.mark.parametrize("declared", [128, 80])
def test_the_published_4b_head_has_32_heads_of_128_for_a_hidden_size_of_2560(declared: int) -> None:
    sizes = {
        "fc": (2560, 7680),
        "lm_head": (32000, 2560),
        "midlayer.self_attn.q_proj": (4096, 5120),
        "midlayer.self_attn.k_proj": (1024, 5120),
        "midlayer.mlp.gate_proj": (9728, 2560),
    }
    tensors = {f"{name}.weight": torch.empty(size, device="meta") for name, size in sizes.items()}
    config = head_config(
        tensors, {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": declared}, 2560, 151936
    )
    assert (config.heads, config.kv_heads, config.head_dim) == (32, 8, 128)


def test_heads_that_do_not_divide_the_projections_are_refused(target: Target, tmp_path: Path) -> None:
    for changes in ({"num_attention_heads": 5}, {"num_key_value_heads": 3}, {"num_attention_heads": None}):
        refused(save_head(tmp_path, **changes), target, "q_proj is (128, 128)", "k_proj (64, 128)")


def test_a_head_for_another_hidden_size_is_refused_with_both(target: Target, tmp_path: Path) -> None:
    refused(save_head(tmp_path, head_tensors(hidden=48)), target, "(48, 144)", "(64, 192)", "hidden size 64")


def test_an_eagle_1_head_is_refused_for_its_two_inputs(target: Target, tmp_path: Path) -> None:
    tensors = head_tensors()
    tensors["fc.weight"] = torch.zeros(HIDDEN, 2 * HIDDEN)
    refused(save_head(tmp_path, tensors), target, "fc.weight is (64, 128)", "(64, 192)")


@pytest.mark.parametrize("name", ["lm_head", "norm", LAYER + "mlp.down_proj", LAYER + "self_attn.o_proj"])
def test_any_tensor_of_another_size_is_refused_by_name(name: str, target: Target, tmp_path: Path) -> None:
    tensors = head_tensors()
    tensors[f"{name}.weight"] = tensors[f"{name}.weight"][..., :-1].contiguous()
    refused(save_head(tmp_path, tensors), target, name)


def test_a_config_of_another_kind_of_head_is_refused(target: Target, tmp_path: Path) -> None:
    refused(save_head(tmp_path, num_hidden_layers=2), target, "one layer")
    refused(save_head(tmp_path, hidden_act="gelu"), target, "silu")
    refused(save_head(tmp_path, draft_vocab_size=100), target, "128 rows", "100")


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("spelling", ["midlayer.", "layers.0.", "model.midlayer.", "model.layers.0."])
def test_every_spelling_of_the_layer_loads_to_the_same_head(
    spelling: str, file: str, target: Target, head: Eagle3Head, tmp_path: Path
) -> None:
    tensors = {re.sub("^midlayer[.]", spelling, name): tensor for name, tensor in head_tensors().items()}
    loaded = load_head(save_head(tmp_path, tensors, file), target.embedding)
    assert torch.equal(first_logits(loaded), first_logits(head))


def test_a_target_given_as_a_head_is_refused_naming_what_a_head_has(target: Target, target_folder: Path) -> None:
    refused(target_folder, target, "not an EAGLE-3 head", "fc.weight", "midlayer.hidden_norm.weight")


@pytest.mark.parametrize("name", ["fc.weight", "lm_head.weight", LAYER + "self_attn.k_proj.weight"])
def test_a_missing_tensor_is_named(name: str, target: Target, tmp_path: Path) -> None:
    tensors = head_tensors()
    del tensors[name]
    refused(save_head(tmp_path, tensors), target, f"missing {name}")


def test_a_tensor_that_no_head_has_is_named_and_a_stored_rotary_table_is_not(target: Target, tmp_path: Path) -> None:
    extra = {**head_tensors(), LAYER + "self_attn.q_norm.weight": torch.ones(32)}
    refused(save_head(tmp_path, extra), target, "unexpected midlayer.self_attn.q_norm.weight")
    table = {**head_tensors(), LAYER + "self_attn.rotary_emb.inv_freq": torch.ones(16)}
    load_head(save_head(tmp_path, table), target.embedding)


def test_one_tensor_under_two_spellings_is_refused(target: Target, tmp_path: Path) -> None:
    twice = {**head_tensors(), "model.norm.weight": torch.ones(HIDDEN)}
    refused(save_head(tmp_path, twice), target, "norm.weight twice")


# --- vocabulary map --------------------------------------------------------------------------------------------------


def test_d2t_holds_offsets_so_that_drafts_are_target_ids(target: Target, head: Eagle3Head) -> None:
    out = er.generate(
        pair_of(target, head), PROMPT, shape=TreeShape(60, 7, 10), max_new_tokens=12, stop="never", record_trees=True
    )
    drafted = torch.cat([cycle.tree.tokens[0, 1:] for cycle in out.cycles if cycle.tree])
    assert len(drafted) == 59 * len(out.cycles)
    assert (drafted % 3 == 0).all() and drafted.max() <= 3 * (DRAFTED - 1)
    assert (drafted >= DRAFTED).any(), "draft ids were taken for target ids"


def test_a_reduced_vocabulary_without_its_map_is_refused(target: Target, tmp_path: Path) -> None:
    tensors = head_tensors()
    del tensors["d2t"]
    refused(save_head(tmp_path, tensors), target, "d2t is missing", "128 of 512")


def test_maps_that_disagree_are_refused(target: Target, tmp_path: Path) -> None:
    more, moved, outside, double, short = (head_tensors() for _ in range(5))
    more["t2d"][1] = True
    moved["t2d"][0], moved["t2d"][1] = False, True
    outside["d2t"][-1] = VOCABULARY
    double["d2t"][1] = double["d2t"][0] - 1
    short["d2t"] = short["d2t"][:-1].clone()
    refused(save_head(tmp_path, more), target, "t2d marks 129")
    refused(save_head(tmp_path, moved), target, "t2d marks 128")
    refused(save_head(tmp_path, outside), target, "d2t does not map")
    refused(save_head(tmp_path, double), target, "d2t does not map")
    refused(save_head(tmp_path, short), target, "d2t has shape (127,)")


def test_a_head_without_t2d_gets_it_from_d2t(target: Target, head: Eagle3Head, tmp_path: Path) -> None:
    tensors = head_tensors()
    del tensors["t2d"]
    assert torch.equal(load_head(save_head(tmp_path, tensors), target.embedding).t2d, head.t2d)


def test_a_head_over_the_whole_vocabulary_needs_no_map(target: Target, tmp_path: Path, text: Text) -> None:
    whole = head_tensors(drafted=VOCABULARY)
    bare = load_head(save_head(tmp_path / "bare", whole, draft_vocab_size=None), target.embedding)
    zeros = {**whole, "d2t": torch.zeros(VOCABULARY, dtype=torch.long)}
    mapped = load_head(save_head(tmp_path / "zeros", zeros, draft_vocab_size=VOCABULARY), target.embedding)
    ids = torch.arange(VOCABULARY)
    assert torch.equal(bare.to_target(ids), ids) and torch.equal(mapped.to_target(ids), ids)
    assert torch.equal(first_logits(bare), first_logits(mapped))
    require_lossless(target, bare, text)


# --- embeddings and biases -------------------------------------------------------------------------------------------


def test_a_head_without_embeddings_uses_the_targets_own_storage(target: Target, head: Eagle3Head) -> None:
    assert head.embedding.data_ptr() == target.model.get_input_embeddings().weight.data_ptr()
    assert not any(parameter.shape[0] == VOCABULARY for parameter in head.parameters())


def test_a_head_with_embeddings_uses_its_own(target: Target, head: Eagle3Head, tmp_path: Path, text: Text) -> None:
    own = torch.zeros(VOCABULARY, HIDDEN)
    loaded = load_head(save_head(tmp_path, {**head_tensors(), "embed_tokens.weight": own}), target.embedding)
    assert torch.equal(loaded.embedding, own)
    assert not torch.allclose(first_logits(loaded), first_logits(head), atol=1e-3)
    require_lossless(target, loaded, text)
    same = {**head_tensors(), "embed_tokens.weight": target.embedding.clone()}
    assert torch.equal(first_logits(load_head(save_head(tmp_path, same), target.embedding)), first_logits(head))


def test_embeddings_for_another_vocabulary_are_refused(target: Target, tmp_path: Path) -> None:
    small = {**head_tensors(), "embed_tokens.weight": torch.zeros(100, HIDDEN)}
    refused(save_head(tmp_path, small), target, "embed_tokens")


def test_nothing_is_left_at_random(target: Target, tmp_path: Path) -> None:
    folder = save_head(tmp_path)
    torch.manual_seed(1)
    one = load_head(folder, target.embedding)
    torch.manual_seed(2)
    two = load_head(folder, target.embedding)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name]), name
    assert torch.equal(first_logits(one), first_logits(two))


def test_fc_has_a_bias_just_when_the_file_has_one(target: Target, head: Eagle3Head, tmp_path: Path) -> None:
    assert head.fc.bias is None
    biased = {**head_tensors(), "fc.bias": torch.ones(HIDDEN)}
    loaded = load_head(save_head(tmp_path, biased), target.embedding)
    features = torch.randn(1, 3, 3 * HIDDEN, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loaded.fuse(features), head.fuse(features) + 1.0)


def test_attention_biases_of_the_file_are_used(target: Target, head: Eagle3Head, tmp_path: Path) -> None:
    biased = {**head_tensors(), LAYER + "self_attn.o_proj.bias": torch.full((HIDDEN,), 0.5)}
    loaded = load_head(save_head(tmp_path, biased), target.embedding)
    assert not torch.allclose(first_logits(loaded), first_logits(head), atol=1e-3)


# --- rotary positions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 12345, "rope_scaling": None},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 12345.0, "rope_type": "default"}},
        {"rope_theta": None, "rope_scaling": {"rope_theta": 12345, "rope_type": "default"}},
        {"rope_theta": 12345, "rope_scaling": {"type": "default"}},
    ],
    ids=["transformers 4", "transformers 5", "a mixture", "named default"],
)
def test_every_spelling_of_the_rotary_base_gives_it(spelling: dict[str, Any], target: Target, tmp_path: Path) -> None:
    loaded = load_head(save_head(tmp_path, **spelling), target.embedding)
    assert loaded.config.rope_theta == 12345
    assert loaded.inv_freq[0] == 1.0
    assert float(loaded.inv_freq[1]) == pytest.approx(12345 ** (-2 / 32), rel=1e-6)


def test_a_head_that_says_nothing_has_the_base_it_was_trained_with(target: Target, tmp_path: Path) -> None:
    assert load_head(save_head(tmp_path, rope_theta=None), target.embedding).config.rope_theta == 10000


def test_the_base_can_be_set_by_hand_and_changes_drafts_alone(
    target: Target, head: Eagle3Head, tmp_path: Path, text: Text
) -> None:
    by_hand = load_head(save_head(tmp_path), target.embedding, rope_theta=12345)
    assert by_hand.config.rope_theta == 12345
    assert not torch.allclose(first_logits(by_hand), first_logits(head), atol=1e-4)
    require_lossless(target, by_hand, text)


@pytest.mark.parametrize("theta", [0, -1, float("nan"), float("inf"), "10000"])
def test_a_base_that_is_no_positive_number_is_refused(theta: Any, target: Target, tmp_path: Path) -> None:
    refused(save_head(tmp_path / "file", rope_theta=theta), target, "rotary base")
    refused(save_head(tmp_path / "hand"), target, "rotary base", rope_theta=theta)


@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_linear_scaling_stretches_positions(kind: str, target: Target, head: Eagle3Head, tmp_path: Path) -> None:
    scaled = load_head(save_head(tmp_path, rope_scaling={kind: "linear", "factor": 4.0}), target.embedding)
    torch.testing.assert_close(400 * scaled.inv_freq, 100 * head.inv_freq)
    assert scaled.config.rope_theta == 1000000


@pytest.mark.parametrize("kind", ["llama3", "yarn", "dynamic", "longrope"])
def test_other_scaling_is_refused_and_never_dropped(kind: str, target: Target, tmp_path: Path) -> None:
    refused(save_head(tmp_path, rope_scaling={"rope_type": kind, "factor": 4.0}), target, kind)
    refused(save_head(tmp_path, rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}), target, kind)


@pytest.mark.parametrize("factor", [None, 0, "4"])
def test_linear_scaling_without_a_factor_is_refused(factor: Any, target: Target, tmp_path: Path) -> None:
    refused(save_head(tmp_path, rope_scaling={"type": "linear", "factor": factor}), target, "factor")


# --- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_head_is_widened_to_a_float32_target(
    dtype: torch.dtype, target: Target, tmp_path: Path, text: Text
) -> None:
    halved = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in head_tensors().items()
    }
    loaded = load_head(save_head(tmp_path, halved), target.embedding)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert torch.equal(loaded.fc.weight, halved["fc.weight"].float())
    require_lossless(target, loaded, text)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_float32_head_follows_a_half_precision_target_with_exact_rotary_frequencies(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    target = Target(tiny_target(layers=4).to(dtype))
    loaded = load_head(save_head(tmp_path), target.embedding)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    assert loaded.inv_freq.dtype == torch.float32
    out = er.generate(pair_of(target, loaded), PROMPT, shape=TREE, max_new_tokens=12, stop="never")
    assert er.lossless.check(pair_of(target, loaded), PROMPT, out.ids).ok


def test_weights_that_overflow_the_dtype_are_refused_by_name(tmp_path: Path) -> None:
    tensors = head_tensors()
    tensors[LAYER + "mlp.up_proj.weight"][0, 0] = 70000.0
    folder = save_head(tmp_path, tensors)
    embedding = torch.zeros(VOCABULARY, HIDDEN)
    with pytest.raises(HeadMismatch, match=r"midlayer\.mlp\.up_proj\.weight.*not finite in float16: use float32"):
        load_head(folder, embedding.half())
    load_head(folder, embedding.bfloat16())


def test_weights_that_are_not_finite_in_the_file_are_called_damaged(tmp_path: Path) -> None:
    tensors = head_tensors()
    tensors["fc.weight"][0, 0] = math.nan
    with pytest.raises(HeadMismatch, match=r"fc\.weight of the head in .* is not finite: the file is damaged, get it"):
        load_head(save_head(tmp_path, tensors), torch.zeros(VOCABULARY, HIDDEN))


# --- damaged and hostile files ---------------------------------------------------------------------------------------


class Hostile:
    """Unpickling this makes a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.trace,)


def test_code_in_a_pickled_head_does_not_run(target: Target, target_folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    folder = save_head(tmp_path / "head", {**head_tensors(), "extra": Hostile(trace)}, "pytorch_model.bin")
    refused(folder, target, "pytorch_model.bin holds more than plain tensors")
    with pytest.raises(ValueError, match="holds more than plain tensors"):
        er.load_pair(target=str(target_folder), head=str(folder), device="cpu")
    assert not trace.exists()
    with pytest.raises(FileNotFoundError, match="never read from a pickle"):
        pickled = save_target(tmp_path / "target", target.model)
        (pickled / "model.safetensors").unlink()
        torch.save({"x": Hostile(trace)}, pickled / "pytorch_model.bin")
        er.load_pair(target=str(pickled), head=str(save_head(tmp_path / "good")), device="cpu")
    assert not trace.exists()
    load_trustingly = partial(torch.load, weights_only=False)  # what the loader must never do
    load_trustingly(folder / "pytorch_model.bin")
    assert trace.exists(), "the pickle was meant to be dangerous"


def test_a_pickle_of_something_else_is_refused(target: Target, tmp_path: Path) -> None:
    refused(save_head(tmp_path / "a", {"fc.weight": 3}, "pytorch_model.bin"), target, "not a table of tensors")
    folder = save_head(tmp_path / "b", None, "pytorch_model.bin")
    whole = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    refused(folder, target, "pytorch_model.bin", "damaged")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_cut_safetensors_file_is_named(share: float, target: Target, target_folder: Path, tmp_path: Path) -> None:
    folder = save_head(tmp_path)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    refused(folder, target, "cannot read the head")
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        er.load_pair(target=str(target_folder), head=str(folder), device="cpu")


def test_missing_files_and_a_broken_config_are_refused(target: Target, tmp_path: Path) -> None:
    refused(tmp_path / "nothing", target, "no config.json")
    folder = save_head(tmp_path / "head")
    (folder / "config.json").write_text("[1, 2")
    refused(folder, target, "cannot read the head")
    (folder / "config.json").write_text("[1, 2]")
    refused(folder, target, "config.json")
    (save_head(folder) / "model.safetensors").unlink()
    refused(folder, target, "no model.safetensors or pytorch_model.bin")
