"""What cannot run is refused before anything is downloaded or loaded, with what to do about it."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_repro.engine.devices import resolve_device
from eagle_repro.experiments import bench, guards
from eagle_repro.experiments.guards import Guard, GuardRefused, covers
from eagle_repro.experiments.protocol import Protocol, build_protocol
from eagle_repro.experiments.session import Session
from eagle_repro.sources.paths import data_folder
from eagle_repro.sources.questions import SETS


def built(**settings: Any) -> Protocol:
    return build_protocol({}, {"profile": "smoke"}, settings)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend to have a card of this name and capability, under a torch with these kernels."""

    def pretend(name: str, capability: tuple[int, int], kernels: list[str], free: int = 2**34, count: int = 1) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: capability)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: kernels)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (free, 2**35))

    return pretend


def test_a_card_without_kernels_is_refused_before_a_pair_is_loaded(
    card: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card("Tesla P100-PCIE-16GB", (6, 0), ["sm_70", "sm_75"])
    monkeypatch.setattr("eagle_repro.experiments.session.load_pair", lambda *_, **__: pytest.fail("it was loaded"))
    session = Session("00_bench", built(device="cuda:0", out=str(tmp_path)))
    with pytest.raises(GuardRefused, match="P100.* is sm_60 and this torch has kernels for sm_70, sm_75.*T4"):
        bench.measure(session)
    assert list(tmp_path.iterdir()) == []


def test_a_t4_passes_and_gets_half_precision(card: Any) -> None:
    card("Tesla T4", (7, 5), ["sm_70", "sm_75"])
    found = guards.device(built(device="cuda:0"))
    assert found.verdict == "ok" and "sm_75" in found.detail
    assert "float16, to which bfloat16 weights are cast" in found.detail


def test_of_two_cards_one_is_used_and_the_guard_says_which(card: Any) -> None:
    card("Tesla T4", (7, 5), ["sm_75"], count=2)
    assert resolve_device("auto") == torch.device("cuda:0")
    assert guards.device(built(device="auto")).detail.startswith("CPU")  # the profile asks for one
    found = guards.device(build_protocol({}, {"profile": "t4", "sets": "chat"}, {}))
    assert found.verdict == "ok" and found.detail.endswith("cuda:0 of 2 GPUs is used")


def test_half_precision_that_the_card_only_emulates_is_refused(card: Any) -> None:
    card("Tesla T4", (7, 5), ["sm_75"])
    assert guards.device(built(device="cuda:0", dtype="bfloat16")).verdict == "refused"


@pytest.mark.parametrize(
    ("capability", "kernels", "runs"),
    [
        ((7, 5), ["sm_70"], True),
        ((7, 0), ["sm_75"], False),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((9, 0), ["sm_80", "compute_80"], True),
        ((9, 0), ["sm_80"], False),
        ((6, 0), ["compute_70"], False),
        ((9, 0), ["sm_90a"], True),
        ((12, 1), ["sm_120"], True),
        ((12, 1), ["sm_120a"], False),
        ((6, 0), [], True),
    ],
)
def test_which_kernels_run_on_which_card(capability: tuple[int, int], kernels: list[str], runs: bool) -> None:
    assert covers(capability, kernels) is runs


def test_a_profile_for_a_gpu_is_refused_without_one_unless_the_cpu_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wanted = {"profile": "full", "sets": "chat"}
    found = guards.device(build_protocol({}, wanted, {}))
    assert found.verdict == "refused" and "Accelerator, GPU T4 x2" in found.detail
    assert guards.device(build_protocol({}, wanted, {"device": "cpu"})).verdict == "ok"
    assert guards.device(built(device="cuda:0")).verdict == "refused"


def test_weights_that_do_not_fit_are_refused_and_a_close_fit_is_told(card: Any) -> None:
    shape = {"device": "cuda:0", "pair": "qwen3-4b"}
    for free, verdict in ((2**32, "refused"), (9 * 10**9, "warning"), (2**34, "ok")):
        card("Tesla T4", (7, 5), ["sm_75"], free)
        found = guards.memory(built(**shape))
        assert found.verdict == verdict, found
    card("Tesla T4", (7, 5), ["sm_75"], 2**32)
    assert guards.memory(built(**shape)).detail.endswith('take pair="qwen3-1.7b"')
    assert "8." in guards.memory(built(**shape)).detail and "4.3 GB" in guards.memory(built(**shape)).detail


@pytest.mark.parametrize(
    ("settings", "loading", "advice"),
    [
        ({"pair": "qwen3-4b"}, False, "max_length=1024"),
        ({"pair": "qwen3-4b", "max_length": 512}, False, 'pair="qwen3-1.7b"'),
        ({"pair": "qwen3-4b", "new_tokens": 900}, False, 'pair="qwen3-1.7b"'),
        ({"pair": "qwen3-8b"}, True, 'pair="qwen3-4b"'),
        ({"pair": "qwen3-1.7b"}, True, 'pair="smollm2-135m"'),
        ({"pair": "qwen3-4b", "dtype": "float32"}, True, 'dtype="float16"'),
        ({"pair": "smollm2-135m"}, True, "a smaller pair, or another device"),
        ({"target": "a/b", "head": "c/d"}, True, "a smaller pair, or another device"),
    ],
)
def test_the_next_smaller_setting_is_named(settings: dict[str, Any], loading: bool, advice: str) -> None:
    assert guards.smaller(built(**settings), loading) == advice


def test_a_full_disk_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10**9, 10**9, 10**6))
    found = guards.disk(built(out=str(tmp_path)))
    assert found.verdict == "refused" and "50.0 MB" in found.detail and "1.0 MB" in found.detail


