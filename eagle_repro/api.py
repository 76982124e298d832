"""Loading a pair and generating with it: where sources and engine meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import torch

from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.adaptive import CANDIDATES
from eagle_repro.engine.devices import dtype_name, resolve_device, resolve_dtype, resolve_stack, target_devices
from eagle_repro.engine.generate import Generation, Request, run_batch
from eagle_repro.engine.head import Eagle3Head, load_head
from eagle_repro.engine.ids import is_row, is_whole, token_ids
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.split import device_map
from eagle_repro.engine.stacks import Eager, make_stack
from eagle_repro.engine.target import Target, UnsupportedTarget
from eagle_repro.measure.roofline import weight_bytes
from eagle_repro.measure.timing import clock
from eagle_repro.sources.complete import weights_sha256
from eagle_repro.sources.pairs import PAIRS, WeightRef, find_pair
from eagle_repro.sources.resolve import Resolved, half_bytes, resolve


@dataclass
class Pair:
    """A target and its head, loaded. provenance: plain data for records (sources, revisions, sizes; no folders)."""

    name: str
    target: Target
    head: Eagle3Head
    tokenizer: Any
    device: str
    dtype: str
    stack: str
    max_length: int
    provenance: dict[str, Any] = field(default_factory=dict)
    launcher: Eager = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.launcher = make_stack(self.stack)


def load_pair(
    name: str | None = None,
    *,
    target: str | None = None,
    head: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    stack: str = "auto",
    max_length: int = 2048,
    rope_theta: float | None = None,
) -> Pair:
    """Load a named pair, or a target and a head given as hub ids, Kaggle handles or folders.

    device "auto" is the first GPU, else the CPU; a target that the first GPU does not hold is split over as many as do,
    or over those named, "cuda:0,cuda:1" (then on the eager stack). dtype "auto" is what the named pair asks for, else
    bfloat16 from compute capability 8.0 and float16 below it; float32 on a CPU. stack "auto" is "graph" on a GPU, which
    captures cycles as CUDA graphs and keeps buffers from text to text, and "eager" elsewhere; "compiled" shortens the
    captured cycles by compiled kernels, on cards from compute capability 8.0, and takes half a minute to make them.
    max_length: most committed tokens of a text. rope_theta overrides the base in the head's config. Raises one clear
    line for what is missing or does not fit.
    """
    target_ref, head_ref, label = references(name, target, head)
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where, preferred=PAIRS[name].dtype if name in PAIRS else None)
    places = target_devices(device, weights_size((target_ref, head_ref), kind))
    launched = resolve_stack(stack, where, split=len(places) > 1)
    if not is_whole(max_length) or max_length < 2:
        raise ValueError(f"max_length must be a whole number of at least 2, got {max_length!r}")
    found_head = resolve(head_ref, "head")  # the smaller one first: what is wrong with it shows before a long download
    found_target = resolve(target_ref, "target")
    model, tokenizer = _load_target(found_target.folder, kind, places)
    adapter = Target(model, fused=launched != "eager")
    loaded_head = load_head(found_head.folder, adapter.embedding, rope_theta=rope_theta)
    adapter.prove()
    if launched != "eager":
        loaded_head.use_fused()
    return Pair(
        name=label,
        target=adapter,
        head=loaded_head,
        tokenizer=tokenizer,
        device=str(where),
        dtype=dtype_name(kind),
        stack=launched,
        max_length=max_length,
        provenance=_provenance(label, adapter, loaded_head, found_target, found_head),
    )


def references(name: str | None, target: str | None, head: str | None) -> tuple[WeightRef | str, WeightRef | str, str]:
    """Target, head and the name of a pair as `load_pair` takes it. Raises ValueError unless it is named one way."""
    if name is not None and target is None:
        spec = find_pair(name)
        return spec.target, head or spec.head, f"{spec.name} + {Path(head).name}" if head else spec.name
    if name is None and target is not None and head is not None:
        return target, head, f"{Path(target).name} + {Path(head).name}"
    given = {"a pair": name, "a target": target, "a head": head}
    said = ", ".join(f"{what} ({value})" for what, value in given.items() if value is not None) or "nothing"
    raise ValueError(
        "a pair is a name, a name and another head for its target, or a target and a head; "
        f"{said} was given. Known pairs: {', '.join(PAIRS)}"
    )


def weights_size(refs: Iterable[WeightRef | str], dtype: torch.dtype) -> int | None:
    """Bytes of these weights in `dtype`, None where nothing is known of them beforehand."""
    sizes = [half_bytes(ref) for ref in refs]
    known = [size for size in sizes if size is not None]
    return sum(known) * dtype.itemsize // 2 if len(known) == len(sizes) else None


def _load_target(folder: Path, dtype: torch.dtype, devices: Sequence[torch.device]) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    models: Any = AutoModelForCausalLM
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    sizes: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # judged below
    placed: dict[str, Any] = {}
    try:
        if len(devices) > 1:
            with torch.device("meta"):
                skeleton = models.from_config(AutoConfig.from_pretrained(folder, **local), dtype=dtype)
            skeleton.tie_weights()  # transformers 5.0 leaves that out on the meta device
            placed["device_map"] = {module: place.index for module, place in device_map(skeleton, devices).items()}
        model, report = models.from_pretrained(folder, dtype=dtype, **local, **sizes, **placed)
        tokenizer = AutoTokenizer.from_pretrained(folder, **local)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UnsupportedTarget(f"transformers cannot load the target in {folder}: {reason}") from error
    wrong = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    if wrong:
        raise UnsupportedTarget(
            f"the weights in {folder} do not fill {wrong[0]} ({len(wrong)} tensors missing or of another size): random "
            "numbers would stand in for them; get the target again"
        )
    return (model if placed else model.to(devices[0])).eval().requires_grad_(False), tokenizer


def _provenance(
    name: str, target: Target, head: Eagle3Head, found_target: Resolved, found_head: Resolved
) -> dict[str, Any]:
    parameters = {id(p): p for p in target.model.parameters()}.values()
    own = list(head.parameters())
    devices = list(dict.fromkeys(map(str, [target.device, *target.places])))
    return {
        "name": name,
        "target": ({"devices": devices} if len(devices) > 1 else {})
        | {
            "source": found_target.source,
            "revision": found_target.revision,
            **_contents(found_target),
            "architecture": type(target.model).__name__,
            "parameters": sum(p.numel() for p in parameters),
            "weight_bytes": weight_bytes(target.model),
        },
        "head": {
            "source": found_head.source,
            "revision": found_head.revision,
            **_contents(found_head),
            "parameters": sum(p.numel() for p in own),
            "weight_bytes": sum(p.numel() * p.element_size() for p in own),
            "draft_vocabulary": head.config.draft_vocabulary,
            "rope_theta": head.config.rope_theta,
        },
    }


def _contents(found: Resolved) -> dict[str, str]:
    """What tells weights without a revision from others that bear their name."""
    return {"sha256": weights_sha256(found.folder)} if found.revision is None else {}


@overload
def generate(pair: Pair, prompt_ids: list[int], **options: Any) -> Generation: ...


@overload
def generate(pair: Pair, prompt_ids: list[list[int]], **options: Any) -> list[Generation]: ...


def generate(  # type: ignore[misc]  # the overloads tell a text from a batch and leave the options to this one
    pair: Pair,
    prompt_ids: list[int] | list[list[int]],
    *,
    method: str = "eagle",
    shape: TreeShape | Sequence[TreeShape] | None = None,
    max_new_tokens: int = 192,
    sampling: Sampling | None = None,
    stop: str = "eos",
    record_trees: bool = False,
    instrument: bool = False,
) -> Generation | list[Generation]:
    """Write up to max_new_tokens after prompt_ids with a method: "plain", "eagle", "chain", "adaptive" or "hf".

    The ids are those that the target alone would have written. prompt_ids: one prompt, or a list of prompts that are
    decoded side by side and give a list. stop: "eos" ends at any id that the target's generation config declares,
    "never" goes on to exactly max_new_tokens. record_trees keeps every cycle's tree; instrument fills the phase times
    of cycles, at the price of waiting for the device after each phase; "hf" has neither. shape defaults to TreeShape();
    "chain" uses its depth alone; "adaptive" takes candidates, by default engine.adaptive.CANDIDATES, and picks one or
    a plain step for every cycle, never one that a larger tree stands for at hardly more cost. Sampled rows of a batch
    draw different noise.

    Raises ValueError in one line for what cannot be carried out, before any pass; NonFiniteLogits as soon as the
    target's logits are not finite.
    """
    if sampling is not None and not isinstance(sampling, Sampling):
        raise ValueError(f"sampling must be a Sampling, got {sampling!r}")
    candidates = _candidates(pair, method, shape)
    first = candidates[0]
    batched = _is_batch(prompt_ids)
    requests = [
        Request(
            prompt=token_ids(prompt, pair.target.vocabulary),
            method=method,
            shape=TreeShape.chain(first.depth) if method == "chain" else first,
            candidates=candidates,
            max_new_tokens=max_new_tokens,
            max_length=pair.max_length,
            sampling=sampling or Sampling(),
            stop=stop,
            record_trees=record_trees,
            instrument=instrument,
        )
        for prompt in (prompt_ids if batched else [prompt_ids])
    ]
    texts = run_batch(pair.target, pair.head, requests, clock(pair.device), pair.launcher)
    return texts if batched else texts[0]


def _candidates(pair: Pair, method: str, shape: Any) -> tuple[TreeShape, ...]:
    """The shapes that a method may draft: those given, or the default ones that the head can serve."""
    if shape is None:
        usual = CANDIDATES if method == "adaptive" else (TreeShape(),)
        head: Eagle3Head | None = pair.head  # a pair made by hand may lack one, which is refused later
        limit = head.config.draft_vocabulary if head is not None else 0
        return tuple(each for each in usual if each.top_k <= limit) or usual
    shapes = tuple(shape) if method == "adaptive" and isinstance(shape, (list, tuple)) else (shape,)
    wrong = [each for each in shapes if not isinstance(each, TreeShape)]
    if wrong or not shapes:
        needed = "a TreeShape, or a list of them" if method == "adaptive" else "a TreeShape"
        raise ValueError(f"shape must be {needed}, got {wrong[0] if wrong else shape!r}")
    return shapes


def _is_batch(prompt_ids: Any) -> bool:
    """Whether prompt_ids holds prompts (lists, arrays, tensors) where ids are expected."""
    return is_row(prompt_ids) and any(map(is_row, prompt_ids))
