"""Question sets: where they lie, their checksums, which questions a run takes, and how one becomes a prompt.

Six sets are this project's own and lie in data/questions; four are the ones that the EAGLE repository
evaluates on. Those are not carried (licences differ by set): they are read from the folder that
EAGLE_REPRO_SETS names, or from the user cache, or from a dataset attached on Kaggle (questions/FILE), or downloaded
once. Whatever is read is checked against data/questions/manifest.json each time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

from eagle_repro.sources.mounts import find_file, mount_root
from eagle_repro.sources.paths import cache_folder, data_folder

SETS_VARIABLE = "EAGLE_REPRO_SETS"
DOWNLOAD_TIMEOUT_S = 30.0
T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """One question: its id within the set, a category (may be empty) and the user's turns, first to last."""

    id: str
    category: str
    turns: list[str]


@dataclass(frozen=True)
class QuestionSet:
    """One set as the manifest describes it; `file` is relative to the folder that holds the set.

    `domain` is "in" (near what drafting heads are trained on) or "out". The last four fields say where an
    external set comes from and are None for a set of this project.
    """

    name: str
    file: str
    sha256: str
    size: int  # bytes
    count: int  # questions
    language: str
    domain: str
    licence: str
    repository: str | None = None
    commit: str | None = None
    path: str | None = None
    url: str | None = None

    @property
    def external(self) -> bool:
        """Whether the package does not carry the set."""
        return self.url is not None


def _read_manifest() -> dict[str, QuestionSet]:
    """The sets by name. Raises ValueError for an entry that lacks a field, or has one of another name."""
    path = data_folder() / "questions" / "manifest.json"
    found = {}
    for name, entry in json.loads(path.read_text(encoding="utf-8"))["sets"].items():
        try:
            found[name] = QuestionSet(name=name, **entry)
        except TypeError as error:
            raise ValueError(f"{path.name}, set {name!r}: {str(error).partition('() ')[2]}") from None
    return found


SETS: dict[str, QuestionSet] = _read_manifest()


def load_questions(name: str, *, offline: bool = False) -> list[Question]:
    """All questions of a set in file order, read from a file whose checksum is the manifest's.

    `offline` forbids the download of an external set. Raises ValueError (unknown set, corrupt or altered
    file), FileNotFoundError (no file in the named folder, or none at all when offline) and RuntimeError (a
    download that failed).
    """
    info = question_set(name)
    path = _place(info)
    if not path.is_file():
        _fetch(info, path, offline)
    payload = path.read_bytes()
    questions = _parse(payload, path)  # before the checksum: a broken line says more than a wrong sum
    _verify(payload, info, str(path))
    return questions


def read_questions(path: Path | str) -> list[Question]:
    """The questions of any file in this format: a JSON object a line with question_id, category and turns.

    Raises ValueError that names the file and the line, and FileNotFoundError.
    """
    return _parse(Path(path).read_bytes(), Path(path))


def available(name: str) -> bool:
    """Whether the set's file lies where it would be read: no network, and no look at its checksum."""
    return question_file(name).is_file()


def question_file(name: str) -> Path:
    """Where the set is read from, or would be downloaded to."""
    return _place(question_set(name))


def set_checksum(name: str) -> str:
    """The set's sha256, for records: load_questions reads no other bytes."""
    return question_set(name).sha256


