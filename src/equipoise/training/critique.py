"""A critic in the loop: problems of which no completion was right are tried again with the checker's words, and learnt from.

    asked    of each such problem `tries` wrong completions, different answers first
    refined  the policy's completion of `tasks.again.ask_again`: the problem, the wrong try, what the checker said of it
    learnt   the right ones, no text twice, as completions of the problem as it was first posed:
             L += coef · Σ −ln π(y_t | q, y_<t) / tokens of the update

Self-training with critiques, https://arxiv.org/abs/2411.16579, fine-tunes between rounds of sampling on all that is right; here the
refinements are learnt within the step, beside its policy gradient, as a completion with an advantage of `coef` would be.
The critic is the task's checker, which cannot be wrong, and not a model. A policy that does not read such prompts refines
nothing: it needs to have seen them in supervised training (`lab.make_refiner`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch

from equipoise.base import Problem
from equipoise.errors import UsageError
from equipoise.models.generate import pad_left
from equipoise.models.language_model import Tokens
from equipoise.models.samples import Samples
from equipoise.tasks.again import ask_again
from equipoise.tasks.task import Task
from equipoise.training.collect import Batch


@dataclass(frozen=True, slots=True)
class CritiqueLoop:
    """`tries`: wrong completions of a failed problem that are refined, once each; `coef`: what a right one weighs."""

    tries: int = 4
    coef: float = 1.0

    def __post_init__(self) -> None:
        if self.tries < 1 or self.coef < 0:
            raise UsageError(
                f"critique_loop needs tries >= 1 and coef >= 0, found tries={self.tries}, coef={self.coef:g}"
            )


@dataclass(frozen=True, slots=True)
class Lesson:
    """The refinements of a step. Row b of `refined` is another try after row `parents[b]` of the step's batch."""

    refined: Batch
    parents: tuple[int, ...]
    learnt: Samples | None  # right ones, under the prompts of the problems as first posed; None: there is none
    n_right: int

    @property
    def metrics(self) -> dict[str, float]:
        n_learnt = 0 if self.learnt is None else len(self.learnt.finish)
        return {
            "critique/asked": float(len(self.parents)),
            "critique/right": float(self.n_right),
            "critique/learnt": float(n_learnt),
        }


def refine(
    critique: CritiqueLoop,
    batch: Batch,
    task: Task,
    tokens: Tokens,
    *,
    most_prompt: int,
    sample: Callable[[list[Problem]], Batch],
) -> Lesson | None:
    """Ask, sample one refinement each, keep the right ones; None where nothing is asked. Prompts beyond `most_prompt` tokens are not."""
    each = batch.answers_PG.shape[1]

    def again(row: int) -> tuple[int, Problem] | None:
        problem = batch.problems[row // each]
        prompt = ask_again(task, problem, batch.completions[row], batch.grades[row])
        if prompt is None or len(tokens.encode(prompt)) > most_prompt:
            return None
        return row, replace(problem, id=f"{problem.id} again {row % each}", prompt=prompt)

    tries = [found for rows in failed(batch) for found in islice(filter(None, map(again, rows)), critique.tries)]
    if not tries:
        return None
    parents = tuple(row for row, _ in tries)
    refined = sample([problem for _, problem in tries])
    right = [row for row, grade in enumerate(refined.grades) if grade.correct]
    kept = {(parents[row] // each, refined.completions[row].text): row for row in reversed(right)}
    rows = sorted(kept.values())
    posed = [batch.problems[parents[row] // each] for row in rows]
    learnt = _as_posed(refined.samples, rows, posed, tokens) if rows else None
    return Lesson(refined, parents, learnt, n_right=len(right))


def failed(batch: Batch) -> list[list[int]]:
    """For each problem without a right completion, the rows of the wrong ones, different answers first."""
    found = []
    each, answers_B = batch.answers_PG.shape[1], batch.answers_PG.ravel()
    for place in np.flatnonzero(batch.right_P == 0):
        wrong = [row for row in range(place * each, (place + 1) * each) if batch.grades[row].correct is False]
        first_of: dict[str | None, int] = {}
        first = [row for row in wrong if first_of.setdefault(answers_B[row], row) == row]
        found.append([*first, *(row for row in wrong if row not in first)])
    return found


def _as_posed(refined: Samples, rows: Sequence[int], problems: Sequence[Problem], tokens: Tokens) -> Samples:
    """These completions under the prompts of these problems: a refinement is learnt without what led to it."""
    device = refined.ids_BT.device
    taken = refined.take(torch.tensor(rows, device=device))
    prompts = [tokens.encode(problem.prompt) for problem in problems]
    ids_PL, mask_PL = pad_left(prompts, max(map(len, prompts)), pad=tokens.pad, device=device)
    return replace(
        taken, prompt_ids_PL=ids_PL, prompt_mask_PL=mask_PL, prompt_B=torch.arange(len(prompts), device=device)
    )
