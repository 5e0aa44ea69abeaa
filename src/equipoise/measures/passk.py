"""pass@k and pass^k: how often at least one, or every one, of k completions is right. Axes: P problems, K values of k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.errors import UsageError
from equipoise.measures.arms import Arm, Spread, Window, arms_of, summarise, unmatched
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import mean_of_prompts, paired_difference
from equipoise.measures.subsets import check_ks, common_size, default_ks, missed_share

VERDICTS = "verdicts (column correct, outcome or a two-valued reward; --solved-at for a graded one)"


def pass_at_k(*, correct: int, drawn: int, k: int) -> float:
    """1 - C(drawn - correct, k) / C(drawn, k), unbiased for k <= drawn (https://arxiv.org/abs/2107.03374)."""
    if k > drawn:
        raise UsageError(f"pass@{k} needs {k} completions, this problem has {drawn}: draw more, or use k <= {drawn}")
    return 1 - comb(drawn - correct, k) / comb(drawn, k)


def pass_hat_k(*, correct: int, drawn: int, k: int) -> float:
    """C(correct, k) / C(drawn, k): all k are right, unbiased for k <= drawn (https://arxiv.org/abs/2406.12045)."""
    if k > drawn:
        raise UsageError(f"pass^{k} needs {k} completions, this problem has {drawn}: draw more, or use k <= {drawn}")
    return comb(correct, k) / comb(drawn, k)


def pass_at_k_of(correct_P: np.ndarray, drawn_P: np.ndarray, k: int) -> np.ndarray:
    """pass@k of every problem, nan where fewer than k were drawn."""
    return 1 - missed_share(correct_P, drawn_P, k)


def pass_hat_k_of(correct_P: np.ndarray, drawn_P: np.ndarray, k: int) -> np.ndarray:
    """pass^k of every problem, nan where fewer than k were drawn: no wrong one among k."""
    return missed_share(drawn_P - correct_P, drawn_P, k)


def crossing(ks: Sequence[int], difference_K: np.ndarray) -> float | None:
    """The k from which the difference is negative and stays so, by a straight line in log2 k; None where it never is.

    ks[0] where it is negative throughout.
    """
    if difference_K[-1] >= 0:
        return None
    last = np.flatnonzero(difference_K >= 0)
    if not len(last):
        return float(ks[0])
    i = int(last[-1])
    share = difference_K[i] / (difference_K[i] - difference_K[i + 1])
    low, high = np.log2(ks[i]), np.log2(ks[i + 1])
    return float(2 ** (low + share * (high - low)))


def estimate_passk(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """pass@k and pass^k per condition; against a baseline their differences and where the two curves cross."""
    asked = check_ks(options.k)
    if not evidence.answers.has("correct"):
        return [Estimate("pass@k", None, missing=VERDICTS)]
    known = baseline is not None and baseline.answers.has("correct")
    estimates: list[Estimate] = []
    for arm in arms_of(evidence.answers, baseline.answers if baseline is not None and known else None):
        for k in asked or default_ks(_drawn(arm.late)):
            part = arm if asked else arm.with_samples(k, _drawn)
            estimates += [e for spread in _spreads(k) for e in summarise(spread, part)]
            estimates += _of_baseline(part, k)
        estimates += unmatched("pass@k", arm)
        if arm.base is not None:
            estimates.append(_crossing_estimate(arm))
    if baseline is not None and not known:
        estimates.append(
            Estimate("pass@k_vs_baseline", None, at={"against": "baseline"}, missing=f"for the baseline: {VERDICTS}")
        )
    return estimates


def _of_baseline(arm: Arm, k: int) -> list[Estimate]:
    """The baseline's own pass@k on the problems that it shares with the run: `pass@8_of_baseline`."""
    if arm.base is None or arm.against is None:
        return []
    counts, shared = arm.base.counts, arm.against[1]
    values_P = pass_at_k_of(counts.correct_P[shared], counts.drawn_P[shared], k)
    known = values_P[np.isfinite(values_P)]
    if not len(known):
        return []
    found, out = mean_of_prompts(known, bounds=(0, 1)), len(values_P) - len(known)
    note = f"; left out: {out} of {len(values_P)} problems (fewer than {k} judged samples)" if out else ""
    at = dict(arm.late.at) | {"against": "baseline", "k": k}
    how = f"1 − C(n−c,k)/C(n,k), problems of the run; {found.how}{note}{arm.unlike}"
    return [Estimate(f"pass@{k}_of_baseline", found.value, found.low, found.high, found.n, at, how)]


def _drawn(window: Window) -> np.ndarray:
    return window.counts.drawn_P


def _spreads(k: int) -> list[Spread]:
    def of(form: Callable[[np.ndarray, np.ndarray, int], np.ndarray]) -> Callable[[Window], np.ndarray]:
        return lambda window: form(window.counts.correct_P, window.counts.drawn_P, k)

    short, missing = f"fewer than {k} judged samples", f"draw ≥ {k} samples per problem"
    return [
        Spread(f"pass@{k}", of(pass_at_k_of), "1 − C(n−c,k)/C(n,k)", short, missing, (0, 1), at={"k": k}),
        Spread(f"pass^{k}", of(pass_hat_k_of), "C(c,k)/C(n,k)", short, missing, (0, 1), at={"k": k}),
    ]


def _crossing_estimate(arm: Arm) -> Estimate:
    """Where the run's pass@k curve falls below the baseline's, on the problems that have all the samples in both.

    Interval: the ks at which the paired 95% interval of the difference holds zero. The true crossing is a k with a
    difference of zero, and there the interval holds zero in 95% of the cases, so the set holds that k as often.
    """
    assert arm.base is not None
    assert arm.against is not None
    mine, theirs = arm.against
    run, base = arm.late.counts, arm.base.counts
    fewest_P = np.minimum(run.drawn_P[mine], base.drawn_P[theirs])
    ks = _grid(common_size(fewest_P))
    at: dict[str, Any] = dict(arm.late.at) | {"against": "baseline"}
    if len(ks) < 2:
        return Estimate("crossing_k", None, at=at, missing="draw ≥ 2 samples per problem, in both")
    kept = fewest_P >= ks[-1]
    mine, theirs = mine[kept], theirs[kept]
    found = []
    for k in ks:
        ours = pass_at_k_of(run.correct_P[mine], run.drawn_P[mine], k)
        found.append(
            paired_difference(ours, pass_at_k_of(base.correct_P[theirs], base.drawn_P[theirs], k), bounds=(0, 1))
        )
    at["k"], n = [ks[0], ks[-1]], len(mine)
    how = "smallest k from which pass@k stays below the baseline's, by a line in log2 k" + arm.unlike
    value = crossing(ks, np.asarray([each.value for each in found]))
    if value is None:
        return Estimate(
            "crossing_k",
            None,
            n=n,
            at=at,
            how=how,
            missing=f"no crossing up to k = {ks[-1]}: draw more to look further",
        )
    low, high, is_open = _crossing_interval(ks, [each.low for each in found], [each.high for each in found])
    how += "; interval: the ks at which the paired interval of the difference holds 0"
    if is_open:
        how += f", open above: at k = {ks[-1]}, the last, the run is not surely below the baseline"
    return Estimate("crossing_k", value, low, high, n, at, how)


def _grid(most: int) -> list[int]:
    """1 … most: every k up to 16, then eight to the octave."""
    octave = [round(16 * 2 ** (i / 8)) for i in range(1, 8 * max(0, most.bit_length() - 4))]
    return sorted({k for k in (*range(1, 17), *octave, most) if 1 <= k <= most})


def _crossing_interval(
    ks: Sequence[int], low_K: Sequence[float | None], high_K: Sequence[float | None]
) -> tuple[float | None, float | None, bool]:
    """From the first k at which the difference may be negative to the last at which it may be zero; and whether it may at the end."""
    # Too few problems differ for an interval: the difference may be anything.
    lows = np.asarray([-1.0 if low is None else low for low in low_K])
    highs = np.asarray([1.0 if high is None else high for high in high_K])
    first = int(np.flatnonzero(lows < 0)[0])
    low = float(ks[0]) if first == 0 else crossing(ks[first - 1 : first + 1], lows[first - 1 : first + 1])
    if highs[-1] >= 0:
        return low, float(ks[-1]), True
    return low, crossing(ks, highs), False
