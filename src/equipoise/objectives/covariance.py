"""Clip-Cov and KL-Cov: a few tokens drain the entropy, those whose log-prob and advantage are high together.

https://arxiv.org/abs/2505.22617. Axes: B completions, T tokens. Each method makes its choice from the tensors that it is given
(per micro-batch, as in the released code), or over the whole step under its `_step` name. Covariances carry no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.objectives.batch import need, unpadded
from equipoise.objectives.clipped import clipped_surrogate, unclipped_surrogate
from equipoise.objectives.ratio import log_ratio, token_ratio
from equipoise.objectives.regularisers import Kind, kl_to_reference
from equipoise.objectives.stepwide import StepWide


def token_covariance(logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """cov_t = (A_t - mean A) (ln pi(a_t) - mean ln pi), means over the real tokens; 0 under the padding."""
    need(logp_BT=logp_BT, adv_BT=adv_BT, mask_BT=mask_BT)
    n_tokens = mask_BT.sum().clamp(min=1)
    logp_BT, adv_BT = unpadded(logp_BT.detach(), mask_BT), unpadded(adv_BT.detach(), mask_BT)
    centred_BT = (adv_BT - adv_BT.sum() / n_tokens) * (logp_BT - logp_BT.sum() / n_tokens)
    return unpadded(centred_BT, mask_BT)


# ---------------------------------------------------------------- choices: (B, T) bool, never under the padding


def draw_in_band(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    adv_BT: Tensor,
    mask_BT: Tensor,
    *,
    share: float,
    low: float,
    high: float,
    clip_low: float,
    clip_high: float,
    at_least: int = 0,
    seed: int | torch.Generator = 0,
) -> Tensor:
    """Clip-Cov's tokens: ⌊share N⌋ drawn without replacement from those with low < cov < high that the clip leaves alone.

    The draw goes by place in the batch, so another order of rows draws other tokens. Equal seeds draw equal places: move
    the seed with every update, or pass a CPU generator that goes on.
    """
    need(logp_BT=logp_BT, old_logp_BT=old_logp_BT, adv_BT=adv_BT, mask_BT=mask_BT)
    cov_BT = token_covariance(logp_BT, adv_BT, mask_BT)
    ratio_BT, adv_BT = token_ratio(logp_BT, old_logp_BT, mask_BT).detach(), unpadded(adv_BT.detach(), mask_BT)
    clipped_BT = ((adv_BT > 0) & (ratio_BT > 1 + clip_high)) | ((adv_BT < 0) & (ratio_BT < 1 - clip_low))
    candidates = (mask_BT & ~clipped_BT & (cov_BT > low) & (cov_BT < high)).flatten().nonzero().squeeze(1)
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    order = torch.randperm(len(candidates), generator=generator).to(candidates.device)
    return _marked(mask_BT, candidates[order[: _count(mask_BT, share, at_least)]])


def top_covariance(logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, *, share: float, at_least: int = 0) -> Tensor:
    """KL-Cov's tokens: the ⌊share N⌋ of highest covariance, whatever its sign; of equal ones the first."""
    return _highest(token_covariance(logp_BT, adv_BT, mask_BT), mask_BT, _count(mask_BT, share, at_least))


def both_tails(logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, *, share: float, at_least: int = 0) -> Tensor:
    """The ⌊share N⌋ tokens of highest and the ⌊share N⌋ of lowest covariance."""
    cov_BT, count = token_covariance(logp_BT, adv_BT, mask_BT), _count(mask_BT, share, at_least)
    return _highest(cov_BT, mask_BT, count) | _highest(-cov_BT, mask_BT, count)


# ---------------------------------------------------------------- surrogates


def clip_cov(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    adv_BT: Tensor,
    mask_BT: Tensor,
    chosen_BT: Tensor | None = None,
    *,
    share: float,
    low: float,
    high: float,
    clip_low: float,
    clip_high: float,
    at_least: int = 0,
    seed: int | torch.Generator = 0,
) -> Tensor:
    """The clipped surrogate, with the loss of the drawn tokens 0; the denominator keeps them.

    Share 0 is the clipped surrogate itself. The released code draws at least one token: `at_least=1`.
    """
    if chosen_BT is None:
        chosen_BT = draw_in_band(
            logp_BT,
            old_logp_BT,
            adv_BT,
            mask_BT,
            share=share,
            low=low,
            high=high,
            clip_low=clip_low,
            clip_high=clip_high,
            at_least=at_least,
            seed=seed,
        )
    loss_BT = clipped_surrogate(logp_BT, old_logp_BT, adv_BT, mask_BT, clip_low=clip_low, clip_high=clip_high)
    need(logp_BT=logp_BT, chosen_BT=chosen_BT)
    return torch.where(chosen_BT, 0.0, loss_BT)


