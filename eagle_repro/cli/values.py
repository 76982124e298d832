"""Values on the command line: tree shapes and named parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle_repro.engine.shape import TreeShape

LITERALS = {"True": True, "False": False, "None": None}

DEFAULT_SHAPE = "60,7,10"  # of the reference implementation and the article


def prompt_text(text: str | None, file: Path | None) -> str:
    """The prompt as it was given, or that of a file. Raises ValueError for bytes that are no UTF-8 text."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is no UTF-8 text (byte {error.start}): save it as UTF-8") from None
    try:
        (text or "").encode("utf-8")
    except UnicodeEncodeError:  # bytes that the terminal's encoding cannot read arrive as lone surrogates
        raise ValueError(f"--prompt {text!a} is no UTF-8 text: give it in UTF-8, or as a --prompt-file") from None
    return text or ""


def parse_shape(text: str) -> TreeShape:
    """A tree from "T,D,K": total_tokens, depth, top_k. Raises ValueError for another form or an impossible tree."""
    from eagle_repro.engine.shape import TreeShape

    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().lstrip("-").isdecimal() for part in parts):
        raise ValueError(f"--shape {text} was given: total_tokens,depth,top_k is needed, for example 60,7,10")
    return TreeShape(*(int(part) for part in parts))


def parse_parameters(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings from NAME=VALUE, the value as JSON (5, true, "text", ["a", "b"]), else plain text. Raises ValueError."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"-p {pair} was given: NAME=VALUE is needed, for example -p questions=1")
        try:
            values[name.strip()] = json.loads(text)
        except ValueError:
            values[name.strip()] = LITERALS.get(text, text)
    return values
