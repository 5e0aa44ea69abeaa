"""Surrogates against loops over tokens, tables of gradient weights and values worked by hand."""

from __future__ import annotations

import math

import pytest
import slow_objectives as slow
import torch

from equipoise.errors import UsageError
from equipoise.objectives.cispo import cispo_surrogate
from equipoise.objectives.clipped import clipped_surrogate, dual_clip_surrogate, unclipped_surrogate
from equipoise.objectives.gppo import gppo_surrogate
from equipoise.objectives.gspo import gspo_surrogate
from equipoise.objectives.reduce import sequence_mean

CASES = [
    (unclipped_surrogate, {}, slow.slow_unclipped, ()),
    (clipped_surrogate, {"clip_low": 0.2, "clip_high": 0.2}, slow.slow_clip, (0.2, 0.2)),
    (clipped_surrogate, {"clip_low": 0.2, "clip_high": 0.28}, slow.slow_clip, (0.2, 0.28)),
    (clipped_surrogate, {"clip_low": 1.0, "clip_high": 1.0}, slow.slow_clip, (1.0, 1.0)),
    (dual_clip_surrogate, {"clip_low": 0.2, "clip_high": 0.2, "cap": 1.5}, slow.slow_dual_clip, (0.2, 0.2, 1.5)),
    (gspo_surrogate, {"clip_low": 3e-4, "clip_high": 4e-4}, slow.slow_gspo, (3e-4, 4e-4)),
    (gspo_surrogate, {"clip_low": 0.1, "clip_high": 0.1}, slow.slow_gspo, (0.1, 0.1)),
    (cispo_surrogate, {"weight_cap": 1.3}, slow.slow_cispo, (0.0, 1.3)),
    (cispo_surrogate, {"weight_floor": 0.8, "weight_cap": 1.2}, slow.slow_cispo, (0.8, 1.2)),
    (gppo_surrogate, {"clip_low": 0.2, "clip_high": 0.28}, slow.slow_gppo, (0.2, 0.28, 1.0, 1.0)),
    (
        gppo_surrogate,
        {"clip_low": 0.2, "clip_high": 0.2, "beta_low": 0.5, "beta_high": 0.75},
        slow.slow_gppo,
        (0.2, 0.2, 0.5, 0.75),
    ),
]
IDS = [f"{case[0].__name__}-{i}" for i, case in enumerate(CASES)]


def run(function, batch, **settings):
    return slow.with_gradient(
        lambda logp: function(logp, batch.old_logp_BT, batch.adv_BT, batch.mask_BT, **settings), batch.logp_BT
    )


@pytest.mark.parametrize(("function", "settings", "reference", "arguments"), CASES, ids=IDS)
@pytest.mark.parametrize("seed", range(4))
def test_value_and_gradient_equal_a_loop_over_tokens(function, settings, reference, arguments, seed):
    batch = slow.random_batch(seed)
    for found, expected in zip(run(function, batch, **settings), reference(batch, *arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("function", "settings", "reference", "arguments"), CASES, ids=IDS)
def test_float32_is_close(function, settings, reference, arguments):
    batch = slow.random_batch(1, dtype=torch.float32)
    for found, expected in zip(run(function, batch, **settings), reference(batch, *arguments), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (unclipped_surrogate, {}),
        (clipped_surrogate, {"clip_low": 0.2, "clip_high": 0.28}),
        (dual_clip_surrogate, {"clip_low": 0.2, "clip_high": 0.28, "cap": 1.5}),
    ],
)
def test_the_gradient_is_that_of_the_value_where_nothing_is_stopped(function, settings):
    batch = slow.random_batch(2)
    logp = batch.logp_BT.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: function(x, batch.old_logp_BT, batch.adv_BT, batch.mask_BT, **settings), logp
    )


@pytest.mark.parametrize(("function", "settings", "reference", "arguments"), CASES, ids=IDS)
def test_on_policy_every_surrogate_is_reinforce(function, settings, reference, arguments):
    batch = slow.random_batch(3)
    leaf = batch.logp_BT.clone().requires_grad_()
    loss_BT = function(leaf, batch.logp_BT, batch.adv_BT, batch.mask_BT, **settings)
    (slope,) = torch.autograd.grad(loss_BT.sum(), leaf)
    assert torch.equal(slope, torch.where(batch.mask_BT, -batch.adv_BT, 0.0))


@pytest.mark.parametrize(("function", "settings", "reference", "arguments"), CASES, ids=IDS)
def test_no_gradient_flows_into_advantages_or_the_old_policy(function, settings, reference, arguments):
    batch = slow.random_batch(3)
    leaves = [tensor.clone().requires_grad_() for tensor in (batch.logp_BT, batch.old_logp_BT, batch.adv_BT)]
    function(*leaves, batch.mask_BT, **settings).sum().backward()
    assert leaves[0].grad is not None
    assert leaves[1].grad is None
    assert leaves[2].grad is None


