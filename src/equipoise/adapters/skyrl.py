"""Losses and advantages for SkyRL (read: 0.3.0). Axes: B completions, T tokens.

    from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry, PolicyLossRegistry
    from equipoise.adapters import skyrl

    PolicyLossRegistry.register("gppo", skyrl.policy_loss("gppo:beta_low=0.5"))     # trainer.algorithm.policy_loss_type=gppo
    AdvantageEstimatorRegistry.register("pkpo", skyrl.advantage("pkpo:k=8"))        # trainer.algorithm.advantage_estimator=pkpo

in the script that starts the run, before `initialize_ray`: SkyRL pickles what is registered to its workers, where this package
must be installed too.

| SkyRL | here |
| --- | --- |
| `log_probs`, `old_log_probs`, `advantages`, `loss_mask` | logp_BT, old_logp_BT, adv_BT, mask_BT |
| advantages divided by the batch's tokens or completions before the loss, which then adds up (`loss_reduction`) | the sum over tokens |
| `token_level_rewards`, `index` | reward_PG by group |

Because advantages arrive divided, a method that reads their size does something else there: Clip-Cov's band (1, 5) holds no token,
KL-Cov's penalty is not divided. Both are refused here; SkyRL's own clip_cov and kl_cov read the same divided advantages.
`off_policy_correction` of SkyRL's config is not applied by these losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.adapters.group_rows import advantage_of_rows, group_advantages
from equipoise.adapters.host_objective import SCALED, covariance_losses, read_objective, touched
from equipoise.catalogue.build import build, read_spec
from equipoise.errors import UsageError
from equipoise.objectives.batch import TokenBatch
from equipoise.objectives.compose import Objective


@dataclass(frozen=True)
class policy_loss:  # noqa: N801  (used as a function; a class pickles by its name and its spec)
    """A method of the catalogue as SkyRL calls a policy loss: the sum over tokens, and metrics."""

    method: str

    def __post_init__(self) -> None:
        _ = self.objective  # refused now, not on the first batch of a worker

    @cached_property
    def objective(self) -> Objective:
        return read_objective(self.method, host="SkyRL", refused=dict.fromkeys(covariance_losses(), SCALED))

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        mask_BT = torch.ones_like(log_probs, dtype=torch.bool) if loss_mask is None else loss_mask.bool()
        batch = TokenBatch(log_probs, old_log_probs, advantages, mask_BT)
        loss_BT = self.objective.terms(batch).loss
        return loss_BT.sum(), {f"equipoise_{name}": value for name, value in touched(loss_BT, batch).items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (policy_loss, (self.method,))


@dataclass(frozen=True)
class advantage:  # noqa: N801
    """A group advantage of the catalogue as SkyRL calls an estimator: advantages and returns, both (B, T)."""

    method: str

    def __post_init__(self) -> None:
        name, _ = read_spec(self.method)
        known = [row.name for row in group_advantages()]
        if ":" not in name and name.replace("-", "_") not in known:
            raise UsageError(
                f"{name} is no advantage that SkyRL's rewards and groups suffice for: {', '.join(known)} are"
            )
        build(self.method)

    def __call__(
        self, token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, **more: Any
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            rewards_B = token_level_rewards.sum(dim=-1)
            adv_B = advantage_of_rows(build(self.method), rewards_B.double().cpu().numpy(), list(index))
            adv_BT = torch.as_tensor(adv_B, dtype=rewards_B.dtype, device=rewards_B.device)[:, None] * response_mask
        return adv_BT, adv_BT
