"""What tells one run from another: the content of weights and texts, not where they lie or what they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash, as hex digits, of tensors by name, the same on every device.

    Of each tensor its name, type, shape and the sum of its elements' bits as whole numbers, which is exact and made
    where the tensor lies: gigabytes of a target take a moment and nothing is copied.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        bits = int(tensor.detach().view(BITS[tensor.element_size()]).sum(dtype=torch.int64))
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {bits}\n".encode())
    return digest.hexdigest()


def sha256_of_texts(texts: Sequence[str]) -> str:
    """sha256 of texts in their order, as hex digits."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)  # with its length, so that no two lists look alike
    return digest.hexdigest()
