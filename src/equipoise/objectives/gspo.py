"""One policy ratio per completion. Axes: B completions, T tokens."""

from __future__ import annotations

from torch import Tensor

from equipoise.objectives.batch import need, unpadded
from equipoise.objectives.ratio import bounded_exp, check_bounds, gradient_only, log_ratio, pessimistic


def gspo_surrogate(
    logp_BT: Tensor, old_logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """GSPO, https://arxiv.org/abs/2507.18071, in its token form.

        s   = exp(mean over the completion's tokens of ln r_t)
        s_t = sg(s) pi(a_t) / sg(pi(a_t))                          the value of s, a gradient for each token
        L_t = -min(s_t A, clip(s_t, 1 - clip_low, 1 + clip_high) A)

    Reduce it with `sequence_mean`: then value and gradient are those of the sequence form; a sum over tokens counts long
    completions more than once. The ratio is a geometric mean, so its bounds are small (3e-4, 4e-4): 0.2 never clips.
    A completion without tokens gives zeros.
    """
    need(logp_BT=logp_BT, old_logp_BT=old_logp_BT, adv_BT=adv_BT, mask_BT=mask_BT)
    check_bounds(clip_low=clip_low, clip_high=clip_high)
    n_tokens_B = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    mean_B = log_ratio(logp_BT, old_logp_BT, mask_BT).detach().sum(dim=1, keepdim=True) / n_tokens_B
    ratio_BT = bounded_exp(mean_B + gradient_only(logp_BT, mask_BT))
    return pessimistic(ratio_BT, unpadded(adv_BT.detach(), mask_BT), clip_low=clip_low, clip_high=clip_high)
