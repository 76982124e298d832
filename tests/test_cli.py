"""The command line says what a person needs: a table, one JSON line, or one line of what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from eagle_repro import cli, runner
from eagle_repro.api import Pair, generate
from eagle_repro.cli import main, verbs
from eagle_repro.cli.arguments import build_parser
from eagle_repro.cli.values import parse_parameters
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments import speedup, texts
from eagle_repro.measure import bench
from eagle_repro.measure.records import RecordWriter
from eagle_repro.present import console
from tests.reading import REPOSITORY

PROMPT = "User: Where can I get a map?\nAssistant:"
VERBS = ("run", "measure", "generate", "tau", "compare", "doctor")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line; exit code, stdout and stderr."""

    def called(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return called


@pytest.fixture(autouse=True)
def one_pair(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair `tiny` is loaded once for all tests."""
    whole = verbs.load
    monkeypatch.setattr(verbs, "load", lambda args: trained if args.pair == "tiny" else whole(args))


def last_line(out: str) -> Any:
    return json.loads(out.splitlines()[-1])


# Help


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_that_parses(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0 and "--json" in out and "--debug" in out
    examples = [line.split("python -m eagle_repro ")[1] for line in out.splitlines() if "python -m eagle_repro" in line]
    assert examples and all(example.split()[0] == verb for example in examples)
    for example in examples:
        words = example.replace('"Write a Python function that reverses a list."', "text").split()
        assert build_parser().parse_args(words).verb is getattr(verbs, verb)


def test_help_waits_for_no_library() -> None:
    parse = "from eagle_repro.cli.arguments import build_parser; build_parser().format_help()"
    code = f"import sys; {parse}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert not {"torch", "pandas", "transformers", "papermill"} & set(done.stdout.split())


# Errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", "--pair", "tinny", "--prompt", "a"], "did you mean 'tiny'"),
        (["generate", "--pair", "tiny", "--prompt", "a", "--shape", "60,7"], "--shape 60,7 was given"),
        (["generate", "--pair", "tiny", "--prompt", "a", "--shape", "600,2,3"], "600 is more than the 22 nodes"),
        (["generate", "--pair", "tiny", "--prompt", "a", "--temperature", "-1"], "temperature must be 0"),
        (["generate", "--pair", "tiny", "--prompt", "", "--raw"], "the prompt is empty"),
        (["generate", "--pair", "tiny", "--prompt-file", "nowhere.txt"], "nowhere.txt: no such file"),
        (["generate", "--target", "a/b", "--prompt", "a"], "a pair is a name"),
        (["tau", "--pair", "tiny", "--sets", "poems"], "unknown question set 'poems'"),
        (["tau", "--pair", "tiny", "--sets", ","], "sets=',' was given: a list of names"),
        (["tau", "--pair", "tiny", "--sets", "chat,math,chat"], "chat stands there twice, name it once"),
        (["tau", "--pair", "tiny", "--sets", "chat", "--questions", "999"], "999 questions asked of a set of"),
        (["measure", "02", "--pair", "tiny", "-p", "sets=chat,chat"], "chat stands there twice, name it once"),
        (["measure", "02", "--pair", "tiny", "-p", "baselines=plain,plain"], "plain stands there twice"),
        (["tau", "--pair", "tiny", "--prompts", "nowhere.json"], "nowhere.json: no such file"),
        (["generate", "--prompt", "x", "--device", ""], "device='' is not known"),
        (["generate", "--prompt", "x", "--dtype", ""], "dtype='' is not known"),
        (["generate", "--prompt", "x", "--stack", ""], "stack='' is not known"),
        (["measure", "77", "--pair", "tiny"], "unknown experiment '77'"),
        (["measure", "02", "--pair", "tiny", "-p", "depthh=3"], "unknown parameter 'depthh'"),
        (["measure", "02", "--pair", "tiny", "-p", "depth"], "NAME=VALUE is needed"),
        (["compare", "nowhere", "nowhere"], "is no folder with records"),
        (["run", "--notebooks", "tests"], "holds no notebooks"),
    ],
)
def test_an_error_of_ours_is_one_line_and_code_2(call: Call, words: list[str], said: str) -> None:
    code, out, err = call(*words, *(["--profile", "smoke"] if words[0] in ("measure", "run") else []))
    assert code == 2 and out == "" and len(err.splitlines()) == 1
    assert err.startswith("eagle_repro: ") and said in err


def test_bytes_that_are_no_text_are_one_line_that_names_where_they_stood(call: Call, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("d\xe9j\xe0".encode("latin-1"))
    code, _, err = call("generate", "--pair", "tiny", "--prompt-file", tmp_path / "latin.txt")
    assert code == 2 and "latin.txt is no UTF-8 text (byte 1)" in err
    code, _, err = call("generate", "--pair", "tiny", "--prompt", b"\xff\xfe".decode("utf-8", "surrogateescape"))
    assert code == 2 and "is no UTF-8 text" in err and len(err.splitlines()) == 1


def test_a_sampled_difference_is_excused_in_half_precision_alone(trained: Pair) -> None:
    from dataclasses import replace

    said = {
        kind: texts.verdict(replace(trained, dtype=kind), [5], [6], False, greedy=False)
        for kind in ("float32", "float16")
    }
    assert "NO" in said["float32"][1] and "half precision" not in said["float32"][1]
    assert "half precision may part" in said["float16"][1]


def test_debug_shows_where_an_error_comes_from(call: Call) -> None:
    with pytest.raises(ValueError, match="tinny"):
        call("generate", "--pair", "tinny", "--prompt", "a", "--debug")


def test_an_error_that_is_not_ours_is_not_hidden(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "load", lambda args: {}["bug"])
    with pytest.raises(KeyError):
        call("generate", "--pair", "tiny", "--prompt", "a")


def test_out_of_memory_says_what_to_make_smaller() -> None:
    import torch

    said = cli.error_line(torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB"))
    assert "smaller max_length" in said and "\n" not in said


def test_an_interrupt_is_one_line_and_code_130(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs, "load", interrupted)
    code, _, err = call("generate", "--pair", "tiny", "--prompt", "a")
    assert code == 130 and len(err.splitlines()) == 1 and "goes on from what was finished" in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m eagle_repro doctor --pair tiny --profile smoke --json | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout == "Bench sheet\n" and "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_output_that_is_closed_is_no_error(closed: str) -> None:
    words = f"{sys.executable} -m eagle_repro check --run h200-eager-smollm2-135m --json"
    done = subprocess.run(["bash", "-c", f"exec {words} {closed}"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_russian_is_printed_where_the_locale_has_no_letters_for_it() -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "eagle_repro", "check", "--run", "h200-eager-smollm2-135m", "--lang", "ru"]
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ | plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "\\u04" in done.stdout and done.stdout.isascii()


# Verbs


def test_generate_compares_with_plain_decoding(call: Call, trained: Pair) -> None:
    words = ("generate", "--pair", "tiny", "--prompt", PROMPT, "--raw", "--max-new-tokens", 24, "--shape", "16,3,4")
    code, out, err = call(*words, "--compare", "--json")
    document = last_line(out)
    assert code == 0 and err == "" and "identical: yes, all 24 tokens" in out
    assert [run["method"] for run in document["runs"]] == ["plain", "eagle"]
    ids = list(trained.tokenizer(PROMPT, add_special_tokens=False)["input_ids"])
    shape = TreeShape(16, 3, 4)
    whole = generate(trained, ids, shape=shape, max_new_tokens=24)
    assert document["ids"] == whole.ids and document["runs"][1]["tau"] == pytest.approx(whole.tau)
    assert document["prompt_tokens"] == len(ids) and document["text"] in out
    assert document["runs"][0]["tokens_per_s"] > 0


@pytest.mark.parametrize("method", ["plain", "eagle", "chain", "hf"])
def test_generate_writes_with_every_method(call: Call, method: str, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Где взять карту?", encoding="utf-8")
    words = ("generate", "--pair", "tiny", "--prompt-file", tmp_path / "prompt.txt", "--method", method)
    code, out, _ = call(*words, "--max-new-tokens", 5, "--stop", "never", "--json")
    assert code == 0 and len(last_line(out)["ids"]) == 5
    assert "verdict" not in last_line(out)
    [run] = last_line(out)["runs"]
    assert run["identical"] is None  # nothing was written beside it: a "yes" would be a claim that nobody checked


def test_generate_samples_by_its_seed(call: Call) -> None:
    words = ("generate", "--pair", "tiny", "--prompt", PROMPT, "--raw", "--max-new-tokens", 16, "--json")
    drawn = {seed: last_line(call(*words, "--temperature", 1.5, "--seed", seed)[1])["ids"] for seed in (1, 2)}
    assert drawn[1] != drawn[2]
    code, out, _ = call(*words, "--temperature", 1.5, "--seed", 1, "--compare")
    assert code == 0 and last_line(out)["ids"] == drawn[1] and last_line(out)["verdict"] == "identical"


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_plain_decoding_compared_is_written_twice(call: Call, temperature: float) -> None:
    words = ("generate", "--pair", "tiny", "--prompt", PROMPT, "--method", "plain", "--max-new-tokens", 8)
    code, out, _ = call(*words, "--compare", "--temperature", temperature, "--json")
    assert code == 0 and "identical: yes, all 8 tokens" in out and last_line(out)["verdict"] == "identical"


def test_a_text_that_differs_is_told_and_code_1(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    whole = texts.generate

    def wrong(pair: Pair, prompt: list[int], **options: Any) -> Any:
        done = whole(pair, prompt, **options)
        return replace(done, ids=[*done.ids[:-1], done.ids[-1] ^ 1]) if options["method"] == "eagle" else done

    monkeypatch.setattr(texts, "generate", wrong)
    words = ("generate", "--pair", "tiny", "--prompt", PROMPT, "--max-new-tokens", 8, "--compare", "--json")
    code, out, _ = call(*words)
    assert code == 1 and "identical: NO, token 7 is" in out and last_line(out)["verdict"] == "different"


def test_tau_warns_of_one_set_beside_others() -> None:
    common = {"questions": 1, "cycles": 9, "tau_low": None, "tau_high": None, "tau_question_mean": 2.0, "ms_cycle": 1.0}
    rows = [{"set": "chat", "tau": 1.0, "warning": "next to nothing"}, {"set": "code", "tau": 2.0, "warning": None}]
    table = console.tau(pd.DataFrame([row | common for row in rows]), "16,3,4")
    assert [note for note in table.notes if "next" in note] == ["next to nothing"] and "code" in table.text()


def test_tau_is_tokens_of_all_cycles_over_cycles(call: Call, trained: Pair, tmp_path: Path) -> None:
    prompts = {"a": [[322, 27, 302], [36, 345, 358]], "русский": [[53]]}
    (tmp_path / "prompts.json").write_text(json.dumps(prompts), encoding="utf-8")
    words = ("tau", "--pair", "tiny", "--shape", "16,3,4", "--prompts", tmp_path / "prompts.json")
    code, out, _ = call(*words, "--max-new-tokens", 12, "--json")
    found = {row["set"]: row for row in last_line(out)["sets"]}
    assert code == 0 and list(found) == list(prompts) and "русский" in out
    for name, of_set in prompts.items():
        shape = TreeShape(16, 3, 4)
        runs = [generate(trained, ids, shape=shape, max_new_tokens=12, stop="never") for ids in of_set]
        accepted = [cycle.accepted + 1 for run in runs for cycle in run.cycles]
        assert found[name]["tau"] == pytest.approx(sum(accepted) / len(accepted))
        assert found[name]["cycles"] == len(accepted) and found[name]["questions"] == len(of_set)


@pytest.mark.parametrize("content", ["[]", "{}", '{"a": []}', '{"a": [[]]}', '{"a": [[1.5]]}', '{"a": [1]}', "{"])
def test_prompts_of_another_form_are_refused(call: Call, tmp_path: Path, content: str) -> None:
    (tmp_path / "prompts.json").write_text(content)
    code, _, err = call("tau", "--pair", "tiny", "--prompts", tmp_path / "prompts.json")
    assert code == 2 and "prompts.json" in err


def test_sets_that_cannot_be_are_refused_before_the_pair_is_loaded(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "load", lambda args: pytest.fail("the pair was loaded"))
    (tmp_path / "twice.json").write_text('{"own": [[1]], "own": [[2]]}', encoding="utf-8")
    for words in (("--sets", ","), ("--sets", "poems"), ("--sets", "chat,chat"), ("--sets", "chat", "--questions", 999),
                  ("--prompts", tmp_path / "twice.json")):  # fmt: skip
        code, _, err = call("tau", "--pair", "tiny", *words)
        assert code == 2 and len(err.splitlines()) == 1
    assert "twice.json has 'own' twice" in err


def test_tau_takes_question_sets(call: Call) -> None:
    words = ("tau", "--pair", "tiny", "--shape", "4,1,2", "--sets", "chat,russian", "--questions", 1)
    code, out, _ = call(*words, "--max-new-tokens", 4, "--json")
    assert code == 0 and [row["set"] for row in last_line(out)["sets"]] == ["chat", "russian"]


def test_measure_writes_the_record_and_does_not_write_it_twice(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "git_revision", lambda folder: "0" * 40)  # with changes that are not committed none fits
    words = ("measure", "speedup", "--pair", "tiny", "--profile", "smoke", "--out", tmp_path, "--json")
    few = (
        "-p",
        "sets=chat",
        "-p",
        "new_tokens=4",
        "-p",
        "instrument_cycles=0",
        "-p",
        "total_tokens=8",
        "-p",
        "depth=1",
    )
    code, out, err = call(*words, *few)
    assert code == 0 and "Speedup by question set" in out and "02_speedup.jsonl" in err
    assert {row["variant"] for row in last_line(out)["rows"]} == {"default", "small"}
    assert (tmp_path / "02_speedup.jsonl").exists()
    monkeypatch.setattr(speedup, "measure", lambda *_: 1 / 0)
    code, _, err = call(*words, *few)
    assert code == 0 and "complete already" in err
    code, _, err = call(*words, *few, "-p", "seed=1")
    assert code == 2 and "division by zero" in err  # other conditions: it is measured


def test_compare_tells_benches_apart(call: Call, tmp_path: Path) -> None:
    for name, torch_version in (("old", "2.10"), ("new", "2.13")):
        with RecordWriter(tmp_path / name / "01_roofline.jsonl", bench={"torch": torch_version}, protocol={}) as writer:
            writer.write("pass/1/0", {"tokens": 1, "seconds": 1.0})
            writer.complete()
    code, out, _ = call("compare", tmp_path / "old", tmp_path / "new", "--json")
    assert code == 1 and last_line(out)["bench"] == [{"name": "torch", "left": "2.10", "right": "2.13"}]
    assert "No number could be compared: 02_speedup is not finished in both, 01_roofline alone." in out
    (tmp_path / "cut" / "01_roofline.jsonl.partial").parent.mkdir()
    (tmp_path / "new" / "01_roofline.jsonl").rename(tmp_path / "cut" / "01_roofline.jsonl.partial")
    code, _, err = call("compare", tmp_path / "old", tmp_path / "cut")
    assert code == 2 and "no finished record in common: 01_roofline of cut is unfinished" in err


def test_compare_puts_trees_of_one_name_and_two_shapes_on_rows_of_their_own(call: Call, tmp_path: Path) -> None:
    for name, depth, sets in (("left", 1, "chat"), ("right", 2, "chat"), ("other", 1, "math")):
        words = ("measure", "02", "--pair", "tiny", "--profile", "smoke", "--out", tmp_path / name)
        few = (f"sets={sets}", "new_tokens=4", "instrument_cycles=0", "total_tokens=6", f"depth={depth}")
        assert call(*words, *(word for setting in few for word in ("-p", setting)))[0] == 0
    code, out, _ = call("compare", tmp_path / "left", tmp_path / "right", "--json")
    rows = [row for row in last_line(out)["speedup"] if row["variant"] == "default"]
    assert code == 0 and [(row["depth"], row["tau_left"] is None, row["tau_right"] is None) for row in rows] == [
        (1, False, True),
        (2, True, False),
    ]
    assert "default (6, 1, 10)" in out and "default (6, 2, 10)" in out
    code, out, _ = call("compare", tmp_path / "left", tmp_path / "other")
    assert code == 1 and out.splitlines()[-1].startswith("No number could be compared: no tree of one shape")


def test_doctor_says_what_is_in_the_way(call: Call) -> None:
    code, out, _ = call("doctor", "--pair", "tiny", "--profile", "smoke", "--json")
    assert code == 0 and "Nothing is in the way." in out and "target and head load and fit" in out
    assert last_line(out)["bench"]["torch"]
    code, out, _ = call("doctor", "--pair", "tiny", "--profile", "smoke", "--device", "cuda:7", "--json")
    refused = [guard["check"] for guard in last_line(out)["guards"] if guard["verdict"] == "refused"]
    assert code == 1 and refused == ["device"] and "refused: device" in out
    for more, check in (
        (("--out", "/etc/passwd"), "disk"),
        (("-p", "max_length=40", "-p", "new_tokens=38"), "prompts"),
    ):
        code, out, _ = call("doctor", "--pair", "tiny", "--profile", "smoke", *more)
        assert code == 1 and f"This run would be refused: {check}." in out


@pytest.mark.parametrize(("state", "code"), [("complete", 0), ("skipped", 0), ("incomplete", 1)])
def test_run_ends_with_what_became_of_each_notebook(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Any, code: int
) -> None:
    outcome = runner.Outcome("00_bench", state, 3.0, 15, "it died" if state == "incomplete" else "")
    monkeypatch.setattr(runner, "run", lambda plan, tell: [outcome])
    monkeypatch.setattr(runner, "refresh", lambda plan: pytest.fail("refreshed") if code else [Path("00_bench.ipynb")])
    got, out, err = call("run", "00", "--profile", "smoke", "--out", tmp_path, "--refresh", "--json")
    assert got == code and state in out and ("it died" in out) is bool(code)
    assert last_line(out)["complete"] is (code == 0) and ("refreshed" in err) is (code == 0)


def test_parameters_are_json_or_plain_text() -> None:
    pairs = ["a=5", "b=true", "c=None", 'd=["x"]', "e=x,y", "f=a=b", "g=1e-3"]
    expected = {"a": 5, "b": True, "c": None, "d": ["x"], "e": "x,y", "f": "a=b", "g": 1e-3}
    assert parse_parameters(pairs) == expected
