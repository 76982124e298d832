"""The protocol of a run: what is measured, on which pair, how often; profiles and the settings that change them.

Settings come in layers, a later one wins: the profile, a notebook's cells MODELS and PROTOCOL, OVERRIDES (the
runner's -p). A value of None or "auto" leaves a setting to the layer below.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.values import checked
from eagle_repro.sources.pairs import find_pair
from eagle_repro.sources.paths import PACKAGE
from eagle_repro.sources.questions import SETS, SETS_VARIABLE, available, load_questions

PROFILE_VARIABLE = "EAGLE_REPRO_PROFILE"
KAGGLE_FOLDER = Path("/kaggle/working")
EAGLE_SETS = ("mt_bench", "humaneval", "gsm8k", "alpaca")
OWN_SETS = ("chat", "code", "math", "instruct")
OUT_OF_DOMAIN = ("outside", "russian")
BASELINES = ("plain", "hf")

ARTICLE = {"questions": 5, "new_tokens": 192, "repeats": 3}
#: What each profile sets beyond the defaults of Protocol.
PROFILES: dict[str, dict[str, Any]] = {
    "smoke": {
        "pair": "tiny", "device": "cpu", "questions": 1, "new_tokens": 16, "repeats": 1, "instrument_cycles": 2,
        "sampled_questions": 1, "sweep_questions": 1, "tau_questions": 1,
    },
    "quick": {
        "pair": "smollm2-135m", "device": "cpu", "questions": 2, "new_tokens": 48, "repeats": 1, "instrument_cycles": 4,
        "sampled_questions": 1, "sweep_questions": 1, "tau_questions": 2,
    },
    "full": {"pair": "smollm2-135m", **ARTICLE},
    "t4": {"pair": "qwen3-1.7b", "dtype": "float16", "sweep_questions": 1, "tau_questions": 20, **ARTICLE},
}  # fmt: skip
#: The second tree of 02_speedup: on a GPU one with fewer draft passes, on a CPU a small one (16 tokens are the first
#: count that its matrix kernels are made for: a pass over 12 takes longer there).
SECOND_TREE = {
    "smoke": ("small", (16, 3, 4)),
    "quick": ("small", (16, 3, 4)),
    "full": ("shallow", (60, 3, 10)),
    "t4": ("shallow", (60, 3, 10)),
}


@dataclass(frozen=True)
class Protocol:
    """Settings of a run; `build_protocol` checks them.

    pair, pair and another head, or target and head (hub ids, Kaggle handles, folders); sets: question sets,
    `questions` of each; new_tokens are written by every run, `repeats` times; total_tokens, depth, top_k: the
    default tree; baselines: methods that the speedup is taken against; instrument_cycles: about how many cycles a
    set and tree are taken apart by phase; sampled_questions: Russian questions that are also run at `temperature`;
    sweep_questions: of each set, those that tree shapes are measured on end to end; tau_questions: at most so many
    of each set have their cycles counted, side by side, where that is all that is asked; heads: a folder with heads
    by name, for 07_domain; training: the folder of a finished `train`, for 10_train_head; records: a folder with
    records measured elsewhere, or the name of one under results/; out: the folder that records are written to.
    """

    profile: str
    pair: str | None = None
    target: str | None = None
    head: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    stack: str = "auto"
    sets: tuple[str, ...] = ()
    questions: int = 5
    new_tokens: int = 192
    repeats: int = 3
    total_tokens: int = 60
    depth: int = 7
    top_k: int = 10
    max_length: int = 2048
    thinking: bool = False
    seed: int = 0
    baselines: tuple[str, ...] = BASELINES
    instrument_cycles: int = 20
    sampled_questions: int = 5
    sweep_questions: int = 5
    tau_questions: int = 80
    temperature: float = 0.7
    heads: str | None = None
    training: str | None = None
    records: str | None = None
    out: str = ""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def trees(self) -> dict[str, TreeShape]:
        """The trees that 02_speedup compares, by name; the second one follows the profile."""
        name, second = SECOND_TREE[self.profile]
        return {"default": TreeShape(self.total_tokens, self.depth, self.top_k), name: TreeShape(*second)}

    @property
    def tree(self) -> TreeShape:
        """The one tree of an experiment that compares none: the default, but on a CPU, which pays for every node, the
        small one."""
        return self.trees["small" if "small" in self.trees else "default"]

    def brief(self, questions: int, tokens: int) -> Protocol:
        """In `quick`, where a CPU writes a few tokens a second, the same with so few questions a set and tokens a text;
        in other profiles itself."""
        if self.profile != "quick":
            return self
        few, short = min(self.questions, questions), min(self.new_tokens, tokens)
        return replace(self, questions=few, tau_questions=few, new_tokens=short)

    def as_record(self) -> dict[str, Any]:
        """Plain data for a record's header: everything that bears on the numbers, and no folder of this machine."""
        left_out = {"heads", "training", "records", "out", "origins"}
        plain = {name: getattr(self, name) for name in NAMES if name not in left_out}
        folders = {role: Path(str(plain[role])).expanduser() for role in ("target", "head") if plain[role]}
        trees = {name: [tree.total_tokens, tree.depth, tree.top_k] for name, tree in self.trees.items()}
        named = {role: folder.resolve().name for role, folder in folders.items() if folder.exists()}
        return plain | named | {"trees": trees}


