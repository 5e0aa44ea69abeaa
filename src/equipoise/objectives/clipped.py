"""Clipped policy-gradient surrogates, per token. Axes: B completions, T tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.objectives.batch import need, unpadded
from equipoise.objectives.ratio import check_bounds, pessimistic, token_ratio


def unclipped_surrogate(logp_BT: Tensor, old_logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Importance-weighted policy gradient without a clip, L_t = -r_t A. On-policy it is REINFORCE."""
    need(logp_BT=logp_BT, old_logp_BT=old_logp_BT, adv_BT=adv_BT, mask_BT=mask_BT)
    return -token_ratio(logp_BT, old_logp_BT, mask_BT) * unpadded(adv_BT.detach(), mask_BT)


def clipped_surrogate(
    logp_BT: Tensor, old_logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """PPO's clipped surrogate with separate bounds.

        r_t = exp(ln pi(a_t) - ln pi_old(a_t))
        L_t = -min(r_t A, clip(r_t, 1 - clip_low, 1 + clip_high) A)

    Equal bounds: PPO, https://arxiv.org/abs/1707.06347. Wider `clip_high`: DAPO, https://arxiv.org/abs/2503.14476.
    Bounds are distances from 1. `old_logp_BT` is the sampling policy's. No gradient flows through `adv_BT`.
    Returns (B, T), exactly 0 where `mask_BT` is False.
    """
    need(logp_BT=logp_BT, old_logp_BT=old_logp_BT, adv_BT=adv_BT, mask_BT=mask_BT)
    check_bounds(clip_low=clip_low, clip_high=clip_high)
    ratio_BT = token_ratio(logp_BT, old_logp_BT, mask_BT)
    return pessimistic(ratio_BT, unpadded(adv_BT.detach(), mask_BT), clip_low=clip_low, clip_high=clip_high)


def dual_clip_surrogate(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    adv_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    cap: float,
) -> Tensor:
    """The clipped surrogate, with the loss of a token of negative advantage bounded too.

        L_t = min(L_t of the clip, -cap A)   where A < 0

    https://arxiv.org/abs/1912.09729. `cap` is the ratio itself (verl: 3, in most reasoning recipes 10). A token with
    A < 0 and r > cap has no gradient.
    """
    if not cap > 1:
        raise UsageError(f"the dual clip's cap is the ratio itself and must be above 1, found {cap}")
    clip_BT = clipped_surrogate(logp_BT, old_logp_BT, adv_BT, mask_BT, clip_low=clip_low, clip_high=clip_high)
    adv_BT = unpadded(adv_BT.detach(), mask_BT)
    return torch.where(adv_BT < 0, torch.minimum(clip_BT, -cap * adv_BT), clip_BT)
