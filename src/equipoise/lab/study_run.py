"""One run of a study: train, or take another run's weights, then evaluate at every temperature. `python -m equipoise.lab.study_run JOB.json` runs it.

runs/ARM-SEED/  the run folder of the trainer, and
                job.json             what to do
                outcomes.parquet     what the evaluation found of every problem
                finished.json        written last: with it, the run is never done again
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder, read_json
from equipoise.lab.study_config import BASE, Look, StudyConfig
from equipoise.lab.study_outcomes import COUNTS, Outcomes
from equipoise.models.blending import interpolate
from equipoise.models.graphs import StepGraphs
from equipoise.models.language_model import LanguageModel
from equipoise.models.loaders import Loaded
from equipoise.models.samples import Samples
from equipoise.tasks.table import find_task
from equipoise.training.checkpoints import load_weights
from equipoise.training.collect import Batch, collect
from equipoise.training.evaluate import DRIFT_ROWS, SEED
from equipoise.training.loop import train
from equipoise.training.opening import open_model
from equipoise.training.recipe import Strict, TrainConfig
from equipoise.training.update import reference_kl

_FREE = ("out", "device", "trackers", "save_every")  # settings that change no result

Say = Callable[[str], None]


class Job(Strict):
    """`base_temperature`: that of the base model to which the KL is taken, whatever the policy's own."""

    config: TrainConfig  # 0 steps: the base model, after supervised training where the study has it
    begins: Path | None = (
        None  # the run that has done the supervised training of `config`: this one begins with its model
    )
    trained: Path | None = None  # a run that is trained already: only look at it
    blend: float = 1.0  # its weights are base + blend · (trained − base)
    ema: bool = False  # with its moving average in place of its last weights
    look: Look
    split: str = "test"
    base_temperature: float = 1.0

    @property
    def folder(self) -> Path:
        return self.config.out

    def settings(self) -> dict[str, Any]:
        """What must be equal for a finished run to stand for this job."""
        found = self.model_dump(mode="json")
        for name in _FREE:
            found["config"].pop(name)
        for part in ("learning", "evaluation", "sft"):
            (found["config"][part] or {}).pop("rows", None)
        if found["config"]["sft"] is None:  # as before there was any, so that runs of that time still count
            found["config"].pop("sft")
        for settings, name, idle in (
            (found["config"], "recipe", None),
            (found["config"]["learning"], "ema", None),
            (found["config"]["learning"], "blend", None),
            (found["config"]["method"], "allocation", None),
            (found, "blend", 1.0),
            (found, "ema", False),
            (found["look"], "seed", SEED),
        ):
            if settings.get(name, idle) == idle:  # likewise
                settings.pop(name, None)
        found["look"].pop("rows")
        for name in ("trained", "begins"):  # places
            found.pop(name)
        return found

    def training(self) -> TrainConfig | None:
        """What there is to train; None: the model is looked at as it is."""
        if self.trained is not None:
            return None
        config = self.config
        if self.begins is not None:
            config = config.model_copy(update={"model": str(self.begins), "sft": None})
        return config if config.learning.steps or config.sft is not None else None


def base_job(study: StudyConfig, out: Path, look: Look, split: str, *, trained: Path | None = None) -> Job:
    """The model that every run begins with: as it is, or what the study's supervised training makes of it."""
    settings = study.base.model_dump() | {"out": out, "sft": study.sft}
    settings["learning"] = {**settings["learning"], "steps": 0}
    config = TrainConfig(**settings)
    return Job(config=config, trained=trained, look=look, split=split, base_temperature=study.headline)


def supervised_run(study: StudyConfig) -> Path | None:
    """The folder of the run that does the study's supervised training: that of the base."""
    return study.out / "runs" / BASE if study.sft is not None else None


def is_finished(job: Job) -> bool:
    path = job.folder / "finished.json"
    if not path.exists():
        return False
    if read_json(path).get("settings") != job.settings():
        raise UsageError(f"{job.folder} was made with other settings: name another out, or remove that folder")
    return True


def write_job(job: Job) -> Path:
    make_folder(job.folder)
    return _write_json(job.folder / "job.json", job.model_dump(mode="json"))


def run_job(job: Job, say: Say = lambda line: None) -> None:
    """Train to the last step, from the newest checkpoint where there is one; evaluate; mark as finished."""
    config, training = job.config, job.training()
    loaded = open_model(job.begins or config.model).loaded
    if training is not None:
        # A copy: opening a model once more, unpacked from a GGUF file say, may take longer than a short run.
        own = Loaded(deepcopy(loaded.model), loaded.tokens)
        train(training, resume=(config.out / "run.json").exists(), say=say, loaded=own)
    loaded.model.to(config.device)  # type: ignore[attr-defined]
    reference = deepcopy(loaded.model)
    if training is not None or job.trained is not None:
        take_weights(loaded.model, job.trained or config.out, step=config.learning.steps, ema=job.ema, blend=job.blend)
    if not config.learning.steps:  # the base is its own reference
        reference = loaded.model
    make_folder(config.out)
    look_at(job, loaded, reference, say).save(config.out / "outcomes.parquet")
    _write_json(config.out / "finished.json", {"settings": job.settings(), "device": device_name(config.device)})


