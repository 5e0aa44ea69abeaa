"""The embedded trainer: one loop, read top to bottom.

draw problems → sample and grade → advantages → controllers → update → log, record, evaluate, save
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from equipoise.base import Rollout
from equipoise.errors import UsageError
from equipoise.models.graphs import StepGraphs
from equipoise.models.language_model import LanguageModel
from equipoise.models.loaders import load_model
from equipoise.rollouts.folder import info_of
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
from equipoise.shaping.controllers import tally_tokens
from equipoise.tasks.table import find_task
from equipoise.training.checkpoints import Checkpoint, complete_checkpoints, load_checkpoint, save_checkpoint
from equipoise.training.collect import Batch, answer_tokens, collect
from equipoise.training.evaluate import Evaluated, evaluate
from equipoise.training.recipe import TrainConfig, as_settings
from equipoise.training.shape import Shaped, Shaper
from equipoise.training.trackers import Trackers
from equipoise.training.update import Updater, optimiser_state, restore_optimiser

Say = Callable[[str], None]

# Settings that a resumed run may have otherwise: where it is, how long, and what memory it takes.
MAY_CHANGE = ("out", "device", "save_every", "trackers", "learning.steps", "learning.rows")


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished run: where it is, what the policy was before it and is after it."""

    folder: str
    steps: int
    before: tuple[Evaluated, ...]  # empty where the run was resumed
    after: tuple[Evaluated, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        def told(found: tuple[Evaluated, ...]) -> dict[str, Any]:
            return {key: value for one in found for key, value in one.metrics().items()}

        return {
            "schema": "equipoise.train/1",
            "run": self.folder,
            "steps": self.steps,
            "before": told(self.before) or None,
            "after": told(self.after),
            "seconds": round(self.seconds, 1),
        }


def train(config: TrainConfig, *, resume: bool = False, say: Say = lambda line: None) -> Trained:
    """Run a config to its last step. `resume` goes on from the newest complete checkpoint of the same folder."""
    started = time.perf_counter()
    begun, checkpoint = _begun(config, resume=resume)
    task, loaded = find_task(config.task), load_model(config.model)
    model, tokens = loaded.model, loaded.tokens
    _move(model, config.device)
    reference = deepcopy(model)
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    shaper = Shaper(config.method)
    updater = Updater(
        model, reference, shaper, config.learning, temperature=config.sampling.temperature, seed=config.seed
    )
    graphs = StepGraphs() if config.device.startswith("cuda") else None
    first = 0
    if checkpoint is not None:
        first = checkpoint.step
        model.load_state_dict(checkpoint.model)  # type: ignore[attr-defined]
        restore_optimiser(updater.optimiser, checkpoint.optimiser)
        shaper.restore(checkpoint.state["shaper"])
    writer = RunWriter(config.out, _info(config))
    if begun:  # what came after the checkpoint is made again, and so is all of it where there is none
        writer.rewind(first if checkpoint is not None else -1)
    for found in config.warnings():
        say(f"{found.verdict}: {found.method}: {found.why}. {found.fix}")

    def evaluated() -> tuple[Evaluated, ...]:
        how, max_tokens = config.evaluation, config.sampling.max_tokens
        return tuple(evaluate(model, tokens, task, how, max_tokens=max_tokens, reference=reference, graphs=graphs))

    def look(step: int) -> tuple[Evaluated, ...]:
        found = evaluated()
        metrics = {key: value for one in found for key, value in one.metrics().items()}
        writer.log(step, metrics)
        trackers.log(step, metrics)
        if step in (0, config.learning.steps):
            for one in found:
                writer.write(
                    _rollouts(config, one.batch, step, split=config.evaluation.split, temperature=one.temperature)
                )
        return found

    with Trackers.start(
        config.trackers, run_name=config.out.name, folder=config.out, config=as_settings(config)
    ) as trackers:
        before: tuple[Evaluated, ...] = look(0) if first == 0 else ()
        after = before
        clock = Clock(first, config.learning.steps)
        for step in range(first + 1, config.learning.steps + 1):
            problems = task.problems((config.seed, "train", step), config.sampling.prompts)
            batch = collect(
                model,
                tokens,
                task,
                problems,
                seed=(config.seed, "train", step),
                samples=config.sampling.samples,
                temperature=config.sampling.temperature,
                max_tokens=config.sampling.max_tokens,
                graphs=graphs,
            )
            clock.lap("sample")
            mask_BT = batch.samples.mask_BT.cpu().numpy()
            answer_BT = answer_tokens(batch, tokens, mask_BT.shape) if shaper.needs_answer else None
            shaped = shaper.shape(batch, mask_BT, answer_BT)
            shaper.observe(tally_tokens(batch.samples.entropy_BT.cpu().numpy(), mask_BT))
            updated = updater.step(batch.samples, shaped, step=step)
            clock.lap("update")
            metrics = _metrics(batch, shaped) | updated | clock.read()
            writer.log(step, metrics)
            trackers.log(step, metrics)
            if step % config.record_every == 0 or step == config.learning.steps:
                writer.write(_rollouts(config, batch, step, split="train", temperature=None, shaped=shaped))
            if step % config.evaluation.every == 0 or step == config.learning.steps:
                after = look(step)
            if step % config.save_every == 0 or step == config.learning.steps:
                save_checkpoint(
                    config.out,
                    step,
                    model=model.state_dict(),
                    optimiser=optimiser_state(updater.optimiser),
                    state={"shaper": shaper.state()},
                )
            say(_line(step, config.learning.steps, metrics, after, clock))
    if first == config.learning.steps > 0:  # resumed at its end: the numbers are in the log already
        after = evaluated()
    return Trained(str(config.out), config.learning.steps, before, after, time.perf_counter() - started)


class Clock:
    """Where the time of a step goes, and how long the rest will take."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._start = self._mark = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps[name], self._mark = now - self._mark, now

    def read(self) -> dict[str, float]:
        laps, self._laps = self._laps, {}
        return {f"seconds/{name}": round(value, 4) for name, value in laps.items()}

    def left(self, step: int) -> float:
        self._mark = time.perf_counter()
        return (self._mark - self._start) / max(step - self._first, 1) * (self._last - step)


def _metrics(batch: Batch, shaped: Shaped) -> dict[str, float | None]:
    groups, samples = batch.groups, batch.samples
    assert groups.correct_PG is not None
    assert groups.reward_PG is not None
    assert groups.n_tokens_PG is not None
    assert groups.truncated_PG is not None
    checked_P = np.isfinite(groups.correct_PG).any(axis=1)
    right_P = np.nanmean(groups.correct_PG[checked_P], axis=1)
    n_tokens = float(samples.mask_BT.sum())
    return {
        "entropy": float(samples.entropy_BT.sum()) / n_tokens,
        "accuracy": _mean(right_P),
        "reward": _mean(groups.reward_PG[np.isfinite(groups.reward_PG)]),
        "all_wrong": _mean(right_P == 0),
        "all_right": _mean(right_P == 1),
        "distinct": float(batch.distinct_P.mean()),
        "length": float(groups.n_tokens_PG.mean()),
        "truncated": float(groups.truncated_PG.mean()),
        "bonus": float(shaped.bonus_PG.mean()),
        **{f"dropped/{reason}": float(count) for reason, count in shaped.dropped.items()},
    }


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size else None


def _rollouts(
    config: TrainConfig, batch: Batch, step: int, *, split: str, temperature: float | None, shaped: Shaped | None = None
) -> list[Rollout]:
    each = len(batch.completions) // len(batch.problems)
    adv_B = None if shaped is None else (shaped.adv_PG + shaped.bonus_PG).ravel()
    extra = {} if temperature is None else {"temperature": temperature}
    return [
        Rollout(
            run_id=config.out.name,
            split=split,
            step=step,
            group_id=batch.problems[row // each].id,
            sample_index=row % each,
            problem=batch.problems[row // each],
            completion=completion,
            grade=grade,
            advantage=None if adv_B is None else float(adv_B[row]),
            extra=extra,
        )
        for row, (completion, grade) in enumerate(zip(batch.completions, batch.grades, strict=True))
    ]


def _info(config: TrainConfig) -> RunInfo:
    how = {"estimator": "full softmax", "temperature": config.sampling.temperature, "aggregation": "per token"}
    return RunInfo(
        source="equipoise",
        source_version=version("equipoise"),
        run_id=config.out.name,
        model=config.model,
        sampling=config.sampling.model_dump(),
        settings=as_settings(config),
        seed=config.seed,
        provenance={
            "entropies": how,
            "logprobs_rollout": {"kind": "processed", "temperature": config.sampling.temperature},
        },
    )


def _begun(config: TrainConfig, *, resume: bool) -> tuple[bool, Checkpoint | None]:
    """Whether the folder holds this run already, and the checkpoint to go on from; refuses what would mix two runs."""
    path = config.out / "run.json"
    if not path.exists():
        if complete_checkpoints(config.out):
            raise UsageError(f"{config.out} holds checkpoints and no run.json: name another folder")
        return False, None
    if not resume:
        raise UsageError(f"{config.out} holds a run already: name another folder, or resume it (--resume)")
    before, now = _flat(info_of(path).settings), _flat(as_settings(config))
    other = sorted(
        key for key in before.keys() | now.keys() if key not in MAY_CHANGE and before.get(key) != now.get(key)
    )
    if other:
        told = ", ".join(f"{key} was {before.get(key)} and is {now.get(key)}" for key in other)
        raise UsageError(f"{config.out} was begun with other settings ({told}): resume with those of its run.json")
    checkpoint = load_checkpoint(config.out)
    if checkpoint is not None and checkpoint.step > config.learning.steps:
        raise UsageError(
            f"{config.out} is at step {checkpoint.step} already, and learning.steps is {config.learning.steps}: ask for more"
        )
    return True, checkpoint


def _flat(settings: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{head}{name}.") if isinstance(value, Mapping) else {f"{head}{name}": value}
    return flat


def _move(model: LanguageModel, device: str) -> None:
    try:
        model.to(device)  # type: ignore[attr-defined]
    except (RuntimeError, AssertionError) as problem:  # torch without CUDA asserts
        why = str(problem).partition("\n")[0]
        raise UsageError(
            f"device '{device}' cannot be used here ({why}): use cpu, or cuda where there is a GPU"
        ) from problem


def _line(step: int, last: int, metrics: Mapping[str, Any], found: tuple[Evaluated, ...], clock: Clock) -> str:
    held_out = ""
    if found:
        passes = [number for number in found[0].estimates if number.name.startswith("pass@")]
        held_out = "  held out: " + ", ".join(f"{n.name} {_short(n.value)}" for n in (passes[0], passes[-1]))
    return (
        f"step {step}/{last}  right {_short(metrics['accuracy'])}  entropy {_short(metrics['entropy'])}{held_out}"
        f"  {clock.left(step):.0f} s left"
    )


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
