"""Words: every label stands in one place and in both languages."""

from __future__ import annotations

from eagle_repro.present import words
from eagle_repro.present.words import WORDS
from eagle_repro.present.words_comparisons import COMPARISONS
from eagle_repro.present.words_domain import DOMAIN
from eagle_repro.present.words_stack import STACK
from eagle_repro.present.words_training import TRAINING
from eagle_repro.present.words_tree_shape import TREE_SHAPE

PARTS = [COMPARISONS, DOMAIN, STACK, TRAINING, TREE_SHAPE]


def test_no_label_takes_the_place_of_another() -> None:
    assert all(name in vars(words) for name in ("COMPARISONS", "DOMAIN", "STACK", "TRAINING", "TREE_SHAPE"))
    for lang in WORDS:
        keys = [key for part in PARTS for key in part[lang]]
        assert len(keys) == len(set(keys)), sorted(key for key in keys if keys.count(key) > 1)
        assert set(keys) <= set(WORDS[lang])


def test_both_languages_have_every_label() -> None:
    assert set(WORDS["en"]) == set(WORDS["ru"])
