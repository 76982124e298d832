"""Every way writes equally many tokens in turns; texts are compared as they come; nothing is run twice or half kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from eagle_repro.api import Pair
from eagle_repro.engine.generate import Generation, NonFiniteLogits
from eagle_repro.experiments import compared, rows, speedup
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.rows import Item, Way
from eagle_repro.experiments.session import Session
from eagle_repro.measure import summary
from eagle_repro.measure.records import Record, completeness

SETS = ("chat", "russian")
WAYS = ("plain/-", "hf/-", "eagle/default", "eagle/small")
TOKENS = 6
Write = Callable[..., Generation]


def writes(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    """Let every text be written by `write`."""
    for module in (speedup, compared):
        monkeypatch.setattr(module, "write_text", write)


def built(out: Path, **settings: Any) -> Protocol:
    small = {"sets": SETS, "questions": 2, "new_tokens": TOKENS, "total_tokens": 12, "depth": 2, "top_k": 5}
    return build_protocol({}, {"profile": "smoke"}, {**small, "out": str(out), **settings})


def measured(out: Path, pair: Pair, **settings: Any) -> Record:
    return speedup.measure(Session("02_speedup", built(out, **settings), pair))


@pytest.fixture(scope="module")
def record(trained: Pair, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return measured(tmp_path_factory.mktemp("record"), trained)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Every text that is written: set, way, tokens."""
    noted: list[tuple[str, str, int]] = []
    whole = rows.write_text

    def write(pair: Pair, way: Way, item: Item, tokens: int, **named: Any) -> Generation:
        noted.append((item.set, way.name, tokens))
        return whole(pair, way, item, tokens, **named)

    writes(monkeypatch, write)
    return noted


def runs_of(record: Record) -> pd.DataFrame:
    frame = record.frame()
    return frame[~frame["instrumented"]]


def test_every_question_is_written_every_way_to_equally_many_tokens(record: Record) -> None:
    runs = runs_of(record)
    greedy = runs[runs["temperature"] == 0]
    assert len(greedy) == len(SETS) * 2 * len(WAYS)
    assert set(greedy["method"] + "/" + greedy["variant"]) == set(WAYS)
    assert set(runs["tokens"]) == {TOKENS} and set(runs["stop_reason"]) == {"budget"}
    assert record.complete and not record.frame()["key"].duplicated().any()


def test_rows_say_mode_tree_domain_and_what_was_accepted(record: Record) -> None:
    row = next(row for row in record.rows if row["key"].startswith("russian/") and "/eagle/default/0" in row["key"])
    shape = (row["total_tokens"], row["depth"], row["top_k"], row["levels"])
    assert (row["method"], row["variant"], shape) == ("eagle", "default", (12, 2, 5, 3))
    assert (row["domain"], row["language"], row["prompt_tokens"] > 0) == ("out", "ru", True)
    assert row["tau"] == pytest.approx(sum(row["accepted"]) / len(row["accepted"]) + 1)
    plain = next(row for row in record.rows if "/plain/-/0" in row["key"])
    assert plain["accepted"] is plain["tau"] is plain["depth"] is None
    protocol = record.header["protocol"]
    assert protocol["sets"] == list(SETS) and protocol["thinking"] is False
    assert record.header["bench"]["question_sets"].keys() == set(SETS)


def test_the_order_of_the_ways_turns_from_question_to_question(record: Record) -> None:
    runs = runs_of(record)
    greedy = runs[runs["temperature"] == 0].sort_values("order")
    names = list(greedy["method"] + "/" + greedy["variant"])
    assert names == [*WAYS, *WAYS[::-1], *WAYS, *WAYS[::-1]]


def test_all_texts_are_plain_decodings_own(record: Record) -> None:
    runs = runs_of(record)
    assert runs["same_as_plain"].all() and (runs["near_ties"] == 0).all()
    assert set(runs.groupby(["set", "question", "temperature"])["ids_sha256"].nunique()) == {1}


