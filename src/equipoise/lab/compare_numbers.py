"""The numbers of one strategy in a comparison. Axes: P problems, R repeats. Problems are the units: repeats are averaged first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.lab.compare_run import Ran, Whole, counted
from equipoise.measures.intervals import Interval, mean_of_prompts, paired_difference, ratio_of_sums
from equipoise.measures.majority import majority_share

UNJUDGED = "verdicts: a column `correct`, or a judge"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What one strategy did on every problem in every repeat; nan: no verdict."""

    right_PR: np.ndarray
    tokens_PR: np.ndarray
    samples_PR: np.ndarray
    agrees_PR: np.ndarray
    abstained_PR: np.ndarray  # samples without an answer
    unanswered_PR: np.ndarray
    tied_PR: np.ndarray
    stopped_by: Mapping[str, float] = field(default_factory=dict)  # word → share of the questions
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arm:
    """One strategy's row."""

    strategy: str
    accuracy: Estimate
    difference: Estimate  # of accuracy, to the reference's on the same problems
    tokens: Estimate
    tokens_share: Estimate  # of the reference's
    samples: Estimate
    agreement: Estimate
    abstained: float | None  # share of the samples without an answer
    unanswered: float  # share of the questions without one
    tied: float
    shuffle_error: float | None  # standard error of accuracy that more repeats would lower; None: one repeat
    exact: float | None  # accuracy over every order of the pool, where a closed form is known
    stopped_by: Mapping[str, float]
    on_frontier: bool = (
        False  # no other row has fewer tokens without losing accuracy, nor more accuracy at no more tokens
    )
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        numbers = {
            "accuracy": self.accuracy,
            "tokens": self.tokens,
            "tokens_share": self.tokens_share,
            "samples": self.samples,
            "agreement": self.agreement,
            "difference": self.difference,
        }
        # The headline's bounds have no prefix.
        bounds = {
            f"{'' if name == 'accuracy' else name + '_'}{side}": getattr(number, side)
            for name, number in numbers.items()
            for side in ("low", "high")
        }
        means = {f"{name}_mean" if name in ("tokens", "samples") else name: n.value for name, n in numbers.items()}
        return {
            "strategy": self.strategy,
            **means,
            **bounds,
            "n": self.accuracy.n,
            "abstained": self.abstained,
            "unanswered": self.unanswered,
            "tied": self.tied,
            "shuffle_error": self.shuffle_error,
            "exact": self.exact,
            "stopped_by": dict(self.stopped_by),
            "on_frontier": self.on_frontier,
            "notes": list(self.notes),
            "how": {name: number.how for name, number in numbers.items()},
        }


def outcomes_of(ran: Sequence[Ran], ids: Sequence[str], repeats: int, agrees: Callable[[Ran], bool]) -> Outcomes:
    """The runs of one strategy as arrays."""
    place = {question: p for p, question in enumerate(ids)}
    arrays = {name: np.zeros((len(ids), repeats)) for name in (
        "right", "tokens", "samples", "agrees", "abstained", "unanswered", "tied"
    )}  # fmt: skip
    for one in ran:
        at = place[one.question], one.repeat
        arrays["right"][at] = np.nan if one.correct is None else one.correct
        arrays["tokens"][at], arrays["samples"][at] = one.tokens, one.samples
        arrays["abstained"][at], arrays["tied"][at] = one.abstained, one.tied
        arrays["unanswered"][at] = one.answer is None
        arrays["agrees"][at] = agrees(one)
    stopped = Counter(one.stopped_by for one in ran)
    return Outcomes(
        **{f"{name}_PR": array for name, array in arrays.items()},
        stopped_by={word: n / len(ran) for word, n in stopped.most_common()},
        notes=tuple(counted([one.notes for one in ran])),
    )


def whole_outcomes(wholes: Sequence[Whole]) -> Outcomes:
    """The vote over all recorded samples, exact over the ways to break its ties."""
    return Outcomes(
        right_PR=np.asarray([[_vote_right(whole)] for whole in wholes]),
        tokens_PR=np.asarray([[float(w.tokens)] for w in wholes]),
        samples_PR=np.asarray([[float(w.samples)] for w in wholes]),
        agrees_PR=np.ones((len(wholes), 1)),
        abstained_PR=np.asarray([[float(w.abstained)] for w in wholes]),
        unanswered_PR=np.asarray([[float(not w.leaders)] for w in wholes]),
        tied_PR=np.asarray([[float(len(w.leaders) > 1)] for w in wholes]),
        stopped_by={"finished": 1.0},
    )


