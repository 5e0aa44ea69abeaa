"""pass@k, diversity, entropy and drift of a policy on held-out problems. Axes: P problems, G completions each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from equipoise.base import Estimate
from equipoise.measures.html import html_table, number_cell
from equipoise.measures.intervals import Interval, mean_of_prompts, ratio_of_sums
from equipoise.measures.passk import pass_at_k_of
from equipoise.measures.subsets import default_ks
from equipoise.models.graphs import StepGraphs
from equipoise.models.language_model import LanguageModel, Tokens
from equipoise.tasks.task import Task
from equipoise.training.collect import Batch, collect
from equipoise.training.join import join_batches
from equipoise.training.recipe import Evaluation
from equipoise.training.update import reference_kl

SEED = "evaluation"  # of problems and completions alike: every run and arm answers the same ones
DRIFT_ROWS = 1024  # completions on which the KL to the base model is taken


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One temperature's estimates, and the completions behind them."""

    temperature: float
    estimates: tuple[Estimate, ...]
    batch: Batch

    def value(self, name: str) -> float | None:
        return next((number.value for number in self.estimates if number.name == name), None)

    def metrics(self) -> dict[str, float | None]:
        """For a log line: `eval/pass@1`, and `eval@0.6/pass@1` at other temperatures than 1."""
        prefix = "eval" if self.temperature == 1 else f"eval@{self.temperature:g}"
        return {f"{prefix}/{number.name}": number.value for number in self.estimates}


def evaluate(
    model: LanguageModel,
    tokens: Tokens,
    task: Task,
    how: Evaluation,
    *,
    max_tokens: int,
    reference: LanguageModel | None = None,
    graphs: StepGraphs | None = None,
    seed: str = SEED,
) -> list[Evaluated]:
    """The policy at every temperature asked for, on the same problems with the same seeds."""
    problems = task.problems(seed, how.problems, split=how.split)
    each = max(1, how.rows // how.samples)  # problems of a part
    found = []
    for temperature in how.temperatures:
        parts = [
            collect(
                model,
                tokens,
                task,
                problems[first : first + each],
                seed=(seed,),
                samples=how.samples,
                temperature=temperature,
                max_tokens=max_tokens,
                graphs=graphs,
            )
            for first in range(0, len(problems), each)
        ]
        batch = join_batches(parts, pad_token=tokens.pad)
        estimates = [*_passes(batch), *_spread(batch), _entropy(batch)]
        if reference is not None:
            estimates.append(_drift(model, reference, batch, temperature, rows=how.rows))
        at = {"temperature": temperature, "split": how.split}
        named = tuple(replace(estimate, at={**estimate.at, **at}) for estimate in estimates)
        found.append(Evaluated(temperature, named, batch))
    return found


def html_of_evaluations(by_name: Mapping[str, Sequence[Evaluated]], *, title: str = "") -> str:
    """A column for each name that has evaluations, a row for each measure and temperature, for a notebook."""
    shown = {name: _by_measure(found) for name, found in by_name.items() if found}
    rows = dict.fromkeys(key for numbers in shown.values() for key in numbers)
    several = len({temperature for _, temperature in rows}) > 1
    cells = [
        [f"{name} at {t:g}" if several else name, *(number_cell(numbers.get((name, t))) for numbers in shown.values())]
        for name, t in rows
    ]
    return html_table(["", *shown], cells, title=title)


def _by_measure(found: Sequence[Evaluated]) -> dict[tuple[str, float], Estimate]:
    return {(number.name, one.temperature): number for one in found for number in one.estimates}


def _passes(batch: Batch) -> list[Estimate]:
    """Over the problems with at least k verdicts."""
    found = []
    for k in default_ks(batch.drawn_P):
        pass_P = pass_at_k_of(batch.right_P, batch.drawn_P, k)[batch.drawn_P >= k]
        found.append(mean_of_prompts(pass_P, bounds=(0, 1)).named(f"pass@{k}", {"k": k}))
    return found or [Estimate("pass@1", None, n=0, at={"k": 1}, missing="completions that the checker could judge")]


def _spread(batch: Batch) -> list[Estimate]:
    """Distinct readable answers of a problem, apart for those that some completion solves and the others."""
    solved_P = batch.right_P > 0
    found = []
    for name, among_P in (("distinct_solved", solved_P), ("distinct_unsolved", ~solved_P)):
        if among_P.any():
            found.append(mean_of_prompts(batch.distinct_P[among_P], bounds=(0, np.inf)).named(name))
        else:
            found.append(Estimate(name, None, n=0, missing=f"problems that are {name.partition('_')[2]}"))
    return found


def _entropy(batch: Batch) -> Estimate:
    samples = batch.samples
    sums, n = samples.entropy_BT.sum(1).cpu().numpy(), samples.mask_BT.sum(1).cpu().numpy()
    return ratio_of_sums(sums, n, samples.prompt_B.cpu().numpy()).named("entropy")


@torch.no_grad()
def _drift(model: LanguageModel, reference: LanguageModel, batch: Batch, temperature: float, *, rows: int) -> Estimate:
    """Mean exact KL per token to the reference, over the first completions of every problem."""
    some = batch.first(max(1, DRIFT_ROWS // len(batch.problems)))
    places_B = torch.arange(len(some.finish), device=some.prompt_B.device)
    parts = [some.take(places_B[first : first + rows]) for first in range(0, len(places_B), rows)]
    kl_B = torch.cat([reference_kl(model, reference, part, temperature=temperature).sum(1) for part in parts])
    # Rounding may leave a sum just below 0 where the models are equal.
    sums, n = kl_B.clamp(min=0).cpu().numpy(), some.mask_BT.sum(1).cpu().numpy()
    found: Interval = (
        ratio_of_sums(sums, n, some.prompt_B.cpu().numpy())
        if sums.sum() > 0
        else Interval(0.0, None, None, len(batch.problems), "the models are equal")
    )
    return found.named("kl_to_base")
