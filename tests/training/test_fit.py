"""From a pair to a head: what is refused before anything is written, what is written again, what processes wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eagle_repro.api import Pair
from eagle_repro.training import settings as memory
from eagle_repro.training import train as training
from eagle_repro.training.corpus import Corpus, load_corpus
from eagle_repro.training.fit import PATIENCE, FitSettings, fit
from eagle_repro.training.heads import draft_vocabulary, new_head, read_json
from eagle_repro.training.recipes import find_recipe
from eagle_repro.training.settings import TrainSettings, require_memory
from eagle_repro.training.write import CorpusSettings, fitting_rows, write_corpus
from tests.training.test_train import SETTINGS, TINY_HEAD, almost

SETTINGS_OF_FIT = FitSettings(
    recipe="general",
    corpus=CorpusSettings(answer_tokens=200, positions=48, turn=4, rows=8),
    training=TrainSettings(steps=1, batch_tokens=96, length=48, unrolled=2),
    tau_prompts=0,
)


def fitted(pair: Pair, out: Path, prompts: Sequence[str] = (), **changed: Any) -> dict[str, Any]:
    settings = replace(SETTINGS_OF_FIT, **changed)
    return fit(pair.target, pair.tokenizer, pair.head.config, settings, out, prompts=prompts)


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_repro.training.fit.write_corpus", lambda *_, **__: pytest.fail("a corpus is written"))


# --- before anything is written ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"start": TINY_HEAD, "draft": 64}, "keeps its draft vocabulary: leave --draft-vocabulary out"),
        ({"start": Path("nowhere")}, "no config.json in the head folder nowhere"),
        ({"draft": 600}, "a draft vocabulary of 600 asked of 512 ids: ask for 1 to 512"),
        ({"draft": 0}, "a draft vocabulary of 0 asked of 512 ids"),
        ({"corpus": CorpusSettings(200, positions=64)}, "sequences of 48 tokens do not hold conversations of 64"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_corpus_is_written(
    tiny: Pair, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        fitted(tiny, tmp_path, **wrong)


@pytest.mark.usefixtures("unwritten")
def test_short_memory_is_refused_before_a_corpus_is_written(
    tiny: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(needed: int, device: torch.device) -> None:
        raise RuntimeError(f"training needs about {needed} bytes")

    monkeypatch.setattr("eagle_repro.training.fit.require_memory", short)
    with pytest.raises(RuntimeError, match="training needs about"):
        fitted(tiny, tmp_path)


def test_a_corpus_alone_may_hold_conversations_of_any_length(tiny: Pair, tmp_path: Path) -> None:
    fitted(tiny, tmp_path, corpus=CorpusSettings(100, positions=64, turn=8, rows=8), corpus_only=True)
    assert (tmp_path / "corpus" / "corpus.json").is_file()


@pytest.mark.parametrize(
    ("settings", "prompts", "said"),
    [
        (CorpusSettings(200, positions=48, turn=4, rows=1), ["x", "long " * 60], "a prompt of .* leaves no room"),
        (CorpusSettings(200, positions=48, turn=40, rows=1), [], "a turn of 40 more leave no room .* a shorter turn"),
    ],
)
def test_no_step_is_taken_for_a_corpus_that_has_no_room(
    tiny: Pair, monkeypatch: pytest.MonkeyPatch, settings: CorpusSettings, prompts: list[str], said: str
) -> None:
    monkeypatch.setattr("eagle_repro.training.writer.Writer.step", lambda _: pytest.fail("a step is taken"))
    with pytest.raises(ValueError, match=said):
        write_corpus(tiny.target, tiny.tokenizer, find_recipe("general"), settings, prompts=prompts)


# --- what is there already -----------------------------------------------------------------------------------------


def test_a_corpus_is_kept_for_the_same_target_and_prompts_alone(tiny: Pair, tmp_path: Path) -> None:
    def written(pair: Pair, prompts: list[str]) -> str:
        fitted(pair, tmp_path, prompts, corpus_only=True)
        return (tmp_path / "corpus" / "corpus.json").read_text(encoding="utf-8")  # with its seconds, never twice alike

    first = written(tiny, ["Where is the key?"])
    assert written(tiny, ["Where is the key?"]) == first
    second = written(tiny, ["Who found the bag?"])
    assert second != first and load_corpus(tmp_path / "corpus").provenance["own_prompts"] == 1
    other = replace(tiny, target=almost(tiny.target))
    assert written(other, ["Who found the bag?"]) != second


def test_a_corpus_that_a_training_goes_on_with_is_not_written_over(tiny: Pair, tmp_path: Path) -> None:
    fitted(tiny, tmp_path)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "corpus").iterdir())}
    with pytest.raises(ValueError, match="holds a training on another corpus"):
        fitted(tiny, tmp_path, corpus=replace(SETTINGS_OF_FIT.corpus, seed=1))
    assert before == {path: path.read_bytes() for path in sorted((tmp_path / "corpus").iterdir())}


# --- several processes ---------------------------------------------------------------------------------------------


def test_others_fail_with_the_first_process(tiny: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two processes: it waits whatever lies in the folder, and hears what went wrong."""
    second = SimpleNamespace(is_main_process=False, num_processes=2)
    waits: list[Any] = []

    def state(**options: Any) -> Any:
        waits.append(options.get("timeout"))
        return second

    def told(objects: list[Any]) -> None:
        assert objects == [None]
        objects[0] = "ValueError: no room"

    fitted(tiny, tmp_path, corpus_only=True)
    monkeypatch.setattr("eagle_repro.training.fit.PartialState", state)
    monkeypatch.setattr("eagle_repro.training.fit.broadcast_object_list", told)
    with pytest.raises(RuntimeError, match="the first process has failed: ValueError: no room"):
        fitted(tiny, tmp_path)
    assert waits[0] == PATIENCE and PATIENCE.total_seconds() > 3600


