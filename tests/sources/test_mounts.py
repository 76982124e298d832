"""Kaggle inputs are found under both conventions, by handle or by slug, at the right version (case B69)."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_repro.sources.mounts import download_root, find_file, find_mounted, model_folder, mount_root, slug
from eagle_repro.sources.pairs import PAIRS, WeightRef
from tests.sources.folders import write_target

QWEN = PAIRS["qwen3-1.7b"].target
HEAD = PAIRS["qwen3-1.7b"].head


@pytest.mark.parametrize(
    "place",
    [
        "qwen-3/transformers/1.7b/1",
        "models/qwen-lm/qwen-3/transformers/1.7b/1",
        "qwen-3/Transformers/1.7B/1",
        "qwen3-1-7b",
        "datasets/somebody/qwen3-1-7b",
        "datasets/somebody/qwen3-1-7b/Qwen3-1.7B",
        "models/somebody/qwen3-1-7b/transformers/default/3",
    ],
)
def test_target_is_found_wherever_it_is_attached(tmp_path: Path, place: str) -> None:
    folder = write_target(tmp_path / place)
    write_target(tmp_path / "models/qwen-lm/qwen-3/transformers/4b/1")
    write_target(tmp_path / "models/another-owner/qwen-3/transformers/1.7b/1")
    write_target(tmp_path / "qwen-3/transformers/0.6b/1")
    assert find_mounted(QWEN, tmp_path) == [folder]


@pytest.mark.parametrize(
    "place",
    [
        "qwen3-1-7b-eagle3",
        "datasets/me/Qwen3-1.7B_eagle3",
        "datasets/me/qwen3-1-7b-eagle3",
        "eagle-3-reproduction-kit/heads/Qwen3-1.7B_eagle3",
        "datasets/me/eagle-3-reproduction-kit/heads/Qwen3-1.7B_eagle3",
    ],
)
def test_head_is_found_by_its_slug(tmp_path: Path, place: str) -> None:
    folder = write_target(tmp_path / place)
    assert find_mounted(HEAD, tmp_path) == [folder]


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert find_mounted(QWEN, tmp_path) == []
    assert find_mounted(QWEN, tmp_path / "absent") == []


def test_named_version_wins_and_else_the_newest(tmp_path: Path) -> None:
    base = tmp_path / "models/qwen-lm/qwen-3/transformers/1.7b"
    for number in (2, 9, 10):
        write_target(base / str(number))
    handle = "qwen-lm/qwen-3/transformers/1.7b"
    assert find_mounted(WeightRef(kaggle=f"{handle}/9"), tmp_path) == [base / "9"]
    assert find_mounted(WeightRef(kaggle=f"{handle}/1"), tmp_path) == [base / "10"]
    assert find_mounted(WeightRef(kaggle=handle), tmp_path) == [base / "10"]


@pytest.mark.parametrize("above", range(5))
def test_model_folder_is_found_from_its_parents(tmp_path: Path, above: int) -> None:
    folder = write_target(tmp_path / "in/m/transformers/1.7b/1")
    (tmp_path / "in/m/transformers/.hidden").mkdir()
    given = [folder, *folder.parents][above]
    assert model_folder(given) == folder


def test_several_models_below_are_not_guessed_between(tmp_path: Path) -> None:
    write_target(tmp_path / "m/transformers/1.7b/1")
    write_target(tmp_path / "m/transformers/4b/1")
    with pytest.raises(ValueError, match=r"several folders \(1\.7b, 4b\)"):
        model_folder(tmp_path / "m")


def test_empty_folder_stays_itself(tmp_path: Path) -> None:
    assert model_folder(tmp_path) == tmp_path
    assert model_folder(tmp_path / "absent") == tmp_path / "absent"


@pytest.mark.parametrize("place", ["kit", "datasets/me/kit"])
def test_a_file_of_an_attached_dataset_is_found_under_both_conventions(tmp_path: Path, place: str) -> None:
    assert find_file("questions/a.jsonl", tmp_path) is None
    file = tmp_path / place / "questions" / "a.jsonl"
    file.parent.mkdir(parents=True)
    file.touch()
    (tmp_path / "questions").mkdir()
    (tmp_path / "questions" / "a.jsonl").touch()  # of no dataset
    assert find_file("questions/a.jsonl", tmp_path) == file


def test_roots_follow_the_variables_of_kagglehub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KAGGLE_CACHE_MOUNT_FOLDER", raising=False)
    assert mount_root() == Path("/kaggle/input")
    monkeypatch.setenv("KAGGLE_CACHE_MOUNT_FOLDER", str(tmp_path / "in"))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "cache"))
    assert (mount_root(), download_root()) == (tmp_path / "in", tmp_path / "cache")


def test_slug_is_kaggles_spelling() -> None:
    assert slug("Qwen3-1.7B_eagle3") == "qwen3-1-7b-eagle3"
