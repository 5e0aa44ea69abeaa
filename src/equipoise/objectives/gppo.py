"""Clipped tokens that keep a bounded gradient: GPPO and CE-GPPO. Axes: B completions, T tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.objectives.batch import unpadded
from equipoise.objectives.clipped import clipped_surrogate, dual_clip_surrogate
from equipoise.objectives.ratio import gradient_only, token_ratio


def gppo_surrogate(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    adv_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    beta_low: float = 1.0,
    beta_high: float = 1.0,
    dual_clip: float | None = None,
) -> Tensor:
    """The value of the clip with the gradient -A w_t of ln pi(a_t):

        A > 0 and r > 1 + clip_high    w = beta_high (1 + clip_high)     PPO: 0
        A < 0 and r < 1 - clip_low     w = beta_low (1 - clip_low)       PPO: 0
        otherwise                      w = r

    GPPO, https://arxiv.org/abs/2508.07629: both betas 1. CE-GPPO, https://arxiv.org/abs/2509.20712: beta_low = 0.5 or 0.75.
    Both 0: PPO. The betas act on the gradient alone: the value is the clipped surrogate's whatever they are, so that
    logged losses compare (the released general form scales the value as well). With `dual_clip` a token with A < 0 and
    r > dual_clip has no gradient, as in the released recipe, which has 10.
    """
    if not (beta_low >= 0 and beta_high >= 0):
        raise UsageError(f"GPPO's betas must be 0 or more, found beta_low={beta_low} and beta_high={beta_high}")
    bounds = {"clip_low": clip_low, "clip_high": clip_high}
    if dual_clip is None:
        clip_BT = clipped_surrogate(logp_BT, old_logp_BT, adv_BT, mask_BT, **bounds)
    else:
        clip_BT = dual_clip_surrogate(logp_BT, old_logp_BT, adv_BT, mask_BT, **bounds, cap=dual_clip)
    adv_BT = unpadded(adv_BT.detach(), mask_BT)
    ratio_BT = token_ratio(logp_BT, old_logp_BT, mask_BT).detach()
    # The clip has no gradient in the two regions, so all of theirs is added here, at a value of 0.
    back_BT = torch.zeros_like(ratio_BT)
    back_BT = torch.where((adv_BT > 0) & (ratio_BT > 1 + clip_high), beta_high * (1 + clip_high), back_BT)
    back_BT = torch.where((adv_BT < 0) & (ratio_BT < 1 - clip_low), beta_low * (1 - clip_low), back_BT)
    return clip_BT - back_BT * adv_BT * gradient_only(logp_BT, mask_BT)