def test_sampling_is_shown_on_russian_beside_greedy(record: Record) -> None:
    runs = runs_of(record)
    sampled = runs[runs["temperature"] > 0]
    assert list(sampled["key"].str.replace(r"russian/[^/]+/", "", regex=True)) == ["plain/sampled/0", "eagle/sampled/0"]
    assert set(sampled["temperature"]) == {0.7} and sampled["same_as_plain"].all()


def test_instrumented_runs_have_their_cycles_and_stay_out_of_the_headline(record: Record) -> None:
    frame, cycles = record.frame(), record.frame("cycle")
    inside = frame[frame["instrumented"]]
    assert set(inside["set"] + "/" + inside["variant"]) == {f"{s}/{v}" for s in SETS for v in ("default", "small")}
    assert set(cycles["key"]) == set(inside["key"])
    assert (cycles[["draft_s", "verify_s", "accept_s", "commit_s"]] > 0).all(axis=None)
    assert list(cycles[cycles["key"] == inside["key"].iloc[0]]["accepted"]) == inside["accepted"].iloc[0]
    table = summary.speedup(record)
    assert list(table["set"]) == ["chat", "chat", "russian", "russian", "russian"]
    assert list(table["questions"]) == [2, 2, 2, 2, 1]
    assert table["predicted"].notna().tolist() == [True] * 4 + [False]
    assert table["identical"].all()


def test_none_is_instrumented_when_none_is_asked_for(tmp_path: Path, trained: Pair) -> None:
    record = measured(tmp_path, trained, instrument_cycles=0, sets="chat", questions=1)
    assert not record.frame()["instrumented"].any() and record.frame("cycle").empty


def test_warm_up_comes_first_and_is_thrown_away(tmp_path: Path, trained: Pair, calls: list[Any]) -> None:
    record = measured(tmp_path, trained, sets="chat", questions=1, instrument_cycles=0)
    assert calls[:4] == [("chat", name, speedup.WARM_UP_TOKENS) for name in WAYS]
    assert calls[4:] == [("chat", name, TOKENS) for name in WAYS]
    assert len(record.rows) == 4


