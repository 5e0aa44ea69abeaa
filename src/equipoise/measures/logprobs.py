"""Sums over each rollout's log-probs: surprisal, drift from the reference model, and the gap between trainer and sampler.

Axes: R rollouts, T tokens. A token that any of the compared policies gives no finite log-prob is left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from equipoise.measures.frames import Frame

POLICIES = ("logprobs_rollout", "logprobs_train")
SOURCES = (None, *POLICIES)  # what the codes in `logp_from` and `drift_from` mean
TAIL = float(np.log(2))  # an importance ratio past a factor of two, either way

Skip = Callable[[str, int], None]  # told why tokens were left out, and how many


def count_logprobs(part: Frame, skip: Skip) -> dict[str, np.ndarray]:
    """All the sums that the log-probs of these rollouts allow."""
    sums: dict[str, np.ndarray] = {}
    have = [name for name in POLICIES if name in part.columns]
    with np.errstate(over="ignore", invalid="ignore"):  # log-probs may be −inf or wild: what is not finite is left out
        if have:
            sums |= _surprisal(part, have, skip)
        if have and "logprobs_ref" in part.columns:
            sums |= _drift(part, have, skip)
        if len(have) == 2:
            sums |= _gap(part, skip)
    return sums


def _surprisal(part: Frame, have: list[str], skip: Skip) -> dict[str, np.ndarray]:
    """log π of what was sampled, under the policy that sampled it where that is known."""
    logp_T, source_R = _preferred(part, have)
    part, logp_T = _finite(part, logp_T, source_R, skip)
    return {"logp_tokens": part.lengths, "logp": part.per_rollout(logp_T), "logp_from": source_R}


def _drift(part: Frame, have: list[str], skip: Skip) -> dict[str, np.ndarray]:
    """With d = log π − log π_ref: k1 = d and k3 = exp(−d) − 1 + d. The trainer's own log-probs where known."""
    logp_T, source_R = _preferred(part, have[::-1])
    source_R = np.where(part.known["logprobs_ref"], source_R, 0).astype(np.int8)
    part, d_T = _finite(part, logp_T - part.columns["logprobs_ref"], source_R, skip)
    return {
        "drift_tokens": part.lengths,
        "kl_k1": part.per_rollout(d_T),
        "kl_k3": part.per_rollout(np.exp(-d_T) - 1 + d_T),
        "drift_from": source_R,
    }


def _gap(part: Frame, skip: Skip) -> dict[str, np.ndarray]:
    """With w = π_train / π_rollout on the sampler's tokens: k1 = −log w and k3 = w − 1 − log w."""
    both_R = part.known["logprobs_train"] & part.known["logprobs_rollout"]
    log_w_T = part.columns["logprobs_train"].astype(np.float64) - part.columns["logprobs_rollout"]
    part, log_w_T = _finite(part, log_w_T, both_R, skip)
    gap_T, w_T = np.abs(log_w_T), np.exp(log_w_T)
    largest = np.zeros(len(part))
    full = np.flatnonzero(part.lengths)
    if len(full):
        largest[full] = np.maximum.reduceat(gap_T, part.offsets[full])
    wide = largest.max(initial=0) > TAIL  # in most blocks no token is
    k1_R, weight_R = -part.per_rollout(log_w_T), part.per_rollout(w_T)
    return {
        "gap_tokens": part.lengths,
        "gap_abs": part.per_rollout(gap_T),
        "gap_max": largest,
        "gap_k1": k1_R,
        "gap_k3": np.maximum(weight_R - part.lengths + k1_R, 0.0),
        "weight": weight_R,
        "weight_square": part.per_rollout(np.multiply(w_T, w_T, out=w_T)),
        "weight_tail": part.per_rollout(gap_T > TAIL) if wide else np.zeros(len(part)),
    }


def _finite(part: Frame, values_T: np.ndarray, known_R: np.ndarray, skip: Skip) -> tuple[Frame, np.ndarray]:
    """The tokens whose value is finite; others are counted where their rollout has the lists at all."""
    if np.isfinite(values_T.sum()):  # one nan or infinity would show
        return part, values_T
    finite_T = np.isfinite(values_T)
    skip("log-probs that are nan or infinite", int((~finite_T & part.spread(known_R > 0)).sum()))
    return part.where(finite_T), values_T[finite_T]


def _preferred(part: Frame, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs of the first of these policies that each rollout has, and its index in `SOURCES`."""
    values_T = part.columns[names[0]].astype(np.float64)
    source_R = np.where(part.known[names[0]], SOURCES.index(names[0]), 0).astype(np.int8)
    for name in names[1:]:
        instead_R = (source_R == 0) & part.known[name]
        if instead_R.any():
            values_T = np.where(part.spread(instead_R), part.columns[name], values_T)
            source_R[instead_R] = SOURCES.index(name)
    return values_T, source_R
