"""What Kaggle's client would refuse, or worse, ignore, is refused here first (cases B66 and Kaggle/kaggle-cli#821)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from eagle_repro.kaggle.metadata import dataset_faults, fill, kernel_faults, placeholders, read, source_faults
from tests.reading import REPOSITORY

SOURCE = REPOSITORY / "kaggle-metadata.json"
METADATA = read(SOURCE)
KERNEL = fill(METADATA, "me", "https://example.org/me/x")["kernels"][0]
DATASET = fill(METADATA, "me", "https://example.org/me/x")["dataset"]

#: A wrong value for each field of the kernel; the fault must name the field.
WRONG_KERNEL: dict[str, list[Any]] = {
    "id": ["me", "me/ab", "me/eagle-3-speedup-belongs-to-the-bench/3", "me/Other Title", None],
    "title": ["EAGL", "Another title", "x" * 51, 7],
    "code_file": ["../x.ipynb", "notebook.py", ""],
    "language": ["Python", "julia"],
    "kernel_type": ["Notebook", "utility"],
    "is_private": ["true", 1],
    "enable_gpu": ["true", False, None],
    "enable_tpu": ["false", True],
    "enable_internet": ["true", 0],
    "machine_shape": ["NvidiaTeslaP100", "GPU T4 x2", "", None],
    "keywords": ["gpu", [1]],
    "dataset_sources": ["me/eagle-3-reproduction-kit", ["eagle-3-reproduction-kit"], ["me/kit/v1"]],
    "competition_sources": ["titanic", ["a/b"]],
    "kernel_sources": [["only-a-slug"], [5]],
    "model_sources": [["qwen-lm/qwen-3/transformers/1.7b"], ["qwen-lm/qwen-3/transformers/1.7b/v1"], ["a/b/1"]],
}
WRONG_DATASET: dict[str, list[Any]] = {
    "id": ["eagle-3-reproduction-kit", "me/kit", "me/another-name", "me/" + "x" * 51],
    "title": ["Short", "x" * 51, "Another title"],
    "subtitle": ["Too short", "x" * 81],
    "licenses": [[], [{"name": "apache-2.0"}, {"name": "other"}], [{"name": "Apache 2"}], "apache-2.0"],
    "keywords": ["nlp"],
}


def cases(wrong: dict[str, list[Any]]) -> list[Any]:
    return [pytest.param(name, value, id=f"{name}-{value}"[:60]) for name, values in wrong.items() for value in values]


def test_the_committed_metadata_keeps_every_rule_and_leaves_no_field_untested() -> None:
    assert list(source_faults(METADATA)) == []
    assert list(kernel_faults(KERNEL)) == list(dataset_faults(DATASET)) == []
    assert set(WRONG_KERNEL) == set(KERNEL) - {"notebooks", "profile"}
    assert set(WRONG_DATASET) == set(DATASET)


@pytest.mark.parametrize(("name", "value"), cases(WRONG_KERNEL))
def test_a_wrong_field_of_a_kernel_is_named(name: str, value: Any) -> None:
    faults = list(kernel_faults(KERNEL | {name: value}))
    assert any(fault.startswith(f"{name}:") or (name == "id" and "id says" in fault) for fault in faults), faults


@pytest.mark.parametrize(("name", "value"), cases(WRONG_DATASET))
def test_a_wrong_field_of_a_dataset_is_named(name: str, value: Any) -> None:
    faults = list(dataset_faults(DATASET | {name: value}))
    assert any(fault.startswith(f"{name}:") or (name == "id" and "id says" in fault) for fault in faults), faults


@pytest.mark.parametrize("name", ["id", "title", "code_file", "enable_gpu", "enable_internet", "machine_shape"])
def test_a_field_whose_default_would_surprise_must_be_there(name: str) -> None:
    assert f"{name}: missing" in list(kernel_faults({key: value for key, value in KERNEL.items() if key != name}))


def test_a_field_that_kaggle_does_not_know_is_named() -> None:
    assert any(fault.startswith("accelerator: ") for fault in kernel_faults(KERNEL | {"accelerator": "T4"}))


def test_a_fault_of_the_source_says_where() -> None:
    broken = copy.deepcopy(METADATA)
    broken["kernels"][0] |= {"dataset_sources": [], "profile": ""}
    broken["dataset"]["licenses"] = []
    broken["repository"] = "git@host:x"
    faults = list(source_faults(broken))
    starts = ("repository:", "kernels[0].profile:", "kernels[0].dataset_sources:", "dataset.licenses:")
    assert [sum(fault.startswith(start) for fault in faults) for start in starts] == [1, 1, 1, 1], faults
    assert "kernels: none" in " ".join(source_faults(METADATA | {"kernels": []}))


def test_what_a_clone_cannot_know_must_be_given() -> None:
    with pytest.raises(ValueError, match=r"kernels\[0\]\.id.*give --owner YOU and --repo URL$"):
        fill(METADATA, None, None)
    with pytest.raises(ValueError, match="OWNER in repository: give --repo URL$"):
        fill(METADATA, "me", None)
    with pytest.raises(ValueError, match="give --owner YOU$"):
        fill(METADATA, None, "https://example.org/x")
    filled = fill(METADATA, "me", "https://example.org/x")
    assert placeholders(filled) == [] and filled["repository"] == "https://example.org/x"
    assert filled["kernels"][0]["dataset_sources"] == [filled["dataset"]["id"]] == ["me/eagle-3-reproduction-kit"]
    assert METADATA["dataset"]["id"].startswith("OWNER/")


@pytest.mark.parametrize(
    ("owner", "repository"), [("OWNER", None), ("Some One", None), ("me", "me/x"), ("me", 'https://x"; import os')]
)
def test_an_owner_or_address_of_the_wrong_form_is_refused(owner: str, repository: str | None) -> None:
    with pytest.raises(ValueError, match="was given"):
        fill(METADATA, owner, repository)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"repository": "x"}', '{"repository": "", "kernels": [1], "dataset": {}}']
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kaggle-metadata.json"
    with pytest.raises(FileNotFoundError, match="run this from a checkout"):
        read(file)
    file.write_text(text)
    with pytest.raises(ValueError, match="is no JSON|needs repository"):
        read(file)


def test_the_client_gets_no_field_of_ours() -> None:
    assert json.loads(SOURCE.read_text(encoding="utf-8"))["kernels"][0]["profile"] == "t4"
    assert any("would ignore" in fault for fault in dataset_faults(DATASET | {"notebooks": []}))
