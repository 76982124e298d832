"""Loading a pair: what it gives, and one clear line for what cannot be loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import eagle_repro as er
from eagle_repro import TreeShape
from eagle_repro.engine.devices import resolve_dtype
from eagle_repro.engine.target import Target
from eagle_repro.sources.complete import weights_sha256
from eagle_repro.sources.paths import data_folder
from tests.conftest import Text
from tests.models import save_head, save_target, tiny_target

PROMPT = [17, 300, 4, 255, 63]
TREE = TreeShape(16, 3, 4)


@pytest.fixture(scope="module")
def head_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_head(tmp_path_factory.mktemp("head"))


# --- loading ---------------------------------------------------------------------------------------------------------


def test_a_pair_of_folders_loads_and_writes_the_targets_text(
    target_folder: Path, head_folder: Path, text: Text
) -> None:
    pair = er.load_pair(target=str(target_folder), head=str(head_folder), device="cpu", max_length=64)
    assert (pair.device, pair.dtype, pair.stack, pair.max_length) == ("cpu", "float32", "eager", 64)
    assert er.generate(pair, PROMPT, shape=TREE, max_new_tokens=12, stop="never").ids == text(PROMPT, 12)
    assert pair.tokenizer("t5 t7").input_ids == [5, 7]


def test_the_provenance_of_a_pair_is_plain_data_without_folders(target_folder: Path, head_folder: Path) -> None:
    pair = er.load_pair(target=str(target_folder), head=str(head_folder), device="cpu")
    told = json.dumps(pair.provenance)
    assert str(target_folder.parent) not in told and str(head_folder.parent) not in told
    weights = sum(p.numel() for p in pair.target.model.parameters())
    assert pair.provenance["target"]["parameters"] == weights
    assert pair.provenance["target"]["weight_bytes"] == 4 * weights  # tied: the table is read as the output layer
    assert pair.provenance["head"]["draft_vocabulary"] == 128
    assert pair.provenance["head"]["sha256"] == weights_sha256(head_folder)
    assert pair.provenance["head"]["rope_theta"] == 1000000.0


def test_an_untied_embedding_table_is_not_read_by_a_pass(head_folder: Path, tmp_path: Path) -> None:
    folder = save_target(tmp_path, tiny_target(layers=4, tie_word_embeddings=False))
    told = er.load_pair(target=str(folder), head=str(head_folder), device="cpu").provenance["target"]
    assert told["weight_bytes"] == 4 * (told["parameters"] - 512 * 64)


def test_a_read_only_folder_is_enough(target_folder: Path, head_folder: Path, tmp_path: Path) -> None:
    folders = [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in (target_folder, head_folder)]
    for folder in folders:
        for path in (*folder.iterdir(), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(path.name for folder in folders for path in folder.iterdir())
    pair = er.load_pair(target=str(folders[0]), head=str(folders[1]), device="cpu")
    assert len(er.generate(pair, PROMPT, shape=TREE, max_new_tokens=4, stop="never").ids) == 4
    assert sorted(path.name for folder in folders for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    "names",
    [{}, {"name": "tiny", "target": "a", "head": "b"}, {"target": "a"}, {"head": "b"}],
)
def test_half_a_pair_is_refused(names: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"a pair is a name, .*; .* was given\. Known pairs: .*tiny") as refusal:
        er.load_pair(**names)
    assert all(f"({value})" in str(refusal.value) for value in names.values())


def test_a_named_pair_takes_another_head(tmp_path: Path) -> None:
    """The same target, the same text; only the cycles are those of the other head."""
    own = er.load_pair("tiny", device="cpu")
    deaf = load_file(data_folder() / "pairs/tiny/head/model.safetensors")
    shutil.copytree(data_folder() / "pairs/tiny/head", tmp_path / "deaf")
    save_file(deaf | {"fc.weight": torch.zeros_like(deaf["fc.weight"])}, tmp_path / "deaf/model.safetensors")
    other = er.load_pair("tiny", head=str(tmp_path / "deaf"), device="cpu")
    assert other.name == "tiny + deaf" and other.provenance["target"] == own.provenance["target"]
    assert other.provenance["head"]["sha256"] != own.provenance["head"]["sha256"]
    prompt = own.tokenizer("Once upon a time").input_ids
    texts = [er.generate(pair, prompt, shape=TREE, max_new_tokens=16, stop="never") for pair in (own, other)]
    assert texts[0].ids == texts[1].ids and texts[0].tau > texts[1].tau


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": "smolm2"}, "unknown pair 'smolm2'"),
        ({"device": "gpu"}, "device='gpu' is not known"),
        ({"device": "cpu:7"}, "device='cpu:7' is not here: there is one CPU"),
        ({"device": "cuda:99"}, "device='cuda:99' is not here"),
        ({"device": None}, "device=None is not known"),
        ({"dtype": "fp16"}, "dtype='fp16' is not known"),
        ({"dtype": torch.float16}, "is not known: use auto, float32"),
        ({"stack": "fast"}, "stack='fast' is not known"),
        ({"max_length": 1}, "max_length must be a whole number of at least 2, got 1"),
        ({"max_length": True}, "max_length must be a whole number"),
        ({"max_length": 2048.0}, "max_length must be a whole number"),
    ],
    ids=lambda value: str(value),
)
def test_impossible_settings_are_refused_before_anything_is_resolved(
    options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle_repro.api.resolve", lambda *_, **__: pytest.fail("weights were looked for"))
    with pytest.raises(ValueError) as error:
        er.load_pair(**{"name": "tiny", **options})
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_the_head_is_found_before_the_larger_target_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resolve(ref: Any, role: str) -> Any:
        asked.append(role)
        raise FileNotFoundError("not there")

    monkeypatch.setattr("eagle_repro.api.resolve", resolve)
    with pytest.raises(FileNotFoundError):
        er.load_pair("tiny", device="cpu")
    assert asked == ["head"]


# --- targets that cannot be loaded -----------------------------------------------------------------------------------


def changed_weights(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def refused(folder: Path, head_folder: Path, **options: Any) -> str:
    with pytest.raises(ValueError) as error:
        er.load_pair(target=str(folder), head=str(head_folder), device="cpu", **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_target_that_lacks_a_tensor_is_refused_by_name(target: Target, head_folder: Path, tmp_path: Path) -> None:
    name = "model.layers.3.mlp.up_proj.weight"
    folder = changed_weights(save_target(tmp_path, target.model), lambda tensors: tensors.pop(name))
    assert f"do not fill {name}" in refused(folder, head_folder)


def test_a_target_with_a_tensor_of_another_size_is_refused_by_name(
    target: Target, head_folder: Path, tmp_path: Path
) -> None:
    name = "model.layers.3.mlp.up_proj.weight"
    cut = lambda tensors: tensors.update({name: tensors[name][:10].clone()})  # noqa: E731
    folder = changed_weights(save_target(tmp_path, target.model), cut)
    assert f"do not fill {name}" in refused(folder, head_folder)


def test_a_target_whose_weights_overflow_the_dtype_is_refused(
    target: Target, head_folder: Path, tmp_path: Path
) -> None:
    name = "model.layers.3.mlp.up_proj.weight"
    large = lambda tensors: tensors[name].view(-1)[:1].fill_(1e6)  # noqa: E731
    folder = changed_weights(save_target(tmp_path, target.model), large)
    assert "not finite" in refused(folder, head_folder, dtype="float16")
    er.load_pair(target=str(folder), head=str(head_folder), device="cpu")


def test_models_of_other_kinds_are_refused_in_one_line(target_folder: Path, head_folder: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    t5 = {"d_model": 64, "d_ff": 64, "num_layers": 4, "num_heads": 4, "d_kv": 16}
    others = {
        "gpt2": transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=512, n_embd=64, n_layer=4, n_head=4, bos_token_id=1, eos_token_id=2)
        ),
        "t5": transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=512, **t5)),
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=512, **sizes)),
    }
    for name, model in others.items():
        message = refused(save_target(tmp_path / name, model), head_folder)
        assert "rotary positions" in message or "cannot load the target" in message


def test_code_that_comes_with_a_model_does_not_run(
    target_folder: Path, head_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # what transformers would ask, someone would answer
    folder, trace = Path(shutil.copytree(target_folder, tmp_path / "model")), tmp_path / "it ran"
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "other", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Config: pass\nclass Model: pass\n")
    assert "cannot load the target" in refused(folder, head_folder)
    assert not trace.exists()


# --- dtype -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "dtype"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)]
)
def test_dtype_goes_by_compute_capability_and_not_by_emulation(
    capability: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    card = torch.device("cuda:0")
    assert resolve_dtype("auto", card) == dtype
    assert resolve_dtype("auto", card, preferred="float16") == torch.float16
    assert resolve_dtype("float32", card) == torch.float32
    assert resolve_dtype("float16", card, preferred="float32") == torch.float16


def test_bfloat16_weights_are_cast_for_a_card_that_has_no_bfloat16(
    target: Target, head_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = changed_weights(
        save_target(tmp_path, target.model),
        lambda tensors: tensors.update({name: each.bfloat16() for name, each in tensors.items()}),
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
        chosen = str(resolve_dtype("auto", torch.device("cuda:0"))).removeprefix("torch.")
    pair = er.load_pair(target=str(folder), head=str(head_folder), device="cpu", dtype=chosen)
    assert pair.dtype == "float16" and pair.target.dtype == torch.float16
    assert {each.dtype for each in pair.head.parameters()} == {torch.float16}
    assert er.generate(pair, PROMPT, shape=TREE, max_new_tokens=4, stop="never").ids


def test_bfloat16_is_refused_where_it_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    with pytest.raises(ValueError, match='needs compute capability 8.0.*use "float16"'):
        resolve_dtype("bfloat16", torch.device("cuda:0"))


def test_a_cpu_computes_in_float32_unless_told_otherwise() -> None:
    assert resolve_dtype("auto", torch.device("cpu"), preferred="float16") == torch.float32
    assert resolve_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16
