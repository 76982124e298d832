"""The verbs: one function each, which gets the parsed arguments and returns the exit code.

Tables go to stdout, progress to stderr. What a verb needs is imported when it runs, so that --help waits for nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from eagle_repro.cli.values import DEFAULT_SHAPE, parse_parameters, parse_shape, prompt_text

if TYPE_CHECKING:
    import pandas as pd

    from eagle_repro.api import Pair
    from eagle_repro.engine.shape import TreeShape
    from eagle_repro.experiments.session import Session

DEFAULT_PAIR = "smollm2-135m"
PAIR_SETTINGS = ("pair", "target", "head", "device", "dtype", "stack")


def run(args: argparse.Namespace) -> int:
    """run: the notebooks, each proved complete."""
    from eagle_repro import runner
    from eagle_repro.measure import summary
    from eagle_repro.measure.records import read_record
    from eagle_repro.present import console, tables

    plan = runner.make_plan(
        notebooks=args.notebooks,
        names=args.names,
        out=args.out,
        profile=args.profile,
        overrides=parse_parameters(args.parameter),
        again=args.again,
        cell_timeout=args.cell_timeout,
        processes=args.procs,
    )
    outcomes = runner.run(plan, tell)
    complete = all(outcome.state != "incomplete" for outcome in outcomes)
    document: dict[str, Any] = {"complete": complete, "notebooks": [vars(outcome) for outcome in outcomes]}
    if any(outcome.name == "02_speedup" and outcome.state != "incomplete" for outcome in outcomes):
        record = read_record(plan.session("02_speedup").path)
        tables.show(tables.speedup(record))
        print()
        document["speedup"] = as_rows(summary.speedup(record))
    tables.show(console.outcomes(document["notebooks"]))
    if complete and args.refresh:
        for written in runner.refresh(plan):
            tell(f"refreshed {written.name}")
    tell(f"records and executed notebooks are in {plan.out}")
    return finish(args, document, 0 if complete else 1)


def measure(args: argparse.Namespace) -> int:
    """measure: one record, without Jupyter."""
    from importlib import import_module

    from eagle_repro.experiments import EXPERIMENTS, shares
    from eagle_repro.measure import summary
    from eagle_repro.measure.records import completeness
    from eagle_repro.present import console, progress, tables

    session = session_of(args, args.name)
    if args.again:
        shares.discard(session)
    if not args.again and completeness(session.path) == "complete" and session.fits(session.record()):
        tell(f"{session.path.name} is complete already (--again measures it anew)")
        record = session.record()
    else:
        shares.prepare(session, args.procs)
        module = import_module(f"eagle_repro.experiments.{EXPERIMENTS[session.name]}")
        record = module.measure(session, progress.bar)
    tables.show(*console.of(record))
    tell(f"the record is {session.path}")
    return finish(args, {"record": str(session.path), "rows": as_rows(summary.of(record))})


def generate(args: argparse.Namespace) -> int:
    """generate: text for a prompt, by one method or by plain decoding beside it."""
    from eagle_repro.engine.accept import Sampling
    from eagle_repro.experiments.texts import verdict, write_texts
    from eagle_repro.present import console, tables
    from eagle_repro.sources.questions import prompt_ids

    sampling, shape = Sampling(args.temperature, args.top_p, args.top_k, args.seed), _shape(args)
    text = prompt_text(args.prompt, args.prompt_file)
    pair = load(args)
    if args.raw:
        prompt = list(pair.tokenizer(text, add_special_tokens=False)["input_ids"])
    else:
        prompt = prompt_ids(pair.tokenizer, text, thinking=args.thinking)
    methods = ["plain", args.method] if args.compare else [args.method]
    options = {"shape": shape, "max_new_tokens": args.max_new_tokens, "sampling": sampling, "stop": args.stop}
    written = write_texts(pair, prompt, methods, **options)
    done, rows = written[-1][0], [row for _, row in written]
    answer = pair.tokenizer.decode(done.ids, skip_special_tokens=True)
    print(answer, end="\n\n")
    tables.show(console.texts(rows))
    document = {"prompt_tokens": len(prompt), "text": answer, "ids": done.ids, "runs": rows}
    if not args.compare:
        return finish(args, document)
    said, line = verdict(pair, prompt, done.ids, rows[-1]["identical"], greedy=sampling.greedy)
    print(f"\n{line}")
    return finish(args, document | {"verdict": said}, 1 if said == "different" else 0)


def _shape(args: argparse.Namespace) -> TreeShape | None:
    """The tree that was asked for; None for a method that picks its own, which refuses one with ValueError."""
    if args.method != "adaptive":
        return parse_shape(args.shape or DEFAULT_SHAPE)
    if args.shape:
        raise ValueError(f"--shape {args.shape} was given, and adaptive picks a tree for every cycle: leave it out")
    return None


def tau(args: argparse.Namespace) -> int:
    """tau: tokens a cycle by question set, for a pair and a tree."""
    from eagle_repro.experiments import tau as counting
    from eagle_repro.present import console, progress, tables

    args.shape = args.shape or DEFAULT_SHAPE
    shape = parse_shape(args.shape)
    prompts = counting.read_prompts(args.prompts) if args.prompts else None
    names = counting.named_sets(args.sets, args.questions) if prompts is None else []
    pair = load(args)
    if prompts is None:
        prompts = counting.prompts_of_sets(pair, names, args.questions)
    frame = counting.tau_by_set(pair, prompts, shape, args.max_new_tokens, method=args.method, progress=progress.bar)
    tables.show(console.tau(frame, args.shape))
    return finish(args, {"pair": pair.provenance, "dtype": pair.dtype, "shape": args.shape, "sets": as_rows(frame)})


def compare(args: argparse.Namespace) -> int:
    """compare: the records of two runs side by side."""
    from eagle_repro.experiments.session import records_folder
    from eagle_repro.measure import summary
    from eagle_repro.measure.claims import read_run
    from eagle_repro.present import console, tables

    folders = [records_folder(name) for name in (args.left, args.right)]
    runs = [read_run(folder) for folder in folders]
    shared = [name for name in runs[0].records if name in runs[1].records]
    if not shared:
        told = ((run, name, run.faults.get(name, state)) for run in runs for name, state in run.states.items())
        states = (f"{name} of {run.name} is {state}" for run, name, state in told)
        why = "; ".join(states) or "measure the same one in both"
        raise FileNotFoundError(f"{args.left} and {args.right} have no finished record in common: {why}")
    names = [folder.resolve().name for folder in folders]
    names = names if names[0] != names[1] else ["left", "right"]
    compared = "02_speedup" if "02_speedup" in shared else shared[0]
    records = [run.records[compared] for run in runs]
    bench = summary.bench_differences(*records)
    tables.show(console.differences(bench, names))
    document: dict[str, Any] = {"compared": compared, "bench": as_rows(bench.astype(str))}
    if compared != "02_speedup":
        print(f"\nNo number could be compared: 02_speedup is not finished in both, {', '.join(shared)} alone.")
        return finish(args, document, 1)
    frame = summary.side_by_side(*records)
    print()
    tables.show(console.side_by_side(frame, names))
    both = not frame[["tau_left", "tau_right"]].isna().any(axis=1).all()
    if not both:
        print("\nNo number could be compared: no tree of one shape ran on one question set in both.")
    return finish(args, document | {"speedup": as_rows(frame)}, 0 if both else 1)


def doctor(args: argparse.Namespace) -> int:
    """doctor: this bench, and what would go wrong on it."""
    from eagle_repro.experiments import bench, guards
    from eagle_repro.present import tables

    session = session_of(args, "00_bench")
    found = guards.check(session.protocol)
    if all(guard.verdict == "ok" for guard in found):
        found.append(bench.loads(session))
    if found[-1].check == "pair" and found[-1].verdict == "ok":
        found.append(bench.prompts_fit(session))
    record = bench.preview(session, found)
    tables.show(tables.bench_sheet(record), tables.guards(record))
    refused = [guard.check for guard in found if guard.verdict == "refused"]
    print("\n" + (f"This run would be refused: {', '.join(refused)}." if refused else "Nothing is in the way."))
    document = {"bench": record.header["bench"], "guards": [vars(guard) for guard in found]}
    return finish(args, document, 1 if refused else 0)


def session_of(args: argparse.Namespace, name: str) -> Session:
    """The session that the arguments describe."""
    from eagle_repro.experiments.session import open_session

    models = {setting: getattr(args, setting) for setting in PAIR_SETTINGS}
    protocol = {"profile": args.profile, "out": str(args.out) if args.out else None}
    return open_session(name, models, protocol, parse_parameters(args.parameter))


def load(args: argparse.Namespace) -> Pair:
    """The pair that the arguments name; the embedded one where they name none."""
    from eagle_repro.experiments.session import load_quietly

    unnamed = not (args.pair or args.target)
    return load_quietly(
        DEFAULT_PAIR if unnamed else args.pair,
        target=args.target,
        head=args.head,
        device=or_auto(args.device),
        dtype=or_auto(args.dtype),
        stack=or_auto(args.stack),
        max_length=args.max_length,
        rope_theta=args.rope_theta,
    )


def or_auto(value: str | None) -> str:
    """An option's value, "auto" where it was not given. One that is given empty stays so, and is refused later."""
    return "auto" if value is None else value


def tell(line: str) -> None:
    """Say something to a person who waits."""
    print(line, file=sys.stderr, flush=True)


def as_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table as plain rows, what is not known as null."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return rows


def finish(args: argparse.Namespace, document: dict[str, Any], code: int = 0) -> int:
    """End a verb: its document as the last line on stdout where that is asked for."""
    if args.json:
        print(json.dumps(document, allow_nan=False))
    return code
