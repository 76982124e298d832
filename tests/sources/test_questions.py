"""Question sets: the bytes are the manifest's, the texts are our own, and a fault is named."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from eagle_repro.sources import questions as q

OWN = [name for name, info in q.SETS.items() if not info.external]
EXTERNAL = [name for name, info in q.SETS.items() if info.external]
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "eagle_sets"
EAGLE_SETS = Path(os.environ.get(q.SETS_VARIABLE) or BESIDE)
needs_eagle_sets = pytest.mark.skipif(
    not all((EAGLE_SETS / q.SETS[name].file).is_file() for name in EXTERNAL),
    reason=f"the four EAGLE sets are not in {EAGLE_SETS}",
)


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's cache or the network by accident."""
    monkeypatch.delenv(q.SETS_VARIABLE, raising=False)
    monkeypatch.setenv("EAGLE_REPRO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An external set `small` of two questions; gives the file behind its download address."""
    rows = [{"question_id": i, "category": "", "turns": [f"Question {i}?", "And then?"]} for i in range(2)]
    source = tmp_path / "upstream" / "question.jsonl"
    source.parent.mkdir()
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    payload = source.read_bytes()
    info = replace(
        q.SETS["gsm8k"],
        name="small",
        file="small/question.jsonl",
        sha256=hashlib.sha256(payload).hexdigest(),
        size=len(payload),
        count=2,
        url=source.as_uri(),
    )
    monkeypatch.setitem(q.SETS, "small", info)
    return source


def _no_network(*args: object, **kwargs: object) -> None:
    raise AssertionError("the network was touched")


# --- the committed files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN)
def test_own_set_is_what_the_manifest_says(name: str) -> None:
    info, loaded = q.SETS[name], q.load_questions(name)
    path = q.data_folder() / "questions" / info.file
    assert (path.stat().st_size, len(loaded)) == (info.size, info.count)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == q.set_checksum(name)
    assert info.count >= 20 and all(len(question.turns) in (1, 2) for question in loaded)
    assert "\\u" not in path.read_text(encoding="utf-8"), "text is kept readable, not escaped"


@pytest.mark.parametrize("name", OWN)
def test_language_and_domain_are_as_declared(name: str) -> None:
    text = "".join(turn for question in q.load_questions(name) for turn in question.turns)
    cyrillic = len(re.findall("[а-яё]", text.lower())) / len(re.findall(r"[^\W\d_]", text))
    assert (cyrillic > 0.9) == (q.SETS[name].language == "ru")
    assert (cyrillic == 0) == (q.SETS[name].language != "ru")
    assert q.SETS[name].domain == {"outside": "out", "russian": "out"}.get(name, q.SETS[name].domain)
    assert q.SETS[name].domain in ("in", "out")


@pytest.mark.parametrize(("change", "said"), [({"size": None}, "'size'"), ({"colour": "red"}, "'colour'")])
def test_a_manifest_with_a_wrong_field_is_refused_in_one_line(
    change: dict[str, str | None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = json.loads((q.data_folder() / "questions/manifest.json").read_text(encoding="utf-8"))["sets"]
    entry = {name: value for name, value in (sets["chat"] | change).items() if value is not None}
    (tmp_path / "questions").mkdir()
    (tmp_path / "questions/manifest.json").write_text(json.dumps({"sets": {"garden": entry}}))
    monkeypatch.setattr(q, "data_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=f"manifest.json, set 'garden': .*{said}"):
        q._read_manifest()


def test_no_question_is_repeated_inside_or_across_sets() -> None:
    turns = [turn for name in OWN for question in q.load_questions(name) for turn in question.turns]
    ids = [question.id for name in OWN for question in q.load_questions(name)]
    assert len(set(ids)) == len(ids)
    grams = [(turn, q.word_grams(turn)) for turn in turns]
    near = [(a[0], b[0]) for a, b in combinations(grams, 2) if a[0] == b[0] or a[1] & b[1]]
    assert near == []


@needs_eagle_sets
@pytest.mark.shared
def test_own_sets_share_no_eight_words_with_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(q.SETS_VARIABLE, str(EAGLE_SETS))
    theirs: set[tuple[str, ...]] = set()
    for name in EXTERNAL:
        theirs.update(*(q.word_grams(turn) for question in q.load_questions(name) for turn in question.turns))
    assert len(theirs) > 5000
    shared = [
        (name, turn)
        for name in OWN
        for question in q.load_questions(name)
        for turn in question.turns
        if q.word_grams(turn) & theirs
    ]
    assert shared == []


def test_word_grams_see_a_near_copy_through_case_and_punctuation() -> None:
    theirs = "Write a function, please, that adds two numbers and prints them."
    ours = "Now: WRITE a function please that adds two numbers - or three!"
    assert q.word_grams(theirs) & q.word_grams(ours)
    assert not q.word_grams(theirs) & q.word_grams("Write a function that adds two numbers and prints them.")


# --- external sets ------------------------------------------------------------------------------------------


@needs_eagle_sets
@pytest.mark.shared
@pytest.mark.parametrize("name", ["mt_bench", "humaneval", "gsm8k", "alpaca"])
def test_eagle_sets_are_read_from_a_named_folder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(q.SETS_VARIABLE, str(EAGLE_SETS))
    monkeypatch.setattr(q.urllib.request, "urlopen", _no_network)
    info = q.SETS[name]
    assert len(q.load_questions(name)) == info.count == 80
    assert (EAGLE_SETS / info.file).stat().st_size == info.size


@pytest.mark.parametrize("name", EXTERNAL)
def test_download_address_is_pinned_to_a_commit(name: str) -> None:
    info = q.SETS[name]
    assert info.url == f"https://raw.githubusercontent.com/{info.repository}/{info.commit}/{info.path}"
    assert re.fullmatch("[0-9a-f]{40}", info.commit or "")


def test_external_set_is_downloaded_once(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not q.available("small")
    first = q.load_questions("small")
    assert [question.turns[0] for question in first] == ["Question 0?", "Question 1?"]
    monkeypatch.setattr(q.urllib.request, "urlopen", _no_network)
    assert q.available("small") and q.load_questions("small") == first
    stored = q.cache_folder() / "questions" / "small"
    assert [path.name for path in stored.iterdir()] == ["question.jsonl"], "no partial file stays behind"


def test_a_set_of_an_attached_dataset_is_read_where_it_lies(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGGLE_CACHE_MOUNT_FOLDER", str(tmp_path / "input"))
    attached = tmp_path / "input" / "datasets" / "me" / "kit" / "questions" / "small" / "question.jsonl"
    attached.parent.mkdir(parents=True)
    attached.write_bytes(small.read_bytes())
    assert q.available("small") and q.question_file("small") == attached
    assert [question.id for question in q.load_questions("small", offline=True)] == ["0", "1"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("fault", ["altered", "cut", "longer"])
def test_wrong_download_is_refused_and_not_kept(small: Path, fault: str) -> None:
    good = small.read_bytes()
    bad = {"altered": good.replace(b"then", b"them"), "cut": good[:-9], "longer": good + b"\n"}[fault]
    small.write_bytes(bad)
    with pytest.raises(ValueError, match=f"needs {q.set_checksum('small')}"):
        q.load_questions("small")
    assert not q.available("small") and not list(q.cache_folder().rglob("*question*"))


def test_no_connection_says_where_to_put_the_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(q.SETS, "small", replace(q.SETS["small"], url="http://127.0.0.1:9/question.jsonl"))
    with pytest.raises(RuntimeError, match=r"small.*127\.0\.0\.1.*EAGLE_REPRO_SETS") as caught:
        q.load_questions("small")
    assert "\n" not in str(caught.value)


def test_offline_never_downloads(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q.urllib.request, "urlopen", _no_network)
    with pytest.raises(FileNotFoundError, match="EAGLE_REPRO_SETS"):
        q.load_questions("small", offline=True)


def test_altered_file_in_the_named_folder_is_refused(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.load_questions("small")  # a good copy in the cache must not hide the bad one
    path = tmp_path / "sets" / "small" / "question.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(small.read_bytes().replace(b"then", b"them"))
    monkeypatch.setenv(q.SETS_VARIABLE, str(tmp_path / "sets"))
    with pytest.raises(ValueError) as caught:
        q.load_questions("small")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    for part in (str(path), found, q.set_checksum("small"), "replace it with"):
        assert part in str(caught.value)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="EAGLE_REPRO_SETS is set but"):
        q.load_questions("small")


# --- faults in a file ---------------------------------------------------------------------------------------


def test_altered_own_set_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "questions" / "chat.jsonl"
    path.parent.mkdir()
    lines = (q.data_folder() / "questions" / "chat.jsonl").read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))
    monkeypatch.setattr(q, "data_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=f"chat.jsonl: sha256 is .* needs {q.set_checksum('chat')}"):
        q.load_questions("chat")
    with pytest.raises(ValueError, match="chat.jsonl"):
        q.question_texts()  # a training corpus is never cleared against an unverified set


@pytest.mark.parametrize(
    "line",
    [
        b'{"question_id": 3, "category": "", "turns": ["cut he',
        b'{"question_id": 3, "category": ""}',
        b'{"question_id": 3, "category": "", "turns": []}',
        b'{"question_id": 3, "category": "", "turns": "one text"}',
        b'{"question_id": 3, "category": "", "turns": ["  "]}',
        b'["turns"]',
        b'{"question_id": 3, "category": "", "turns": ["\xff"]}',
        b"",
    ],
)
def test_corrupt_line_is_named_with_its_file(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "mine.jsonl"
    good = '{"question_id": 1, "category": "x", "turns": ["Как дела?"]}'.encode()
    path.write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 2: ")):
        q.read_questions(path)
    path.write_bytes(good)
    assert q.read_questions(path) == [q.Question("1", "x", ["Как дела?"])]
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="no questions"):
        q.read_questions(path)


def test_unknown_set_lists_the_known_ones() -> None:
    for ask in (q.load_questions, q.available, q.set_checksum):
        with pytest.raises(ValueError, match=r"'mtbench'.*mt_bench.*russian"):
            ask("mtbench")


# --- which questions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [
        (80, 5, [0, 10, 20, 30, 40]),  # the article's protocol
        (80, 8, [0, 10, 20, 30, 40, 50, 60, 70]),
        (80, 10, [0, 8, 16, 24, 32, 40, 48, 56, 64, 72]),
        (30, 2, [0, 10]),
        (30, 5, [0, 6, 12, 18, 24]),
        (30, 30, list(range(30))),
        (7, 3, [0, 2, 4]),
        (1, 1, [0]),
    ],
)
def test_pick_takes_every_tenth_or_spreads_evenly(size: int, count: int, expected: list[int]) -> None:
    assert q.pick(range(size), count) == expected


@pytest.mark.parametrize("count", [0, -1, 31])
def test_pick_refuses_a_count_the_set_cannot_give(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} questions asked of a set of 30"):
        q.pick(range(30), count)


def test_question_texts_hold_every_turn_available(small: Path) -> None:
    own = {turn for name in OWN for question in q.load_questions(name) for turn in question.turns}
    assert q.question_texts() == own
    q.load_questions("small")
    assert q.question_texts() == own | {"Question 0?", "Question 1?", "And then?"}