def _vote_right(whole: Whole) -> float:
    """How often the vote is right over the ways to break a tie; 0 without any vote, nan where a leader has no verdict."""
    right = [np.nan if (share := whole.right[text]) is None else share for text in whole.leaders]
    return float(np.mean(right)) if right else 0.0


def exact_majority(wholes: Sequence[Whole], n: int) -> float | None:
    """maj@n over every subset of the recorded samples; None where a verdict is missing or a problem has fewer."""
    kind_count, kind_right, offsets = _kinds(wholes)
    drawn_P = np.asarray([whole.samples for whole in wholes])
    if (drawn_P < n).any() or not np.isfinite(kind_right).all():
        return None
    return float(majority_share(kind_count, kind_right, offsets, drawn_P, n).mean())


def _kinds(wholes: Sequence[Whole]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    counts = np.asarray([count for whole in wholes for count in whole.counts.values()], dtype=np.int64)
    right = [whole.right[text] for whole in wholes for text in whole.counts]
    offsets = np.cumsum([0, *(len(whole.counts) for whole in wholes)])
    return counts, np.asarray([np.nan if r is None else r for r in right], dtype=float), offsets


def arm_of(
    name: str, mine: Outcomes, reference: Outcomes, *, agreement_with: str, unit: str, exact: float | None = None
) -> Arm:
    """One row: means over problems with intervals, and paired differences to the reference."""
    right_P, other_P = _over_repeats(mine.right_PR), _over_repeats(reference.right_PR)
    judged, both = np.isfinite(right_P), np.isfinite(right_P) & np.isfinite(other_P)
    tokens_P, others_P = mine.tokens_PR.mean(axis=1), reference.tokens_PR.mean(axis=1)
    samples = float(mine.samples_PR.sum())
    share = ratio_of_sums(tokens_P, others_P, np.arange(len(tokens_P))) if others_P.sum() > 0 else None
    return Arm(
        strategy=name,
        accuracy=_named("accuracy", mean_of_prompts(right_P[judged], bounds=(0, 1)) if judged.any() else None),
        difference=_named(
            "difference", paired_difference(right_P[both], other_P[both], bounds=(0, 1)) if both.any() else None
        ),
        tokens=_named(unit, mean_of_prompts(tokens_P, bounds=(0, np.inf))),
        tokens_share=_named(f"{unit} share", share, missing=f"{unit} of the reference"),
        samples=_named("samples", mean_of_prompts(mine.samples_PR.mean(axis=1), bounds=(0, np.inf))),
        agreement=_named(
            f"agreement with {agreement_with}", mean_of_prompts(mine.agrees_PR.mean(axis=1), bounds=(0, 1))
        ),
        abstained=float(mine.abstained_PR.sum()) / samples if samples else None,
        unanswered=float(mine.unanswered_PR.mean()),
        tied=float(mine.tied_PR.mean()),
        shuffle_error=_shuffle_error(mine.right_PR[judged]),
        exact=exact,
        stopped_by=mine.stopped_by,
        notes=mine.notes,
    )


def _over_repeats(values_PR: np.ndarray) -> np.ndarray:
    """The mean over the repeats with a verdict; nan for a problem without any."""
    known_PR = np.isfinite(values_PR)
    sums_P, n_P = np.where(known_PR, values_PR, 0.0).sum(axis=1), known_PR.sum(axis=1)
    return np.where(n_P > 0, sums_P / np.maximum(n_P, 1), np.nan)


def _shuffle_error(right_PR: np.ndarray) -> float | None:
    """sqrt(Σ_p s_p² / R_p) / P: what the order of the samples adds to the mean, the problems being as they are."""
    n_P = np.isfinite(right_PR).sum(axis=1)
    if not len(n_P) or n_P.min() < 2:
        return None
    return float(np.sqrt((np.nanvar(right_PR, axis=1, ddof=1) / n_P).sum()) / len(n_P))


def _named(name: str, found: Interval | None, *, missing: str = UNJUDGED) -> Estimate:
    return Estimate(name, None, missing=missing) if found is None else found.named(name)
