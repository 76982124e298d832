"""Chain and tree draft equally deep, do equal work in turns, and a run that was cut off goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle_repro.api import Pair
from eagle_repro.experiments import chain_vs_tree
from eagle_repro.experiments.protocol import PROFILES, Protocol, build_protocol
from eagle_repro.experiments.session import Session
from eagle_repro.measure import branching
from eagle_repro.measure.records import Record, completeness

TOKENS = 8


def built(out: Path, **settings: Any) -> Protocol:
    small = {"sets": ("chat", "russian"), "questions": 2, "new_tokens": TOKENS, "out": str(out)}
    return build_protocol({}, {"profile": "smoke"}, small | settings)


def session(out: Path, pair: Pair, **settings: Any) -> Session:
    return Session("04_chain_vs_tree", built(out, **settings), pair)


@pytest.fixture(scope="module")
def record(trained: Pair, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return chain_vs_tree.measure(session(tmp_path_factory.mktemp("record"), trained))


def test_chain_and_tree_are_equally_deep_and_write_plain_decodings_text(record: Record) -> None:
    runs = record.frame()
    assert len(runs) == 2 * 2 * 3 and set(runs["method"]) == {"plain", "chain", "eagle"}
    assert set(runs["what"]) == {"text"} and set(runs["tokens"]) == {TOKENS}
    assert runs["same_as_plain"].all()
    shapes = branching.trees(record)
    assert shapes["chain"]["depth"] == shapes["eagle"]["depth"] == 3
    assert shapes["chain"] == {"total_tokens": 5, "depth": 3, "top_k": 1}
    assert runs.loc[runs["method"] != "plain", "levels"].eq(4).all()


def test_a_chain_accepts_no_more_than_it_drafts(record: Record) -> None:
    rows = record.frame()
    for accepted in rows.loc[rows["method"] == "chain", "accepted"]:
        assert all(0 <= count <= 4 for count in accepted)
        assert sum(accepted) + len(accepted) >= TOKENS - 1


def test_the_three_take_turns(record: Record) -> None:
    methods = list(record.frame().sort_values("order")["method"])
    ways = ["plain", "chain", "eagle"]
    assert methods == [*ways, *ways[::-1]] * 2


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_has_its_tree(profile: str, tmp_path: Path) -> None:
    protocol = build_protocol({}, {"profile": profile, "device": "cpu", "dtype": "float32"}, {"out": str(tmp_path)})
    plain, chain, tree = chain_vs_tree.ways_of(protocol)
    assert (plain.method, chain.method, tree.method) == ("plain", "chain", "eagle")
    assert chain.shape and tree.shape and chain.shape.levels == tree.shape.levels
    assert tree.shape.total_tokens > chain.shape.total_tokens


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(
    trained: Pair, record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def stop_after_four(items: Any, label: str = "", total: int | None = None) -> Any:
        for item in items:
            if len(seen) == 4:
                raise KeyboardInterrupt
            seen.append(item)
            yield item

    begun = session(tmp_path, trained)
    with pytest.raises(KeyboardInterrupt):
        chain_vs_tree.measure(begun, progress=stop_after_four)
    assert completeness(begun.path) == "partial"
    done = chain_vs_tree.measure(session(tmp_path, trained))
    assert done.complete and list(done.frame()["key"]) == list(record.frame()["key"])
    assert list(done.frame()["ids_sha256"]) == list(record.frame()["ids_sha256"])


def test_run_gives_the_summary_of_a_loaded_pair(trained: Pair, tmp_path: Path) -> None:
    frame = chain_vs_tree.run(trained, built(tmp_path, questions=1), tmp_path)
    assert list(frame["group"]) == ["chat", "russian", "all"]
