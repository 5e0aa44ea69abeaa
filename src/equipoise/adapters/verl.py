"""Equipoise inside verl 0.9 (read: 0.9.1), without a fork.

verl imports `verl_plugin` in every process, by the entry point group `verl.plugins`, and that calls `register`:

| in verl's config | what it is |
| --- | --- |
| `actor_rollout_ref.actor.policy_loss.loss_mode=equipoise_NAME` | a surrogate of the catalogue: `verl_losses` |
| `algorithm.adv_estimator=equipoise_NAME` | an advantage of the catalogue: `verl_advantages` |
| `reward.reward_manager.source=importlib`, `.module.path=pkg://equipoise.adapters.verl_rewards`, `.name=ExplorationRewards` | rewards and exploration terms over groups: `verl_rewards` |
| `ray_kwargs.ray_init.runtime_env.env_vars.EQUIPOISE_VERL` | settings that verl has no key for: `verl_settings` |
| `trainer.rollout_data_dir` | dumps that `equipoise diagnose` reads |

Where verl has a method itself (clip, gspo, clip_cov, kl_cov, an entropy bonus, a KL), a prescription names verl's; ours has the
same name behind `equipoise_` for whoever wants to compare. A ready config of each method: `examples/verl`.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.adapters.group_rows import group_advantages
from equipoise.adapters.host_objective import policy_losses
from equipoise.adapters.versions import check_version
from equipoise.catalogue.verl_keys import PREFIX


@dataclass(frozen=True, slots=True)
class Registered:
    """The names that verl now knows."""

    losses: tuple[str, ...]
    estimators: tuple[str, ...]


def register() -> Registered:
    """Tell verl of every loss and estimator of ours. A second call changes nothing."""
    check_version("verl")
    from verl.trainer.ppo.core_algos import (
        ADV_ESTIMATOR_REGISTRY,
        POLICY_LOSS_REGISTRY,
        register_adv_est,
        register_policy_loss,
    )

    from equipoise.adapters.verl_advantages import advantage_estimator
    from equipoise.adapters.verl_losses import policy_loss

    losses, estimators = policy_losses(), group_advantages()
    for row in losses:
        if PREFIX + row.name not in POLICY_LOSS_REGISTRY:
            register_policy_loss(PREFIX + row.name)(policy_loss(row))
    for row in estimators:
        if PREFIX + row.name not in ADV_ESTIMATOR_REGISTRY:  # verl refuses a second function of one name
            register_adv_est(PREFIX + row.name)(advantage_estimator(row))
    return Registered(tuple(PREFIX + row.name for row in losses), tuple(PREFIX + row.name for row in estimators))


def registered() -> Registered:
    """The names of ours that verl knows in this process."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    return Registered(
        tuple(name for name in POLICY_LOSS_REGISTRY if name.startswith(PREFIX)),
        tuple(name for name in ADV_ESTIMATOR_REGISTRY if name.startswith(PREFIX)),
    )
