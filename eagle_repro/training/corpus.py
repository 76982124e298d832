"""A corpus on disk: conversations as 16-bit ids in shards, and where they come from.

The folder holds tokens-NNNNN.npy (all conversations one after the other), rows.npy (one line a conversation: LENGTH,
ANSWER, DOMAIN, HELD_OUT) and, written last, corpus.json with the provenance: without it the folder is not a corpus.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle_repro.training.writer import Conversation

LENGTH, ANSWER, DOMAIN, HELD_OUT = range(4)
SHARD = 2**24  # tokens
REMEDY = "delete the corpus folder, or name another corpus (--corpus)"
HELD_OUT_SHARE = 50  # one conversation in so many is held out


@dataclass(frozen=True)
class Corpus:
    """tokens (N,): all ids in a row; rows (C, 4) int32; starts (C,): where each conversation begins."""

    tokens: NDArray[Any]
    rows: NDArray[np.int32]
    provenance: dict[str, Any]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        ends = np.cumsum(self.rows[:, LENGTH], dtype=np.int64)
        return ends - self.rows[:, LENGTH]

    @cached_property
    def sha256(self) -> str:
        """Hex digits over the conversations; what is said about them is left out."""
        return hashlib.sha256(self.rows.astype("<i4").tobytes() + self.tokens.astype("<i4").tobytes()).hexdigest()

    @property
    def train(self) -> NDArray[np.int64]:
        """Numbers of the conversations to train on."""
        return np.flatnonzero(self.rows[:, HELD_OUT] == 0)

    @property
    def answer_tokens(self) -> int:
        return int((self.rows[:, LENGTH] - self.rows[:, ANSWER]).sum())

    def held_out_prompts(self, count: int) -> list[list[int]]:
        """Up to `count` prompts that are not trained on."""
        starts, numbers = self.starts, np.flatnonzero(self.rows[:, HELD_OUT] == 1)[:count]
        return [self.tokens[starts[i] : starts[i] + self.rows[i, ANSWER]].astype(int).tolist() for i in numbers]

    def token_counts(self, vocabulary: int) -> NDArray[np.int64]:
        """How often each id (V,) stands in an answer that is trained on."""
        position = np.arange(len(self.tokens)) - np.repeat(self.starts, self.rows[:, LENGTH])
        counted = position >= np.repeat(self.rows[:, ANSWER], self.rows[:, LENGTH])
        counted &= np.repeat(self.rows[:, HELD_OUT], self.rows[:, LENGTH]) == 0
        return np.bincount(self.tokens[counted], minlength=vocabulary)


def is_held_out(prompt: Sequence[int]) -> bool:
    """Whether a prompt is held out: a function of its ids alone, so that it stays so in any other corpus."""
    digest = hashlib.blake2b(np.asarray(prompt, dtype="<i4").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % HELD_OUT_SHARE == 0


def make_corpus(conversations: Sequence[Conversation], vocabulary: int, provenance: dict[str, Any]) -> Corpus:
    """The corpus of these conversations; ids are 16 bits wide where the vocabulary allows it.

    Where no prompt's hash holds it out, the last conversation is, so that there is one. Raises ValueError for fewer
    than two conversations.
    """
    if len(conversations) < 2:
        raise ValueError(f"{len(conversations)} conversations are no corpus: ask for more answer tokens")
    domains = sorted({each.domain for each in conversations})
    rows = np.array(
        [
            (len(each.ids), each.answer, domains.index(each.domain), is_held_out(each.ids[: each.answer]))
            for each in conversations
        ],
        dtype=np.int32,
    )
    if not 0 < rows[:, HELD_OUT].sum() < len(rows):
        rows[:, HELD_OUT] = 0
        rows[-1, HELD_OUT] = 1
    width = np.uint16 if vocabulary <= 2**16 else np.int32
    tokens = np.concatenate([np.asarray(each.ids, dtype=width) for each in conversations])
    per_domain = np.bincount(rows[:, DOMAIN], weights=rows[:, LENGTH] - rows[:, ANSWER])
    counts = {
        "conversations": len(rows),
        "held_out": int(rows[:, HELD_OUT].sum()),
        "tokens": len(tokens),
        "answer_tokens": int(per_domain.sum()),
        "greedy_answers": sum(each.temperature == 0 for each in conversations),
        "answer_tokens_by_domain": {name: int(n) for name, n in zip(domains, per_domain, strict=True)},
    }
    return Corpus(tokens, rows, {**provenance, "domains": domains, "vocabulary": vocabulary, "counts": counts})


def save_corpus(corpus: Corpus, folder: Path) -> None:
    """Write a corpus; its corpus.json comes last, so that a killed run leaves none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpus.json").unlink(missing_ok=True)
    for old in folder.glob("tokens-*.npy"):
        old.unlink()
    for number, start in enumerate(range(0, len(corpus.tokens), SHARD)):
        np.save(folder / f"tokens-{number:05d}.npy", corpus.tokens[start : start + SHARD])
    np.save(folder / "rows.npy", corpus.rows)
    temporary = folder / "corpus.json.part"
    temporary.write_text(json.dumps(corpus.provenance, indent=2, ensure_ascii=False), encoding="utf-8")
    temporary.replace(folder / "corpus.json")


def load_corpus(folder: Path) -> Corpus:
    """The corpus of a folder. Raises FileNotFoundError or ValueError for one that is not there or not whole."""
    if not (folder / "corpus.json").is_file():
        raise FileNotFoundError(f"no corpus.json in {folder}: give the folder of a finished corpus")
    with _whole(folder / "corpus.json"):
        provenance = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        said, _ = provenance["counts"]["tokens"], provenance["vocabulary"]
    shards = [_array(path, dimensions=1) for path in sorted(folder.glob("tokens-*.npy"))]
    tokens, rows = np.concatenate(shards) if shards else np.zeros(0), _array(folder / "rows.npy", dimensions=2)
    if len(tokens) != said or len(tokens) != rows[:, LENGTH].sum():
        raise ValueError(
            f"the corpus in {folder} has {len(tokens)} tokens, corpus.json says {said}: "
            f"a shard is missing or damaged, {REMEDY}"
        )
    return Corpus(tokens, rows, provenance)


def _array(path: Path, dimensions: int) -> NDArray[Any]:
    with _whole(path):
        read: NDArray[Any] = np.load(path, allow_pickle=False)
        if read.ndim != dimensions or not np.issubdtype(read.dtype, np.integer):
            raise ValueError("not an array of ids")
    return read


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Turn what reading a damaged or missing file raises into one ValueError that names it and says what to do."""
    try:
        yield
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is missing or damaged (cut short?): {REMEDY}") from error
