"""Does diversity lost on solved problems go missing on unsolved ones too? A table from the committed studies.

    python -m benchmarks.findings.transfer

Unsolved: not one right sample at the headline temperature, by the base model and by the arm of that seed. Different answers are
counted among the samples of a problem. *Cooled base*: the base model's count on the same problems at the temperature, on straight
lines between those measured, that gives it the arm's pass@1 over all problems; a seed whose pass@1 the base model reaches at no
temperature is left out of that comparison, and where none is left the table says *beyond it*.
"""

from __future__ import annotations

import numpy as np

from benchmarks.findings.studied import Floats, Studied, studies, table
from equipoise.measures.intervals import cluster_bootstrap

HEADS = (
    "study",
    "arm",
    "pass@1",
    "solved: base → arm",
    "unsolved: n",
    "base → arm",
    "Δ to base",
    "cooled base",
    "Δ to cooled base",
)


def row(study: Studied, arm: str) -> tuple[str, ...]:
    at, base, counts = study.headline, study.counts["base"], study.counts[arm]
    solved, unsolved = [], []  # per seed: columns problem, base, arm, cooled base
    for seed in range(len(counts["correct"])):
        cooled_P = cool(study, float(study.pass_1(arm)[seed, at]))
        both = np.stack([base["correct"][0, at], counts["correct"][seed, at]]) > 0
        columns = np.stack(
            [np.arange(len(cooled_P)), base["distinct"][0, at], counts["distinct"][seed, at], cooled_P], axis=1
        )
        solved.append(columns[both.all(axis=0)])
        unsolved.append(columns[~both.any(axis=0)])
    easy, hard = np.concatenate(solved), np.concatenate(unsolved)
    near = hard[np.isfinite(hard[:, 3])]
    return (
        study.name,
        arm,
        f"{study.pass_1(arm)[:, at].mean():.3f}",
        f"{easy[:, 1].mean():.1f} → {easy[:, 2].mean():.1f}",
        str(len(np.unique(hard[:, 0]))),
        f"{hard[:, 1].mean():.1f} → {hard[:, 2].mean():.1f}",
        told(hard[:, 2] - hard[:, 1], hard[:, 0]),
        *((f"{near[:, 3].mean():.1f}", told(near[:, 2] - near[:, 3], near[:, 0])) if len(near) else ("beyond it", "")),
    )


def cool(study: Studied, pass_1: float) -> Floats:
    """The base model's different answers per problem, between the two temperatures whose pass@1 lie about the one asked for."""
    curve_T, distinct_TP = study.pass_1("base")[0], study.counts["base"]["distinct"][0]
    for cold in range(len(curve_T) - 1):
        if curve_T[cold + 1] <= pass_1 <= curve_T[cold]:
            share = (pass_1 - curve_T[cold + 1]) / (curve_T[cold] - curve_T[cold + 1])
            found: Floats = share * distinct_TP[cold] + (1 - share) * distinct_TP[cold + 1]
            return found
    return np.full(distinct_TP.shape[1], np.nan)


def told(differences: Floats, problems: Floats) -> str:
    """Mean with a 95 % interval, problems resampled with all their seeds."""
    found = cluster_bootstrap(lambda weights: float(np.average(differences, weights=weights)), problems, seed=0)
    return f"{found.value:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def main() -> None:
    print(table(HEADS, [row(study, arm) for study in studies() for arm in study.arms]))


if __name__ == "__main__":
    main()
