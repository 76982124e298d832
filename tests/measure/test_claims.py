"""The article's claims beside a run: every value is judged where the bench is the article's, and only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle_repro.measure.claims import Claim, Run, check, counts, load_claims, read_run
from eagle_repro.measure.claims.directions import RULES
from eagle_repro.measure.claims.formula import residuals
from eagle_repro.measure.claims.marks import agrees, check_text, mark, unmarked
from eagle_repro.measure.claims.verdicts import VERDICTS, check_one
from eagle_repro.measure.records import RecordWriter
from tests.made_up import BENCH, CLAIMS, NAMES, made_up_run, stated, write_run
from tests.reading import REPOSITORY

VALUES = [claim for claim in CLAIMS if claim.kind == "value"]
DIRECTIONS = [claim for claim in CLAIMS if claim.kind == "direction"]
BY_ID = {claim.id: claim for claim in CLAIMS}
#: Where a number that moves down is another thing: a pass is flat further than 192 tokens, a count is not negative.
ONLY_UP = {"flat_until", "cycle_accept_ms", "cycle_rest_ms", "mismatches", "mismatch_gap"}


@pytest.fixture(scope="module")
def article() -> Run:
    return made_up_run()


def moved(claim: Claim, steps: float) -> Any:
    """What the claim says, moved by so many tolerances (a range from its end)."""
    ends = claim.stated[-1:] if steps > 0 else claim.stated[:1]
    values = [value + steps * claim.tolerance for value in (ends if claim.is_range else claim.stated)]
    return values if len(values) > 1 else values[0]


def test_a_run_equal_to_the_article_reproduces_every_value(article: Run) -> None:
    results = check(CLAIMS, article)
    assert {result.claim.id: result.verdict for result in results if result.claim.kind == "value"} == dict.fromkeys(
        (claim.id for claim in VALUES), "reproduced"
    )
    assert {result.verdict for result in results if result.claim.kind == "direction"} == {"holds"}
    assert not {result.verdict for result in results if result.claim.kind == "published"} & {"reproduced", "differs"}


@pytest.mark.parametrize(
    ("claim", "steps"),
    [(claim, steps) for claim in VALUES for steps in (2, -2) if steps > 0 or claim.id not in ONLY_UP],
    ids=lambda part: part.id if isinstance(part, Claim) else f"{part:+}",
)
def test_a_value_moved_by_twice_its_tolerance_differs(claim: Claim, steps: int, article: Run) -> None:
    record = check_one(claim, article).found.record
    result = check_one(claim, made_up_run({claim.id: moved(claim, steps)}, only=[record]))
    assert result.verdict == "differs"
    assert result.off == pytest.approx(steps * claim.tolerance, rel=0.2)
    assert result.other == {}


def test_a_value_within_its_tolerance_is_reproduced() -> None:
    claim = BY_ID["speedup_code"]
    result = check_one(claim, made_up_run({claim.id: moved(claim, 0.9)}, only=["02_speedup"]))
    assert (result.verdict, round(result.off, 2)) == ("reproduced", 0.18)


def test_one_value_of_several_that_is_off_is_enough() -> None:
    claim = BY_ID["depth_inner_tau"]
    result = check_one(claim, made_up_run({claim.id: [2.78, 2.91, 3.04, 3.42]}, only=["03_tree_shape"]))
    assert (result.verdict, round(result.off, 2)) == ("differs", 0.33)


def changed(run: Run, header: Callable[[dict], dict]) -> Run:
    """The run as if it had been measured under another header."""
    records = {name: replace(record, header=header(record.header)) for name, record in run.records.items()}
    return replace(run, records=records)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("bench", "card", "NVIDIA L4"),
        ("bench", "card", "NVIDIA T400"),
        ("bench", "dtype", "bfloat16"),
        ("bench", "stack", "graph"),
        ("bench", "pair", {"name": "smollm2-135m"}),
        ("protocol", "new_tokens", 48),
    ],
)
def test_on_another_bench_a_value_is_shown_and_not_judged(part: str, name: str, value: Any, article: Run) -> None:
    other = changed(article, lambda header: header | {part: header[part] | {name: value}})
    result = check_one(BY_ID["speedup_code"], other)
    assert result.verdict == "other bench"
    assert list(result.other) == [name]
    assert result.found.value == pytest.approx(2.6)
    assert result.off is None


def test_another_tree_or_set_is_another_bench(article: Run) -> None:
    rows = [
        row | {"set": "code"} if row.get("set") == "humaneval" else row for row in article.record("02_speedup").rows
    ]
    rows = [row | {"total_tokens": 48} if row.get("total_tokens") == 60 else row for row in rows]
    other = Run("other", {"02_speedup": replace(article.record("02_speedup"), rows=rows)})
    result = check_one(BY_ID["speedup_code"], other)
    assert result.verdict == "other bench"
    assert result.other == {"set": ("humaneval", "code"), "total_tokens": (60, 48)}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_what_no_record_holds_is_not_measured_and_names_the_record(claim: Claim) -> None:
    result = check_one(claim, Run("empty", {}))
    assert (result.verdict, result.lacks[1]) == ("not measured here", "missing")
    assert result.as_row()["record"] in {*NAMES, "08_stack", "09_batch_context"}


def test_every_direction_turns_with_its_effect(article: Run) -> None:
    opposite = {
        "speedup_chat": 3.0, "depth_10_tau": 2.3, "depth_inner_tau": [2.45, 2.4, 2.35, 2.32], "depth_10_speedup": 2.6,
        "tau_tree": 1.5, "larger_tau": -9, "larger_speedup": 9, "speedup_five_hf": 2.4, "tau_russian_default": 4.0,
    }  # fmt: skip
    results = {result.claim.id: result for result in check(DIRECTIONS, made_up_run(opposite))}
    turned = {
        "deeper_tau_up", "deeper_speedup_down", "tree_beats_chain", "larger_target_tau_up", "larger_target_no_faster",
        "stock_generate_narrows", "structured_text_faster",
    }  # fmt: skip
    assert {name for name, result in results.items() if result.verdict == "does not hold"} >= turned
    for result in results.values():
        assert result.effect.estimate.low <= result.effect.estimate.value <= result.effect.estimate.high


def test_an_interval_that_covers_no_effect_is_undecided() -> None:
    same = {"depth_10_tau": 2.51, "depth_inner_tau": [2.51] * 4, "depth_10_speedup": 2.29, "larger_tau": 0.0}
    results = {result.claim.id: result.verdict for result in check(DIRECTIONS, made_up_run(same))}
    assert {name for name, verdict in results.items() if verdict == "undecided"} >= {
        "deeper_tau_up", "deeper_speedup_down", "larger_target_tau_up",
    }  # fmt: skip


def test_one_question_gives_no_interval_and_no_verdict(article: Run) -> None:
    record = article.record("04_chain_vs_tree")
    rows = [row for row in record.rows if (row["set"], row["question"]) == ("mt_bench", "q0")]
    result = check_one(BY_ID["tree_beats_chain"], Run("one", {"04_chain_vs_tree": replace(record, rows=rows)}))
    assert (result.verdict, result.effect.estimate.low) == ("undecided", None)


def test_mismatches_are_counted_in_one_half_precision_and_not_over_two(article: Run) -> None:
    record = article.record("06_lossless")
    coarser = [
        {**row, "key": f"{row['key']}/coarse", "dtype": "bfloat16", "mismatches": row["mismatches"] * 20}
        for row in record.rows
        if row.get("what") == "greedy" and row["dtype"] == "float16"
    ]
    alone = check_one(BY_ID["mismatches"], article)
    for rows in (coarser + record.rows, record.rows + coarser):
        both = check_one(BY_ID["mismatches"], Run("both", {"06_lossless": replace(record, rows=rows)}))
        assert both.verdict == alone.verdict == "reproduced" and both.found == alone.found


def test_a_real_mismatch_is_never_the_same_text(article: Run) -> None:
    record = article.record("06_lossless")
    rows = [dict(row) for row in record.rows]
    wrong = next(row for row in rows if row.get("dtype") == "float32")
    wrong["mismatches"] = [{"index": 3, "emitted": 1, "best": 2, "gap": 0.7, "excused": False}]
    result = check_one(BY_ID["same_text"], Run("wrong", {"06_lossless": replace(record, rows=rows)}))
    assert result.verdict != "holds"
    assert result.effect.estimate.value == pytest.approx(1e3 / 10_000)


def test_a_direction_over_depth_is_replayed_where_no_texts_were_measured(article: Run) -> None:
    # Every made-up position agrees with two drafted levels, all of them kept: a deeper tree accepts no more.
    record = article.record("03_tree_shape")
    kept = [row for row in record.rows if (row["what"], row.get("depth")) not in (("shape", 2), ("shape", 10))]
    replayed = Run("replay", {"03_tree_shape": replace(record, rows=kept)})
    tau, speed = (check_one(BY_ID[name], replayed) for name in ("deeper_tau_up", "deeper_speedup_down"))
    assert (tau.effect.left, tau.effect.right) == (("depth 10", 3.0), ("depth 2", 3.0))
    assert (tau.verdict, speed.verdict) == ("undecided", "holds")
    assert check_one(BY_ID["depth_2_tau"], replayed).found.conditions["how"] == "replayed"


def test_counts_add_up(article: Run) -> None:
    found = counts(check(CLAIMS, article))
    assert sum(found.values()) == len(CLAIMS)
    assert found["reproduced"] == len(VALUES) and found["holds"] == len(DIRECTIONS)
    assert set(found) <= set(VERDICTS)


def test_a_folder_is_read_with_its_unfinished_and_damaged_records(tmp_path: Path) -> None:
    write_run(tmp_path, only=["01_roofline", "04_chain_vs_tree"])
    (tmp_path / "04_chain_vs_tree.jsonl").rename(tmp_path / "04_chain_vs_tree.jsonl.partial")
    (tmp_path / "06_lossless.jsonl").write_text("nonsense\n", encoding="utf-8")
    run = read_run(tmp_path)
    assert set(run.records) == {"01_roofline"}
    assert run.states == {"04_chain_vs_tree": "unfinished", "06_lossless": "damaged"}
    assert run.faults["06_lossless"].startswith("06_lossless.jsonl is not a record (line 1)")
    assert check_one(BY_ID["tau_tree"], run).lacks == ("04_chain_vs_tree", "unfinished")
    assert check_one(BY_ID["pass_1_ms"], run).verdict == "reproduced"


CPU = {"card": "Xeon", "pair": {"name": "tiny"}, "dtype": "float32"}


@pytest.mark.parametrize("only", [NAMES, ("00_bench", "03_tree_shape", "04_chain_vs_tree")])
def test_a_record_of_another_bench_is_left_out_and_named(only: tuple[str, ...], tmp_path: Path) -> None:
    write_run(tmp_path, only=[name for name in only if name != "04_chain_vs_tree"])
    write_run(tmp_path, only=["04_chain_vs_tree"], bench=BENCH | CPU)
    run = read_run(tmp_path)
    assert set(run.records) == set(only) - {"04_chain_vs_tree"}
    assert run.others == {
        "04_chain_vs_tree": {
            "card": ("Xeon", "Tesla T4"), "pair": ("tiny", "qwen3-1.7b"), "dtype": ("float32", "float16"),
        }
    }  # fmt: skip
    for claim in ("tree_beats_chain", "tau_tree"):
        assert check_one(BY_ID[claim], run).lacks == ("04_chain_vs_tree", "of another bench")


@pytest.mark.parametrize(
    ("name", "bench", "others"),
    [
        ("06_lossless", {"stack": "graph"}, {"stack": ("graph", "eager")}),
        ("06_lossless", {"pair": {"name": "qwen3-1.7b", "head": {"sha256": "b" * 64}}}, {"head": ("b" * 12, "a" * 12)}),
        ("06_lossless", {"pair": {"name": "qwen3-1.7b", "head": {"revision": "main"}}}, {}),
        ("06_lossless", {"torch": "2.13.0", "now": {"utc": "2026-02-01"}}, {}),
        ("05_target_size", {"pair": {"name": "tiny"}}, {}),  # its rows name their pairs
        ("05_target_size", {"card": "NVIDIA H200"}, {"card": ("NVIDIA H200", "Tesla T4")}),
        ("08_stack", CPU | {"stack": "graph"}, {}),  # compares stacks within itself, and is judged with nothing
    ],
)
def test_only_what_is_comparable_must_agree(name: str, bench: dict, others: dict, tmp_path: Path) -> None:
    pair = {"pair": {"name": "qwen3-1.7b", "head": {"sha256": "a" * 64}}}
    write_run(tmp_path, only=["02_speedup"], bench=BENCH | pair)
    with RecordWriter(tmp_path / f"{name}.jsonl", bench=BENCH | pair | bench, protocol={}) as writer:
        writer.complete()
    assert read_run(tmp_path).others == ({name: others} if others else {})


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no records"):
        read_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="is no folder"):
        read_run(tmp_path / "nowhere")


# The file of claims.


def test_every_number_of_the_article_is_there_once() -> None:
    numbers = stated()
    assert len(numbers) == len(VALUES) >= 40
    assert {claim.rule for claim in DIRECTIONS} == set(RULES)
    assert numbers["depth_inner_tau"] == [2.78, 2.91, 3.04, 3.09]
    assert [BY_ID[name].stated for name in ("published_best", "published_tuned")] == [(6.5,), (1.3, 2.0)]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.pop("tolerance"), "speedup_code: a value needs a measure, and a tolerance"),
        (lambda c: c.update(tolerance=0), "tolerance above 0"),
        (lambda c: c.update(conditions={}), "conditions it belongs to"),
        (lambda c: c.update(measure={"name": "speed", "set": "code"}), "unknown number 'speed'"),
        (lambda c: c.update(measure={"name": "speedup", "sets": "code"}), "it takes set, total_tokens"),
        (lambda c: c.update(unit="furlongs"), "unit 'furlongs' is unknown"),
        (lambda c: c.update(text={"en": "Speedup"}), "not given in both"),
        (lambda c: c.update(reason="because"), "'because' is missing or unknown"),
        (lambda c: c.update(range=[1, 2]), "value and range are given"),
        (lambda c: c.update(kind="direction"), "rule None is unknown"),
        (lambda c: c.update(kind="opinion"), "kind 'opinion' is unknown"),
        (lambda c: c.update(id="speedup_chat"), "more than once"),
        (lambda c: c.update(id="pass_ms"), "pass_ms: its id is the name of another number"),
    ],
)
def test_a_claim_that_does_not_fit_the_form_is_refused_by_name(
    edit: Callable[[dict], Any], message: str, tmp_path: Path
) -> None:
    document = yaml.safe_load((REPOSITORY / "data" / "claims.yaml").read_text(encoding="utf-8"))
    edit(next(claim for claim in document["claims"] if claim["id"] == "speedup_code"))
    broken = tmp_path / "claims.yaml"
    broken.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_claims(broken)


# The cost formula on the article's own figures.


def test_the_cost_formula_gives_the_64_node_cycle_and_closes_the_rest_within_fifteen_percent() -> None:
    cycle, *rest = residuals(CLAIMS)
    assert (cycle.tau, round(cycle.predicted, 2), cycle.percent) == (2.5, 2.02, None)
    assert len(rest) == 5
    assert 10 < max(abs(point.percent) for point in rest) < 15


# Marked texts.


def test_a_text_that_says_what_the_record_says_passes(article: Run) -> None:
    text = (
        f"Code {mark('speedup_code', '2.6x')}, {mark('speedup set=mt_bench', '1.95')}; "
        f"τ {mark('tau_in', '3,4')}; {mark('article.pass_512_ms', '125.6 ms')}; {mark('pass_ms tokens=192', '52')}"
    )
    assert [found.fault for found in check_text(text, CLAIMS, article)] == [None] * 5
    assert unmarked(text).startswith("Code 2.6x, 1.95; τ 3,4;")


def test_a_text_that_says_2_6_where_the_record_says_2_4_fails_with_its_line() -> None:
    text = f"first line\nsecond {mark('speedup_code', '2.6')} line\n{mark('speedup_chat', '1.95')}"
    wrong, right = check_text(text, CLAIMS, made_up_run({"speedup_code": 2.4}, only=["02_speedup"]))
    assert (wrong.line, wrong.ok, wrong.fault) == (2, False, "the record says 2.4")
    assert (right.line, right.ok) == (3, True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<!--n:speedup_code-->2.6", "not closed"),
        ("<!--n:speedup_code-->2.6<!--n:speedup_chat-->1.95<!--/n-->", "not closed"),
        ("2.6<!--/n--> <!--n:speedup_code-->2.6<!--/n-->", "not opened"),
        (mark("speedup_code", "much"), "not exactly one number"),
        (mark("speedup_code", "2.6 to 2.7"), "not exactly one number"),
        (mark("speed_code", "2.6"), "unknown number"),
        (mark("pass_1_ms", "44.7 s"), "'s' beside the number, which is in ms"),
        (mark("pass_ms tokens=1", "44.7k"), "'k' beside"),
        (mark("speedup_code", "2.6%"), "'%' beside the number, which is in x"),
        (mark("article.speedup_code", "2.6 ms"), "'ms' beside"),
        (mark("speedup code", "2.6"), "not NAME=VALUE"),
        (mark("article.depth_inner_tau", "2.78"), "not the one number"),
        (mark("depth_inner_tau", "2.78"), "4 numbers"),
        (mark("published_batch_64", "1.38"), "not measured in this run"),
    ],
)
def test_a_mark_that_cannot_be_checked_fails(text: str, fault: str, article: Run) -> None:
    assert any(found.fault and fault in found.fault for found in check_text(text, CLAIMS, article))


def test_a_number_stands_with_its_unit_or_without(article: Run) -> None:
    text = " ".join(mark("pass_1_ms", said) for said in ("44.7", "44.7 ms", "44,7\u00a0мс", "44.7ms"))
    text += " ".join(mark("speedup_code", said) for said in ("2.6x", "2.6×", "2.6 times", "~2.6"))
    assert all(found.ok for found in check_text(text, CLAIMS, article))


def test_a_text_without_marks_is_refused_and_marks_in_code_are_no_marks(article: Run) -> None:
    shown = f"Write `{mark('speedup_code', '9')}`, or\n```\n{mark('speedup_code', '9')}\n```\n"
    with pytest.raises(ValueError, match="marks no numbers"):
        check_text(shown, CLAIMS, article)
    assert [found.line for found in check_text(shown + mark("speedup_code", "2.6"), CLAIMS, article)] == [5]


@pytest.mark.parametrize(
    ("written", "value", "right"),
    [
        ("2.6", 2.649, True), ("2.6", 2.651, False), ("2.60", 2.649, False), ("3", 3.4, True), ("3", 2.4, False),
        ("2,6x", 2.6, True), ("1,234", 1234.3, True), ("1,234", 1.2341, True),
        ("1\u00a0234,5", 1234.5, True), ("1\u202f234", 1234.4, True),
        ("−0.5", -0.52, True), ("-0.5", 0.5, False), ("39%", 39.02, True), ("44.7 ms", 44.8, False),
    ],
)  # fmt: skip
def test_numbers_are_compared_at_the_precision_written(written: str, value: float, right: bool) -> None:
    assert agrees(written, value) is right
