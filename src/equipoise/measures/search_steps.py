"""Diminishing returns of search: how the best result so far grows with the turns of an agent that tries, looks and tries again.

    R(t) = c − d·exp(−t/τ)

c is the ceiling that more turns approach, τ·ln 2 the half-life: the turns in which the distance to it halves.
Axes: E episodes (one sample of a problem over its turns), P problems, T turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.intervals import cluster_bootstrap, mean_of_prompts
from equipoise.measures.prompts import conditions, group_rows, late_rows

MIN_TURNS = 5  # three numbers are fitted
MOST_TURNS = 200  # later ones are left out
DRAWS = 400
ROUNDING = 1e-9
_RATES = 400  # values of τ that are tried


@dataclass(frozen=True, slots=True)
class SearchCurve:
    """The best score so far after each turn, mean over a problem's episodes; an episode that ended keeps its best."""

    prompt_P: np.ndarray
    turn_T: np.ndarray  # turns taken: 1 is the first
    best_PT: np.ndarray
    score: str  # "verdict" or "reward"

    @property
    def is_share(self) -> bool:
        return bool(self.best_PT.min() >= -ROUNDING and self.best_PT.max() <= 1 + ROUNDING)


def best_so_far(table: AnswerTable) -> SearchCurve:
    """Follow every episode (problem, step and sample index) over its turns. Before its first score it has the worst one, or 0."""
    score, name = (table.correct, "verdict") if table.has("correct") else (table.numbers["reward"], "reward")
    table = table.take(kept := np.isfinite(score) & np.isfinite(table.numbers["turn"]) & (table.prompt_R >= 0))
    turn, turn_R = np.unique(table.numbers["turn"], return_inverse=True)
    values, score_R = np.unique(score[kept], return_inverse=True)
    _, episode_R = group_rows([table.prompt_R, table.numbers["step"], table.numbers["sample_index"]])
    order = np.lexsort((turn_R, episode_R))
    score_R, turn_R, episode_R, prompt_R = score_R[order], turn_R[order], episode_R[order], table.prompt_R[order]
    # The running best of each episode, on ranks: exact, and an episode's ranks lie above those of the one before.
    best_R = np.maximum.accumulate(episode_R * len(values) + score_R) - episode_R * len(values)
    starts = np.diff(episode_R, prepend=-1) > 0
    floor = min(0.0, float(values[0])) if len(values) else 0.0
    rise_R = values[best_R] - np.where(starts, floor, values[np.roll(best_R, 1)]) if len(values) else np.empty(0)
    prompt_P, problem_R = np.unique(prompt_R, return_inverse=True)
    n_turns = min(len(turn), MOST_TURNS)
    inside = turn_R < n_turns
    cell_R = problem_R[inside] * n_turns + turn_R[inside]
    rise_PT = np.bincount(cell_R, rise_R[inside], len(prompt_P) * n_turns).reshape(len(prompt_P), n_turns)
    episodes_P = np.bincount(problem_R, weights=starts, minlength=len(prompt_P))
    best_PT = floor + np.cumsum(rise_PT, axis=1) / episodes_P[:, None]
    return SearchCurve(prompt_P, (turn - turn[:1] + 1)[:n_turns], best_PT, name)


@dataclass(frozen=True, slots=True)
class Saturation:
    """R(t) = ceiling − drop·exp(−t/τ)."""

    ceiling: float
    drop: float
    tau: float
    explained: float  # share of the curve's variance, R²

    @property
    def half_life(self) -> float:
        return self.tau * float(np.log(2))


