"""A loss for tinker (read: 0.36.0, cookbook 0.5.8), for `forward_backward_custom`. Axes: B datums, T tokens.

    loss_fn = policy_loss("gppo:beta_low=0.5", old_logprobs=…, advantages=…, masks=…)     # one list entry per datum
    training_client.forward_backward_custom(data, loss_fn)

| tinker | here |
| --- | --- |
| `loss_fn(data, logprobs)`, a tensor of target log-probs per datum | logp_BT |
| what the service does not carry: its custom losses take `target_tokens` and `weights` alone | old_logp_BT, adv_BT, mask_BT, closed over |
| the returned sum over tokens | as in tinker's own losses: advantages set the scale |

The service computes log-probs, the loss runs on the client, and a second pass sends its gradient back. Logits, and so entropies,
never leave the service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.adapters.host_objective import read_objective, rows_of, touched
from equipoise.errors import UsageError
from equipoise.objectives.batch import TokenBatch

LossFn = Callable[[list[Any], list[Tensor]], tuple[Tensor, dict[str, float]]]


def policy_loss(
    method: str,
    *,
    old_logprobs: Sequence[Sequence[float] | Tensor],
    advantages: Sequence[Sequence[float] | Tensor],
    masks: Sequence[Sequence[float] | Tensor],
) -> LossFn:
    """tinker's custom loss of these datums: the sum over tokens, and metrics as floats.

    Each list has one entry per datum, aligned with its target tokens; a mask is 0 on the prompt's.
    """
    objective = read_objective(method, host="tinker")
    counts = {"old_logprobs": len(old_logprobs), "advantages": len(advantages), "masks": len(masks)}
    if len(set(counts.values())) > 1:
        raise UsageError(
            f"tinker's loss needs one entry per datum, found {', '.join(f'{n} {name}' for name, n in counts.items())}"
        )

    def loss_fn(data: list[Any], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        if len(logprobs) != len(masks):
            raise UsageError(
                f"this loss was made for {len(masks)} datums and got {len(logprobs)}: make one per batch, in the batch's order"
            )
        for number, (one, other) in enumerate(zip(logprobs, masks, strict=True)):
            if len(one) != len(other):
                raise UsageError(
                    f"datum {number} has {len(one)} target tokens and a mask of {len(other)}: align them with the targets"
                )
        logp_BT = rows_of(logprobs)
        old_BT, adv_BT, weight_BT = (
            rows_of([torch.as_tensor(each, dtype=logp_BT.dtype, device=logp_BT.device) for each in rows])
            for rows in (old_logprobs, advantages, masks)
        )
        batch = TokenBatch(logp_BT, old_BT, adv_BT, weight_BT != 0)
        loss_BT = objective.terms(batch).loss
        loss = loss_BT.sum()
        metrics = {f"equipoise_{name}": value for name, value in touched(loss_BT, batch).items()}
        return loss, {"loss": float(loss.detach()), **metrics}

    return loss_fn
