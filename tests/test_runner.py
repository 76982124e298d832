"""The runner proves a notebook complete by the mark of its record, and tells every other end from it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from eagle_repro import runner
from eagle_repro.measure.bench import REVISION_VARIABLE
from eagle_repro.measure.records import completeness, partial_path, read_record
from eagle_repro.present import notebook
from eagle_repro.runner import Outcome, Plan, make_plan
from tests.reading import REPOSITORY

MODELS = 'PAIR = "auto"\nOVERRIDES = {}'
# The least that a notebook of this project does: settings in, a record and its completeness line out.
MEASURE = """
from pathlib import Path
from eagle_repro.measure.records import RecordWriter
path = Path(OVERRIDES["out"]) / "{name}.jsonl"
bench, protocol = globals().get("bench", {{}}), {{"new_tokens": OVERRIDES.get("new_tokens", 192)}}
with RecordWriter(path, bench=bench, protocol=protocol) as writer:
    if not writer.has("a"):
        writer.write("a", {{"x": 1}})
    {more}
    writer.complete()
"""
# The bench that the experiment itself would write.
BENCH = """
from eagle_repro.experiments.session import open_session
bench = open_session("02_speedup", {}, {}, OVERRIDES).bench()
"""
CLOSE = 'print("{name}: complete, 1 runs")'
Make = Callable[..., Path]
Run = Callable[..., list[Outcome]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a notebook NN_name.ipynb whose cells are those above, with `cell` put before them or `more` inside."""

    def made(name: str = "02_speedup", cell: str = "", more: str = "", models: str = MODELS, tag: bool = True) -> Path:
        first = nbformat.v4.new_code_cell(models, metadata={"tags": ["parameters"]} if tag else {})
        sources = [cell or "pass", MEASURE.format(name=name, more=more or "pass"), CLOSE.format(name=name)]
        cells = [nbformat.v4.new_markdown_cell("# Title"), first, *map(nbformat.v4.new_code_cell, sources)]
        folder = tmp_path / "notebooks"
        folder.mkdir(exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{name}.ipynb")
        return folder

    return made


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    def planned(folder: Path, **options: Any) -> Plan:
        return make_plan(notebooks=folder, out=tmp_path / "out", profile="smoke", **options)

    return planned


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def run(plan_of: Callable[..., Plan], told: list[str]) -> Run:
    def ran(folder: Path, **options: Any) -> list[Outcome]:
        return runner.run(plan_of(folder, **options), told.append)

    return ran


# What complete means


def test_a_notebook_that_ran_to_its_end_is_complete_and_got_its_parameters(
    make: Make, run: Run, told: list[str], tmp_path: Path
) -> None:
    cell = "import os, sys\nprint(os.environ['EAGLE_REPRO_PROFILE'], os.environ['EAGLE_REPRO_QUIET'], sys.executable)"
    (outcome,) = run(make(cell=cell), overrides={"new_tokens": 8})
    assert outcome.state == "complete" and outcome.seconds > 0 and outcome.budget
    record = read_record(tmp_path / "out" / "02_speedup.jsonl")
    assert record.header["protocol"] == {"new_tokens": 8}
    assert f"planned: {outcome.budget} s" in told[-1]
    executed = notebook.read(tmp_path / "out" / "notebooks" / "02_speedup.ipynb")
    assert notebook.code_cells(executed)[1].outputs[0].text.split() == ["smoke", "1", sys.executable]
    assert "EAGLE_REPRO_QUIET" not in os.environ or os.environ["EAGLE_REPRO_QUIET"] != "1"


@pytest.mark.parametrize(
    ("cell", "more", "reason"),
    [
        ("import os; os._exit(137)", "", "[Kk]ernel died"),
        ("import sys; sys.exit(0)", "", "ended before its last cell"),
        ("raise ValueError('no GPU:\\n choose another')", "", "ValueError: no GPU: choose another"),
        ("", "raise SystemExit", "ended before its last cell"),
    ],
)
def test_every_other_end_is_incomplete(
    make: Make, run: Run, told: list[str], tmp_path: Path, cell: str, more: str, reason: str
) -> None:
    (outcome,) = run(make(cell=cell, more=more))
    assert outcome.state == "incomplete"
    assert re.search(reason, outcome.reason), outcome.reason
    assert "INCOMPLETE" in told[-1] and completeness(tmp_path / "out" / "02_speedup.jsonl") != "complete"


def test_a_cell_that_hangs_is_stopped(make: Make, run: Run) -> None:
    start = time.monotonic()
    (outcome,) = run(make(cell="import time; time.sleep(600)"), cell_timeout=2)
    assert outcome.state == "incomplete" and "longer than 2 s" in outcome.reason
    assert time.monotonic() - start < 60


def test_a_record_of_an_earlier_run_proves_nothing_of_this_one(make: Make, run: Run) -> None:
    assert run(make())[0].state == "complete"
    # A later version of the notebook forgets to measure, and still says that it is complete.
    folder = make(cell="def open_nothing(): pass")
    path = folder / "02_speedup.ipynb"
    changed = notebook.read(path)
    changed.cells[3].source = "pass"
    notebook.write(changed, path)
    (outcome,) = run(folder, again=True)
    assert outcome.state == "incomplete" and "earlier run" in outcome.reason


def test_a_record_that_was_begun_anew_and_not_finished_is_partial(make: Make, run: Run, tmp_path: Path) -> None:
    assert run(make())[0].state == "complete"
    folder = make()
    changed = notebook.read(folder / "02_speedup.ipynb")
    changed.cells[3].source = changed.cells[3].source.replace("writer.complete()", "pass")
    notebook.write(changed, folder / "02_speedup.ipynb")
    (outcome,) = run(folder, again=True)
    assert outcome.state == "incomplete" and "partial" in outcome.reason


# Going on, skipping, stopping


def test_what_is_complete_under_the_same_conditions_is_skipped(
    make: Make, run: Run, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REVISION_VARIABLE, "one")  # what changes that are not committed are of
    assert run(make(cell=BENCH))[0].state == "complete"
    assert run(make(cell=BENCH))[0].state == "skipped" and "skipped" in told[-1]
    assert run(make(cell=BENCH), overrides={"seed": 1})[0].state == "complete", "it is of other conditions"
    assert run(make(cell=BENCH), overrides={"seed": 1}, again=True)[0].state == "complete"
    assert run(make(cell=BENCH), overrides={"seed": 1})[0].state == "skipped"
    changed = make(cell=f"{BENCH}print('a new cell')")
    assert run(changed, overrides={"seed": 1})[0].state == "complete", "the output must be of this very notebook"


def test_what_was_cut_off_goes_on_unless_told_to_start_over(make: Make, run: Run, tmp_path: Path) -> None:
    partial = partial_path(tmp_path / "out" / "02_speedup.jsonl")
    assert run(make(more="raise KeyError('cut off')"))[0].state == "incomplete"
    begun = partial.stat().st_ino
    assert run(make())[0].state == "complete"
    assert (tmp_path / "out" / "02_speedup.jsonl").stat().st_ino == begun, "the same file, continued"
    assert run(make(more="raise KeyError('cut off')"), again=True)[0].state == "incomplete"
    assert run(make(), again=True)[0].state == "complete"
    assert list(tmp_path.glob("out/*.old-1")), "started over, the older part kept aside"


def test_a_kernel_killed_in_the_middle_leaves_a_record_that_goes_on(
    make: Make, run: Run, told: list[str], tmp_path: Path
) -> None:
    record = tmp_path / "out" / "02_speedup.jsonl"
    (killed,) = run(make(more="import os; os._exit(137)"))
    assert killed.state == "incomplete" and "INCOMPLETE" in told[-1]
    assert [row["key"] for row in read_record(partial_path(record)).rows] == ["a"] and not record.exists()
    begun = partial_path(record).stat().st_ino
    assert run(make())[0].state == "complete"
    assert record.stat().st_ino == begun and len(read_record(record).rows) == 1, "continued, and nothing twice"


def test_a_refused_bench_stops_the_rest_and_another_failure_does_not(make: Make, run: Run) -> None:
    make("00_bench", cell="raise RuntimeError('no GPU')")
    folder = make("01_roofline")
    outcomes = run(folder)
    assert [outcome.state for outcome in outcomes] == ["incomplete", "incomplete"]
    assert "00_bench failed" in outcomes[1].reason
    make("00_bench")
    make("01_roofline", cell="raise RuntimeError('no')")
    assert [outcome.state for outcome in run(make("02_speedup"))] == ["complete", "incomplete", "complete"]


def test_an_interrupt_ends_the_kernel_and_says_how_to_go_on(make: Make, tmp_path: Path) -> None:
    mark = tmp_path / "kernel"
    folder = make(
        cell=f"import os, time, pathlib\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\ntime.sleep(99)"
    )
    command = [sys.executable, "-m", "eagle_repro", "run", "--notebooks", str(folder), "--profile", "smoke"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(600):
        if mark.exists() and mark.read_text():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "interrupted; the same command goes on" in said and "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(int(mark.read_text()), 0)
            time.sleep(0.1)


# Refused before anything runs


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"overrides": {"new_tokenss": 8}}, ValueError, "unknown parameter 'new_tokenss': known are"),
        ({"overrides": {"new_tokens": "8"}}, ValueError, "new_tokens='8' was given: a whole number"),
        ({"names": ["03"]}, ValueError, "unknown notebook '03': notebooks has 02_speedup"),
    ],
)
def test_a_wrong_request_is_refused(
    make: Make, plan_of: Callable[..., Plan], options: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        plan_of(make(), **options)


def test_a_notebook_without_a_place_for_parameters_is_refused(make: Make, plan_of: Callable[..., Plan]) -> None:
    with pytest.raises(ValueError, match="02_speedup has 0 cells tagged parameters"):
        plan_of(make(tag=False))
    with pytest.raises(ValueError, match="does not set OVERRIDES"):
        plan_of(make(models='PAIR = "auto"'))


def test_folders_reach_the_kernel_whole_and_names_as_they_are(
    make: Make, plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").mkdir()
    plan = plan_of(make(), overrides={"target": "target", "head": "owner/head", "out": "there"})
    assert plan.parameters["target"] == str(tmp_path / "target") and plan.parameters["head"] == "owner/head"
    assert plan.out == tmp_path / "there"


def test_this_projects_notebooks_are_found_and_fit_for_the_runner() -> None:
    plan = make_plan(profile="smoke")
    assert plan.names[:3] == ("00_bench", "01_roofline", "02_speedup")
    assert plan.notebooks == REPOSITORY / "notebooks"


# What is written back


def test_a_refreshed_notebook_has_nothing_of_the_run_that_made_it(
    make: Make, run: Run, plan_of: Callable[..., Plan]
) -> None:
    cell = "import sys\nprint('a line')\nprint('no' + 'ise', file=sys.stderr)"
    folder = make(cell=cell)
    assert run(folder)[0].state == "complete"
    before = notebook.read(folder / "02_speedup.ipynb")
    (path,) = runner.refresh(plan_of(folder))
    text, after = path.read_text(encoding="utf-8"), notebook.read(path)
    assert notebook.same_sources(after, before) and len(after.cells) == len(before.cells)
    assert [cell.execution_count for cell in notebook.code_cells(after)] == [1, 2, 3, 4]
    assert "a line" in text and "noise" not in text
    assert "papermill" not in text and "widgets" not in text and str(folder.parent) not in text
    assert json.loads(text)["cells"][1]["metadata"] == {"tags": ["parameters"]}
    assert set(after.metadata) <= {"kernelspec", "language_info"} and "version" not in after.metadata.language_info


def test_an_output_that_names_a_folder_of_this_machine_is_not_written_back(
    make: Make, run: Run, plan_of: Callable[..., Plan]
) -> None:
    folder = make(cell="print('/home/' + 'somebody/weights')")
    assert run(folder)[0].state == "complete"
    before = (folder / "02_speedup.ipynb").read_bytes()
    with pytest.raises(ValueError, match="cell 2 prints a folder of this machine"):
        runner.refresh(plan_of(folder))
    assert (folder / "02_speedup.ipynb").read_bytes() == before


def test_progress_of_a_long_notebook_is_told(
    make: Make, run: Run, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "HEARTBEAT_S", 0.05)
    assert run(make(more="import time; time.sleep(1)"))[0].state == "complete"
    assert any("1 runs written" in line for line in told)
    assert told[0].startswith("profile smoke, 1 notebooks")
