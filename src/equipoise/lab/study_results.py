"""results.json of a study: a pure function of its finished runs. Anyone can compute it again from problems.parquet and the logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.errors import UsageError
from equipoise.lab.study_config import BASE, StudyConfig, rollouts_of
from equipoise.lab.study_numbers import Compared, Policies, difference, matched, mean_over, unsolved_by_both
from equipoise.lab.study_outcomes import Outcomes
from equipoise.lab.study_run import Job, steps_logged, supervised_log
from equipoise.lab.study_volume import volumes
from equipoise.measures.law import fit_law
from equipoise.text.display import many
from equipoise.training.recipe import as_settings

SCHEMA = "equipoise.study/1"
EXPLAINED = {
    "arms": "one entry per arm and seed, at the temperature `headline`; `temperatures` has the others, each arm and the base on the same "
    "problems with the same sampling seeds. The base model has no seed. Intervals: 95 %, over problems",
    "sft": "supervised training, done once before all arms; what it made of the model is the base, and the model every arm begins with. "
    "Losses in nats per token, each the mean over the steps since the one before it; null: there was none",
    "entropy_start": "of the base model, entropy_end: of the arm; per token, on the evaluation's own completions at `headline`",
    "kl_to_base": "exact KL per token of the policy at its temperature from the base model at `headline`, on the policy's completions",
    "seconds": "of sampling and updating, from the trainer's log; evaluation is not in it",
    "differences": "arm − against: problem by problem within a seed, averaged over seeds; `how` names the interval. No correction for "
    "the number of arms: of twenty intervals one misses",
    "distinct_unsolved_by_both": "distinct answers on the problems that neither arm solves in any seed, so that both are seen on the same ones",
    "at_chosen": "arm − against as in differences, each at the temperature that the tuning split chose for it; null without tuning",
    "matched": "the arm at `headline` against the other arm's, or the base's, curve over temperatures, at the same pass@1 or KL",
    "volumes": "the area under the front of (pass@1, pass@k_max) over temperatures, reference point (0, 0), and its differences to every other "
    "arm: `lab.study_volume` says how",
    "imitated": "rows of training beside the policy gradient's: completions that were kept and imitated, no rollouts",
    "made_of": "arms that train nothing: base + blend · (trained − base) of another arm's weights, or of their moving average (ema)",
    "law": "R = −a·exp(H) + b along the training log of each run (reward and entropy per step), with what its first part would have forecast",
}


@dataclass(frozen=True)
class Finished:
    """A run that is done: which arm and seed, what was asked and what came out."""

    arm: str
    seed: int | None
    job: Job
    outcomes: Outcomes

    @property
    def trains(self) -> bool:
        """Not the base, nor other weights of a run that another arm has trained."""
        return self.arm != BASE and self.job.trained is None


def assemble(
    study: StudyConfig, runs: list[Finished], *, tuned: list[dict[str, Any]] | None, about: Mapping[str, Any]
) -> dict[str, Any]:
    logs = {(run.arm, run.seed): _log(run) for run in runs if run.arm != BASE}
    trained = {(run.arm, run.seed) for run in runs if run.trains}
    policies = {arm: _policies(arm, runs) for arm in (BASE, *study.arms)}
    problems = {run.outcomes.problems for run in runs}
    if len(problems) > 1:
        raise UsageError("the runs were evaluated on different problems, so they cannot be paired: name another out")
    k_max = min(each.ks[-1] for each in policies.values())
    at = policies[BASE].outcomes[0].at(study.headline)
    start = _by_name(policies[BASE].outcomes[0].estimates(at))["entropy"].value
    return {
        "schema": SCHEMA,
        **about,
        "explained": EXPLAINED,
        "plain": study.plain_arm,
        "headline": study.headline,
        "k_max": k_max,
        "seeds": list(study.seeds),
        "rollouts_per_run": rollouts_of(runs[-1].job.config),
        "evaluation": study.evaluation.model_dump(mode="json"),
        "sft": _supervised(study, runs),
        "recipes": {arm: _recipe(study, arm, runs) for arm in study.arms},
        "arms": [_entry(run, at, start, logs.get((run.arm, run.seed), [])) for run in runs],
        "summary": [_summary(policies[arm], at) for arm in policies],
        "differences": [d for arm in study.arms for d in _differences(study, policies, arm, at)],
        "frontier": [_frontier(policies[arm], k_max) for arm in policies],
        "matched": [m for arm in study.arms for m in _matched(study, policies, arm, at, k_max)],
        "volumes": volumes(list(policies.values()), k=k_max),
        "law": [{"arm": arm, "seed": seed, **_law(log)} for (arm, seed), log in logs.items() if (arm, seed) in trained],
        "tuned": tuned,
        "at_chosen": _at_chosen(study, policies, tuned),
    }


def _supervised(study: StudyConfig, runs: list[Finished]) -> dict[str, Any] | None:
    if study.sft is None:
        return None
    base = next(run.job for run in runs if run.arm == BASE)
    log = supervised_log(base.folder)
    losses = [{"step": int(key.partition("@")[2]), "loss": value} for key, value in log.items() if "/loss@" in key]
    return {
        "model": base.config.model,
        "settings": study.sft.model_dump(mode="json"),
        "pairs": round(log["sft/pairs"]),
        "loss": log["sft/loss"],
        "losses": losses,
        "seconds": log["seconds/sft"],
        "run": str(base.folder.relative_to(study.out)),
    }


def _policies(arm: str, runs: list[Finished]) -> Policies:
    mine = [run for run in runs if run.arm == arm]
    return Policies(arm, tuple(run.seed for run in mine), tuple(run.outcomes for run in mine))


def _log(run: Finished) -> list[dict[str, Any]]:
    """The training log, refused where the run drew other rollouts than it was to."""
    log, asked = list(steps_logged(run.job.trained or run.job.folder)), run.job.config.learning.steps
    if len(log) != asked:
        raise UsageError(
            f"{run.job.folder} has {many(len(log), 'step')} in its log and was to have {asked}: arms must draw equal rollouts; remove that folder and run again"
        )
    return log


def _by_name(estimates: list[Estimate]) -> dict[str, Estimate]:
    return {number.name: number for number in estimates}


def _recipe(study: StudyConfig, arm: str, runs: list[Finished]) -> dict[str, Any]:
    config = next(run.job.config for run in runs if run.arm == arm)
    settings = {name: value for name, value in as_settings(config).items() if name not in ("out", "seed")}
    made = study.arms[arm]
    return {
        "about": made.about,
        "against": study.against(arm),
        "made_of": {"arm": made.of, "blend": made.blend, "ema": made.ema} if made.of else None,
        "settings": settings,
        "warnings": [f"{found.verdict}: {found.method}: {found.why}" for found in config.warnings()],
    }


def _entry(run: Finished, at: int, start: float | None, log: list[dict[str, Any]]) -> dict[str, Any]:
    config = run.job.config
    by_temperature = [_by_name(run.outcomes.estimates(i)) for i in range(len(run.outcomes.temperatures))]
    here = by_temperature[at]
    n_each = config.sampling.prompts * config.sampling.samples
    return {
        "arm": run.arm,
        "seed": run.seed,
        "steps": config.learning.steps,
        "lr": config.learning.lr if config.learning.steps else None,
        "updates": config.learning.updates if config.learning.steps else None,
        "entropy_start": start,
        "entropy_end": here["entropy"].value,
        **{name: number.value for name, number in here.items() if name != "entropy"},
        "intervals": {name: [number.low, number.high] for name, number in here.items()},
        "temperatures": {
            f"{temperature:g}": {name: number.value for name, number in found.items()}
            for temperature, found in zip(run.outcomes.temperatures, by_temperature, strict=True)
        },
        "seconds": round(sum(v for line in log for key, v in line.items() if key.startswith("seconds/") and v), 1),
        # Steps that draw as many as they need say how many that were.
        "rollouts": round(sum(line.get("rollouts", n_each) for line in log)),
        "tokens": round(sum(line.get("tokens", line["length"] * n_each) for line in log)),
        "imitated": round(sum(v for line in log for key, v in line.items() if key.endswith("/rows"))),
    }


def _told(found: Compared) -> dict[str, Any]:
    return asdict(found)


def _summary(policies: Policies, at: int) -> dict[str, Any]:
    numbers = {f"pass@{k}": _told(mean_over(policies.passes(k)[:, at], bounded=True)) for k in policies.ks}
    for name in ("distinct_solved", "distinct_unsolved", "entropy", "kl_to_base"):
        each = [_by_name(outcomes.estimates(at))[name].value for outcomes in policies.outcomes]
        known = [value for value in each if value is not None]
        numbers[name] = {"value": float(np.mean(known)) if known else None, "per_seed": each}
    return {"arm": policies.arm, "seeds": list(policies.seeds), **numbers}


def _differences(study: StudyConfig, policies: Mapping[str, Policies], arm: str, at: int) -> list[dict[str, Any]]:
    """To the base and to the plain arm: every k at the headline temperature, pass@1 and the largest k at the others."""
    found, mine = [], policies[arm]
    for against in dict.fromkeys((BASE, study.against(arm))):
        if against == arm:
            continue
        other = policies[against]
        for i, temperature in enumerate(mine.temperatures):
            for k in mine.ks if i == at else dict.fromkeys((1, mine.ks[-1])):
                gap = difference(mine.passes(k)[:, i], other.passes(k)[:, i])
                found.append(_row(arm, against, temperature, f"pass@{k}", gap))
        unsolved_P = unsolved_by_both(mine, other, at)
        if unsolved_P.sum() > 1:
            a_SP, b_SP = (p.values("distinct")[:, at][:, unsolved_P] for p in (mine, other))
            gap = difference(a_SP, b_SP)
        else:
            gap = Compared(None, None, None, int(unsolved_P.sum()), (), None, "", "2 problems that neither arm solves")
        found.append(_row(arm, against, study.headline, "distinct_unsolved_by_both", gap))
    return found


def _at_chosen(
    study: StudyConfig, policies: Mapping[str, Policies], tuned: list[dict[str, Any]] | None
) -> list[dict[str, Any]] | None:
    """Every arm at its own temperature against the base and the plain arm at theirs."""
    if tuned is None:
        return None
    chosen = {row["arm"]: row["temperature"] for row in tuned}
    found = []
    for arm in study.arms:
        for against in dict.fromkeys((BASE, study.against(arm))):
            if against == arm:
                continue
            mine, other = policies[arm], policies[against]
            i, j = (p.temperatures.index(chosen[p.arm]) for p in (mine, other))
            for k in dict.fromkeys((1, mine.ks[-1])):
                gap = difference(mine.passes(k)[:, i], other.passes(k)[:, j])
                row = _row(arm, against, chosen[arm], f"pass@{k}", gap)
                found.append(row | {"against_temperature": chosen[against]})
    return found


def _row(arm: str, against: str, temperature: float, name: str, found: Compared) -> dict[str, Any]:
    return {"arm": arm, "against": against, "name": name, "temperature": temperature, **_told(found)}


def _frontier(policies: Policies, k_max: int) -> dict[str, Any]:
    points = [
        {
            "temperature": temperature,
            "pass@1": _told(mean_over(policies.passes(1)[:, i], bounded=True)),
            f"pass@{k_max}": _told(mean_over(policies.passes(k_max)[:, i], bounded=True)),
        }
        for i, temperature in enumerate(policies.temperatures)
    ]
    return {"arm": policies.arm, "points": points}


def _matched(
    study: StudyConfig, policies: Mapping[str, Policies], arm: str, at: int, k_max: int
) -> list[dict[str, Any]]:
    found = []
    for against in dict.fromkeys((BASE, study.against(arm))):
        if against == arm or len(study.evaluation.temperatures) < 2:
            continue
        for by, k in dict.fromkeys((("pass@1", k_max), ("kl_to_base", 1), ("kl_to_base", k_max))):
            gap = matched(policies[arm], policies[against], by=by, k=k, at=at)
            found.append({"arm": arm, "against": against, "by": by, "name": f"pass@{k}", **_told(gap)})
    return found


def _law(log: list[dict[str, Any]]) -> dict[str, Any]:
    columns = (np.array([line[name] for line in log], dtype=np.float64) for name in ("step", "entropy", "reward"))
    return asdict(fit_law(*columns))
