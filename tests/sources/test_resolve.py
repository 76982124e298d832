"""From a name to a folder: the order of the places, what each is asked, and what is said when none has it."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle_repro.sources import hubs
from eagle_repro.sources.complete import IncompleteModel
from eagle_repro.sources.hubs import Unavailable, wanted_files
from eagle_repro.sources.pairs import PAIRS, WeightRef
from eagle_repro.sources.paths import NotEnoughSpace
from eagle_repro.sources.resolve import parse_reference, resolve
from tests.sources.folders import write_head, write_target

COMMIT = "0123456789abcdef0123456789abcdef01234567"
QWEN = PAIRS["qwen3-1.7b"].target
HANDLE = "qwen-lm/qwen-3/transformers/1.7b/1"


class FakeHub:
    """huggingface_hub with one repository on the net; writes its snapshot when it is downloaded."""

    def __init__(self, cache: Path) -> None:
        self.snapshot, self.calls = cache / "snapshots" / COMMIT, list[tuple[str, dict[str, Any]]]()
        self.constants = SimpleNamespace(HF_HUB_CACHE=str(cache))
        self.sizes = {"config.json": 10, "model.safetensors": 4_000_000_000, "tokenizer.json": 100, "x.bin": 9}
        self.reachable = True

    def try_to_load_from_cache(self, repo: str, name: str, revision: str | None = None) -> str | None:
        return str(self.snapshot / name) if (self.snapshot / name).is_file() else None

    def HfApi(self) -> FakeHub:  # noqa: N802
        return self

    def model_info(self, repo: str, **options: Any) -> SimpleNamespace:
        self.calls.append(("model_info", options))
        if not self.reachable:
            raise ConnectionError("no route to the hub\nmore lines")
        siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in self.sizes.items()]
        return SimpleNamespace(sha=COMMIT, siblings=siblings)

    def snapshot_download(self, repo: str, **options: Any) -> str:
        self.calls.append(("snapshot_download", options))
        shutil.rmtree(self.snapshot, ignore_errors=True)
        return str(write_target(self.snapshot))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)  # type: ignore[arg-type]
    return fake


@pytest.fixture(autouse=True)
def kaggle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Closed places: no network, no cache of the user's; kagglehub answers once a test gives it a folder."""
    fake = SimpleNamespace(asked=[], folder=None)

    def model_download(handle: str) -> str:
        fake.asked.append(handle)
        if fake.folder is None:
            raise ValueError("kaggle does not answer")
        return str(fake.folder)

    fake.model_download = model_download
    monkeypatch.setitem(sys.modules, "kagglehub", fake)  # type: ignore[arg-type]
    monkeypatch.setenv("KAGGLE_CACHE_MOUNT_FOLDER", str(tmp_path / "input"))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "kagglehub"))
    for name in ("HF_HUB_OFFLINE", "KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_DATA_PROXY_URL"):
        monkeypatch.delenv(name, raising=False)
    return fake


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=count))


def test_local_folder_wins_and_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    folder = write_target(tmp_path / "m/transformers/1.7b/1")
    for given in (str(folder), folder, str(folder.parent)):
        found = resolve(given, "target")
        assert (found.folder, found.source, found.revision) == (folder, "folder", None)


def test_local_folder_may_look_like_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_head(tmp_path / "owner/name")
    monkeypatch.chdir(tmp_path)
    assert resolve("owner/name", "head").source == "folder"


def test_broken_local_folder_is_refused_at_once(tmp_path: Path, hub: FakeHub) -> None:
    folder = write_target(tmp_path / "t")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(IncompleteModel, match=r"model\.safetensors is empty"):
        resolve(str(folder), "target")
    with pytest.raises(ValueError, match="is a file: give the folder"):
        resolve(str(folder / "config.json"), "target")
    assert hub.calls == []


def test_packaged_weights_come_with_their_checksum() -> None:
    found = resolve(PAIRS["tiny"].head, "head")
    assert found.source == "packaged"
    assert found.sha256 == "ce0c0537ce9b75a47401f838bd77fdb0f67367bad4b95c5c172915fd8ee38ac6"


@pytest.mark.parametrize("given", [QWEN, "Qwen/Qwen3-1.7B", HANDLE, "qwen-lm/qwen-3/transformers/1.7b"])
def test_attached_model_is_taken_before_any_download(
    tmp_path: Path, hub: FakeHub, kaggle: SimpleNamespace, given: Any
) -> None:
    folder = write_target(tmp_path / "input/models/qwen-lm/qwen-3/transformers/1.7b/2")
    found = resolve(given, "target")
    assert found.folder == folder
    assert found.source == "Kaggle mount models/qwen-lm/qwen-3/transformers/1.7b/2"
    assert found.revision == "version 2"
    assert (hub.calls, kaggle.asked) == ([], [])


