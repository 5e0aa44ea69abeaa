"""Where papers, released code and hosts disagree: one test each, on the host's own function where it is installed.

Each has a number, which its test carries. Two have no test, because there is no code to run:

 2. GPPO's released `compute_gppo_loss` stops with a NameError (`only_high`, tested as `only_higher`). It is a script of a research
    repository, not a package that could be installed.
11. "RL squeezes exploration in search agents" cites a paper on mathematical reasoning (https://arxiv.org/abs/2509.21128).

Where a test says "as released", the code is not a package either: its documented formula stands in the test.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from math import log, sqrt

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'equipoise[train]'")

from host_losses import assert_same, ours, random_step, trl_loss, trl_settings, verl_loss  # noqa: E402

from equipoise.catalogue.table import find_method  # noqa: E402
from equipoise.objectives.batch import TokenBatch  # noqa: E402
from equipoise.objectives.cispo import cispo_surrogate  # noqa: E402
from equipoise.objectives.clipped import clipped_surrogate, unclipped_surrogate  # noqa: E402
from equipoise.objectives.compose import compose  # noqa: E402
from equipoise.objectives.covariance import kl_cov, kl_cov_reference, kl_cov_step, top_covariance  # noqa: E402
from equipoise.objectives.gppo import gppo_surrogate  # noqa: E402
from equipoise.objectives.reduce import constant_length  # noqa: E402
from equipoise.objectives.regularisers import kl_to_reference  # noqa: E402
from equipoise.objectives.weights import planning_credit  # noqa: E402
from equipoise.shaping.brier import brier, brier_with_format  # noqa: E402
from equipoise.shaping.controllers import AdaptiveEntropy, tally_tokens  # noqa: E402
from equipoise.shaping.counter import OutcomeCounter  # noqa: E402
from equipoise.shaping.exploration import ucb_constant  # noqa: E402
from equipoise.shaping.passk_training import passk_training  # noqa: E402
from equipoise.shaping.pkpo import pkpo_right_rewards  # noqa: E402
from equipoise.shaping.vector_rewards import draw_weights, first_of_each, set_advantage, set_reward  # noqa: E402

pytestmark = pytest.mark.integration
needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="needs trl: pip install 'equipoise[trl]'")
needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="needs verl: pip install 'equipoise[verl]'")


@needs_verl
def test_01_kl_cov_is_not_a_kl_not_clipped_inert_on_policy_and_depends_on_the_micro_batch():
    from verl.workers.config import PolicyLossConfig

    step = random_step(0, rows=8)
    chosen = top_covariance(step.logp_BT, step.adv_BT, step.mask_BT, share=0.1)

    def host(batch, *, share=0.1, coef=1.0, **config):
        return verl_loss("kl_cov", batch, loss={"kl_cov_ratio": share, "ppo_kl_coef": coef}, **config)

    # The penalty is |ln r|: its gradient is +-coef/N, whatever the size of ln r, on the chosen tokens alone.
    by_penalty = host(step).logp_BT - host(step, coef=0.0).logp_BT
    sign = (step.logp_BT - step.old_logp_BT).sign()
    torch.testing.assert_close(by_penalty, torch.where(chosen, sign / step.step_tokens, 0.0), rtol=1e-12, atol=1e-15)
    # So it is nothing where r = 1, whatever the coefficient. A KL to the reference acts there.
    on_policy = replace(step, old_logp_BT=step.logp_BT)
    assert torch.equal(host(on_policy).logp_BT, host(on_policy, coef=0.0).logp_BT)
    bare = ours(compose(unclipped_surrogate), on_policy).logp_BT
    assert torch.equal(ours(compose(partial(kl_cov, share=0.1, coef=1.0)), on_policy).logp_BT, bare)
    by_reference = ours(compose(partial(kl_cov_reference, share=0.1, coef=1.0)), on_policy).logp_BT
    assert torch.equal(by_reference != bare, chosen)
    # No clip: the bounds are not read.
    assert torch.equal(host(step, clip_ratio_low=0.01, clip_ratio_high=0.01).logp_BT, host(step).logp_BT)
    # Defaults: coefficient 0.1 and the share of the 32B run in verl; 1 and that of the 7B run here, as published.
    defaults = PolicyLossConfig()
    assert (defaults.ppo_kl_coef, defaults.kl_cov_ratio) == (0.1, 2e-4)
    assert find_method("kl_cov").settings == {"coef": 1.0, "share": 2e-3}
    # The authors write 0.2 for 0.2 %. Handed to verl, a fraction, that is every fifth token.
    moved = host(step, share=0.2).logp_BT != host(step, share=0.2, coef=0.0).logp_BT
    assert int(moved.sum()) == int(0.2 * step.step_tokens)
    # At least one token, though no covariance is above 0: with equal advantages all of them are 0.
    flat = replace(step, adv_BT=torch.ones_like(step.adv_BT))
    assert int((host(flat, share=2e-4).logp_BT != host(flat, share=2e-4, coef=0.0).logp_BT).sum()) == 1
    assert not top_covariance(flat.logp_BT, flat.adv_BT, flat.mask_BT, share=2e-4).any()
    # The choice is per micro-batch; ours by the step is the same for any split.
    halves = (slice(0, 4), slice(4, 8))
    info = {"batch_num_tokens": step.step_tokens}
    assert not torch.equal(torch.cat([host(step.rows(h), info=info).logp_BT for h in halves]), host(step).logp_BT)
    by_step = compose(partial(kl_cov_step, share=0.1, coef=1.0))
    picked = by_step.prepare(step)
    whole = ours(by_step, step, chosen=picked).logp_BT
    assert torch.equal(torch.cat([ours(by_step, step.rows(h), chosen=picked.rows(h)).logp_BT for h in halves]), whole)
    torch.testing.assert_close(whole, host(step).logp_BT)


def test_03_ce_gppo_as_released_scales_the_logged_loss_and_its_default_is_not_the_paper_s():
    # One token clipped above, one below: A = 1 at r = 2 and A = -1 at r = 0.5, bounds 0.2.
    old = torch.zeros(1, 2, dtype=torch.float64)
    logp = torch.tensor([[log(2), log(0.5)]], dtype=torch.float64, requires_grad=True)
    adv = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.bool)

    def as_released(low: float, high: float) -> torch.Tensor:
        """-A r with r replaced by beta (1 +- 0.2) r / sg(r)."""
        ratio = logp.exp()
        return -adv * torch.tensor([[high * 1.2, low * 0.8]]) * ratio / ratio.detach()

    for low, high in ((0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (0.0, 0.0)):
        mine = gppo_surrogate(logp, old, adv, mask, clip_low=0.2, clip_high=0.2, beta_low=low, beta_high=high)
        theirs = as_released(low, high)
        gradients = [torch.autograd.grad(loss.sum(), logp)[0] for loss in (mine, theirs)]
        torch.testing.assert_close(*gradients)  # one method
        torch.testing.assert_close(theirs.detach(), torch.tensor([[-1.2 * high, 0.8 * low]], dtype=torch.float64))
        torch.testing.assert_close(mine.detach(), torch.tensor([[-1.2, 0.8]], dtype=torch.float64))  # the clip's value
    # The released default is 0.25; the paper reports 0.5 and 0.75.
    assert find_method("ce_gppo").settings["beta_low"] in (0.5, 0.75)


@needs_trl
def test_04_trl_s_adaptive_entropy_is_far_from_skywork_s(trl_trainer):
    # A reasoning model's entropy over 200 steps, 0.6 down to 0.1 nats: the last 40 are below 0.2.
    path = np.linspace(0.6, 0.1, 201)[1:]
    step = random_step(0, rows=1, tokens=2)

    def largest_applied(**settings) -> float:
        """Of TRL's controller, read off its gradient: -coef / tokens for each."""
        state, largest = {"entropy_coef": settings.pop("entropy_coef", 0.0), "_last_world_entropy": float("inf")}, 0.0
        for level in path:
            now = replace(step, entropy_BT=torch.full_like(step.entropy_BT, level))
            with trl_settings(trl_trainer, **state):
                host = trl_loss(trl_trainer, now, use_adaptive_entropy=True, loss_type="dapo", **settings)
                state = {name: getattr(trl_trainer, name) for name in state}
            largest = max(largest, float(-host.entropy_BT.sum()))
        return largest

    skywork = {"entropy_target": 0.2, "entropy_coef_delta": 1e-4, "entropy_coef_max": 5e-3}
    assert largest_applied(**skywork) == pytest.approx(4e-3, abs=1.1e-4)
    # Its defaults: 50 times the step, so about 40 steps of 0.005.
    assert largest_applied() == pytest.approx(0.2, abs=0.0051)
    # Its documented example "as in Skywork-OR1": target 5 nats, start 0.01. The gate is open from the second step to the last.
    assert largest_applied(entropy_target=5.0, entropy_coef=0.01) == pytest.approx(1.0)
    # Ours has the released numbers as defaults, and counts entropy at the target as not below.
    controller, largest = AdaptiveEntropy(), 0.0
    for level in path:
        controller.observe(tally_tokens(np.full(4, level)))
        largest = max(largest, controller.settings()["entropy_bonus.coef"])
    assert largest == pytest.approx(4e-3, abs=1.1e-4)
    at_target = AdaptiveEntropy(target=0.25)
    at_target.observe(tally_tokens(np.full(4, 0.25)))
    assert at_target.settings() == {"entropy_bonus.coef": 0.0}
    with trl_settings(trl_trainer, entropy_coef=0.0, _last_world_entropy=float("inf")):
        quarter = replace(step, entropy_BT=torch.full_like(step.entropy_BT, 0.25))
        trl_loss(trl_trainer, quarter, use_adaptive_entropy=True, entropy_target=0.25, loss_type="dapo")
        assert trl_trainer.entropy_coef == trl_trainer.args.entropy_coef_delta  # up, at the target


