"""Which record a machine without a GPU shows: its own, or a published one that holds more."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_repro.experiments import published
from eagle_repro.measure.records import Record, RecordError


def record(name: str, pair: str, device: str, rows: int) -> Record:
    header = {"name": "08_stack", "bench": {"device": device, "pair": {"name": pair}}}
    return Record(header, [{"row": row} for row in range(rows)], {}, Path(name))


def holds(given: Record) -> int:
    if not given.rows:
        raise ValueError("nothing to show")
    if given.path.name == "foreign":
        raise RecordError("no such rows")
    return len(given.rows)


OWN = record("own", "small", "cpu", 2)
SAME, FULLER = record("same", "small", "cuda", 5), record("fuller", "small", "cuda:0", 6)
OTHER, CPU, EMPTY = (
    record("other", "large", "cuda", 9),
    record("cpu", "small", "cpu", 9),
    record("-", "small", "cuda", 0),
)
FOREIGN = record("foreign", "small", "cuda", 9)


@pytest.mark.parametrize(
    ("others", "shown"),
    [
        ([], OWN),
        ([CPU, EMPTY, FOREIGN], OWN),
        ([record("as much", "small", "cuda", 2)], OWN),
        ([OTHER, EMPTY], OTHER),
        ([OTHER, SAME, FULLER, CPU], FULLER),
        ([record("less", "small", "cuda", 1), OTHER], OTHER),
    ],
)
def test_of_those_that_hold_more_the_same_pairs_comes_first_and_then_the_fullest(
    others: list[Record], shown: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in (others, others[::-1]):
        monkeypatch.setattr(published, "published", lambda name, given=order: given)
        assert published.of_a_gpu(OWN, holds) is shown


def test_a_gpus_own_record_is_shown_and_an_own_one_that_shows_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "published", lambda name: [OTHER])
    assert published.of_a_gpu(SAME, holds) is SAME
    with pytest.raises(ValueError, match="nothing to show"):
        published.of_a_gpu(record("own", "small", "cpu", 0), holds)