def test_mounts_may_lie_elsewhere(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "other/qwen-3/transformers/1.7b/1")
    assert resolve(QWEN, "target", mounts=tmp_path / "other").folder == folder


def test_kagglehub_comes_before_the_hub(tmp_path: Path, hub: FakeHub, kaggle: SimpleNamespace) -> None:
    kaggle.folder = write_target(tmp_path / "k/1")
    found = resolve(QWEN, "target")
    assert (found.folder, found.source, found.revision) == (kaggle.folder, "kagglehub", "version 1")
    assert kaggle.asked == [HANDLE]
    assert hub.calls == []


def test_hub_is_asked_last_and_its_commit_recorded(hub: FakeHub) -> None:
    found = resolve(QWEN, "target")
    assert (found.folder, found.source, found.revision) == (hub.snapshot, "Hugging Face Hub", COMMIT)
    assert found.passed_over == ("kagglehub: ValueError: kaggle does not answer",)
    assert [name for name, _ in hub.calls] == ["model_info", "snapshot_download"]
    assert all(options["token"] is False and options["revision"] == "main" for _, options in hub.calls)
    assert hub.calls[1][1]["allow_patterns"] == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_hub_id_is_not_downloaded_from_kaggle(hub: FakeHub, kaggle: SimpleNamespace) -> None:
    assert resolve("Qwen/Qwen3-1.7B", "target").source == "Hugging Face Hub"
    assert kaggle.asked == []


def test_incomplete_mount_is_passed_over_and_told(tmp_path: Path, hub: FakeHub) -> None:
    folder = write_target(tmp_path / "input/qwen3-1-7b")
    (folder / "tokenizer.json").unlink()
    found = resolve("Qwen/Qwen3-1.7B", "target")
    assert found.source == "Hugging Face Hub"
    assert "the tokenizer is missing" in found.passed_over[0]


def test_partial_snapshot_is_completed_not_taken(hub: FakeHub) -> None:
    write_target(hub.snapshot)
    (hub.snapshot / "model.safetensors").write_bytes(b"")
    assert resolve("Qwen/Qwen3-1.7B", "target").source == "Hugging Face Hub"
    with pytest.raises(FileNotFoundError, match=r"offline, and .*model\.safetensors is empty"):
        (hub.snapshot / "model.safetensors").write_bytes(b"")
        resolve("Qwen/Qwen3-1.7B", "target", offline=True)


def test_complete_snapshot_is_taken_without_asking(hub: FakeHub) -> None:
    write_target(hub.snapshot)
    found = resolve("Qwen/Qwen3-1.7B", "target")
    assert (found.source, found.revision, hub.calls) == ("Hugging Face cache", COMMIT, [])


