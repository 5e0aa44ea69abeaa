"""verl 0.9.1's own losses, estimators, KL penalties and length penalty beside ours: equal wherever both claim one formula.

A loss is equal if its value and its gradient for every token are. Where verl does something else on purpose or by accident, the
difference has a test here (a group of one, the bound of k3) or in test_known_discrepancies.
"""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from host_losses import Graded, assert_same, ours, random_step, verl_loss, verl_ppo_loss, with_leaves  # noqa: E402

from equipoise.objectives.cispo import cispo_surrogate  # noqa: E402
from equipoise.objectives.clipped import clipped_surrogate, dual_clip_surrogate, unclipped_surrogate  # noqa: E402
from equipoise.objectives.compose import compose  # noqa: E402
from equipoise.objectives.covariance import clip_cov, draw_in_band, kl_cov, top_covariance  # noqa: E402
from equipoise.objectives.gspo import gspo_surrogate  # noqa: E402
from equipoise.objectives.reduce import constant_length, sequence_mean, sequence_sum, token_mean  # noqa: E402
from equipoise.objectives.regularisers import entropy_bonus, kl_to_reference  # noqa: E402
from equipoise.shaping.advantages import group_mean, group_std, leave_one_out  # noqa: E402
from equipoise.shaping.overlong import soft_overlong  # noqa: E402

# Found, not imported: whoever deselects these tests shall not wait for verl.
needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="needs verl: pip install 'equipoise[verl]'")
pytestmark = [pytest.mark.integration, needs_verl]

SEEDS = range(6)

# Registered losses that have no counterpart here.
NOT_OURS = {
    "dppo_tv": "a trust region in probabilities, https://arxiv.org/abs/2602.04879",
    "dppo_kl": "a trust region in binary KL, same paper",
    "sapo": "a soft gate instead of a clip, https://arxiv.org/abs/2511.20347",
    "geo_mean": "a geometric mean over tokens, GMPO, https://arxiv.org/abs/2507.20673",
    "dro": "direct reward optimisation with a quadratic penalty: see test_known_discrepancies",
}
OURS = {"vanilla", "gspo", "gpg", "clip_cov", "kl_cov", "cispo", "bypass_mode"}


def test_every_loss_that_verl_registers_is_compared_or_named():
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    its_own = {name for name in POLICY_LOSS_REGISTRY if not name.startswith("equipoise_")}  # the others: our plug-in's
    assert its_own == OURS | set(NOT_OURS)


def steps(**how):
    """Seeds with completion-wide and with token-wide advantages; one has a completion without any token."""
    return [random_step(seed, token_advantages=seed % 2 == 1, empty_row=seed == 4, **how) for seed in SEEDS]


def ratios(step) -> tuple[torch.Tensor, torch.Tensor]:
    """Ratio and advantage of the real tokens."""
    return (step.logp_BT - step.old_logp_BT).exp()[step.mask_BT], step.adv_BT[step.mask_BT]


# ---------------------------------------------------------------- surrogates


@pytest.mark.parametrize(("low", "high", "cap"), [(0.2, 0.2, 3.0), (0.2, 0.28, 10.0), (0.1, 0.4, 1.5)])
def test_vanilla_is_the_dual_clip(low, high, cap):
    objective = compose(partial(dual_clip_surrogate, clip_low=low, clip_high=high, cap=cap))
    above = below = capped = 0
    for step in steps():
        host = verl_loss("vanilla", step, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=cap)
        assert_same(ours(objective, step), host)
        ratio, adv = ratios(step)
        above += int(((ratio > 1 + high) & (adv > 0)).sum())
        below += int(((ratio < 1 - low) & (adv < 0)).sum())
        capped += int(((ratio > cap) & (adv < 0)).sum())
    assert above > 0
    assert below > 0
    assert capped > 0


def test_vanilla_with_a_huge_cap_is_the_clip():
    objective = compose(partial(clipped_surrogate, clip_low=0.2, clip_high=0.28))
    for step in steps():
        assert_same(ours(objective, step), verl_loss("vanilla", step, clip_ratio_high=0.28, clip_ratio_c=1e12))


def test_vanilla_in_float32():
    objective = compose(partial(dual_clip_surrogate, clip_low=0.2, clip_high=0.2, cap=3.0))
    for step in steps(dtype=torch.float32):
        assert_same(ours(objective, step), verl_loss("vanilla", step), rtol=1e-5, atol=1e-7)


