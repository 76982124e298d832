"""What a record says: its rows made into the numbers of the tables and figures, one DataFrame a question.

A value that the record does not hold is NaN. "Sums over repeats" because a question is what varies: its repeats are
one observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from eagle_repro.measure import cost, tree_shape
from eagle_repro.measure.cost import PhaseCosts, phase_costs
from eagle_repro.measure.cost import speedup as predicted_speedup
from eagle_repro.measure.records import Record
from eagle_repro.measure.stats import columns, summarise_tau, value_of
from eagle_repro.measure.totals import paired_speedup

PHASES = ("draft", "verify", "accept", "commit")
#: The order of trees in tables; others follow. Runs alternate, so that a record's own order says nothing.
VARIANTS = ("default", "shallow", "small", "sampled")
TREE = ("total_tokens", "depth", "top_k")


def of(record: Record) -> pd.DataFrame:
    """The summary that goes with a record's experiment; its runs as they are, where there is none."""
    # Here, because these use what reads this module.
    from eagle_repro.measure import branching, domain, exactness, scaling, sizes, stacks, training

    summaries = {
        "01_roofline": roofline,
        "02_speedup": speedup,
        "03_tree_shape": tree_shape.comparison,
        "04_chain_vs_tree": branching.gains,
        "05_target_size": sizes.predicted,
        "06_lossless": exactness.greedy,
        "07_domain": domain.by_group,
        "08_stack": stacks.costs,
        "09_batch_context": scaling.points,
        "10_train_head": training.taus,
    }
    name = record.header["name"]
    return summaries[name](record) if name in summaries else record.frame()


def roofline(record: Record) -> pd.DataFrame:
    """What a pass costs: a row for each token count, from the repeats of 01_roofline.

    Columns: tokens, ms (median), ms_low, ms_high (fastest and slowest), ms_per_token, floor_ms (reading the weights
    once at the card's peak bandwidth, or the measured one where no peak is known), utilisation (floor / time).
    """
    runs, footer = record.frame("run"), record.footer or {}
    if not {"tokens", "seconds"} <= set(runs):
        raise ValueError(f"{record.path.name} holds no passes of 01_roofline: measure it first, or name another record")
    ms = 1e3 * runs.groupby("tokens")["seconds"].agg(["median", "min", "max"])
    bandwidth, weights = footer.get("peak_gb_s") or footer.get("bandwidth_gb_s"), footer.get("weight_bytes")
    floor = 1e3 * weights / (bandwidth * 1e9) if bandwidth and weights else float("nan")
    frame = ms.set_axis(["ms", "ms_low", "ms_high"], axis=1).reset_index()
    return frame.assign(
        ms_per_token=frame["ms"] / frame["tokens"], floor_ms=floor, utilisation=floor / frame["ms"]
    ).sort_values("tokens", ignore_index=True)


def flat_until(frame: pd.DataFrame) -> int:
    """Up to how many tokens a pass costs hardly more than one token's; frame: as `roofline` gives it."""
    return cost.flat_until(frame["tokens"].tolist(), frame["ms"].tolist())


def speedup(record: Record) -> pd.DataFrame:
    """tau and speedup of every question set and tree of 02_speedup, sets in the record's order.

    Columns: set, domain, language, variant, total_tokens, depth, top_k, temperature, questions, cycles;
    tau (step-weighted), tau_low, tau_high, tau_question_mean; speedup, speedup_low, speedup_high, speedup_median,
    end_to_end against plain; speedup_hf, speedup_hf_low, speedup_hf_high against the stock generate; predicted (by the
    cost formula, from instrumented runs); loop_share, after_eos (means), identical, near_ties, note, warning.
    """
    runs, cycles = _runs(record)
    headline = runs[~runs["instrumented"]]
    rows = []
    for (name, variant), group in headline[headline["method"] == "eagle"].groupby(["set", "variant"], sort=False):
        same_set = headline[headline["set"] == name]
        inside = runs[(runs["set"] == name) & (runs["variant"] == variant) & runs["instrumented"]]
        rows.append(_speedup_row(group, same_set, _costs(inside, cycles)))
    return _ordered(pd.DataFrame(rows), list(dict.fromkeys(runs["set"])))


def phases(record: Record) -> pd.DataFrame:
    """Where the time of a cycle goes: a row for each tree of 02_speedup, over all sets, from instrumented cycles.

    Columns: variant, total_tokens, depth, top_k, temperature, cycles, draft_ms, verify_ms, accept_ms, commit_ms,
    rest_ms, cycle_ms (means); plain_ms (a plain step) and tau, both of the headline runs.
    """
    runs, cycles = _runs(record)
    inside, headline = runs[runs["instrumented"]], runs[~runs["instrumented"]]
    rows = []
    for variant, group in inside.groupby("variant", sort=False):
        own = cycles[cycles["key"].isin(group["key"])]
        ms = {f"{phase}_ms": 1e3 * float(own[f"{phase}_s"].astype(float).mean()) for phase in PHASES}
        cycle_ms = 1e3 * group["decode_s"].sum() / len(own)
        free = headline[(headline["method"] == "eagle") & (headline["variant"] == variant)]
        row = {"variant": variant, **_shape(group.iloc[0]), "cycles": len(own), **ms}
        row |= {"rest_ms": cycle_ms - sum(ms.values()), "cycle_ms": cycle_ms}
        row |= {"plain_ms": 1e3 * _plain_step(headline, free)}
        rows.append(row | {"tau": value_of(summarise_tau(_accepted(free)).step_weighted)})
    return _ordered(pd.DataFrame(rows), [])


