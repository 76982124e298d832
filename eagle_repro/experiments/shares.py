"""Several processes measure one record: each its share of the questions, on a card of its own.

The questions are dealt out in turn, and every process measures its own into a record of its own in OUT/shares; nobody
waits for anybody. Then the parts become the unfinished record that one process would have left, rows in its order,
which the notebook (or the verb) takes up and completes. A process that was killed leaves a part to go on with. What is
not measured question by question is left to that one process as a whole.

The processes run under accelerate: `launch_processes` starts them from anywhere, `launch_in_notebook` forks them out of
a notebook that has not used CUDA yet (guards.check_apart leaves it so).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

from eagle_repro.engine.devices import resolve_device
from eagle_repro.experiments import BY_QUESTION, EXPERIMENTS
from eagle_repro.experiments.protocol import PARAMETERS, Protocol, build_protocol
from eagle_repro.experiments.session import Session, open_pair
from eagle_repro.measure.locked import set_aside
from eagle_repro.measure.parts import deal, merge
from eagle_repro.measure.records import partial_path
from eagle_repro.sources.paths import PACKAGE
from eagle_repro.sources.questions import load_questions, pick

FOLDER = "shares"
PARTS = (".jsonl", ".partial")
SAID = "share: "  # begins the line in which a process says what stopped it
#: For accelerate, which would look for a configuration of the user's: processes of one machine, a port that is free.
OPTIONS = (
    "--multi_gpu", "--num_machines", "1", "--main_process_port", "0",
    "--mixed_precision", "no", "--dynamo_backend", "no",
)  # fmt: skip
FREE_PORT = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}  # the same for notebook_launcher
PATIENCE_S = 40  # PyTorch's launcher gives its processes 30 s before it kills them
Settings = dict[str, Any]
#: Starts processes that each do `measure_share`: (experiment, settings, processes, threads of each).
Launch = Callable[[str, Settings, int, int], None]


def prepare(session: Session, processes: int, launch: Launch | None = None) -> None:
    """Measure with `processes` processes; afterwards the session's record wants nothing but to be completed.

    With one process, for a record from elsewhere and for an experiment that is not BY_QUESTION nothing is measured
    here. Parts that an earlier run has left are taken up in any case. launch: by default `launch_processes`.
    Raises ValueError for more processes than cards, RecordError for what another run still writes, RuntimeError for a
    process that failed (what was measured is kept).
    """
    if session.records_from:
        return
    collect(session)
    if processes == 1 or session.name not in BY_QUESTION:
        return
    require_cards(session.protocol, processes)
    parts = {_part(session, rank, processes): share(session.protocol, rank, processes) for rank in range(processes)}
    deal(session.path, parts)
    settings = {name: getattr(session.protocol, name) for name in PARAMETERS}
    try:
        (launch or launch_processes)(session.name, settings, processes, torch.get_num_threads())
    finally:
        collect(session)


def require_cards(protocol: Protocol, processes: int) -> None:
    """Raise ValueError unless each process can have a card of its own; on a CPU they share it. CUDA is not touched."""
    if not on_gpu(protocol):
        return
    here = torch.cuda.device_count()
    if protocol.device not in ("auto", "cuda"):
        raise ValueError(f'{processes} processes were asked for with device={protocol.device!r}: use device="auto"')
    if processes > here:
        raise ValueError(f"{processes} processes were asked for, and {here} GPUs are here: ask for {here} at most")


def on_gpu(protocol: Protocol) -> bool:
    """Whether the protocol runs on GPUs here."""
    return resolve_device(protocol.device).type == "cuda"


def share(protocol: Protocol, rank: int, processes: int) -> Callable[[str], bool]:
    """Whether a run, by its key, is of process `rank`: questions in turn, what is of no question to the first."""
    places = question_places(protocol)
    return lambda key: places.get(_question(key), 0) % processes == rank


def question_places(protocol: Protocol) -> dict[str, int]:
    """The place of each question in the row of all, by the beginning of its runs' keys (SET/QUESTION)."""
    picked = [(name, each.id) for name in protocol.sets for each in pick(load_questions(name), protocol.questions)]
    return {f"{name}/{question}": number for number, (name, question) in enumerate(picked)}


def collect(session: Session) -> None:
    """Join what processes have left, by whatever number of them, with the session's unfinished record."""
    parts = parts_of(session)
    if not parts:
        return
    places = question_places(session.protocol)

    def place(row: dict[str, Any]) -> tuple[int, int]:
        """Greedy runs, sampled ones, instrumented ones: each kind in its order, as one process writes them."""
        if row.get("order") is None:
            return 2, places.get(_question(row["key"]), 0)
        return int(row["temperature"] > 0), row["order"]

    count = max(int(path.parent.name.rpartition("-")[2]) for path in parts)
    merge(parts, session.path, place, processes=count, shared=not on_gpu(session.protocol))
    for folder in (*{path.parent for path in parts}, session.out / FOLDER):
        with suppress(OSError):  # parts of another experiment may be in it
            folder.rmdir()


