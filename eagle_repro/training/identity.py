"""What tells one run from another: the content of weights and texts, not where they lie or what they are called."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element
GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as a signed number of 64 bits
CHUNK = 2**20  # elements that are summed at once: their 64-bit copies take 8 MiB each


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash, as hex digits, of tensors by name, the same on every device.

    Of each tensor its name, type, shape and, chunk by chunk, the sum of its elements' bits as whole numbers, each times
    a number of its place. Modulo 2^64 that is exact, and it is made where the tensor lies: gigabytes of a target take a
    moment and no more than a chunk is copied.
    """
    digest, weights = hashlib.sha256(), functools.cache(_weights)
    for name, tensor in sorted(tensors.items()):
        bits = tensor.detach().contiguous().view(-1).view(BITS[tensor.element_size()])
        sums = [(part * weights(part.device)[: len(part)]).sum() for part in bits.split(CHUNK)]
        said = torch.stack(sums).tolist() if sums else []
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {said}\n".encode())
    return digest.hexdigest()


def _weights(device: torch.device) -> Tensor:
    """Odd whole numbers (CHUNK,) without a pattern: multiples of 2^64 over the golden ratio, their upper bits mixed in
    (Knuth, The Art of Computer Programming, volume 3, section 6.4)."""
    multiples = torch.arange(1, CHUNK + 1, dtype=torch.int64, device=device) * GOLDEN
    return (multiples ^ (multiples >> 32)) | 1


def sha256_of_texts(texts: Sequence[str]) -> str:
    """sha256 of texts in their order, as hex digits."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)  # with its length, so that no two lists look alike
    return digest.hexdigest()
