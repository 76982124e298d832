"""kaggle-metadata.json, filled in for one owner, and the rules that Kaggle's client checks before it uploads.

The rules are those of the client's docs (kernels_metadata.md and datasets_metadata.md of Kaggle/kaggle-cli) and of its
`kernels_push` and `dataset_create_new`; where the docs and the code differ the stricter one is taken. They are checked
here because the client has no dry run and wants credentials before it says anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle_repro.sources.mounts import slug

OWNER = "OWNER"
T4 = "NvidiaTeslaT4"  # Kaggle calls two T4s so; a single one is not offered
ADDRESS = r"(?:https|ssh|file)://[\w./:@~+-]+"  # what git clones from
#: Fields of ours in an entry of "kernels": which notebooks it joins, and the profile that its PROTOCOL names.
OWN_FIELDS = ("notebooks", "profile")
LICENCES = (
    "CC0-1.0", "CC-BY-3.0", "CC-BY-4.0", "CC-BY-SA-3.0", "CC-BY-SA-4.0", "CC-BY-NC-4.0", "CC-BY-NC-SA-4.0",
    "CC-BY-ND-4.0", "CC-BY-NC-ND-4.0", "GPL-2.0", "GPL-3.0", "LGPL-3.0", "AGPL-3.0", "FDL-1.3", "ODbL-1.0", "DbCL-1.0",
    "ODC-BY-1.0", "PDDL", "CDLA-Permissive-1.0", "CDLA-Sharing-1.0", "apache-2.0", "other",
)  # fmt: skip
Rule = Callable[[Any], str | None]  # what is wrong with a value, None if nothing


def read(file: Path) -> dict[str, Any]:
    """The metadata in kaggle-metadata.json. Raises FileNotFoundError or ValueError, in one line."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: run this from a checkout of the project")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}): repair it") from None
    kinds = {"repository": str, "kernels": list, "dataset": dict}
    whole = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in kinds.items())
    if not (whole and all(isinstance(kernel, dict) for kernel in found["kernels"])):
        raise ValueError(f"{file} needs repository (text), kernels (a list of objects) and dataset (an object)")
    return dict(found)


def fill(metadata: Mapping[str, Any], owner: str | None, repository: str | None) -> dict[str, Any]:
    """A copy with the owner's name and the repository's address put in.

    Raises ValueError for a name that is no Kaggle user name, an address that pip cannot take, and whatever is still a
    placeholder afterwards, with the option that fills it.
    """
    if owner is not None and (owner == OWNER or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", owner)):
        raise ValueError(f"--owner {owner} was given: your Kaggle user name is needed, as your profile's URL has it")
    if repository is not None and not re.fullmatch(ADDRESS, repository):
        raise ValueError(f"--repo {repository} was given: the address that git clones from is needed (https://...)")
    filled = dict(_replaced(metadata, owner) if owner else metadata)
    filled["repository"] = repository or metadata["repository"]
    left = placeholders(filled)
    if left:
        options = [name for name, value in (("--owner YOU", owner), ("--repo URL", repository)) if value is None]
        raise ValueError(f"kaggle-metadata.json still says {OWNER} in {', '.join(left)}: give {' and '.join(options)}")
    return filled


def placeholders(value: Any, name: str = "") -> list[str]:
    """The dotted names of the fields that still hold the placeholder."""
    if isinstance(value, Mapping):
        inner = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        inner = [(f"{name}[{number}]", item) for number, item in enumerate(value)]
    else:
        return [name] if OWNER in str(value).split("/") else []
    return [place for label, item in inner for place in placeholders(item, label)]


def kernel_faults(kernel: Mapping[str, Any]) -> Iterator[str]:
    """One line for each rule that the metadata of one kernel break (kernel-metadata.json, or an entry of ours)."""
    theirs = {name: value for name, value in kernel.items() if name not in OWN_FIELDS}
    yield from _field_faults(theirs, KERNEL, OPTIONAL)
    yield from _slug_faults(kernel)
    if kernel.get("enable_gpu") is True and kernel.get("enable_tpu") is True:
        yield "enable_tpu: true beside enable_gpu; one accelerator is given"
    if kernel.get("enable_gpu") is False:
        yield "enable_gpu: false; the profile of this notebook is for a T4"
    if kernel.get("kernel_type") == "notebook" and not str(kernel.get("code_file", "")).endswith(".ipynb"):
        yield "code_file: a notebook must end in .ipynb"


def dataset_faults(dataset: Mapping[str, Any]) -> Iterator[str]:
    """One line for each rule that the metadata of a dataset break."""
    yield from _field_faults(dataset, DATASET, DATASET_OPTIONAL)
    yield from _slug_faults(dataset)


def source_faults(metadata: Mapping[str, Any]) -> Iterator[str]:
    """One line for each rule that kaggle-metadata.json breaks; its placeholders are no fault yet."""
    if not re.fullmatch(ADDRESS, metadata["repository"]):
        yield "repository: an address that git clones from is needed"
    if not metadata["kernels"]:
        yield "kernels: none is described"
    filled = _replaced(metadata, "owner")
    for number, kernel in enumerate(filled["kernels"]):
        yield from (f"kernels[{number}].{fault}" for fault in kernel_faults(kernel))
        for name in OWN_FIELDS:
            if not kernel.get(name):
                yield f"kernels[{number}].{name}: missing"
        if filled["dataset"].get("id") not in (kernel.get("dataset_sources") or ()):
            yield f"kernels[{number}].dataset_sources: the dataset with the library is not among them"
    yield from (f"dataset.{fault}" for fault in dataset_faults(filled["dataset"]))


def _replaced(value: Any, owner: str) -> Any:
    """`value` with the placeholder owner of every id replaced; addresses stay as they are."""
    if isinstance(value, Mapping):
        return {key: _replaced(item, owner) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, owner) for item in value]
    return f"{owner}/{value.removeprefix(f'{OWNER}/')}" if str(value).startswith(f"{OWNER}/") else value


