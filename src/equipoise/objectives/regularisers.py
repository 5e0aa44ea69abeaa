"""Terms added to the loss, per token. Token weights do not multiply them. Axes: B completions, T tokens."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.errors import unknown_name
from equipoise.objectives.batch import missing, need, unpadded
from equipoise.objectives.ratio import LARGEST_LOG_RATIO, token_ratio

Estimator = Literal["k1", "k2", "k3"]
Kind = Literal["k1", "k2", "k3", "exact"]


def entropy_bonus(entropy_BT: Tensor, mask_BT: Tensor, *, coef: float) -> Tensor:
    """L_t = -coef H_t (https://arxiv.org/abs/1602.01783), H_t in nats over the full vocabulary.

    What `coef` means depends on the reduction. Under `token_mean` it is TRL's, whose bonus is a mean over tokens with any
    loss; verl divides the bonus as it divides the loss. No weight multiplies it: a bonus on forking tokens alone is weaker.
    """
    need(entropy_BT=entropy_BT, mask_BT=mask_BT)
    return -coef * unpadded(entropy_BT, mask_BT)


def kl_to_reference(
    logp_BT: Tensor,
    mask_BT: Tensor,
    ref_logp_BT: Tensor | None = None,
    ref_kl_BT: Tensor | None = None,
    *,
    coef: float,
    kind: Kind = "k3",
) -> Tensor:
    """L_t = coef KL_t, with d = ln pi(a_t) - ln pi_ref(a_t) of the token that was sampled:

        k1     d                  unbiased value, of either sign; as a loss useless: its mean gradient is 0
        k2     d^2 / 2            biased value; its mean gradient is that of KL(pi, ref), on-policy
        k3     exp(-d) - 1 + d    unbiased value, never negative; its mean gradient is that of KL(ref, pi), the other way round
        exact  `ref_kl_BT`        both softmaxes at each position: value and gradient of KL(pi, ref) there

    Values: http://joschu.net/blog/kl-approx.html, gradients: https://arxiv.org/abs/2506.09477. k3 is verl's `low_var_kl`.
    """
    need(logp_BT=logp_BT, mask_BT=mask_BT)
    if kind == "exact":
        if ref_kl_BT is None:
            raise missing("ref_kl_BT", needed_by="an exact KL to the reference")
        need(logp_BT=logp_BT, ref_kl_BT=ref_kl_BT)
        return coef * unpadded(ref_kl_BT, mask_BT)
    return coef * _sampled_kl(logp_BT, mask_BT, ref_logp_BT, kind)


def corrected_kl_to_reference(
    logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor, ref_logp_BT: Tensor, *, coef: float, kind: Estimator = "k3"
) -> Tensor:
    """L_t = coef r_t KL_t: importance-weighted, so that value and gradient of k1 and k3 are those of KL(pi, ref), off-policy too.

    TRL's default (`use_bias_correction_kl`), from https://arxiv.org/abs/2512.02556.
    """
    need(logp_BT=logp_BT, old_logp_BT=old_logp_BT, mask_BT=mask_BT)
    kl_BT = _sampled_kl(logp_BT, mask_BT, ref_logp_BT, kind)
    return coef * token_ratio(logp_BT, old_logp_BT, mask_BT) * kl_BT


def _sampled_kl(logp_BT: Tensor, mask_BT: Tensor, ref_logp_BT: Tensor | None, kind: str) -> Tensor:
    if kind not in get_args(Estimator):
        raise unknown_name("kind of KL", kind, get_args(Kind))
    if ref_logp_BT is None:
        raise missing("ref_logp_BT", needed_by=f"a KL to the reference of kind {kind}")
    need(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)
    d_BT = unpadded(logp_BT - ref_logp_BT.detach(), mask_BT)
    if kind == "k1":
        return d_BT
    if kind == "k2":
        return d_BT.square() / 2
    return torch.expm1((-d_BT).clamp(max=LARGEST_LOG_RATIO)) + d_BT