def test_05_aepo_as_released_replaces_rollouts_instead_of_adding_a_term():
    # The paper: gradient of GRPO + alpha * REINFORCE on rollouts sampled at another temperature. As released: the first
    # rollouts of the batch make room for those, whose advantage is set to 1, under one clipped loss.
    step = random_step(0, rows=6)
    extra = replace(random_step(1, rows=2), step_tokens=step.step_tokens, step_sequences=step.step_sequences)
    reinforce = compose(partial(cispo_surrogate, weight_cap=1.0, weight_floor=1.0))
    clip = compose(partial(clipped_surrogate, clip_low=0.2, clip_high=0.2))
    ones = replace(extra, adv_BT=torch.ones_like(extra.adv_BT))
    on_rollouts = ours(clip, step).logp_BT

    def replaced() -> torch.Tensor:
        names = ("logp_BT", "old_logp_BT", "adv_BT", "mask_BT", "entropy_BT")
        joined = {n: torch.cat([getattr(ones, n), getattr(step.rows(slice(2, 6)), n)]) for n in names}
        joined["old_logp_BT"][:2] = joined["logp_BT"][:2]  # on-policy, but for their temperature
        return ours(
            clip, TokenBatch(**joined, step_tokens=step.step_tokens, step_sequences=step.step_sequences)
        ).logp_BT

    for alpha in (0.1, 0.5):
        # Added: all six rollouts keep their gradient, the others weigh alpha.
        on_extra = alpha * ours(reinforce, ones).logp_BT
        torch.testing.assert_close(on_extra, -alpha / step.step_tokens * extra.mask_BT.double())
        # Replaced: two rollouts are gone, and the weight is 1 whatever alpha was meant.
        torch.testing.assert_close(replaced()[2:], on_rollouts[2:])
        torch.testing.assert_close(replaced()[:2], -1 / step.step_tokens * extra.mask_BT.double())
        assert on_rollouts[:2].abs().max() > 0
    # No rollout qualifies: the released selector returns None and the next line fails. An empty term is nothing.
    nothing = reinforce(ones.rows([]))
    assert nothing.item() == 0
    assert torch.equal(clip(step) + nothing, clip(step))


