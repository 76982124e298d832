"""The arguments: what each verb takes, with help that needs no other page."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle_repro.cli import claims, kaggle, train, verbs
from eagle_repro.cli.bench import bench
from eagle_repro.cli.tune import tune

PROGRAM = "eagle_repro"
PROFILES = "smoke (seconds), quick (minutes on a CPU), full (a GPU), t4 (Kaggle); default: what fits this machine"

METHODS = ("plain", "eagle", "chain", "adaptive", "hf")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="EAGLE-3 speculative decoding, measured: what its speedup really depends on."
    )
    parser.set_defaults(debug=False)
    verbs_of = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for add in (_run, _measure, _generate, _tau, _tune, _bench, _compare, _doctor):
        add(verbs_of)
    train.add_parser(verbs_of, _verb, _pair, _positive)
    claims.add_parsers(verbs_of, _verb)
    kaggle.add_parsers(verbs_of, _verb)
    return parser


def _verb(
    parsers: Any, function: Callable[[argparse.Namespace], int], summary: str, description: str, example: str
) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = parsers.add_parser(
        function.__name__,
        help=summary,
        description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}. {description}", 100),
        epilog=f"example:\n  python -m {PROGRAM} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.set_defaults(verb=function)
    added.add_argument("--json", action="store_true", help="print one JSON document as the last line on stdout")
    added.add_argument("--debug", action="store_true", help="show where an error comes from, not only its line")
    return added


def _run(parsers: Any) -> None:
    verb = _verb(
        parsers,
        verbs.run,
        "run the notebooks in order and prove each complete",
        "What is complete already is\nskipped, what was cut off goes on. Exit code 1 if anything is missing.",
        "run --profile quick --out build/quick\n  python -m eagle_repro run 02 -p questions=1 -p new_tokens=32",
    )
    verb.add_argument("names", nargs="*", metavar="NOTEBOOK", help="02_speedup, 02 or speedup; none means all")
    _protocol(verb)
    verb.add_argument("--again", action="store_true", help="measure anew what is complete already")
    verb.add_argument("--refresh", action="store_true", help="write the executed notebooks back where they came from")
    verb.add_argument("--notebooks", type=Path, metavar="DIR", help="another folder with NN_name.ipynb notebooks")
    _processes(verb)
    verb.add_argument("--cell-timeout", type=_positive, metavar="S", help="seconds a cell may take")


def _measure(parsers: Any) -> None:
    verb = _verb(
        parsers,
        verbs.measure,
        "write one record without Jupyter",
        "The record is the same that the notebook writes; a notebook shows it when its RECORDS names the folder.",
        "measure 02_speedup --pair smollm2-135m --profile full --out records",
    )
    verb.add_argument("name", metavar="NAME", help="02_speedup, 02 or speedup, as the notebooks are called")
    _pair(verb)
    _protocol(verb)
    verb.add_argument("--again", action="store_true", help="start over, and measure anew what is complete already")
    _processes(verb)


def _generate(parsers: Any) -> None:
    verb = _verb(
        parsers,
        verbs.generate,
        "write text for a prompt",
        "With --compare plain decoding writes it too, and both texts are compared token by token.",
        'generate --prompt "Write a Python function that reverses a list." --compare',
    )
    _pair(verb)
    _decoding(verb)
    prompt = verb.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="what to answer")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="a UTF-8 text file with the prompt")
    verb.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    verb.add_argument("--thinking", action="store_true", help="let a model that can think do so")
    verb.add_argument("--method", default="eagle", choices=METHODS, help="default: eagle")
    verb.add_argument("--compare", action="store_true", help="plain decoding beside it: identical or not, tau, times")
    verb.add_argument("--stop", default="eos", choices=("eos", "never"), help="never: go on past the end of text")
    verb.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 (default) is greedy")
    verb.add_argument(
        "--top-p", type=float, default=1.0, metavar="X", help="keep the likeliest up to this share; 1 is off"
    )
    verb.add_argument("--top-k", type=int, default=0, metavar="N", help="keep the N likeliest tokens; 0 is off")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="governs every draw; default: 0")


def _tau(parsers: Any) -> None:
    verb = _verb(
        parsers,
        verbs.tau,
        "count the tokens a cycle by question set",
        "Greedy, past the end of text, so that every prompt gets equally many tokens.",
        "tau --pair smollm2-135m --shape 60,7,10 --sets chat,code,russian --questions 8",
    )
    _pair(verb)
    _decoding(verb)
    source = verb.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompts", type=Path, metavar="FILE", help='token ids: {"set": [[id, id, ...], ...], ...}')
    source.add_argument("--sets", metavar="A,B", help="question sets by name")
    verb.add_argument("--questions", type=_positive, default=5, metavar="N", help="of each set; default: 5")
    verb.add_argument("--method", default="eagle", choices=("eagle", "chain"), help="default: eagle")


def _tune(parsers: Any) -> None:
    verb = _verb(
        parsers,
        tune,
        "find the tree to use on this machine",
        "Replays what the head drafts, times a few cycles of some trees, and ranks all trees by predicted speedup.",
        "tune --pair smollm2-135m --sets chat,code --questions 4",
    )
    _pair(verb)
    verb.add_argument("--profile", metavar="P", help=PROFILES)
    verb.add_argument("--sets", metavar="A,B", help="question sets, taken together; default: the in-domain ones")
    verb.add_argument("--questions", type=_positive, metavar="N", help="of each set; default: the profile's")
    verb.add_argument("--new-tokens", type=_positive, metavar="N", help="of each answer; default: the profile's")


def _bench(parsers: Any) -> None:
    verb = _verb(
        parsers,
        bench,
        "time a plain step and a cycle on every stack of this card",
        "Medians at context 320, batch 1, in float16 on a GPU; the memory's bandwidth is measured beside them.",
        "bench --pair smollm2-135m\n  python -m eagle_repro bench --shape-of qwen3-1.7b --json",
    )
    _pair(verb)
    verb.add_argument("--shape-of", metavar="NAME", help="random weights in the shape of a published pair: qwen3-1.7b")
    verb.add_argument("--cycles", type=_positive, metavar="N", help="of each tree; default: 200 on a GPU, 20 on a CPU")
    verb.set_defaults(max_length=2048, rope_theta=None)


def _compare(parsers: Any) -> None:
    verb = _verb(
        parsers,
        verbs.compare,
        "put the records of two runs side by side",
        "First what differs between their benches, then tau and speedup by question set.",
        "compare build/quick results/h200-eager-smollm2-135m",
    )
    verb.add_argument("left", metavar="DIR", help="a folder with records, or the name of one under results/")
    verb.add_argument("right", metavar="DIR", help="another one")


def _doctor(parsers: Any) -> None:
    verb = _verb(
        parsers,
        verbs.doctor,
        "describe this bench and what would go wrong on it",
        "Exit code 1 if a run would be refused.",
        "doctor --pair smollm2-135m --profile quick",
    )
    _pair(verb)
    _protocol(verb)


def _pair(verb: argparse.ArgumentParser) -> None:
    """Which pair, and how it is loaded."""
    group = verb.add_argument_group("pair", "a named pair, or a target and a head: hub ids, Kaggle handles or folders")
    group.add_argument("--pair", metavar="NAME", help="smollm2-135m (default), tiny, qwen3-1.7b, qwen3-4b, qwen3-8b")
    group.add_argument("--target", metavar="WHERE", help="the target, with --head")
    group.add_argument("--head", metavar="WHERE", help="the head, with --target or instead of the pair's own")
    group.add_argument("--device", metavar="D", help="cpu, cuda:0, ...; default: the first GPU, else the CPU")
    group.add_argument("--dtype", metavar="T", help="float32, float16, bfloat16; default: by pair and card")
    group.add_argument(
        "--stack", metavar="S", help="how cycles are launched: eager, graph or compiled; default: graph on a GPU"
    )


def _protocol(verb: argparse.ArgumentParser) -> None:
    """What is measured, and where it goes."""
    group = verb.add_argument_group("protocol")
    group.add_argument("--profile", metavar="P", help=PROFILES)
    group.add_argument("--out", type=Path, metavar="DIR", help="where records go; default: build/PROFILE")
    group.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="NAME=VALUE",
        help="any setting of the protocol, for example questions=1 or sets=chat,russian; may be repeated",
    )  # fmt: skip


def _processes(verb: argparse.ArgumentParser) -> None:
    """How many processes measure."""
    verb.add_argument(
        "--procs", type=_positive, default=1, metavar="N",
        help="processes that share the questions, each on a GPU of its own (on a CPU all on it); default: 1",
    )  # fmt: skip


def _decoding(verb: argparse.ArgumentParser) -> None:
    """How text is written."""
    group = verb.add_argument_group("decoding")
    group.add_argument("--shape", metavar="T,D,K", help="tree: nodes,depth,top_k; default: 60,7,10")
    group.add_argument("--max-new-tokens", type=_positive, default=192, metavar="N", help="default: 192")
    group.add_argument(
        "--max-length", type=_positive, default=2048, metavar="N", help="of prompt and answer; default: 2048"
    )
    group.add_argument("--rope-theta", type=float, metavar="X", help="another rotary base for the head")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} was given, a whole number of at least 1 is needed")
    return int(text)
