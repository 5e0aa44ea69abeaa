"""What a browser of rollouts tells of one completion: its mean and 95 % entropy, from where its tokens fork, its flags.

Numbers of one rollout, seen as it is: nothing is estimated, so they have no interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.measures.forks import SHARE
from equipoise.measures.tokens import MAX_ENTROPY, NOISE
from equipoise.text.reading import read_facts

P95 = 0.95


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """None: the rollout has no token entropies."""

    mean_entropy: float | None
    p95_entropy: float | None
    fork_from: float | None  # tokens from this entropy on are this rollout's top fifth; None also where none stands out
    flags: tuple[str, ...]  # of `text.degenerate.FLAGS`, "truncated" and "no answer"


def describe_rollout(
    entropies_T: np.ndarray | None, text: str | None, *, finish: str | None, outcome: str | None
) -> RolloutFacts:
    """Facts of one rollout. Quantiles are those entropies themselves (inverse of the distribution function), not between two."""
    flags = () if text is None else read_facts(text).flags
    if finish == "length":
        flags = ("truncated", *flags)
    if outcome == "unparsable":
        flags = ("no answer", *flags)
    usable_T = _usable(entropies_T)
    if usable_T is None:
        return RolloutFacts(None, None, None, flags)
    p95, fork_from = np.quantile(usable_T, [P95, 1 - SHARE], method="inverted_cdf")
    # The quantile itself ends the lower four fifths; what lies above it is the top fifth, or less where tokens tie.
    above_T = usable_T[usable_T > fork_from]
    return RolloutFacts(float(usable_T.mean()), float(p95), float(above_T.min()) if above_T.size else None, flags)


def _usable(entropies_T: np.ndarray | None) -> np.ndarray | None:
    """As the token measures take them: finite, and not below 0 by more than rounding."""
    if entropies_T is None:
        return None
    H_T = np.asarray(entropies_T, dtype=np.float64)
    H_T = H_T[(H_T <= MAX_ENTROPY) & (H_T > -NOISE)]
    return np.maximum(H_T, 0.0) if H_T.size else None
