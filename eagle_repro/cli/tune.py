"""The verb tune: which tree to use here."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from eagle_repro.cli.verbs import PAIR_SETTINGS, finish, tell

RUNNERS_UP = 9


def tune(args: argparse.Namespace) -> int:
    """tune: the tree of the highest predicted speedup, and the next best."""
    from eagle_repro.experiments.protocol import build_protocol
    from eagle_repro.experiments.session import open_pair
    from eagle_repro.experiments.tune import tune as rank
    from eagle_repro.present import progress, shape_tables, tables
    from eagle_repro.sources.questions import SETS

    asked = {"profile": args.profile, "sets": args.sets, "questions": args.questions, "new_tokens": args.new_tokens}
    protocol = build_protocol({name: getattr(args, name) for name in PAIR_SETTINGS}, asked, {})
    if not args.sets:  # the out-of-domain sets would pull the tree towards texts that the head was not made for
        protocol = replace(protocol, sets=tuple(name for name in protocol.sets if SETS[name].domain == "in"))
    tell(f"questions of {', '.join(protocol.sets)}: {protocol.questions} each, {protocol.new_tokens} tokens an answer")
    pair = open_pair(protocol)
    found = rank(pair, protocol, progress.bar)
    rows = [
        {**each.shape._asdict(), "tau": each.tau, "speedup": each.speedup, "ms_cycle": 1e3 * each.cycle_s}
        for each in found.ranking[: 1 + RUNNERS_UP]
    ]
    best = rows[0]
    shape = f"{best['total_tokens']},{best['depth']},{best['top_k']}"
    advice = f"Use --shape {shape}: tau {best['tau']:.2f}, predicted {best['speedup']:.2f}x over plain decoding."
    if best["speedup"] < 1:
        advice = "Use plain decoding: no tree is predicted to beat it here."
    notes = [
        f"predicted from {1e3 * found.curves.plain:.1f} ms a plain token, for these questions together.",
        f"{pair.name}, {pair.dtype}, {pair.stack}, {pair.device}",
    ]
    tables.show(shape_tables.ranking(rows, notes))
    print(f"\n{advice}")
    document: dict[str, Any] = {"pair": pair.provenance, "dtype": pair.dtype, "stack": pair.stack}
    document |= {"sets": protocol.sets, "questions": protocol.questions, "new_tokens": protocol.new_tokens}
    document |= {"plain_ms": 1e3 * found.curves.plain, "best": best, "runners_up": rows[1:]}
    return finish(args, document)
