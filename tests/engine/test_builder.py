"""The tree builder alone gives the recorded official trees: no model, only candidates and scripted logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from eagle_repro.engine.tree import DraftTree
from tests.engine import reference as ref
from tests.engine.scripted import Pass, scripted_draft


@pytest.mark.parametrize("name", ref.recordings("levels"))
def test_recorded_candidates_give_the_recorded_tree(name: str) -> None:
    levels, compared = ref.read(name), 0
    for case in levels["cases"]:
        trace = f"trace_{levels['head']}_{case['total_token']}_{case['depth']}_{case['top_k']}.json"
        if not ref.recording(trace).is_file():
            continue
        run = next(run for run in ref.read(trace)["runs"] if run["prompt"] == case["prompt"])
        script = []
        for tokens, logprobs in zip(case["levels"]["tokens"], case["levels"]["logprobs"], strict=True):
            rows = torch.full((len(tokens), 512), -math.inf)
            script.append(rows.scatter(1, torch.tensor(tokens), torch.tensor(logprobs)))
        tree, _ = scripted_draft(script, ref.shape_of(case), case["root"])
        assert ref.observed_tree(tree) == ref.recorded_tree(run["cycles"][case["cycle"]])
        compared += 1
    assert compared >= 12


BUILDER_CASES = ref.read("builder_cases.json")["cases"]
TIES = ("flat", "peaked", "halfties")


def label(case: dict[str, Any]) -> str:
    return f"{case['total_token']}-{case['depth']}-{case['top_k']}-{case['mode']}"


def scripted_case(case: dict[str, Any]) -> tuple[DraftTree, list[Pass]]:
    script = [torch.tensor(rows).log_softmax(dim=-1) for rows in case["logits"]]
    d2t = None if case["d2t"] is None else torch.tensor(case["d2t"])
    # The official prefix of three tokens counts the root.
    return scripted_draft(script, ref.shape_of(case), case["root"], length=2, d2t=d2t)


def test_scripted_logits_give_the_recorded_tree_and_the_recorded_draft_passes() -> None:
    cases = [case for case in BUILDER_CASES if case.get("error") is None and case["mode"] not in TIES]
    assert len(cases) == 40
    for case in cases:
        tree, passes = scripted_case(case)
        assert ref.observed_tree(tree) == ref.recorded_tree(case)
        assert [p.tokens.tolist() for p in passes] == case["frontier"]
        assert [p.positions.tolist() for p in passes] == case["frontier_position_ids"]
        for given, rows in zip(passes, case["frontier_tree_mask"], strict=True):
            drafted = len(rows[0])
            assert (given.mask[:, :2] == 0).all()
            assert (given.mask[:, 2 : 2 + drafted] == 0).int().tolist() == rows
            assert (given.mask[:, 2 + drafted :] == torch.finfo(torch.float32).min).all()


@pytest.mark.parametrize("case", [case for case in BUILDER_CASES if case.get("error")], ids=label)
def test_shapes_that_break_the_official_code_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"total_tokens=|top_k="):
        ref.shape_of(case).require_vocabulary(case["draft_vocab_size"])


@pytest.mark.parametrize("case", [case for case in BUILDER_CASES if case["mode"] in TIES], ids=label)
def test_exact_ties_never_part_a_node_from_its_parent(case: dict[str, Any]) -> None:
    """Where the official code hangs a node on a wrong parent (orphans > 0) ours must not.

    A node's score is its parent's plus the log-probability that the script gave it there; a wrong parent breaks that.
    """
    tree, passes = scripted_case(case)
    tokens, parents, depths = tree.tokens[0].tolist(), tree.parents[0].tolist(), tree.depths[0].tolist()
    for node in range(1, len(tokens)):
        parent = parents[node]
        assert parent < node and depths[node] == depths[parent] + 1
        step = float(tree.scores[0, node] - tree.scores[0, parent])
        rows = case["logits"][depths[parent]]
        level = torch.tensor(rows).log_softmax(dim=-1)
        fed = [0] if parent == 0 else passes[depths[parent] - 1].tokens.tolist()
        rows_of_parent = [r for r, token in enumerate(fed) if parent == 0 or token == tokens[parent]]
        assert any(math.isclose(step, float(level[r, tokens[node]]), abs_tol=1e-4) for r in rows_of_parent)
