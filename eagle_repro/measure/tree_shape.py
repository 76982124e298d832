"""What a record of 03_tree_shape says: sweeps, picks, predictions beside measurements, one DataFrame a question.

Questions come in groups: all in-domain sets together under the name IN_DOMAIN, each other set by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from eagle_repro.measure.curves import Curves, Shape, read_curves
from eagle_repro.measure.records import Record
from eagle_repro.measure.replay import Recording, replay
from eagle_repro.measure.stats import columns, estimate, summarise_tau, value_of
from eagle_repro.measure.totals import paired_speedup

IN_DOMAIN = "in-domain"
SWEEPS = {"depth": "depth", "nodes": "total_tokens", "top_k": "top_k"}
SHAPE = list(Shape._fields)
Place = tuple[str, str]
Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A record taken apart.

    recordings: by (set, question), one a width; groups: the questions of each group; points: rows what="point";
    texts: measured runs by shape (None: plain decoding) and question, its repeats in order; adaptive: those of
    method="adaptive", which have no shape of their own, none in records from before it was measured.
    """

    new_tokens: int
    default: Shape
    picked: Shape
    curves: Curves
    recordings: dict[Place, list[Recording]]
    groups: dict[str, list[Place]]
    points: pd.DataFrame
    texts: dict[Shape | None, dict[Place, list[Row]]]
    adaptive: dict[Place, list[Row]]

    @property
    def widths(self) -> list[int]:
        """The widths that were recorded."""
        return sorted({each.top_k for of_question in self.recordings.values() for each in of_question})

    @property
    def depths(self) -> range:
        """The depths that the recordings hold."""
        return range(1 + max(each.depth for of_question in self.recordings.values() for each in of_question))

    def counts(self, shape: Shape, places: Sequence[Place]) -> list[list[int]]:
        """Accepted counts of each question by replay; empty for a width that was not recorded."""
        recorded = (each for place in places for each in self.recordings.get(place, ()) if each.top_k == shape.top_k)
        return [replay(each, shape.total_tokens, shape.depth, self.new_tokens) for each in recorded]


def study(record: Record) -> Study:
    """Read a record of 03_tree_shape. Raises ValueError for one that lacks a part."""
    rows = [row for row in record.rows if row["kind"] == "run"]
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(str(row.get("what")), []).append(row)
    missing = [what for what in ("recording", "cost", "point", "shape", "autopick") if what not in of]
    if missing:
        raise ValueError(f"{record.path.name} holds no rows of {', '.join(missing)}: measure 03_tree_shape to its end")
    protocol = record.header["protocol"]
    model = next(row for row in of["autopick"] if row["rule"] == "cost model")
    groups: dict[str, list[Place]] = {}
    for row in of["recording"]:
        group = groups.setdefault(IN_DOMAIN if row["domain"] == "in" else row["set"], [])
        if (row["set"], row["question"]) not in group:  # one row for each width
            group.append((row["set"], row["question"]))
    return Study(
        new_tokens=int(of["recording"][0]["tokens"]),
        default=Shape(*(protocol[name] for name in SHAPE)),
        picked=Shape(*(model[name] for name in SHAPE)),
        curves=read_curves(of["cost"]),
        recordings=read_recordings(of["recording"]),
        groups=dict(sorted(groups.items(), key=lambda group: group[0] != IN_DOMAIN)),
        points=pd.DataFrame(of["point"]),
        texts=_read_texts(row for row in of["shape"] if row["method"] != "adaptive"),
        adaptive=_by_place(row for row in of["shape"] if row["method"] == "adaptive"),
    )


def read_recordings(rows: Iterable[Row]) -> dict[Place, list[Recording]]:
    """The recordings of a record's rows, by (set, question)."""
    found: dict[Place, list[Recording]] = {}
    for row in rows:
        if row.get("what") == "recording":
            place = (row["set"], row["question"])
            found.setdefault(place, []).append(Recording(row["top_k"], row["depth"], row["ranks"]))
    return found


def _read_texts(rows: Iterable[Row]) -> dict[Shape | None, dict[Place, list[Row]]]:
    found: dict[Shape | None, list[Row]] = {}
    for row in rows:
        found.setdefault(None if row["method"] == "plain" else _shape(row), []).append(row)
    return {shape: _by_place(runs) for shape, runs in found.items()}


def _by_place(rows: Iterable[Row]) -> dict[Place, list[Row]]:
    found: dict[Place, list[Row]] = {}
    for row in rows:
        found.setdefault((row["set"], row["question"]), []).append(row)
    return found