def fit_saturation(turn_T: np.ndarray, mean_T: np.ndarray) -> Saturation | None:
    """Least squares; None where the curve does not bend: flat, or still rising too straight to say where it ends."""
    if len(turn_T) < MIN_TURNS or np.ptp(mean_T) <= 1e-9 * max(1.0, float(np.abs(mean_T).max())):
        return None
    taus, bases = _bases(tuple(turn_T.tolist()))
    fitted = (bases @ mean_T) ** 2  # what each τ explains, beside the constant
    best = int(np.argmax(fitted))
    if best in (0, len(taus) - 1):
        return None
    # The top of a parabola through the three best: τ between the grid's values.
    left, top, right = fitted[best - 1 : best + 2]
    curve = left - 2 * top + right
    shift = 0.5 * (left - right) / curve if curve < 0 else 0.0
    tau = float(np.exp(np.log(taus[best]) + shift * np.log(taus[best + 1] / taus[best])))
    decay_T = np.exp(-turn_T / tau)
    spread_T = decay_T - decay_T.mean()
    drop = -float(spread_T @ mean_T) / float(spread_T @ spread_T)
    ceiling = float(mean_T.mean()) + drop * float(decay_T.mean())
    rest_T, rise_T = mean_T - (ceiling - drop * decay_T), mean_T - mean_T.mean()
    return Saturation(ceiling, drop, tau, 1 - float(rest_T @ rest_T) / float(rise_T @ rise_T))


@lru_cache(maxsize=8)
def _bases(turns: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Values of τ, and for each exp(−t/τ) centred and scaled to length 1."""
    turn_T = np.asarray(turns)
    span = turn_T[-1] - turn_T[0]
    taus = np.geomspace(0.2, 3 * span, _RATES)
    decay = np.exp(-(turn_T - turn_T[0])[None] / taus[:, None])
    decay -= decay.mean(axis=1, keepdims=True)
    return taus, decay / np.linalg.norm(decay, axis=1, keepdims=True)


def estimate_search_steps(table: AnswerTable, *, seed: int) -> list[Estimate]:
    """The mean best so far after each turn, what each turn adds, the ceiling and the half-life; [] without several turns."""
    taken = table.take(np.isfinite(table.numbers["turn"]))
    if len(np.unique(taken.numbers["turn"])) < 2 or not (taken.has("correct") or taken.has("reward")):
        return []
    late = taken.take(late_rows(taken))
    results: list[Estimate] = []
    for at, rows in conditions(late):
        curve = best_so_far(late.take(rows))
        if len(curve.turn_T) > 1:
            results += [*_by_turn(curve, at), *_saturation(curve, at, seed)]
    return results


def _by_turn(curve: SearchCurve, at: dict[str, Any]) -> list[Estimate]:
    bounds = (0.0, 1.0) if curve.is_share else None
    rise_PT = np.diff(curve.best_PT, axis=1)
    results = []
    for t, turn in enumerate(curve.turn_T):
        found = mean_of_prompts(curve.best_PT[:, t], bounds=bounds)
        results.append(
            replace(found, how=f"best {curve.score} so far; {found.how}").named("search_best", at | {"turn": int(turn)})
        )
    for t, turn in enumerate(curve.turn_T[1:]):
        found = mean_of_prompts(rise_PT[:, t], bounds=bounds)
        results.append(
            replace(found, how=f"rise of the best {curve.score} at this turn; {found.how}").named(
                "search_gain", at | {"turn": int(turn)}
            )
        )
    return results


def _saturation(curve: SearchCurve, at: dict[str, Any], seed: int) -> list[Estimate]:
    highest = 1.0 if curve.is_share else np.inf

    def fitted(weight_P: np.ndarray) -> Saturation | None:
        found = fit_saturation(curve.turn_T, weight_P @ curve.best_PT / weight_P.sum())
        return found if found is not None and found.ceiling <= highest else None

    whole = fitted(np.ones(len(curve.prompt_P)))
    if whole is None:
        missing = f"{MIN_TURNS} or more turns whose gains shrink: here the best so far is flat, or rises without a bend"
        return [Estimate("search_ceiling", None, n=len(curve.prompt_P), at=at, missing=missing)]

    def interval(name: str, read: Callable[[Saturation], float]) -> Estimate:
        def statistic(weight_P: np.ndarray) -> float:
            found = fitted(weight_P)
            return float("nan") if found is None else read(found)

        found = cluster_bootstrap(statistic, np.arange(len(curve.prompt_P)), draws=DRAWS, seed=seed)
        how = f"c − d·exp(−t/τ) fitted to the mean best {curve.score} so far, R² {whole.explained:.3f}"
        return replace(found, how=f"{how}; {found.how}").named(name, at)

    return [
        interval("search_ceiling", lambda found: found.ceiling),
        interval("search_half_life", lambda found: found.half_life),
    ]
