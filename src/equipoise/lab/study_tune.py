"""Learning rate and temperature of every arm, chosen on the tuning split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.lab.study_config import BASE, Look, StudyConfig, Tune
from equipoise.lab.study_numbers import Policies
from equipoise.lab.study_outcomes import Outcomes
from equipoise.lab.study_run import Job, base_job, supervised_run
from equipoise.lab.study_volume import volumes

Tried = dict[str, Any]  # lr or temperature, and its score
RunAll = Callable[[list[Job]], None]


def choose_rates(study: StudyConfig, run_all: RunAll) -> dict[str, list[Tried]]:
    """Every arm trained with every rate. A rate's score is that of its best temperature."""
    tune, look = _look(study)
    jobs = {
        (arm, lr): Job(
            config=study.train_config(arm, seed=tune.seed, out=study.out / "tune" / f"{arm}-lr={lr:g}", lr=lr),
            begins=supervised_run(study),
            look=look,
            split="tune",
            base_temperature=study.headline,
        )
        for arm in study.arms
        if study.trained_by(arm) == arm
        for lr in tune.lr
    }
    run_all(list(jobs.values()))
    tried: dict[str, list[Tried]] = {}
    for (arm, lr), job in jobs.items():
        tried.setdefault(arm, []).append({"lr": lr, "score": float(_scores(job, tune.by).max())})
    return tried


def choose_temperatures(
    study: StudyConfig,
    planned: Sequence[tuple[str, int | None, Job]],
    rates: Mapping[str, list[Tried]],
    run_all: RunAll,
) -> list[dict[str, Any]]:
    """Every policy of the study at every temperature; the scores of an arm's seeds are averaged.

    `volume` is the area of `study_volume` on these problems: an arm that is chosen by it is chosen by no problem of the results.
    """
    tune, look = _look(study)
    jobs: dict[str, list[Job]] = {}
    for arm, _, job in planned:
        out = study.out / "tune" / job.folder.name
        if arm == BASE:
            found = base_job(study, out, look, "tune", trained=supervised_run(study))
        else:
            config = job.config.model_copy(update={"out": out})
            trained = job.trained or job.folder
            found = job.model_copy(update={"config": config, "trained": trained, "look": look, "split": "tune"})
        jobs.setdefault(arm, []).append(found)
    run_all([job for of_arm in jobs.values() for job in of_arm])
    seeds = {arm: tuple(seed for name, seed, _ in planned if name == arm) for arm in jobs}
    found_of = {arm: [Outcomes.load(job.folder / "outcomes.parquet") for job in of_arm] for arm, of_arm in jobs.items()}
    fronts = [Policies(arm, seeds[arm], tuple(outcomes)) for arm, outcomes in found_of.items()]
    areas = {row["arm"]: row["volume"] for row in volumes(fronts, k=min(front.ks[-1] for front in fronts))}
    tuned = []
    for arm, of_arm in jobs.items():
        scores_T = np.mean([_scores(job, tune.by) for job in of_arm], axis=0)
        tried = [{"temperature": t, "score": float(s)} for t, s in zip(look.temperatures, scores_T, strict=True)]
        of_rates = None if arm == BASE else rates.get(study.trained_by(arm))
        lr = best(of_rates)["lr"] if of_rates else None
        row = {"arm": arm, "by": tune.by, **best(tried), "lr": lr, "temperatures": tried, "rates": of_rates}
        tuned.append(row | {"volume": areas[arm]})
    return tuned


def best(tried: Sequence[Tried]) -> Tried:
    """Ties go to what was named first."""
    return max(tried, key=lambda each: each["score"])


def _look(study: StudyConfig) -> tuple[Tune, Look]:
    assert study.tune is not None
    tune = study.tune
    temperatures = tune.temperature or study.evaluation.temperatures
    changed = {"problems": tune.problems, "samples": tune.samples, "temperatures": temperatures}
    return tune, study.evaluation.model_copy(update=changed)


def _scores(job: Job, by: str) -> np.ndarray:
    """Of every temperature."""
    outcomes = Outcomes.load(job.folder / "outcomes.parquet")
    passes_KT = np.array([outcomes.passes(k).mean(axis=1) for k in outcomes.ks])
    return np.asarray({"pass@1": passes_KT[0], "pass@max": passes_KT[-1], "mean": passes_KT.mean(axis=0)}[by])
