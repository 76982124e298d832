"""The objective computes what the engine drafts, and its loss is the plain formula."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.teacher import draft_along
from eagle_repro.training.batches import Batch
from eagle_repro.training.objective import (
    Losses,
    Objective,
    Observed,
    Observer,
    Unrolled,
    counted_rows,
    diagonal_attention,
    document_mask,
    step_loss,
)
from tests.engine.tiny import random_head, random_target, stock_logits

STEPS = 5


def batch_of(sequences: list[list[tuple[list[int], int]]], length: int) -> Batch:
    """Sequences of (ids, where the answer begins), padded to one length."""
    fields: list[list[list[int]]] = [[], [], [], []]
    for texts in sequences:
        columns: list[list[int]] = [[], [], [], []]
        for number, (ids, answer) in enumerate(texts, start=1):
            for place, token in enumerate(ids):
                for column, value in zip(columns, (token, place, number, int(place >= answer)), strict=True):
                    column.append(value)
        for field, column in zip(fields, columns, strict=True):
            field.append(column + [0] * (length - len(column)))
    tokens, positions, document, answer = (torch.tensor(field) for field in fields)
    return Batch(tokens, positions, document, answer.bool())


def learner() -> Eagle3Head:
    """A head whose t2d fits its d2t, as that of every loaded head does."""
    head = copy.deepcopy(random_head(random_target(), 24))
    head.t2d[head.to_target(torch.arange(24))] = True
    return head.requires_grad_(True)


def continued(prefix: list[int]) -> tuple[list[int], torch.Tensor]:
    """prefix and what the engine drafts after it as a chain; and the drafted tokens' running log-probabilities."""
    target = random_target()
    drafted = draft_along(target, random_head(target, 24), prefix, len(prefix) - 1, STEPS - 1, 1)
    return prefix + drafted.tokens[0].tolist(), drafted.scores[0]


def test_step_k_is_what_the_engine_drafts_on_level_k() -> None:
    target = random_target()
    head = random_head(target, 24)
    prefixes = [[5, 9, 33, 2, 60, 7, 7], [1, 2, 3], [44, 8, 15, 16, 23, 42, 4, 11, 30]]
    texts = [continued(prefix) for prefix in prefixes]
    length = 32
    batch = batch_of([[(texts[0][0], 1), (texts[1][0], 1)], [(texts[2][0], 1)]], length)
    observed = Observer(target, head, 2, length)(batch)
    mask = document_mask(batch.document, torch.float32)
    hidden = Unrolled(head, STEPS).hidden_states(observed.features, batch.tokens, batch.positions, mask)
    begins = [(0, 0), (0, len(texts[0][0])), (1, 0)]
    for prefix, (ids, scores), (row, begin) in zip(prefixes, texts, begins, strict=True):
        anchor = begin + len(prefix) - 2  # the root is the prefix's last token
        logprobs = torch.stack([head.log_probabilities(state[row, anchor]) for state in hidden])
        best = logprobs.max(dim=-1)
        assert head.to_target(best.indices).tolist() == ids[len(prefix) :]
        torch.testing.assert_close(best.values.cumsum(0), scores, atol=2e-5, rtol=1e-5)


def test_the_observed_distribution_is_the_targets_own_over_the_draft_vocabulary() -> None:
    target = random_target()
    head = random_head(target, 24)
    texts = [[5, 9, 33, 2, 60], [1, 2, 3, 4, 5, 6]]
    batch = batch_of([[(texts[0], 2), (texts[1], 2)]], 16)
    probabilities = Observer(target, head, 1, 16)(batch).probabilities[0]
    drafted = head.to_target(torch.arange(24))
    expected = torch.cat([logits[:, drafted].softmax(dim=-1) for logits in stock_logits(target, texts)])
    torch.testing.assert_close(probabilities[: len(expected)], expected, atol=1e-5, rtol=1e-4)