def test_a_run_that_was_cut_off_goes_on_with_what_is_missing(
    tmp_path: Path, trained: Pair, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = speedup.write_text

    def dying(*arguments: Any, **named: Any) -> Generation:
        if len(calls) == 4 + 6:  # four to warm up, question 0 four ways, two ways of question 1
            raise KeyboardInterrupt
        return whole(*arguments, **named)

    writes(monkeypatch, dying)
    settings = {"sets": "chat", "instrument_cycles": 0}
    session = Session("02_speedup", built(tmp_path, **settings), trained)
    with pytest.raises(KeyboardInterrupt):
        speedup.measure(session)
    # Question 1 runs backwards: its eagle runs came before its plain one, so that they cannot be judged yet.
    assert completeness(session.path) == "partial"
    assert [row["question"] for row in session.partial_rows()] == [session.partial_rows()[0]["question"]] * 4
    writes(monkeypatch, whole)
    del calls[:]
    record = measured(tmp_path, trained, **settings)
    assert [call for call in calls if call[2] == TOKENS] == [("chat", name, TOKENS) for name in WAYS[::-1]]
    assert len(record.rows) == 8 and record.complete


def test_a_text_is_judged_against_a_plain_run_of_an_earlier_session(
    tmp_path: Path, trained: Pair, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = speedup.write_text

    def dying(*arguments: Any, **named: Any) -> Generation:
        if len(calls) == 4 + 1:
            raise KeyboardInterrupt
        return whole(*arguments, **named)

    writes(monkeypatch, dying)
    settings = {"sets": "chat", "questions": 1, "instrument_cycles": 0}
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, trained, **settings)
    writes(monkeypatch, whole)
    record = measured(tmp_path, trained, **settings)
    assert [row["method"] for row in record.rows] == ["plain", "hf", "eagle", "eagle"]
    assert record.frame()["same_as_plain"].all()


def test_a_changed_token_is_told_as_a_difference(
    tmp_path: Path, trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = speedup.write_text

    def wrong(pair: Pair, way: Way, item: Item, tokens: int, **named: Any) -> Generation:
        done = whole(pair, way, item, tokens, **named)
        if way.name != "eagle/small" or tokens != TOKENS:
            return done
        return replace(done, ids=[*done.ids[:-1], (done.ids[-1] + 1) % pair.target.vocabulary])

    writes(monkeypatch, wrong)
    record = measured(tmp_path, trained, sets="chat", questions=1, instrument_cycles=0)
    verdicts = {row["variant"]: (row["same_as_plain"], row["verdict"], row["near_ties"]) for row in record.rows}
    assert verdicts["small"] == (False, "different", 0) and verdicts["default"] == (True, "identical", 0)
    table = summary.speedup(record).set_index("variant")
    assert not table.loc["small", "identical"] and table.loc["default", "identical"]


def test_a_near_tie_is_excused_and_counted(tmp_path: Path, trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compared.lossless.GAP, trained.target.dtype, 1e3)
    item = Item("chat", "1", [322, 27, 302])
    text = rows.write_text(trained, Way("plain"), item, TOKENS).ids
    other = [*text[:-1], (text[-1] + 1) % trained.target.vocabulary]
    judged = compared.compare_texts(trained, item, Way("eagle"), other, same=False)
    assert judged == {"same_as_plain": False, "near_ties": 1, "verdict": "near-ties"}


@pytest.mark.parametrize("method", ["plain", "eagle"])
def test_logits_that_are_not_finite_never_become_a_row(
    tmp_path: Path, trained: Pair, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    whole = speedup.write_text

    def overflow(pair: Pair, way: Way, item: Item, tokens: int, **named: Any) -> Generation:
        if way.method == method and tokens == TOKENS:
            raise NonFiniteLogits("the target's logits are not finite")
        return whole(pair, way, item, tokens, **named)

    writes(monkeypatch, overflow)
    session = Session("02_speedup", built(tmp_path, sets="chat"), trained)
    with pytest.raises(NonFiniteLogits):
        speedup.measure(session)
    assert method not in {row["method"] for row in session.partial_rows()}
    assert completeness(session.path) == "partial"


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, trained: Pair, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "max_length", 60)
    with pytest.raises(ValueError, match=r"question \S+ of chat has \d+ tokens.* max_length=60"):
        measured(tmp_path, trained)
    assert calls == [] and list(tmp_path.iterdir()) == []


def test_no_text_is_tokenised_while_texts_are_timed(
    tmp_path: Path, trained: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = speedup.read_items

    class Silent:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("the tokenizer was used in the speed path")

    def then_silence(protocol: Protocol, pair: Pair) -> list[Item]:
        items = whole(protocol, pair)
        monkeypatch.setattr(pair, "tokenizer", Silent())
        return items

    monkeypatch.setattr(speedup, "read_items", then_silence)
    assert measured(tmp_path, trained, sets="chat", questions=1).complete


def test_the_share_after_the_end_and_digests_follow_the_ids() -> None:
    assert rows.share_after_end([5, 6, 0, 7], frozenset({0})) == 0.25
    assert rows.share_after_end([5, 6, 0], frozenset({0})) == 0.0
    assert rows.share_after_end([5, 6], frozenset({0})) == 0.0
    assert rows.text_digest([1, 23]) != rows.text_digest([12, 3])


def test_the_frame_of_a_loaded_pair_is_the_summary(tmp_path: Path, trained: Pair) -> None:
    frame = speedup.run(trained, built(tmp_path, sets="chat", questions=1), tmp_path / "there")
    assert list(frame["variant"]) == ["default", "small"] and (tmp_path / "there" / "02_speedup.jsonl").exists()
