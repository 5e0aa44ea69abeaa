"""Token weights: the quantile, ties, padding, and what a weight is not."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import slow_objectives as slow
import torch

from equipoise.errors import UsageError
from equipoise.objectives.clipped import clipped_surrogate
from equipoise.objectives.compose import compose
from equipoise.objectives.reduce import token_mean
from equipoise.objectives.weights import forking, forking_step, planning_credit, top_entropy

# ---------------------------------------------------------------- forking tokens


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.05, 0.2, 0.35, 0.5, 0.9, 1.0])
def test_the_tokens_at_or_above_numpy_s_quantile(seed, share):
    batch = slow.random_batch(seed)
    entropies = batch.entropy_BT[batch.mask_BT].numpy()
    threshold = np.quantile(entropies, 1 - share)
    weight_BT = forking(batch.entropy_BT, batch.mask_BT, share=share)
    for b, t in slow.real_tokens(batch):
        assert weight_BT[b, t].item() == float(batch.entropy_BT[b, t].item() >= threshold - 1e-12)
    assert not weight_BT[~batch.mask_BT].any()
    kept = weight_BT.sum().item() / len(entropies)
    assert share - 1 / len(entropies) <= kept <= share + 1 / len(entropies)


def test_the_quantile_is_torch_s():
    values = torch.rand(1, 997, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    everything = torch.ones_like(values, dtype=torch.bool)
    for share in (0.01, 0.2, 0.3333, 0.7):
        expected = values >= torch.quantile(values, 1 - share)
        assert torch.equal(top_entropy(values, everything, share=share), expected)


def test_an_exact_rank_is_not_missed_by_rounding():
    # Of 11 values the 0.3 quantile is the fourth itself, though (1 - 0.7) * 10 is a little more than 3 in floating point.
    values = torch.arange(11.0, dtype=torch.float64)[None]
    assert (1 - 0.7) * 10 > 3
    assert top_entropy(values, values >= 0, share=0.7).sum() == 8


def test_ties_keep_more_and_equal_entropies_keep_all():
    entropy = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.5]])
    everything = torch.ones(1, 5, dtype=torch.bool)
    assert top_entropy(entropy, everything, share=0.2).tolist() == [[False, True, True, True, False]]
    assert top_entropy(torch.ones(1, 5), everything, share=0.2).all()


def test_more_tokens_than_torch_quantile_takes():
    n = 2**24 + 1
    entropy = torch.arange(n, dtype=torch.float64)[None]
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(entropy, 0.75)
    kept = top_entropy(entropy, torch.ones(1, n, dtype=torch.bool), share=0.25)
    assert kept.sum().item() == 2**22 + 1  # the values 3 · 2^22 to 2^24


def test_the_weight_has_no_gradient_and_the_dtype_of_the_loss():
    entropy = torch.rand(2, 3, requires_grad=True)
    weight = forking(entropy, torch.ones(2, 3, dtype=torch.bool), share=0.5)
    assert not weight.requires_grad
    assert weight.dtype == torch.float32


def test_nothing_to_choose_from():
    none = torch.zeros(2, 3, dtype=torch.bool)
    assert not forking(torch.full((2, 3), math.nan), none, share=0.2).any()


def test_a_share_of_1_is_bit_identical_and_the_denominator_stays():
    batch = slow.random_batch(4)
    surrogate = {"clip_low": 0.2, "clip_high": 0.28}
    plain, weighted = compose(clipped_surrogate), compose(clipped_surrogate, weights=[forking])
    assert torch.equal(weighted(batch, settings={**surrogate, "share": 1.0}), plain(batch, settings=surrogate))
    kept = top_entropy(batch.entropy_BT, batch.mask_BT, share=0.2)
    loss_BT, _ = slow.slow_clip(batch, 0.2, 0.28)
    expected = math.fsum(loss_BT[kept].tolist()) / batch.step_tokens
    assert weighted(batch, settings={**surrogate, "share": 0.2}).item() == pytest.approx(expected, abs=1e-12)


def test_over_the_step_ranks_agree_with_one_process():
    step = slow.random_batch(4, rows=8)
    objective = compose(clipped_surrogate, weights=[forking_step])
    settings = {"clip_low": 0.2, "clip_high": 0.28, "share": 0.2}
    chosen = objective.prepare(step, settings=settings)
    ranks = [slice(0, 3), slice(3, 4), slice(4, 8)]
    parts = [objective.terms(step.rows(r), settings=settings, chosen=chosen.rows(r)).weight_BT for r in ranks]
    assert torch.equal(torch.cat(parts), forking(step.entropy_BT, step.mask_BT, share=0.2))
    alone = torch.cat([forking(step.entropy_BT[r], step.mask_BT[r], share=0.2) for r in ranks])
    assert not torch.equal(alone, torch.cat(parts))  # what each would have chosen for itself


@pytest.mark.parametrize("share", [0.0, -0.2, 1.2, math.nan])
def test_a_share_that_keeps_nothing_or_more_than_all_is_refused(share):
    batch = slow.random_batch()
    with pytest.raises(UsageError, match="above 0 and up to 1"):
        forking(batch.entropy_BT, batch.mask_BT, share=share)


# ---------------------------------------------------------------- planning credit


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.9])
def test_planning_credit_is_the_shaped_advantage(alpha):
    batch = slow.random_batch(5)
    weight_BT = planning_credit(batch.adv_BT, batch.mask_BT, batch.planning_BT, alpha=alpha)
    shaped_BT = batch.adv_BT.clone()
    for b, t in slow.real_tokens(batch):
        if batch.planning_BT[b, t]:
            shaped_BT[b, t] += alpha * abs(batch.adv_BT[b, t])
    assert (shaped_BT.sign() == batch.adv_BT.sign()).all()
    bounds = {"clip_low": 0.2, "clip_high": 0.28}
    rest = batch.old_logp_BT, batch.adv_BT, batch.mask_BT
    weighted = slow.with_gradient(lambda x: clipped_surrogate(x, *rest, **bounds) * weight_BT, batch.logp_BT)
    shaped = slow.with_gradient(
        lambda x: clipped_surrogate(x, batch.old_logp_BT, shaped_BT, batch.mask_BT, **bounds), batch.logp_BT
    )
    for a, b in zip(weighted, shaped, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_planning_credit_by_hand():
    adv = torch.tensor([[2.0, -2.0, 0.0, 2.0, math.nan]])
    planning = torch.tensor([[True, True, True, False, True]])
    mask = torch.tensor([[True, True, True, True, False]])
    weight = planning_credit(adv, mask, planning, alpha=0.2)
    torch.testing.assert_close(weight, torch.tensor([[1.2, 0.8, 1.0, 1.0, 0.0]]))


@pytest.mark.parametrize("alpha", [1.0, -0.1, math.nan])
def test_an_alpha_that_would_turn_blame_into_credit_is_refused(alpha):
    batch = slow.random_batch()
    with pytest.raises(UsageError, match=re.escape("alpha must be 0 or more and below 1")):
        planning_credit(batch.adv_BT, batch.mask_BT, batch.planning_BT, alpha=alpha)


def test_token_mean_of_weights_of_1_is_untouched():
    batch = slow.random_batch(5)
    loss_BT = torch.rand_like(batch.logp_BT)
    assert torch.equal(token_mean(loss_BT * 1.0, step_tokens=7), token_mean(loss_BT, step_tokens=7))
