"""The sections of the report that 07_domain and 10_train_head add, in both languages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from eagle_repro.measure.claims.marks import unmarked
from eagle_repro.measure.records import Record
from eagle_repro.present.report import LANGUAGES, Report
from tests.made_up import CLAIMS, made_up_run
from tests.present.head_rows import head_rows
from tests.present.test_training_plots import rows

TITLES = {"en": ("## The language, or", "## A head of one's own"), "ru": ("## Язык или", "## Своя голова")}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_heads_and_training_get_a_section_where_they_were_measured(
    lang: str, write: Callable[..., Record], tmp_path: Path
) -> None:
    run = made_up_run()
    without = Report(run, CLAIMS, lang).markdown()
    assert not any(title in without for title in TITLES[lang]) and "`07_domain`" in without
    more = {
        "07_domain": write("07_domain", list(head_rows()), {}),
        "10_train_head": write("10_train_head", list(rows()), {}),
    }
    text = unmarked(Report(replace(run, records={**run.records, **more}), CLAIMS, lang, tmp_path).markdown())
    assert all(title in text for title in TITLES[lang])
    assert "`07_domain`)" not in text and "`10_train_head`)" not in text
    point = {"en": ".", "ru": ","}[lang]
    assert f"4{point}79" in text and f"3{point}33" in text  # code on code; in domain after training
    for name in ("domain_tau", "domain_gains", "training", "training_tau"):
        assert (tmp_path / "figures" / lang / f"{name}.png").is_file()
