"""Equipoise inside TRL: methods, rewards, controllers and the record for `GRPOTrainer`. Read in TRL 1.14 to 1.16.

    from equipoise.adapters.trl import explore
    trainer = explore(GRPOTrainer)(…, exploration=["clip_cov_step", "band:low=0.2,high=0.6"], capture="runs/a", correct="right")
    trainer = explore(GRPOTrainer)(…, recipe="preserve", correct="right")

    ours                              TRL's
    clip_low, clip_high               epsilon, epsilon_high: distances from 1; with loss_type='cispo' the second is the cap itself
    entropy_bonus, adaptive_entropy   entropy_coef, use_adaptive_entropy with entropy_target, entropy_coef_delta, …
    forking                           top_entropy_quantile, the share kept
    kl (k3)                           beta; kind=exact is ours, from the reference model that TRL loads for it
    group_mean                        scale_rewards='none'
    mask_truncated                    mask_truncated_completions
    reduction                         loss_type: dapo is token_mean, grpo sequence_mean, dr_grpo constant_length, luspo sequence_sum
    mask_BT                           completion_mask · tool_mask
    adv_BT                            advantages, (B,) or (B, T)
    old_logp_BT                       old_per_token_logps; absent where the update is on-policy
    group                             row // num_generations, over all ranks

Where TRL has a method, its own option is set and a line says so; the rest is added beside TRL's loss (`trl_loss`, `trl_exact_kl`,
`trl_lessons`), to its advantages (`trl_groups`, `trl_step`) or by controllers (`trl_steer`). `trl_average` keeps an average of the weights.
"""

from __future__ import annotations

from equipoise.adapters.versions import check_version

check_version("trl")  # before anything of TRL is imported: a version that was not read fails with one line

from equipoise.adapters.trl_average import AverageWeights  # noqa: E402
from equipoise.adapters.trl_capture import Capture  # noqa: E402
from equipoise.adapters.trl_mixin import ExplorationMixin, explore  # noqa: E402
from equipoise.adapters.trl_plan import Exploration  # noqa: E402
from equipoise.adapters.trl_probe import probe_reward  # noqa: E402
from equipoise.adapters.trl_rewards import (  # noqa: E402
    batch_reward,
    brier_reward,
    overlong_reward,
    reference_reward,
    ucb_reward,
)
from equipoise.adapters.trl_steer import KeepState, SteeringCallback  # noqa: E402

__all__ = [
    "AverageWeights",
    "Capture",
    "Exploration",
    "ExplorationMixin",
    "KeepState",
    "SteeringCallback",
    "batch_reward",
    "brier_reward",
    "explore",
    "overlong_reward",
    "probe_reward",
    "reference_reward",
    "ucb_reward",
]
