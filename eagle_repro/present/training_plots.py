"""The figures of 10_train_head: loss and agreement by training step, and tau before and after by question set."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np

from eagle_repro.measure import training
from eagle_repro.measure.records import Record
from eagle_repro.present import arms
from eagle_repro.present.lines import end_labels
from eagle_repro.present.theme import METHOD_COLOURS, STYLE, Picture, canvas, finish
from eagle_repro.present.words import word

__all__ = ["curves", "tau"]

COLOUR = METHOD_COLOURS["eagle"]


@mpl.rc_context(STYLE)
def curves(record: Record, lang: str = "en") -> Picture:
    """Loss, and agreement with the target for the first, middle and last unrolled step, by training step."""
    frame = training.steps(record)
    count = sum(name.startswith("accuracy_") for name in frame)
    figure, (left, right) = canvas(2.6, 2)
    left.plot(frame["step"], frame["loss"], color=COLOUR, linewidth=1.6)
    left.set(xlabel=word("axis_step", lang), title=word("panel_loss", lang), ylim=(0, 1.05 * frame["loss"].max()))
    ends = []
    right.set_ylim(0, 1)
    shown = sorted({1, (count + 1) // 2, count})
    for number, width in zip(shown, np.linspace(2.0, 0.9, len(shown)), strict=True):
        values = frame[f"accuracy_{number}"]
        right.plot(frame["step"], values, color=COLOUR, linewidth=width)
        ends.append((float(frame["step"].iloc[-1]), float(values.iloc[-1]), word("unrolled", lang, number=number)))
    right.set_xlim(right=1.3 * frame["step"].iloc[-1])  # room for the labels
    right.set(xlabel=word("axis_step", lang), title=word("panel_agreement", lang))
    end_labels(right, ends)
    last = frame.iloc[-1]
    agreed = f"{100 * last['accuracy_1']:.0f}"
    return finish(figure, word("training_finding", lang, steps=int(last["step"]), percent=agreed), record, lang)


@mpl.rc_context(STYLE)
def tau(record: Record, lang: str = "en") -> Picture:
    """Tokens a cycle before and after training, by question set."""
    frame = training.gains(record)
    ways = [
        arms.Arm("untrained", METHOD_COLOURS["hf"], "s", word("head_untrained", lang)),
        arms.Arm("trained", COLOUR, "o", word("head_trained", lang)),
    ]
    figure, (axes,) = canvas(arms.height(frame))
    arms.draw(axes, frame, "tau", ways, lang)
    axes.set_xlabel(word("tau_axis", lang))
    best = frame.loc[frame["tau_trained"].idxmax()]
    values = {"before": f"{best['tau_untrained']:.1f}", "after": f"{best['tau_trained']:.1f} ({best['group']})"}
    return finish(figure, word("fitted_more", lang, **values), record, lang, arms.handles(ways, frame, lang))
