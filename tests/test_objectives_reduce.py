"""Reductions: by hand, by loops, and the same gradient however the step is split."""

from __future__ import annotations

import math
from functools import partial

import pytest
import slow_objectives as slow
import torch

from equipoise.errors import UsageError
from equipoise.objectives.batch import TokenBatch
from equipoise.objectives.clipped import clipped_surrogate
from equipoise.objectives.compose import compose
from equipoise.objectives.reduce import constant_length, sequence_mean, sequence_sum, token_mean

ALL = [token_mean, sequence_mean, sequence_sum, partial(constant_length, length=50)]
IDS = ["token_mean", "sequence_mean", "sequence_sum", "constant_length"]
CLIP = partial(clipped_surrogate, clip_low=0.2, clip_high=0.28)


def test_by_hand():
    # Two completions, of 2 tokens (loss 1, 3) and of 1 (loss 6).
    loss, mask = torch.tensor([[1.0, 3.0], [6.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    assert token_mean(loss, step_tokens=3).item() == pytest.approx(10 / 3)
    assert sequence_mean(loss, mask, step_sequences=2).item() == pytest.approx((2 + 6) / 2)
    assert sequence_sum(loss, step_sequences=2).item() == pytest.approx(10 / 2)
    assert constant_length(loss, step_sequences=2, length=5).item() == pytest.approx(10 / (2 * 5))


@pytest.mark.parametrize("seed", range(3))
def test_a_loop_over_completions(seed):
    batch = slow.random_batch(seed)
    loss_BT = torch.where(batch.mask_BT, batch.entropy_BT, 0.0)
    rows = [[loss_BT[b, t].item() for t in range(9) if batch.mask_BT[b, t]] for b in range(6)]
    counted = sum(map(bool, rows))
    n_tokens = sum(map(len, rows))
    total = math.fsum(x for row in rows for x in row)
    assert token_mean(loss_BT, step_tokens=n_tokens).item() == pytest.approx(total / n_tokens, abs=1e-10)
    mean = math.fsum(math.fsum(row) / len(row) for row in rows if row) / counted
    assert sequence_mean(loss_BT, batch.mask_BT, step_sequences=counted).item() == pytest.approx(mean, abs=1e-10)


@pytest.mark.parametrize("reduction", ALL, ids=IDS)
@pytest.mark.parametrize("split", [[[0, 1, 2, 3, 4, 5]], [[0], [1], [2], [3], [4], [5]], [[5, 1], [0, 2, 3], [4]]])
def test_any_split_of_the_step_gives_the_same_gradient(reduction, split):
    batch = slow.random_batch(3)
    objective = compose(CLIP, reduction=reduction)

    def gradient(parts):
        leaf = batch.logp_BT.clone().requires_grad_()
        for rows in parts:
            step = TokenBatch(
                leaf, batch.old_logp_BT, batch.adv_BT, batch.mask_BT,
                step_tokens=batch.step_tokens, step_sequences=batch.step_sequences,
            )  # fmt: skip
            objective(step.rows(rows)).backward()
        return leaf.grad

    torch.testing.assert_close(gradient(split), gradient([list(range(6))]), rtol=0, atol=1e-14)


@pytest.mark.parametrize("reduction", ALL, ids=IDS)
def test_ranks_add_up_to_one_process(reduction):
    step = slow.random_batch(3, rows=8)
    objective = compose(CLIP, reduction=reduction)
    ranks = [step.rows(slice(0, 5)), step.rows(slice(5, 8))]
    torch.testing.assert_close(sum(map(objective, ranks)), objective(step), rtol=0, atol=1e-14)


def test_with_its_own_count_each_micro_batch_would_weigh_its_tokens_differently():
    batch = slow.random_batch(3)
    halves = [slice(0, 2), slice(2, 6)]
    own = [TokenBatch(*(t[h] for t in (batch.logp_BT, batch.old_logp_BT, batch.adv_BT, batch.mask_BT))) for h in halves]
    mean_of_means = sum(map(compose(CLIP), own)) / 2
    assert not torch.isclose(mean_of_means, compose(CLIP)(batch), rtol=0.01)


@pytest.mark.parametrize("reduction", ALL, ids=IDS)
def test_wider_padding_and_empty_rows_change_nothing(reduction):
    batch = slow.random_batch(3)
    objective = compose(CLIP, reduction=reduction)

    def wider(tensor, fill):
        more = torch.nn.functional.pad(tensor.to(torch.float64), (0, 5, 0, 2), value=fill)
        return more.bool() if tensor.dtype == torch.bool else more

    padded = TokenBatch(
        *(wider(t, math.nan) for t in (batch.logp_BT, batch.old_logp_BT, batch.adv_BT)), wider(batch.mask_BT, 0.0)
    )
    torch.testing.assert_close(objective(padded), objective(batch), rtol=0, atol=1e-15)


def test_dr_grpo_blames_a_twice_as_long_answer_twice_and_a_mean_does_not():
    def total_weight(reduce, n_tokens):
        loss = torch.zeros(2, 8)
        mask = torch.zeros(2, 8, dtype=torch.bool)
        loss[0, :n_tokens], mask[0, :n_tokens] = 1.0, True  # the wrong answer
        loss[1, :2], mask[1, :2] = 0.0, True
        return reduce(loss, mask).item()

    def dr_grpo(loss, mask):
        return constant_length(loss, step_sequences=2, length=8)

    assert total_weight(dr_grpo, 8) == pytest.approx(2 * total_weight(dr_grpo, 4))

    def grpo(loss, mask):
        return sequence_mean(loss, mask, step_sequences=2)

    assert total_weight(grpo, 8) == pytest.approx(total_weight(grpo, 4))


def test_rewards_twice_as_large_move_twice_as_far():
    batch = slow.random_batch(3)
    objective = compose(CLIP, reduction=partial(constant_length, length=9))
    twice = TokenBatch(batch.logp_BT, batch.old_logp_BT, 2 * batch.adv_BT, batch.mask_BT)
    torch.testing.assert_close(objective(twice), 2 * objective(batch))


@pytest.mark.parametrize("reduction", ALL, ids=IDS)
def test_a_step_without_tokens_is_0_with_a_gradient_of_0(reduction):
    leaf = torch.full((2, 3), math.nan).requires_grad_()
    batch = TokenBatch(leaf, torch.zeros(2, 3), torch.full((2, 3), math.inf), torch.zeros(2, 3, dtype=torch.bool))
    loss = compose(CLIP, reduction=reduction)(batch)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(leaf.grad, torch.zeros(2, 3))


def test_a_length_of_nothing_is_refused():
    with pytest.raises(UsageError, match="length must be the run's fixed generation limit"):
        constant_length(torch.zeros(1, 1), step_sequences=1, length=0)