def sweep(record: Record, name: str) -> pd.DataFrame:
    """One sweep ("depth", "nodes" or "top_k"): a row for each group and point, points rising.

    Columns: group, asked (the swept value), total_tokens, depth, top_k, clipped (cut to the tree's capacity);
    tau, tau_low, tau_high and predicted, predicted_low, predicted_high (by replay and cost model, all questions);
    measured, measured_low, measured_high (speedup against plain where measured, else NaN), questions (measured ones).
    """
    if name not in SWEEPS:
        raise ValueError(f"unknown sweep {name!r}: known are {', '.join(SWEEPS)}")
    known = study(record)
    points = known.points[known.points["sweep"] == name].sort_values("asked")
    rows = []
    for group, places in known.groups.items():
        for point in points.to_dict("records"):
            shape = _shape(point)
            numbers = {**_replayed(known, shape, places), **_measured(known, shape, places)}
            rows.append({"group": group, "asked": int(point["asked"]), "clipped": point["clipped"]} | numbers)
    return pd.DataFrame(rows)


def comparison(record: Record) -> pd.DataFrame:
    """Every measured shape on every set: what the cost model predicts for just these questions, and what came out.

    Columns: set, domain, total_tokens, depth, top_k; tau (measured), tau_replayed, exact (accepted counts equal cycle
    by cycle); predicted, measured, measured_low, measured_high, error (predicted / measured - 1), identical, near_ties.
    """
    known = study(record)
    rows = []
    for name in _sets(known):
        for shape, texts in known.texts.items():
            mine = {place: runs for place, runs in texts.items() if place[0] == name}
            if shape is None or not mine:
                continue
            runs = [run for of_question in mine.values() for run in of_question]
            found = {**_replayed(known, shape, list(mine)), **_measured(known, shape, list(mine))}
            counts = [[count for run in of_question for count in run["accepted"]] for of_question in mine.values()]
            first = [of_question[0]["accepted"] for of_question in mine.values()]
            found |= {"tau_replayed": found["tau"], "tau": value_of(summarise_tau(counts).step_weighted)}
            found |= {"exact": first == known.counts(shape, list(mine))}
            found |= {"error": found["predicted"] / found["measured"] - 1}
            found |= {"identical": all(run["same_as_plain"] for run in runs)}
            found |= {"near_ties": sum(run["near_ties"] or 0 for run in runs)}
            rows.append({"set": name, "domain": runs[0]["domain"], **found})
    return pd.DataFrame(rows)


def picks(record: Record) -> pd.DataFrame:
    """Who would choose which shape, and what it gives in each group.

    Columns: rule ("default", "reference", "cost model", "runner-up", "article", or several of them with commas
    between), group, and those of `sweep` but for asked and clipped.
    """
    known = study(record)
    chosen = known.points[known.points["sweep"].isin(["pick", "article"])]
    rows = []
    for sizes, points in chosen.groupby(SHAPE, sort=False):
        shape, rule = Shape(*map(int, sizes)), ", ".join(dict.fromkeys(points["rule"]))
        for group, places in known.groups.items():
            found = {**_replayed(known, shape, places), **_measured(known, shape, places)}
            rows.append({"rule": rule, "group": group} | found)
    return pd.DataFrame(rows)


def depth_trap(record: Record) -> pd.DataFrame:
    """Each question set at the default and at the picked shape.

    Columns: set, domain, variant ("default" or "picked"), total_tokens, depth, top_k, tau, tau_low, tau_high (of the
    measured questions), predicted, speedup, speedup_low, speedup_high (measured).
    """
    known = study(record)
    rows = []
    for name in _sets(known):
        places = [place for place in known.texts[None] if place[0] == name]
        domain = known.texts[None][places[0]][0]["domain"]
        for variant, shape in (("default", known.default), ("picked", known.picked)):
            found = {**_replayed(known, shape, places), **_measured(known, shape, places)}
            renamed = {key.replace("measured", "speedup"): value for key, value in found.items()}
            rows.append({"set": name, "domain": domain, "variant": variant} | renamed)
    return pd.DataFrame(rows)


