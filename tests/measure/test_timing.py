"""Timing protects its numbers from running-ahead devices, first calls and cards that slow down (CASES B56, B57)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eagle_repro.measure import timing
from eagle_repro.measure.stats import Work, measured_speedup


class FakeTime:
    """A clock that only moves when a fake engine works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0

    def engine(self, seconds: float, drift: float = 0.0) -> Callable[[object], None]:
        def work(_: object = None) -> None:
            self.now += seconds * (1 + drift) ** self.calls
            self.calls += 1

        return work


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(timing, "clock", lambda device: lambda: time.now)
    return time


def test_both_clock_reads_wait_for_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: log.append("wait"))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(log.append("read") or len(log)))
    timing.measure(lambda: log.append("work"), device="cuda", warmup=0, repeats=2)
    assert log == ["wait", "read", "work", "wait", "read"] * 2


def test_a_device_that_cannot_be_timed_is_refused() -> None:
    with pytest.raises(ValueError, match="cpu.*cuda"):
        timing.clock("mps")


def test_cuda_without_cuda_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="no CUDA device"):
        timing.clock("cuda")


def test_a_slow_first_call_does_not_reach_the_median(fake: FakeTime) -> None:
    calls: list[int] = []

    def step() -> None:
        fake.now += 5.0 if not calls else 0.010
        calls.append(1)

    timed = timing.measure(step, device="cpu", warmup=1, repeats=3)
    assert timed.median == pytest.approx(0.010, rel=0.01)
    assert max(timed.values) - min(timed.values) < 0.001
    assert len(timed.values) == 3 and len(calls) == 4


def test_the_median_is_of_the_repeats() -> None:
    assert timing.Timing((3.0, 1.0, 2.0, 10.0)).median == 2.5


def test_the_real_clock_runs() -> None:
    assert timing.measure(lambda: sum(range(1000)), device="cpu").median > 0


def test_a_clock_of_the_wall_that_jumps_changes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter([1e9, 0.0] * 1000)
    for name in ("time", "time_ns"):
        monkeypatch.setattr(timing.time, name, lambda: next(jumps))
    timed = timing.measure(lambda: sum(range(1000)), device="cpu", repeats=5)
    assert all(0 < seconds < 60 for seconds in timed.values)


@pytest.mark.parametrize("counts", [{"repeats": 0}, {"warmup": -1}])
def test_impossible_counts_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="repeats >= 1"):
        timing.measure(lambda: None, device="cpu", **counts)
    with pytest.raises(ValueError, match="repeats >= 1"):
        timing.alternate({"a": print}, [1], device="cpu", **counts)


@pytest.mark.parametrize(("methods", "items"), [({}, [1]), ({"a": print}, [])])
def test_nothing_to_run_is_refused_before_the_first_run(methods: dict, items: list) -> None:
    with pytest.raises(ValueError, match="at least one"):
        timing.alternate(methods, items, device="cpu")


def test_drift_of_a_card_hurts_both_methods_alike(fake: FakeTime) -> None:
    methods = {"plain": fake.engine(2.0, drift=0.002), "eagle": fake.engine(1.0, drift=0.002)}
    runs = list(timing.alternate(methods, range(100), device="cpu", warmup=0))
    times = {name: [Work(1, run.seconds) for run in runs if run.method == name] for name in methods}
    measured = measured_speedup(times["plain"], times["eagle"])
    assert measured.headline.value == pytest.approx(2.0, rel=0.02)
    assert measured.median.value == pytest.approx(2.0, rel=0.02)
    # The same engine measured one method after the other shows why: it misses by far.
    later = FakeTime()
    blocks = {}
    for name, seconds in (("plain", 2.0), ("eagle", 1.0)):
        start = later.now
        for _ in range(100):
            later.engine(seconds, drift=0.002)()
        blocks[name] = later.now - start
    assert abs(blocks["plain"] / blocks["eagle"] - 2.0) > 0.2


def test_the_order_flips_item_by_item_and_is_in_the_rows(fake: FakeTime) -> None:
    methods = {name: fake.engine(1.0) for name in ("a", "b", "c")}
    runs = list(timing.alternate(methods, ["x", "y"], device="cpu", repeats=2))
    assert "".join(run.method for run in runs) == "abc" + "cba" + "cba" + "abc"
    assert [run.order for run in runs] == list(range(12))
    assert [(run.repeat, run.item) for run in runs[::3]] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_warm_up_runs_every_method_and_is_thrown_away(fake: FakeTime) -> None:
    seen: list[tuple[str, str]] = []
    methods = {name: (lambda item, name=name: seen.append((name, item))) for name in ("a", "b")}
    runs = list(timing.alternate(methods, ["x", "y"], device="cpu", warmup=1))
    assert sorted(seen[:2]) == [("a", "x"), ("b", "x")]
    assert len(seen) == 6 and len(runs) == 4


def test_skipped_runs_leave_the_order_of_the_others_as_it_was(fake: FakeTime) -> None:
    seen: list[tuple[str, str]] = []
    methods = {name: (lambda item, name=name: seen.append((name, item))) for name in ("a", "b")}
    done = {("a", 0, 0), ("b", 0, 0), ("b", 1, 0)}
    runs = list(timing.alternate(methods, ["x", "y"], device="cpu", skip=lambda *key: key in done))
    assert [(run.method, run.item, run.order) for run in runs] == [("a", 1, 3)]
    assert seen == [("a", "y"), ("a", "y")]  # one warm-up of what is left, one run


def test_runs_come_one_at_a_time_with_their_results(fake: FakeTime) -> None:
    seen: list[int] = []
    runs = timing.alternate({"a": lambda item: seen.append(item) or item * 10}, [1, 2], device="cpu", warmup=0)
    assert next(runs).result == 10 and seen == [1]
