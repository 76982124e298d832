"""Probabilities of what was counted, for tests with fixed seeds."""

from __future__ import annotations

import torch
from torch import Tensor

UNLIKELY = 1e-4
"""A right engine falls below this once in ten thousand choices of seeds; seeds are fixed, so never by chance."""


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """Probability of a fit as bad as this of counts (cells,) to probabilities (cells,); rare cells are pooled."""
    expected = probabilities.double() / probabilities.double().sum() * counts.sum()
    rare = expected < 5
    seen = torch.cat((counts[~rare].double(), counts[rare].double().sum().reshape(1)))
    wanted = torch.cat((expected[~rare], expected[rare].sum().reshape(1)))
    if wanted[-1] < 1:  # too little to be a cell; but what cannot happen must not
        assert seen[-1] <= 10 * max(1.0, float(wanted[-1])) and (counts[expected == 0] == 0).all()
        seen, wanted = seen[:-1], wanted[:-1]
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    degrees = torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic / 2))


def kolmogorov_smirnov(uniforms: Tensor) -> float:
    """Probability of a gap as large as this between a sample (n,) and the uniform distribution on [0, 1]."""
    ordered, count = uniforms.double().sort().values, uniforms.numel()
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    gap = torch.maximum((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    terms = torch.arange(1, 101, dtype=torch.float64)
    series = (-1) ** (terms - 1) * torch.exp(-2 * terms**2 * gap**2 * count)
    return float((2 * series.sum()).clamp(0, 1))
