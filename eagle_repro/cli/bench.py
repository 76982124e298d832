"""The verb bench: what a plain step and a cycle cost on this card, stack by stack."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from eagle_repro.cli.verbs import as_rows, finish, load, or_auto, tell

if TYPE_CHECKING:
    from eagle_repro.api import Pair

CONTEXT, TOKENS = 320, 64
TREES = ((60, 7, 10), (60, 2, 10))
CYCLES = {"cuda": 200, "cpu": 20}


def bench(args: argparse.Namespace) -> int:
    """bench: copy bandwidth, plain step, phases of a cycle and the host's share, for every stack of the card."""
    from eagle_repro.engine.devices import dtype_name, resolve_dtype, resolve_stack, target_devices
    from eagle_repro.engine.shape import TreeShape
    from eagle_repro.experiments.protocol import OWN_SETS
    from eagle_repro.experiments.stack_costs import Watching, prompts_of, stack_rows, stacks_of
    from eagle_repro.experiments.timing_pairs import free_memory
    from eagle_repro.measure import stacks
    from eagle_repro.measure.bench import bench_sheet
    from eagle_repro.measure.roofline import measured_bandwidth
    from eagle_repro.present import stack_tables, tables

    _check(args)
    device, *others = target_devices(or_auto(args.device))
    if others:
        raise ValueError(f'--device {args.device} was given, and bench times one card: name one, as in "cuda:0"')
    usual = "float16" if device.type == "cuda" else "float32"
    dtype = usual if or_auto(args.dtype) == "auto" else dtype_name(resolve_dtype(args.dtype, device))
    names = [resolve_stack(args.stack, device)] if args.stack is not None else stacks_of(device)
    watching = Watching(args.cycles or CYCLES[device.type], turns=1, context=CONTEXT, tokens=TOKENS)
    bandwidth = measured_bandwidth(device)
    rows: list[dict[str, Any]] = []
    for stack in names:
        pair = _pair(args, str(device), dtype, stack)
        prompts = prompts_of(pair, OWN_SETS, watching.prompt)
        for _, row in stack_rows(pair, prompts, [TreeShape(*tree) for tree in TREES], watching):
            tell(f"{stack}, {row['nodes']} nodes: {1e3 * row['cycle_s']:.2f} ms")
            rows.append(row)
        del pair
        free_memory()
    frame = stacks.costs_of(rows, bandwidth)
    sheet = bench_sheet(
        device=device, dtype=dtype, stack=", ".join(names), pair={"name": rows[0]["pair"]}, protocol={},
        question_sets={},
    )  # fmt: skip
    looked = f"Context {CONTEXT}, batch 1, at least {watching.cycles} cycles of each."
    line = " | ".join(str(part) for part in (sheet["card"], dtype, f"torch {sheet['torch']}"))
    tables.show(stack_tables.timed(frame, bandwidth, [looked, line]))
    return finish(args, {"bench": sheet, "bandwidth_gb_s": bandwidth, "costs": as_rows(frame)})


def _check(args: argparse.Namespace) -> None:
    """Refuse what does not go together, before anything is loaded or measured."""
    from eagle_repro.sources.pairs import SHAPES

    if args.shape_of is None:
        return
    if args.pair or args.target or args.head:
        raise ValueError(f"--shape-of {args.shape_of} was given beside a pair: give one of them")
    if args.shape_of not in SHAPES:
        raise ValueError(f"--shape-of {args.shape_of} was given: known shapes are {', '.join(SHAPES)}")


def _pair(args: argparse.Namespace, device: str, dtype: str, stack: str) -> Pair:
    """The named pair, or one of random weights in a published shape."""
    from eagle_repro.engine.devices import DTYPES
    from eagle_repro.experiments.timing_pairs import random_pair
    from eagle_repro.sources.pairs import SHAPES

    if args.shape_of is not None:
        return random_pair(SHAPES[args.shape_of], device, DTYPES[dtype], stack=stack)
    return load(argparse.Namespace(**{**vars(args), "dtype": dtype, "stack": stack}))