def test_vanilla_and_cispo_stand_still_beyond_the_same_ratio():
    # Both hold ln r within 20: beyond, the ratio stays and the token has no gradient through it.
    for log_ratio in (-25.0, 25.0):
        step = random_step(0)
        step = with_leaves(step).detached()
        step.logp_BT[0, 0] = step.old_logp_BT[0, 0] + log_ratio
        step.adv_BT[0] = -1.0 if log_ratio > 0 else 1.0
        wide = {"clip_ratio_low": 1.0, "clip_ratio_high": 1e12, "clip_ratio_c": 1e12}
        host = verl_loss("vanilla", step, **wide)
        mine = ours(compose(unclipped_surrogate), step)
        assert host.logp_BT[0, 0] == mine.logp_BT[0, 0] == 0
        assert_same(mine, host)
        mine = ours(compose(partial(cispo_surrogate, weight_cap=1 + 1e12, weight_floor=0.0)), step)
        assert_same(mine, verl_loss("cispo", step, **wide))


@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.1, 0.1)])
def test_gspo(low, high):
    objective = compose(partial(gspo_surrogate, clip_low=low, clip_high=high), reduction=sequence_mean)
    clipped = set()
    for step in steps(drift=0.1):
        host = verl_loss("gspo", step, mode="seq-mean-token-mean", clip_ratio_low=low, clip_ratio_high=high)
        assert_same(ours(objective, step), host)
        clipped |= {bool(moved) for moved in (host.logp_BT != 0).any(dim=1)[step.mask_BT.any(dim=1)]}
    assert clipped == {True, False}  # some completions are clipped whole, some not at all


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.1, 2.0)])
def test_cispo_is_two_sided_with_bounds_as_distances(low, high):
    objective = compose(partial(cispo_surrogate, weight_floor=1 - low, weight_cap=1 + high))
    for step in steps():
        assert_same(ours(objective, step), verl_loss("cispo", step, clip_ratio_low=low, clip_ratio_high=high))
    ratio = torch.cat([ratios(step)[0] for step in steps()])
    assert ratio.min() < 1 - low
    assert ratio.max() > 1 + high


def test_gpg_is_the_log_prob_with_weight_one():
    objective = compose(partial(cispo_surrogate, weight_floor=1.0, weight_cap=1.0))
    for step in steps():
        assert_same(ours(objective, step), verl_loss("gpg", step))