def test_a_folder_that_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        found = guards.disk(built(out=str(out)))
        assert found.verdict == "refused" and "file is no folder" in found.detail
    assert guards.disk(built(out=str(tmp_path / "new" / "out"))).verdict == "ok"
    monkeypatch.setattr(guards.os, "access", lambda *_: False)
    found = guards.disk(built(out=str(tmp_path / "new")))
    assert found.verdict == "refused" and f"{tmp_path} cannot be written" in found.detail


def test_old_packages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guards.versions(built()).verdict == "ok"
    monkeypatch.setattr(guards, "_version", lambda name: {"transformers": "4.57.1"}.get(name, "99.0"))
    found = guards.versions(built())
    assert found.verdict == "refused" and "transformers 4.57.1 (>= 5.0.0 is needed)" in found.detail


@pytest.mark.parametrize(("answers", "said"), [(True, "downloads it from huggingface.co"), (False, "no answer")])
def test_weights_that_are_not_here_are_told_with_whether_they_can_be_had(
    monkeypatch: pytest.MonkeyPatch, answers: bool, said: str
) -> None:
    monkeypatch.setattr(guards, "answers", lambda host: answers and host == "huggingface.co")
    found = guards.weights("head")(built(target="a/b", head="nobody/no-such-head"))
    assert found.verdict == "warning" and said in found.detail


def test_weights_that_are_here_are_found_and_broken_ones_refused(tmp_path: Path) -> None:
    assert guards.weights("target")(built()).verdict == "ok"
    folder = shutil.copytree(data_folder() / "pairs" / "tiny" / "target", tmp_path / "target")
    (folder / "model.safetensors").write_bytes(b"")
    found = guards.weights("target")(built(target=str(folder), head="a/b"))
    assert found.verdict == "refused" and "model.safetensors" in found.detail


def test_question_sets_that_must_be_fetched_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EAGLE_REPRO_SETS", raising=False)
    monkeypatch.setenv("EAGLE_REPRO_CACHE", str(tmp_path))
    assert guards.questions(built(sets="chat")).verdict == "ok"
    found = guards.questions(built(sets="chat,gsm8k"))
    assert found.verdict == "warning" and "to be downloaded: gsm8k" in found.detail
    assert set(SETS) >= {"chat", "gsm8k"}


def test_every_refusal_is_raised_together() -> None:
    guards.require([Guard("a", "ok", ""), Guard("b", "warning", "")])
    with pytest.raises(GuardRefused, match="^b: no; c: neither$"):
        guards.require([Guard("a", "ok", ""), Guard("b", "refused", "no"), Guard("c", "refused", "neither")])


def test_the_bench_record_holds_guards_and_weights(tmp_path: Path) -> None:
    record = bench.measure(Session("00_bench", built(out=str(tmp_path))))
    rows = {row["key"]: row for row in record.rows}
    assert rows["guard/device"]["verdict"] == "ok" and rows["weights/target"]["parameters"] == 476_736
    assert rows["weights/head"]["licence"] == "Apache-2.0" and rows["weights/head"]["source"]
    assert record.complete and "clocks_after" in record.footer
    assert str(tmp_path) not in record.path.read_text(encoding="utf-8")


def test_a_head_that_does_not_fit_is_refused_by_the_guard_that_loads(tmp_path: Path) -> None:
    folder = str(data_folder() / "pairs" / "tiny" / "target")
    found = bench.loads(Session("00_bench", built(target=folder, head=folder, out=str(tmp_path))))
    assert found.verdict == "refused" and "fc.weight" in found.detail and "\n" not in found.detail