NAMES = tuple(each.name for each in fields(Protocol))
#: What -p and OVERRIDES may name.
PARAMETERS = tuple(name for name in NAMES if name != "origins")


def build_protocol(models: Mapping[str, Any], protocol: Mapping[str, Any], overrides: Mapping[str, Any]) -> Protocol:
    """The protocol of the three layers above the profile; names of `models` may be written in capitals.

    The profile is the one that a layer names, else that of EAGLE_REPRO_PROFILE, else full on a machine with a GPU and
    quick without one. Raises ValueError in one line for an unknown name (the known ones are listed), a value of the
    wrong type or out of range, an unknown pair, question set or tree.
    """
    layers = {"MODELS": _named(models), "PROTOCOL": _named(protocol), "OVERRIDES": _named(overrides)}
    named = [layer["profile"] for layer in layers.values() if layer.get("profile") not in (None, "auto")]
    profile = named[-1] if named else _profile_here()
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}: known are {', '.join(PROFILES)}")
    values: dict[str, Any] = {"profile": profile}
    origins: dict[str, str] = {}
    for source, layer in {f"profile {profile}": PROFILES[profile], **layers}.items():
        kinds = {name: Protocol.__annotations__[name] for name, value in layer.items() if value not in (None, "auto")}
        given = {name: checked(name, kind, layer[name]) for name, kind in kinds.items()}
        # A pair named above replaces a target and head named below, and a target above a pair below; a head alone
        # replaces the head.
        if "pair" in given:
            values |= {"target": None, "head": None}
        elif "target" in given:
            values["pair"] = None
        values |= given
        origins |= dict.fromkeys(given, source)
    if not values.get("sets"):
        values["sets"] = (*_english(profile), *OUT_OF_DOMAIN)
    values.setdefault("out", str(default_out(profile)))
    return _valid(Protocol(**values, origins={name: origins.get(name, "default") for name in PARAMETERS}))


def default_out(profile: str) -> Path:
    """Where records go by default: Kaggle's working folder, build/PROFILE of a checkout, or a folder where you are."""
    if KAGGLE_FOLDER.is_dir():
        return KAGGLE_FOLDER
    checkout = PACKAGE.parent
    return checkout / "build" / profile if (checkout / "pyproject.toml").is_file() else Path.cwd() / "eagle_repro"


def _named(layer: Mapping[str, Any]) -> dict[str, Any]:
    lowered = {str(name).lower(): value for name, value in layer.items() if str(name) != "OVERRIDES"}
    unknown = [name for name in lowered if name not in PARAMETERS]
    if unknown:
        raise ValueError(f"unknown parameter {', '.join(map(repr, unknown))}: known are {', '.join(PARAMETERS)}")
    return lowered


def _profile_here() -> str:
    named = os.environ.get(PROFILE_VARIABLE)
    if named and named != "auto":
        return named
    from eagle_repro.engine.devices import gpu_here  # slow to load, and only asked when nobody named a profile

    return "full" if gpu_here() else "quick"


def _english(profile: str) -> Sequence[str]:
    """EAGLE's four sets where they are (or, for published profiles, can be fetched), else the project's own four."""
    if profile == "smoke":
        return OWN_SETS
    if os.environ.get(SETS_VARIABLE):  # a folder that was named is never passed over: what it lacks is raised later
        return EAGLE_SETS
    if profile != "quick":
        try:
            for name in EAGLE_SETS:
                load_questions(name)
        except (OSError, RuntimeError):
            return OWN_SETS
    return EAGLE_SETS if all(map(available, EAGLE_SETS)) else OWN_SETS


def _valid(protocol: Protocol) -> Protocol:
    """The protocol, if its values go together."""
    if protocol.pair is not None and protocol.target:
        raise ValueError(f"pair={protocol.pair!r} was given beside target={protocol.target!r}: give one of them")
    if protocol.pair is not None:
        find_pair(protocol.pair)
    elif not (protocol.target and protocol.head):
        raise ValueError(f"target={protocol.target!r} and head={protocol.head!r} were given: both are needed")
    _ = protocol.trees  # raises for a tree that cannot be
    if protocol.new_tokens >= protocol.max_length:
        raise ValueError(
            f"new_tokens={protocol.new_tokens} with max_length={protocol.max_length} leaves no room for a prompt: "
            "ask for fewer tokens or a larger max_length"
        )
    for name in protocol.sets:
        if name not in SETS:
            raise ValueError(f"unknown question set {name!r}: known are {', '.join(SETS)}")
        if protocol.questions > SETS[name].count:
            raise ValueError(
                f"questions={protocol.questions} was given, and {name} has {SETS[name].count}: ask for fewer"
            )
    if "plain" not in protocol.baselines or not set(protocol.baselines) <= set(BASELINES):
        raise ValueError(
            f"baselines={','.join(protocol.baselines)} was given: plain is needed, {BASELINES[1]} may come with it"
        )
    return protocol
