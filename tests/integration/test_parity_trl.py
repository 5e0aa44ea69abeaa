"""TRL 1.16's own GRPO loss, entropy mask, controller, advantages and length penalty beside ours: equal wherever both claim one formula.

TRL's `_compute_loss` runs on a real trainer with a tiny Qwen2: on tensors of our choice, then in a live off-policy run whose
tensors are captured. A loss is equal if its value and its gradients by ln pi and entropy of every token are.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from host_losses import Graded, assert_same, ours, random_step, trl_loss, trl_settings, verl_loss  # noqa: E402

from equipoise.objectives.batch import TokenBatch  # noqa: E402
from equipoise.objectives.cispo import cispo_surrogate  # noqa: E402
from equipoise.objectives.clipped import clipped_surrogate, dual_clip_surrogate  # noqa: E402
from equipoise.objectives.compose import compose  # noqa: E402
from equipoise.objectives.gspo import gspo_surrogate  # noqa: E402
from equipoise.objectives.reduce import constant_length, sequence_mean, sequence_sum, token_mean  # noqa: E402
from equipoise.objectives.regularisers import (  # noqa: E402
    corrected_kl_to_reference,
    entropy_bonus,
    kl_to_reference,
)
from equipoise.objectives.weights import forking, top_entropy  # noqa: E402
from equipoise.shaping.advantages import group_mean, group_std  # noqa: E402
from equipoise.shaping.controllers import AdaptiveEntropy, tally_tokens  # noqa: E402
from equipoise.shaping.overlong import soft_overlong  # noqa: E402

needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = [pytest.mark.integration, needs_trl]

SEEDS = range(4)
CLIP = partial(clipped_surrogate, clip_low=0.2, clip_high=0.28)
BOUNDS = {"epsilon_low": 0.2, "epsilon_high": 0.28}
WIDTH = 12  # max_completion_length of the tiny trainer

# What TRL divides by, per loss type.
REDUCTIONS = {
    "grpo": sequence_mean,
    "bnpo": token_mean,
    "dapo": token_mean,
    "dr_grpo": partial(constant_length, length=WIDTH),
    "luspo": sequence_sum,
}
NOT_OURS = {
    "sapo": "a soft gate instead of a clip, https://arxiv.org/abs/2511.20347",
    "vespo": "a gamma weight of the whole completion's ratio",
}


def steps(**how):
    """Completion-wide advantages, of which a trainer makes (B,), and token-wide ones; one has a completion without a token."""
    found = [random_step(seed, token_advantages=seed % 2 == 1, empty_row=seed == 2, **how) for seed in SEEDS]
    # TRL's means over completions count those without a token, ours do not unless told to.
    return [replace(step, step_sequences=len(step.mask_BT)) for step in found]


def test_every_loss_type_is_compared_or_named(trl_trainer):
    text = type(trl_trainer.args).__dataclass_fields__["loss_type"].metadata["help"]
    offered = re.findall(r"'(\w+)'", re.search(r"Supported values are (.*?)\.", text)[1])
    assert sorted(offered) == sorted([*REDUCTIONS, "cispo", *NOT_OURS])


# ---------------------------------------------------------------- surrogates and what divides them


@pytest.mark.parametrize("loss_type", REDUCTIONS)
def test_clipped_losses(trl_trainer, loss_type):
    objective = compose(CLIP, reduction=REDUCTIONS[loss_type])
    for step in steps():
        assert_same(ours(objective, step), trl_loss(trl_trainer, step, loss_type=loss_type, **BOUNDS))


def test_clipped_loss_with_one_advantage_per_completion(trl_trainer):
    step = random_step(0)
    adv_B = torch.arange(1.0, 1 + len(step.mask_BT), dtype=torch.float64) - 3.5
    wide = replace(step, adv_BT=adv_B[:, None].expand_as(step.logp_BT))
    assert_same(ours(compose(CLIP), wide), trl_loss(trl_trainer, step, adv_B=adv_B, loss_type="dapo", **BOUNDS))


def test_delta_is_the_dual_clip(trl_trainer):
    objective = compose(partial(dual_clip_surrogate, clip_low=0.2, clip_high=0.28, cap=2.0))
    capped = 0
    for step in steps():
        assert_same(ours(objective, step), trl_loss(trl_trainer, step, loss_type="bnpo", delta=2.0, **BOUNDS))
        ratio = (step.logp_BT - step.old_logp_BT).exp()
        capped += int(((ratio > 2) & (step.adv_BT < 0) & step.mask_BT).sum())
    assert capped > 0


@pytest.mark.parametrize("cap", [1.5, 5.0])
def test_cispo_is_one_sided_and_its_epsilon_high_the_cap_itself(trl_trainer, cap):
    objective = compose(partial(cispo_surrogate, weight_cap=cap))
    for step in steps():
        assert_same(ours(objective, step), trl_loss(trl_trainer, step, loss_type="cispo", epsilon_high=cap))


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.1, 0.1)])
def test_sequence_level_sampling_is_gspo_s_token_form(trl_trainer, loss_type, low, high):
    objective = compose(partial(gspo_surrogate, clip_low=low, clip_high=high), reduction=REDUCTIONS[loss_type])
    clipped = set()
    for seed in SEEDS:  # advantages of completions: of tokens, the two forms weigh them differently
        step = random_step(seed, drift=0.1)
        settings = {"loss_type": loss_type, "epsilon_low": low, "epsilon_high": high}
        host = trl_loss(trl_trainer, step, importance_sampling_level="sequence", **settings)
        assert_same(ours(objective, step), host)
        clipped |= set((host.logp_BT != 0).any(dim=1).tolist())
    assert clipped == {True, False}


def test_on_policy_every_clip_is_reinforce(trl_trainer):
    step = random_step(0)
    on_policy = replace(step, old_logp_BT=step.logp_BT)
    host = trl_loss(trl_trainer, step, on_policy=True, loss_type="dapo", **BOUNDS)
    assert_same(ours(compose(CLIP), on_policy), host)
    torch.testing.assert_close(host.logp_BT, -step.adv_BT * step.mask_BT / step.step_tokens)


@pytest.mark.skipif(find_spec("verl") is None, reason="needs verl: pip install 'equipoise[verl]'")
def test_trl_bnpo_and_verl_vanilla_are_one_loss(trl_trainer):
    for step in steps():
        trl = trl_loss(trl_trainer, step, loss_type="bnpo", **BOUNDS)
        assert_same(trl, verl_loss("vanilla", step, clip_ratio_high=0.28, clip_ratio_c=1e12))


def test_gradient_accumulation_adds_up_to_the_step_for_dapo_and_not_for_bnpo(trl_trainer):
    # A window of two micro-batches with different token counts. DAPO divides by the step's tokens; BNPO averages the
    # two means, which is not the mean over the step.
    step, objective = random_step(3, rows=8), compose(CLIP)
    how = {"steps_per_generation": 2, "current_gradient_accumulation_steps": 2, **BOUNDS}

    def window(loss_type: str) -> Graded:
        halves = [trl_loss(trl_trainer, step.rows(h), loss_type=loss_type, **how) for h in (slice(0, 3), slice(3, 8))]
        tensors = (torch.cat([getattr(half, name) for half in halves]) for name in ("logp_BT", "entropy_BT"))
        return Graded(halves[0].value + halves[1].value, *tensors)

    assert_same(ours(objective, step), window("dapo"))
    assert not torch.allclose(ours(objective, step).logp_BT, window("bnpo").logp_BT, rtol=1e-3)


# ---------------------------------------------------------------- KL, entropy, forking tokens


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_k3_with_and_without_importance_correction(trl_trainer, loss_type, corrected):
    kl = partial(corrected_kl_to_reference if corrected else kl_to_reference, coef=0.04, kind="k3")
    objective = compose(CLIP, regularisers=[kl], reduction=REDUCTIONS[loss_type])
    settings = {"loss_type": loss_type, "beta": 0.04, "use_bias_correction_kl": corrected, **BOUNDS}
    for step in steps():
        assert_same(ours(objective, step), trl_loss(trl_trainer, step, **settings))
    assert trl_trainer.args.use_bias_correction_kl  # its default, as our docstring says


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.99])
def test_the_mask_of_high_entropies(trl_trainer, share):
    for step in steps(rows=9, dtype=torch.float32):  # TRL looks for the quantile in float32
        host = trl_trainer.get_high_entropy_mask(step.entropy_BT, step.mask_BT.long(), 1 - share)
        assert torch.equal(top_entropy(step.entropy_BT, step.mask_BT, share=share), host)
    equal = torch.ones(2, 3)  # ties keep all of them
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert torch.equal(trl_trainer.get_high_entropy_mask(equal, mask.long(), 1 - share), mask)
    assert torch.equal(top_entropy(equal, mask, share=share), mask)


def test_the_mask_of_high_entropies_in_bfloat16(trl_trainer):
    # The threshold lies between two entropies and must not be rounded to one of them.
    for step in steps(rows=9, dtype=torch.bfloat16):
        host = trl_trainer.get_high_entropy_mask(step.entropy_BT, step.mask_BT.long(), 1 - 0.2)
        assert torch.equal(top_entropy(step.entropy_BT, step.mask_BT, share=0.2), host)


def test_a_quantile_that_is_one_of_the_entropies_stays_in_here_and_can_fall_out_in_trl(trl_trainer):
    # 171 tokens, share 0.7: the quantile is the 52nd, and 120 are at or above it. In floating point 0.3 * 170 is a little
    # more than 51, so that TRL's lies above the 52nd.
    entropy = torch.rand((1, 171), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(1, 171, dtype=torch.bool)
    assert int(top_entropy(entropy, mask, share=0.7).sum()) == 120
    assert int(trl_trainer.get_high_entropy_mask(entropy, mask.long(), 1 - 0.7).sum()) == 119


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_forking_tokens_weigh_the_surrogate_and_not_the_kl(trl_trainer, loss_type):
    objective = compose(
        CLIP,
        weights=[partial(forking, share=0.2)],
        regularisers=[partial(corrected_kl_to_reference, coef=0.04)],
        reduction=REDUCTIONS[loss_type],
    )
    for step in steps(dtype=torch.float32):
        host = trl_loss(trl_trainer, step, loss_type=loss_type, top_entropy_quantile=0.2, beta=0.04, **BOUNDS)
        assert_same(ours(objective, step), host, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_the_entropy_bonus_is_a_mean_over_tokens_with_any_loss(trl_trainer, loss_type):
    objective = compose(
        CLIP,
        regularisers=[partial(entropy_bonus, coef=0.01)],
        reduction=REDUCTIONS[loss_type],
        reductions={"entropy_bonus": token_mean},
    )
    for step in steps():
        host = trl_loss(trl_trainer, step, loss_type=loss_type, entropy_coef=0.01, **BOUNDS)
        assert host.entropy_BT.abs().max() > 0
        assert_same(ours(objective, step), host)


def test_with_forking_tokens_trl_spreads_the_bonus_over_them_alone(trl_trainer):
    # Ours is never weighted: a bonus of the same size on fewer tokens has to be asked for.
    step = random_step(0, dtype=torch.float32)
    chosen = top_entropy(step.entropy_BT, step.mask_BT, share=0.2)
    host = trl_loss(trl_trainer, step, loss_type="dapo", top_entropy_quantile=0.2, entropy_coef=0.01, **BOUNDS)
    torch.testing.assert_close(host.entropy_BT, torch.where(chosen, -0.01 / chosen.sum(), 0.0))
    objective = compose(CLIP, weights=[partial(forking, share=0.2)], regularisers=[partial(entropy_bonus, coef=0.01)])
    mine = ours(objective, step)
    torch.testing.assert_close(mine.entropy_BT, torch.where(step.mask_BT, -0.01 / step.step_tokens, 0.0))
    torch.testing.assert_close(mine.logp_BT, host.logp_BT, rtol=1e-5, atol=1e-7)


def test_the_adaptive_controller_walks_the_same_path(trl_trainer):
    # Mean entropies that fall, hit the target exactly, stay below and come back. The bonus of a step is gated by the step
    # before. All are sums of powers of 2, so that rounding does not decide what is at the target.
    levels = [0.5, 0.375, 0.25, 0.125, 0.125, 0.125, 0.125, 0.25, 0.3125, 0.5, 0.5, 0.5, 0.125, 0.125]
    bounds = {"entropy_coef_delta": 0.002, "entropy_coef_max": 0.009, "entropy_coef_min": 0.001}
    fixed = {"use_adaptive_entropy": True, "entropy_target": 0.25, "loss_type": "dapo", **bounds, **BOUNDS}
    controller = AdaptiveEntropy(target=0.25, step=0.002, max=0.009, min=0.001, start=0.004, inclusive=True)
    objective = compose(CLIP, regularisers=[partial(entropy_bonus, coef=0.0)])
    step = random_step(0)
    state, applied = {"entropy_coef": 0.004, "_last_world_entropy": float("inf")}, []
    for level in levels:
        now = replace(step, entropy_BT=alternating(step, level))
        with trl_settings(trl_trainer, **state):
            host = trl_loss(trl_trainer, now, **fixed)
            state = {name: getattr(trl_trainer, name) for name in state}
        assert_same(ours(objective, now, settings=controller.settings()), host)
        applied.append(controller.settings()["entropy_bonus.coef"])
        controller.observe(tally_tokens(now.entropy_BT.numpy(), now.mask_BT.numpy()))
        assert controller.state()["coef"] == pytest.approx(state["entropy_coef"], rel=1e-12)
    assert applied[:3] == [0, 0, 0]  # nothing measured yet, then above the target
    assert applied[3] == pytest.approx(
        0.004 - 2 * 0.002 + 0.001 + 0.002
    )  # down to the bound, then up: at the target counts
    assert max(applied) == 0.009
    assert 0 in applied[4:]


def alternating(step: TokenBatch, level: float) -> torch.Tensor:
    """Entropies a sixteenth above and below the level by turns, and 9 under the padding."""
    assert step.step_tokens % 2 == 0
    found = torch.full_like(step.entropy_BT, 9.0)
    signs = torch.tensor([1.0, -1.0], dtype=found.dtype).repeat(step.step_tokens // 2)
    found[step.mask_BT] = level + signs / 16
    return found


# ---------------------------------------------------------------- advantages and rewards


@pytest.mark.parametrize(("scaling", "mine"), [("group", partial(group_std, eps=1e-4)), ("none", group_mean)])
def test_advantages_of_a_real_generation_batch(trl_trainer, monkeypatch, scaling, mine):
    # Four groups of four: two successes, one success, all alike, and one whose first completion has no score.
    reward_PG = np.array([[1, 0, 0, 1], [0, 0, 1, 0], [0.5] * 4, [np.nan, 1, 0, 0.25]], dtype=np.float64)
    scores = torch.as_tensor(reward_PG, dtype=torch.float32).reshape(16, 1)
    monkeypatch.setattr(trl_trainer, "_calculate_rewards", lambda *args: scores)
    prompts = [{"prompt": trl_trainer.train_dataset[i]["prompt"]} for i in range(4) for _ in range(4)]
    with trl_settings(trl_trainer, scale_rewards=scaling):
        found = trl_trainer._generate_and_score_completions(prompts)["advantages"]
    np.testing.assert_allclose(mine(reward_PG, np.ones((4, 4), bool)).ravel(), found.numpy(), rtol=1e-5, atol=1e-6)
    assert found[12] == 0  # the one without a score


@pytest.mark.parametrize(("limit", "buffer"), [(100, 20), (20480, 4096), (7, 7)])
def test_soft_overlong_punishment(limit, buffer):
    from trl.rewards import get_soft_overlong_punishment

    lengths = sorted({0, 1, limit - buffer, limit - buffer + 1, limit - 1, limit, limit + 1, 2 * limit})
    host = get_soft_overlong_punishment(max_completion_len=limit, soft_punish_cache=buffer)
    mine = soft_overlong(np.array([lengths]), np.ones((1, len(lengths)), bool), limit=limit, buffer=buffer)
    np.testing.assert_allclose(mine[0], host(completion_ids=[range(n) for n in lengths]), rtol=1e-12)


# ---------------------------------------------------------------- a live run


def test_a_live_off_policy_run(tiny_trainer):
    """Two updates per rollout at a large learning rate: every loss and gradient of the run from its captured tensors."""
    from trl import GRPOTrainer

    captured = []

    class Capturing(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            captured.append((inputs, *self.forward, loss.detach()))
            return loss

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            if found[0].requires_grad:  # not the passes for old and reference log-probs
                found[0].retain_grad(), found[1].retain_grad()
                self.forward = found[:2]
            return found

    trainer = tiny_trainer(
        Capturing,
        max_steps=4,
        num_iterations=2,
        learning_rate=0.05,
        beta=0.04,
        epsilon_high=0.28,
        entropy_coef=0.02,
        loss_type="dapo",
        logging_steps=1,
    )
    trainer.train()
    objective = compose(
        CLIP, regularisers=[partial(corrected_kl_to_reference, coef=0.04), partial(entropy_bonus, coef=0.02)]
    )
    clipped = 0
    assert len(captured) == 4
    for inputs, logp, entropy, loss in captured:
        mask = inputs["completion_mask"].bool()
        batch = TokenBatch(
            logp.detach(),
            inputs["old_per_token_logps"],
            inputs["advantages"][:, None].expand_as(logp),
            mask,
            entropy_BT=entropy.detach(),
            ref_logp_BT=inputs["ref_per_token_logps"],
        )
        host = Graded(loss, logp.grad, entropy.grad)
        assert_same(ours(objective, batch), host, rtol=1e-5, atol=1e-8)
        ratio = (batch.logp_BT - batch.old_logp_BT).exp()
        clipped += int((((ratio > 1.28) & (batch.adv_BT > 0)) | ((ratio < 0.8) & (batch.adv_BT < 0)))[mask].sum())
    assert clipped > 0
