"""Recipes: which domains a corpus mixes, and how its user turns begin (data/training/recipes.yaml)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from eagle_repro.sources.paths import data_folder


@dataclass(frozen=True)
class Recipe:
    """A mix of domains. shares: domain -> share of conversations; openings: domain -> beginnings of a user turn."""

    name: str
    shares: dict[str, float]
    openings: dict[str, tuple[str, ...]]

    def draws(self, seed: int) -> Iterator[tuple[str, str]]:
        """Endless (domain, opening) pairs, a function of the seed alone."""
        dice = random.Random(seed)
        domains, weights = list(self.shares), list(self.shares.values())
        while True:
            domain = dice.choices(domains, weights)[0]
            yield domain, dice.choice(self.openings[domain])


def recipes() -> dict[str, Recipe]:
    """All recipes by name."""
    raw = yaml.safe_load((data_folder() / "training" / "recipes.yaml").read_text(encoding="utf-8"))
    openings = {domain: tuple(lines) for domain, lines in raw["openings"].items()}
    return {
        name: Recipe(name, dict(shares), {domain: openings[domain] for domain in shares})
        for name, shares in raw["recipes"].items()
    }


def find_recipe(name: str) -> Recipe:
    """The recipe of that name. Raises ValueError that lists the known ones."""
    known = recipes()
    if name not in known:
        raise ValueError(f"unknown recipe {name!r}: choose one of {', '.join(known)}")
    return known[name]
