"""Which completions are learnt from. Axes: P groups, G completions each.

A filter on success reads raw verdicts, by the name `correct_PG`, and refuses anything but 0, 1 and nan. On a shaped reward it
would let through all-wrong groups that differ only in length, and dividing by their small spread makes full-size gradients of
that.

Each returns a narrower `keep_PG` with the reasons. Filters chain through it. What is left out of the loss may still count in
the baseline: give the advantage the mask from before the filter, or the one from after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from equipoise.errors import UsageError
from equipoise.shaping.inputs import numbers, verdicts


@dataclass(frozen=True, slots=True)
class Kept:
    """What a filter left, and for each reason the completions that it took out. No completion has two reasons."""

    keep_PG: np.ndarray
    dropped: Mapping[str, np.ndarray]  # reason → bool (P, G)

    @property
    def counts(self) -> dict[str, int]:
        """Completions by reason."""
        return {reason: int(mask_PG.sum()) for reason, mask_PG in self.dropped.items()}

    @property
    def groups(self) -> dict[str, int]:
        """Groups touched, by reason."""
        return {reason: int(mask_PG.any(axis=1).sum()) for reason, mask_PG in self.dropped.items()}


def mixed_groups(*, correct_PG: np.ndarray | None, keep_PG: np.ndarray) -> Kept:
    """Dynamic sampling: only groups with 0 < right < n of the checked ones (DAPO, https://arxiv.org/abs/2503.14476).

    The rest carries no signal about success. A group without any verdict is left out as "unchecked": it may be anything.
    The batch is to be refilled by whoever draws it.
    """
    correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
    any_right_P1 = (correct_PG == 1).any(axis=1, keepdims=True)
    any_wrong_P1 = (correct_PG == 0).any(axis=1, keepdims=True)
    return _without(
        keep_PG,
        all_wrong=~any_right_P1 & any_wrong_P1,
        all_right=any_right_P1 & ~any_wrong_P1,
        unchecked=~any_right_P1 & ~any_wrong_P1,
    )


@dataclass(frozen=True, slots=True)
class Piloted(Kept):
    """Decisions on groups: "commit", "skip", "defer" or, with too few verdicts for any of them, "unknown"."""

    decision_P: tuple[str, ...]
    rate_P: np.ndarray  # right / checked, nan where nothing was


def pilot_groups(
    *,
    correct_PG: np.ndarray | None,
    keep_PG: np.ndarray,
    draws: int = 16,
    defer_below: float = 0.125,
    skip_above: float = 0.75,
) -> Piloted:
    """Too easy, too hard, or worth more draws, from the verdicts of a pilot of `draws` completions.

        p̂ = right / checked;   skip where p̂ > skip_above, defer where p̂ < defer_below, else commit

    Fewer than `draws` verdicts decide nothing: "unknown", and the group is kept. Deferring is for now, never for good. None
    right of n does not say that a problem cannot be solved (the 95% bound on its rate is 1 − 0.05^(1/n): 0.31 at 8, 0.17 at
    16), so it has a reason of its own, "none_right": such a problem comes back, and its key is worth a look. On overly hard
    samples: https://arxiv.org/abs/2605.28388.
    """
    if draws < 1 or not 0 <= defer_below <= skip_above <= 1:
        raise UsageError(
            f"a pilot needs draws >= 1 and 0 <= defer_below <= skip_above <= 1, "
            f"found draws={draws}, defer_below={defer_below:g}, skip_above={skip_above:g}"
        )
    correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
    checked_P = (~np.isnan(correct_PG)).sum(axis=1)
    right_P = np.nansum(correct_PG, axis=1)
    rate_P = np.where(checked_P > 0, right_P / np.maximum(checked_P, 1), np.nan)
    decided_P = checked_P >= draws
    easy_P = decided_P & (rate_P > skip_above)
    hard_P = decided_P & (rate_P < defer_below)
    kept = _without(
        keep_PG,
        too_easy=easy_P[:, None],
        too_hard=(hard_P & (right_P > 0))[:, None],
        none_right=(hard_P & (right_P == 0))[:, None],
    )
    decision_P = np.select([~decided_P, easy_P, hard_P], ["unknown", "skip", "defer"], "commit")
    return Piloted(kept.keep_PG, kept.dropped, tuple(decision_P.tolist()), rate_P)


def drop_degenerate(*, degenerate_PG: np.ndarray | None, keep_PG: np.ndarray) -> Kept:
    """Nothing from texts flagged as degenerate (`text.degenerate`), right or wrong. One whose text was not read is kept."""
    return _without(keep_PG, degenerate=verdicts(keep_PG, degenerate_PG=degenerate_PG) == 1)


def drop_shortcuts(*, correct_PG: np.ndarray | None, degenerate_PG: np.ndarray | None, keep_PG: np.ndarray) -> Kept:
    """Nothing from right answers with a degenerate text: a shortcut is not reinforced, a wrong one is still learnt from."""
    right_PG = verdicts(keep_PG, correct_PG=correct_PG) == 1
    return _without(keep_PG, shortcut=right_PG & (verdicts(keep_PG, degenerate_PG=degenerate_PG) == 1))


def mask_truncated(*, truncated_PG: np.ndarray | None, keep_PG: np.ndarray) -> Kept:
    """No loss from completions that the length limit cut: overlong filtering (DAPO, https://arxiv.org/abs/2503.14476)."""
    return _without(keep_PG, truncated=verdicts(keep_PG, truncated_PG=truncated_PG) == 1)


def scored(*, reward_PG: np.ndarray | None, keep_PG: np.ndarray) -> Kept:
    """Only completions that have a reward. The others have an advantage of 0, and would still dilute a mean over the step."""
    return _without(keep_PG, unscored=np.isnan(numbers(keep_PG, reward_PG=reward_PG)))


def _without(keep_PG: np.ndarray, **reasons: np.ndarray) -> Kept:
    dropped = {reason: np.asarray(keep_PG & where) for reason, where in reasons.items()}
    return Kept(keep_PG & ~np.any(list(dropped.values()), axis=0), dropped)