def test_the_first_process_tells_the_others_before_it_fails(
    tiny: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr("eagle_repro.training.fit.broadcast_object_list", said.extend)
    with pytest.raises(ValueError, match="leaves no room"):
        fitted(tiny, tmp_path, ["long " * 60])
    assert len(said) == 1 and said[0].startswith("ValueError: a prompt of")
    monkeypatch.setattr("eagle_repro.training.fit.tau_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fitted(tiny, tmp_path)
    assert said[1:] == [None, "ZeroDivisionError: division by zero"]


# --- memory of a card ----------------------------------------------------------------------------------------------


def test_free_memory_is_asked_for_when_what_is_gone_was_handed_back(
    tiny: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [1000]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(10**9))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[-1], 2 * 10**9))
    require_memory(10**8, torch.device("cuda"))
    with pytest.raises(RuntimeError, match="needs about 2.0 GB and cuda has 1.0 GB free: give fewer --batch-tokens"):
        require_memory(2 * 10**9, torch.device("cuda"))
    free[:] = [1000]
    sizes = ("layers", "kv_heads", "head_dim", "dtype", "vocabulary")
    on_a_card = SimpleNamespace(device=torch.device("cuda"), **{name: getattr(tiny.target, name) for name in sizes})
    assert fitting_rows(on_a_card, 48) > 1  # type: ignore[arg-type]


def test_the_peak_is_the_trainings_own(
    tiny: Pair, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = [9 * 10**9]  # of the corpus that was written before
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.append(10**9))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10**9)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[-1] + 500)
    card = torch.device("cuda")
    assert memory.peak_beside(memory.forget_peak(card), card) == 500

    monkeypatch.setattr(training, "forget_peak", lambda device: 10**9)
    monkeypatch.setattr(training, "peak_beside", lambda held, device: 2 * 10**9 - held)
    head = new_head(tiny.target, tiny.head.config, draft_vocabulary(corpus.token_counts(512), 208), seed=0)
    done = training.train(tiny.target, head, corpus, replace(SETTINGS, steps=1), tmp_path)
    assert done["peak_bytes"] == 10**9 + sum(4 * weight.numel() for weight in head.parameters())


@pytest.mark.parametrize("text", ["", '{"steps": ', "[1]"])
def test_a_file_that_holds_no_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ValueError, match=r"summary\.json holds no JSON object .*make it again"):
        read_json(tmp_path / "summary.json")