def test_06_hicra_s_signed_form_is_the_same_formula():
    # Ports amplify by A (1 + alpha sign A) and call it another method than A + alpha |A|.
    step = random_step(0, token_advantages=True)
    planning = torch.zeros_like(step.mask_BT)
    planning[:, ::2] = True
    with_planning = replace(step, planning_BT=planning)
    clip = partial(clipped_surrogate, clip_low=0.2, clip_high=0.28)
    weighted = ours(compose(clip, weights=[partial(planning_credit, alpha=0.2)]), with_planning)
    adv = step.adv_BT
    for shaped in (adv + 0.2 * adv.abs(), adv * (1 + 0.2 * adv.sign())):
        assert_same(weighted, ours(compose(clip), replace(step, adv_BT=torch.where(planning, shaped, adv))))
    # Worked by hand: credit 1 grows to 1.2, blame -1 shrinks to -0.8.
    args = (torch.tensor([[1.0, -1.0]]), torch.tensor([[True, True]]), torch.tensor([[True, True]]))
    torch.testing.assert_close(planning_credit(*args, alpha=0.2), torch.tensor([[1.2, 0.8]]))
    # The +5.4 that a summary gives for 73.1 against 68.5 is 4.6.
    assert round(73.1 - 68.5, 1) == 4.6