def test_bypass_mode_is_the_dual_clip_or_one_sided_cispo():
    for step in steps():
        clip = compose(partial(dual_clip_surrogate, clip_low=0.2, clip_high=0.2, cap=3.0))
        correction = {"loss_type": "ppo_clip", "rollout_is": "token", "rollout_is_threshold": 2.0}
        assert_same(ours(clip, step), verl_loss("bypass_mode", step, loss={"rollout_correction": correction}))
        # REINFORCE with truncated importance sampling, which is what CISPO is.
        cispo = compose(partial(cispo_surrogate, weight_cap=2.0))
        correction = {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": 2.0}
        assert_same(ours(cispo, step), verl_loss("bypass_mode", step, loss={"rollout_correction": correction}))


# ---------------------------------------------------------------- covariance


@pytest.mark.parametrize("share", [2e-4, 0.05, 0.5])
def test_clip_cov_draws_the_same_tokens(share):
    settings = {"share": share, "low": 0.3, "high": 3.0, "clip_low": 0.2, "clip_high": 0.2, "at_least": 1}
    config = {"loss": {"clip_cov_ratio": share, "clip_cov_lb": 0.3, "clip_cov_ub": 3.0}}
    for seed, step in enumerate(steps(rows=8)):
        surrogate = partial(clip_cov, seed=seed, **settings)
        assert_same(ours(compose(surrogate), step), verl_loss("clip_cov", step, seed=seed, **config))
        # verl's gradient is gone at the drawn tokens and, but for those, is that of its own clip.
        chosen = draw_in_band(step.logp_BT, step.old_logp_BT, step.adv_BT, step.mask_BT, seed=seed, **settings)
        plain = verl_loss("vanilla", step, clip_ratio_c=1e12)
        without = verl_loss("clip_cov", step, seed=seed, **config)
        assert chosen.any()
        torch.testing.assert_close(without.logp_BT, torch.where(chosen, 0.0, plain.logp_BT))


def test_clip_cov_in_an_empty_band_is_the_clip():
    for step in steps():
        surrogate = partial(clip_cov, share=0.5, low=500.0, high=501.0, clip_low=0.2, clip_high=0.2, at_least=1)
        config = {"loss": {"clip_cov_ratio": 0.5, "clip_cov_lb": 500.0, "clip_cov_ub": 501.0}}
        host = verl_loss("clip_cov", step, **config)
        assert_same(ours(compose(surrogate), step), host)
        assert_same(ours(compose(partial(clipped_surrogate, clip_low=0.2, clip_high=0.2)), step), host)


@pytest.mark.parametrize("share", [2e-4, 0.05, 0.5])
def test_kl_cov_chooses_the_same_tokens(share):
    for step in steps(rows=8):
        config = {"loss": {"kl_cov_ratio": share, "ppo_kl_coef": 0.7}}
        host = verl_loss("kl_cov", step, **config)
        assert_same(ours(compose(partial(kl_cov, share=share, coef=0.7, at_least=1)), step), host)
        # By verl's own numbers: the penalty moved these tokens and no others.
        bare = verl_loss("kl_cov", step, loss={"kl_cov_ratio": share, "ppo_kl_coef": 0.0})
        chosen = top_covariance(step.logp_BT, step.adv_BT, step.mask_BT, share=share, at_least=1)
        assert torch.equal(host.logp_BT != bare.logp_BT, chosen)
        assert int(chosen.sum()) == max(int(share * step.step_tokens), 1)


# ---------------------------------------------------------------- reductions


@pytest.mark.parametrize(
    ("mode", "reduction", "info"),
    [
        ("token-mean", token_mean, {}),
        ("seq-mean-token-mean", sequence_mean, {}),
        ("seq-mean-token-sum", sequence_sum, {}),
        ("seq-mean-token-sum-norm", partial(constant_length, length=40), {"loss_scale_factor": 40}),
    ],
)
def test_aggregation_modes_whole_and_split_over_micro_batches_and_ranks(mode, reduction, info):
    objective = compose(partial(dual_clip_surrogate, clip_low=0.2, clip_high=0.2, cap=3.0), reduction=reduction)
    for step in steps(rows=8):
        whole = verl_loss("vanilla", step, mode=mode, info=info)
        assert_same(ours(objective, step), whole)
        counts = {"batch_num_tokens": step.step_tokens, "global_batch_size": step.step_sequences, "dp_size": 2, **info}
        ranks = [[slice(0, 1), slice(1, 4)], [slice(4, 6), slice(6, 8)]]  # two ranks of two micro-batches
        host_parts, parts = [], []
        for rows in (rows for rank in ranks for rows in rank):
            host_parts.append(verl_loss("vanilla", step.rows(rows), mode=mode, info=counts))
            parts.append(ours(objective, step.rows(rows)))
        # verl's ranks average their gradients, micro-batches add: the same as adding ours.
        assert_same(added(parts), added(host_parts, over=2))
        assert_same(added(parts), whole)


def added(parts: list[Graded], *, over: int = 1) -> Graded:
    value = torch.stack([part.value for part in parts]).sum() / over
    return Graded(value, *(torch.cat([getattr(p, n) for p in parts]) / over for n in ("logp_BT", "entropy_BT")))


def test_token_sum_is_the_token_mean_times_the_tokens():
    objective = compose(partial(clipped_surrogate, clip_low=0.2, clip_high=0.2))
    for step in steps():
        mine, host = ours(objective, step), verl_loss("vanilla", step, mode="token-sum", clip_ratio_c=1e12)
        scaled = Graded(*(getattr(mine, name) * step.step_tokens for name in ("value", "logp_BT", "entropy_BT")))
        assert_same(scaled, host)


@pytest.mark.parametrize(("mode", "reduction"), [("token-mean", token_mean), ("seq-mean-token-mean", sequence_mean)])
@pytest.mark.parametrize(("kind", "named"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")])
def test_the_whole_actor_loss_with_entropy_bonus_and_kl(mode, reduction, kind, named):
    pytest.importorskip("PIL", reason="verl's worker losses import pillow: pip install pillow")
    objective = compose(
        partial(dual_clip_surrogate, clip_low=0.2, clip_high=0.28, cap=3.0),
        regularisers=[partial(entropy_bonus, coef=0.01), partial(kl_to_reference, coef=0.05, kind=kind)],
        reduction=reduction,
    )
    settings = {"clip_ratio_high": 0.28, "entropy_coeff": 0.01, "use_kl_loss": True, "kl_loss_coef": 0.05}
    for step in steps():
        info = {"dp_size": 1, "batch_num_tokens": step.step_tokens, "global_batch_size": step.step_sequences}
        host = verl_ppo_loss(step, info=info, loss_agg_mode=mode, kl_loss_type=named, **settings)
        assert host.entropy_BT.abs().max() > 0
        assert_same(ours(objective, step), host)


# ---------------------------------------------------------------- KL


@pytest.mark.parametrize(("kind", "names"), [("k1", ("kl", "k1")), ("k2", ("mse", "k2")), ("k3", ("low_var_kl", "k3"))])
def test_kl_estimators(kind, names):
    from verl.trainer.ppo.core_algos import kl_penalty

    for seed in SEEDS:
        step = with_leaves(random_step(seed))
        mine = kl_to_reference(step.logp_BT, step.mask_BT, step.ref_logp_BT, coef=1.0, kind=kind)
        (gradient,) = torch.autograd.grad(mine.sum(), step.logp_BT)
        for name in names:
            host = kl_penalty(step.logp_BT, step.ref_logp_BT, name) * step.mask_BT
            torch.testing.assert_close(mine, host, rtol=1e-9, atol=1e-12)
            (host_gradient,) = torch.autograd.grad(host.sum(), step.logp_BT)
            torch.testing.assert_close(gradient, host_gradient, rtol=1e-9, atol=1e-12)


def test_k3_plus_has_the_value_of_our_k3_and_the_gradient_of_our_k2():
    from verl.trainer.ppo.core_algos import kl_penalty

    step = with_leaves(random_step(1))
    host = kl_penalty(step.logp_BT, step.ref_logp_BT, "k3+") * step.mask_BT
    (gradient,) = torch.autograd.grad(host.sum(), step.logp_BT)
    k2, k3 = (kl_to_reference(step.logp_BT, step.mask_BT, step.ref_logp_BT, coef=1.0, kind=k) for k in ("k2", "k3"))
    torch.testing.assert_close(host, k3, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(k2.sum(), step.logp_BT)[0], rtol=1e-9, atol=1e-12)


def test_k3_above_ten_is_cut_in_verl_and_not_here():
    from verl.trainer.ppo.core_algos import kl_penalty

    # d = -3: e^3 - 1 - 3 = 16.09 to four figures, which verl holds at 10, without a gradient.
    logp = torch.tensor([[-4.0]], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([[-1.0]], dtype=torch.float64)
    host = kl_penalty(logp, ref, "k3")
    mine = kl_to_reference(logp, torch.tensor([[True]]), ref, coef=1.0, kind="k3")
    assert (host.item(), torch.autograd.grad(host.sum(), logp)[0].item()) == (10.0, 0.0)
    assert mine.item() == pytest.approx(16.0855, abs=1e-4)
    assert torch.autograd.grad(mine.sum(), logp)[0].item() == pytest.approx(1 - 20.0855, abs=1e-4)  # 1 - e^3


def test_abs_is_the_penalty_of_kl_cov():
    from verl.trainer.ppo.core_algos import kl_penalty

    for step in steps():
        step = with_leaves(step)
        args = (step.logp_BT, step.old_logp_BT, step.adv_BT, step.mask_BT)
        penalty = kl_cov(*args, share=1.0, coef=1.0) - unclipped_surrogate(*args)
        torch.testing.assert_close(penalty, kl_penalty(step.logp_BT, step.old_logp_BT, "abs") * step.mask_BT)


# ---------------------------------------------------------------- advantages


def groups(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards (P, G) with different sizes of group: two constant groups, groups of 0 and 1, a spread one, a pair."""
    rng = np.random.default_rng(seed)
    reward_PG = np.zeros((6, 8))
    reward_PG[0] = 1.0
    reward_PG[1:3] = rng.integers(0, 2, (2, 8))
    reward_PG[3, 5] = 1.0
    reward_PG[4] = rng.normal(size=8)
    reward_PG[5] = rng.normal(size=8)
    keep_PG = np.ones((6, 8), bool)
    keep_PG[1, 5:] = keep_PG[5, 2:] = False
    return reward_PG, keep_PG


def verl_advantages(name: str, reward_PG: np.ndarray, keep_PG: np.ndarray, **settings) -> np.ndarray:
    """By a registered estimator: rows shuffled, the reward on the last of three tokens."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    order = np.random.default_rng(0).permutation(int(keep_PG.sum()))
    scores = torch.zeros(len(order), 3, dtype=torch.float64)
    scores[:, 2] = torch.as_tensor(reward_PG[keep_PG][order])
    index = np.nonzero(keep_PG)[0][order]
    advantages, _ = get_adv_estimator_fn(name)(scores, torch.ones(len(order), 3), index=index, **settings)
    assert torch.equal(advantages[:, 0], advantages[:, 2])
    result, found = np.zeros(keep_PG.shape), np.zeros(len(order))
    found[order] = advantages[:, 0].numpy()
    result[keep_PG] = found
    return result


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "settings", "mine"),
    [
        ("grpo", {}, group_std),
        ("grpo", {"norm_adv_by_std_in_grpo": False}, group_mean),
        ("grpo", {"epsilon": 0.1}, partial(group_std, eps=0.1)),
        ("grpo_vectorized", {}, group_std),
        ("grpo_vectorized", {"norm_adv_by_std_in_grpo": False}, group_mean),
        ("rloo", {}, leave_one_out),
        ("rloo_vectorized", {}, leave_one_out),
    ],
)
def test_advantages(name, settings, mine, seed):
    reward_PG, keep_PG = groups(seed)
    host = verl_advantages(name, reward_PG, keep_PG, **settings)
    assert (host[4] != 0).all()
    exact = 1e-6 if name == "grpo_vectorized" else 1e-12  # that one computes in float32
    np.testing.assert_allclose(mine(reward_PG, keep_PG), host, rtol=10 * exact, atol=exact)


def test_a_group_of_one_keeps_its_whole_reward_in_verl_and_gets_nothing_here():
    reward_PG, keep_PG = np.array([[0.7, 0.0]]), np.array([[True, False]])
    assert verl_advantages("grpo", reward_PG, keep_PG)[0, 0] == pytest.approx(0.7, rel=1e-5)
    assert verl_advantages("rloo", reward_PG, keep_PG)[0, 0] == pytest.approx(0.7)
    assert verl_advantages("rloo_vectorized", reward_PG, keep_PG)[0, 0] == 0
    assert not any(mine(reward_PG, keep_PG).any() for mine in (group_std, group_mean, leave_one_out))


# ---------------------------------------------------------------- rewards


def test_the_soft_overlong_penalty_of_the_dapo_manager():
    managers = pytest.importorskip("verl.experimental.reward_loop.reward_manager")
    from omegaconf import OmegaConf
    from verl import DataProto

    lengths = np.array([[1, 80, 81, 90, 99, 100]])
    buffer = {"enable": True, "len": 20, "penalty_factor": 0.7, "log": True}
    config = OmegaConf.create({"reward": {"reward_kwargs": {"max_resp_len": 100, "overlong_buffer_cfg": buffer}}})

    class Texts:
        def decode(self, ids, **how):
            return ""

    async def scores() -> list[float]:
        manager = managers.get_reward_manager_cls("dapo")(config, tokenizer=Texts(), compute_score=lambda **item: 1.0)
        found = []
        for length in lengths[0]:
            responses, attention = torch.zeros(1, 100, dtype=torch.long), torch.zeros(1, 101, dtype=torch.long)
            attention[0, : 1 + length] = 1
            item = DataProto.from_dict(
                tensors={"responses": responses, "attention_mask": attention},
                non_tensors={"data_source": np.array(["sums"]), "reward_model": np.array([{"ground_truth": "1"}])},
            )
            found.append(float((await manager.run_single(item))["reward_score"]))
        return found

    penalty_PG = soft_overlong(lengths, np.ones((1, 6), bool), limit=100, buffer=20, penalty=0.7)
    np.testing.assert_allclose(1.0 + penalty_PG[0], asyncio.run(scores()), rtol=1e-6)
