"""The exact KL of one model from another along given tokens, from their hidden states. Axes: N positions, D width, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from equipoise.errors import same_shape
from equipoise.models.language_model import Head

CHUNK = 2**24  # logits held at once, of each model


def exact_kl(
    hidden_ND: Tensor,
    head: Head,
    ref_hidden_ND: Tensor,
    ref_head: Head,
    *,
    temperature: float = 1.0,
    ref_temperature: float | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """KL(p‖q) = Σ_v p_v (ln p_v − ln q_v) at every position, with gradients to the first model; float32 or wider.

    `ref_temperature`: the second model's, where it is another. A model that is only cooled then has a KL too.

    Never negative, up to rounding, and without the noise of k1 to k3, which see only the sampled token. The widths of the two
    models may differ, their vocabularies must be one.
    """
    same_shape(hidden_N=hidden_ND[:, 0], ref_hidden_N=ref_hidden_ND[:, 0])
    same_shape(head_V=head.weight_VD[:, 0], ref_head_V=ref_head.weight_VD[:, 0])
    rows = max(1, chunk // head.weight_VD.shape[0])
    at = (temperature, temperature if ref_temperature is None else ref_temperature)
    parts = []
    for some_ND, ref_ND in zip(torch.split(hidden_ND, rows), torch.split(ref_hidden_ND, rows), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(_kl, some_ND, head, ref_ND, ref_head, *at, use_reentrant=False))
        else:  # nothing to save, and the checkpoint would import torch's compiler for it, which takes seconds
            parts.append(_kl(some_ND, head, ref_ND, ref_head, *at))
    return torch.cat(parts)


def _kl(
    hidden_ND: Tensor, head: Head, ref_hidden_ND: Tensor, ref_head: Head, temperature: float, ref_temperature: float
) -> Tensor:
    logp_NV = _log_softmax(hidden_ND, head, temperature)
    ref_logp_NV = _log_softmax(ref_hidden_ND.detach(), ref_head, ref_temperature).detach()
    # A banned token has p = 0 and ln p = −∞, and adds nothing.
    gap_NV = torch.where(logp_NV.isinf(), 0.0, logp_NV - ref_logp_NV)
    return (logp_NV.exp() * gap_NV).sum(-1)


def _log_softmax(hidden_ND: Tensor, head: Head, temperature: float) -> Tensor:
    return (head.logits(hidden_ND) / temperature).log_softmax(-1)
