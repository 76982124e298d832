"""Values of the wrong kind are refused in one line, before they reach a kernel."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import eagle_repro as er
from eagle_repro.engine.checkpoint import HeadMismatch
from eagle_repro.engine.head import load_head
from tests.reading import REPOSITORY

TINY_HEAD = REPOSITORY / "data" / "pairs" / "tiny" / "head"
EMBEDDING = torch.zeros(512, 64)


def copied(folder: Path, **settings: Any) -> Path:
    shutil.copytree(TINY_HEAD, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | settings), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_attention_heads", value) for value in ("4", [1], {"a": 1}, -4, True, 0)),
        *(("num_key_value_heads", value) for value in ({"a": 1}, -2, "2")),
        *(("rms_norm_eps", value) for value in ("x", -4, 3, [1], None, True)),
        *(("rope_scaling", value) for value in ([1], "linear")),
        ("rope_theta", 10**400),
        ("rope_theta", True),
    ],
)
def test_a_config_value_of_the_wrong_kind_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(HeadMismatch):
        load_head(copied(tmp_path / "head", **{name: value}), EMBEDDING)


@pytest.mark.parametrize("name", ["fc.weight", "lm_head.weight", "norm.weight", "midlayer.mlp.gate_proj.weight", "d2t"])
@pytest.mark.parametrize("change", ["quantised", "scalar"])
def test_a_tensor_that_is_not_a_plain_weight_is_refused_by_name(tmp_path: Path, name: str, change: str) -> None:
    folder = copied(tmp_path / "head")
    tensors = load_file(folder / "model.safetensors")
    other = torch.float32 if name == "d2t" else torch.int8
    tensors[name] = tensors[name].to(other) if change == "quantised" else torch.tensor(1.0)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(HeadMismatch, match=name):
        load_head(folder, EMBEDDING)


@pytest.mark.parametrize(
    "options", [{"temperature": "1"}, {"temperature": None}, {"temperature": True}, {"top_p": "a"}]
)
def test_sampling_of_the_wrong_kind_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        er.Sampling(**options)


def test_a_tree_deeper_than_any_text_is_refused() -> None:
    pair = er.load_pair("tiny", device="cpu")
    with pytest.raises(ValueError, match="cache slots"):
        er.generate(pair, [3, 4, 5], shape=er.TreeShape(60, 100_000, 1), max_new_tokens=6)


@pytest.mark.parametrize("gap", ["a", float("nan"), float("inf"), -1, True])
def test_a_gap_that_excuses_anything_is_refused(gap: Any) -> None:
    pair = er.load_pair("tiny", device="cpu")
    with pytest.raises(ValueError, match="max_gap"):
        er.lossless.check(pair, [3, 4, 5], [0] * 5, max_gap=gap)


@pytest.mark.parametrize("device", ["cuda:x", "cpu:-1"])
def test_a_device_that_torch_cannot_read_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="is not known"):
        er.load_pair("tiny", device=device)
