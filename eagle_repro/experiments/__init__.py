"""One module a notebook: a pair and a protocol in, a record and a DataFrame out."""

from __future__ import annotations

import difflib

#: Notebook and record -> the module of this package that measures it, in the order of the notebooks.
EXPERIMENTS: dict[str, str] = {
    "00_bench": "bench",
    "01_roofline": "roofline",
    "02_speedup": "speedup",
    "03_tree_shape": "tree_shape",
    "04_chain_vs_tree": "chain_vs_tree",
    "05_target_size": "target_size",
    "06_lossless": "lossless",
    "07_domain": "domain",
    "08_stack": "stack",
    "09_batch_context": "batch_context",
    "10_train_head": "train_head",
    "11_report": "report",
}

#: Those whose runs are all of questions, each by itself, so that several processes can share them out.
BY_QUESTION = ("02_speedup", "04_chain_vs_tree")


def find_experiment(name: str) -> str:
    """The full name for "02_speedup", "02" or "speedup". Raises ValueError that lists the known ones."""
    for full, module in EXPERIMENTS.items():
        if name in (full, full.partition("_")[0], module):
            return full
    close = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown experiment {name!r}: {guess}known are {', '.join(EXPERIMENTS)}")
