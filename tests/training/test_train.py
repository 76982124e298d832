"""The loop: the same head from the same seed, also across a kill; what is saved loads, drafts and learns."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle_repro.api import Pair
from eagle_repro.engine.head import Eagle3Head, load_head
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.target import Target
from eagle_repro.sources.paths import data_folder
from eagle_repro.training.batches import Batch
from eagle_repro.training.checkpoints import read_log
from eagle_repro.training.corpus import Corpus, save_corpus
from eagle_repro.training.fit import FitSettings, fit
from eagle_repro.training.heads import draft_vocabulary, head_from, new_head, save_head
from eagle_repro.training.objective import Losses, Objective, Observer
from eagle_repro.training.settings import TrainSettings, needed_bytes
from eagle_repro.training.tau import tau_of
from eagle_repro.training.train import Trainer, train
from eagle_repro.training.write import CorpusSettings

SETTINGS = TrainSettings(steps=8, batch_tokens=192, length=64, unrolled=3, checkpoint_every=3, log_every=2, warm_up=2)
TINY_HEAD = data_folder() / "pairs" / "tiny" / "head"
FIT = FitSettings("general", CorpusSettings(1), replace(SETTINGS, steps=1), tau_prompts=0)


def fresh(tiny: Pair, corpus: Corpus, seed: int = 0) -> Eagle3Head:
    return new_head(tiny.target, tiny.head.config, draft_vocabulary(corpus.token_counts(512), 208), seed)


def weights(head: Eagle3Head) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in head.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def almost(target: Target) -> Target:
    """The same target but for one weight."""
    model = deepcopy(target.model)
    with torch.no_grad():
        next(model.get_decoder().layers[0].parameters()).view(-1)[0] += 0.5
    return Target(model)


class Clock:
    """A time module whose clock is moved on by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


def stop_after(count: int) -> Any:
    """A progress that dies like a killed process: after so many steps, whatever is under way."""

    def progress(items: Any, label: str, total: int | None) -> Any:
        for number, item in enumerate(items, start=1):
            yield item
            if number == count:
                raise KeyboardInterrupt

    return progress


def test_two_runs_are_bit_equal_and_a_killed_one_goes_on_to_the_same_head(
    tiny: Pair, corpus: Corpus, tmp_path: Path
) -> None:
    heads = [fresh(tiny, corpus) for _ in range(4)]
    for number in (0, 1):
        train(tiny.target, heads[number], corpus, SETTINGS, tmp_path / str(number))
    assert same(weights(heads[0]), weights(heads[1]))
    assert not same(weights(heads[0]), weights(heads[2]))
    with pytest.raises(KeyboardInterrupt):
        train(tiny.target, heads[2], corpus, SETTINGS, tmp_path / "killed", progress=stop_after(5))
    resumed = train(tiny.target, heads[3], corpus, SETTINGS, tmp_path / "killed")
    assert resumed["steps_before_this_session"] == 3
    assert same(weights(heads[0]), weights(heads[3]))
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("0", "killed")]
    plain = [[{**row, "seconds": 0} for row in log] for log in logs]
    assert plain[0] == plain[1] and [row["step"] for row in plain[0]] == [2, 4, 6, 8]


def test_another_seed_gives_another_order_and_another_head(tiny: Pair, corpus: Corpus, tmp_path: Path) -> None:
    heads = [fresh(tiny, corpus, seed=0) for _ in range(2)]
    for seed, head in enumerate(heads):
        train(tiny.target, head, corpus, replace(SETTINGS, steps=2, seed=seed), tmp_path / str(seed))
    assert not same(weights(heads[0]), weights(heads[1]))


def test_a_checkpoint_of_another_run_is_refused(tiny: Pair, corpus: Corpus, tmp_path: Path) -> None:
    short = replace(SETTINGS, steps=3)
    train(tiny.target, fresh(tiny, corpus), corpus, short, tmp_path)
    turned = Corpus(corpus.tokens[::-1], corpus.rows, corpus.provenance)  # as many tokens as before
    runs: dict[str, tuple[Target, Eagle3Head, Corpus, TrainSettings]] = {
        "rate": (tiny.target, fresh(tiny, corpus), corpus, replace(short, rate=1e-4)),
        "start": (tiny.target, fresh(tiny, corpus, seed=1), corpus, short),
        "target": (almost(tiny.target), fresh(tiny, corpus), corpus, short),
        "corpus": (tiny.target, fresh(tiny, corpus), turned, short),
    }
    for changed, (target, head, texts, settings) in runs.items():
        said = rf"with other contents or settings \({changed}\): repeat them, or choose another output folder"
        with pytest.raises(ValueError, match=said):
            train(target, head, texts, settings, tmp_path)


