"""Clip-Cov and KL-Cov: which tokens they choose, what they do to them, and that they do nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import slow_objectives as slow
import torch

from equipoise.errors import UsageError
from equipoise.objectives.clipped import clipped_surrogate, unclipped_surrogate
from equipoise.objectives.covariance import (
    both_tails,
    clip_cov,
    draw_in_band,
    kl_cov,
    kl_cov_reference,
    kl_cov_step,
    kl_cov_two_sided,
    token_covariance,
    top_covariance,
)

BAND = {"low": 0.1, "high": 1.5, "clip_low": 0.4, "clip_high": 0.4}


def policy(batch):
    return batch.logp_BT, batch.old_logp_BT, batch.adv_BT, batch.mask_BT


def choice(batch):
    return batch.logp_BT, batch.adv_BT, batch.mask_BT


def tokens(chosen_BT) -> set[tuple[int, int]]:
    return {(b, t) for b, t in chosen_BT.nonzero().tolist()}


def run(function, batch, **settings):
    more = {"ref_logp_BT": batch.ref_logp_BT} if function is kl_cov_reference else {}
    return slow.with_gradient(
        lambda x: function(x, batch.old_logp_BT, batch.adv_BT, batch.mask_BT, **more, **settings), batch.logp_BT
    )


# ---------------------------------------------------------------- covariance


@pytest.mark.parametrize("seed", range(3))
def test_covariance_equals_a_loop_and_its_mean_is_numpy_s(seed):
    batch = slow.random_batch(seed)
    cov_BT = token_covariance(*choice(batch))
    expected = slow.slow_covariances(batch)
    for token, value in expected.items():
        assert cov_BT[token].item() == pytest.approx(value, abs=1e-12)
    assert not cov_BT[~batch.mask_BT].any()
    matrix = np.cov(batch.logp_BT[batch.mask_BT].numpy(), batch.adv_BT[batch.mask_BT].numpy(), bias=True)
    assert cov_BT.sum().item() / batch.step_tokens == pytest.approx(matrix[0, 1])


def test_covariance_by_hand():
    # ln pi: -1, -3 (mean -2); A: 2, 0 (mean 1): (1)(1) and (-1)(-1). The padding's -100 is not read.
    logp, adv = torch.tensor([[-1.0, -3.0, -100.0]]), torch.tensor([[2.0, 0.0, 50.0]])
    cov_BT = token_covariance(logp, adv, torch.tensor([[True, True, False]]))
    assert torch.equal(cov_BT, torch.tensor([[1.0, 1.0, 0.0]]))


def test_equal_advantages_have_no_covariance_and_no_gradient_flows_through_it():
    batch = slow.random_batch()
    cov_BT = token_covariance(batch.logp_BT, torch.full_like(batch.adv_BT, 0.75), batch.mask_BT)
    torch.testing.assert_close(cov_BT, torch.zeros_like(cov_BT), rtol=0, atol=1e-15)
    leaf = batch.logp_BT.clone().requires_grad_()
    assert not token_covariance(leaf, batch.adv_BT, batch.mask_BT).requires_grad


# ---------------------------------------------------------------- Clip-Cov


def candidates(batch) -> set[tuple[int, int]]:
    found = set()
    for token, cov in slow.slow_covariances(batch).items():
        _, r, a = slow.at(batch, *token)
        clipped = (a > 0 and r > 1 + BAND["clip_high"]) or (a < 0 and r < 1 - BAND["clip_low"])
        if BAND["low"] < cov < BAND["high"] and not clipped:
            found.add(token)
    return found


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 1.0])
def test_clip_cov_silences_so_many_candidates_and_is_the_clip_elsewhere(share):
    batch = slow.random_batch(7, rows=12)
    drawn = tokens(draw_in_band(*policy(batch), share=share, **BAND, seed=1))
    allowed = candidates(batch)
    assert drawn <= allowed
    assert len(drawn) == min(math.floor(share * batch.step_tokens), len(allowed)) > 0
    value, slope = run(clip_cov, batch, share=share, **BAND, seed=1)
    base_value, base_slope = slow.slow_clip(batch, 0.4, 0.4)
    for token in slow.real_tokens(batch):
        expected = (0.0, 0.0) if token in drawn else (base_value[token].item(), base_slope[token].item())
        assert (value[token].item(), slope[token].item()) == pytest.approx(expected, abs=1e-10)


def test_clip_cov_s_draw_is_the_seed_s_and_uniform_over_the_candidates():
    batch = slow.random_batch(7, rows=12)
    share, allowed = 5 / batch.step_tokens + 1e-9, candidates(batch)
    seen = dict.fromkeys(allowed, 0)
    for seed in range(2000):
        for token in tokens(draw_in_band(*policy(batch), share=share, **BAND, seed=seed)):
            seen[token] += 1
    rate = 5 / len(allowed)
    spread = math.sqrt(2000 * rate * (1 - rate))
    assert all(abs(count - 2000 * rate) < 4.5 * spread for count in seen.values())
    again = [draw_in_band(*policy(batch), share=share, **BAND, seed=3) for _ in range(2)]
    assert torch.equal(*again)
    generator = torch.Generator().manual_seed(3)
    going_on = [draw_in_band(*policy(batch), share=share, **BAND, seed=generator) for _ in range(2)]
    assert torch.equal(going_on[0], again[0])
    assert not torch.equal(*going_on)


def test_clip_cov_is_the_clip_where_the_band_is_empty_or_the_share_is_0():
    batch = slow.random_batch(7)
    clip = run(clipped_surrogate, batch, clip_low=0.4, clip_high=0.4)
    empty = run(clip_cov, batch, share=0.5, **(BAND | {"low": 50.0, "high": 60.0}), at_least=1)
    nothing = run(clip_cov, batch, share=0.0, **BAND)
    for found in (empty, nothing):
        assert all(torch.equal(a, b) for a, b in zip(found, clip, strict=True))


@pytest.mark.parametrize("share", [0.0, 2e-4])
def test_the_released_code_draws_at_least_one_token(share):
    batch = slow.random_batch(7)
    assert math.floor(share * batch.step_tokens) == 0
    assert len(tokens(draw_in_band(*policy(batch), share=share, **BAND))) == 0
    assert len(tokens(draw_in_band(*policy(batch), share=share, **BAND, at_least=1))) == 1
    assert len(tokens(top_covariance(*choice(batch), share=share))) == 0
    assert len(tokens(top_covariance(*choice(batch), share=share, at_least=1))) == 1


# ---------------------------------------------------------------- KL-Cov


def by_covariance(batch) -> list[tuple[int, int]]:
    cov = slow.slow_covariances(batch)
    return sorted(cov, key=cov.__getitem__, reverse=True)


@pytest.mark.parametrize("share", [0.04, 0.25, 1.0])
def test_kl_cov_penalises_the_highest_covariances_and_nothing_else(share):
    batch = slow.random_batch(8)
    count = math.floor(share * batch.step_tokens)
    chosen = set(by_covariance(batch)[:count])
    assert tokens(top_covariance(*choice(batch), share=share)) == chosen
    found = run(kl_cov, batch, share=share, coef=0.7)
    for a, b in zip(found, slow.slow_kl_cov(batch, chosen, 0.7), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    # Off-policy the gradient differs from that of -r A by ±coef, on the chosen tokens alone.
    off = found[1] - run(unclipped_surrogate, batch)[1]
    assert tokens(off.abs() > 1e-9) == chosen
    torch.testing.assert_close(off[off.abs() > 1e-9].abs(), torch.full((count,), 0.7, dtype=torch.float64))


def test_two_sided_kl_cov_takes_the_lowest_too():
    batch = slow.random_batch(8)
    order = by_covariance(batch)
    count = math.floor(0.1 * len(order))
    chosen = {*order[:count], *order[-count:]}
    assert tokens(both_tails(*choice(batch), share=0.1)) == chosen
    for a, b in zip(
        run(kl_cov_two_sided, batch, share=0.1, coef=2.0), slow.slow_kl_cov(batch, chosen, 2.0), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert tokens(both_tails(*choice(batch), share=0.8)) == set(order)  # overlapping tails are taken once


def test_kl_cov_to_the_reference_adds_a_kl_on_the_chosen_tokens():
    batch = slow.random_batch(9)
    chosen = set(by_covariance(batch)[: math.floor(0.1 * batch.step_tokens)])
    base, kl = slow.slow_unclipped(batch), slow.slow_kl(batch, "k2", 0.5)
    found = run(kl_cov_reference, batch, share=0.1, coef=0.5)
    for token in slow.real_tokens(batch):
        for part in (0, 1):
            expected = base[part][token] + (kl[part][token] if token in chosen else 0)
            assert found[part][token].item() == pytest.approx(expected.item(), abs=1e-10)


def test_kl_cov_to_the_reference_takes_an_exact_kl():
    batch = slow.random_batch(9)
    kl_BT = batch.ref_kl_BT.clone().requires_grad_()
    kl_cov_reference(*policy(batch), None, kl_BT, share=0.1, coef=0.5, kind="exact").sum().backward()
    assert torch.equal(kl_BT.grad != 0, top_covariance(*choice(batch), share=0.1))
    assert set(kl_BT.grad.unique().tolist()) == {0.0, 0.5}


@pytest.mark.parametrize("function", [kl_cov, kl_cov_two_sided, kl_cov_reference])
@pytest.mark.parametrize("setting", ["share", "coef"])
def test_a_share_or_coefficient_of_0_is_bit_identical_to_the_unclipped_surrogate(function, setting):
    batch = slow.random_batch(8)
    found = run(function, batch, **({"share": 0.2, "coef": 1.0} | {setting: 0.0}))
    assert all(torch.equal(a, b) for a, b in zip(found, run(unclipped_surrogate, batch), strict=True))


def test_on_policy_the_log_ratio_penalty_is_inert_and_the_reference_s_is_not():
    batch = slow.random_batch(8)
    batch = replace(batch, old_logp_BT=batch.logp_BT)
    base = run(unclipped_surrogate, batch)
    for function in (kl_cov, kl_cov_two_sided):
        found = run(function, batch, share=0.3, coef=1.0)
        assert all(torch.equal(a, b) for a, b in zip(found, base, strict=True))
    chosen = top_covariance(*choice(batch), share=0.3)
    moved = run(kl_cov_reference, batch, share=0.3, coef=1.0)[1] != base[1]
    assert torch.equal(moved, chosen)


def test_gradients_with_the_choice_held_fixed():
    batch = slow.random_batch(8)
    chosen_BT = top_covariance(*choice(batch), share=0.3)
    rest = batch.old_logp_BT, batch.adv_BT, batch.mask_BT
    for function, more, settings in (
        (clip_cov, (), {"share": 0.3, **BAND}),
        (kl_cov, (), {"share": 0.3, "coef": 0.5}),
        (kl_cov_reference, (batch.ref_logp_BT, None), {"share": 0.3, "coef": 0.5}),
    ):
        leaf = batch.logp_BT.clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, f=function, m=more, s=settings: f(x, *rest, *m, chosen_BT=chosen_BT, **s), leaf
        )


def test_a_choice_of_the_micro_batch_is_not_that_of_the_step():
    batch = slow.random_batch(8, rows=12)
    halves = [batch.rows(slice(0, 6)), batch.rows(slice(6, 12))]
    whole = top_covariance(*choice(batch), share=0.1)
    parts = torch.cat([top_covariance(*choice(half), share=0.1) for half in halves])
    assert not torch.equal(whole, parts)
    settings = {"share": 0.1, "coef": 1.0}
    given = torch.cat(
        [kl_cov_step(*policy(half), whole[i * 6 : i * 6 + 6], **settings) for i, half in enumerate(halves)]
    )
    assert torch.equal(given, kl_cov_step(*policy(batch), **settings))


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(UsageError, match="share must be a share of the tokens, 0 to 1"):
        top_covariance(*choice(slow.random_batch()), share=share)


def test_a_choice_of_another_shape_is_refused():
    batch = slow.random_batch()
    for function, settings in ((kl_cov, {"coef": 1.0}), (clip_cov, BAND)):
        with pytest.raises(UsageError, match="share one shape"):
            function(*policy(batch), torch.ones(1, 1, dtype=torch.bool), share=0.1, **settings)
