"""Our policy losses under verl 0.9's signature. Axes: B completions, T tokens.

| verl | here |
| --- | --- |
| `old_log_prob`, `log_prob`, `advantages`, `response_mask` | old_logp_BT, logp_BT, adv_BT, mask_BT of one micro-batch |
| `config.clip_ratio_low`, `clip_ratio_high` | clip_low, clip_high, distances from 1 |
| `agg_loss(loss_agg_mode, **config.global_batch_info)` | the reduction: verl's own, so that ranks and micro-batches add up |
| `rollout_is_weights` | multiplied onto the terms, as verl's own losses do |
| `actor/ppo_kl` | mean of ln pi_old - ln pi |
| `actor/equipoise_touched` | share of the tokens whose gradient is another than plain policy gradient's: 0 is an inert control |

verl passes no entropies, reference log-probs or step: forking, kl_cov_reference and the _step methods are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss

from equipoise.adapters.host_objective import touched
from equipoise.adapters.verl_settings import loss_settings
from equipoise.catalogue.base import Method
from equipoise.catalogue.build import build
from equipoise.errors import UsageError
from equipoise.objectives.batch import TokenBatch
from equipoise.objectives.compose import Part

Loss = Callable[..., tuple[Tensor, dict[str, Any]]]


def policy_loss(method: Method) -> Loss:
    """The method as a loss that `register_policy_loss` takes."""
    part = Part.of(build(method.name))

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        if config is None:
            raise UsageError(
                f"equipoise_{method.name} needs verl's actor config: it has the clip bounds and the size of the step"
            )
        batch = TokenBatch(log_prob, old_log_prob, advantages, response_mask.bool())
        settings = loss_settings(method, config)
        if "seed" in part.taken:
            settings["seed"] = torch.default_generator  # goes on from call to call, seeded as the run is
        loss_BT = part.run(batch, settings)
        acts = touched(loss_BT, batch)
        if rollout_is_weights is not None:
            loss_BT = loss_BT * rollout_is_weights
        value = agg_loss(
            loss_mat=loss_BT, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info
        )
        metrics = {"actor/ppo_kl": acts["policy_drift"]}
        if "touched" in acts:
            metrics["actor/equipoise_touched"] = acts["touched"]
        return value, metrics

    loss.__name__ = f"equipoise_{method.name}"
    loss.__doc__ = f"{method.about}: {method.equation} ({method.link})"
    return loss
