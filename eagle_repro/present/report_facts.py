"""What the report's text needs to know of a run besides its numbers: bench, sets, trees, what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from eagle_repro.measure import branching, sizes, summary, training
from eagle_repro.measure.claims import Run
from eagle_repro.measure.claims.run import main_record
from eagle_repro.measure.records import Record
from eagle_repro.present.layout import tree_label
from eagle_repro.present.numerals import NO_BREAK, UNKNOWN

#: The records that a run can hold, in the order of the report.
RECORDS = (
    "00_bench", "01_roofline", "02_speedup", "03_tree_shape", "04_chain_vs_tree", "05_target_size", "06_lossless",
)  # fmt: skip
LARGE = 7e9  # parameters from which a target answers what the article left open: "8B and beyond"
#: What other records would say, by name; the report says of each whether it is there.
FURTHER = ("07_domain", "08_stack", "09_batch_context", "10_train_head")


def facts(run: Run) -> dict[str, Any]:
    """The facts of a run, every one of them there, unknown ones as None or empty."""
    main = main_record(run.records)
    return {
        **_bench(main.header["bench"] if main else {}),
        "settings": dict.fromkeys(("questions", "new_tokens"), UNKNOWN) | (main.header["protocol"] if main else {}),
        "missing": [name for name in RECORDS if name not in run.records],
        "further": [name for name in FURTHER if name not in run.records],
        **_texts(run.records.get("02_speedup")),
        **_picks(run.records.get("03_tree_shape")),
        "growth": _growth(run.records.get("05_target_size")),
        "fitted": _fitted(run.records.get("10_train_head")),
        "warnings": _warnings(run.records.get("00_bench")),
        "permutation": _rows(run.records.get("06_lossless"), "permutation"),
        "first_token": _rows(run.records.get("06_lossless"), "first_token"),
        "precisions": sorted({row["dtype"] for row in _rows(run.records.get("06_lossless"), "greedy")}),
    }


def _bench(bench: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "card": bench.get("card") or UNKNOWN,
        "device": bench.get("device"),
        "threads": bench.get("threads"),
        "pair": (bench.get("pair") or {}).get("name") or UNKNOWN,
        "dtype": bench.get("dtype") or UNKNOWN,
        "stack": bench.get("stack") or UNKNOWN,
        "day": ((bench.get("now") or {}).get("utc") or UNKNOWN)[:10],
    }


def _texts(record: Record | None) -> dict[str, Any]:
    """Of 02_speedup: its trees, the sets from best to worst with the default tree, where it loses, sampled Russian."""
    if record is None:
        return {"trees": [], "sets": [], "losing": [], "sampled": None, "loops": None, "off": None}
    frame = summary.speedup(record)
    greedy = frame[frame["variant"] != "sampled"]
    first = greedy[greedy["variant"] == greedy["variant"].iloc[0]].sort_values("speedup", ascending=False)
    sampled = frame[frame["variant"] == "sampled"].to_dict("records")
    russian = first[first["set"] == "russian"]["loop_share"]
    return {
        "trees": [_tree(row) for row in greedy.drop_duplicates("variant").to_dict("records")],
        "sets": first[["set", "domain", "speedup", "speedup_low", "speedup_high", "tau"]].to_dict("records"),
        "losing": list(first.loc[first["speedup"] < 1, "set"]),
        "sampled": sampled[0] if sampled else None,
        "loops": float(russian.iloc[0]) if len(russian) and pd.notna(russian.iloc[0]) else None,
        "off": float((frame["predicted"] / frame["speedup"] - 1).abs().max() * 100),
    }


def _tree(row: Mapping[Any, Any]) -> dict[str, Any]:
    sizes = {name: int(row[name]) for name in ("total_tokens", "depth", "top_k")}
    return {"variant": row["variant"], **sizes, "shape": tree_label(sizes, NO_BREAK)}


def _picks(record: Record | None) -> dict[str, Any]:
    rules = {row["rule"]: row for row in _rows(record, "autopick")}
    model = rules.get("cost model")
    return {"picked": _tree(model | {"variant": "picked"}) if model else None, "reference": rules.get("reference")}


def _growth(record: Record | None) -> dict[str, Any] | None:
    """Of the timing-only pairs: predicted speedup of the smallest and of a large one at the article's tau."""
    frame = sizes.predicted(record) if record and sizes.timed_shapes(record) else pd.DataFrame()
    if frame.empty:
        return None
    tree = max(frame[sizes.TREE].itertuples(index=False, name=None))
    rows = frame[(frame["assumption"] == "article_in") & (frame[sizes.TREE] == list(tree)).all(axis=1)]
    if len(rows) < 2 or rows["target_parameters"].max() < LARGE:
        return None
    small, large = rows.iloc[0], rows.iloc[-1]
    ends = {"small": small["shape"], "large": large["shape"], "tau": float(small["tau"])}
    before, after = float(small["speedup"]), float(large["speedup"])
    shape = tree_label(small, NO_BREAK)
    return ends | {"before": before, "after": after, "shape": shape, "verdict": sizes.growth(before, after)}


def _fitted(record: Record | None) -> dict[str, Any] | None:
    """Of a training: what it took, and tau in domain before, after, and with the pair's own head."""
    way = training.on_the_way(record) if record else pd.DataFrame()
    if record is None or way.empty:
        return None
    done, inside = training.fit(record), way[way["group"] == branching.IN_DOMAIN]
    trained, own = inside[inside["step"].notna()], inside[inside["step"].isna()]["tau"]
    if trained.empty:
        return None
    return {
        "tokens": done["corpus"]["answer_tokens"] / 1e6,
        "minutes": float(trained["minutes"].iloc[-1]),
        "before": float(trained["tau"].iloc[0]),
        "after": float(trained["tau"].iloc[-1]),
        "own": float(own.iloc[0]) if len(own) else None,
    }


def _warnings(record: Record | None) -> list[Mapping[str, Any]]:
    rows = record.rows if record else []
    return [row for row in rows if row.get("check") and row.get("verdict") != "ok"]


def _rows(record: Record | None, what: str) -> list[dict[str, Any]]:
    return [row for row in (record.rows if record else []) if row.get("what") == what]
