"""The runner: notebooks in order through papermill, each proved complete by the mark of its record.

A notebook that ends without an error proves nothing: a kernel that dies, or a cell that leaves early, ends one too. So
a notebook counts as complete when its last cell was executed and its record, written by this run, has its completeness
line. What is complete already under the same conditions is skipped; what was cut off goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eagle_repro.experiments import EXPERIMENTS, shares
from eagle_repro.experiments.kernel import execute
from eagle_repro.experiments.protocol import build_protocol
from eagle_repro.experiments.session import Session
from eagle_repro.measure.records import completeness, partial_path, read_record
from eagle_repro.present import notebook
from eagle_repro.sources.paths import PACKAGE

#: Seconds that each notebook should take, by profile, on two quiet cores.
BUDGETS: dict[str, dict[str, int]] = {
    "smoke": dict.fromkeys(EXPERIMENTS, 30) | {"10_train_head": 90},
    "quick": {
        "00_bench": 15,
        "01_roofline": 60,
        "02_speedup": 250,
        "03_tree_shape": 300,
        "04_chain_vs_tree": 100,
        "05_target_size": 10,
        "06_lossless": 200,
        "07_domain": 90,
        "08_stack": 120,
        "09_batch_context": 60,
        "10_train_head": 120,
        "11_report": 20,
    },
}
CELL_TIMEOUT_S = {"smoke": 300, "quick": 1800}
LONG_CELL_TIMEOUT_S = 4 * 3600
START_TIMEOUT_S = 120
HEARTBEAT_S = 30.0
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to run. notebooks: the folder they are in; names: which of them, in order; out: where results go; processes:
    how many share the questions, before a notebook shows what they measured."""

    notebooks: Path
    names: tuple[str, ...]
    out: Path
    profile: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False
    cell_timeout: int | None = None
    processes: int = 1

    def session(self, name: str) -> Session:
        """The session that the notebook will open."""
        return Session(name, build_protocol({}, {"profile": self.profile}, self.parameters))

    @property
    def parameters(self) -> dict[str, Any]:
        """What is written into OVERRIDES: the named parameters, and the folder of this run."""
        return {**self.overrides, "out": str(self.out)}


@dataclass(frozen=True)
class Outcome:
    """What became of one notebook. seconds: 0 where it was skipped; reason: why it is incomplete, else empty."""

    name: str
    state: Literal["complete", "skipped", "incomplete"]
    seconds: float
    budget: int | None
    reason: str = ""


def find_notebooks() -> Path:
    """The folder of the notebooks: a checkout's, or the installed package's own. Raises FileNotFoundError."""
    for folder in (PACKAGE.parent / "notebooks", PACKAGE / "notebooks"):
        if any(folder.glob("[0-9][0-9]_*.ipynb")):
            return folder
    raise FileNotFoundError("no notebooks lie beside the package: run from a checkout, or name their folder")


def make_plan(
    *,
    notebooks: Path | None = None,
    names: Sequence[str] = (),
    out: Path | None = None,
    profile: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    again: bool = False,
    cell_timeout: int | None = None,
    processes: int = 1,
) -> Plan:
    """A checked plan; names may be "02_speedup", "02" or "speedup", none means all.

    Raises ValueError or FileNotFoundError, before anything runs, for an unknown notebook, profile or parameter, a value
    of the wrong type, and a notebook that has no place for parameters.
    """
    folder = (notebooks or find_notebooks()).resolve()
    given = {name: _absolute(name, value) for name, value in (overrides or {}).items()}
    protocol = build_protocol({}, {"profile": profile or "auto", "out": out and str(out)}, given)
    chosen = [_find(folder, name) for name in names] or sorted(path.stem for path in folder.glob("[0-9][0-9]_*.ipynb"))
    if not chosen:
        raise FileNotFoundError(f"{folder} holds no notebooks: name a folder with NN_name.ipynb files")
    for name in chosen:
        notebook.require_parameter(notebook.read(folder / f"{name}.ipynb"), "OVERRIDES", name)
    if processes > 1:
        shares.require_cards(protocol, processes)
    place, unique = Path(protocol.out).expanduser().resolve(), tuple(dict.fromkeys(chosen))
    return Plan(folder, unique, place, protocol.profile, given, again, cell_timeout, processes)


def run(plan: Plan, tell: Tell) -> list[Outcome]:
    """Run the notebooks of a plan in order; `tell` gets a line for whatever a person who waits wants to know.

    A notebook that fails does not stop the others, but for 00_bench: what it refuses, they would run into.
    """
    budgets = BUDGETS.get(plan.profile, {})
    planned = sum(budgets.get(name, 0) for name in plan.names)
    tell(f"profile {plan.profile}, {len(plan.names)} notebooks" + (f", planned for {planned} s" if planned else ""))
    outcomes: list[Outcome] = []
    for number, name in enumerate(plan.names, start=1):
        if outcomes and outcomes[0].name == "00_bench" and outcomes[0].state == "incomplete":
            outcomes.append(Outcome(name, "incomplete", 0.0, budgets.get(name), "not run, because 00_bench failed"))
            continue
        outcomes.append(_run_told(plan, name, budgets.get(name), f"[{number}/{len(plan.names)}] {name}", tell))
    return outcomes


