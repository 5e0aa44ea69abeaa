"""A bounded importance weight on the log-prob: no token loses its gradient. Axes: B completions, T tokens."""

from __future__ import annotations

from torch import Tensor

from equipoise.errors import UsageError
from equipoise.objectives.batch import need, unpadded
from equipoise.objectives.ratio import token_ratio


def cispo_surrogate(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    adv_BT: Tensor,
    mask_BT: Tensor,
    *,
    weight_cap: float,
    weight_floor: float | None = None,
) -> Tensor:
    """CISPO, https://arxiv.org/abs/2506.13585.

        L_t = -sg(clip(r_t, weight_floor, weight_cap)) A ln pi(a_t)

    Bounds are the weights themselves. No floor is the paper's and TRL's form (TRL's `epsilon_high` is this cap); verl
    bounds both sides, at 1 - clip_ratio_low and 1 + clip_ratio_high. The value holds ln pi, so it is no estimate of the
    return and not comparable with that of a ratio loss; its gradient is.
    """
    need(logp_BT=logp_BT, old_logp_BT=old_logp_BT, adv_BT=adv_BT, mask_BT=mask_BT)
    if not weight_cap > 0 or (weight_floor is not None and not 0 <= weight_floor <= weight_cap):
        raise UsageError(
            f"CISPO needs 0 <= weight_floor <= weight_cap, found {weight_floor} and {weight_cap}: they are the weights "
            "themselves, not distances from 1"
        )
    weight_BT = token_ratio(logp_BT, old_logp_BT, mask_BT).detach().clamp(min=weight_floor, max=weight_cap)
    return -weight_BT * unpadded(adv_BT.detach(), mask_BT) * unpadded(logp_BT, mask_BT)
