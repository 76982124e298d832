"""The figures of 10_train_head: loss and agreement by training step, tau before, after and on the way."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.lines import Line2D

from eagle_repro.measure import training
from eagle_repro.measure.records import Record
from eagle_repro.present import arms
from eagle_repro.present.lines import end_labels, group_looks, group_name, leave_room
from eagle_repro.present.theme import GREY, METHOD_COLOURS, STYLE, Picture, canvas, finish
from eagle_repro.present.words import word

__all__ = ["curves", "tau", "tau_by_minute"]

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


@mpl.rc_context(STYLE)
def tau_by_minute(record: Record, lang: str = "en") -> Picture:
    """Tokens a cycle of the heads that were saved on the way, against the minutes of training."""
    frame = training.on_the_way(record)
    if frame.empty:
        raise ValueError(f"{record.path.name} holds no heads on the way: train with snapshots, measure 10_train_head")
    trained, own = frame[frame["step"].notna()], frame[frame["step"].isna()]
    groups = sorted(set(frame["group"]), key=lambda group: (group != training.IN_DOMAIN, group))
    figure, (axes,) = canvas(3.4)
    ends = []
    for group, look in group_looks(groups).items():
        part = trained[trained["group"] == group]
        axes.plot(part["minutes"], part["tau"], linewidth=1.6, **look)
        axes.vlines(part["minutes"], *(part[f"tau_{end}"].astype(float) for end in ("low", "high")), color=COLOUR)
        last = part.iloc[-1]
        ends.append((float(last["minutes"]), float(last["tau"]), f"{group_name(group, lang)}: {last['tau']:.2f}"))
        for value in own.loc[own["group"] == group, "tau"]:
            axes.axhline(value, color=GREY, linestyle=look["linestyle"], linewidth=0.9, zorder=0)
    axes.set(xlabel=word("axis_minutes", lang), ylabel=word("axis_tau", lang))
    axes.set_ylim(min(0.9, axes.get_ylim()[0]), axes.get_ylim()[1])
    leave_room(axes, logarithmic=False)
    end_labels(axes, ends)
    inside = trained[trained["group"] == groups[0]]
    half = inside[inside["minutes"] >= inside["minutes"].iloc[-1] / 2].iloc[0]
    values = {"half": f"{half['tau']:.1f}", "half_minutes": f"{half['minutes']:.2g}"}
    values |= {"end": f"{inside['tau'].iloc[-1]:.1f}", "minutes": f"{inside['minutes'].iloc[-1]:.2g}"}
    handles = [Line2D([], [], color=GREY, linewidth=0.9, label=word("own_head", lang))] if len(own) else []
    if trained["tau_low"].notna().any():
        handles.append(Line2D([], [], color=COLOUR, label=word("interval", lang)))
    return finish(figure, word("minutes_finding", lang, **values), record, lang, handles)
