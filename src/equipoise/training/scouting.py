"""A step that scouts: `shaping.scouting` chooses which problems get more completions, and here they get them. Axes: P problems, G completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from equipoise.base import Problem
from equipoise.shaping.scouting import Scouting
from equipoise.training.collect import Batch, lay_out
from equipoise.training.join import join_samples


@dataclass(frozen=True, slots=True)
class Scouted:
    """All that a scouting step drew. Of the first completions no outcome had a part in what is there: measure the policy on these."""

    first: Batch  # of every problem that was posed
    passed_over: Batch | None  # those of the problems that got no more; None: all of them did
    batch: Batch  # the chosen problems with all of their completions, the first ones in front: what is learnt from

    def metrics(self) -> dict[str, float | None]:
        """Of the first completions, where `accuracy` and the others of the log are of the chosen problems."""
        checked_P = self.first.drawn_P > 0
        rate_P = self.first.right_P[checked_P] / self.first.drawn_P[checked_P]
        found = {"accuracy": rate_P, "all_wrong": rate_P == 0, "all_right": rate_P == 1}
        return {
            f"scouting/{name}": float(np.mean(values_P)) if rate_P.size else None for name, values_P in found.items()
        }


def go_on(
    scouting: Scouting,
    first: Batch,
    *,
    prompts: int,
    seed: int,
    draw_more: Callable[[list[Problem]], Batch],
    pad_token: int,
) -> Scouted:
    """From the first completions of a step to all of them: `draw_more` draws the rest of the `prompts` problems that are chosen."""
    chosen = scouting.choose(prompts, correct_PG=first.groups.correct_PG, keep_PG=first.groups.keep_PG, seed=seed)
    others = np.setdiff1d(np.arange(len(first.problems)), chosen)
    begun = take_problems(first, chosen)
    batch = join_completions(begun, draw_more(begun.problems), pad_token=pad_token)
    return Scouted(first, take_problems(first, others) if others.size else None, batch)


def take_problems(batch: Batch, places: Sequence[int] | np.ndarray) -> Batch:
    """Only the problems at these places, which ascend."""
    rows = np.arange(len(batch.completions)).reshape(len(batch.problems), -1)[places].ravel()
    return lay_out(
        [batch.problems[place] for place in places],
        [batch.completions[row] for row in rows],
        [batch.grades[row] for row in rows],
        batch.samples.take(torch.as_tensor(rows, device=batch.samples.prompt_B.device)),
    )


def join_completions(first: Batch, more: Batch, *, pad_token: int) -> Batch:
    """Two draws of the same problems as one: in every group the completions of `first`, then those of `more`."""
    n = len(more.problems)
    first_PG, more_PG = (np.arange(len(part.completions)).reshape(n, -1) for part in (first, more))
    rows = np.concatenate([first_PG, first_PG.size + more_PG], axis=1).ravel()
    both = join_samples([first.samples, more.samples], pad_token=pad_token)
    # Each prompt is there twice; those of `more` are no wider than the chosen problems need.
    once = replace(
        both,
        prompt_ids_PL=more.samples.prompt_ids_PL,
        prompt_mask_PL=more.samples.prompt_mask_PL,
        prompt_B=both.prompt_B % n,
    )
    completions, grades = [*first.completions, *more.completions], [*first.grades, *more.grades]
    return lay_out(
        more.problems,
        [completions[row] for row in rows],
        [grades[row] for row in rows],
        once.take(torch.as_tensor(rows, device=once.prompt_B.device)),
    )
