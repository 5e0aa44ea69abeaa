"""How many different ways a problem's completions take, from the signatures of their texts. Axes: P problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from equipoise.measures.arms import Window
from equipoise.measures.trajectories import SIGNATURE, cluster_texts, similarity, vendi

if TYPE_CHECKING:
    from equipoise.measures.texts import TextTable

MOST_TEXTS = 64  # per problem: the work grows with the cube
MOST_PROBLEMS = 5_000  # picked by a hash of their id, so that a run and its baseline keep the same ones
_CELLS = 16_000_000


@dataclass(frozen=True, slots=True)
class Ways:
    """Per problem, among the same number of its texts; nan where it has fewer, or was not picked, or was not judged."""

    vendi_P: np.ndarray
    clusters_P: np.ndarray
    clusters_right_P: np.ndarray
    clusters_wrong_P: np.ndarray


def texts_per_problem(window: Window, texts: TextTable) -> np.ndarray:
    """How many texts each problem of a window has."""
    return np.bincount(_problem_of(window)[texts.known_R[window.rows]], minlength=len(window.counts) + 1)[:-1]


def count_ways(window: Window, texts: TextTable, *, size: int, seed: int) -> Ways:
    """Vendi score and clusters of `size` texts of every problem, drawn at random where it has more."""
    problem, rows_N = _draw(window, texts, size, seed)
    ways = Ways(*(np.full(len(window.counts), np.nan) for _ in range(4)))
    step = max(1, _CELLS // (size * size * SIGNATURE))
    for start in range(0, len(problem), step):
        part, rows = problem[start : start + step], rows_N[start : start + step]
        alike = similarity(texts.signatures_R32[window.rows[rows]])
        ways.vendi_P[part] = vendi(alike)
        for p, its_rows, matrix in zip(part, rows, alike, strict=True):
            group, right = cluster_texts(matrix), window.table.correct[its_rows]
            ways.clusters_P[p] = len(np.unique(group))
            if np.isfinite(right).all():
                ways.clusters_right_P[p] = len(np.unique(group[right == 1]))
                ways.clusters_wrong_P[p] = len(np.unique(group[right == 0]))
    return ways


def _problem_of(window: Window) -> np.ndarray:
    """The place of each rollout's problem among the window's; one past the end where it has none."""
    code_R, code_P = window.table.prompt_R, window.counts.prompt_P
    return np.where(code_R >= 0, np.searchsorted(code_P, code_R), len(code_P))


def _draw(window: Window, texts: TextTable, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The problems that have `size` texts, and so many rows of the window for each, (P, size)."""
    problem_R = _problem_of(window)
    rows = np.flatnonzero(texts.known_R[window.rows] & (problem_R < len(window.counts)))
    rows = np.random.default_rng(seed).permutation(rows)
    rows = rows[np.argsort(problem_R[rows], kind="stable")]
    enough, first, count = np.unique(problem_R[rows], return_index=True, return_counts=True)
    enough, first = enough[count >= size], first[count >= size]
    if len(enough) > MOST_PROBLEMS:
        names = window.problems()
        picked = np.argsort([crc32(names[p].encode("utf-8", "surrogatepass")) for p in enough], kind="stable")[
            :MOST_PROBLEMS
        ]
        enough, first = enough[picked], first[picked]
    return enough, rows[first[:, None] + np.arange(size)]
