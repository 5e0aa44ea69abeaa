"""pass@k and pass^k of a run, their differences from a base model on the same problems, and where the two curves cross.

"Lost" is a run that gave up one problem in ten, or in five, and got better at the rest: its curve starts above the base
model's and ends below. Over 50 problems five lost ones, each a large difference, make a mean that is far from normal.
"Unreadable" completions are never right, so no problem is solved every time: pass^32 is then near 0.02, made by few problems.
The crossing is shown whenever the run ends below; its interval is then the ks at which the difference may be zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np

from benchmarks.coverage.case import Case, Shown
from benchmarks.coverage.pools import ABSTAIN, LOST, LOST_MORE, MOVED, Training, both, ks_of, population, shown
from equipoise.measures.evidence import Options
from equipoise.measures.passk import crossing, estimate_passk


@cache
def truths(training: Training, samples: int) -> dict[str, float]:
    run_P, base_P = (rates_PA[:, 0] * (1 - training.abstain) for rates_PA in population(training))
    found: dict[str, float] = {}
    for k in ks_of(samples):
        at_least, every = (1 - (1 - run_P) ** k).mean(), (run_P**k).mean()
        found |= {f"pass@{k}": at_least, f"pass@{k}_vs_baseline": at_least - (1 - (1 - base_P) ** k).mean()}
        found |= {f"pass^{k}": every, f"pass^{k}_vs_baseline": every - (base_P**k).mean()}
    ks = range(1, samples + 1)
    crossed = crossing(ks, np.asarray([((1 - base_P) ** k - (1 - run_P) ** k).mean() for k in ks]))
    return found if crossed is None else found | {"crossing_k": crossed}


def simulate(rng: np.random.Generator, prompts: int, samples: int, *, training: Training) -> Iterator[Shown]:
    run, base = both(rng, prompts, samples, training)
    found = estimate_passk(run, baseline=base, options=Options(k=ks_of(samples)))
    yield from shown(found, truths(training, samples), samples)


CASES = [
    Case("better", partial(simulate, training=MOVED)),
    Case("better, one in twenty unreadable", partial(simulate, training=replace(MOVED, abstain=ABSTAIN))),
    Case("one in ten lost", partial(simulate, training=LOST)),
    Case("one in five lost", partial(simulate, training=LOST_MORE)),
]
