"""Building what goes to Kaggle, and checking what was built.

OUT/kernels/SLUG/   kernel-metadata.json and one notebook: `kaggle kernels push -p` takes the folder
OUT/dataset/        dataset-metadata.json, wheel, question sets, heads: `kaggle datasets create -r zip -p` takes it
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_repro.__about__ import __version__
from eagle_repro.kaggle import metadata as rules
from eagle_repro.kaggle.joined import join
from eagle_repro.measure.bench import git_revision
from eagle_repro.present import notebook
from eagle_repro.sources.complete import IncompleteModel, check_complete
from eagle_repro.sources.paths import PACKAGE, in_units
from eagle_repro.sources.questions import SETS, QuestionSet, available, load_questions, question_file

CHECKOUT = PACKAGE.parent
SOURCE = CHECKOUT / "kaggle-metadata.json"
KERNEL_FILE, DATASET_FILE = "kernel-metadata.json", "dataset-metadata.json"
#: Licences under which copies of a question set may be handed on with their notice; Alpaca's forbids commercial use.
FREE = ("Apache-2.0", "MIT")
LARGEST_NOTEBOOK = 1_000_000  # bytes; Kaggle's editor refuses more
LARGEST_DATASET = 20_000_000_000  # bytes; far above a head, and what a session's disk holds


@dataclass(frozen=True)
class Built:
    """What was built: the folders of the kernels, the dataset's folder, and the question sets and heads in it."""

    kernels: tuple[Path, ...]
    dataset: Path
    sets: tuple[str, ...]
    heads: tuple[str, ...]


def build(out: Path, *, owner: str | None, repository: str | None, heads: Sequence[Path] = ()) -> Built:
    """Make the folders of all kernels and of the dataset in `out`, replacing what an earlier build left there.

    heads: folders with a head and its licence, packed for sessions without the internet. Raises, before anything is
    written, ValueError for a placeholder that is left, metadata that break a rule, a head without a licence, or an
    `out` that holds something else; FileNotFoundError outside a checkout; RuntimeError when no wheel can be built.
    """
    filled = rules.fill(rules.read(SOURCE), owner, repository)
    faults = list(rules.source_faults(filled))
    if faults:
        raise ValueError(f"kaggle-metadata.json: {'; '.join(faults)}")
    for head in heads:
        _require_head(head)
    _clear(out)
    dataset = out / "dataset"
    dataset.mkdir(parents=True)
    build_wheel(dataset)
    shutil.copy(CHECKOUT / "LICENSE", dataset)
    sets = _pack_sets(dataset / "questions")
    for head in heads:
        shutil.copytree(head, dataset / "heads" / head.resolve().name, ignore=shutil.ignore_patterns(".*"))
    _write_json(dataset / DATASET_FILE, _described(filled["dataset"], dataset))
    kernels = tuple(_build_kernel(out / "kernels", kernel, filled) for kernel in filled["kernels"])
    return Built(kernels, dataset, sets, tuple(head.resolve().name for head in heads))


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into `folder`, with what is installed here alone (no download).

    Raises RuntimeError with pip's last line.
    """
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    found = sorted(folder.glob("eagle_repro-*.whl"))
    if done.returncode or not found:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"pip built no wheel ({said}): pip and hatchling are needed here (make install)")
    return found[0]


def check(source: Path, out: Path | None) -> list[str]:
    """What is wrong with kaggle-metadata.json, and with the folders of a build in `out` where one is named.

    One line a fault, led by the file. Raises FileNotFoundError where `out` holds no build.
    """
    faults = [f"{source.name}: {fault}" for fault in rules.source_faults(rules.read(source))]
    if out is not None:
        kernels = sorted(out.glob(f"kernels/*/{KERNEL_FILE}"))
        if not kernels or not (out / "dataset" / DATASET_FILE).is_file():
            raise FileNotFoundError(f"{out} holds no build: make one with kaggle build --out {out}")
        dataset = _read_json(out / "dataset" / DATASET_FILE)
        for file in kernels:
            faults += [f"{file.relative_to(out)}: {fault}" for fault in _kernel_faults(file, dataset.get("id"))]
        faults += [f"dataset/{DATASET_FILE}: {fault}" for fault in _dataset_faults(out / "dataset", dataset)]
    return faults


def _build_kernel(folder: Path, kernel: dict[str, Any], filled: dict[str, Any]) -> Path:
    place = folder / kernel["id"].partition("/")[2]
    place.mkdir(parents=True)
    joined = join(
        CHECKOUT / "notebooks",
        kernel["notebooks"],
        title=kernel["title"],
        profile=kernel["profile"],
        repository=filled["repository"],
        dataset=filled["dataset"]["id"],
        revision=git_revision(PACKAGE),
    )
    notebook.write(joined, place / kernel["code_file"])
    own = {name: value for name, value in kernel.items() if name not in rules.OWN_FIELDS}
    _write_json(place / KERNEL_FILE, own)
    return place


def _require_head(folder: Path) -> None:
    """Refuse what cannot be packed: an incomplete head, or one whose licence is not beside it."""
    try:
        check_complete(folder, "head")
    except IncompleteModel as error:
        raise ValueError(f"--head: {error}") from None
    if not any(folder.glob("LICENSE*")):
        raise ValueError(f"--head {folder}: a copy needs its licence; put the text of it there as LICENSE")


def _clear(out: Path) -> None:
    """Make room in `out` for a build. Raises ValueError if anything but an earlier build is there."""
    foreign = sorted(path.name for path in out.glob("*") if path.name not in ("kernels", "dataset"))
    if foreign:
        raise ValueError(f"{out} holds {foreign[0]}, which no build made: name an empty folder")
    for name, mark in (("kernels", f"*/{KERNEL_FILE}"), ("dataset", "eagle_repro-*.whl")):
        if (out / name).exists() and any((out / name).iterdir()) and not any((out / name).glob(mark)):
            raise ValueError(f"{out / name} is of no earlier build: name an empty folder")
    for name in ("kernels", "dataset"):
        shutil.rmtree(out / name, ignore_errors=True)


def _pack_sets(folder: Path) -> tuple[str, ...]:
    """Copy the question sets that the wheel lacks, that are on this machine, and whose licence lets them go along."""
    packed = [info for name, info in SETS.items() if info.external and info.licence in FREE and available(name)]
    for info in packed:
        load_questions(info.name, offline=True)  # a changed file is refused here and not in a session
        (folder / info.file).parent.mkdir(parents=True)
        shutil.copy(question_file(info.name), folder / info.file)
    if packed:
        (folder / "SOURCES.txt").write_text("".join(map(_credit, packed)), encoding="utf-8")
    return tuple(info.name for info in packed)


def _credit(info: QuestionSet) -> str:
    return f"{info.file}: {info.path} of {info.repository} at commit {info.commit}, {info.licence}\n"


def _described(dataset: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The dataset's metadata with what is in it; a head of another licence than ours makes the whole one `other`."""
    lines = ["The library eagle_repro as a wheel (Apache-2.0), with its own question sets and heads."]
    foreign = False
    for head in sorted(folder.glob("heads/*")):
        apache = any("Apache License" in file.read_text(encoding="utf-8") for file in head.glob("LICENSE*"))
        foreign |= not apache
        lines.append(f"heads/{head.name}: {'Apache-2.0' if apache else 'under the licence beside it'}.")
    if (sources := folder / "questions" / "SOURCES.txt").is_file():
        lines += [f"questions/{line}." for line in sources.read_text(encoding="utf-8").splitlines()]
    return dataset | {"description": "\n\n".join(lines)} | ({"licenses": [{"name": "other"}]} if foreign else {})


