"""Several processes give the record of one: each question once, rows in its order, and what was measured is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_repro.experiments import chain_vs_tree, compared, guards, rows, shares, speedup
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.session import Session
from eagle_repro.measure import summary
from eagle_repro.measure.records import Record, RecordError, RecordWriter, read_record
from eagle_repro.present.words import bench_line
from tests.reading import REPOSITORY

SMALL = {"sets": ("chat", "russian"), "questions": 3, "new_tokens": 6, "total_tokens": 12, "depth": 2, "top_k": 5}
Texts = list[tuple[str, str, str]]


def opened(out: Path, name: str = "02_speedup", **settings: Any) -> Session:
    return Session(name, build_protocol({}, {"profile": "smoke"}, {**SMALL, "out": str(out), **settings}))


def in_turn(name: str, settings: Any, processes: int, threads: int) -> None:
    """What the processes do, one after the other in this one."""
    for rank in range(processes):
        shares.measure_part(name, json.loads(json.dumps(settings)), rank, processes, "cpu")


def untimed(record: Record) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.endswith("_s")} for row in record.rows]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return speedup.measure(opened(tmp_path_factory.mktemp("alone")))


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Texts:
    """Every text that is written, warm-up aside."""
    noted: Texts = []
    whole = rows.write_text

    def write(pair: Any, way: Any, item: Any, tokens: int, **named: Any) -> Any:
        if tokens > rows.WARM_UP_TOKENS and not named:
            noted.append((item.set, item.question, way.name))
        return whole(pair, way, item, tokens, **named)

    for module in (speedup, compared):
        monkeypatch.setattr(module, "write_text", write)
    return noted


def question_keys(count: int) -> list[str]:
    return [f"chat/{number}/eagle/default/0" for number in range(count)]


@pytest.mark.parametrize(("questions", "processes"), [(17, 8), (1, 2), (4, 2), (3, 1)])
def test_every_run_is_of_one_process_and_the_shares_are_even(
    questions: int, processes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = {f"chat/{number}": number for number in range(questions)}
    monkeypatch.setattr(shares, "question_places", lambda protocol: places)
    protocol = opened(tmp_path).protocol
    owners = [shares.share(protocol, rank, processes) for rank in range(processes)]
    counts = [sum(map(mine, question_keys(questions))) for mine in owners]
    assert sum(counts) == questions and max(counts) - min(counts) <= 1
    for key in [*question_keys(questions), "pair/x", "autopick/reference"]:
        assert sum(mine(key) for mine in owners) == 1


def test_another_processes_runs_count_as_done_and_cannot_be_written(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "r.jsonl", bench={}, protocol={}, mine=lambda key: key == "a") as writer:
        assert writer.has("b") and not writer.has("a")
        with pytest.raises(ValueError, match="run b belongs to another process"):
            writer.write("b", {})


@pytest.mark.parametrize("processes", [2, 8])
def test_the_record_is_that_of_one_process_but_for_its_times(
    processes: int, alone: Record, texts: Texts, tmp_path: Path
) -> None:
    session = opened(tmp_path)
    shares.prepare(session, processes, in_turn)
    assert set(Counter(texts).values()) == {1}, "a text was written more than once"
    written = len(texts)
    record = speedup.measure(session)
    assert len(texts) == written, "completing the record measured something"
    assert untimed(record) == untimed(alone) and record.header["hash"] == alone.header["hash"]
    counted = ["set", "variant", "tau", "questions"]
    assert summary.speedup(record)[counted].equals(summary.speedup(alone)[counted])
    assert record.header["bench"]["now"]["processes"] == processes
    assert f"| times of {processes} processes that share it |" in bench_line(record)
    assert "share it" not in bench_line(alone) and [path.name for path in tmp_path.iterdir()] == ["02_speedup.jsonl"]


def test_chain_and_tree_are_shared_too(tmp_path: Path) -> None:
    one, two = (opened(tmp_path / name, "04_chain_vs_tree") for name in "ab")
    shares.prepare(two, 2, in_turn)
    assert untimed(chain_vs_tree.measure(two)) == untimed(chain_vs_tree.measure(one))


def test_what_is_not_measured_by_question_is_left_to_one_process(tmp_path: Path) -> None:
    for session in (opened(tmp_path, "01_roofline"), replace(opened(tmp_path), name="06_lossless")):
        shares.prepare(session, 2, lambda *_: pytest.fail("processes were started"))
    shares.prepare(opened(tmp_path), 1, lambda *_: pytest.fail("processes were started"))


@pytest.mark.parametrize("later", [2, 3, 1])
def test_a_process_that_is_killed_leaves_a_part_that_any_number_goes_on_with(
    later: int, alone: Record, texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, write, left = opened(tmp_path), RecordWriter.write, [14]

    def dies(*given: Any, **named: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        write(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            shares.prepare(session, 2, in_turn)
    assert len([row for row in session.partial_rows() if row["kind"] == "run"]) == 14
    shares.prepare(session, later, in_turn)
    found, whole = (sorted(untimed(each), key=str) for each in (speedup.measure(session), alone))
    assert found == whole
    # A text that was written and waited for its plain one when the process died is written again.
    assert max(Counter(texts).values()) <= 2 and Counter(texts).total() <= len(set(texts)) + 4


def test_parts_of_another_protocol_are_refused_until_they_are_discarded(tmp_path: Path) -> None:
    few = {"sets": ("chat",), "questions": 2}
    shares.prepare(opened(tmp_path, **few), 2, in_turn)
    other = opened(tmp_path, new_tokens=7, **few)
    with pytest.raises(RecordError, match=r"begun under other conditions .*new_tokens was 6, is 7.*--again"):
        shares.prepare(other, 2, in_turn)
    shares.discard(other)
    shares.prepare(other, 2, in_turn)
    assert len(speedup.measure(other).rows) == len(read_record(other.path).rows) > 0


def cards(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def protocol_of(**settings: Any) -> Protocol:
    return build_protocol({}, {"profile": "full"}, settings)


def test_more_processes_than_cards_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, 2)
    with pytest.raises(ValueError, match="3 processes were asked for, and 2 GPUs are here: ask for 2 at most"):
        shares.require_cards(protocol_of(), 3)
    with pytest.raises(ValueError, match="2 processes were asked for with device='cuda:1': use device=\"auto\""):
        shares.require_cards(protocol_of(device="cuda:1"), 2)
    shares.require_cards(protocol_of(), 2)
    shares.require_cards(protocol_of(device="cpu"), 8)


def launched(out: Path, *verb: str, code: str = "", words: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    settings = [word for name, value in SMALL.items() for word in ("-p", f"{name}={json.dumps(value)}")]
    given = (
        ["-c", code, *words]
        if code
        else ["-m", "eagle_repro", *verb, "--profile", "smoke", "--out", str(out), *settings]
    )
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, *given], env=environment, capture_output=True, text=True, timeout=150)


@pytest.mark.slow
def test_two_processes_under_accelerate_give_the_record_of_one(alone: Record, tmp_path: Path) -> None:
    done = launched(tmp_path, "measure", "02_speedup", "--procs", "2", "--json")
    assert done.returncode == 0, done.stderr
    record = read_record(tmp_path / "02_speedup.jsonl")
    assert record.complete and untimed(record) == untimed(alone)
    assert record.header["bench"]["now"]["shared"] is True


@pytest.mark.slow
def test_the_notebooks_run_on_what_two_processes_measured(alone: Record, tmp_path: Path) -> None:
    done = launched(tmp_path, "run", "02", "--procs", "2")
    assert done.returncode == 0 and "02_speedup: complete in" in done.stderr, done.stderr
    record = read_record(tmp_path / "02_speedup.jsonl")
    assert untimed(record) == untimed(alone) and record.header["bench"]["now"]["processes"] == 2
    assert (tmp_path / "notebooks" / "02_speedup.ipynb").exists()


@pytest.mark.slow
def test_what_stops_a_process_is_told_in_one_line(tmp_path: Path) -> None:
    done = launched(tmp_path, "measure", "02_speedup", "--procs", "2", "-p", "max_length=8")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "do not fit max_length=8" in done.stderr and "what was measured is kept" in done.stderr


STARTS_ANOTHER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: (child.kill(), child.wait(), os._exit(1)))
print(child.pid, os.getpid(), file=open(sys.argv[1] + ".part", "w"), flush=True)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(300)
"""
PARENT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
from eagle_repro.experiments import shares
shares._run_to_the_end([sys.executable, "-c", *sys.argv[1:]], os.environ)
"""


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it took longer than {seconds} s"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_started_ends_with_the_one_that_started_it(tmp_path: Path, number: int) -> None:
    """A launcher, as PyTorch's, has its processes in sessions of their own and ends them when it is asked to end."""
    told = tmp_path / "pids"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-c", PARENT, STARTS_ANOTHER, str(told)]
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as parent:
        wait_for(told.exists)
        started = [int(pid) for pid in told.read_text(encoding="utf-8").split()]
        assert all(map(running, started))
        parent.send_signal(number)
        assert parent.wait(timeout=60) != 0
    wait_for(lambda: not any(map(running, started)), seconds=5)


