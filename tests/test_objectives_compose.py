"""Composition: what is filled, what multiplies what, how settings move; and `influence`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import slow_objectives as slow
import torch

from equipoise.errors import UsageError
from equipoise.objectives.clipped import clipped_surrogate, unclipped_surrogate
from equipoise.objectives.compose import compose
from equipoise.objectives.covariance import kl_cov, kl_cov_step
from equipoise.objectives.gppo import gppo_surrogate
from equipoise.objectives.influence import influence, moved
from equipoise.objectives.reduce import sequence_mean, token_mean
from equipoise.objectives.regularisers import entropy_bonus, kl_to_reference
from equipoise.objectives.stepwide import StepWide
from equipoise.objectives.weights import forking, forking_step, given_weights, planning_credit

CLIP = partial(clipped_surrogate, clip_low=0.2, clip_high=0.28)
BONUS = partial(entropy_bonus, coef=0.01)
KL = partial(kl_to_reference, coef=0.05, kind="k2")
FORKING = partial(forking, share=0.3)
CREDIT = partial(planning_credit, alpha=0.2)


def everything():
    return compose(CLIP, weights=[FORKING, CREDIT], regularisers=[BONUS, KL])


def test_surrogate_times_weights_plus_regularisers_by_a_loop():
    batch = slow.random_batch(1)
    surrogate, kl = slow.slow_clip(batch, 0.2, 0.28)[0], slow.slow_kl(batch, "k2", 0.05)[0]
    entropies = sorted(batch.entropy_BT[batch.mask_BT].tolist())
    place = 0.7 * (len(entropies) - 1)
    low = math.floor(place)
    threshold = entropies[low] + (place - low) * (entropies[low + 1] - entropies[low])
    total = 0.0
    for b, t in slow.real_tokens(batch):
        weight = float(batch.entropy_BT[b, t].item() >= threshold)
        if batch.planning_BT[b, t]:
            weight *= 1.2 if batch.adv_BT[b, t] > 0 else 0.8
        total += weight * surrogate[b, t].item() - 0.01 * batch.entropy_BT[b, t].item() + kl[b, t].item()
    assert everything()(batch).item() == pytest.approx(total / batch.step_tokens, abs=1e-12)


def test_terms_by_name():
    batch = slow.random_batch(1)
    terms = everything().terms(batch)
    assert list(terms.regularisers) == ["entropy_bonus", "kl_to_reference"]
    torch.testing.assert_close(token_mean(terms.loss, step_tokens=batch.step_tokens), everything()(batch))
    assert compose(CLIP).terms(batch).weight_BT is None


def test_weights_leave_the_regularisers_alone():
    batch = slow.random_batch(1)
    one = influence(compose(CLIP, weights=[FORKING], regularisers=[BONUS]), batch)
    torch.testing.assert_close(one.entropy_BT, batch.mask_BT.double() * (-0.01 / batch.step_tokens))


@pytest.mark.parametrize("reduction", [token_mean, sequence_mean])
def test_coefficients_of_0_are_bit_identical_to_the_base(reduction):
    batch = slow.random_batch(1)
    zero = compose(
        CLIP,
        weights=[partial(forking, share=1.0), partial(planning_credit, alpha=0.0)],
        regularisers=[partial(entropy_bonus, coef=0.0), partial(kl_to_reference, coef=0.0)],
        reduction=reduction,
    )
    base = compose(CLIP, reduction=reduction)
    assert torch.equal(zero(batch), base(batch))
    assert torch.equal(influence(zero, batch).logp_BT, influence(base, batch).logp_BT)
    assert not influence(zero, batch).entropy_BT.any()


def test_a_regulariser_may_have_its_own_reduction():
    batch = slow.random_batch(1)
    objective = compose(CLIP, regularisers=[BONUS], reduction=sequence_mean, reductions={"entropy_bonus": token_mean})
    bonus = -0.01 * batch.entropy_BT[batch.mask_BT].mean()
    torch.testing.assert_close(objective(batch), compose(CLIP, reduction=sequence_mean)(batch) + bonus)


# ---------------------------------------------------------------- settings


def test_settings_move_with_each_call_and_nothing_remembers_them():
    batch, objective = slow.random_batch(1), everything()
    before = objective(batch)
    wide = objective(batch, settings={"clip_high": 0.1, "entropy_bonus.coef": 0.5})
    other = compose(
        partial(clipped_surrogate, clip_low=0.2, clip_high=0.1),
        weights=[FORKING, CREDIT],
        regularisers=[partial(entropy_bonus, coef=0.5), KL],
    )
    assert torch.equal(wide, other(batch))
    assert torch.equal(objective(batch), before)


def test_settings_as_bound_for_the_record():
    assert everything().settings == {
        "clipped_surrogate.clip_low": 0.2,
        "clipped_surrogate.clip_high": 0.28,
        "forking.share": 0.3,
        "planning_credit.alpha": 0.2,
        "entropy_bonus.coef": 0.01,
        "kl_to_reference.coef": 0.05,
        "kl_to_reference.kind": "k2",
    }


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda b: everything()(b, settings={"clip_hgih": 1}), "unknown setting 'clip_hgih'"),
        (lambda b: everything()(b, settings={"forkin.share": 1}), "did you mean 'forking.share'"),
        (
            lambda b: everything()(b, settings={"coef": 1}),
            "entropy_bonus and kl_to_reference both take 'coef': say entropy_bonus.coef or kl_to_reference.coef",
        ),
        (lambda b: compose(clipped_surrogate)(b), "clipped_surrogate needs the setting 'clip_low'"),
        (lambda b: compose(CLIP, weights=[FORKING, FORKING]), "two parts are named 'forking'"),
        (lambda b: compose(lambda logp_BT, colour: logp_BT), "takes 'colour', which no TokenBatch has"),
        (lambda b: compose(CLIP, reductions={"entropy_bonus": token_mean}), "unknown regulariser 'entropy_bonus'"),
        (lambda b: compose(CLIP, regularisers=[BONUS])(replace(b, entropy_BT=None)), "entropy_bonus needs entropy_BT"),
        (lambda b: compose(CLIP, weights=[CREDIT])(replace(b, planning_BT=None)), "needs planning_BT.*planning spans"),
        (lambda b: compose(CLIP, weights=[partial(forking_step, share=0.2)])(b), "prepare"),
        (lambda b: compose(lambda logp_BT: logp_BT.sum())(b), "share one shape"),
        (lambda b: compose(CLIP, weights=[given_weights]).prepare(b), "given_weights takes tensors made elsewhere"),
        (lambda b: compose(CLIP, weights=[given_weights])(b), "given_weights acts on the whole step"),
        (lambda b: compose(CLIP).prepare(b, given={"forking": b.mask_BT}), "unknown part .* 'forking'"),
        (
            lambda b: compose(CLIP, weights=[given_weights]).prepare(b, given={"given_weights": torch.ones(1, 1)}),
            "share one shape",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(ask, message):
    with pytest.raises(UsageError, match=message) as caught:
        ask(slow.random_batch(1))
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- over the step


@pytest.mark.parametrize("split", [[[0], [1, 2], [3, 4, 5]], [[5, 0, 3], [4, 2, 1]]])
def test_choices_over_the_step_are_the_same_however_it_is_split(split):
    step = slow.random_batch(2)
    objective = compose(
        partial(kl_cov_step, share=0.1, coef=1.0), weights=[partial(forking_step, share=0.4)], regularisers=[BONUS]
    )
    chosen = objective.prepare(step)
    whole = influence(objective, step, chosen=chosen)
    leaf = step.logp_BT.clone().requires_grad_()
    for rows in split:
        objective(replace(step, logp_BT=leaf).rows(rows), chosen=chosen.rows(rows)).backward()
    torch.testing.assert_close(leaf.grad, whole.logp_BT, rtol=0, atol=1e-15)


def test_settings_reach_the_choice_too():
    step = slow.random_batch(2)
    objective = compose(partial(kl_cov_step, share=0.1, coef=1.0))
    counts = {share: objective.prepare(step, settings={"share": share}) for share in (0.0, 0.5)}
    assert [int(c.by_part["kl_cov_step"].sum()) for c in counts.values()] == [0, step.step_tokens // 2]


def test_weights_made_elsewhere_are_sliced_with_the_step():
    step = slow.random_batch(2)
    weights_BT = torch.where(step.mask_BT, torch.rand(6, 9, dtype=torch.float64), math.nan)
    objective = compose(CLIP, weights=[given_weights])
    chosen = objective.prepare(step, given={"given_weights": weights_BT})
    parts = [objective.terms(step.rows([i]), chosen=chosen.rows([i])).weighted for i in range(6)]
    expected = torch.where(step.mask_BT, slow.slow_clip(step, 0.2, 0.28)[0] * weights_BT, 0.0)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-12)


def test_a_choice_made_elsewhere_replaces_the_part_s_own():
    step = slow.random_batch(2)
    objective = compose(CLIP, weights=[partial(forking_step, share=0.2)])
    chosen = objective.prepare(step, given={"forking_step": step.mask_BT})
    assert torch.equal(objective(step, chosen=chosen), compose(CLIP)(step))


def test_a_choice_keeps_no_graph_of_the_step():
    def likeliest(logp_BT):
        return logp_BT - logp_BT.amax()

    def act(logp_BT, mask_BT, chosen_BT=None):
        return chosen_BT

    step = slow.random_batch(2)
    objective = compose(CLIP, weights=[StepWide(likeliest, act)])
    chosen = objective.prepare(replace(step, logp_BT=step.logp_BT.clone().requires_grad_()))
    assert not chosen.by_part["act_step"].requires_grad


def test_nothing_to_prepare_is_nothing():
    step = slow.random_batch(2)
    assert not compose(CLIP).prepare(step).rows([0]).by_part


def test_outside_code_composes_by_its_parameter_names():
    def on_answers(answer_BT, mask_BT, *, scale=2.0):
        return (answer_BT & mask_BT) * scale

    batch = slow.random_batch(2)
    terms = compose(CLIP, weights=[on_answers]).terms(batch, settings={"on_answers.scale": 3.0})
    assert torch.equal(terms.weight_BT, 3.0 * (batch.answer_BT & batch.mask_BT))


# ---------------------------------------------------------------- influence


def test_influence_is_the_derivative_per_token():
    batch = slow.random_batch(3)
    found = influence(compose(CLIP, regularisers=[BONUS, partial(kl_to_reference, coef=0.5, kind="exact")]), batch)
    n = batch.step_tokens
    torch.testing.assert_close(found.logp_BT, slow.slow_clip(batch, 0.2, 0.28)[1] / n, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.entropy_BT, batch.mask_BT.double() * (-0.01 / n), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.ref_kl_BT, batch.mask_BT.double() * (0.5 / n), rtol=0, atol=1e-12)


def test_influence_touches_no_model():
    weight = torch.ones(6, 9, dtype=torch.float64, requires_grad=True)
    batch = slow.random_batch(3)
    with torch.no_grad():
        found = influence(compose(CLIP), replace(batch, logp_BT=batch.logp_BT * weight))
    assert weight.grad is None
    assert found.logp_BT.any()


def test_equal_values_that_move_different_tokens():
    batch = slow.random_batch(3)
    ppo, gppo = compose(CLIP), compose(partial(gppo_surrogate, clip_low=0.2, clip_high=0.28))
    assert torch.equal(ppo(batch), gppo(batch))
    moved_BT = moved(influence(ppo, batch), influence(gppo, batch))
    value, slope = slow.slow_clip(batch, 0.2, 0.28)
    assert torch.equal(moved_BT, (value != 0) & (slope == 0))  # exactly what the clip silences


def test_what_an_entropy_bonus_moves_is_seen():
    batch = slow.random_batch(3)
    a, b = influence(compose(CLIP), batch), influence(compose(CLIP, regularisers=[BONUS]), batch)
    assert torch.equal(moved(a, b), batch.mask_BT)
    assert not moved(a, b, tolerance=1.0).any()


def test_a_control_that_cannot_act_moves_nothing():
    batch = slow.random_batch(3)
    on_policy = replace(batch, old_logp_BT=batch.logp_BT)
    base, control = compose(unclipped_surrogate), compose(partial(kl_cov, share=0.3, coef=1.0))
    assert not moved(influence(base, on_policy), influence(control, on_policy)).any()
    assert moved(influence(base, batch), influence(control, batch)).any()


def test_a_loss_that_reads_no_model_moves_nothing():
    batch = replace(slow.random_batch(3), entropy_BT=None, ref_kl_BT=None)
    found = influence(lambda b: b.adv_BT.sum(), batch)
    assert not found.logp_BT.any()
    assert found.entropy_BT is None
    assert found.ref_kl_BT is None