@pytest.mark.parametrize("variable", [None, "1", "true"])
def test_offline_asks_nobody(
    hub: FakeHub, kaggle: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable:
        monkeypatch.setenv("HF_HUB_OFFLINE", variable)
    with pytest.raises(FileNotFoundError, match="kagglehub: offline.*Hugging Face Hub: offline") as error:
        resolve(QWEN, "target", offline=variable is None)
    assert "\n" not in str(error.value)
    assert (hub.calls, kaggle.asked) == ([], [])


def test_offline_finds_what_kagglehub_kept(tmp_path: Path, kaggle: SimpleNamespace) -> None:
    folder = write_target(tmp_path / "kagglehub/models/qwen-lm/qwen-3/transformers/1.7b/1")
    found = resolve(QWEN, "target", offline=True)
    assert (found.folder, found.source[:15], kaggle.asked) == (folder, "kagglehub cache", [])


def test_failure_gives_every_reason_in_one_line(hub: FakeHub) -> None:
    hub.reachable = False
    with pytest.raises(FileNotFoundError) as error:
        resolve(QWEN, "target")
    text = str(error.value)
    assert "no weights for the target Qwen/Qwen3-1.7B" in text
    assert "kaggle does not answer" in text
    assert "no route to the hub" in text
    assert "\n" not in text


def test_download_that_does_not_fit_stops_before_it_starts(
    hub: FakeHub, kaggle: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 10**9)
    with pytest.raises(NotEnoughSpace, match=r"4\.0 GB .* 1\.0 GB free"):
        resolve("Qwen/Qwen3-1.7B", "target")
    with pytest.raises(NotEnoughSpace, match=r"3\.4 GB .* 1\.0 GB free"):
        resolve(QWEN, "target")
    assert kaggle.asked == []
    assert "snapshot_download" not in [name for name, _ in hub.calls]


def test_space_is_asked_only_for_what_is_missing(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    write_target(hub.snapshot)
    (hub.snapshot / "tokenizer.json").unlink()
    free(monkeypatch, 10**6)
    assert resolve("Qwen/Qwen3-1.7B", "target").source == "Hugging Face Hub"


def test_attaching_in_a_session_needs_no_space_and_ends(
    tmp_path: Path, kaggle: SimpleNamespace, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    monkeypatch.setenv("KAGGLE_DATA_PROXY_URL", "http://127.0.0.1:9")
    free(monkeypatch, 0)
    kaggle.folder = write_target(tmp_path / "k/1")
    assert resolve(HANDLE, "target").source == "kagglehub"
    never = threading.Event()
    monkeypatch.setattr(kaggle, "model_download", lambda handle: never.wait(20))
    monkeypatch.setattr(hubs, "ATTACH_SECONDS", 0.05)
    start = time.monotonic()
    with pytest.raises(FileNotFoundError, match="attach it by hand"):
        resolve(HANDLE, "target")
    never.set()
    assert time.monotonic() - start < 5


def test_missing_kagglehub_is_a_reason_not_a_crash(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kagglehub", None)
    assert "not installed" in resolve(QWEN, "target").passed_over[0]


def test_real_cache_layout_is_read_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = write_target(tmp_path / "models--owner--name/snapshots" / COMMIT)
    (tmp_path / "models--owner--name/refs").mkdir()
    (tmp_path / "models--owner--name/refs/main").write_text(COMMIT)
    found = resolve("owner/name", "target", offline=True)
    assert (found.folder, found.revision) == (folder, COMMIT)
    with pytest.raises(FileNotFoundError, match="not in its cache"):
        resolve("owner/other", "target", offline=True)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("/no/such/folder", FileNotFoundError, "/no/such/folder does not exist"),
        ("./a/b", FileNotFoundError, "does not exist"),
        ("smollm2-135m", ValueError, "is a pair: load it by its name"),
        ("", ValueError, "neither a folder nor a hub id"),
        ("a/b/c", ValueError, "neither a folder nor a hub id"),
        ("a/b/c/d/latest", ValueError, "neither a folder nor a hub id"),
        ("a//b/c", ValueError, "neither a folder nor a hub id"),
    ],
)
def test_bad_reference_is_refused_in_one_line(text: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as error:
        resolve(text, "target")
    assert "\n" not in str(error.value)


def test_references_are_told_apart() -> None:
    assert parse_reference("Qwen/Qwen3-4B") == WeightRef(repo="Qwen/Qwen3-4B")
    assert parse_reference("a/b/c/d") == WeightRef(kaggle="a/b/c/d")
    assert parse_reference("a/b/c/d/12") == WeightRef(kaggle="a/b/c/d/12")


def test_role_is_checked() -> None:
    with pytest.raises(ValueError, match="unknown role 'draft'"):
        resolve("a/b", "draft")  # type: ignore[arg-type]


FILES = ["config.json", "README.md", "model.safetensors", "pytorch_model.bin", "tokenizer.json", "onnx/m.safetensors"]


@pytest.mark.parametrize(
    ("names", "role", "wanted"),
    [
        (FILES, "target", ["config.json", "tokenizer.json", "model.safetensors"]),
        (["config.json", "pytorch_model.bin"], "head", ["config.json", "pytorch_model.bin"]),
        (["model-1.safetensors", "consolidated.safetensors"], "target", ["model-1.safetensors"]),
        (["config.json", "eagle.safetensors"], "head", ["config.json", "eagle.safetensors"]),
    ],
)
def test_only_the_files_a_load_reads_are_fetched(names: list[str], role: Any, wanted: list[str]) -> None:
    assert sorted(wanted_files(dict.fromkeys(names, 1), role)) == sorted(wanted)


def test_repository_without_readable_weights_is_refused() -> None:
    with pytest.raises(Unavailable, match="no safetensors weights for a target"):
        wanted_files({"config.json": 1, "pytorch_model.bin": 1}, "target")