def test_a_sigterm_is_as_it_was_before(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    code, said = shares._run_to_the_end([sys.executable, "-c", "import sys; sys.exit('gone')"], os.environ)
    assert (code, said) == (1, b"gone\n") and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_sigterm_ends_the_processes_of_accelerate(tmp_path: Path) -> None:
    words = ["measure", "02_speedup", "--procs", "2", "--profile", "smoke", "--out", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-m", "eagle_repro", *words], env=environment) as parent:
        wait_for(lambda: len(list((tmp_path / shares.FOLDER).glob("*/*.partial"))) == 2)
        parent.terminate()
        assert parent.wait(timeout=90) == 128 + signal.SIGTERM
    named = str(tmp_path).encode()
    wait_for(lambda: not any(named in words_of(pid) for pid in Path("/proc").glob("[0-9]*")), seconds=5)


def words_of(process: Path) -> bytes:
    """The command line of a process, empty where it has gone."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


IN_NOTEBOOK = """
from eagle_repro.experiments import guards, shares
from eagle_repro.experiments.protocol import build_protocol
from eagle_repro.experiments.session import Session
session = Session("02_speedup", build_protocol({{}}, {{"profile": "smoke"}}, {settings}))
guards.require(guards.check_apart(session.protocol))
shares.prepare(session, 2, shares.launch_in_notebook)
"""


def test_a_process_that_has_used_cuda_is_not_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA has been used in this process.*restart the kernel"):
        shares.prepare(opened(tmp_path), 2, shares.launch_in_notebook)


@pytest.mark.slow
def test_a_notebook_forks_the_processes(alone: Record, tmp_path: Path) -> None:
    done = launched(tmp_path, code=IN_NOTEBOOK.format(settings={**SMALL, "out": str(tmp_path)}))
    assert done.returncode == 0, done.stderr
    assert untimed(speedup.measure(opened(tmp_path))) == untimed(alone)


@pytest.mark.slow
def test_guards_apart_are_the_guards(tmp_path: Path) -> None:
    protocol = opened(tmp_path).protocol
    found = [(guard.check, guard.verdict) for guard in guards.check_apart(protocol)]
    assert found == [(guard.check, guard.verdict) for guard in guards.check(protocol)]


# --- on two cards ----------------------------------------------------------------------------------------------------


two_cards = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
ON_GPU = {**SMALL, "pair": "tiny", "device": "auto", "dtype": "float32"}
ON_CARDS = """
import json, sys, torch
from eagle_repro.experiments import guards, shares, speedup
from eagle_repro.experiments.protocol import build_protocol
from eagle_repro.experiments.session import Session
processes, launch = int(sys.argv[1]), sys.argv[2]
session = Session("02_speedup", build_protocol({}, {"profile": "full"}, json.loads(sys.argv[3])))
guards.require(guards.check_apart(session.protocol))
assert not torch.cuda.is_initialized()
shares.prepare(session, processes, getattr(shares, launch))
assert not torch.cuda.is_initialized()
speedup.measure(session)
"""


@pytest.mark.gpu
@two_cards
@pytest.mark.parametrize("stack", ["eager", "graph"])
@pytest.mark.parametrize("launch", ["launch_processes", "launch_in_notebook"])
def test_two_cards_give_the_record_of_one(stack: str, launch: str, tmp_path: Path) -> None:
    records = []
    for processes in (1, 2):
        settings = json.dumps(ON_GPU | {"stack": stack, "repeats": 1, "out": str(tmp_path / str(processes))})
        done = launched(tmp_path, code=ON_CARDS, words=(str(processes), launch, settings))
        assert done.returncode == 0, done.stderr
        records.append(read_record(tmp_path / str(processes) / "02_speedup.jsonl"))
    one, two = records
    assert untimed(two) == untimed(one) and two.header["hash"] == one.header["hash"]
    assert two.header["bench"]["now"]["processes"] == 2 and two.header["bench"]["now"]["shared"] is False
    assert "share it" not in bench_line(two)
