"""The built folders alone make a session run: both mount layouts, the internet on and off, inputs left untouched."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_repro.kaggle import build as module
from eagle_repro.kaggle.metadata import read
from eagle_repro.measure.records import completeness, read_record
from eagle_repro.present import notebook
from eagle_repro.sources.paths import data_folder
from tests.kaggle.simulated import Session, contents, make_read_only, start
from tests.reading import REPOSITORY

KERNEL = read(REPOSITORY / "kaggle-metadata.json")["kernels"][0]
TARGET, HEAD = "qwen-lm/tiny/transformers/toy/1", "somebody/tiny-eagle3"
KIT = "eagle-3-reproduction-kit"
#: Where each layout mounts a model and a dataset of "me".
LAYOUTS = {
    "old": ("tiny/transformers/toy/1", "{name}"),
    "new": ("models/qwen-lm/tiny/transformers/toy/1", "datasets/me/{name}"),
}
PAIR = {"profile": "smoke", "target": TARGET, "head": HEAD, "sets": "chat,russian"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Address and commit of a repository of its own with the package as it is now."""
    place = tmp_path_factory.mktemp("upstream")
    for name in ("eagle_repro", "data"):
        shutil.copytree(REPOSITORY / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, place)
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "x"]):
        subprocess.run(["git", *command], cwd=place, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=place, check=True, capture_output=True, text=True)
    return place.as_uri(), commit.stdout.strip()


@pytest.fixture(scope="module")
def built(repository: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `kaggle build` makes, with the head of `tiny` packed."""
    place = tmp_path_factory.mktemp("built")
    head = shutil.copytree(data_folder() / "pairs" / "tiny" / "head", place / HEAD.partition("/")[2])
    (head / "LICENSE").write_text("Apache License", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "git_revision", lambda folder: repository[1])
        module.build(place / "out", owner="me", repository=repository[0], heads=[head])
    assert module.check(module.SOURCE, place / "out") == []
    return place / "out"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = start(tmp_path / "session")
    yield made
    shutil.rmtree(made.root, ignore_errors=True)  # read-only folders of a user that is no superuser


def attach(session: Session, layout: str, built: Path, *, kit: bool) -> None:
    """Mount the target, and the head inside the built dataset or, without it, as a dataset of its own."""
    model, dataset = LAYOUTS[layout]
    shutil.copytree(data_folder() / "pairs" / "tiny" / "target", session.inputs / model)
    if kit:
        shutil.copytree(built / "dataset", session.inputs / dataset.format(name=KIT))
    else:
        head = HEAD.partition("/")[2]
        shutil.copytree(built / "dataset" / "heads" / head, session.inputs / dataset.format(name=head))
    make_read_only(session.inputs)


def notebook_of(built: Path) -> Path:
    (found,) = built.glob("kernels/*/*.ipynb")
    return found


def imported_from(session: Session) -> str:
    code = "import importlib.util as u; print(getattr(u.find_spec('eagle_repro'), 'origin', None))"
    return session.call([str(session.python), "-c", code]).stdout.strip()


def errors(session: Session) -> str:
    """What the cells of the executed notebook raised."""
    cells = notebook.code_cells(notebook.read(session.working / "executed.ipynb"))
    raised = [out for cell in cells for out in cell.outputs if out.output_type == "error"]
    return "\n".join(f"{out.ename}: {out.evalue}" for out in raised)


def cut(built: Path, names: Collection[str], place: Path) -> Path:
    """The built notebook with the sections of `names` alone."""
    whole = notebook.read(notebook_of(built))
    numbers = {name[:2] for name in names}
    whole.cells = [cell for cell in whole.cells if not cell.id[:2].isdecimal() or cell.id[:2] in numbers]
    notebook.write(whole, place / "cut.ipynb")
    return place / "cut.ipynb"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "internet", "names"),
    [("new", False, KERNEL["notebooks"]), ("old", True, ["00_bench", "02_speedup", "11_report"])],
    ids=["offline", "online"],
)
def test_the_joined_notebook_runs_from_the_built_folders_alone(
    layout: str, internet: bool, names: list[str], built: Path, repository: tuple[str, str], session: Session
) -> None:
    attach(session, layout, built, kit=not internet)  # with the internet, pip has the library from its repository
    before = contents(session.inputs)
    assert imported_from(session) == "None"
    done = session.run(cut(built, names, session.root), PAIR)
    assert done.returncode == 0, done.stderr[-3000:]
    assert imported_from(session).startswith(str(session.root / "image"))
    out = session.working / "eagle_repro"
    assert [(name, completeness(out / f"{name}.jsonl")) for name in names] == [(name, "complete") for name in names]
    bench = read_record(out / "02_speedup.jsonl").header["bench"]
    model, dataset = LAYOUTS[layout]
    head = dataset.format(name="tiny-eagle3" if internet else f"{KIT}/heads/tiny-eagle3")
    found = [bench["pair"][role]["source"] for role in ("target", "head")]
    assert found == [f"Kaggle mount {model}", f"Kaggle mount {head}"]
    assert bench["git"] == f"{repository[1]} (stated)"
    assert list(out.rglob("*.png")) and list(out.rglob("*.md")) and list(out.rglob("*.html"))
    assert contents(session.inputs) == before


def test_without_dataset_and_internet_the_first_cell_says_what_to_attach(session: Session, tmp_path: Path) -> None:
    from eagle_repro.kaggle.joined import join

    nowhere = join(
        REPOSITORY / "notebooks", ["00_bench"], title="T", profile="t4", repository=(tmp_path / "gone").as_uri(),
        dataset=f"me/{KIT}", revision=None,
    )  # fmt: skip
    notebook.write(nowhere, tmp_path / "x.ipynb")
    done = session.run(tmp_path / "x.ipynb", {})
    assert done.returncode != 0
    assert f"attach the dataset me/{KIT} (Add Input), or turn the internet on" in errors(session)


def test_without_a_gpu_the_guard_says_what_to_click_before_anything_is_fetched(session: Session, built: Path) -> None:
    attach(session, "new", built, kit=True)
    done = session.run(notebook_of(built), {})  # as it is forked: profile t4
    assert done.returncode != 0
    assert "GuardRefused" in errors(session) and "GPU T4 x2" in errors(session)
    assert not list(session.home.rglob("*.safetensors")) and not list(session.working.rglob("0[1-9]_*.jsonl*"))


def test_a_session_cannot_reach_the_network(session: Session) -> None:
    code = "import urllib.request as r; r.urlopen('https://pypi.org', timeout=5)"
    assert "simulated" in session.call([str(session.python), "-c", code]).stderr
    listed: Any = json.loads(session.call([str(session.python), "-m", "pip", "list", "--format", "json"]).stdout)
    names = {package["name"].replace("-", "_") for package in listed}
    assert "torch" in names and "eagle_repro" not in names
