"""Demonstrations that keep a problem's different correct approaches apart.

Reinforcement learning removes wrong ways and supervised training adds right ones (https://arxiv.org/abs/2509.21128). What it
can add is what the demonstrations hold: of many right solutions of a problem, take one of each approach rather than the most
common approach many times. Approaches are groups of alike texts, found as in `measures.trajectories`.
Axes: N different right texts of one problem.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from equipoise.base import Rollout
from equipoise.errors import UsageError
from equipoise.lab.demonstrations import normal_text
from equipoise.measures.trajectories import CUT, cluster_texts, sign_texts, similarity

MOST_TEXTS = 512  # of one problem are compared, picked by a hash of the text: the work grows with the square


@dataclass(frozen=True, slots=True)
class Approaches:
    """How one problem's right solutions were thinned out."""

    problem_id: str
    right: int  # right solutions with a text
    distinct: int  # different texts among them
    approaches: int  # groups of alike texts
    chosen: tuple[Rollout, ...]  # each of another approach; the most common approach first, then the least alike


def choose_demonstrations(
    rollouts: Iterable[Rollout], *, most_per_problem: int, cut: float = CUT
) -> tuple[Approaches, ...]:
    """For every problem with a right solution, one solution of each of up to `most_per_problem` approaches.

    An approach is stood for by the text most like the others of its group. Where there are more approaches than places, the
    first is the most common one, and each next the least like those already chosen. The choice depends on the set of texts,
    not on their order; problems come in the order of their first right solution.
    """
    if most_per_problem < 1:
        raise UsageError(f"most_per_problem is {most_per_problem}: at least 1 demonstration is needed")
    right: dict[str, list[tuple[str, Rollout]]] = {}
    for rollout in rollouts:
        text = normal_text(rollout.completion)
        if rollout.grade.correct and text is not None:
            right.setdefault(rollout.problem.id, []).append((text, rollout))
    return tuple(_choose(problem_id, solutions, most_per_problem, cut) for problem_id, solutions in right.items())


def _choose(problem_id: str, solutions: list[tuple[str, Rollout]], most: int, cut: float) -> Approaches:
    rollout_of: dict[str, Rollout] = {}
    for text, rollout in solutions:
        rollout_of.setdefault(text, rollout)
    texts = sorted(rollout_of)
    if len(texts) > MOST_TEXTS:
        picked = sorted(texts, key=lambda text: crc32(text.encode("utf-8", "surrogatepass")))[:MOST_TEXTS]
        texts = sorted(picked)
    alike_NN = similarity(sign_texts(texts))
    group_N = cluster_texts(alike_NN, cut)
    chosen = _spread_out(alike_NN, group_N, most)
    return Approaches(
        problem_id,
        len(solutions),
        len(rollout_of),
        len(np.unique(group_N)),
        tuple(rollout_of[texts[n]] for n in chosen),
    )


def _spread_out(alike_NN: np.ndarray, group_N: np.ndarray, most: int) -> list[int]:
    """One text per group, at most so many: the largest group's first, then always the one least like those chosen."""
    middles, sizes = [], []
    for group in dict.fromkeys(group_N.tolist()):  # in the order of their first text, so that ties fall by text
        members = np.flatnonzero(group_N == group)
        middles.append(int(members[alike_NN[np.ix_(members, members)].mean(axis=1).argmax()]))
        sizes.append(len(members))
    waiting = [middles[i] for i in sorted(range(len(middles)), key=lambda i: -sizes[i])]
    chosen = [waiting.pop(0)]
    while waiting and len(chosen) < most:
        nearest = alike_NN[np.ix_(waiting, chosen)].max(axis=1)
        chosen.append(waiting.pop(int(nearest.argmin())))
    return chosen
