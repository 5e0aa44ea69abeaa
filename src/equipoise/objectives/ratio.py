"""The policy ratio of each token, safe under padding and against overflow. Axes: B completions, T tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.objectives.batch import unpadded

# exp(20) is 5e8. Such a ratio is a fault upstream; beyond it the value stands still and the gradient is 0 rather than inf
# or nan, as in verl.
LARGEST_LOG_RATIO = 20.0


def log_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """ln pi(a) - ln pi_old(a), 0 under the padding. No gradient flows into `old_logp_BT`."""
    return unpadded(logp_BT - old_logp_BT.detach(), mask_BT)


def bounded_exp(log_BT: Tensor) -> Tensor:
    return log_BT.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def token_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """r_t = pi(a_t) / pi_old(a_t), 1 under the padding."""
    return bounded_exp(log_ratio(logp_BT, old_logp_BT, mask_BT))


def gradient_only(logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """0 everywhere, with the gradient of ln pi(a_t): ln pi - sg(ln pi)."""
    return unpadded(logp_BT - logp_BT.detach(), mask_BT)


def check_bounds(**bounds: float) -> None:
    """Distances from 1 are not negative. A bound such as 1.2 itself cannot be told from a wide distance."""
    for name, bound in bounds.items():
        if not bound >= 0:
            raise UsageError(f"{name} must be a distance from 1, 0 or more, found {bound}")


def pessimistic(ratio_BT: Tensor, adv_BT: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)."""
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio_BT * adv_BT, clipped_BT * adv_BT)
