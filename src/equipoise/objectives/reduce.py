"""From one term per token to the loss: what it is divided by. Axes: B completions, T tokens.

Each is given the count of the whole optimiser step, so that the losses of its micro-batches and ranks add up (add, not
average) to one gradient, however it was split. A trainer that averages gradients over ranks multiplies by their number.
Terms are 0 under the padding. A step without tokens has the loss 0.
"""

from __future__ import annotations

from torch import Tensor

from equipoise.errors import UsageError
from equipoise.objectives.batch import need


def token_mean(loss_BT: Tensor, *, step_tokens: int) -> Tensor:
    """Every token of the step weighs the same (DAPO, https://arxiv.org/abs/2503.14476)."""
    return loss_BT.sum() / max(step_tokens, 1)


def sequence_mean(loss_BT: Tensor, mask_BT: Tensor, *, step_sequences: int) -> Tensor:
    """Every completion weighs the same, so a token of a long one weighs less (GRPO, https://arxiv.org/abs/2402.03300).

    Completions without a token are not counted, as in verl; to count them, as TRL does, give your own `step_sequences`.
    """
    need(loss_BT=loss_BT, mask_BT=mask_BT)
    mean_B = loss_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)
    return mean_B.sum() / max(step_sequences, 1)


def sequence_sum(loss_BT: Tensor, *, step_sequences: int) -> Tensor:
    """The sum over a completion's tokens, averaged over completions (verl: seq-mean-token-sum)."""
    return loss_BT.sum() / max(step_sequences, 1)


def constant_length(loss_BT: Tensor, *, step_sequences: int, length: int) -> Tensor:
    """The sum over tokens divided by completions times one fixed length (Dr.GRPO, https://arxiv.org/abs/2503.20783).

    `length` is a constant of the run, the generation limit: the width of the current tensor would drift from batch to batch.
    """
    if not length > 0:
        raise UsageError(f"length must be the run's fixed generation limit, above 0, found {length}")
    return loss_BT.sum() / (max(step_sequences, 1) * length)