def bench_differences(left: Record, right: Record) -> pd.DataFrame:
    """In what the benches of two records differ: columns name (dotted), left, right; the time of day left out."""
    sheets = [{k: v for k, v in record.header["bench"].items() if k != "now"} for record in (left, right)]
    flat = [pd.json_normalize(sheet, sep=".").iloc[0].to_dict() for sheet in sheets]
    names = [name for name in flat[0] | flat[1] if str(flat[0].get(name)) != str(flat[1].get(name))]
    rows = [(name, flat[0].get(name), flat[1].get(name)) for name in names]
    return pd.DataFrame(rows, columns=["name", "left", "right"]).astype(object)


def side_by_side(left: Record, right: Record) -> pd.DataFrame:
    """tau and speedup of two records of 02_speedup, of the trees that are alike in name, shape and temperature.

    Columns: set, variant, total_tokens, depth, top_k, temperature, tau_left, tau_right, speedup_left, ...; a tree that
    only one of them has is a row of its own, NaN on the other side.
    """
    same = ["set", "variant", *TREE, "temperature"]
    before, after = (speedup(record)[[*same, "tau", "speedup", "speedup_hf"]] for record in (left, right))
    merged = before.merge(after, on=same, how="outer", suffixes=("_left", "_right"))
    return _ordered(merged, list(dict.fromkeys([*before["set"], *after["set"]])))


def _runs(record: Record) -> tuple[pd.DataFrame, pd.DataFrame]:
    runs = record.frame("run")
    if runs.empty or not {"method", "accepted"} <= set(runs):
        raise ValueError(f"{record.path.name} holds no runs of 02_speedup: measure it first, or name another record")
    return runs.assign(instrumented=runs["instrumented"].astype(bool)), record.frame("cycle")


def _ordered(frame: pd.DataFrame, sets: Sequence[str]) -> pd.DataFrame:
    """Rows by question set (in the given order), then by tree."""
    keys = [name for name in ("set", "variant") if name in frame]
    places = {name: place for place, name in enumerate([*sets, *VARIANTS])}
    if not keys:
        return frame
    return frame.sort_values(keys, key=lambda names: names.map(places), kind="stable", ignore_index=True)


def _speedup_row(group: pd.DataFrame, same_set: pd.DataFrame, costs: PhaseCosts | None) -> dict[str, Any]:
    """One row of `speedup`: the runs of one set and tree, beside all runs of the set."""
    first = group.iloc[0]
    taus = summarise_tau(_accepted(group))
    plain = paired_speedup(_baseline(same_set, "plain", first), group)
    stock = paired_speedup(_baseline(same_set, "hf", first), group)
    tau = value_of(taus.step_weighted)
    plain_s = _plain_step(same_set, group)
    known = costs is not None and taus.step_weighted is not None and plain_s > 0
    same = group["same_as_plain"].dropna()
    return {
        **{name: first[name] for name in ("set", "domain", "language", "variant")},
        **_shape(first),
        "questions": taus.questions,
        "cycles": taus.cycles,
        **columns("tau", taus.step_weighted),
        "tau_question_mean": taus.question_mean,
        **columns("speedup", plain.headline if plain else None),
        "speedup_median": value_of(plain.median if plain else None),
        "end_to_end": plain.end_to_end if plain else float("nan"),
        **columns("speedup_hf", stock.headline if stock else None),
        "predicted": predicted_speedup(tau, plain_s, costs, int(first["depth"])) if known and costs else float("nan"),
        "loop_share": group["loop_share"].astype(float).mean(),
        "after_eos": group["after_eos"].astype(float).mean(),
        "identical": bool(same.all()) if len(same) else None,
        "near_ties": group["near_ties"].astype(float).sum(min_count=1),
        "note": plain.note if plain else None,
        "warning": taus.warning,
    }


def _shape(run: pd.Series) -> dict[str, Any]:
    """The tree of a run and its temperature; rows without a tree have made the columns floats."""
    return {name: int(run[name]) for name in TREE} | {"temperature": float(run["temperature"])}


def _baseline(same_set: pd.DataFrame, method: str, first: pd.Series) -> pd.DataFrame:
    """The runs of a baseline that drew its tokens as the compared runs did: greedy, or at the same temperature."""
    return same_set[(same_set["method"] == method) & (same_set["temperature"] == first["temperature"])]


def _plain_step(headline: pd.DataFrame, group: pd.DataFrame) -> float:
    """Seconds of one plain step in the baseline runs of `group`; the first token of a run comes from prefill."""
    plain = _baseline(headline, "plain", group.iloc[0]) if len(group) else headline.iloc[:0]
    steps = plain["tokens"].sum() - len(plain)
    return plain["decode_s"].sum() / steps if steps > 0 else float("nan")


def _costs(inside: pd.DataFrame, cycles: pd.DataFrame) -> PhaseCosts | None:
    """The phases of instrumented runs of one tree; None where there are none or the stack cannot tell them apart."""
    if inside.empty or cycles.empty:
        return None
    own = cycles[cycles["key"].isin(inside["key"])]
    rows: Iterable[Any] = own[["draft_s", "verify_s"]].astype(float).to_dict("records")
    known = [{name: None if pd.isna(value) else value for name, value in row.items()} for row in rows]
    return phase_costs(known, depth=int(inside["depth"].iloc[0]), decode_s=inside["decode_s"].sum()) if known else None


def _accepted(runs: pd.DataFrame) -> Sequence[Sequence[int]]:
    """The accepted counts of each question, its repeats one after another."""
    groups = runs.groupby(["set", "question"], sort=False)["accepted"] if len(runs) else []
    return [[count for accepted in lists for count in accepted] for _, lists in groups]
