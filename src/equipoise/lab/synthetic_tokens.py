"""Tokens of made-up rollouts. Every token is a choice among 16 continuations with probabilities ∝ rank^(−s).

One token in five is a fork, with a small s; the others are routine, with a large one, as in reasoning models
(https://arxiv.org/abs/2506.01939). The policy p^β has s·β in place of s, so a collapse acts on tokens exactly as it acts on
answers, and entropies and log-probs follow without further choices. Axes: R rollouts, T tokens of all of them, V continuations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FORKS = 0.2
OPTIONS = 16
FORK_S = 2.2  # entropy about 1.3 nats
ROUTINE_S = 6.0  # and more: entropy at most 0.1 nats, mean about 0.06
NARROWED = 2.5  # what full narrowing adds to a routine token's s: its entropy falls by about 80 %

_GRID_S = np.linspace(0.0, 30.0, 3001)
_RANK = np.arange(1, OPTIONS + 1)


def entropy_of(s: np.ndarray) -> np.ndarray:
    """−Σ p ln p for p ∝ rank^(−s), in nats."""
    logp = log_probs(s)
    return np.asarray(-(np.exp(logp) * logp).sum(axis=-1))


def log_probs(s: np.ndarray) -> np.ndarray:
    """ln p of each of the 16 continuations, (…, V)."""
    score = -np.asarray(s)[..., None] * np.log(_RANK)
    return np.asarray(score - np.log(np.exp(score).sum(axis=-1, keepdims=True)))


_GRID_H = entropy_of(_GRID_S)
_GRID_LOG_Z = -log_probs(_GRID_S)[:, 0]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Rollout r holds the tokens offsets[r]:offsets[r + 1]. Ids below OPTIONS continue a routine token, the others a fork."""

    offsets: np.ndarray
    id_T: np.ndarray
    entropy_T: np.ndarray
    logprob_T: np.ndarray


def draw_tokens(
    rng: np.random.Generator,
    problem_R: np.ndarray,
    fork_shift_R: np.ndarray,
    beta_R: np.ndarray,
    narrowing_R: np.ndarray,
    *,
    mean_length: int,
) -> Tokens:
    """Tokens of R rollouts. `fork_shift_R` adds to the forks' s: problems differ in how open they are.

    The likeliest continuation of a fork is the problem's own, that of a routine token follows from its position.
    """
    n = len(beta_R)
    length_R = np.maximum(4, rng.normal(mean_length, 0.2 * mean_length, n).round().astype(np.int64))
    offsets = np.concatenate([[0], np.cumsum(length_R)])
    size = int(offsets[-1])
    fork_T = rng.random(size) < FORKS
    s_T = np.where(
        fork_T,
        (FORK_S + np.repeat(fork_shift_R, length_R) + rng.uniform(-1, 1, size)).clip(0.2),
        ROUTINE_S + rng.exponential(1.0, size) + NARROWED * np.repeat(narrowing_R, length_R),
    ) * np.repeat(beta_R, length_R)
    rank_T = _sample_ranks(rng, s_T)
    logprob_T = -s_T * np.log(rank_T + 1) - np.interp(s_T, _GRID_S, _GRID_LOG_Z)
    first_T = np.where(fork_T, np.repeat(problem_R, length_R), np.arange(size) - np.repeat(offsets[:-1], length_R))
    id_T = (first_T + rank_T) % OPTIONS + OPTIONS * fork_T
    return Tokens(offsets, id_T, np.interp(s_T, _GRID_S, _GRID_H), logprob_T)


def _sample_ranks(rng: np.random.Generator, s_T: np.ndarray, *, block: int = 1 << 16) -> np.ndarray:
    """One continuation for each token, in blocks so that the (T, V) table stays small."""
    ranks = []
    for start in range(0, len(s_T), block):
        below_TV = np.exp(log_probs(s_T[start : start + block])).cumsum(axis=1)
        ranks.append((rng.random((len(below_TV), 1)) > below_TV[:, :-1]).sum(axis=1))
    return np.concatenate(ranks) if ranks else np.empty(0, np.int64)
