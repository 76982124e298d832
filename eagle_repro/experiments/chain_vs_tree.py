"""04_chain_vs_tree: what does branching give?

A chain is a tree of width 1: one guess a level instead of several. Both draft equally deep and both check their guesses
in one pass of the target a cycle, so the tokens that a pass gives are compared like with like. The same texts are also
written by plain decoding, all three in turns.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from eagle_repro.api import Pair
from eagle_repro.engine.shape import TreeShape
from eagle_repro.experiments.compared import alternated, write_compared
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import Row, Way
from eagle_repro.experiments.session import Progress, Session, silent
from eagle_repro.experiments.speedup import read_items
from eagle_repro.measure import branching
from eagle_repro.measure.bench import clocks
from eagle_repro.measure.records import Record

#: The tree by profile; the chain has its depth. On a GPU it is the one that the article settled on, on a CPU, which
#: pays for every node, a small one.
TREES = {"smoke": (16, 3, 4), "quick": (16, 3, 4), "full": (60, 2, 10), "t4": (60, 2, 10)}


def measure(session: Session, progress: Progress = silent) -> Record:
    """Write every question plainly, by chain and by tree; what an earlier session has written is not run again.

    Raises NonFiniteLogits, and ValueError before any run for a prompt that does not fit max_length.
    """
    if session.records_from:
        return session.record()
    pair = session.pair
    protocol = replace(session.protocol, repeats=1)  # what varies are the questions
    items, ways = read_items(protocol, pair), ways_of(protocol)
    with session.writer() as writer:
        runs = alternated(writer, pair, protocol, ways, items)
        watched = progress(runs, "texts", len(ways) * len(items))
        write_compared(writer, pair, ways, items, watched, session.partial_rows(), label)
        writer.complete(clocks_after=clocks(pair.device))
    return session.record()


def run(pair: Pair, protocol: Protocol, out: Path) -> pd.DataFrame:
    """What branching gives by question set, measured on a pair that is loaded already."""
    return branching.gains(measure(Session("04_chain_vs_tree", replace(protocol, out=str(out)), pair)))


def ways_of(protocol: Protocol) -> list[Way]:
    """Plain decoding, the chain and the tree, these two equally deep."""
    tree = TreeShape(*TREES[protocol.profile])
    return [Way("plain"), Way("chain", "chain", TreeShape.chain(tree.depth)), Way("eagle", "tree", tree)]


def label(way: Way) -> Row:
    """What a row says beyond those of 02_speedup."""
    return {"what": "text"}
