"""Small model folders for the tests of sources/."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write_head(folder: Path) -> Path:
    """A folder that is complete as a head: config and one weight file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    save_file({"fc.weight": np.ones((4, 12), np.float32)}, folder / "model.safetensors")
    return folder


def write_target(folder: Path) -> Path:
    """The same with a tokenizer: complete as a target."""
    write_head(folder)
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    return folder


def write_sharded(folder: Path) -> Path:
    """A complete target of two shards and an index."""
    write_target(folder)
    (folder / "model.safetensors").unlink()
    for number, shard in enumerate(SHARDS):
        save_file({f"w{number}": np.ones(8, np.float32)}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w0": SHARDS[0], "w1": SHARDS[1]}}))
    return folder
