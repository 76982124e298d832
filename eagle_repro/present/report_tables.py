"""The tables of the report, in English or Russian, each from a record; claim_tables.py has those of the claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from eagle_repro.measure import exactness, sizes, summary, tree_shape
from eagle_repro.measure.records import Record
from eagle_repro.present.layout import Column, Table, table, tree_label
from eagle_repro.present.numerals import NO_BREAK, UNKNOWN, interval, number, percent_digits, quantity
from eagle_repro.present.report_words import BENCH_NAMES, HEADINGS, YES_NO
from eagle_repro.present.words import word

Rows = Iterable[Mapping[Any, Any]]
#: Heading and cell of a column.
Cell = tuple[str, Callable[[Mapping[Any, Any]], str]]
#: Columns of words; numbers stand to the right.
LEFT = {
    "set", "tree", "name", "value", "role", "source", "revision", "licence", "rule", "pair", "dtype", "shape", "test",
}  # fmt: skip
PHASES = ("draft", "verify", "accept", "commit", "rest", "cycle")


def bench(record: Record, lang: str) -> Table:
    """The conditions that every number belongs to, all of them."""
    sheet, footer = record.header["bench"], record.footer or {}
    now = sheet.get("now") or {}
    plain = ("cpu", "threads", "driver", "cuda", "torch", "transformers", "numpy", "python", "package", "git")
    size = sheet.get("memory_bytes")
    values: dict[str, Any] = {
        "card": sheet.get("card"),
        "memory": size and f"{number(size / 2**30, 1, lang)}{NO_BREAK}GiB",
        "capability": sheet.get("capability") and ".".join(map(str, sheet["capability"])),
        **{name: sheet.get(name) for name in plain},
        "dtype": sheet.get("dtype"),
        "stack": sheet.get("stack"),
        "pair": (sheet.get("pair") or {}).get("name"),
        **{f"questions {name}": f"sha256 {sha[:12]}" for name, sha in (sheet.get("question_sets") or {}).items()},
        "clocks before": _clocks(now.get("clocks"), lang),
        "clocks after": _clocks(footer.get("clocks_after"), lang),
        "measured": now.get("utc"),
    }
    rows = [{"name": name, "value": value} for name, value in values.items()]
    return _table(rows, [("name", lambda row: _bench_name(row["name"], lang)), _as_is("value")], lang)


def protocol(record: Record, lang: str) -> Table:
    """The settings under which a record was measured."""
    settings = record.header["protocol"]
    rows = [{"name": name, "value": _listed(value)} for name, value in settings.items() if value not in (None, "auto")]
    return _table(rows, [_as_is("name"), _as_is("value")], lang)


def weights(record: Record, lang: str) -> Table:
    """Where target and head came from, and how large they are."""
    rows = [row for row in record.rows if row["kind"] == "run" and row["key"].startswith("weights/")]
    cells = [
        ("role", lambda row: _bench_name(row["role"], lang)),
        _as_is("source"),
        _as_is("revision"),
        ("parameters", lambda row: quantity(row["parameters"] / 1e6, "M", lang)),
        ("weight_mb", lambda row: f"{number(row['weight_bytes'] / 1e6, 0, lang)}{NO_BREAK}MB"),
        _as_is("licence"),
    ]
    return _table(rows, cells, lang)


def passes(record: Record, lang: str) -> Table:
    """What a pass costs by its tokens."""
    cells = [
        ("tokens", lambda row: number(row["tokens"], 0, lang)),
        ("ms", lambda row: number(row["ms"], 2, lang)),
        ("spread", lambda row: interval(row["ms_low"], row["ms_high"], 2, lang)),
        ("ms_per_token", lambda row: number(row["ms_per_token"], 3, lang)),
        ("bus", lambda row: _percent(100 * row["utilisation"], lang)),
    ]
    return _table(summary.roofline(record).to_dict("records"), cells, lang)


def by_set(record: Record, lang: str) -> Table:
    """tau and speedup by question set and tree; a set is named once."""
    rows = _named_once(summary.speedup(record).to_dict("records"), "set")
    cells = [
        _as_is("set"),
        ("tree", _tree),
        ("tau", lambda row: number(row["tau"], 2, lang)),
        ("interval", lambda row: interval(row["tau_low"], row["tau_high"], 2, lang)),
        ("against_plain", lambda row: quantity(row["speedup"], "x", lang)),
        ("interval", lambda row: interval(row["speedup_low"], row["speedup_high"], 2, lang)),
        ("against_hf", lambda row: quantity(row["speedup_hf"], "x", lang)),
        ("predicted", lambda row: quantity(row["predicted"], "x", lang)),
    ]
    return _table(rows, cells, lang)


def phases(record: Record, lang: str) -> Table:
    """Where the milliseconds of a cycle go."""
    cells: list[Cell] = [("tree", _tree)]
    cells += [(name, lambda row, name=name: number(row[f"{name}_ms"], 1, lang)) for name in PHASES]  # type: ignore[misc]
    cells += [("plain_step", lambda row: number(row["plain_ms"], 1, lang))]
    return _table(summary.phases(record).to_dict("records"), cells, lang)


def depths(record: Record, lang: str) -> Table:
    """The depth sweep of the in-domain questions."""
    frame = tree_shape.sweep(record, "depth")
    rows = frame[frame["group"] == tree_shape.IN_DOMAIN].to_dict("records")
    cells = [
        ("depth", lambda row: number(row["depth"], 0, lang)),
        ("tau", lambda row: number(row["tau"], 2, lang)),
        ("predicted", lambda row: quantity(row["predicted"], "x", lang)),
        ("measured", lambda row: quantity(row["measured"], "x", lang)),
        ("interval", lambda row: interval(row["measured_low"], row["measured_high"], 2, lang)),
    ]
    return _table(rows, cells, lang)


def picks(record: Record, lang: str) -> Table:
    """Who would choose which tree, and what it gives in domain."""
    frame = tree_shape.picks(record)
    rows = frame[frame["group"] == tree_shape.IN_DOMAIN].to_dict("records")
    cells = [
        ("rule", lambda row: _bench_name(row["rule"], lang)),
        ("tree", _tree),
        ("tau", lambda row: number(row["tau"], 2, lang)),
        ("predicted", lambda row: quantity(row["predicted"], "x", lang)),
        ("measured", lambda row: quantity(row["measured"], "x", lang)),
        ("interval", lambda row: interval(row["measured_low"], row["measured_high"], 2, lang)),
    ]
    return _table(rows, cells, lang)


def pairs(record: Record, lang: str) -> Table:
    """The trained pairs: parameters, and over all their questions tau and speedup."""
    cells = [
        _as_is("pair"),
        ("target", lambda row: quantity(row["target_parameters"] / 1e6, "M", lang)),
        ("head", lambda row: quantity(row["head_parameters"] / 1e6, "M", lang)),
        ("share", lambda row: quantity(100 * row["head_share"], "%", lang)),
        ("tau", lambda row: number(row.get("tau"), 2, lang)),
        ("interval", lambda row: interval(row.get("tau_low"), row.get("tau_high"), 2, lang)),
        ("speedup", lambda row: quantity(row.get("speedup"), "x", lang)),
        ("interval", lambda row: interval(row.get("speedup_low"), row.get("speedup_high"), 2, lang)),
    ]
    return _table(sizes.pairs(record).to_dict("records"), cells, lang)


def shapes(record: Record, lang: str) -> Table:
    """Timing-only pairs: what a step and a cycle cost, and the tau from which the cycle pays; a shape is named once."""
    rows = _named_once(sizes.timing(record).to_dict("records"), "shape")
    cells: list[Cell] = [
        _as_is("shape"),
        ("head", lambda row: quantity(row["head_parameters"] / 1e6, "M", lang)),
        ("tree", lambda row: _tree(row)),
    ]
    for name in ("plain", "draft", "verify", "rest", "cycle"):
        heading = "plain_step" if name == "plain" else name
        cells.append((heading, lambda row, name=name: number(row[f"{name}_ms"], 1, lang)))  # type: ignore[misc]
    cells.append(("pays_from", lambda row: number(row["steps"], 2, lang)))
    return _table(rows, cells, lang)


def texts(record: Record, lang: str) -> Table:
    """Greedy texts against plain decoding and a replay, by precision."""
    cells = [
        _as_is("dtype"),
        *((name, lambda row, name=name: number(row[name], 0, lang)) for name in ("questions", "tokens", "identical")),
        ("per_thousand", lambda row: number(row["per_thousand"], 2, lang)),
        ("unexcused", lambda row: number(row["unexcused"], 0, lang)),
        ("worst_gap", lambda row: number(row["worst_gap"], 3, lang)),
        ("typical_gap", lambda row: number(row["typical_gap"], 2, lang)),
    ]
    return _table(exactness.greedy(record).to_dict("records"), cells, lang)


def permutations(record: Record, lang: str) -> Table:
    """The permutation tests on sampled texts: the control, the engine, rules that are wrong on purpose."""
    passed = {True: YES_NO[lang][0], False: YES_NO[lang][1]}
    level = number(exactness.effect_level(record), 3, lang)

    def effect(row: Mapping[Any, Any]) -> str:
        share = number(row["detectable_effect"], 3, lang)
        return share if share == UNKNOWN else f"{share} (p{NO_BREAK}<{NO_BREAK}{level})"

    cells = [
        ("test", lambda row: word(f"test_{row['name']}", lang, pair=row["pair"])),
        ("samples", lambda row: number(row["samples"], 0, lang)),
        ("p", lambda row: number(row["p"], 4, lang)),
        ("splits_below_005", lambda row: number(row["splits_below_005"], 2, lang)),
        ("detectable_effect", effect),
        ("passed", lambda row: passed[bool(row["passed"])]),
    ]
    return _table(exactness.permutations(record).to_dict("records"), cells, lang)


def _named_once(rows: Sequence[Mapping[Any, Any]], field: str) -> list[dict[Any, Any]]:
    """The rows with `field` emptied where it is that of the row above."""
    above = [None, *(row[field] for row in rows)]
    return [dict(row) | ({field: ""} if row[field] == last else {}) for row, last in zip(rows, above, strict=False)]


def _table(rows: Rows, cells: Sequence[Cell], lang: str) -> Table:
    """A finished table: each row's cells as text, columns of nothing but unknowns left out."""
    listed = list(rows)
    columns = [[cell(row) for row in listed] for _, cell in cells]
    kept = [number for number, column in enumerate(columns) if set(column) != {UNKNOWN}]
    shown = [{str(number): columns[number][place] for number in kept} for place in range(len(listed))]
    made = [
        Column(str(number), HEADINGS[lang].get(cells[number][0], cells[number][0]), right=cells[number][0] not in LEFT)
        for number in kept
    ]
    return table("", shown, made)


def _percent(value: float, lang: str) -> str:
    return quantity(value, "%", lang, digits=percent_digits(value))


def _as_is(name: str) -> Cell:
    return name, lambda row: UNKNOWN if row.get(name) is None else str(row[name])


def _tree(row: Mapping[Any, Any]) -> str:
    return tree_label(row, NO_BREAK)


def _clocks(values: Mapping[str, Any] | None, lang: str) -> str | None:
    if not values or all(value is None for value in values.values()):
        return None
    units = {"sm_mhz": "MHz", "memory_mhz": "MHz (memory)", "temperature_c": "°C"}
    return ", ".join(f"{number(values.get(name), 0, lang)}{NO_BREAK}{unit}" for name, unit in units.items())


def _bench_name(name: str, lang: str) -> str:
    head, _, rest = name.partition(" ")
    known = BENCH_NAMES[lang]
    return known.get(name) or (f"{known.get(head, head)} {rest}" if rest else known.get(head, head))


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
