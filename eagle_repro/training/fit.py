"""From a pair and a recipe to a head: corpus, training, tau before and after; what is there is not done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from eagle_repro.engine.checkpoint import HeadConfig
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.target import Target
from eagle_repro.sources.paths import in_units, sha256_of
from eagle_repro.training.checkpoints import NAME as CHECKPOINT
from eagle_repro.training.checkpoints import load_checkpoint
from eagle_repro.training.corpus import Corpus, load_corpus, save_corpus
from eagle_repro.training.heads import draft_vocabulary, head_from, new_head, require_draft, save_head, write_json
from eagle_repro.training.identity import fingerprint, sha256_of_texts
from eagle_repro.training.recipes import find_recipe
from eagle_repro.training.settings import TrainSettings, needed_bytes, require_memory
from eagle_repro.training.tau import tau_of
from eagle_repro.training.train import run_of, train
from eagle_repro.training.write import CorpusSettings, Progress, silent, write_corpus

Result = TypeVar("Result")

#: How long one process waits for another: PyTorch's own 10 minutes are less than a corpus or a measurement takes.
PATIENCE = timedelta(hours=12)


@dataclass(frozen=True)
class FitSettings:
    """Recipe, corpus and training of a head.

    start: a head's folder to train on from, None for a new head; draft: ids of a new head's draft vocabulary, None for
    as many as `sizes` has; corpus_folder: a finished corpus; corpus_only: stop when it is written; tau_prompts,
    tau_tokens, tree: held-out tau, 0 prompts for none.
    """

    recipe: str
    corpus: CorpusSettings
    training: TrainSettings
    start: Path | None = None
    draft: int | None = None
    corpus_folder: Path | None = None
    corpus_only: bool = False
    tau_prompts: int = 8
    tau_tokens: int = 96
    tree: TreeShape = TreeShape(60, 7, 10)


def _nothing(line: str) -> None:
    """Say nothing."""


def fit(
    target: Target,
    tokenizer: Any,
    sizes: HeadConfig,
    settings: FitSettings,
    out: Path,
    *,
    prompts: Sequence[str] = (),
    provenance: dict[str, Any] | None = None,
    progress: Progress[Any] = silent,
    tell: Callable[[str], None] = _nothing,
) -> dict[str, Any]:
    """Fit a head; out/head gets it in the official layout, out/summary.json the summary that is returned.

    sizes: of a new head (those of the pair's own). Under accelerate the first process writes, all train. Raises, before
    anything is written, ValueError for settings that do not go together, HeadMismatch or FileNotFoundError for the head
    to train on from, RuntimeError where memory is short; and ValueError where out holds another run's checkpoint.
    """
    state = PartialState(cpu=target.device.type == "cpu", timeout=PATIENCE)
    first = state.is_main_process
    _require_possible(target, sizes, settings)
    tell = tell if first else _nothing
    corpus = _corpus(target, tokenizer, settings, out, prompts, provenance or {}, progress, tell)
    tell(_described(corpus))
    if settings.corpus_only:
        return {"corpus": corpus.provenance}
    head = _head(target, sizes, corpus, settings)
    load_checkpoint(out, run_of(target, head, corpus, settings.training, state.num_processes))  # refuses another run's
    counts = corpus.token_counts(target.vocabulary)
    covered = float(counts[head.t2d.cpu().numpy()].sum() / max(1, counts.sum()))
    tell(
        f"draft vocabulary {head.config.draft_vocabulary}, covers {covered:.1%}; training needs about "
        f"{in_units(needed_bytes(target, head.config, settings.training))} beside the target"
    )
    said = {**(provenance or {}), "corpus": corpus.provenance, "training": asdict(settings.training)}
    said |= {"start": str(settings.start.name) if settings.start else None, "coverage": covered}
    before = _by_the_first(lambda: _saved_tau(target, head, corpus, settings, out / "start", said))
    if before is not None:
        tell(f"held-out tau at the start: {before:.2f}")
    trained = train(target, head, corpus, settings.training, out, progress=progress, provenance=said)
    summary: dict[str, Any] = {**trained, "coverage": covered, "corpus": corpus.provenance["counts"]}
    summary["corpus_tokens_per_second"] = corpus.provenance["answer_tokens_per_second"]
    if first:
        after = _saved_tau(target, head, corpus, settings, out / "head", {**said, "trained": trained})
        summary["tau"] = {"before": before, "after": after}
        summary["head"] = {
            "folder": str(out / "head"),
            "parameters": sum(weight.numel() for weight in head.parameters()),
            "sha256": sha256_of(out / "head" / "model.safetensors"),
        }
        write_json(out / "head" / "PROVENANCE.json", {**said, "trained": trained, "held_out_tau": summary["tau"]})
        write_json(out / "summary.json", summary)
    return summary


def _require_possible(target: Target, sizes: HeadConfig, settings: FitSettings) -> None:
    """Raise for what would otherwise show only when the corpus is written, which may take hours."""
    training, positions = settings.training, settings.corpus.positions
    if settings.start is not None and settings.draft is not None:
        raise ValueError("a head that is trained on from keeps its draft vocabulary: leave --draft-vocabulary out")
    if settings.corpus_only:
        return
    if settings.corpus_folder is None and positions > training.length:
        raise ValueError(
            f"sequences of {training.length} tokens do not hold conversations of {positions}: give a --length of at "
            f"least {positions}, or fewer --positions"
        )
    if settings.start is not None:
        config = head_from(settings.start, target).config
    else:
        config = replace(sizes, draft_vocabulary=_draft_size(target, sizes, settings))
    require_memory(needed_bytes(target, config, training), target.device)


def _draft_size(target: Target, sizes: HeadConfig, settings: FitSettings) -> int:
    """Ids that a new head drafts. Raises ValueError for more than the target has, or none."""
    size = min(sizes.draft_vocabulary, target.vocabulary) if settings.draft is None else settings.draft
    require_draft(size, target.vocabulary)
    return size


def _corpus(
    target: Target,
    tokenizer: Any,
    settings: FitSettings,
    out: Path,
    prompts: Sequence[str],
    provenance: dict[str, Any],
    progress: Progress[Any],
    tell: Callable[[str], None],
) -> Corpus:
    folder = settings.corpus_folder or out / "corpus"

    def write() -> None:
        if _same_corpus(folder, target, settings, prompts):
            return
        if (folder / "corpus.json").is_file() and (out / CHECKPOINT).is_file():
            raise ValueError(
                f"{out} holds a training on another corpus (its recipe, settings, prompts or target): repeat them, or "
                "choose another output folder"
            )
        tell(f"the target writes {settings.corpus.answer_tokens:,} answer tokens, recipe {settings.recipe}")
        recipe = find_recipe(settings.recipe)
        written = write_corpus(
            target, tokenizer, recipe, settings.corpus, prompts=prompts, provenance=provenance, progress=progress
        )
        save_corpus(written, folder)

    if settings.corpus_folder is None:
        _by_the_first(write)
    corpus = load_corpus(folder)
    if corpus.provenance["vocabulary"] != target.vocabulary:
        raise ValueError(
            f"the corpus in {folder} was written with a vocabulary of {corpus.provenance['vocabulary']}, this target "
            f"has {target.vocabulary}: write one with this target"
        )
    return corpus


def _by_the_first(work: Callable[[], Result]) -> Result | None:
    """What the first process has worked out while the others, which get None, waited; where it fails, all do."""
    done: Result | None = None
    error: Exception | None = None
    if PartialState().is_main_process:
        try:
            done = work()
        except Exception as caught:
            error = caught
    told = [None if error is None else f"{type(error).__name__}: {error}"]
    broadcast_object_list(told)
    if error is not None:
        raise error
    if told[0] is not None:
        raise RuntimeError(f"the first process has failed: {told[0]}")
    return done


def _same_corpus(folder: Path, target: Target, settings: FitSettings, prompts: Sequence[str]) -> bool:
    """Whether the folder holds the corpus that this target would write with these settings and prompts."""
    if not (folder / "corpus.json").is_file():
        return False
    said = load_corpus(folder).provenance
    asked = {
        "recipe": settings.recipe,
        "settings": asdict(settings.corpus),
        "own_prompts_sha256": sha256_of_texts(prompts),
        "target_fingerprint": fingerprint(target.model.state_dict()),
    }
    return {name: said.get(name) for name in asked} == asked


def _head(target: Target, sizes: HeadConfig, corpus: Corpus, settings: FitSettings) -> Eagle3Head:
    if settings.start is not None:
        return head_from(settings.start, target)
    drafted = draft_vocabulary(corpus.token_counts(target.vocabulary), _draft_size(target, sizes, settings))
    return new_head(target, sizes, drafted, settings.training.seed)


def _saved_tau(
    target: Target, head: Eagle3Head, corpus: Corpus, settings: FitSettings, folder: Path, provenance: dict[str, Any]
) -> float | None:
    """Save a head and measure its held-out tau from what was saved, for that is what others will load."""
    save_head(head, folder, provenance)
    prompts = corpus.held_out_prompts(settings.tau_prompts)
    return tau_of(target, folder, prompts, settings.tree, settings.tau_tokens)


def _described(corpus: Corpus) -> str:
    counts = corpus.provenance["counts"]
    speed = corpus.provenance["answer_tokens_per_second"]
    return (
        f"corpus: {counts['answer_tokens']:,} answer tokens in {counts['conversations']:,} conversations "
        f"({counts['held_out']:,} held out), written at {speed:,.0f} tokens a second"
    )
