"""EAGLE-3 speculative decoding, measured: load a pair of models, decode with it, check the text it writes.

    import eagle_repro as er
    pair = er.load_pair("smollm2-135m")
    shape = er.TreeShape(total_tokens=60, depth=7, top_k=10)
    out = er.generate(pair, prompt_ids, method="eagle", shape=shape)
    er.lossless.check(pair, prompt_ids, out.ids)

Importing the package reads no file but its own, opens no connection, looks at no environment variable and does
not import torch: a name is fetched from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from eagle_repro.__about__ import __version__

#: Public name -> the module it lives in. A name equal to the module's own last part is the module itself.
HOMES: dict[str, str] = {
    "load_pair": "eagle_repro.api",
    "generate": "eagle_repro.api",
    "Pair": "eagle_repro.api",
    "TreeShape": "eagle_repro.engine.shape",
    "DraftTree": "eagle_repro.engine.tree",
    "Sampling": "eagle_repro.engine.accept",
    "Generation": "eagle_repro.engine.generate",
    "Cycle": "eagle_repro.engine.generate",
    "lossless": "eagle_repro.measure.lossless",
}

__all__ = ["__version__", *HOMES]


def __getattr__(name: str) -> Any:
    """Fetch a public name from its module on first use."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(HOMES)}")
    module = import_module(HOMES[name])
    value = module if HOMES[name].endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
