"""The demo: collapse and its cure in a few minutes on two cores, from the model inside the package.

Two runs from one model, with as many rollouts: plain GRPO, and the recipe `preserve`, which adds an exact KL to the base model, draws
and learns at a cooler temperature from smaller groups, and hands over the average of its weights. What each hands over is evaluated on
held-out problems at temperature 1, problem by problem against the base model, and both are diagnosed; then all three policies spend the
same tokens on a question in several ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.base import Diagnosis, Estimate
from equipoise.diagnosis.verdict import diagnose
from equipoise.lab.demo_spending import Spending, spend
from equipoise.measures.html import html_line, number_cell
from equipoise.measures.intervals import paired_difference
from equipoise.measures.passk import pass_at_k_of
from equipoise.text.display import many
from equipoise.training.collect import Batch
from equipoise.training.evaluate import Evaluated, html_of_evaluations
from equipoise.training.loop import Trained, train
from equipoise.training.recipe import Evaluation, Learning, Sampling, TrainConfig

PLAIN, KEPT = "plain", "kept"
# A step of both draws 512 completions. At temperature 0.5 the same change of the weights moves the policy twice as far, so the recipe
# learns at half the rate; and over 100 steps an average with its decay, 0.99, would keep 0.99^100 = 37 % of the base model's weights.
SETTINGS: dict[str, dict[str, Any]] = {
    PLAIN: {
        "recipe": "grpo",
        "sampling": {"prompts": 32, "samples": 16},
        "learning": {"lr": 2e-4},
    },
    KEPT: {
        "recipe": "preserve",
        "sampling": {"prompts": 128, "samples": 4},
        "learning": {"lr": 1e-4, "ema": 0.95},
    },
}
TITLES = {PLAIN: "GRPO", KEPT: "preserve"}
STEPS = 100
PROBLEMS, SAMPLES = 192, 64  # of the evaluation


@dataclass(frozen=True, slots=True)
class Arm:
    """One run: what it became, and how that differs from the base model on the same problems."""

    name: str
    trained: Trained
    changes: tuple[Estimate, ...]  # pass@1 and pass@k minus the base model's, k all samples
    diagnosis: Diagnosis
    spending: Spending


@dataclass(frozen=True, slots=True)
class Demo:
    base: Evaluated
    base_spending: Spending
    arms: tuple[Arm, ...]
    kept_minus_plain: tuple[Estimate, ...]

    def to_dict(self) -> dict[str, Any]:
        def told(estimates: tuple[Estimate, ...]) -> list[dict[str, Any]]:
            return [estimate.to_dict() for estimate in estimates]

        return {
            "schema": "equipoise.demo/3",
            "base": told(self.base.estimates),
            "base_spending": self.base_spending.to_dict(),
            "arms": [
                {
                    "arm": arm.name,
                    "title": TITLES[arm.name],
                    "run": arm.trained.folder,
                    "after": told(arm.trained.after[0].estimates),
                    "against_base": told(arm.changes),
                    "diagnosis": arm.diagnosis.to_dict(),
                    "spending": arm.spending.to_dict(),
                    "seconds": round(arm.trained.seconds, 1),
                }
                for arm in self.arms
            ],
            "kept_minus_plain": told(self.kept_minus_plain),
        }

    def _repr_html_(self) -> str:
        columns = {"base model": [self.base], **{TITLES[arm.name]: arm.trained.after for arm in self.arms}}
        told = [
            f"{TITLES[arm.name]}: {arm.diagnosis.verdict}; against the base model {_differences(arm.changes)}"
            for arm in self.arms
        ]
        told.append(f"{TITLES[KEPT]} against {TITLES[PLAIN]}: {_differences(self.kept_minus_plain)}")
        return html_of_evaluations(columns) + "".join(map(html_line, told))


def run_demo(
    folder: Path,
    *,
    steps: int = STEPS,
    problems: int = PROBLEMS,
    samples: int = SAMPLES,
    say: Callable[[str], None] = lambda line: None,
) -> Demo:
    """Train, evaluate, compare and diagnose both arms; their run folders are written under `folder`."""
    trained = {}
    for name in SETTINGS:
        say(f"{TITLES[name]}: {many(steps, 'step')}")
        how = Evaluation(problems=problems, samples=samples, every=max(steps, 1))
        trained[name] = train(_config(folder / name, SETTINGS[name], steps, how), say=say)
    base, plain, kept = trained[PLAIN].before[0], trained[PLAIN].after[0], trained[KEPT].after[0]
    say("spending the same tokens with each policy")
    arms = tuple(
        Arm(
            name,
            found,
            _compared(found.after[0].batch, base.batch, "base"),
            diagnose(found.folder),
            spend(found.folder, step=steps, samples=samples),
        )
        for name, found in trained.items()
    )
    return Demo(base, spend(folder / PLAIN, step=0, samples=samples), arms, _compared(kept.batch, plain.batch, PLAIN))


def _config(out: Path, settings: Mapping[str, Any], steps: int, evaluation: Evaluation) -> TrainConfig:
    return TrainConfig(
        out=out,
        recipe=settings["recipe"],
        sampling=Sampling(**settings["sampling"]),
        learning=Learning(steps=steps, rows=512, **settings["learning"]),
        evaluation=evaluation,
        save_every=max(steps, 1),
        record_every=5,
    )


def _differences(estimates: tuple[Estimate, ...]) -> str:
    return ", ".join(f"{number.name} {number_cell(number, signed=True)}" for number in estimates)


def _compared(ours: Batch, theirs: Batch, against: str) -> tuple[Estimate, ...]:
    """pass@1 and pass@k, k all samples, minus the other's, on the same problems in the same order."""
    return tuple(
        paired_difference(*(pass_at_k_of(each.right_P, each.drawn_P, k) for each in (ours, theirs))).named(
            f"pass@{k}", {"k": k, "against": against}
        )
        for k in (1, ours.answers_PG.shape[1])
    )