def kl_cov(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    adv_BT: Tensor,
    mask_BT: Tensor,
    chosen_BT: Tensor | None = None,
    *,
    share: float,
    coef: float,
    at_least: int = 0,
) -> Tensor:
    """L_t = -r_t A, and + coef |ln r_t| on the tokens of highest covariance. No clip.

    The penalty is an L1 norm of the log-ratio, as released, not a KL: its gradient is ±coef and, at r = 1, exactly 0,
    so that it does nothing on-policy. Share or coef 0 is the unclipped surrogate; the released code: `at_least=1`.
    """
    if chosen_BT is None:
        chosen_BT = top_covariance(logp_BT, adv_BT, mask_BT, share=share, at_least=at_least)
    return _with_log_ratio_penalty(logp_BT, old_logp_BT, adv_BT, mask_BT, chosen_BT, coef=coef)


def kl_cov_two_sided(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    adv_BT: Tensor,
    mask_BT: Tensor,
    chosen_BT: Tensor | None = None,
    *,
    share: float,
    coef: float,
    at_least: int = 0,
) -> Tensor:
    """KL-Cov on both tails: the lowest covariances, which inflate the entropy, are held back as well."""
    if chosen_BT is None:
        chosen_BT = both_tails(logp_BT, adv_BT, mask_BT, share=share, at_least=at_least)
    return _with_log_ratio_penalty(logp_BT, old_logp_BT, adv_BT, mask_BT, chosen_BT, coef=coef)


def kl_cov_reference(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    adv_BT: Tensor,
    mask_BT: Tensor,
    ref_logp_BT: Tensor | None = None,
    ref_kl_BT: Tensor | None = None,
    chosen_BT: Tensor | None = None,
    *,
    share: float,
    coef: float,
    at_least: int = 0,
    kind: Kind = "k2",
) -> Tensor:
    """L_t = -r_t A, and + coef KL_t(pi, reference) on the tokens of highest covariance.

    Unlike the penalty on the ratio it acts on-policy too. `kind` is that of `kl_to_reference`: k2 from log-probs (its
    gradient is the KL's), `exact` where `ref_kl_BT` is known.
    """
    if chosen_BT is None:
        chosen_BT = top_covariance(logp_BT, adv_BT, mask_BT, share=share, at_least=at_least)
    need(logp_BT=logp_BT, chosen_BT=chosen_BT)
    kl_BT = kl_to_reference(logp_BT, mask_BT, ref_logp_BT, ref_kl_BT, coef=coef, kind=kind)
    return unclipped_surrogate(logp_BT, old_logp_BT, adv_BT, mask_BT) + torch.where(chosen_BT, kl_BT, 0.0)


clip_cov_step = StepWide(draw_in_band, clip_cov)
kl_cov_step = StepWide(top_covariance, kl_cov)
kl_cov_two_sided_step = StepWide(both_tails, kl_cov_two_sided)
kl_cov_reference_step = StepWide(top_covariance, kl_cov_reference)


def _with_log_ratio_penalty(
    logp_BT: Tensor, old_logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, chosen_BT: Tensor, *, coef: float
) -> Tensor:
    need(logp_BT=logp_BT, old_logp_BT=old_logp_BT, chosen_BT=chosen_BT, mask_BT=mask_BT)
    penalty_BT = torch.where(chosen_BT, coef * log_ratio(logp_BT, old_logp_BT, mask_BT).abs(), 0.0)
    return unclipped_surrogate(logp_BT, old_logp_BT, adv_BT, mask_BT) + penalty_BT


def _count(mask_BT: Tensor, share: float, at_least: int) -> int:
    if not 0 <= share <= 1:
        raise UsageError(f"share must be a share of the tokens, 0 to 1, found {share}")
    n_tokens = int(mask_BT.sum())
    return min(max(int(share * n_tokens), at_least), n_tokens)


def _highest(values_BT: Tensor, mask_BT: Tensor, count: int) -> Tensor:
    places = mask_BT.flatten().nonzero().squeeze(1)
    order = values_BT.flatten()[places].sort(descending=True, stable=True).indices
    return _marked(mask_BT, places[order[:count]])


def _marked(mask_BT: Tensor, places: Tensor) -> Tensor:
    """True at these places of the flattened batch."""
    chosen = torch.zeros(mask_BT.numel(), dtype=torch.bool, device=mask_BT.device)
    chosen[places] = True
    return chosen.view(mask_BT.shape)
