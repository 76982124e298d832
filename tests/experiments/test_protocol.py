"""Settings come in layers, every one is checked, and what a record is told of them names no folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle_repro.experiments import EXPERIMENTS, find_experiment, protocol
from eagle_repro.experiments.protocol import EAGLE_SETS, OUT_OF_DOMAIN, OWN_SETS, PROFILES, Protocol, build_protocol
from eagle_repro.sources import questions


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of ours is set, and no question set was ever downloaded."""
    for name in ("EAGLE_REPRO_PROFILE", "EAGLE_REPRO_SETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EAGLE_REPRO_CACHE", str(tmp_path / "cache"))


def built(**overrides: Any) -> Protocol:
    return build_protocol({}, {"profile": "quick"}, overrides)


def test_a_later_layer_wins_and_says_so() -> None:
    models, cells = {"PAIR": "tiny", "DTYPE": "float32"}, {"profile": "quick", "questions": 3, "repeats": 2}
    made = build_protocol(models, cells, {"repeats": 4})
    assert (made.pair, made.questions, made.repeats, made.new_tokens) == ("tiny", 3, 4, PROFILES["quick"]["new_tokens"])
    assert made.origins["pair"] == "MODELS" and made.origins["questions"] == "PROTOCOL"
    assert made.origins["repeats"] == "OVERRIDES" and made.origins["new_tokens"] == "profile quick"
    assert made.origins["depth"] == "default"


