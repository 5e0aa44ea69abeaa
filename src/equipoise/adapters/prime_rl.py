"""A loss for prime-rl (read: main of August 2026), by import path. Axes: one completion at a time, T tokens.

    [trainer.loss]
    type = "custom"
    import_path = "equipoise.adapters.prime_rl.policy_loss"
    kwargs = { method = "gppo:beta_low=0.5" }

| prime-rl | here |
| --- | --- |
| `inputs.trainer_logprobs`, `inference_logprobs` | logp_BT, old_logp_BT (the inference engine's) of one row |
| `inputs.advantages`, `loss_mask`, `loss_weights` | adv_BT, mask_BT; weights multiply the terms |
| `LossOutputs(loss, metrics)` | the sum over tokens, which prime-rl divides by its loss scale; metrics as tensors |

No entropies arrive: prime-rl's fused head refuses a gradient through them. Methods that compare completions (clip_cov, kl_cov)
or divide by them (gspo) are refused, since prime-rl hands over one completion at a time and adds up tokens. Its rollouts are
read by `equipoise diagnose OUTPUT/rollouts`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from equipoise.adapters.host_objective import ONE_ROW, WHOLE_ROW, covariance_losses, read_objective, touched
from equipoise.objectives.batch import TokenBatch
from equipoise.objectives.compose import Objective


def policy_loss(inputs: Any, *, method: str = "clip_higher") -> Any:
    """prime-rl's custom loss, `fn(inputs: LossInputs, **kwargs) -> LossOutputs`."""
    from prime_rl.trainer.rl.loss import LossOutputs  # type: ignore[import-not-found]

    batch = TokenBatch(
        inputs.trainer_logprobs[None],
        inputs.inference_logprobs[None],
        inputs.advantages[None],
        inputs.loss_mask[None].bool(),
    )
    loss_BT = _objective(method).terms(batch).loss
    acts = touched(loss_BT, batch)
    weights = getattr(inputs, "loss_weights", None)
    if weights is not None:
        loss_BT = loss_BT * weights[None]
    metrics = {f"equipoise_{name}": torch.tensor(value) for name, value in acts.items()}
    return LossOutputs(loss=loss_BT.sum(), metrics=metrics)


@cache
def _objective(method: str) -> Objective:
    refused = {**dict.fromkeys(covariance_losses(), ONE_ROW), "gspo": WHOLE_ROW}
    return read_objective(method, host="prime-rl", refused=refused)
