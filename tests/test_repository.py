"""What holds for every file of the repository: no path of one machine, no unsafe loading, readable sizes."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reading import REPOSITORY, syntax_tree

LARGEST_FILE = 25 * 2**20  # bytes
LONGEST_FUNCTION = 60  # lines
LONGEST_MODULE = 300  # lines
# Spelled with a set, so that this line does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:[w]ork|[r]oot|[t]mp)/")
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def repository_files() -> list[Path]:
    """Every file that is tracked, or would be with `git add .`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = (REPOSITORY / name for name in listed.stdout.split("\0") if name)
    return sorted({path for path in paths if path.is_file()})


def text_of(path: Path) -> str | None:
    """The file as text, None where it is binary."""
    data = path.read_bytes()
    return None if b"\0" in data[:8192] else data.decode("utf-8")


def machine_paths(name: str, text: str) -> list[str]:
    """The lines of a file that name a path of one machine; tests may use the temporary folder."""
    hits = [(number, line) for number, line in enumerate(text.splitlines(), 1) if MACHINE_PATH.search(line)]
    if name.startswith("tests/"):
        hits = [hit for hit in hits if any(match != "/tmp/" for match in MACHINE_PATH.findall(hit[1]))]
    return [f"{name}:{number}: {line.strip()[:120]}" for number, line in hits]


def test_no_file_names_a_path_of_one_machine() -> None:
    found = []
    for path in repository_files():
        text = text_of(path)
        found += machine_paths(str(path.relative_to(REPOSITORY)), text) if text is not None else []
    assert found == []


def test_no_file_is_too_large() -> None:
    large = [f"{path}: {path.stat().st_size}" for path in repository_files() if path.stat().st_size > LARGEST_FILE]
    assert large == []


def code_blocks() -> Iterator[tuple[str, ast.AST]]:
    """Name and syntax tree of every Python file and every notebook's code."""
    for path in repository_files():
        name = str(path.relative_to(REPOSITORY))
        if path.suffix in {".py", ".ipynb"}:
            yield name, syntax_tree(path)


def unsafe(tree: ast.AST) -> list[str]:
    """What a file does that this project never does, each with its line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{node.lineno}: bare except")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [f"{node.lineno}: {name}" for name in names if name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.Call):
            found += [f"{node.lineno}: {what}" for what in unsafe_call(node)]
    return found


def unsafe_call(call: ast.Call) -> list[str]:
    """What is wrong with one call: an old keyword, or a loader that could run code."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    literal = {name: value.value for name, value in keywords.items() if isinstance(value, ast.Constant)}
    found = ["torch_dtype= (the keyword is dtype=)"] if "torch_dtype" in keywords else []
    if ast.unparse(call.func) == "torch.load" and literal.get("weights_only") is not True:
        found.append("torch.load without weights_only=True")
    found += [f"{name}=True" for name in ("allow_pickle", "trust_remote_code") if literal.get(name)]
    return found


def test_no_unsafe_loading_no_bare_except_no_old_keyword() -> None:
    assert [f"{name}:{what}" for name, tree in code_blocks() for what in unsafe(tree)] == []


def functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Name and length in lines, decorators left out, of every function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_modules_and_functions_of_the_package_stay_short() -> None:
    found = []
    for path in sorted((REPOSITORY / "eagle_repro").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        found += [f"{path.name}: {lines} lines"] if lines > LONGEST_MODULE else []
        long = [(name, size) for name, size in functions(ast.parse(text)) if size > LONGEST_FUNCTION]
        found += [f"{path.name}: {name} has {size} lines" for name, size in long]
    assert found == []


def environment_at_import(tree: ast.AST) -> list[int]:
    """Lines on which a module looks at the environment while it is imported, not when it is called."""
    found = []
    waiting = list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            waiting += defaults + getattr(node, "decorator_list", [])
            continue
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}:
            found.append(node.lineno)
        waiting += ast.iter_child_nodes(node)
    return found


def test_importing_any_module_leaves_the_environment_alone() -> None:
    modules = [(name, tree) for name, tree in code_blocks() if name.startswith("eagle_repro/")]
    assert modules
    assert [f"{name}:{line}" for name, tree in modules for line in environment_at_import(tree)] == []


@pytest.mark.parametrize("folder", ["work", "root", "tmp"])
def test_a_machine_path_is_caught(folder: str) -> None:
    text = f"see /{folder}/things\nand https://example.org/{folder}/page, ../{folder}/x, a{folder}/b\n"
    assert machine_paths("docs/page.md", text) == [f"docs/page.md:1: see /{folder}/things"]
    assert bool(machine_paths("tests/test_x.py", text)) is (folder != "tmp")


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    f()\nexcept:\n    pass",
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, torch_dtype='float16')",
    ],
)
def test_unsafe_code_is_caught(code: str) -> None:
    assert len(unsafe(ast.parse(code))) == 1


def test_safe_code_passes() -> None:
    code = "try:\n    torch.load(p, weights_only=True)\nexcept OSError:\n    np.load(p, allow_pickle=False)"
    assert unsafe(ast.parse(code)) == []


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("import os\nX = os.environ.get('A')", [2]),
        ("class A:\n    x = os.getenv('A')", [2]),
        ("def f(x=os.environ):\n    return 1", [1]),
        ("def f():\n    return os.environ['A']", []),
    ],
)
def test_a_look_at_the_environment_while_importing_is_caught(code: str, lines: list[int]) -> None:
    assert environment_at_import(ast.parse(code)) == lines
