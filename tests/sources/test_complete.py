"""A folder that is not whole is refused before anything is loaded, and the message names the file (case B67)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eagle_repro.sources.complete import IncompleteModel, Role, check_complete
from eagle_repro.sources.pairs import PAIRS
from eagle_repro.sources.paths import data_folder
from tests.sources.folders import INDEX, SHARDS, write_head, write_sharded, write_target


def delete(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1000\n")


def longer(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def test_whole_folders_pass(tmp_path: Path) -> None:
    check_complete(write_target(tmp_path / "one"), "target")
    check_complete(write_sharded(tmp_path / "two"), "target")
    check_complete(write_head(tmp_path / "head"), "head")


@pytest.mark.parametrize("damage", [delete, empty])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_or_empty_file_is_named(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    folder = write_target(tmp_path / "t")
    damage(folder / name)
    with pytest.raises(IncompleteModel, match=name.replace(".", r"\.")):
        check_complete(folder, "target")


@pytest.mark.parametrize("damage", [delete, empty, cut, pointer, longer])
@pytest.mark.parametrize("shard", SHARDS)
def test_each_broken_shard_is_named(tmp_path: Path, shard: str, damage: Callable[[Path], None]) -> None:
    folder = write_sharded(tmp_path / "t")
    damage(folder / shard)
    with pytest.raises(IncompleteModel, match=shard.replace(".", r"\.")):
        check_complete(folder, "target")


@pytest.mark.parametrize("role", ["target", "head"])
@pytest.mark.parametrize("damage", [delete, empty, cut])
def test_broken_index_is_named(tmp_path: Path, damage: Callable[[Path], None], role: Role) -> None:
    folder = write_sharded(tmp_path / "t")
    damage(folder / INDEX)
    with pytest.raises(IncompleteModel, match=r"safetensors\.index\.json (is missing|is empty|holds no JSON object)"):
        check_complete(folder, role)


def test_every_cut_of_a_weight_file_is_found(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "h")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(IncompleteModel, match=r"model\.safetensors"):
            check_complete(folder, "head")


def test_shard_without_a_tensor_of_the_index_is_named(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "t")
    text = (folder / INDEX).read_text().replace('"w1"', '"w2"')
    (folder / INDEX).write_text(text)
    with pytest.raises(IncompleteModel, match=f"{SHARDS[1]} lacks 1 tensors of the index, w2"):
        check_complete(folder, "target")


def test_only_a_head_may_be_a_bin_file(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "t")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    check_complete(folder, "head")
    with pytest.raises(IncompleteModel, match="never read from a pickle file"):
        check_complete(folder, "target")


@pytest.mark.parametrize("name", ["vocab.json merges.txt", "tokenizer.model"])
def test_other_tokenizer_files_serve(tmp_path: Path, name: str) -> None:
    folder = write_target(tmp_path / "t")
    (folder / "tokenizer.json").unlink()
    for part in name.split():
        (folder / part).write_text("x")
    check_complete(folder, "target")


def test_check_writes_nothing(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "t")
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}
    folder.chmod(0o555)
    check_complete(folder, "target")
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]} == before
    folder.chmod(0o755)


def test_committed_weights_are_whole() -> None:
    for pair in PAIRS.values():
        for role in ("target", "head"):
            ref = getattr(pair, role)
            if ref.folder:
                check_complete(data_folder() / ref.folder, role)
