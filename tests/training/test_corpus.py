"""The corpus: what the target writes, what is kept of it, and how it lies on disk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from eagle_repro.api import Pair, generate
from eagle_repro.sources.questions import SETS, load_questions, prompt_ids, question_texts, word_grams
from eagle_repro.training.batches import batches, pack, packed_epoch
from eagle_repro.training.corpus import ANSWER, HELD_OUT, LENGTH, Corpus, load_corpus, make_corpus, save_corpus
from eagle_repro.training.filters import EvaluationQuestions, kept
from eagle_repro.training.heads import draft_vocabulary
from eagle_repro.training.recipes import find_recipe, recipes
from eagle_repro.training.write import CorpusSettings, write_corpus
from eagle_repro.training.writer import Conversation, Start, Turns, Writer, WriterSettings, turns_of
from tests.engine.tiny import random_target
from tests.models import stock_choices
from tests.training.conftest import SMALL

OWN = [name for name, info in SETS.items() if not info.external]


class Template:
    """A tokenizer of characters with a chat template, as far as prompt_ids needs one."""

    chat_template = "yes"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
        return "<s>" + messages[0]["content"] + "</s><a>"

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


# --- writing -------------------------------------------------------------------------------------------------------


def test_the_ids_around_a_user_turn_are_the_templates() -> None:
    turns = turns_of(Template())
    assert turns.before == [ord(letter) for letter in "<s>"]
    assert turns.between == [ord(letter) for letter in "</s><a>"]


def test_greedy_answers_are_those_of_plain_decoding_whatever_runs_beside_them(tiny: Pair) -> None:
    prompts = [prompt_ids(tiny.tokenizer, text) for text in ("Where is the key?", "def f(a):", "Anna has 3 eggs.", "x")]
    starts = [Start(ids, len(ids), 0.0, "own") for ids in prompts]
    settings = WriterSettings(rows=2, positions=40, turn=4)
    written = list(Writer(tiny.target, turns_of(tiny.tokenizer), settings).conversations(iter(starts)))
    assert sorted(each.ids[: each.answer] for each in written) == sorted(prompts)
    for each in written:
        budget = settings.positions - each.answer
        alone = generate(tiny, each.ids[: each.answer], method="plain", max_new_tokens=budget)
        assert each.ids[each.answer :] == alone.ids


def test_a_made_up_turn_ends_with_the_templates_words_and_leaves_room_for_the_answer() -> None:
    target = random_target()
    turns = Turns(before=[1, 2], between=[3, 4, 5])
    settings = WriterSettings(rows=3, positions=24, turn=5, temperature=2.0)
    starts = iter([Start([1, 2, 7 + i], 0, 0.0, "d") for i in range(7)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        written = list(Writer(target, turns, settings).conversations(starts))
    assert sorted(each.ids[2] for each in written) == list(range(7, 14))
    end = next(iter(target.eos_ids))
    for each in written:
        assert each.ids[:2] == [1, 2]
        assert each.ids[each.answer - 3 : each.answer] == [3, 4, 5]
        assert each.answer - 3 <= 3 + settings.turn
        assert len(each.ids) == settings.positions or each.ids[-1] == end
        assert end not in each.ids[each.answer : -1]
        # Rows that were filled again go on from the first words' cache slots: the answer is the target's all the same.
        assert stock_choices(target.model, each.ids[: each.answer], each.ids[each.answer :]) == each.ids[each.answer :]


@pytest.mark.parametrize("beyond", [0, 3])
def test_answers_go_so_far_beyond_their_end(beyond: int) -> None:
    target = random_target()
    end = next(iter(target.eos_ids))
    settings = WriterSettings(rows=2, positions=60, beyond=beyond)
    starts = iter([Start([7 + i, 3], 2, 3.0, "d") for i in range(6)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        written = list(Writer(target, Turns([], [1]), settings).conversations(starts))
    ended = [each for each in written if end in each.ids[2:]]
    assert ended
    for each in ended:
        assert len(each.ids) == min(60, each.ids.index(end, 2) + 1 + beyond)


def test_a_prompt_without_room_for_an_answer_is_refused(tiny: Pair) -> None:
    writer = Writer(tiny.target, turns_of(tiny.tokenizer), WriterSettings(rows=1, positions=16))
    with pytest.raises(ValueError, match="16 tokens leaves no room for an answer in 16 positions"):
        next(writer.conversations(iter([Start(list(range(16)), 16, 0.0, "own")])))


def test_a_corpus_is_a_function_of_its_seed(tiny: Pair, corpus: Corpus) -> None:
    state = torch.get_rng_state()
    again = write_corpus(tiny.target, tiny.tokenizer, find_recipe("general"), SMALL)
    assert np.array_equal(again.tokens, corpus.tokens) and np.array_equal(again.rows, corpus.rows)
    assert torch.equal(torch.get_rng_state(), state)
    small = replace(SMALL, answer_tokens=100)
    other = write_corpus(tiny.target, tiny.tokenizer, find_recipe("general"), replace(small, seed=4))
    assert not np.array_equal(other.tokens[:100], corpus.tokens[:100])


def test_own_prompts_are_answered_first_and_domains_follow_the_recipe(tiny: Pair) -> None:
    settings = CorpusSettings(answer_tokens=150, positions=48, turn=4, rows=4)
    own = ["Where is the brown hat?", "Who found the bag?"]
    written = write_corpus(tiny.target, tiny.tokenizer, find_recipe("code"), settings, prompts=own)
    assert set(written.provenance["domains"]) == {"code", "own"}
    prompts = [prompt_ids(tiny.tokenizer, text) for text in own]
    starts = written.starts
    found = [written.tokens[s : s + row[ANSWER]].tolist() for s, row in zip(starts, written.rows, strict=True)]
    assert all(prompt in found for prompt in prompts)


# --- what is kept --------------------------------------------------------------------------------------------------


def conversation(prompt: Sequence[int], answer: Sequence[int] = (5, 6, 7)) -> Conversation:
    return Conversation([*prompt, *answer], len(prompt), 0.0, "chat")


@pytest.mark.parametrize("name", OWN)
def test_no_prompt_that_equals_or_contains_an_evaluation_question_is_kept(name: str) -> None:
    evaluation = EvaluationQuestions(question_texts())
    for question in load_questions(name):
        for turn in question.turns:
            assert evaluation.held_by(turn)
            assert evaluation.held_by(f"Please answer: {turn.upper()}  Thank you.")


def test_short_questions_are_found_as_whole_words_only() -> None:
    evaluation = EvaluationQuestions(["Why rain?"])
    assert evaluation.held_by("Tell me, why rain? Quickly.")
    assert not evaluation.held_by("Why rainbows?")


def test_duplicates_questions_and_empty_answers_are_dropped_and_counted() -> None:
    texts = {(1,): "One.", (2,): "one", (3,): "Why rain, then?", (4,): "Four", (5,): "Five"}
    prompts = [(1,), (1,), (2,), (3,), (4,)]
    given = [conversation(prompt) for prompt in prompts] + [conversation((5,), (9,))]
    dropped: Counter[str] = Counter()
    good = list(kept(given, lambda ids: texts[tuple(ids)], EvaluationQuestions(["Why rain"]), dropped))
    assert [each.ids[0] for each in good] == [1, 4]
    assert dropped == {"duplicate": 2, "evaluation question": 1, "no answer": 1}


def test_a_target_with_no_more_to_say_is_an_error_and_not_an_endless_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_repro.training.filters.MOST_DROPPED", 50)
    same = (conversation((1,)) for _ in iter(int, 1))
    with pytest.raises(ValueError, match="50 conversations in a row were dropped"):
        list(kept(same, lambda ids: "One", EvaluationQuestions([]), Counter()))


def test_openings_are_many_and_none_comes_near_a_question() -> None:
    grams = {gram for text in question_texts() for gram in word_grams(text, 6)}
    for recipe in recipes().values():
        for domain, openings in recipe.openings.items():
            assert len(set(openings)) == len(openings) >= 24, domain
            for opening in openings:
                assert grams.isdisjoint(word_grams(opening, 6)), opening


def test_recipes_draw_their_domains_by_share() -> None:
    drawn = Counter(domain for domain, _ in islice(find_recipe("general").draws(0), 4000))
    shares = recipes()["general"].shares
    for domain, share in shares.items():
        assert drawn[domain] / 4000 == pytest.approx(share / sum(shares.values()), abs=0.03)
    assert "code" not in recipes()["no-code"].shares
    with pytest.raises(ValueError, match="unknown recipe 'poetry': choose one of general"):
        find_recipe("poetry")


# --- on disk -------------------------------------------------------------------------------------------------------


def test_a_corpus_comes_back_from_its_shards(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_repro.training.corpus.SHARD", 500)
    save_corpus(corpus, tmp_path)
    assert len(list(tmp_path.glob("tokens-*.npy"))) > 2
    read = load_corpus(tmp_path)
    assert np.array_equal(read.tokens, corpus.tokens) and read.tokens.dtype == np.uint16
    assert np.array_equal(read.rows, corpus.rows)
    assert read.provenance == json.loads(json.dumps(corpus.provenance))


def test_a_corpus_that_is_not_whole_is_refused(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="no corpus.json"):
        load_corpus(tmp_path)
    monkeypatch.setattr("eagle_repro.training.corpus.SHARD", 500)
    save_corpus(corpus, tmp_path)
    (tmp_path / "tokens-00001.npy").unlink()
    with pytest.raises(ValueError, match="a shard is missing or damaged"):
        load_corpus(tmp_path)


@pytest.mark.parametrize("name", ["tokens-00001.npy", "rows.npy", "corpus.json"])
@pytest.mark.parametrize("left", [0, 1, 90, 150])
def test_a_corpus_with_a_damaged_file_is_refused_in_one_line_that_names_it(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, name: str, left: int
) -> None:
    monkeypatch.setattr("eagle_repro.training.corpus.SHARD", 500)
    save_corpus(corpus, tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:left])
    with pytest.raises(
        ValueError, match=rf"{name} is missing or damaged .*: delete the corpus folder, or name another"
    ):
        load_corpus(tmp_path)


def test_held_out_prompts_are_never_trained_on(corpus: Corpus) -> None:
    held = {tuple(prompt) for prompt in corpus.held_out_prompts(10**6)}
    assert held
    for number in corpus.train:
        start = corpus.starts[number]
        assert tuple(corpus.tokens[start : start + corpus.rows[number, ANSWER]].tolist()) not in held


def test_counts_are_those_of_trained_answers(corpus: Corpus) -> None:
    expected: Counter[int] = Counter()
    for start, (length, answer, _, held_out) in zip(corpus.starts, corpus.rows, strict=True):
        if not held_out:
            expected.update(corpus.tokens[start + answer : start + length].tolist())
    counts = corpus.token_counts(512)
    assert {token: int(n) for token, n in enumerate(counts) if n} == dict(expected)


def test_wide_vocabularies_get_wide_ids() -> None:
    given = [conversation((70000, 2)), conversation((3, 2))]
    assert make_corpus(given, 151_936, {}).tokens.dtype == np.int32
    with pytest.raises(ValueError, match="1 conversations are no corpus"):
        make_corpus(given[:1], 100, {})


# --- draft vocabulary and batches ----------------------------------------------------------------------------------


def test_the_draft_vocabulary_is_the_most_frequent_ids_and_filled_up() -> None:
    counts = np.zeros(512, dtype=np.int64)
    counts[[500, 40, 7]] = [9, 3, 3]
    assert draft_vocabulary(counts, 2).tolist() == [7, 500]
    filled = draft_vocabulary(counts, 128)
    assert len(set(filled.tolist())) == 128 and {500, 40, 7} <= set(filled.tolist())
    with pytest.raises(ValueError, match="a draft vocabulary of 600 asked of 512 ids"):
        draft_vocabulary(counts, 600)


def test_packing_fills_bins_without_overflow() -> None:
    lengths = [5, 9, 1, 3, 7, 2, 4]
    bins = pack(lengths, 10)
    assert sorted(item for each in bins for item in each) == list(range(7))
    assert all(sum(lengths[item] for item in each) <= 10 for each in bins)
    assert len(bins) == 4  # 31 tokens


def test_every_epoch_holds_every_training_conversation_once_in_another_order(corpus: Corpus) -> None:
    epochs = [[i for sequence in packed_epoch(corpus, 64, 0, epoch) for i in sequence] for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        assert sorted(epoch) == corpus.train.tolist()


def test_batches_hold_whole_conversations_and_can_be_entered_anywhere(corpus: Corpus) -> None:
    options = {"sequences": 3, "length": 64, "seed": 1}
    run = list(islice(batches(corpus, **options), 40))  # several epochs
    for first, stride in ((7, 1), (1, 2), (38, 3)):
        other = next(batches(corpus, **options, first=first, stride=stride))
        assert torch.equal(other.tokens, run[first].tokens)
    second = list(islice(batches(corpus, **options, first=1, stride=2), 15))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(second, run[1::2], strict=False))
    batch = run[0]
    texts = {
        tuple(corpus.tokens[s : s + row[LENGTH]].tolist()): int(row[ANSWER])
        for s, row in zip(corpus.starts, corpus.rows, strict=True)
        if not row[HELD_OUT]
    }
    for row in range(3):
        for number in range(1, int(batch.document[row].max()) + 1):
            here = batch.document[row] == number
            answer = texts[tuple(batch.tokens[row, here].tolist())]
            assert batch.positions[row, here].tolist() == list(range(int(here.sum())))
            assert batch.answer[row, here].tolist() == [place >= answer for place in range(int(here.sum()))]


def test_too_small_a_corpus_or_sequence_is_refused(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="a step needs 500"):
        next(batches(corpus, sequences=500, length=64, seed=0))
    with pytest.raises(ValueError, match="sequences of 32 tokens do not hold conversations of 48"):
        next(batches(corpus, sequences=1, length=32, seed=0))
