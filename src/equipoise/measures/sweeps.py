"""The same problems tried at several thinking budgets: right answers, their spread, and verdicts that turn. Axes: P problems, B budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from equipoise.measures.answers import AnswerTable
from equipoise.measures.means import quotient
from equipoise.measures.prompts import PromptCounts, group_rows


@dataclass(frozen=True, slots=True)
class Sweep:
    """Per problem and budget, on the judged rollouts of the problems that were tried at every budget."""

    prompt_P: np.ndarray
    budgets_B: np.ndarray
    accuracy_PB: np.ndarray
    disagreement_PB: np.ndarray  # P(two samples differ), unbiased; nan where fewer than two answers were read
    entropy_PB: np.ndarray  # of the answers, nats; nan where none was read
    tokens_B: np.ndarray  # mean tokens of a rollout; the budgets themselves where tokens were not recorded
    counts_B: tuple[PromptCounts, ...]


def sweep_budgets(table: AnswerTable) -> Sweep:
    """The sweep over all budgets of a table."""
    table = table.take(np.isfinite(table.numbers["budget"]) & np.isfinite(table.correct) & (table.prompt_R >= 0))
    budgets, index = np.unique(table.numbers["budget"], return_inverse=True)
    wanted, tried = np.unique(table.prompt_R, return_inverse=True)
    seen_PB = np.zeros((len(wanted), len(budgets)), dtype=bool)
    seen_PB[tried, index] = True
    everywhere_P: np.ndarray = np.all(seen_PB, axis=1)
    table, index = table.take(everywhere_P[tried]), index[everywhere_P[tried]]
    parts = [table.take(index == b) for b in range(len(budgets))]
    counts = tuple(PromptCounts.of(part) for part in parts)  # each has exactly the wanted problems, in order
    tokens = np.asarray([_mean(part.numbers["n_tokens"]) for part in parts])

    def by_budget(value: Callable[[PromptCounts], np.ndarray]) -> np.ndarray:
        return np.stack([value(count) for count in counts], axis=1) if counts else np.empty((0, 0))

    return Sweep(
        wanted[everywhere_P],
        budgets,
        by_budget(lambda count: count.correct_P / count.drawn_P),
        by_budget(_disagreement),
        by_budget(_answer_entropy),
        np.maximum(tokens if np.isfinite(tokens).all() else budgets, 1.0),  # one can be paid for by another
        counts,
    )


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _disagreement(counts: PromptCounts) -> np.ndarray:
    """1 − Σ c(c − 1) / (n(n − 1)) over a problem's answers."""
    answered = counts.total_P - counts.abstained_P
    pairs = _per_problem(counts, counts.kind_count * (counts.kind_count - 1.0))
    return 1 - quotient(pairs, answered * (answered - 1.0))


def _answer_entropy(counts: PromptCounts) -> np.ndarray:
    """−Σ p ln p with p = c/n, plus (K − 1)/2n for K kinds seen (Miller–Madow): what is unseen still biases it downwards."""
    answered = (counts.total_P - counts.abstained_P).astype(float)
    kinds = np.diff(counts.offsets)
    logs = _per_problem(counts, counts.kind_count * np.log(counts.kind_count))
    # ln n − Σ c ln c / n is the plug-in.
    entropy: np.ndarray = np.log(np.where(answered > 0, answered, np.nan)) + quotient((kinds - 1) / 2 - logs, answered)
    return entropy


def _per_problem(counts: PromptCounts, kind_values: np.ndarray) -> np.ndarray:
    problem = np.repeat(np.arange(len(counts)), np.diff(counts.offsets))
    return np.bincount(problem, weights=kind_values, minlength=len(counts))


@dataclass(frozen=True, slots=True)
class Flips:
    """Per problem, the share of samples whose verdict turned from one budget to a larger one."""

    prompt_P: np.ndarray
    right_to_wrong_P: np.ndarray
    wrong_to_right_P: np.ndarray


def count_flips(table: AnswerTable, budget: float, larger: float) -> Flips:
    """A sample is followed by its index, so a trace that was continued is compared with itself."""
    index_R = table.numbers["sample_index"]
    known = np.isfinite(table.correct) & (table.prompt_R >= 0) & np.isfinite(index_R)
    known &= np.isin(table.numbers["budget"], (budget, larger))
    table = table.take(known)
    first, sample_R = group_rows([table.prompt_R, table.numbers["step"], table.numbers["sample_index"]])
    verdicts = []
    for wanted in (budget, larger):
        rows = np.flatnonzero(table.numbers["budget"] == wanted)
        verdict = np.full(len(first), np.nan)
        verdict[sample_R[rows[::-1]]] = table.correct[rows[::-1]]  # an index that comes twice: the first counts
        verdicts.append(verdict)
    was, became = verdicts
    both = np.isfinite(was) & np.isfinite(became)
    prompt, index = np.unique(table.prompt_R[first[both]], return_inverse=True)
    n = np.bincount(index)
    lost = np.bincount(index, weights=((was == 1) & (became == 0))[both])
    won = np.bincount(index, weights=((was == 0) & (became == 1))[both])
    return Flips(prompt, lost / n, won / n)