def test_attention_to_the_prefix_and_the_own_diagonal_is_one_softmax() -> None:
    torch.manual_seed(0)
    batch, heads, kv_heads, length, width = 2, 4, 2, 6, 8
    query = torch.randn(batch, heads, length, width)
    keys, values = (list(torch.randn(3, batch, kv_heads, length, width)) for _ in range(2))
    mask = document_mask(torch.tensor([[1, 1, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]]), torch.float32)
    own = torch.where(torch.eye(length).bool(), 0.0, -math.inf).expand(batch, 1, -1, -1)
    every = torch.cat((mask, own, own), dim=-1)
    key, value = (torch.cat(each, dim=2).repeat_interleave(heads // kv_heads, dim=1) for each in (keys, values))
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=every, scale=1.0)
    torch.testing.assert_close(diagonal_attention(query, keys, values, mask), expected.transpose(1, 2))


def test_the_loss_of_a_step_is_the_plain_cross_entropy_over_counted_positions() -> None:
    torch.manual_seed(0)
    logits, wanted = torch.randn(2, 5, 7), torch.randn(2, 5, 7).softmax(dim=-1)
    counted = torch.rand(2, 5) < 0.6
    entropy = right = 0.0
    for row, place in counted.nonzero().tolist():
        shares = logits[row, place].softmax(dim=-1)
        entropy -= sum(float(p) * math.log(float(q)) for p, q in zip(wanted[row, place], shares, strict=True))
        right += int(logits[row, place].argmax() == wanted[row, place].argmax())
    found = step_loss(logits, wanted, counted)
    assert float(found[0]) == pytest.approx(entropy, rel=1e-5)
    assert int(found[1]) == right


def test_the_total_weighs_steps_and_counts_unmasked_positions_only() -> None:
    losses = Losses(torch.tensor([6.0, 8.0, 5.0]), torch.zeros(3), torch.tensor([3, 2, 0]))
    assert float(losses.total()) == pytest.approx(6 / 3 + 0.8 * 8 / 2 + 0.64 * 5)


def test_rows_count_behind_answer_tokens_inside_a_text_and_the_draft_vocabulary() -> None:
    batch = batch_of([[([10, 11, 12, 13, 14], 2), ([20, 21, 22], 1)]], 10)
    t2d = torch.ones(64, dtype=torch.bool)
    #          tokens:  10 11 12 13 14 | 20 21 22 | padding; row i drafts behind token i + 1 and predicts i + k + 1
    assert counted_rows(batch, t2d, 1).int().tolist() == [[0, 1, 1, 0, 0, 1, 0, 0, 0, 0]]
    assert counted_rows(batch, t2d, 2).int().tolist() == [[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]]
    t2d[13] = False
    assert counted_rows(batch, t2d, 1).int().tolist() == [[0, 0, 1, 0, 0, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_weight_gets_a_float32_gradient_whatever_the_head_computes_in(dtype: torch.dtype) -> None:
    target = random_target()
    head = learner()
    batch = batch_of([[(list(range(1, 15)), 3)]], 16)
    objective = Objective(head, 3, dtype)
    objective(batch, Observer(target, head, 1, 16)(batch)).total().backward()
    for name, weight in head.named_parameters():
        assert weight.grad is not None and weight.grad.dtype == torch.float32, name
        assert weight.grad.abs().sum() > 0, name


def test_a_batch_gives_the_losses_of_its_texts_one_by_one() -> None:
    target, head = random_target(), learner()
    texts = [([3, 1, 4, 1, 5, 9, 2, 6], 2), ([5, 3, 5, 8, 9], 1), ([7, 9, 3, 2, 3, 8, 4], 3)]

    def sums(sequences: list[list[tuple[list[int], int]]]) -> Losses:
        batch = batch_of(sequences, 16)
        observed: Observed = Observer(target, head, len(sequences), 16)(batch)
        losses: Losses = Objective(head, 3, torch.float32)(batch, observed)
        return losses

    together, apart = sums([texts[:2], texts[2:]]), [sums([[text]]) for text in texts]
    torch.testing.assert_close(together.entropy, sum(each.entropy for each in apart), atol=1e-4, rtol=1e-5)
    assert together.counted.min() > 0
    assert together.counted.tolist() == sum(each.counted for each in apart).tolist()