def _kernel_faults(file: Path, dataset: str | None) -> Iterator[str]:
    kernel = _read_json(file)
    yield from rules.kernel_faults(kernel)
    if dataset not in (kernel.get("dataset_sources") or ()):
        yield f"dataset_sources: {dataset}, which carries the library, is not among them"
    yield from (f"{name}: still a placeholder" for name in rules.placeholders(kernel))
    code = file.parent / str(kernel.get("code_file"))
    if not code.is_file():
        yield f"code_file: {code.name} is not in the folder"
        return
    if code.stat().st_size > LARGEST_NOTEBOOK:
        yield f"code_file: {in_units(code.stat().st_size)}, at most {in_units(LARGEST_NOTEBOOK)} can be uploaded"
    try:
        notebook.require_parameter(notebook.read(code), "OVERRIDES", code.name)
    except ValueError as error:
        yield f"code_file: {' '.join(str(error).split())}"


def _dataset_faults(folder: Path, dataset: dict[str, Any]) -> Iterator[str]:
    yield from rules.dataset_faults(dataset)
    yield from (f"{name}: still a placeholder" for name in rules.placeholders(dataset))
    files = [path for path in folder.rglob("*") if path.is_file()]
    wheels = [path.name for path in folder.glob("eagle_repro-*.whl")]
    if len(wheels) != 1 or not wheels[0].startswith(f"eagle_repro-{__version__}-"):
        yield f"one wheel of eagle_repro {__version__} is needed, here is {', '.join(wheels) or 'none'}"
    if not (folder / "LICENSE").is_file():
        yield "LICENSE is not in the folder"
    yield from (
        f"{head.name}: a head without its licence" for head in folder.glob("heads/*") if not [*head.glob("LICENSE*")]
    )
    for info in SETS.values():
        if info.licence not in FREE and any(path.as_posix().endswith(f"questions/{info.file}") for path in files):
            yield f"questions/{info.file}: its licence ({info.licence}) does not let it go along"
    if (size := sum(path.stat().st_size for path in files)) > LARGEST_DATASET:
        yield f"{in_units(size)}, at most {in_units(LARGEST_DATASET)} are meant to be uploaded"


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}): build it again") from None
    return found if isinstance(found, dict) else {}


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
