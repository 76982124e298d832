"""The verb train: a head fitted to a target, from corpus to tau."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle_repro.cli.values import parse_shape
from eagle_repro.cli.verbs import finish, load, tell

Add = Callable[..., Any]


def add_parser(parsers: Any, verb: Add, pair: Add, positive: Callable[[str], int]) -> None:
    """Add the verb; `verb` makes its parser, `pair` adds the arguments that name a pair (cli.arguments)."""
    added = verb(
        parsers,
        train,
        "fit a head to a target: corpus, training, tau",
        "The target writes the corpus itself. Killed and given again, the command goes on from its last checkpoint: a\n"
        "finished corpus is kept, an unfinished one is begun again. Under\n"
        "accelerate launch -m eagle_repro train ... several GPUs share the work.",
        "train --pair smollm2-135m --recipe general --out build/general --tokens 12e6 --minutes 5",
    )
    pair(added)
    added.set_defaults(max_length=2048, rope_theta=None)
    added.add_argument("--out", type=Path, required=True, metavar="DIR", help="corpus, checkpoint, log and head")
    corpus = added.add_argument_group("corpus")
    corpus.add_argument("--recipe", default="general", help="general (default), code, no-code or russian-mix")
    corpus.add_argument("--tokens", type=_count, default=12_000_000, metavar="N", help="answer tokens; default: 12e6")
    corpus.add_argument(
        "--prompts", type=Path, metavar="FILE", help="user turns of your own, JSON Lines as in data/questions"
    )
    corpus.add_argument("--corpus", type=Path, metavar="DIR", help="a finished corpus, instead of writing one")
    corpus.add_argument("--corpus-only", action="store_true", help="write the corpus and stop")
    corpus.add_argument("--positions", type=positive, default=448, metavar="N", help="tokens of a conversation")
    corpus.add_argument("--turn", type=positive, default=96, metavar="N", help="most tokens of a made-up user turn")
    corpus.add_argument(
        "--rows", type=_count, default=0, metavar="N", help="conversations side by side; default: what fits"
    )
    corpus.add_argument("--greedy", type=float, default=0.6, metavar="X", help="share of greedy answers; default: 0.6")
    corpus.add_argument(
        "--beyond", type=_count, default=0, metavar="N", help="tokens past the end of an answer, as measurements write"
    )
    group = added.add_argument_group("training")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive, metavar="N", help="training steps; default: 1000")
    length.add_argument("--minutes", type=float, metavar="M", help="as many steps as these minutes hold")
    group.add_argument("--seed", type=int, default=0, metavar="S", help="of corpus, new head and order; default: 0")
    group.add_argument("--from", dest="start", type=Path, metavar="HEAD", help="a head's folder to train on from")
    group.add_argument("--draft-vocabulary", type=_count, metavar="N", help="of a new head; default: the pair's")
    group.add_argument("--batch-tokens", type=_count, default=16384, metavar="N", help="of a step and device")
    group.add_argument("--length", type=positive, default=512, metavar="N", help="tokens of a packed sequence")
    group.add_argument("--unrolled", type=positive, default=6, metavar="K", help="steps of the training-time test")
    group.add_argument("--rate", type=float, default=1e-3, metavar="X", help="peak learning rate; default: 1e-3")
    group.add_argument("--checkpoint-every", type=positive, default=500, metavar="N", help="steps; default: 500")
    group.add_argument("--snapshots", type=_count, default=0, metavar="N", help="heads saved on the way")
    group.add_argument("--no-compile", action="store_true", help="without torch.compile")
    group.add_argument("--tau-prompts", type=_count, default=8, metavar="N", help="held-out prompts; 0: no tau")
    group.add_argument("--tau-tokens", type=positive, default=96, metavar="N", help="new tokens of each")
    group.add_argument("--shape", default="60,7,10", metavar="T,D,K", help="tree of the held-out tau")


def train(args: argparse.Namespace) -> int:
    """train: corpus, head, tau before and after."""
    from accelerate import PartialState

    from eagle_repro.measure.bench import git_revision
    from eagle_repro.present import progress
    from eagle_repro.sources.paths import PACKAGE
    from eagle_repro.sources.questions import read_questions
    from eagle_repro.training.fit import fit

    if "LOCAL_RANK" in os.environ and args.device is None:  # accelerate starts one process a GPU
        args.device = f"cuda:{os.environ['LOCAL_RANK']}"
    settings = _settings(args)
    prompts = [each.turns[0] for each in read_questions(args.prompts)] if args.prompts else []
    pair = load(args)
    provenance = {"pair": pair.provenance, "dtype": pair.dtype, "git": git_revision(PACKAGE), **_versions()}
    summary = fit(
        pair.target,
        pair.tokenizer,
        pair.head.config,
        settings,
        args.out,
        prompts=prompts,
        provenance=provenance,
        progress=progress.bar,
        tell=tell,
    )
    if not PartialState().is_main_process:  # of several, one speaks
        return 0
    _print(summary)
    return finish(args, summary)


def _settings(args: argparse.Namespace) -> Any:
    from eagle_repro.training.fit import FitSettings
    from eagle_repro.training.recipes import find_recipe
    from eagle_repro.training.settings import TrainSettings
    from eagle_repro.training.write import CorpusSettings

    steps = args.steps if args.steps or args.minutes else 1000
    return FitSettings(
        recipe=find_recipe(args.recipe).name,
        corpus=CorpusSettings(
            args.tokens, args.seed, args.positions, args.turn, args.greedy, rows=args.rows, beyond=args.beyond
        ),
        training=TrainSettings(
            steps=steps,
            minutes=args.minutes,
            seed=args.seed,
            unrolled=args.unrolled,
            batch_tokens=args.batch_tokens,
            length=args.length,
            rate=args.rate,
            checkpoint_every=args.checkpoint_every,
            snapshots=args.snapshots,
            compiled=False if args.no_compile else None,
        ),
        start=args.start,
        draft=args.draft_vocabulary,
        corpus_folder=args.corpus,
        corpus_only=args.corpus_only,
        tau_prompts=args.tau_prompts,
        tau_tokens=args.tau_tokens,
        tree=parse_shape(args.shape),
    )


def _versions() -> dict[str, Any]:
    from importlib.metadata import version

    return {"versions": {name: version(name) for name in ("torch", "transformers", "accelerate", "numpy")}}


def _print(summary: dict[str, Any]) -> None:
    if "steps" not in summary:
        return
    tau, last = summary.get("tau") or {}, summary["last"]
    accuracy = ", ".join(f"{share:.3f}" for share in last.get("accuracy", []))
    loss = f"{last['loss']:.3f}" if last else "not logged"
    print(f"{summary['steps']} steps in {summary['seconds']:.0f} s, loss {loss}, accuracy by step {accuracy}")
    if None not in (before := tau.get("before"), after := tau.get("after")):
        print(f"held-out tau {before:.2f} before, {after:.2f} after")
    if "head" in summary:
        print(summary["head"]["folder"])


def _count(text: str) -> int:
    """A whole number that may be written as 12e6."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0 or not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} was given, a whole number such as 12000 or 12e6 is needed")
    return int(value)
