"""What goes to Kaggle is built from this checkout alone, and what must not go there is kept out."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import eagle_repro
from eagle_repro.cli import main
from eagle_repro.cli.arguments import build_parser
from eagle_repro.kaggle import build as module
from eagle_repro.kaggle.build import DATASET_FILE, KERNEL_FILE, SOURCE, build, check
from eagle_repro.present import notebook
from eagle_repro.sources.paths import data_folder
from eagle_repro.sources.questions import SETS

WHO = {"owner": "me", "repository": "https://example.org/me/eagle_repro"}
NAME = "eagle-3-speedup-belongs-to-the-bench"


def head_of(folder: Path, licence: str) -> Path:
    """The head of the pair `tiny` with a licence beside it."""
    shutil.copytree(data_folder() / "pairs" / "tiny" / "head", folder)
    (folder / "LICENSE").write_text(licence, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build with one packed head. Shared: copy it to change it."""
    place = tmp_path_factory.mktemp("kaggle")
    head = head_of(place / "tiny-eagle3", "Apache License\nVersion 2.0")
    build(place / "out", heads=[head], **WHO)
    return place / "out"


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds take no time: an empty file stands for the wheel."""
    monkeypatch.setattr(module, "build_wheel", lambda folder: (folder / "eagle_repro-0-py3-none-any.whl").touch())


def test_a_build_keeps_every_rule(out: Path) -> None:
    assert check(SOURCE, out) == []
    kernel = json.loads((out / "kernels" / NAME / KERNEL_FILE).read_text(encoding="utf-8"))
    assert kernel["id"] == f"me/{NAME}" and not {"notebooks", "profile"} & set(kernel)
    assert sorted(path.name for path in (out / "kernels" / NAME).iterdir()) == [f"{NAME}.ipynb", KERNEL_FILE]
    assert "OWNER" not in (out / "kernels" / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8")


def test_the_dataset_has_wheel_licence_and_head_with_its_licence(out: Path) -> None:
    dataset = out / "dataset"
    (wheel,) = dataset.glob("*.whl")
    assert wheel.name.startswith(f"eagle_repro-{eagle_repro.__version__}-")
    inside = zipfile.ZipFile(wheel).namelist()
    assert "eagle_repro/kaggle/joined.py" in inside and "eagle_repro/data/questions/russian.jsonl" in inside
    assert {path.name for path in (dataset / "heads" / "tiny-eagle3").iterdir()} >= {"LICENSE", "model.safetensors"}
    described = json.loads((dataset / DATASET_FILE).read_text(encoding="utf-8"))
    assert described["licenses"] == [{"name": "apache-2.0"}] and "tiny-eagle3: Apache-2.0" in described["description"]


@pytest.mark.usefixtures("no_wheel")
def test_a_head_of_another_licence_makes_the_dataset_say_other(tmp_path: Path) -> None:
    head = head_of(tmp_path / "head", "Ask us first.")
    for _ in range(2):  # a second build replaces the first
        build(tmp_path / "out", heads=[head], **WHO)
    described = json.loads((tmp_path / "out" / "dataset" / DATASET_FILE).read_text(encoding="utf-8"))
    assert described["licenses"] == [{"name": "other"}] and "under the licence beside it" in described["description"]


@pytest.mark.usefixtures("no_wheel")
def test_sets_go_along_by_their_licence_and_alpaca_never_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for info in SETS.values():
        if info.external:
            (tmp_path / "sets" / info.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "sets" / info.file).write_text(f"{info.name}\n", encoding="utf-8")
    monkeypatch.setenv("EAGLE_REPRO_SETS", str(tmp_path / "sets"))
    read = []
    monkeypatch.setattr(module, "load_questions", lambda name, offline: read.append((name, offline)))
    built = build(tmp_path / "out", **WHO)
    assert built.sets == ("mt_bench", "humaneval", "gsm8k") and read == [(name, True) for name in built.sets]
    questions = tmp_path / "out" / "dataset" / "questions"
    assert (questions / SETS["gsm8k"].file).read_text(encoding="utf-8") == "gsm8k\n"
    assert not list((tmp_path / "out").rglob("*alpaca*"))
    assert "gsm8k/question.jsonl: " in (questions / "SOURCES.txt").read_text(encoding="utf-8")
    monkeypatch.undo()
    monkeypatch.setenv("EAGLE_REPRO_SETS", str(tmp_path / "sets"))
    with pytest.raises(ValueError, match="mt_bench"):  # a set that is not what the manifest says
        build(tmp_path / "again", **WHO)


@pytest.mark.usefixtures("no_wheel")
def test_what_cannot_be_built_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = head_of(tmp_path / "bare", "x")
    (bare / "LICENSE").unlink()
    cut = head_of(tmp_path / "cut", "x")
    (cut / "model.safetensors").write_bytes(b"")
    for options, said in (
        ({"owner": None}, "--owner YOU"),
        ({"heads": [bare]}, "LICENSE"),
        ({"heads": [cut]}, "model.safetensors is empty"),
    ):
        with pytest.raises(ValueError, match=said):
            build(tmp_path / "out", **(WHO | options))  # type: ignore[arg-type]
    broken = json.loads(SOURCE.read_text(encoding="utf-8"))
    broken["kernels"][0]["machine_shape"] = "NvidiaTeslaP100"
    monkeypatch.setattr(module, "SOURCE", tmp_path / "kaggle-metadata.json")
    module.SOURCE.write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(ValueError, match="machine_shape.*P100"):
        build(tmp_path / "out", **WHO)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize("name", ["photo.jpg", "dataset/photo.jpg", "kernels/mine/x.ipynb"])
def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match="empty folder"):
        build(tmp_path, **WHO)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]


def test_a_wheel_that_cannot_be_built_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    with pytest.raises(RuntimeError, match=r"pip built no wheel \(.*hatchling are needed"):
        module.build_wheel(tmp_path)


def spoil(out: Path, file: str, **fields: Any) -> None:
    """Change fields of a built metadata file."""
    path = out / file
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")


def test_a_spoilt_build_is_told_fault_by_fault(out: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(out, tmp_path / "out")
    kernel = f"kernels/{NAME}"
    spoil(copy, f"{kernel}/{KERNEL_FILE}", machine_shape="NvidiaTeslaP100", id=f"OWNER/{NAME}", dataset_sources=[])
    spoil(copy, f"dataset/{DATASET_FILE}", subtitle="short")
    code = notebook.read(copy / kernel / f"{NAME}.ipynb")
    notebook.code_cells(code)[0].metadata = {}
    notebook.write(code, copy / kernel / f"{NAME}.ipynb")
    next((copy / "dataset").glob("*.whl")).unlink()
    (copy / "dataset" / "LICENSE").unlink()
    (copy / "dataset" / "heads" / "tiny-eagle3" / "LICENSE").unlink()
    (copy / "dataset" / "questions" / "alpaca").mkdir(parents=True)
    (copy / "dataset" / "questions" / "alpaca" / "question.jsonl").touch()
    faults = "\n".join(check(SOURCE, copy))
    for said in (
        "machine_shape", "id: still a placeholder", "0 cells tagged parameters", "subtitle", "is needed, here is none",
        "dataset_sources: me/eagle-3-reproduction-kit, which carries the library",
        "LICENSE is not", "a head without its licence", "its licence (CC-BY-NC-4.0)",
    ):  # fmt: skip
        assert said in faults, said
    (copy / kernel / f"{NAME}.ipynb").unlink()
    assert "is not in the folder" in "\n".join(check(SOURCE, copy))
    (copy / kernel / KERNEL_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="is no JSON .*build it again"):
        check(SOURCE, copy)
    with pytest.raises(FileNotFoundError, match="holds no build"):
        check(SOURCE, tmp_path)


@pytest.mark.parametrize("step", ["build", "check"])
def test_each_step_has_help_with_an_example_that_parses(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["kaggle", step, "--help"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "python -m eagle_repro" in line]
    assert lines
    for line in lines:
        words = line.split("python -m eagle_repro ")[1].split()
        assert words[:2] == ["kaggle", step] and build_parser().parse_args(words).verb.__name__ == step


def test_the_verbs_build_and_check(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["kaggle", "build", "--out", str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert "give --owner YOU and --repo URL" in said and said.count("\n") == 1
    assert main(["kaggle", "check", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["faults"] == []
    copy = shutil.copytree(out, tmp_path / "out")
    spoil(copy, f"dataset/{DATASET_FILE}", title="x")
    assert main(["kaggle", "check", str(copy)]) == 1
    assert "dataset/dataset-metadata.json: title" in capsys.readouterr().out
    monkeypatch.setattr(module, "build_wheel", lambda folder: (folder / "eagle_repro-0-py3-none-any.whl").touch())
    assert main(["kaggle", "build", "--owner", "me", "--repo", "https://x.org/y", "--out", str(tmp_path / "x")]) == 0
    assert f"kernel:  {tmp_path / 'x' / 'kernels' / NAME}" in capsys.readouterr().out