@pytest.mark.parametrize(("function", "settings", "reference", "arguments"), CASES, ids=IDS)
def test_a_broken_ratio_gives_no_nan(function, settings, reference, arguments):
    # Log-ratios of 900 and -900, and a token of which the policy has dropped all probability; no advantage on some.
    logp = torch.tensor([[-1.0, -901.0, -math.inf, -1.0]])
    old = torch.tensor([[-901.0, -1.0, -2.0, -901.0]])
    for sign in (1.0, -1.0):
        adv = torch.tensor([[1.0, 1.0, 1.0, 0.0]]) * sign
        leaf = logp.clone().requires_grad_()
        function(leaf, old, adv, torch.ones(1, 4, dtype=torch.bool), **settings).sum().backward()
        assert leaf.grad.isfinite().all()


# ---------------------------------------------------------------- by hand

ONE = torch.tensor([[True]])


def single(function, ratio: float, advantage: float, **settings) -> tuple[float, float]:
    """Loss and derivative of one token of log-prob ln 0.5."""
    logp = torch.tensor([[math.log(0.5)]], dtype=torch.float64)
    adv = torch.tensor([[advantage]], dtype=torch.float64)
    value, slope = slow.with_gradient(lambda x: function(x, logp - math.log(ratio), adv, ONE, **settings), logp)
    return value.item(), slope.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (2.0, 1.0, -1.2, 0.0),  # clipped from above
        (2.0, -1.0, 2.0, 2.0),  # the min keeps 2
        (0.5, -1.0, 0.8, 0.0),  # clipped from below
        (0.5, 1.0, -0.5, -0.5),
        (1.1, 3.0, -3.3, -3.3),
    ],
)
def test_the_clip_by_hand(ratio, advantage, loss, slope):
    assert single(clipped_surrogate, ratio, advantage, clip_low=0.2, clip_high=0.2) == pytest.approx((loss, slope))


def test_the_dual_clip_by_hand():
    bounds = {"clip_low": 0.2, "clip_high": 0.2, "cap": 3.0}
    assert single(dual_clip_surrogate, 4.0, -2.0, **bounds) == pytest.approx((6.0, 0.0))  # 3 · 2, and dead
    assert single(dual_clip_surrogate, 2.5, -2.0, **bounds) == pytest.approx((5.0, 5.0))
    assert single(dual_clip_surrogate, 4.0, 2.0, **bounds) == pytest.approx((-2.4, 0.0))
    assert single(dual_clip_surrogate, 0.5, -2.0, **bounds) == pytest.approx((1.6, 0.0))


def test_cispo_by_hand():
    # ratio 2 capped at 1.5: value -1.5 · 1 · ln 0.5, derivative -1.5.
    assert single(cispo_surrogate, 2.0, 1.0, weight_cap=1.5) == pytest.approx((1.5 * math.log(2), -1.5))
    assert single(cispo_surrogate, 0.5, -1.0, weight_cap=1.5)[1] == pytest.approx(0.5)
    assert single(cispo_surrogate, 0.5, -1.0, weight_cap=1.2, weight_floor=0.8)[1] == pytest.approx(0.8)


def test_gppo_and_cispo_have_the_same_weight_where_gppo_clips_and_differ_elsewhere():
    gppo = {"clip_low": 0.2, "clip_high": 0.2}
    cispo = {"weight_floor": 0.8, "weight_cap": 1.2}
    for ratio, advantage in ((2.0, 1.0), (0.5, -1.0)):
        assert single(gppo_surrogate, ratio, advantage, **gppo)[1] == pytest.approx(
            single(cispo_surrogate, ratio, advantage, **cispo)[1]
        )
    # A < 0 and r above: GPPO has r = 2, CISPO its cap 1.2. A > 0 and r below: GPPO r = 0.5, a two-sided CISPO its floor 0.8.
    assert single(gppo_surrogate, 2.0, -1.0, **gppo)[1] == pytest.approx(2.0)
    assert single(cispo_surrogate, 2.0, -1.0, **cispo)[1] == pytest.approx(1.2)
    assert single(gppo_surrogate, 0.5, 1.0, **gppo)[1] == pytest.approx(-0.5)
    assert single(cispo_surrogate, 0.5, 1.0, **cispo)[1] == pytest.approx(-0.8)


# ---------------------------------------------------------------- GPPO


