"""What a record of 10_train_head says: the loss and accuracy of training, and tau by question set and head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from eagle_repro.measure.branching import IN_DOMAIN, interval
from eagle_repro.measure.records import Record
from eagle_repro.measure.stats import columns, summarise_tau
from eagle_repro.measure.totals import Totals

#: The heads that a record compares: as training finds it, as training leaves it, and the pair's own.
ARMS = ("untrained", "trained", "shipped")


def taus(record: Record) -> pd.DataFrame:
    """tau by question set and head, in that order.

    Columns: set, domain, head, questions, cycles, tau (step-weighted), tau_low, tau_high (95% over questions).
    """
    rows = pd.DataFrame([row for row in record.rows if row.get("what") == "text"])
    out: list[dict[str, Any]] = []
    for (name, domain, arm), part in rows.groupby(["set", "domain", "variant"], sort=False):
        found = summarise_tau(part["accepted"].tolist())
        out.append(
            {
                "set": name,
                "domain": domain,
                "head": arm,
                "questions": found.questions,
                "cycles": found.cycles,
                **columns("tau", found.step_weighted),
            }
        )
    frame = pd.DataFrame(out)
    sets = list(dict.fromkeys(frame["set"]))
    return frame.sort_values(
        ["set", "head"],
        key=lambda column: column.map((ARMS if column.name == "head" else sets).index),
        ignore_index=True,
    )


def gains(record: Record) -> pd.DataFrame:
    """The same, a row for each set: columns group (the set), domain, questions, tau_HEAD with _low and _high for each
    head, and tau_gain (trained over untrained, less 1)."""
    out: list[dict[str, Any]] = []
    for (name, domain), part in taus(record).groupby(["set", "domain"], sort=False):
        row: dict[str, Any] = {"group": name, "domain": domain, "questions": int(part["questions"].max())}
        for each in part.to_dict("records"):
            row |= {f"tau_{each['head']}{end}": each[f"tau{end}"] for end in ("", "_low", "_high")}
        out.append(row | {"tau_gain": row["tau_trained"] / row["tau_untrained"] - 1})
    return pd.DataFrame(out)


def on_the_way(record: Record) -> pd.DataFrame:
    """tau of the heads that were saved on the way, by group: all in-domain sets, and each set out of domain.

    Columns: head, step, minutes (NaN for the pair's own head, which was trained elsewhere), group, questions, tau,
    tau_low, tau_high; in the order of training, the pair's own head last.
    """
    rows = record.frame("run")
    found = rows[rows["what"] == "tau"]
    if found.empty:
        return pd.DataFrame()
    each = found.explode(["question", "emitted", "cycles"], ignore_index=True)
    each["group"] = each["set"].where(each["domain"] == "out", IN_DOMAIN)
    order = found.sort_values("step", kind="stable").drop_duplicates("head")
    out: list[dict[str, Any]] = []
    for head in order.to_dict("records"):
        part = each[each["head"] == head["head"]]
        for group, texts in part.groupby("group", sort=False):
            nothing = np.zeros(len(texts))
            totals = Totals(texts["emitted"].to_numpy(float), texts["cycles"].to_numpy(float), nothing, nothing)
            row = {"head": head["head"], "step": head["step"], "minutes": head["seconds"] / 60, "group": group}
            out.append(row | {"questions": len(texts)} | interval("tau", totals.tau, len(texts)))
    return pd.DataFrame(out)


def steps(record: Record) -> pd.DataFrame:
    """The log of training: columns step, seconds, rate, loss, and entropy_K, accuracy_K for each unrolled step K."""
    out = []
    for row in record.rows:
        if row.get("what") == "step":
            wide = {name: row[name] for name in ("step", "seconds", "rate", "loss")}
            for name in ("entropy", "accuracy"):
                wide |= {f"{name}_{number}": value for number, value in enumerate(row[name], start=1)}
            out.append(wide)
    return pd.DataFrame(out)


def fit(record: Record) -> dict[str, Any]:
    """What the run says of corpus and training: counts, seconds, tokens per second, memory."""
    return next(row for row in record.rows if row.get("what") == "fit")
