"""Devices, precision and stack: what "auto" means here, and what is refused before anything is loaded."""

from __future__ import annotations

import torch

from eagle_repro.engine.compiled import missing

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
KNOWN = 'use "auto", "cpu", "cuda", "cuda:N" or several cards, "cuda:0,cuda:1"'
STACKS = ("eager", "graph", "compiled")
COMPILES = (8, 0)  # compute capability from which a card runs what Triton makes, and bfloat16 natively
BESIDE_WEIGHTS = 1_000_000_000  # bytes of caches, activations and the libraries' own memory, on each card


def dtype_name(dtype: torch.dtype) -> str:
    """What options, pairs and records call a dtype: torch.float16 is "float16"."""
    return str(dtype).removeprefix("torch.")


def resolve_device(device: str) -> torch.device:
    """The torch device; "auto" is the first GPU, else the CPU; of several ("cuda:0,cuda:1") it is the first.

    Raises ValueError for a device that is not known or not here.
    """
    return target_devices(device)[0]


def target_devices(device: str, needed: int | None = None) -> list[torch.device]:
    """The devices that a target lies on, the first of which has the head and the tensors of a cycle.

    One, unless several are named ("cuda:0,cuda:1"), or with "auto" where `needed` bytes of weights do not fit the first
    GPU: then as many as hold them, or the first alone where all together do not. Raises ValueError like resolve_device.
    """
    if device == "auto":
        cards = [torch.device("cuda", index) for index in range(torch.cuda.device_count())] if gpu_here() else []
        for count in range(1, len(cards) + 1) if len(cards) > 1 else ():
            if needed is not None and needed + BESIDE_WEIGHTS * count <= sum(map(free_bytes, cards[:count])):
                return cards[:count]
        return cards[:1] or [torch.device("cpu")]
    if not isinstance(device, str):
        raise ValueError(f"device={device!r} is not known: {KNOWN}")
    places = [_named_device(name.strip()) for name in device.split(",")]
    if len(places) > 1 and len({place for place in places if place.index is not None}) < len(places):
        raise ValueError(f'device={device!r} was given: several devices are different cards, as in "cuda:0,cuda:1"')
    return places


def _named_device(device: str) -> torch.device:
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is not known: {KNOWN}")
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is not known: {KNOWN}") from error
    if where.type == "cpu" and where.index:
        raise ValueError(f'device={device!r} is not here: there is one CPU, "cpu"')
    if where.type == "cuda" and (not gpu_here() or (where.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f'device={device!r} is not here ({torch.cuda.device_count()} GPUs): use "cpu" or "auto"')
    return where


def free_bytes(card: torch.device) -> int:
    """Free memory of a GPU."""
    return torch.cuda.mem_get_info(card)[0]


def gpu_here() -> bool:
    """Whether torch finds a GPU; asked in a way that leaves CUDA untouched, so that this process may still fork."""
    from accelerate.utils import is_cuda_available

    return is_cuda_available()


def resolve_dtype(dtype: str, device: torch.device, preferred: str | None = None) -> torch.dtype:
    """The dtype; "auto" goes by compute capability, for torch's own bf16 check says yes on a T4, which emulates it."""
    if dtype != "auto" and dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not known: use auto, {', '.join(DTYPES)}")
    if device.type != "cuda":
        return DTYPES["float32" if dtype == "auto" else dtype]
    native = torch.cuda.get_device_capability(device) >= COMPILES
    if dtype == "bfloat16" and not native:
        raise ValueError('dtype="bfloat16" needs compute capability 8.0; this card emulates it slowly: use "float16"')
    return DTYPES[(preferred or ("bfloat16" if native else "float16")) if dtype == "auto" else dtype]


def resolve_stack(name: str, device: torch.device, *, split: bool = False) -> str:
    """The stack to use: "auto" is "graph" on a GPU, which is ready in seconds, and "eager" on a CPU or a split target.

    "compiled" is for those who ask for it: its cycles are shorter, but compiling takes half a minute before the first.
    split: over several devices, which graphs cannot hold. Raises ValueError for a name that is not a stack, for graphs
    of a split target or where there is no GPU, and for compiling where the card or what it takes is missing.
    """
    if name == "auto":
        return "graph" if device.type == "cuda" and not split else "eager"
    if name not in STACKS:
        raise ValueError(f'stack={name!r} is not known: use "auto" or one of {", ".join(STACKS)}')
    if name != "eager" and device.type != "cuda":
        raise ValueError(f'stack="{name}" needs a CUDA device, and the device is {device}: use "eager"')
    if name != "eager" and split:
        raise ValueError(f'stack="{name}" cannot hold a target that is split over devices: use "eager" or "auto"')
    if name == "compiled":
        if (found := torch.cuda.get_device_capability(device)) < COMPILES:
            raise ValueError(
                f'stack="compiled" needs compute capability {_dotted(COMPILES)}, and {device} has {_dotted(found)}: '
                'use "graph"'
            )
        if lacking := missing():
            raise ValueError(f'stack="compiled" needs {lacking}: install it, or use "graph"')
    return name


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