def test_none_and_auto_leave_a_setting_to_the_layer_below() -> None:
    models = {"PAIR": "auto", "TARGET": None, "DEVICE": "auto", "OVERRIDES": {}}
    made = build_protocol(models, {"profile": "smoke", "questions": None}, {"pair": None})
    assert (made.pair, made.device, made.questions) == ("tiny", "cpu", 1)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_profile_comes_from_the_variable_unless_a_layer_names_one(
    monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    monkeypatch.setenv("EAGLE_REPRO_PROFILE", profile)
    monkeypatch.setattr(protocol, "load_questions", lambda name: None)
    assert build_protocol({}, {"profile": "auto"}, {}).profile == profile
    assert build_protocol({}, {"profile": "smoke"}, {}).profile == "smoke"
    assert build_protocol({}, {"profile": "smoke"}, {"profile": "quick"}).profile == "quick"


@pytest.mark.parametrize(("gpu", "profile"), [(True, "full"), (False, "quick")])
def test_without_a_word_the_machine_decides(monkeypatch: pytest.MonkeyPatch, gpu: bool, profile: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr(protocol, "load_questions", lambda name: None)
    assert build_protocol({}, {"profile": "auto"}, {}).profile == profile


@pytest.mark.parametrize(
    ("setting", "needed"),
    [
        ({"questionss": 1}, "unknown parameter 'questionss': known are .*questions"),
        ({"questions": "two"}, "questions='two' was given: a whole number of at least 1"),
        ({"questions": 0}, "questions=0 .* at least 1"),
        ({"questions": True}, "questions=True"),
        ({"questions": 2.0}, "questions=2.0"),
        ({"new_tokens": 1}, "new_tokens=1 .* at least 2"),
        ({"new_tokens": 3000}, "new_tokens=3000 with max_length=2048 leaves no room"),
        ({"questions": 31}, "questions=31 was given, and chat has 30"),
        ({"thinking": "yes"}, "thinking='yes' was given: true or false"),
        ({"temperature": -1}, "temperature=-1 .* at least 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"sets": "chat,poems"}, "unknown question set 'poems': known are .*russian"),
        ({"sets": 5}, "sets=5 was given: a list of names"),
        ({"sets": [1]}, "sets="),
        ({"baselines": "hf"}, "plain is needed"),
        ({"baselines": "plain,vllm"}, "plain is needed"),
        ({"pair": "tinny"}, "did you mean 'tiny'"),
        ({"pair": "tiny", "target": "a/b"}, "give one of them"),
        ({"pair": "tiny", "target": "a/b", "head": "c/d"}, "give one of them"),
        ({"target": "a/b"}, "both are needed"),
        ({"total_tokens": 600, "depth": 1}, "600 is more than the 111 nodes"),
        ({"profile": "slow"}, "unknown profile 'slow': known are smoke, quick, full, t4"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(setting: dict[str, Any], needed: str) -> None:
    with pytest.raises(ValueError, match=needed) as refusal:
        built(**setting)
    assert "\n" not in str(refusal.value)


def test_a_pair_and_a_target_with_a_head_replace_each_other_between_layers() -> None:
    made = build_protocol({"PAIR": "tiny"}, {"profile": "quick"}, {"target": "a/b", "head": "c/d"})
    assert (made.pair, made.target, made.head) == (None, "a/b", "c/d")
    made = build_protocol({"TARGET": "a/b", "HEAD": "c/d"}, {"profile": "quick"}, {"pair": "tiny"})
    assert (made.pair, made.target, made.head) == ("tiny", None, None)


def test_a_head_alone_takes_the_place_of_the_pairs_own() -> None:
    made = build_protocol({"HEAD": "c/d"}, {"profile": "smoke"}, {})
    assert (made.pair, made.target, made.head) == ("tiny", None, "c/d")
    made = build_protocol({"PAIR": "tiny", "HEAD": "c/d"}, {"profile": "quick"}, {"head": "e/f"})
    assert (made.pair, made.target, made.head) == ("tiny", None, "e/f")
    made = build_protocol({"TARGET": "a/b", "HEAD": "c/d"}, {"profile": "quick"}, {"head": "e/f"})
    assert (made.pair, made.target, made.head) == (None, "a/b", "e/f")


def test_names_may_come_with_commas_or_as_a_list() -> None:
    assert built(sets="chat, russian").sets == built(sets=["chat", "russian"]).sets == ("chat", "russian")


def lay_out(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "question.jsonl").write_text("")


def test_eagles_sets_are_taken_where_they_are_else_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert built().sets == (*OWN_SETS, *OUT_OF_DOMAIN)
    lay_out(tmp_path / "cache" / "questions", EAGLE_SETS[:3])
    assert built().sets == (*OWN_SETS, *OUT_OF_DOMAIN)
    lay_out(tmp_path / "cache" / "questions", EAGLE_SETS[3:])
    assert built().sets == (*EAGLE_SETS, *OUT_OF_DOMAIN)
    assert built(profile="smoke").sets == (*OWN_SETS, *OUT_OF_DOMAIN)


def test_a_named_folder_of_sets_is_never_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_REPRO_SETS", str(tmp_path / "nothing"))
    assert built().sets[:4] == EAGLE_SETS
    with pytest.raises(FileNotFoundError, match="EAGLE_REPRO_SETS is set"):
        questions.load_questions("mt_bench")


def test_published_profiles_download_the_sets_and_do_without_where_they_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(name: str) -> None:
        asked.append(name)
        raise RuntimeError("no network")

    monkeypatch.setattr(protocol, "load_questions", download)
    assert built(profile="full").sets[:4] == OWN_SETS
    assert asked == ["mt_bench"]  # one time-out, not four
    built()
    assert asked == ["mt_bench"]  # the quick profile never waits for a network


def test_a_record_is_told_no_folder_and_all_that_bears_on_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "my-target").mkdir()
    made = built(target=str(tmp_path / "my-target"), head="owner/head", out=str(tmp_path), records=str(tmp_path))
    told = made.as_record()
    assert (told["target"], told["head"]) == ("my-target", "owner/head")
    assert not {"out", "records", "origins"} & told.keys()
    assert str(tmp_path) not in str(told)
    assert told["sets"] == made.sets and told["depth"] == 7


def test_the_second_tree_follows_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "load_questions", lambda name: None)
    assert list(built().trees) == ["default", "small"]
    assert list(built(profile="full").trees) == ["default", "shallow"]
    assert built(depth=3, total_tokens=16).trees["default"].depth == 3


def test_an_experiment_is_found_by_any_of_its_names() -> None:
    for full, module in EXPERIMENTS.items():
        assert find_experiment(full) == find_experiment(full[:2]) == find_experiment(module) == full
    with pytest.raises(ValueError, match="did you mean '02_speedup'"):
        find_experiment("02_speedups")
