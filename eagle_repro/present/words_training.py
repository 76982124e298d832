"""Words of the figures of 10_train_head, in two languages."""

from __future__ import annotations

TRAINING: dict[str, dict[str, str]] = {
    "en": {
        "training_finding": "After {steps} steps the head agrees with the target on {percent}% of first drafts",
        "panel_loss": "loss",
        "panel_agreement": "share of drafts that are the target's choice",
        "axis_step": "training step",
        "unrolled": "step {number}",
        "fitted_more": "Training takes the head from {before} to {after} tokens a cycle",
        "head_untrained": "before training",
        "head_trained": "after training",
        "axis_minutes": "minutes of training",
        "axis_tau": "tau: tokens a cycle",
        "own_head": "grey: the pair's own head",
        "minutes_finding": "In domain a cycle gives {half} tokens after {half_minutes} minutes, {end} after {minutes}",
    },
    "ru": {
        "training_finding": "После {steps} шагов голова согласна с целью в {percent}% первых черновиков",
        "panel_loss": "функция потерь",
        "panel_agreement": "доля черновиков, совпавших с выбором цели",
        "axis_step": "шаг обучения",
        "unrolled": "шаг {number}",
        "fitted_more": "Обучение поднимает голову с {before} до {after} токенов за цикл",
        "head_untrained": "до обучения",
        "head_trained": "после обучения",
        "axis_minutes": "минуты обучения",
        "axis_tau": "τ: токенов за цикл",
        "own_head": "серым: своя голова пары",
        "minutes_finding": "В домене цикл даёт {half} токена через {half_minutes} мин и {end} через {minutes}",
    },
}
