"""Trees for tests, in plain Python: random ones, and what they should look like as tensors."""

from __future__ import annotations

import random
from dataclasses import fields

import torch

from eagle_repro.engine.tree import DraftTree


def ancestors_of(parents: list[int], node: int) -> list[int]:
    """Nodes from the root to `node`, both included."""
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def tree_of(parents: list[list[int]], tokens: list[list[int]]) -> DraftTree:
    """A batch of trees of one size, every field worked out node by node; scores are not used and stay 0."""
    nodes = range(len(parents[0]))
    paths = [[ancestors_of(row, node) for node in nodes] for row in parents]
    return DraftTree(
        tokens=torch.tensor(tokens),
        parents=torch.tensor(parents),
        depths=torch.tensor([[len(path) - 1 for path in row] for row in paths]),
        scores=torch.zeros(len(parents), len(nodes)),
        ancestors=torch.tensor([[[node in path for node in nodes] for path in row] for row in paths]),
    )


def repeated(parents: list[int], tokens: list[int], rows: int) -> DraftTree:
    """One tree in every row of a batch."""
    tree = tree_of([parents], [tokens])
    values = (getattr(tree, field.name) for field in fields(tree))
    return DraftTree(*(value.expand(rows, *value.shape[1:]) for value in values))


def random_parents(draws: random.Random, nodes: int) -> list[int]:
    """Parents of a random tree; now and then a deep or a bushy one."""
    reach = draws.choice([1, 2, nodes])
    return [-1] + [draws.randrange(max(0, node - reach), node) for node in range(1, nodes)]


def random_tokens(draws: random.Random, parents: list[int], vocabulary: int) -> list[int]:
    """Tokens of its nodes, siblings distinct while the vocabulary allows it."""
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        taken = {tokens[other] for other in range(node) if parents[other] == parent}
        tokens.append(draws.choice([token for token in range(vocabulary) if token not in taken] or [0]))
    return tokens
