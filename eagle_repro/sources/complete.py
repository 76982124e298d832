"""Whether a model folder holds everything it needs, checked before anything is loaded.

A broken download is found by reading names, sizes and safetensors headers: milliseconds, whatever the model's size.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

from eagle_repro.sources.paths import sha256_of

Role = Literal["target", "head"]

TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
SHARD = re.compile(r".+-\d+-of-\d+\.safetensors")


class IncompleteModel(FileNotFoundError):
    """A model folder lacks a file, or holds an empty or cut one; the message names the file."""


def check_complete(folder: Path, role: Role) -> None:
    """Check a model folder: config, every weight file whole, and for a target its tokenizer.

    Weights are model.safetensors, or the shards of its index; a head may also come as pytorch_model.bin (read with
    weights_only). Whether they fit together as a head is the head loader's business. Raises IncompleteModel.
    """
    if not folder.is_dir():
        raise _fault(folder, role, "it is not a folder")
    read_object(folder, role, "config.json")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        _check_shards(folder, role, read_object(folder, role, index.name))
    else:
        for name in _single_files(folder, role):
            _check_weights(folder, role, name)
    if role == "target":
        _check_tokenizer(folder)


def read_object(folder: Path, role: Role, name: str) -> dict[str, Any]:
    """The JSON object in folder/name. Raises IncompleteModel when it is missing, empty or no JSON object."""
    _require_file(folder, role, name)
    try:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _fault(folder, role, f"{name} holds no JSON object (cut short?)")
    return value


def weights_sha256(folder: Path) -> str:
    """One sha256, as hex digits, over the configuration and the weight files of a model folder, names included."""
    files = sorted([folder / "config.json", *folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")])
    told = "".join(f"{file.name} {sha256_of(file)}\n" for file in files if file.is_file())
    return hashlib.sha256(told.encode()).hexdigest()


def tensor_sizes(file: Path) -> tuple[set[str], int]:
    """Names of the tensors in a safetensors file, and the bytes the file must have by its header.

    The layout is the format's: eight bytes with the header's length, a JSON header with offsets, the data
    (https://huggingface.co/docs/safetensors). Raises ValueError when there is no such header.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError("no safetensors header")
        header = json.loads(stream.read(length))
    tensors = {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
    return set(tensors), 8 + length + max(tensors.values(), default=0)


def _check_shards(folder: Path, role: Role, index: dict[str, Any]) -> None:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise _fault(folder, role, "model.safetensors.index.json has no weight_map")
    for shard in sorted(set(weight_map.values())):
        held = _check_weights(folder, role, shard)
        missing = sorted(name for name, place in weight_map.items() if place == shard and name not in held)
        if missing:
            raise _fault(folder, role, f"{shard} lacks {len(missing)} tensors of the index, {missing[0]} first")


def _single_files(folder: Path, role: Role) -> list[str]:
    """The weight files of a folder without an index."""
    if (folder / "model.safetensors").is_file():
        return ["model.safetensors"]
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if any(SHARD.fullmatch(name) for name in found):
        raise _fault(folder, role, "model.safetensors.index.json is missing beside the shards")
    pickled = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    if role == "head" and (found or pickled):
        return found or pickled
    if found:
        raise _fault(folder, role, f"the weights must be named model.safetensors, it has {', '.join(found)}")
    if pickled:
        raise _fault(folder, role, f"it has {pickled[0]} only, and a target is never read from a pickle file")
    raise _fault(folder, role, "model.safetensors is missing")


def _check_weights(folder: Path, role: Role, name: str) -> set[str]:
    """Check that one weight file is whole; the names of its tensors (none are known of a .bin)."""
    _require_file(folder, role, name)
    if not name.endswith(".safetensors"):
        return set()
    size = (folder / name).stat().st_size
    try:
        names, expected = tensor_sizes(folder / name)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise _fault(
            folder, role, f"{name} ({size} bytes) is cut short or no safetensors file (a Git LFS pointer?)"
        ) from None
    if size != expected:
        raise _fault(folder, role, f"{name} has {size} bytes where its header says {expected}")
    return names


def _check_tokenizer(folder: Path) -> None:
    for names in TOKENIZERS:
        if all((folder / name).is_file() for name in names):
            for name in names:
                _require_file(folder, "target", name)
            return
    raise _fault(folder, "target", "the tokenizer is missing (tokenizer.json)")


def _require_file(folder: Path, role: Role, name: str) -> None:
    if not (folder / name).is_file():
        raise _fault(folder, role, f"{name} is missing")
    if (folder / name).stat().st_size == 0:
        raise _fault(folder, role, f"{name} is empty")


def _fault(folder: Path, role: Role, what: str) -> IncompleteModel:
    return IncompleteModel(f"{folder} is no complete {role}: {what}; get it again, or name another folder")
