"""A recorded pool in many orders: what the first k samples of a question answer and cost, for every k.

Axes: Q questions, R orders, K samples. Order 0 is that of the record, the others are shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.errors import UsageError
from equipoise.infer.policy import Goal
from equipoise.measures.subsets import common_size
from equipoise.samplers.recorded_rows import PoolRows
from equipoise.text.display import many

MIN_QUESTIONS = 10


@dataclass(frozen=True, slots=True)
class Orders:
    """The samples of one cap. Index k − 1 of the last axis is of the first k."""

    cap: int | None
    right_QRK: (
        np.ndarray
    )  # chance that their vote is right, over the ways to break a tie; or 1 where one of them is right
    state_QRK: np.ndarray  # votes of their leader; or how many are right
    tokens_QRK: np.ndarray

    @property
    def size(self) -> int:
        return int(self.right_QRK.shape[2])

    def of(self, questions_Q: np.ndarray) -> Orders:
        return Orders(self.cap, self.right_QRK[questions_Q], self.state_QRK[questions_Q], self.tokens_QRK[questions_Q])


@dataclass(frozen=True, slots=True)
class Ordered:
    ids: tuple[str, ...]
    caps: tuple[Orders, ...]  # the pilot's first, then the others from the smallest to the largest
    judged: bool  # False: "right" is to agree with the vote over all recorded samples
    notes: tuple[str, ...]

    @property
    def pilot(self) -> Orders:
        return self.caps[0]

    def of(self, questions_Q: np.ndarray) -> Ordered:
        ids = tuple(np.asarray(self.ids, dtype=object)[questions_Q])
        return Ordered(ids, tuple(each.of(questions_Q) for each in self.caps), self.judged, self.notes)


def order_samples(
    rows: PoolRows, *, goal: Goal, repeats: int, seed: int, most: int | None = None, cap: int | None = None
) -> Ordered:
    """`repeats` orders of a pool's samples. `most`: no more than so many of a question. `cap`: the pilot's, default the smallest.

    Samples without a verdict are left out, unless none has one and `goal` is a vote. So are questions that lack samples which nine
    in ten have, at any cap.
    """
    notes: list[str] = []
    judged_R = np.isfinite(rows.correct_R)
    judged = bool(judged_R.any())
    if not judged and goal == "verified":
        raise UsageError(
            "goal verified needs verdicts, and this pool has none: give a column correct, or plan for a vote"
        )
    if judged and not judged_R.all():
        notes.append(f"left out: {many(int((~judged_R).sum()), 'sample')} without a verdict")
    used_R = judged_R if judged else np.ones(len(judged_R), bool)
    groups = _groups(rows, used_R)
    caps = _caps(groups, cap)
    sizes = {each: common_size(np.asarray([len(held.get(each, ())) for held in groups])) for each in caps}
    kept = [q for q, held in enumerate(groups) if all(len(held.get(each, ())) >= sizes[each] for each in caps)]
    if len(kept) < MIN_QUESTIONS:
        raise UsageError(
            f"a plan needs {MIN_QUESTIONS} questions or more with samples at every cap, this pool has {len(kept)}: record more"
        )
    if len(kept) < len(groups):
        notes.append(f"left out: {many(len(groups) - len(kept), 'question')} with fewer samples than nine in ten have")
    rng = np.random.default_rng(seed)
    found = []
    for each in caps:
        size = sizes[each]
        orders = [_order_one(rows, groups[q][each][:size], goal, judged, repeats, rng, most or size) for q in kept]
        found.append(Orders(each, *(np.stack(arrays) for arrays in zip(*orders, strict=True))))
    return Ordered(tuple(rows.ids[q] for q in kept), tuple(found), judged, tuple(notes))


Groups = list[dict[int | None, np.ndarray]]


def _groups(rows: PoolRows, used_R: np.ndarray) -> Groups:
    """Rows of every question, by cap."""
    groups: Groups = [{} for _ in rows.ids]
    used = np.flatnonzero(used_R)  # in the order of questions and budgets
    question, budget = rows.problem_R[used], np.where(np.isnan(rows.budget_R[used]), -1, rows.budget_R[used])
    starts = np.flatnonzero((np.diff(question, prepend=-1) != 0) | (np.diff(budget, prepend=-2) != 0))
    for mine in np.split(used, starts[1:]):
        given = rows.budget_R[mine[0]]
        groups[rows.problem_R[mine[0]]][None if np.isnan(given) else int(given)] = mine
    return groups


def _caps(groups: Groups, asked: int | None) -> list[int | None]:
    every = {cap for held in groups for cap in held}
    caps = [*([None] if None in every else []), *sorted(cap for cap in every if cap is not None)]
    if asked is not None and asked not in caps:
        told = ", ".join("none" if cap is None else str(cap) for cap in caps)
        raise UsageError(f"the pilot's cap of {asked} tokens is none of the pool's: {told}")
    first = caps[0] if asked is None else asked
    return [first, *(cap for cap in caps if cap != first)]


def _order_one(
    rows: PoolRows, mine: np.ndarray, goal: Goal, judged: bool, repeats: int, rng: np.random.Generator, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """right, state and tokens of one question, each (R, K)."""
    shuffled_RK = np.argsort(rng.random((repeats, len(mine))), axis=1)
    shuffled_RK[0] = np.arange(len(mine))
    order_RK = mine[shuffled_RK][:, :most]
    tokens_RK = np.cumsum(rows.n_tokens_R[order_RK], axis=1, dtype=np.int64)
    if goal == "verified":
        state_RK = np.cumsum(rows.correct_R[order_RK] > 0, axis=1)
        return (state_RK > 0).astype(np.float32), state_RK.astype(np.int16), tokens_RK
    kinds, kind_M = np.unique(rows.answer_R[mine], return_inverse=True)
    right_K = _right_kinds(rows.correct_R[mine], kind_M, len(kinds), judged, answered=kinds >= 0)
    votes_RKA = np.cumsum(rows.answer_R[order_RK][..., None] == kinds[kinds >= 0], axis=1, dtype=np.int16)
    state_RK = votes_RKA.max(axis=2, initial=0)
    leads_RKA = (votes_RKA == state_RK[..., None]) & (state_RK > 0)[..., None]
    ways_RK = leads_RKA.sum(axis=2)
    right_RK = (leads_RKA * right_K[kinds >= 0]).sum(axis=2) / np.maximum(ways_RK, 1)
    return right_RK.astype(np.float32), state_RK, tokens_RK


def _right_kinds(
    correct_S: np.ndarray, kind_S: np.ndarray, n: int, judged: bool, *, answered: np.ndarray
) -> np.ndarray:
    """The share of each kind's samples that is right; without verdicts, that of the vote over all in which it wins."""
    counts = np.bincount(kind_S, minlength=n)
    if judged:
        return np.asarray(np.bincount(kind_S, weights=correct_S > 0, minlength=n) / counts)
    leads = np.where(answered, counts == counts[answered].max(initial=0), False)
    return np.asarray(leads / max(leads.sum(), 1))
