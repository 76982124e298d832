"""A prompt is what the tokenizer's template renders: thinking flag, clean history, one BOS (B58)."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from eagle_repro.sources.questions import Question, prompt_ids

SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
# Written for this test, thinking flag as in Qwen3; unlike Qwen3's it also writes a BOS and leaves the
# history as it is, so that the thinking must have been dropped before.
TEMPLATE = (
    "{{ bos_token }}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{% endif %}"
)
START = "<|im_start|>assistant\n"
TALK = Question("1", "", ["Name a colour.", "Why that one?", "And now?"])


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges that puts a BOS before every text it is given."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(SPECIAL)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", chat_template=TEMPLATE)


def test_thinking_flag_reaches_the_template(tokenizer: PreTrainedTokenizerFast) -> None:
    off = tokenizer.decode(prompt_ids(tokenizer, TALK))
    on = tokenizer.decode(prompt_ids(tokenizer, TALK, thinking=True))
    assert on == f"<s><|im_start|>user\nName a colour.<|im_end|>\n{START}"
    assert off == f"{on}<think>\n\n</think>\n\n"


def test_special_tokens_are_neither_doubled_nor_spelled_out(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = prompt_ids(tokenizer, TALK)
    bos = tokenizer.convert_tokens_to_ids("<s>")
    assert tokenizer("x")["input_ids"][0] == bos, "this tokenizer would add a second BOS"
    assert ids[0] == bos and ids.count(bos) == 1
    assert ids == tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"]
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2


def test_later_turn_carries_the_answers_but_no_thinking(tokenizer: PreTrainedTokenizerFast) -> None:
    answers = ["<think>\nred or blue? SECRET\n</think>\n\nBlue.", "Calm.\n<think>SECRET, cut by the budget"]
    text = tokenizer.decode(prompt_ids(tokenizer, TALK, thinking=True, turn=2, answers=answers))
    assert text == (
        "<s><|im_start|>user\nName a colour.<|im_end|>\n"
        "<|im_start|>assistant\nBlue.<|im_end|>\n<|im_start|>user\nWhy that one?<|im_end|>\n"
        "<|im_start|>assistant\nCalm.\n<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n" + START
    )


def test_thinking_opened_by_the_prompt_is_dropped_too(tokenizer: PreTrainedTokenizerFast) -> None:
    text = tokenizer.decode(prompt_ids(tokenizer, TALK, turn=1, answers=["SECRET</think>\n\nBlue."]))
    assert "SECRET" not in text and "assistant\nBlue.<|im_end|>" in text


def test_tokenizer_without_a_template_encodes_the_plain_text(tokenizer: PreTrainedTokenizerFast) -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, bos_token="<s>")
    assert bare.chat_template is None
    assert prompt_ids(bare, TALK) == list(bare("Name a colour.", add_special_tokens=False)["input_ids"])
    later = bare.decode(prompt_ids(bare, TALK, turn=1, answers=["<think>no</think>Blue."]))
    assert later == "Name a colour.\n\nBlue.\n\nWhy that one?"


def test_a_string_is_a_question_of_one_turn(tokenizer: PreTrainedTokenizerFast) -> None:
    assert prompt_ids(tokenizer, "Name a colour.") == prompt_ids(tokenizer, TALK)
    assert all(type(i) is int for i in prompt_ids(tokenizer, "Привет"))


@pytest.mark.parametrize(
    ("turn", "answers", "message"),
    [
        (3, ["a", "b", "c"], "turn 3 asked of a question of 3"),
        (-1, [], "turn -1 asked"),
        (1, [], "turn 1 needs 1 earlier answers, 0 were given"),
        (0, ["a"], "turn 0 needs 0 earlier answers, 1 were given"),
    ],
)
def test_turn_and_history_must_fit(
    tokenizer: PreTrainedTokenizerFast, turn: int, answers: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        prompt_ids(tokenizer, TALK, turn=turn, answers=answers)