def parts_of(session: Session) -> list[Path]:
    """What processes have left of the session's record."""
    found = sorted((session.out / FOLDER).glob(f"*-of-*/{session.name}.jsonl*"))
    return [path for path in found if path.suffix in PARTS]


def discard(session: Session) -> None:
    """Set aside what an earlier run has left unfinished, parts included."""
    collect(session)
    if partial_path(session.path).exists():
        set_aside(partial_path(session.path))


# --- processes -------------------------------------------------------------------------------------------------------


def launch_processes(name: str, settings: Settings, processes: int, threads: int) -> None:
    """Run `measure_share` in processes that accelerate starts, which end with this one's call or with a SIGTERM.

    Raises RuntimeError with what stopped one.
    """
    given = json.dumps([name, settings, threads])
    command = [sys.executable, "-m", "accelerate.commands.launch", *OPTIONS, "--num_processes", str(processes)]
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    code, said_by_all = _run_to_the_end([*command, "-m", __name__, given], environment)
    if code:
        lines = said_by_all.decode("utf-8", "replace").split("\n")
        said = [line.removeprefix(SAID) for line in lines if line.startswith(SAID)]
        raise RuntimeError(f"{said[0] if said else 'a process ended early'} (what was measured is kept)")


def _run_to_the_end(command: list[str], environment: Mapping[str, str]) -> tuple[int, bytes]:
    """Exit code and stderr of a command in a process group of its own, of which nothing is left when this returns or
    raises: a SIGTERM is made an exit, so that it does too."""
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    with (
        _exit_on_sigterm(),
        subprocess.Popen(
            command, env=environment, stdin=none, stdout=none, stderr=pipe, start_new_session=True
        ) as process,
    ):
        try:
            _, said = process.communicate()
        finally:
            _end(process)
    return process.returncode, said


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and what it started: asked first, for it has put its processes into sessions of their own, which
    it alone knows and ends."""
    with suppress(subprocess.TimeoutExpired):
        process.terminate()
        process.wait(PATIENCE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Make the first SIGTERM a SystemExit, which passes through `finally`. Only the main thread may; in another nothing
    changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # whoever repeats it must not stop the end
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def launch_in_notebook(name: str, settings: Settings, processes: int, threads: int) -> None:
    """Fork the processes out of this one by accelerate's notebook_launcher; CUDA must not have been used in it."""
    from accelerate import notebook_launcher
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if torch.cuda.is_initialized():
        raise RuntimeError("CUDA has been used in this process, so that none can be forked: restart the kernel")
    try:
        notebook_launcher(measure_share, (name, settings, threads), num_processes=processes, **FREE_PORT)
    except ChildFailedError as error:
        raise RuntimeError("a process ended early, as told above (what was measured is kept)") from error


def measure_share(name: str, settings: Mapping[str, Any], threads: int) -> None:
    """What each process of accelerate does: its share, on the card that accelerate gives it."""
    from accelerate import PartialState

    state = PartialState(cpu=not on_gpu(build_protocol({}, {}, settings)))
    torch.set_num_threads(threads)  # the launcher's rule is another, and threads are part of the bench
    device = str(state.device) if state.device.type == "cuda" else "cpu"
    measure_part(name, settings, state.process_index, state.num_processes, device)
    state.destroy_process_group()


def measure_part(name: str, settings: Mapping[str, Any], rank: int, processes: int, device: str) -> None:
    """Measure the questions of process `rank` into a part of the record."""
    protocol = build_protocol({}, {}, settings)
    part = _part(Session(name, protocol), rank, processes)
    # The device is not the protocol's: whichever card of a kind measures, it is the same bench.
    pair = open_pair(replace(protocol, device=device))
    session = Session(name, replace(protocol, out=str(part.parent)), pair, share(protocol, rank, processes))
    import_module(f"eagle_repro.experiments.{EXPERIMENTS[name]}").measure(session)


def main(given: str) -> int:
    """One process of `launch_processes`; what stops it is told in a line that the parent finds."""
    try:
        measure_share(*json.loads(given))
    except Exception as error:
        print(f"{SAID}{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 1
    return 0


def _part(session: Session, rank: int, processes: int) -> Path:
    return session.out / FOLDER / f"{rank}-of-{processes}" / f"{session.name}.jsonl"


def _question(key: str) -> str:
    """SET/QUESTION of a run's key."""
    return "/".join(key.split("/")[:2])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