def test_07_rlcr_s_shipped_reward_is_affine_in_the_paper_s_and_pays_for_the_format():
    correct = np.repeat([[0.0], [1.0]], 11, axis=1)
    confidence = np.tile(np.linspace(0, 1, 11), (2, 1))
    keep = np.ones((2, 11), bool)
    paper = brier(correct, confidence, keep, weight=1.0, malformed="worst")
    shipped = brier_with_format(correct, confidence, keep)
    np.testing.assert_allclose(shipped, 1 + 0.5 * paper)
    np.testing.assert_allclose(paper[:, [0, 10]], [[0, -1], [0, 1]])  # by hand: y - (q - y)^2
    # The worst well-formed output, sure of a wrong answer, is paid 0.5; a malformed one nothing.
    assert shipped.min() == 0.5
    malformed = np.array([[np.nan, 1.5]])
    assert not brier_with_format(np.ones((1, 2)), malformed, np.ones((1, 2), bool)).any()


@needs_trl
@needs_verl
def test_08_names_that_two_methods_share(trl_trainer):
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    # verl's `dro` is a policy loss, -(A ln pi - beta/2 (ln r)^2); R3 of DRO is a reward from the reference answer.
    quadratic = compose(
        partial(cispo_surrogate, weight_cap=1.0, weight_floor=1.0),
        regularisers=[partial(kl_to_reference, coef=0.3, kind="k2")],
    )
    for seed in range(3):
        step = random_step(seed)
        to_old = replace(step, ref_logp_BT=step.old_logp_BT)
        assert_same(ours(quadratic, to_old), verl_loss("dro", step, loss={"dro_beta": 0.3}))
    assert not any("ref" in name for name in inspect.signature(get_policy_loss_fn("dro")).parameters)
    assert find_method("reference_likelihood").paper == "2506.13351"
    assert "actor_rollout_ref.actor.policy_loss.loss_mode" not in str(find_method("reference_likelihood").hosts)

    # verl's `grpo_passk` pays the best rollout its lead over the second: nothing unless exactly one of a group is right.
    for right in range(9):
        correct = np.array([[1.0] * right + [0.0] * (8 - right)])
        scores = torch.as_tensor(correct.T)
        how = {"index": np.zeros(8, int), "config": {"norm_adv_by_std_in_grpo": True}}
        host = get_adv_estimator_fn("grpo_passk")(scores, torch.ones(8, 1), **how)[0][:, 0]
        assert (host != 0).tolist() == [right == 1 and i == 0 for i in range(8)]
        mine = passk_training(correct, np.ones((1, 8), bool), k=4)[0]
        assert (mine != 0).all() == (1 <= right <= 4)  # all of them, as long as k of the group are wrong
        if right == 1:  # by hand: rho = 1 - 35/70, so (1 - rho)/sigma = 1, and (1/2 - 20/35)/(1/2) for a wrong one
            np.testing.assert_allclose(mine, [1] + [-1 / 7] * 7)
            assert host[0].item() == pytest.approx(sqrt(8), rel=1e-5)  # 1 over the standard deviation 1/sqrt(8)
        right_rewards = pkpo_right_rewards(correct, np.ones((1, 8), bool), k=4)[0]
        assert (right_rewards > 0).all() == (right >= 1)

    # `sapo` is soft adaptive policy optimisation in both hosts, one loss without a KL; the search agents' SAPO
    # (https://arxiv.org/abs/2603.10069) is a KL on unlikely tokens. AEPO, two methods as well, is in neither host. A name that
    # says two things is no name of our catalogue.
    for seed in range(3):
        step = random_step(seed)
        # TRL holds its two temperatures in float32.
        assert_same(trl_loss(trl_trainer, step, loss_type="sapo"), verl_loss("sapo", step), rtol=1e-6, atol=1e-8)
    for name in ("sapo", "aepo", "dro", "grpo_passk"):
        with pytest.raises(ValueError, match="unknown method"):
            find_method(name)