def _run_told(plan: Plan, name: str, budget: int | None, label: str, tell: Tell) -> Outcome:
    """Run one notebook, or skip it, and tell of it."""
    if not plan.again and is_done(plan, name):
        tell(f"{label}: complete already, skipped (--again measures it anew)")
        return Outcome(name, "skipped", 0.0, budget)
    against = f" (planned: {budget} s)" if budget else ""
    tell(f"{label}: running{against}")
    start = time.monotonic()
    with _heartbeat(label, plan.session(name), tell):
        reason = run_one(plan, name)
    seconds = time.monotonic() - start
    if reason:
        tell(f"{label}: INCOMPLETE after {seconds:.0f} s: {reason}")
        return Outcome(name, "incomplete", seconds, budget, reason)
    tell(f"{label}: complete in {seconds:.0f} s{against}")
    return Outcome(name, "complete", seconds, budget)


def run_one(plan: Plan, name: str) -> str | None:
    """Run one notebook; why it is not complete, None if it is."""
    session, target = plan.session(name), output_path(plan, name)
    if plan.again and session.records_from is None:
        shares.discard(session)
    before = _fingerprint(session.path)
    try:
        shares.prepare(session, plan.processes)
    except RuntimeError as error:  # a RecordError is one
        return str(error)
    failure = execute(
        plan.notebooks / f"{name}.ipynb",
        target,
        parameters={"OVERRIDES": plan.parameters},
        profile=plan.profile,
        start_timeout=START_TIMEOUT_S,
        cell_timeout=plan.cell_timeout or CELL_TIMEOUT_S.get(plan.profile, LONG_CELL_TIMEOUT_S),
    )
    return failure or unproved(session, target, before)


def is_done(plan: Plan, name: str) -> bool:
    """Whether the record is complete, was measured under the same conditions, and the output notebook goes with it."""
    session, target = plan.session(name), output_path(plan, name)
    if unproved(session, target, before=None) is not None:
        return False
    original = notebook.read(plan.notebooks / f"{name}.ipynb")
    fits = session.records_from is not None or session.fits(read_record(session.path))
    return fits and notebook.same_sources(notebook.read(target), original)


def unproved(session: Session, target: Path, before: tuple[int, int] | None) -> str | None:
    """Why the notebook `target` and its record do not prove a complete run, None if they do.

    before: the fingerprint of the record that was there before the run; the same one proves nothing of this run.
    """
    if not target.exists():
        return "it has no output notebook"
    if not notebook.ran_to_its_end(notebook.read(target), f"{session.name}: complete"):
        return "it ended before its last cell had closed the record"
    state = completeness(session.path)
    if state != "complete":
        return f"its record {session.path.name} is {state}"
    if session.records_from is None and before is not None and _fingerprint(session.path) == before:
        return f"its record {session.path.name} is from an earlier run"
    return None


def refresh(plan: Plan) -> list[Path]:
    """Write the executed notebooks back to where they came from, without what belongs to this run alone."""
    written = []
    for name in plan.names:
        original = plan.notebooks / f"{name}.ipynb"
        notebook.write(notebook.committable(notebook.read(output_path(plan, name)), name), original)
        written.append(original)
    return written


def output_path(plan: Plan, name: str) -> Path:
    """Where the executed notebook goes."""
    return plan.out / "notebooks" / f"{name}.ipynb"


@contextmanager
def _heartbeat(label: str, session: Session, tell: Callable[[str], None]) -> Iterator[None]:
    """Say from time to time how far the record has grown."""
    done, start = threading.Event(), time.monotonic()

    def beat() -> None:
        while not done.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError):
                files = shares.parts_of(session) or [partial_path(session.path)]
                lines = sum(file.read_bytes().count(b'"kind": "run"') for file in files)
                tell(f"{label}: {time.monotonic() - start:.0f} s, {lines} runs written")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _find(folder: Path, name: str) -> str:
    known = sorted(path.stem for path in folder.glob("[0-9][0-9]_*.ipynb"))
    for full in known:
        if name in (full, full[:2], full[3:]):
            return full
    raise ValueError(f"unknown notebook {name!r}: {folder.name} has {', '.join(known) or 'none'}")


def _absolute(name: str, value: Any) -> Any:
    """Folders as the kernel needs them, which works elsewhere; names stay names."""
    if name.lower() in ("out", "records", "target", "head", "heads", "training") and isinstance(value, str):
        path = Path(value).expanduser()
        return str(path.resolve()) if path.exists() or name.lower() == "out" else value
    return value


def _fingerprint(path: Path) -> tuple[int, int]:
    """What changes when a record is written anew; (0, 0) where there is none."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return 0, 0
    return state.st_ino, state.st_mtime_ns
