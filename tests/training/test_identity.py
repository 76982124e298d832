"""A fingerprint tells weights apart by what they are and where they stand, whatever lies between."""

from __future__ import annotations

import pytest
import torch

from eagle_repro.training import identity
from eagle_repro.training.identity import fingerprint

ROWS = torch.arange(24, dtype=torch.float32).reshape(6, 4)


@pytest.mark.parametrize("chunk", [5, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int8])
def test_another_place_or_value_is_another_fingerprint(
    chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "CHUNK", chunk)
    rows = ROWS.to(dtype)
    changed = rows.clone()
    changed[5, 3] += 1
    moved = rows.view(-1).roll(chunk if chunk < rows.numel() else 1).view_as(rows)  # whole chunks change places
    others = [rows.flip(0), rows[:, [1, 0, 2, 3]], rows.roll(1, 0), moved, changed, rows.view(4, 6)]
    found = [fingerprint({"a": each}) for each in (rows, *others)]
    assert len(set(found)) == len(found)
    assert fingerprint({"a": rows.clone()}) == found[0]
    assert fingerprint({"a": rows.T.contiguous().T}) == found[0]  # however it lies in memory


def test_names_belong_to_it_and_their_order_does_not() -> None:
    one, other = ROWS, ROWS + 1
    both = fingerprint({"a": one, "b": other})
    assert fingerprint({"b": other, "a": one}) == both != fingerprint({"a": other, "b": one})


@pytest.mark.parametrize("tensor", [torch.tensor(3.0), torch.zeros(0), torch.tensor([True, False])])
def test_tensors_of_every_size_have_one(tensor: torch.Tensor) -> None:
    assert fingerprint({"a": tensor}) == fingerprint({"a": tensor.clone()})
