"""Weights of tokens: they multiply the surrogate, carry no gradient and leave the denominator alone. Axes: B completions, T tokens."""

from __future__ import annotations

from math import ceil, floor

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.objectives.batch import need, unpadded
from equipoise.objectives.stepwide import StepWide


def top_entropy(entropy_BT: Tensor, mask_BT: Tensor, *, share: float) -> Tensor:
    """(B, T) bool: the real tokens whose entropy is at least the (1 - share) quantile of all. Ties keep more."""
    need(entropy_BT=entropy_BT, mask_BT=mask_BT)
    if not 0 < share <= 1:
        raise UsageError(f"share is the part of the tokens that is kept, above 0 and up to 1, found {share}")
    # In half precision the interpolated quantile would round onto a neighbouring entropy and keep other tokens.
    entropy_BT = entropy_BT.detach().to(torch.promote_types(entropy_BT.dtype, torch.float32))
    entropies = entropy_BT[mask_BT]
    if not len(entropies):
        return mask_BT
    return mask_BT & (entropy_BT >= _quantile(entropies, 1 - share))


def forking(entropy_BT: Tensor, mask_BT: Tensor, chosen_BT: Tensor | None = None, *, share: float) -> Tensor:
    """Forking tokens (80/20), https://arxiv.org/abs/2506.01939: weight 1 on the `share` of highest entropy, 0 elsewhere.

    The denominator stays all tokens, so the gradient is smaller, not renormalised. The quantile is that of the tensors
    given (TRL: of a micro-batch); `forking_step` takes the whole step's, as the paper does.
    """
    if chosen_BT is None:
        chosen_BT = top_entropy(entropy_BT, mask_BT, share=share)
    need(entropy_BT=entropy_BT, chosen_BT=chosen_BT, mask_BT=mask_BT)
    return (chosen_BT & mask_BT).to(entropy_BT.dtype)


forking_step = StepWide(top_entropy, forking)


def planning_credit(adv_BT: Tensor, mask_BT: Tensor, planning_BT: Tensor, *, alpha: float) -> Tensor:
    """HICRA, https://arxiv.org/abs/2509.03646: A + alpha |A| on planning tokens, as the weight 1 + alpha sign(A).

    More credit where the advantage is positive, less blame where it is negative. Below alpha = 1 no advantage changes its
    sign, so that weighting the surrogate and shaping the advantage are the same.
    """
    need(adv_BT=adv_BT, mask_BT=mask_BT, planning_BT=planning_BT)
    if not 0 <= alpha < 1:
        raise UsageError(
            f"alpha must be 0 or more and below 1, where advantages would change their sign, found {alpha}"
        )
    weight_BT = torch.where(planning_BT, 1 + alpha * adv_BT.detach().sign(), 1.0)
    return unpadded(weight_BT.to(adv_BT.dtype), mask_BT)


def given_weights(mask_BT: Tensor, chosen_BT: Tensor) -> Tensor:
    """Weights of the step that were made elsewhere, say by a controller on its token budget: `Objective.prepare(given=…)`."""
    need(mask_BT=mask_BT, chosen_BT=chosen_BT)
    return unpadded(chosen_BT.detach(), mask_BT)


def _quantile(values: Tensor, level: float) -> Tensor:
    """Linear interpolation between order statistics, as torch.quantile, which refuses more than 16 million values."""
    place = round(level * (len(values) - 1), 9)  # (1 - 0.7) * 10 is 3, not a little more
    below = values.kthvalue(floor(place) + 1).values
    above = values.kthvalue(ceil(place) + 1).values
    return torch.lerp(below, above, place - floor(place))
