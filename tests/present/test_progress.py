"""The bar shows where a person watches and nowhere else."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel

from eagle_repro.present import progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[io.StringIO], io.StringIO]:
    """Make a stream the standard error output. Called inside a test, for pytest swaps the stream after fixtures."""
    monkeypatch.delenv("EAGLE_REPRO_QUIET", raising=False)
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)

    def attach(stream: io.StringIO) -> io.StringIO:
        monkeypatch.setattr("sys.stderr", stream)
        return stream

    return attach


Watch = Callable[[io.StringIO], io.StringIO]


def test_a_terminal_gets_a_bar_that_passes_everything_on(watch: Watch) -> None:
    terminal = watch(Terminal())
    assert list(progress.bar(iter("abc"), "letters", total=3)) == ["a", "b", "c"]
    assert "letters" in terminal.getvalue()


def test_many_items_write_little(watch: Watch) -> None:
    terminal = watch(Terminal())
    assert sum(1 for _ in progress.bar(range(100_000), "many")) == 100_000
    assert 0 < len(terminal.getvalue()) < 2_000


def test_a_pipe_gets_none(watch: Watch) -> None:
    pipe = watch(io.StringIO())
    assert list(progress.bar([1, 2])) == [1, 2]
    assert pipe.getvalue() == ""


@pytest.mark.parametrize(("name", "value"), [("EAGLE_REPRO_QUIET", "1"), ("KAGGLE_KERNEL_RUN_TYPE", "Batch")])
def test_the_runner_and_a_kaggle_batch_get_none(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    terminal = watch(Terminal())
    assert progress.watched_in() == "terminal"
    monkeypatch.setenv(name, value)
    assert list(progress.bar([1, 2])) == [1, 2]
    assert terminal.getvalue() == ""


def test_kaggle_interactive_is_watched(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(io.StringIO())
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    monkeypatch.setattr(progress, "_kernel", lambda: SimpleNamespace(_allow_stdin=True))
    assert progress.watched_in() == "notebook"


@pytest.mark.slow
@pytest.mark.parametrize(("person", "expected"), [(True, "notebook"), (False, None)])
def test_a_kernel_knows_a_front_end_from_a_headless_run(
    monkeypatch: pytest.MonkeyPatch, person: bool, expected: str | None
) -> None:
    """papermill, nbclient and nbval execute with allow_stdin false; Jupyter's front ends with true."""
    monkeypatch.delenv("EAGLE_REPRO_QUIET", raising=False)
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        code = "from eagle_repro.present import progress; print('watched:', progress.watched_in())"
        printed: list[str] = []
        client.execute_interactive(
            code,
            allow_stdin=person,
            timeout=60,
            output_hook=lambda message: printed.append(message["content"].get("text", "")),
        )
        assert f"watched: {expected}" in "".join(printed)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