def adaptive(record: Record) -> pd.DataFrame:
    """What method="adaptive" gives on each question set, beside the best of the fixed shapes that were measured there.

    Columns: set, domain, questions, tau (a plain step is a cycle of one token), speedup, speedup_low, speedup_high
    (against plain); total_tokens, depth, top_k (of the fixed shape with the least seconds in all), shapes (among so
    many), best, best_low, best_high (its speedup); share, share_low, share_high (its seconds over adaptive's, which is
    adaptive's speed as a share of its); identical (all texts are plain decoding's). alike: questions on which adaptive
    wrote plain decoding's text; alike_share, alike_share_low, alike_share_high: the same share on these, among the
    shapes that wrote it there too (in half precision a near-tie leads to another text, and another text has another
    tau). No rows for a record that holds no such runs.

    Beware: the best shape is chosen by the very times that it is then judged by, so that the luckiest of many looks
    better than it is. The share is too low by that, the more so the more shapes and the fewer repeats there are, and
    its interval, over questions, does not know of it.
    """
    known = study(record)
    rows = []
    for name in _sets(known):
        ours, plain = _runs_on(known.adaptive, name), _runs_on(known.texts[None], name)
        fixed = {shape: _runs_on(texts, name) for shape, texts in known.texts.items() if shape is not None}
        gains = {shape: found for shape, runs in fixed.items() if (found := paired_speedup(runs, ours))}
        against = paired_speedup(plain, ours)
        if against is None or not gains:
            continue
        shape = min(gains, key=lambda each: gains[each].headline.value)
        best = paired_speedup(plain, fixed[shape])
        counts = [[count for run in of["accepted"] for count in run] for _, of in ours.groupby("question", sort=False)]
        row = {"set": name, "domain": ours["domain"].iloc[0], "questions": len(against.by_question)}
        row |= {"tau": value_of(summarise_tau(counts).step_weighted), "shapes": len(gains)}
        row |= columns("speedup", against.headline) | dict(zip(SHAPE, shape, strict=True))
        row |= columns("best", best.headline if best else None) | columns("share", gains[shape].headline)
        row |= {"identical": bool(ours["same_as_plain"].all())} | _alike(ours, fixed)
        rows.append(row)
    return pd.DataFrame(rows)


def _alike(ours: pd.DataFrame, fixed: Mapping[Shape, pd.DataFrame]) -> Row:
    """The columns alike and alike_share of adaptive()."""
    own = _as_plain(ours)
    count = own["question"].nunique()
    found = [paired_speedup(_as_plain(runs), own) for runs in fixed.values()]
    shares = [each.headline for each in found if each and len(each.by_question) == count]
    return {"alike": count} | columns("alike_share", min(shares, key=lambda share: share.value, default=None))


def _as_plain(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs on questions of which every text is plain decoding's."""
    return runs[runs.groupby("question")["same_as_plain"].transform("all")] if len(runs) else runs


def costs(record: Record) -> pd.DataFrame:
    """The measured points of the cost curves: columns phase, nodes, depth, top_k (NaN where of no account), ms."""
    curves = study(record).curves
    return pd.DataFrame(list(_cost_rows(curves)), columns=["phase", "nodes", "depth", "top_k", "ms"])


def _cost_rows(curves: Curves) -> Iterator[tuple[Any, ...]]:
    yield "plain", 1, None, None, 1e3 * curves.plain
    for phase, line in (("verify", curves.verify), ("rest", curves.rest)):
        yield from ((phase, int(x), None, None, 1e3 * s) for x, s in zip(line.at, line.seconds, strict=True))
    for top_k, line in sorted(curves.drafts.items()):
        yield from (("draft", None, int(x), top_k, 1e3 * s) for x, s in zip(line.at, line.seconds, strict=True))


def _replayed(known: Study, shape: Shape, places: Sequence[Place]) -> Row:
    """tau and predicted speedup of a shape on these questions, with intervals over them."""
    counts = known.counts(shape, places)
    row: Row = dict(zip(SHAPE, shape, strict=True))
    row |= columns("tau", summarise_tau(counts).step_weighted)
    if not counts or not known.curves.covers(shape):
        return row | columns("predicted", None)
    # Of equal work, as `predict` has it: the plain time of all questions over the time of all their cycles.
    plain_s = known.curves.plain * (known.new_tokens - 1)
    cycles_s = known.curves.cycle(shape) * np.array([len(each) for each in counts])
    predicted = estimate(lambda chosen: plain_s * chosen.shape[-1] / cycles_s[chosen].sum(axis=-1), len(counts))
    return row | columns("predicted", predicted)


def _measured(known: Study, shape: Shape, places: Sequence[Place]) -> Row:
    """The measured speedup of a shape on those of these questions that were run."""
    before, after = (_runs(texts, places) for texts in (known.texts[None], known.texts.get(shape, {})))
    found = paired_speedup(before, after)
    return columns("measured", found.headline if found else None) | {
        "questions": len(found.by_question) if found else 0
    }


def _runs(texts: dict[Place, list[Row]], places: Iterable[Place]) -> pd.DataFrame:
    return pd.DataFrame([row for place in places for row in texts.get(place, ())])


def _runs_on(texts: dict[Place, list[Row]], name: str) -> pd.DataFrame:
    """The runs on one question set."""
    return _runs(texts, [place for place in texts if place[0] == name])


def _sets(known: Study) -> list[str]:
    return list(dict.fromkeys(name for name, _ in known.texts[None]))


def _shape(point: Row) -> Shape:
    return Shape(*(int(point[name]) for name in SHAPE))