def _field_faults(given: Mapping[str, Any], needed: Mapping[str, Rule], optional: Mapping[str, Rule]) -> Iterator[str]:
    yield from (f"{name}: missing" for name in needed if name not in given)
    for name, value in given.items():
        rule = needed.get(name) or optional.get(name)
        fault = rule(value) if rule else "Kaggle knows no such field and would ignore it"
        if fault:
            yield f"{name}: {json.dumps(value, ensure_ascii=False)}; {fault}"


def _slug_faults(given: Mapping[str, Any]) -> Iterator[str]:
    title, name = str(given.get("title")), str(given.get("id")).partition("/")[2]
    if name != slug(title):
        yield f"title: its address would be {slug(title)}, and id says {name}"


def _text(least: int, most: int) -> Rule:
    def rule(value: Any) -> str | None:
        right = isinstance(value, str) and least <= len(value) <= most
        return None if right else f"a text of {least} to {most} characters is needed"

    return rule


def _matches(pattern: str, form: str) -> Rule:
    def rule(value: Any) -> str | None:
        return None if isinstance(value, str) and re.fullmatch(pattern, value) else f"{form} is needed"

    return rule


def _each(one: Rule) -> Rule:
    def rule(value: Any) -> str | None:
        if not isinstance(value, list):
            return "a list is needed"
        return next(filter(None, map(one, value)), None)

    return rule


def _one_of(*values: str) -> Rule:
    return lambda value: None if value in values else f"one of {', '.join(values)} is needed"


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false is needed, without quotes"


def _card(value: Any) -> str | None:
    return None if value == T4 else f"{T4} is needed: else a P100 may come, which current torch has no kernels for"


def _licences(value: Any) -> str | None:
    one = value[0] if isinstance(value, list) and len(value) == 1 else None
    known = isinstance(one, dict) and one.get("name") in LICENCES
    return None if known else 'exactly one licence is needed, as {"name": "apache-2.0"}'


_OWNER, _SLUG = r"[A-Za-z0-9][\w-]*", r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_VERSIONED = _matches(rf"{_OWNER}/{_SLUG}(/\d+)?", "OWNER/SLUG or OWNER/SLUG/VERSION")
_MODEL = _matches(r"[\w.-]+(/[\w.-]+){3}/[1-9]\d*", "OWNER/MODEL/FRAMEWORK/VARIATION/VERSION")
_WORDS = _each(_text(1, 100))

KERNEL: dict[str, Rule] = {
    "id": _matches(rf"{_OWNER}/(?=.{{5,50}}$){_SLUG}", "OWNER/SLUG with a slug of 5 to 50 characters"),
    "title": _text(5, 50),
    "code_file": _matches(r"[\w.-]+", "the name of a file in the folder"),
    "language": _one_of("python"),
    "kernel_type": _one_of("notebook"),
    "is_private": _boolean,
    "enable_gpu": _boolean,
    "enable_internet": _boolean,  # named because the client's default and its docs contradict each other
    "machine_shape": _card,
}
OPTIONAL: dict[str, Rule] = {
    "id_no": lambda value: None if type(value) is int and value > 0 else "a positive whole number is needed",
    "enable_tpu": _boolean,
    "dataset_sources": _each(_VERSIONED),
    "kernel_sources": _each(_VERSIONED),
    "competition_sources": _each(_matches(_SLUG, "a competition's slug")),
    "model_sources": _each(_MODEL),
    "keywords": _WORDS,
    "docker_image": _text(1, 300),
    "docker_image_pinning_type": _one_of("original", "latest"),
}
DATASET: dict[str, Rule] = {
    "id": _matches(rf"{_OWNER}/(?=.{{6,50}}$){_SLUG}", "OWNER/SLUG with a slug of 6 to 50 characters"),
    "title": _text(6, 50),
    "licenses": _licences,
}
DATASET_OPTIONAL: dict[str, Rule] = {
    "subtitle": _text(20, 80),
    "description": _text(1, 100_000),
    "keywords": _WORDS,
}