def pick(questions: Sequence[T], count: int) -> list[T]:
    """`count` of a set's questions: 0, 10, 20, ... as the article takes them, evenly spaced in a smaller set.

    A set of at least 10 * count questions gives every tenth. Raises ValueError for a count beyond the set.
    """
    size = len(questions)
    if not 1 <= count <= size:
        raise ValueError(f"{count} questions asked of a set of {size}; ask for 1 to {size}")
    if size >= 10 * count:
        return [questions[10 * i] for i in range(count)]
    return [questions[i * size // count] for i in range(count)]


def prompt_ids(
    tokenizer: Any,
    question: Question | str,
    *,
    thinking: bool = False,
    turn: int = 0,
    answers: Sequence[str] = (),
) -> list[int]:
    """Token ids of one turn's prompt: the tokenizer's own chat template up to where the answer begins.

    `answers` are the answers to the turns before `turn`; their thinking is left out, as the templates of
    thinking models do. `thinking` goes to the template as enable_thinking. A tokenizer without a template
    encodes the plain text. A string is a question of one turn. Raises ValueError for a turn that the question
    does not have or a number of answers that does not fit it.
    """
    turns = [question] if isinstance(question, str) else question.turns
    if not 0 <= turn < len(turns):
        raise ValueError(f"turn {turn} asked of a question of {len(turns)}; turns count from 0")
    if len(answers) != turn:
        raise ValueError(f"turn {turn} needs {turn} earlier answers, {len(answers)} were given")
    history = [_without_thinking(answer) for answer in answers]
    messages = [{"role": "user", "content": turns[0]}]
    for said, asked in zip(history, turns[1 : turn + 1], strict=True):
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": asked}]
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
    else:
        text = "\n\n".join(message["content"] for message in messages)
    # The template writes its own special tokens: letting the tokenizer add them again would double the BOS.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def question_texts() -> set[str]:
    """Every turn of every set available without the network: what training text must not contain."""
    found = [load_questions(name, offline=True) for name in SETS if available(name)]
    return {turn for questions in found for question in questions for turn in question.turns}


def word_grams(text: str, n: int = 8) -> set[tuple[str, ...]]:
    """All runs of n words, case and punctuation ignored: two texts that share one are near-copies."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def question_set(name: str) -> QuestionSet:
    """What the manifest says of a set. Raises ValueError for an unknown one."""
    if name not in SETS:
        raise ValueError(f"unknown question set {name!r}; choose one of {', '.join(SETS)}")
    return SETS[name]


def _place(info: QuestionSet) -> Path:
    """Where the set's file is read from. A folder named by the variable is never silently passed over."""
    if not info.external:
        return data_folder() / "questions" / info.file
    if named := os.environ.get(SETS_VARIABLE):
        return Path(named).expanduser() / info.file
    kept = cache_folder() / "questions" / info.file
    attached = None if kept.is_file() else find_file(f"questions/{info.file}", mount_root())
    return attached or kept


def _fetch(info: QuestionSet, path: Path, offline: bool) -> None:
    """Download an external set to `path`; raises when that is not possible or not wanted."""
    if info.url is None:
        raise FileNotFoundError(f"{path} is missing: restore it, or install the package again")
    if os.environ.get(SETS_VARIABLE):
        raise FileNotFoundError(f"{SETS_VARIABLE} is set but {path} is missing: put it there or unset it")
    advice = f"put the file at {path}, or name a folder that holds {info.file} in {SETS_VARIABLE}"
    if offline:
        raise FileNotFoundError(f"question set {info.name} is not here and downloads are off: {advice}")
    try:
        with urllib.request.urlopen(info.url, timeout=DOWNLOAD_TIMEOUT_S) as answer:
            payload = answer.read(info.size + 1)  # one byte more shows a file that is too long
    except (OSError, HTTPException) as error:
        raise RuntimeError(f"question set {info.name}: {info.url} gave {error!r}; {advice}") from error
    _verify(payload, info, info.url)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # processes that download at once must not meet
    part.write_bytes(payload)
    part.replace(path)


def _verify(payload: bytes, info: QuestionSet, origin: str) -> None:
    found = hashlib.sha256(payload).hexdigest()
    if found == info.sha256:
        return
    if info.external:
        cure = f"replace it with {info.path} of {info.repository} at commit {info.commit}"
    else:
        cure = "restore it, or, if the change is meant, write its new checksum and size into manifest.json"
    raise ValueError(f"{origin}: sha256 is {found}, question set {info.name} needs {info.sha256}; {cure}")


def _parse(payload: bytes, path: Path) -> list[Question]:
    questions = []
    for number, line in enumerate(payload.splitlines(), start=1):
        try:
            row = json.loads(line)
            turns = row["turns"]
            texts = isinstance(turns, list) and all(isinstance(t, str) and t.strip() for t in turns)
            if not (texts and turns):
                raise ValueError(f"turns must be a list of texts, none empty, not {turns!r}")
            questions.append(Question(str(row["question_id"]), str(row["category"]), turns))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: no question ({error!r}); repair the line") from error
    if not questions:
        raise ValueError(f"{path} holds no questions; restore the file")
    return questions


def _without_thinking(answer: str) -> str:
    """The answer without its think block, also a block left open or one that the prompt opened."""
    said = answer.rpartition("</think>")[2]
    return said.partition("<think>")[0].lstrip("\n")
