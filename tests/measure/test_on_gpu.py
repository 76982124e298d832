"""On a CUDA device the sheet, the clock and the ceilings are those of the very card."""

from __future__ import annotations

import time

import pytest
import torch

from eagle_repro.measure import bench, roofline, timing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_sheet_knows_card_driver_and_clocks() -> None:
    sheet = bench.bench_sheet(device="cuda", dtype="float16", stack="eager", pair={}, protocol={}, question_sets={})
    assert sheet["card"] == torch.cuda.get_device_name() and sheet["driver"] is not None
    assert sheet["capability"] == list(torch.cuda.get_device_capability())
    now = sheet["now"]["clocks"]
    assert None not in now.values() and now["sm_mhz"] > 100 and 0 < now["temperature_c"] < 110


def test_the_measured_bandwidth_is_below_the_peak_and_not_far() -> None:
    measured, card = roofline.measured_bandwidth("cuda"), roofline.card_of("cuda")
    assert measured > 50
    if card is not None:
        assert 0.5 * card.bandwidth_gbs < measured <= 1.02 * card.bandwidth_gbs


def test_the_clock_waits_for_work_that_was_only_queued() -> None:
    matrix = torch.randn(4096, 4096, device="cuda")

    def queue() -> None:
        for _ in range(50):
            torch.mm(matrix, matrix)

    queue()
    torch.cuda.synchronize()
    start = time.perf_counter()
    queue()
    queued = time.perf_counter() - start
    assert timing.measure(queue, device="cuda").median > 2 * queued
