"""Ceilings are the card's own or unknown, and the shape of a cost curve is read without flattery."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from eagle_repro.measure import roofline
from eagle_repro.measure.timing import Timing

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "gib", "row", "peaks"),
    [
        ("Tesla T4", 14.74, "T4", (320, 65)),
        ("Tesla P100-PCIE-16GB", 15.9, "P100 PCIe", (732, 18.7)),
        ("Tesla P100-SXM2-16GB", 15.9, "P100 SXM2", (732, 21.2)),
        ("Tesla V100-SXM2-16GB", 15.77, "V100 SXM2", (900, 125)),
        ("NVIDIA L4", 22.2, "L4", (300, 121)),
        ("A100-SXM4-40GB", 39.6, "A100 40GB", (1555, 312)),
        ("NVIDIA A100-PCIE-40GB", 39.4, "A100 40GB", (1555, 312)),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100 80GB SXM", (2039, 312)),
        ("NVIDIA H100 80GB HBM3", 79.1, "H100 SXM", (3350, 989)),
        ("NVIDIA H100 PCIe", 79.2, "H100 PCIe", (2000, 756)),
        ("NVIDIA H200", 139.8, "H200", (4800, 989)),
    ],
)
def test_cards_are_known_by_the_names_that_torch_gives(
    name: str, gib: float, row: str, peaks: tuple[float, float]
) -> None:
    card = roofline.find_card(name, int(gib * GIB))
    assert card is not None
    assert (card.name, (card.bandwidth_gbs, card.half_tflops)) == (row, peaks)


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("NVIDIA L40", 44.4),
        ("NVIDIA L40S", 44.4),
        ("NVIDIA H100 NVL", 93.6),
        ("NVIDIA GH200 480GB", 94.5),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19.6),
        ("NVIDIA A100-SXM4-40GB", 19.6),
        ("Tesla P100-PCIE-12GB", 11.9),
        ("NVIDIA H200", 70.0),
        ("NVIDIA H200 NVL", 139.8),
        ("NVIDIA T400", 3.8),
        ("NVIDIA GeForce RTX 4090", 23.6),
        ("", 16.0),
    ],
)
def test_a_card_that_is_merely_similar_is_unknown(name: str, gib: float) -> None:
    assert roofline.find_card(name, int(gib * GIB)) is None


def test_the_card_of_a_device_is_looked_up_by_name_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Tesla T4", total_memory=int(14.74 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    card = roofline.card_of("cuda")
    assert card is not None and card.name == "T4"
    assert roofline.card_of("cpu") is None


def test_the_floor_and_the_share_of_the_bus() -> None:
    # The article: Qwen3-1.7B in fp16 (1.72e9 weights) takes 44.7 ms on a T4, "the bus is a quarter loaded".
    weights = int(1.72e9 * 2)
    assert roofline.floor_seconds(weights, 320) == pytest.approx(0.01075)
    assert roofline.bus_utilisation(weights, 0.0447, 320) == pytest.approx(0.24, abs=0.005)
    assert roofline.bus_utilisation(weights, 0.0447, None) is None


def test_times_and_bandwidths_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="positive bandwidth"):
        roofline.floor_seconds(10, 0)
    with pytest.raises(ValueError, match="positive time"):
        roofline.bus_utilisation(10, 0.0, 320)


def test_a_measured_bandwidth_counts_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([2.0, 0.5, 1.0, 4.0])  # two copies, two reads
    monkeypatch.setattr(
        roofline, "measure", lambda fn, device, repeats: fn() is None or Timing((next(seconds), next(seconds)))
    )
    # 1 MB copied in 0.5 s at best moves 2 MB in 0.5 s; read in 1 s it moves 1 MB a second.
    assert roofline.measured_bandwidth("cpu", buffer_bytes=10**6, repeats=2) == pytest.approx(4e-3)


def test_this_machine_has_a_bandwidth() -> None:
    assert 0.1 < roofline.measured_bandwidth("cpu", buffer_bytes=2**24, repeats=2) < 1e5


class Model(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        self.layer = nn.Linear(8, 8, bias=True)
        self.lm_head = nn.Linear(8, 100, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_embedding_is_read_only_if_it_is_the_output_layer_too(dtype: torch.dtype) -> None:
    layer, table = 8 * 8 + 8, 100 * 8
    for tied in (True, False):
        assert roofline.weight_bytes(Model(tied).to(dtype)) == (layer + table) * dtype.itemsize


def test_a_head_that_shares_the_targets_table_does_not_read_it() -> None:
    target, head = Model(tied=True), Model(tied=False)
    head.embed = target.embed
    assert roofline.weight_bytes(head) == (8 * 8 + 8 + 100 * 8) * 4
