"""What the checked cells of 07_domain and 10_train_head print; checked.py says why it is the same on every machine."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch.nn import init

from eagle_repro.api import generate
from eagle_repro.experiments.checked import NEW_TOKENS, PROMPT, SHAPE, listed, tiny, verdict
from eagle_repro.experiments.rows import Item
from eagle_repro.experiments.tau import count_cycles
from eagle_repro.measure.claims.effects import difference
from eagle_repro.measure.totals import Totals
from eagle_repro.training.fit import FitSettings, fit
from eagle_repro.training.recipes import recipes
from eagle_repro.training.settings import TrainSettings
from eagle_repro.training.write import CorpusSettings


def domain() -> None:
    """A text by two heads, the second one deaf to the target; cycles counted; and what an interval decides."""
    deaf = deepcopy(tiny().head)
    init.zeros_(deaf.fc.weight)
    own, other = (
        generate(pair, PROMPT, shape=SHAPE, max_new_tokens=NEW_TOKENS, stop="never")
        for pair in (tiny(), replace(tiny(), head=deaf))
    )
    print(f"{len(own.ids)} tokens in {len(own.cycles)} cycles")
    print(f"the text of a head that does not hear the target: {verdict(own.ids == other.ids)}")
    print(f"more cycles: {'yes' if len(other.cycles) > len(own.cycles) else 'no'}")
    counted = count_cycles(tiny(), [Item("chat", "0", PROMPT)], SHAPE, NEW_TOKENS)
    print(f"counted: {counted['emitted'][0]} tokens in {counted['cycles'][0]} cycles")
    for gain in (10, -10, 0):
        left, right = (
            Totals(*(np.full(8, value) for value in (more, 10.0, 30.0, 1.0))) for more in (30.0 + gain, 30.0)
        )
        found = difference(left.tau, right.tau, left, "made-up", ("left", "right"))
        print(f"8 questions of 10 cycles, {gain} tokens between two heads: {found.verdict}")


def training() -> None:
    """What the recipes mix, two trainings of one seed and one of another, and the learning rate on its way."""
    for name, recipe in recipes().items():
        print(f"{name}: {sum(map(len, recipe.openings.values()))} openings in {len(recipe.openings)} domains")
    pair, heads = tiny(), dict[str, Any]()
    corpus = CorpusSettings(answer_tokens=200, positions=48, turn=8, rows=8)
    with TemporaryDirectory() as place:
        for name, seed in (("first", 0), ("again", 0), ("other", 1)):
            short = TrainSettings(steps=3, batch_tokens=96, length=48, unrolled=2, seed=seed)
            written = Path(place) / "first" / "corpus" if heads else None
            settings = FitSettings("code", corpus, short, corpus_folder=written, tau_prompts=0)
            done = fit(pair.target, pair.tokenizer, pair.head.config, settings, Path(place) / name)
            heads[name] = done["head"]
    print(f"3 steps for a head of {heads['first']['parameters']} parameters")
    print(f"again with the same seed: {verdict(heads['first']['sha256'] == heads['again']['sha256'])}")
    print(f"with another seed: {verdict(heads['first']['sha256'] == heads['other']['sha256'])}")
    plan = TrainSettings(steps=1000, rate=1e-3, warm_up=50)
    print(f"rate by step, in millionths: {listed(round(1e6 * plan.rate_at(step, 1000)) for step in (0, 49, 525, 999))}")