def test_gppo_has_the_value_of_the_clip_whatever_its_betas():
    batch = slow.random_batch(5)
    clip, _ = run(clipped_surrogate, batch, clip_low=0.2, clip_high=0.28)
    for betas in ((1.0, 1.0), (0.0, 0.0), (0.5, 2.0)):
        value, _ = run(gppo_surrogate, batch, clip_low=0.2, clip_high=0.28, beta_low=betas[0], beta_high=betas[1])
        assert torch.equal(value, clip)


def test_gppo_with_both_betas_0_is_bit_identical_to_ppo():
    batch = slow.random_batch(5)
    clip = run(clipped_surrogate, batch, clip_low=0.2, clip_high=0.28)
    gppo = run(gppo_surrogate, batch, clip_low=0.2, clip_high=0.28, beta_low=0.0, beta_high=0.0)
    assert all(torch.equal(a, b) for a, b in zip(gppo, clip, strict=True))


def test_gppo_under_a_dual_clip_is_silent_above_its_cap():
    bounds = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
    assert single(gppo_surrogate, 4.0, -1.0, **bounds) == pytest.approx((3.0, 0.0))
    assert single(gppo_surrogate, 2.0, -1.0, **bounds) == pytest.approx((2.0, 2.0))
    assert single(gppo_surrogate, 4.0, 1.0, **bounds) == pytest.approx((-1.28, -1.28))
    assert single(gppo_surrogate, 0.5, -1.0, **bounds) == pytest.approx((0.8, 0.8))


# ---------------------------------------------------------------- GSPO


def test_gspo_divided_by_completions_is_the_sequence_form():
    batch = slow.random_batch(6)
    adv_BT = batch.adv_BT[:, :1].expand_as(batch.adv_BT).contiguous()
    low, high = 0.02, 0.03
    leaf = batch.logp_BT.clone().requires_grad_()
    token_BT = gspo_surrogate(leaf, batch.old_logp_BT, adv_BT, batch.mask_BT, clip_low=low, clip_high=high)
    loss = sequence_mean(token_BT, batch.mask_BT, step_sequences=batch.step_sequences)
    (slope,) = torch.autograd.grad(loss, leaf)
    # The same with one differentiable ratio per completion.
    other = batch.logp_BT.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for b in batch.mask_BT.any(dim=1).nonzero().flatten().tolist():
        real = batch.mask_BT[b]
        s = (other[b][real] - batch.old_logp_BT[b][real]).mean().exp()
        total = total - torch.minimum(s * adv_BT[b, 0], s.clamp(1 - low, 1 + high) * adv_BT[b, 0])
    expected = total / batch.step_sequences
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, other)[0], rtol=0, atol=1e-12)


def test_gspo_moves_all_tokens_of_a_completion_alike():
    batch = slow.random_batch(6)
    adv_BT = torch.ones_like(batch.adv_BT)
    _, slope = slow.with_gradient(
        lambda x: gspo_surrogate(x, batch.old_logp_BT, adv_BT, batch.mask_BT, clip_low=9.0, clip_high=9.0),
        batch.logp_BT,
    )
    for b in range(len(slope)):
        own = slope[b][batch.mask_BT[b]]
        assert not len(own) or own.max() - own.min() < 1e-12


def test_drifts_that_cancel_are_clipped_by_ppo_and_not_by_gspo():
    old = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
    logp, adv = old + torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    both = torch.ones(1, 2, dtype=torch.bool)
    bounds = {"clip_low": 0.2, "clip_high": 0.2}
    _, ppo = slow.with_gradient(lambda x: clipped_surrogate(x, old, adv, both, **bounds), logp)
    _, gspo = slow.with_gradient(lambda x: gspo_surrogate(x, old, adv, both, **bounds), logp)
    assert torch.equal(ppo, torch.zeros(1, 2, dtype=torch.float64))
    torch.testing.assert_close(gspo, -adv)  # s = 1


# ---------------------------------------------------------------- bad settings


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (clipped_surrogate, {"clip_low": -0.2, "clip_high": 0.2}, "clip_low must be a distance from 1"),
        (gspo_surrogate, {"clip_low": 0.2, "clip_high": math.nan}, "clip_high must be a distance from 1"),
        (dual_clip_surrogate, {"clip_low": 0.2, "clip_high": 0.2, "cap": 1.0}, "must be above 1, found 1.0"),
        (cispo_surrogate, {"weight_cap": 0.5, "weight_floor": 0.8}, "needs 0 <= weight_floor <= weight_cap"),
        (cispo_surrogate, {"weight_cap": 0.0}, "needs 0 <= weight_floor <= weight_cap"),
        (gppo_surrogate, {"clip_low": 0.2, "clip_high": 0.2, "beta_low": -1.0}, "betas must be 0 or more"),
    ],
)
def test_settings_without_meaning_are_refused(function, settings, message):
    with pytest.raises(UsageError, match=message):
        run(function, slow.random_batch(), **settings)