def test_a_run_from_another_head_leaves_the_finished_one_as_it_is(tiny: Pair, corpus: Corpus, tmp_path: Path) -> None:
    save_corpus(corpus, tmp_path / "corpus")
    other = fresh(tiny, corpus, seed=1)
    save_head(other, tmp_path / "other", {})
    settings = replace(FIT, start=TINY_HEAD, corpus_folder=tmp_path / "corpus")
    fit(tiny.target, tiny.tokenizer, tiny.head.config, settings, tmp_path / "out")
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"\(start\)"):
        again = replace(settings, start=tmp_path / "other")
        fit(tiny.target, tiny.tokenizer, tiny.head.config, again, tmp_path / "out")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == files


def test_minutes_become_a_number_of_steps_after_some_are_timed(
    tiny: Pair, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MEASURED", 4), ("SETTLED", 2)):
        monkeypatch.setattr(f"eagle_repro.training.train.{name}", value)
    settings = replace(SETTINGS, steps=None, minutes=1e-6)
    trainer = Trainer(tiny.target, fresh(tiny, corpus), corpus, settings, tmp_path)
    assert trainer._affordable(spent=10.0, step_seconds=0.5) == 4  # what is spent already is more than the minutes
    trainer.settings = replace(settings, minutes=1.0)
    assert trainer._affordable(spent=10.0, step_seconds=0.5) == 4 + 100
    assert train(tiny.target, fresh(tiny, corpus), corpus, settings, tmp_path)["steps"] == 4


def test_a_run_of_minutes_that_was_killed_while_it_was_timed_leaves_out_the_same_steps(
    tiny: Pair, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MEASURED", 6), ("SETTLED", 2)):
        monkeypatch.setattr(f"eagle_repro.training.train.{name}", value)
    monkeypatch.setattr("eagle_repro.training.train.time", Clock())
    settings = replace(SETTINGS, steps=None, minutes=1.0, checkpoint_every=3)
    asked: list[float] = []
    monkeypatch.setattr(Trainer, "_affordable", lambda self, spent, step_seconds: asked.append(step_seconds) or 6)
    train(tiny.target, fresh(tiny, corpus), corpus, settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tiny.target, fresh(tiny, corpus), corpus, settings, tmp_path / "killed", progress=stop_after(4))
    train(tiny.target, fresh(tiny, corpus), corpus, settings, tmp_path / "killed")
    assert asked[0] == asked[1]


@pytest.mark.parametrize("broken", ["loss", "weights"])
def test_what_is_not_finite_is_never_kept_as_a_checkpoint(
    tiny: Pair, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    whole = Trainer._one_step

    def breaking(self: Trainer, batch: Any) -> Losses:
        losses = whole(self, batch)
        if self.step == 2 and broken == "weights":
            next(self.head.parameters()).data.fill_(torch.nan)
        return losses._replace(entropy=losses.entropy * torch.nan) if self.step == 2 and broken == "loss" else losses

    monkeypatch.setattr(Trainer, "_one_step", breaking)
    with pytest.raises(ArithmeticError, match=r"step 3.*lower --rate"):
        train(tiny.target, fresh(tiny, corpus), corpus, SETTINGS, tmp_path)  # step 3 is kept, and not logged
    assert not (tmp_path / "checkpoint.pt").exists()


@pytest.mark.parametrize(("steps", "count", "kept"), [(10, 4, [3, 5, 8, 10]), (8, 2, [4, 8]), (3, 5, [1, 2, 3])])
def test_as_many_heads_are_saved_on_the_way_as_are_asked_for(
    tiny: Pair, corpus: Corpus, tmp_path: Path, steps: int, count: int, kept: list[int]
) -> None:
    train(tiny.target, fresh(tiny, corpus), corpus, replace(SETTINGS, steps=steps, snapshots=count), tmp_path)
    found = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert found == [f"step-{step:06d}" for step in kept]


def test_the_rate_warms_up_and_falls_to_almost_nothing() -> None:
    settings = TrainSettings(steps=100, rate=0.01, warm_up=10)
    rates = [settings.rate_at(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.001) and max(rates) == pytest.approx(0.01) == rates[10]
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False)) and rates[-1] < 2e-5
    assert settings.rate_at(4, None) == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": None}, "give steps or minutes"),
        ({"minutes": 3.0}, "give steps or minutes"),
        ({"steps": -1}, "must be positive"),
        ({"seed": -1}, "seed=-1 was given: a whole number from 0"),
        ({"seed": 2**63}, "a whole number from 0"),
        ({"unrolled": 9}, "unrolled=9 must lie in 1..8"),
        ({"batch_tokens": 10}, "batch_tokens=10 be at least length=64"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(SETTINGS, **wrong)


@pytest.mark.parametrize(
    ("sequences", "length", "unrolled", "drafted"),
    [(3, 64, 3, 208), (3, 64, 6, 208), (30, 64, 3, 208), (3, 512, 3, 208), (3, 64, 3, 512)],
)
def test_the_estimate_of_memory_holds_what_a_step_keeps_and_not_twice_as_much(
    tiny: Pair, sequences: int, length: int, unrolled: int, drafted: int
) -> None:
    head = new_head(tiny.target, tiny.head.config, torch.arange(drafted), seed=0)
    tokens = torch.randint(5, 500, (sequences, length), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens, torch.arange(length).expand_as(tokens), torch.ones_like(tokens), tokens > 0)
    observed = Observer(tiny.target, head, sequences, length)(batch)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        Objective(head, unrolled, torch.bfloat16)(batch, observed)
    state = 4 * sum(4 * weight.numel() for weight in head.parameters())  # weights, gradient and both moments
    settings = replace(SETTINGS, batch_tokens=sequences * length, length=length, unrolled=unrolled)
    estimate = needed_bytes(tiny.target, head.config, settings)
    assert 1 <= estimate / (state + sum(kept.values())) < 2


def test_a_saved_head_loads_as_it_was(tiny: Pair, corpus: Corpus, tmp_path: Path) -> None:
    head = fresh(tiny, corpus)
    save_head(head, tmp_path, {"seed": 0})
    read = load_head(tmp_path, tiny.target.embedding)
    assert read.config == head.config
    for name, tensor in head.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor.half().float() if tensor.is_floating_point() else tensor)
    assert json.loads((tmp_path / "PROVENANCE.json").read_text())["seed"] == 0


def test_going_on_from_a_head_keeps_its_vocabulary_byte_by_byte(tiny: Pair, corpus: Corpus, tmp_path: Path) -> None:
    save_corpus(corpus, tmp_path / "corpus")
    settings = replace(FIT, start=TINY_HEAD, corpus_folder=tmp_path / "corpus")
    fit(tiny.target, tiny.tokenizer, tiny.head.config, settings, tmp_path / "out")
    before, after = (load_file(path / "model.safetensors") for path in (TINY_HEAD, tmp_path / "out" / "head"))
    for name in ("d2t", "t2d"):
        assert torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype
    assert not torch.equal(before["fc.weight"], after["fc.weight"].float())


def test_a_head_to_go_on_from_drafts_as_before(tiny: Pair) -> None:
    head = head_from(TINY_HEAD, tiny.target)
    assert all(weight.dtype == torch.float32 and weight.requires_grad for weight in head.parameters())
    assert head.shared_embedding.data_ptr() == tiny.target.embedding.data_ptr()
    assert same(head.state_dict(), tiny.head.state_dict())


@pytest.mark.slow
def test_a_head_trained_within_a_minute_beats_a_random_one(tiny: Pair, tmp_path: Path) -> None:
    settings = FitSettings(
        recipe="general",
        corpus=CorpusSettings(answer_tokens=12_000, positions=96, turn=16, rows=32),
        training=TrainSettings(steps=150, batch_tokens=768, length=96, unrolled=4, rate=3e-3, warm_up=10),
        tau_prompts=4,
        tau_tokens=48,
        tree=TreeShape(16, 4, 4),
    )
    done = fit(tiny.target, tiny.tokenizer, tiny.head.config, settings, tmp_path)
    first, last = (read_log(tmp_path / "log.jsonl")[place] for place in (0, -1))
    assert last["loss"] < 0.7 * first["loss"]
    assert done["tau"]["after"] > 1.5 * done["tau"]["before"]
    assert tau_of(tiny.target, tmp_path / "head", [[5, 6, 7, 8]], settings.tree, 16) is not None