def test_09_vpo_draws_its_weights_once_per_group():
    # The walkthrough draws per completion, the implementation per group. Eight equal completions of one group: nothing to
    # tell them apart, which only shared draws see.
    same = np.tile(np.array([[1.0, 0.0], [0.4, 0.9]]), (1, 8, 1, 1))
    answers, keep = np.tile([0, 1], (1, 8, 1)), np.ones((1, 8), bool)
    shared = draw_weights(["a"], parts=2, draws=100, alpha=1.0, seed=0)
    rewards = set_reward(same, first_of_each(answers), keep, shared)
    assert not set_advantage(rewards, keep, eps=1e-6).any()
    apart = draw_weights(
        [str(i) for i in range(8)], parts=2, draws=100, alpha=1.0, seed=0
    )  # a group for each completion
    walkthrough = set_reward(same.transpose(1, 0, 2, 3), first_of_each(answers.transpose(1, 0, 2)), keep.T, apart).T
    assert np.abs(set_advantage(walkthrough, keep, eps=1e-6)).max() > 1  # noise, scaled up to full size


@needs_verl
def test_10_verl_s_dr_grpo_divides_by_the_width_of_the_tensor_unless_told_otherwise():
    step = random_step(0, rows=4, tokens=8)
    clip = partial(clipped_surrogate, clip_low=0.2, clip_high=0.2)
    padding = torch.nn.functional.pad
    tensors = ("logp_BT", "old_logp_BT", "adv_BT", "mask_BT", "entropy_BT", "ref_logp_BT")
    wide = replace(step, **{name: padding(getattr(step, name), (0, 24)) for name in tensors})  # four times as wide

    def host(batch, **info):
        return verl_loss("vanilla", batch, mode="seq-mean-token-sum-norm", clip_ratio_c=1e12, info=info)

    assert host(step).value == pytest.approx(4 * float(host(wide).value))
    fixed = compose(clip, reduction=partial(constant_length, length=40))
    assert_same(ours(fixed, step), host(step, loss_scale_factor=40))
    assert_same(ours(fixed, wide), host(wide, loss_scale_factor=40))
    assert float(ours(fixed, wide).value) == pytest.approx(float(ours(fixed, step).value), rel=1e-12)


def test_12_outcome_exploration_with_a_baseline_of_one_only_punishes():
    # One answer, given once in every step: UCB-Con of the paper with b_0 = 1 and with b_0 = 0.5, on counts of real visits.
    counter, keep, answer = OutcomeCounter(), np.ones((1, 1), bool), np.array([["7"]], dtype=object)
    by_baseline: dict[float, list[float]] = {1.0: [], 0.5: []}
    for _ in range(10):
        visits = counter.visit(["problem"], answer)
        for baseline, found in by_baseline.items():
            bonus = ucb_constant(visits, keep, weight=0.2, baseline=baseline, unless_all_right=False)
            found.append(float(bonus[0, 0]))
    assert max(by_baseline[1.0]) == 0  # not even a first visit is paid
    assert by_baseline[1.0][-1] == pytest.approx(0.2 * (1 / sqrt(9) - 1))  # the tenth visit, nine before it
    assert by_baseline[0.5][0] == pytest.approx(0.1)
    assert by_baseline[0.5][4] == 0  # four before it: 1/sqrt(4) is the baseline
    assert by_baseline[0.5][5] < 0
