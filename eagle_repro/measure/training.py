"""What a record of 10_train_head says: the loss and accuracy of training, and tau by question set and head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from eagle_repro.measure.branching import IN_DOMAIN, interval, parts
from eagle_repro.measure.claims.effects import difference
from eagle_repro.measure.records import Record
from eagle_repro.measure.stats import columns, summarise_tau
from eagle_repro.measure.totals import Totals

#: The heads that a record compares: as training finds it, as training leaves it, and the pair's own.
ARMS = ("untrained", "trained", "shipped")
OWN = "shipped"
#: The sets by which heads are compared elsewhere, each counting the same.
EAGLE = ("mt_bench", "humaneval", "gsm8k", "alpaca")


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
    each = _counted(record)
    if each.empty:
        return pd.DataFrame()
    each["group"] = each["set"].where(each["domain"] == "out", IN_DOMAIN)
    order = each.sort_values("step", kind="stable").drop_duplicates("head")
    out: list[dict[str, Any]] = []
    for head in order.to_dict("records"):
        part = each[each["head"] == head["head"]]
        for group, texts in part.groupby("group", sort=False):
            totals = _totals(texts)
            row = {"head": head["head"], "step": head["step"], "minutes": head["seconds"] / 60, "group": group}
            out.append(row | {"questions": len(texts)} | interval("tau", totals.tau, len(texts)))
    return pd.DataFrame(out)


def against_own(record: Record) -> pd.DataFrame:
    """The trained head beside the pair's own, paired by question, over all questions whose cycles were counted.

    Columns: group (each set, the in-domain ones, all), domain, questions, tau_own, tau_trained, gain (trained
    less own), gain_low, gain_high (95% over questions), verdict of "trained gives more".
    """
    each = _counted(record)
    if each.empty:
        return pd.DataFrame()
    last = each.loc[each["step"].idxmax(), "head"]
    out: list[dict[str, Any]] = []
    for group, domain, part in parts(each):
        by_head = {head: _totals(part[part["head"] == head]) for head in (last, OWN)}
        trained, own = by_head.values()
        if not len(own.cycles):
            continue
        effect = difference(trained.tau, own.tau, own, record.path.stem, ("trained", OWN))
        row: dict[str, Any] = {"group": group, "domain": domain, "questions": len(own.cycles)}
        row |= {"tau_own": effect.right[1], "tau_trained": effect.left[1]}
        out.append(row | columns("gain", effect.estimate) | {"verdict": effect.verdict})
    return pd.DataFrame(out)


def mean_of_eagle_sets(compared: pd.DataFrame) -> dict[str, float] | None:
    """tau_own and tau_trained of against_own() as means over the four English EAGLE sets; None where one is missing."""
    found = compared[compared["group"].isin(EAGLE)] if len(compared) else compared
    if len(found) < len(EAGLE):
        return None
    return {name: float(found[name].mean()) for name in ("tau_own", "tau_trained")}


def _counted(record: Record) -> pd.DataFrame:
    """Tokens and cycles of every question with every head that was counted: a row each."""
    rows = record.frame("run")
    found = rows[rows["what"] == "tau"]
    return found.explode(["question", "emitted", "cycles"], ignore_index=True) if len(found) else pd.DataFrame()


def _totals(rows: pd.DataFrame) -> Totals:
    nothing = np.zeros(len(rows))
    return Totals(rows["emitted"].to_numpy(float), rows["cycles"].to_numpy(float), nothing, nothing)


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
