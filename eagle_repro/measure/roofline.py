"""Ceilings: what a card can do at best, what it does, and how far one pass of the target is from it.

Decoding one token reads every weight once and computes little, so a pass costs at least

    floor seconds = weight bytes / memory bandwidth

A pass over n tokens reads the same weights; until the arithmetic catches up it should cost the same, which is what
makes a verification pass over a tree nearly as cheap as one token. The floor is a ceiling for the stack: the share
of the bandwidth that a pass really uses is its bus utilisation, and the rest is overhead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import nn

from eagle_repro.measure.timing import measure

GB = 1e9  # bandwidths are in units of 10**9 bytes, as vendors give them
MEMORY_TOLERANCE = 0.12  # a T4 shows 14.7 of its 16 GiB


@dataclass(frozen=True)
class Card:
    """Peaks of one card: memory bandwidth in GB/s, fp16 and bf16 matrix arithmetic in TFLOP/s.

    `pattern` must match torch's whole device name, less the maker's prefix; `memory_gib` tells apart what the name
    does not. P100 has no tensor cores: its figure is plain fp16. bf16 exists from Ampere on.
    """

    name: str
    pattern: str
    memory_gib: int
    bandwidth_gbs: float
    half_tflops: float


# From NVIDIA's data sheets, dense arithmetic (without sparsity).
CARDS = (
    Card("T4", r"T4", 16, 320, 65),
    Card("P100 SXM2", r"P100-SXM2-16GB", 16, 732, 21.2),
    Card("P100 PCIe", r"P100-PCIE-16GB", 16, 732, 18.7),
    Card("V100 SXM2", r"V100-SXM2-16GB", 16, 900, 125),
    Card("L4", r"L4", 24, 300, 121),
    Card("A100 40GB", r"A100-(SXM4|PCIE)-40GB", 40, 1555, 312),
    Card("A100 80GB SXM", r"A100-SXM4-80GB", 80, 2039, 312),
    Card("H100 SXM", r"H100 80GB HBM3", 80, 3350, 989),
    Card("H100 PCIe", r"H100 PCIe", 80, 2000, 756),
    Card("H200", r"H200", 141, 4800, 989),
)


def find_card(name: str, memory_bytes: int) -> Card | None:
    """The row for a device name and memory as torch gives them; None for a card not in the table, also for a slice.

    A name that is merely similar (L40 for L4, a MIG slice of an A100) never matches.
    """
    bare = re.sub(r"^(NVIDIA|Tesla) ", "", name.strip())
    for card in CARDS:
        close = abs(memory_bytes / 2**30 - card.memory_gib) <= MEMORY_TOLERANCE * card.memory_gib
        if close and re.fullmatch(card.pattern, bare):
            return card
    return None


def card_of(device: torch.device | str) -> Card | None:
    """The row for a device of this machine; None for a CPU and for a card not in the table."""
    place = torch.device(device)
    if place.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(place)
    return find_card(properties.name, properties.total_memory)


def measured_bandwidth(device: torch.device | str, *, buffer_bytes: int = 2**30, repeats: int = 5) -> float:
    """Memory bandwidth in GB/s that `device` reaches here: the better of a copy and a read, each the best of repeats.

    The copy counts the bytes read plus the bytes written, the read (a dot product of the buffer with itself) the
    bytes of the buffer. The buffer must be well beyond the last cache (server CPUs have hundreds of MB), and the copy
    needs two of them. Uses torch's current number of threads.
    """
    source = torch.ones(buffer_bytes // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    copy = measure(lambda: target.copy_(source), device=device, repeats=repeats)
    read = measure(lambda: torch.dot(source, source), device=device, repeats=repeats)
    return max(2 * source.nbytes / min(copy.values), source.nbytes / min(read.values)) / GB


def weight_bytes(model: nn.Module) -> int:
    """Bytes of weights that one pass of one token reads.

    Every parameter counts once. An embedding table counts only if it is tied as the output layer (which reads all
    of it): a look-up reads a single row.
    """
    tables = {id(m.weight): m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    outputs = {m.weight.data_ptr() for m in model.modules() if isinstance(m, nn.Linear)}
    looked_up = {key for key, table in tables.items() if table.data_ptr() not in outputs}
    return sum(p.nbytes for p in model.parameters() if id(p) not in looked_up)


def floor_seconds(weights: int, bandwidth_gbs: float) -> float:
    """Least seconds that reading `weights` bytes once can take at a bandwidth in GB/s."""
    if weights < 0 or bandwidth_gbs <= 0:
        raise ValueError(f"{weights} bytes at {bandwidth_gbs} GB/s were given: a positive bandwidth is needed")
    return weights / (bandwidth_gbs * GB)


def bus_utilisation(weights: int, seconds: float, peak_gbs: float | None) -> float | None:
    """Share of the peak bandwidth that a pass uses: weight bytes / (seconds * peak). None where no peak is known."""
    if seconds <= 0:
        raise ValueError(f"a pass of {seconds} s was given: a measured, positive time is needed")
    return None if peak_gbs is None else floor_seconds(weights, peak_gbs) / seconds
