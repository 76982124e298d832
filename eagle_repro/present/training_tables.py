"""The tables of 10_train_head, each from a record."""

from __future__ import annotations

from eagle_repro.measure import training
from eagle_repro.measure.records import Record
from eagle_repro.present.layout import Column, Table, fixed, share, spans, table
from eagle_repro.present.words import bench_line

__all__ = ["against_own", "run", "taus"]


def taus(record: Record) -> Table:
    """tau by question set: before training, after it, and with the pair's own head."""
    taus = [f"tau_{arm}" for arm in training.ARMS]
    rows = [row | spans(row, *taus) for row in training.gains(record).to_dict("records")]
    names = {"untrained": "before", "trained": "after", "shipped": "the pair's own head"}
    columns = [Column("group", "set"), Column("domain", "domain"), Column("questions", "questions", right=True)]
    for arm in training.ARMS:
        columns += [Column(f"tau_{arm}", names[arm], fixed(2), right=True), Column(f"tau_{arm}_span", "", right=True)]
    notes = [
        "tau: tokens a cycle, bonus token included. Brackets: 95% bootstrap over questions.",
        bench_line(record),
    ]
    return table("Tokens a cycle before and after training", rows, tuple(columns), notes)


def against_own(record: Record) -> Table:
    """The trained head beside the pair's own, over all questions, by set."""
    frame = training.against_own(record)
    rows = [row | spans(row, "gain") for row in frame.to_dict("records")]
    columns = (
        Column("group", "set"),
        Column("domain", "domain"),
        Column("questions", "questions", right=True),
        Column("tau_own", "the pair's own head", fixed(2), right=True),
        Column("tau_trained", "the trained head", fixed(2), right=True),
        Column("gain", "difference", "{:+.2f}".format, right=True),
        Column("gain_span", "", right=True),
    )
    means, git = training.mean_of_eagle_sets(frame), record.header["bench"].get("git")
    notes = ["tau: tokens a cycle, bonus token included. Difference: paired by question, brackets: 95% bootstrap."]
    notes += [f"The pair's own head: as it was at revision {git[:7]}."] if git else []
    if means:
        own, trained = means["tau_own"], means["tau_trained"]
        notes.append(f"Mean of the four English EAGLE sets: {own:.2f} with the pair's own head, {trained:.2f} trained.")
    elif not rows:
        notes.append("No cycles were counted with heads saved on the way.")
    return table("The trained head against the pair's own", rows, columns, [*notes, bench_line(record)])


def run(record: Record) -> Table:
    """Corpus and training in numbers."""
    done, last = training.fit(record), training.steps(record).iloc[-1]
    peak = done["peak_bytes"]
    rows = [
        {"name": "answer tokens", "value": f"{done['corpus']['answer_tokens']:,}"},
        {"name": "conversations", "value": f"{done['corpus']['conversations']:,}"},
        {"name": "answer tokens a second", "value": f"{done['corpus_tokens_per_second']:,.0f}"},
        {"name": "draft vocabulary covers", "value": share(done["coverage"])},
        {"name": "training steps", "value": f"{done['steps']:,}"},
        {"name": "training seconds", "value": f"{done['seconds']:,.0f}"},
        {"name": "training tokens a second", "value": f"{done['tokens_per_second']:,.0f}"},
        {"name": "memory peak", "value": f"{peak / 1e9:.1f} GB" if peak else "not counted on a CPU"},
        {"name": "last loss", "value": f"{last['loss']:.3f}"},
        {"name": "first drafts that are the target's choice", "value": share(last["accuracy_1"])},
    ]
    return table("Training", rows, (Column("name", ""), Column("value", "", right=True)), [bench_line(record)])