def take_weights(model: Any, run: Path, *, step: int, ema: bool, blend: float) -> None:
    """What an arm looks at, in place of the base model's weights: base + blend · (trained − base). `step`: the run's last."""
    found = load_weights(run, ema=ema)
    if found is None or found[0] != step:
        raise UsageError(
            f"{run} has no checkpoint of its last step to look at: remove that folder, and it is trained again"
        )
    base = model.state_dict()
    weights = {name: tensor.to(base[name].device) for name, tensor in found[1].items()}
    model.load_state_dict(interpolate(base, weights, blend))


def look_at(job: Job, loaded: Loaded, reference: LanguageModel, say: Say = lambda line: None) -> Outcomes:
    """The policy at every temperature, on the same problems with the same seeds as every other policy of the study."""
    task, look = find_task(job.config.task), job.look
    problems = task.problems(look.seed, look.problems, split=job.split)
    graphs = StepGraphs() if job.config.device.startswith("cuda") else None
    each = max(1, look.rows // look.samples)
    values_T: list[dict[str, np.ndarray]] = []
    for temperature in look.temperatures:
        say(f"evaluating at temperature {temperature:g}")
        parts = []
        for first in range(0, len(problems), each):
            batch = collect(
                loaded.model,
                loaded.tokens,
                task,
                problems[first : first + each],
                seed=(look.seed,),
                samples=look.samples,
                temperature=temperature,
                max_tokens=job.config.sampling.max_tokens,
                graphs=graphs,
            )
            some = batch.first(max(1, DRIFT_ROWS // look.problems))
            with torch.no_grad():
                kl_BT = reference_kl(
                    loaded.model, reference, some, temperature=temperature, ref_temperature=job.base_temperature
                )
            parts.append(_count(batch) | _count_kl(some, kl_BT, len(batch.problems)))
        values_T.append({name: np.concatenate([part[name] for part in parts]) for name in COUNTS})
    return Outcomes(
        look.temperatures,
        tuple(problem.id for problem in problems),
        {name: np.stack([values[name] for values in values_T]).astype(np.float64) for name in COUNTS},
    )


def _count(batch: Batch) -> dict[str, np.ndarray]:
    samples, n = batch.samples, len(batch.problems)
    return {
        "drawn": batch.drawn_P,
        "correct": batch.right_P,
        "distinct": batch.distinct_P,
        "tokens": _by_problem(samples.mask_BT, samples.prompt_B, n),
        "entropy_sum": _by_problem(samples.entropy_BT, samples.prompt_B, n),
    }


def _count_kl(some: Samples, kl_BT: torch.Tensor, n: int) -> dict[str, np.ndarray]:
    # Rounding may leave a value just below 0 where the models are equal.
    kl_sum = _by_problem(kl_BT, some.prompt_B, n).clip(min=0)
    return {"kl_tokens": _by_problem(some.mask_BT, some.prompt_B, n), "kl_sum": kl_sum}


def _by_problem(values_BT: torch.Tensor, prompt_B: torch.Tensor, n: int) -> np.ndarray:
    return np.bincount(prompt_B.cpu().numpy(), weights=values_BT.double().sum(1).cpu().numpy(), minlength=n)


def supervised_log(folder: Path) -> dict[str, Any]:
    """What the trainer logged of a run's supervised training: `supervise` says what."""
    from equipoise.rollouts.folder import open_folder

    lines = [line for line in open_folder(folder).metrics() if "sft/loss" in line]
    return {key: value for line in lines for key, value in line.items() if key.startswith(("sft/", "seconds/sft"))}


def steps_logged(folder: Path) -> Iterator[dict[str, Any]]:
    """The trainer's log of a run, one dict per training step."""
    from equipoise.rollouts.folder import open_folder

    return (line for line in open_folder(folder).metrics() if "accuracy" in line)


def device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    import os
    import platform

    return f"CPU, {platform.machine()}, {os.cpu_count()} cores"


def _write_json(path: Path, value: Any) -> Path:
    with atomic_write(path) as handle:
        handle.write((json.dumps(value, indent=1) + "\n").encode())
    return path


def main() -> None:
    def say(line: str) -> None:
        print(line, flush=True)

    try:
        run_job(Job.model_validate(read_json(Path(sys.argv[1]))), say)
    except UsageError as problem:
        print(problem, flush=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
