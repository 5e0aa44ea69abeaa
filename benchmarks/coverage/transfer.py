"""Training as sampling: problems solved and distinct answers over four visits, against as many samples of the base model.

The run's policy is constant, so that the truth is known; "no learning" has a gap of zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np

from benchmarks.coverage.case import Case, Shown
from benchmarks.coverage.diversity import given_wrong
from benchmarks.coverage.pools import MOVED, Training, both, population, shown
from equipoise.measures.evidence import Options
from equipoise.measures.transfer import estimate_transfer

VISITS = 4
SAME = Training(shift=0.0, noise=0.0, power=1.0)


@cache
def truths(training: Training, samples: int) -> dict[str, float]:
    run_PA, base_PA = population(training)
    missed_P = ((1 - run_PA[:, 0]) * (1 - base_PA[:, 0])) ** samples
    found: dict[str, float] = {}
    for problems, weight_P, form in (("all", np.ones(len(run_PA)), np.asarray), ("unsolved", missed_P, given_wrong)):
        run, base = (
            np.average((1 - (1 - form(each_PA)) ** samples).sum(axis=1), weights=weight_P)
            for each_PA in (run_PA, base_PA)
        )
        gap = "transfer_gap" if problems == "unsolved" else "transfer_gap_all"
        found |= {f"{gap}, {problems}": run / base - 1, f"ever_distinct_vs_baseline, {problems}": run - base}
    solved = [(1 - (1 - each_PA[:, 0]) ** samples).mean() for each_PA in (run_PA, base_PA)]
    return found | {"ever_solved_vs_baseline, all": solved[0] - solved[1]}


def simulate(rng: np.random.Generator, prompts: int, samples: int, *, training: Training) -> Iterator[Shown]:
    run, base = both(rng, prompts, samples, training)
    run.answers.numbers["step"][:] = np.tile(np.arange(samples) % VISITS, prompts)
    found = estimate_transfer(run, baseline=base, options=Options())
    yield from shown([number for number in found if number.at["visits"] == VISITS], truths(training, samples), samples)


CASES = [
    Case("no learning", partial(simulate, training=SAME)),
    Case("sharper", partial(simulate, training=MOVED)),
]
