"""What a run is given beside its pair: the heads of 07_domain and the training of 10_train_head, told by contents.

Their folders are no part of a protocol (no folder of a machine is); what is in them is part of the bench.
"""

from __future__ import annotations

from pathlib import Path

from eagle_repro.experiments.protocol import Protocol
from eagle_repro.measure import domain
from eagle_repro.sources.paths import data_folder, sha256_of

WEIGHTS = "model.safetensors"
#: What a finished training is measured by; its summary counts sessions, which are not the training's.
TRAINING = ("log.jsonl", f"start/{WEIGHTS}", f"head/{WEIGHTS}", f"snapshots/*/{WEIGHTS}")


def contents(experiment: str, protocol: Protocol, pair: str) -> dict[str, dict[str, str]]:
    """sha256 by file of what the experiment is given, by setting; empty where it is given nothing.

    pair: the name that heads are committed under. What is missing is left out: saying so is the experiment's part.
    """
    if experiment == "07_domain" and protocol.heads:
        return {"heads": _heads(pair, protocol.heads)}
    if experiment == "10_train_head" and protocol.training:
        folder = Path(protocol.training).expanduser()
        files = [file for pattern in TRAINING for file in sorted(folder.glob(pattern))]
        return {"training": {file.relative_to(folder).as_posix(): sha256_of(file) for file in files}}
    return {}


def head_folder(pair: str, name: str, heads: str | None) -> Path:
    """Where a head lies: in the folder `heads` as NAME or as the output NAME of `train`, else among the committed ones.

    Raises FileNotFoundError that says where it would be looked for.
    """
    given = Path(heads).expanduser() if heads else None
    places = [given / name / "head", given / name] if given else []
    places.append(data_folder() / "heads" / f"{pair}-{name}")
    for place in places:
        if (place / "config.json").is_file():
            return place
    beside = f" nor in {given.name}/" if given else "; heads=DIR would name a folder that has it"
    raise FileNotFoundError(f"no {name} head for {pair} among the committed ones{beside}")


def _heads(pair: str, heads: str) -> dict[str, str]:
    found = {}
    for name in domain.HEADS:
        try:
            found[name] = sha256_of(head_folder(pair, name, heads) / WEIGHTS)
        except OSError:
            continue
    return found
