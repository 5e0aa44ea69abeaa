"""Objectives again, as loops over tokens in plain Python: each gives a value and the derivative by ln pi(a), case by case.

Nothing here is differentiated by torch: the derivative is written down for each case of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.objectives.batch import TokenBatch

Pair = tuple[float, float]  # value, derivative


def random_batch(seed: int = 0, *, rows: int = 6, width: int = 9, dtype: torch.dtype = torch.float64) -> TokenBatch:
    """Off-policy completions of unequal length with holes in their masks, one of them empty, every tensor there."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(rows, width, generator=generator, dtype=torch.float64).to(dtype)

    logp = uniform(-4, 0)
    lengths = torch.randint(3, width + 1, (rows, 1), generator=generator)
    mask = (torch.arange(width) < lengths) & (uniform(0, 1) < 0.85)
    mask[rows // 2] = False
    return TokenBatch(
        logp_BT=logp,
        old_logp_BT=logp + uniform(-0.7, 0.7),
        adv_BT=uniform(-2, 2),
        mask_BT=mask,
        entropy_BT=uniform(0, 2),
        drift_BT=uniform(-1, 1),
        ref_logp_BT=logp + uniform(-1, 1),
        ref_kl_BT=uniform(0, 1),
        planning_BT=uniform(0, 1) < 0.4,
        answer_BT=uniform(0, 1) < 0.3,
    )


def loop(batch: TokenBatch, term: Callable[[int, int], Pair]) -> tuple[Tensor, Tensor]:
    """Values and derivatives of a term of each real token, 0 elsewhere."""
    value, slope = torch.zeros_like(batch.logp_BT), torch.zeros_like(batch.logp_BT)
    for b in range(batch.logp_BT.shape[0]):
        for t in range(batch.logp_BT.shape[1]):
            if batch.mask_BT[b, t]:
                value[b, t], slope[b, t] = term(b, t)
    return value, slope


def at(batch: TokenBatch, b: int, t: int) -> tuple[float, float, float]:
    """Log-prob, ratio and advantage of a token."""
    logp, old = batch.logp_BT[b, t].item(), batch.old_logp_BT[b, t].item()
    return logp, math.exp(logp - old), batch.adv_BT[b, t].item()


def clip_case(r: float, a: float, low: float, high: float) -> Pair:
    if a > 0 and r > 1 + high:
        return -(1 + high) * a, 0.0
    if a < 0 and r < 1 - low:
        return -(1 - low) * a, 0.0
    return -r * a, -r * a


def slow_clip(batch: TokenBatch, low: float, high: float) -> tuple[Tensor, Tensor]:
    return loop(batch, lambda b, t: clip_case(*at(batch, b, t)[1:], low, high))


def slow_unclipped(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    return slow_clip(batch, math.inf, math.inf)


def slow_dual_clip(batch: TokenBatch, low: float, high: float, cap: float) -> tuple[Tensor, Tensor]:
    def term(b: int, t: int) -> Pair:
        _, r, a = at(batch, b, t)
        return (-cap * a, 0.0) if a < 0 and r > cap else clip_case(r, a, low, high)

    return loop(batch, term)


def slow_gspo(batch: TokenBatch, low: float, high: float) -> tuple[Tensor, Tensor]:
    def term(b: int, t: int) -> Pair:
        real = [u for u in range(batch.logp_BT.shape[1]) if batch.mask_BT[b, u]]
        logs = [batch.logp_BT[b, u].item() - batch.old_logp_BT[b, u].item() for u in real]
        return clip_case(math.exp(sum(logs) / len(logs)), batch.adv_BT[b, t].item(), low, high)

    return loop(batch, term)


def slow_cispo(batch: TokenBatch, floor: float, cap: float) -> tuple[Tensor, Tensor]:
    def term(b: int, t: int) -> Pair:
        logp, r, a = at(batch, b, t)
        weight = floor if r < floor else cap if r > cap else r
        return -weight * a * logp, -weight * a

    return loop(batch, term)


def slow_gppo(batch: TokenBatch, low: float, high: float, beta_low: float, beta_high: float) -> tuple[Tensor, Tensor]:
    """The table of gradient weights in 2508.07629 and 2509.20712."""

    def term(b: int, t: int) -> Pair:
        _, r, a = at(batch, b, t)
        if a > 0 and r > 1 + high:
            return -(1 + high) * a, -beta_high * (1 + high) * a
        if a < 0 and r < 1 - low:
            return -(1 - low) * a, -beta_low * (1 - low) * a
        return -r * a, -r * a

    return loop(batch, term)


def real_tokens(batch: TokenBatch) -> list[tuple[int, int]]:
    return [(b, t) for b, t in batch.mask_BT.nonzero().tolist()]


def slow_covariances(batch: TokenBatch) -> dict[tuple[int, int], float]:
    tokens = real_tokens(batch)
    logp = {token: batch.logp_BT[token].item() for token in tokens}
    adv = {token: batch.adv_BT[token].item() for token in tokens}
    mean_logp, mean_adv = math.fsum(logp.values()) / len(tokens), math.fsum(adv.values()) / len(tokens)
    return {token: (adv[token] - mean_adv) * (logp[token] - mean_logp) for token in tokens}


def slow_kl_cov(batch: TokenBatch, chosen: set[tuple[int, int]], coef: float) -> tuple[Tensor, Tensor]:
    def term(b: int, t: int) -> Pair:
        _, r, a = at(batch, b, t)
        if (b, t) not in chosen:
            return -r * a, -r * a
        return -r * a + coef * abs(math.log(r)), -r * a + coef * math.copysign(1, math.log(r))

    return loop(batch, term)


def slow_kl(batch: TokenBatch, kind: str, coef: float) -> tuple[Tensor, Tensor]:
    def term(b: int, t: int) -> Pair:
        d = batch.logp_BT[b, t].item() - batch.ref_logp_BT[b, t].item()
        value, slope = {"k1": (d, 1), "k2": (d * d / 2, d), "k3": (math.exp(-d) - 1 + d, 1 - math.exp(-d))}[kind]
        return coef * value, coef * slope

    return loop(batch, term)


def with_gradient(function: Callable[[Tensor], Tensor], logp_BT: Tensor) -> tuple[Tensor, Tensor]:
    """A per-token function's values, and the derivative of their sum by each log-prob."""
    leaf = logp_BT.detach().clone().requires_grad_()
    value_BT = function(leaf)
    return value_BT.detach(), torch.autograd.grad(value_BT.sum(), leaf)[0]
