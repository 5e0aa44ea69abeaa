"""The embedded trainer: one loop, read top to bottom.

supervised training, where it is asked for, makes the model that the loop begins with; then, in every step,
draw problems → sample and grade, again where filters leave too little → controllers → advantages → update
→ log, record, evaluate, save. A step that scouts samples a little of many problems, and the rest of those that it chooses. A critic, where
there is one, comes between grades and advantages; completions that are kept to be imitated, those of the base model before the first
step among them, enter the update.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from torch import Tensor

from equipoise.base import Problem, Rollout
from equipoise.catalogue.build import build
from equipoise.errors import UsageError
from equipoise.models.average import Average
from equipoise.models.blending import interpolate, wearing
from equipoise.models.decoding import seed_of
from equipoise.models.graphs import StepGraphs
from equipoise.models.language_model import LanguageModel
from equipoise.models.loaders import Loaded
from equipoise.rollouts.folder import info_of
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter
from equipoise.shaping.controllers import tally_tokens
from equipoise.shaping.shelf import BaseAnchor, RareReplay, Shelf
from equipoise.tasks.table import find_task
from equipoise.text.display import many
from equipoise.training.checkpoints import (
    Checkpoint,
    complete_checkpoints,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from equipoise.training.collect import Batch, collect, mark_tokens
from equipoise.training.critique import CritiqueLoop, Lesson, refine
from equipoise.training.evaluate import Evaluated, evaluate, html_of_evaluations
from equipoise.training.join import join_batches
from equipoise.training.lessons import collect_anchor, lesson_of, right_rows
from equipoise.training.notes import chosen_warnings
from equipoise.training.opening import open_model
from equipoise.training.problems import ProblemSource
from equipoise.training.recipe import TrainConfig, as_settings
from equipoise.training.references import score_references
from equipoise.training.scouting import Scouted, go_on
from equipoise.training.shape import Shaper
from equipoise.training.step_record import extra_rollouts, refined_of, rollouts_of, step_metrics
from equipoise.training.supervise import pairs_of, supervise
from equipoise.training.trackers import Trackers
from equipoise.training.update import Taught, Updater, optimiser_state, restore_optimiser

Say = Callable[[str], None]

# Settings that a resumed run may have otherwise: where it is, how long, and what memory it takes.
MAY_CHANGE = (
    *("out", "device", "save_every", "trackers", "learning.steps"),
    "recipe",  # what it stands for is compared by itself
    *("learning.rows", "evaluation.rows", "sft.rows"),
)


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished run: where it is, what the policy was before its first step, supervised training done, and what is handed over after the last."""

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

    def _repr_html_(self) -> str:
        title = f"{many(self.steps, 'step')}, {self.seconds:,.0f} s: {self.folder}"
        return html_of_evaluations({"before": self.before, "after": self.after}, title=title)


def train(
    config: TrainConfig, *, resume: bool = False, say: Say = lambda line: None, loaded: Loaded | None = None
) -> Trained:
    """Run a config to its last step. `resume` goes on from the newest complete checkpoint of the same folder.

    `loaded`: the config's model, where somebody has opened it already; it is trained in place.
    """
    started = time.perf_counter()
    begun, checkpoint = _begun(config, resume=resume)
    task, loaded = find_task(config.task), loaded or open_model(config.model).loaded
    model, tokens = loaded.model, loaded.tokens
    _move(model, config.device)
    reference = deepcopy(model)
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    pool, curriculum, scouting = config.sampling.pool, config.method.curriculum, config.allocation
    source = ProblemSource(task, seed=config.seed, most=config.most_problems, pool=pool, curriculum=curriculum)
    shaper = Shaper(config.method, refilled=config.sampling.refills > 0)
    updater = Updater(
        model, reference, shaper, config.learning, temperature=config.sampling.temperature, seed=config.seed
    )
    teachers = list(map(build, config.method.demonstrations))
    critique = next((each for each in teachers if isinstance(each, CritiqueLoop)), None)
    shelves = {each.name: each for each in teachers if isinstance(each, Shelf)}
    average: Average | None = None
    graphs = StepGraphs() if config.device.startswith("cuda") else None
    # A step that scouts draws twice, with two numbers of rows: in one place their graphs would push each other out.
    graphs_of_more = StepGraphs() if graphs is not None and scouting is not None else None
    # What is wrong with them is told before anything is written.
    pairs = pairs_of(config.sft, task, tokens) if config.sft is not None and checkpoint is None else []
    first = 0
    if checkpoint is not None:
        first = checkpoint.step
        model.load_state_dict(checkpoint.model)  # type: ignore[attr-defined]
        restore_optimiser(updater.optimiser, checkpoint.optimiser)
        shaper.restore(checkpoint.state["shaper"])
        source.restore(checkpoint.state["problems"])
        for name, shelf in shelves.items() if first else ():
            shelf.restore(checkpoint.state["shelves"][name])
        if config.sft is not None:
            reference.load_state_dict(_supervised(config))  # type: ignore[attr-defined]
    writer = RunWriter(config.out, _info(config))
    if begun:
        writer.restate()
        # What came after the checkpoint is made again, and so is all of it where none is of a step.
        writer.rewind(first or -1)
    for found in chosen_warnings(config):
        say(f"{found.verdict}: {found.method}: {found.why}. {found.fix}")
    named: set[int] = set()

    def keep(rollouts: list[Rollout]) -> None:
        """To the record, with the strings of tokens that it has not seen yet."""
        writer.write(rollouts)
        new = {token for rollout in rollouts for token in rollout.completion.token_ids or ()} - named
        if new:
            writer.vocab({token: tokens.decode([token]) for token in new})
            named.update(new)

    def handed() -> dict[str, Tensor] | None:
        """The weights that the run hands over, where they are not those that it trains."""
        if config.learning.blend is None:
            return None
        end = model.state_dict() if average is None else average.weights
        return interpolate(reference.state_dict(), end, config.learning.blend)

    def save(step: int, **more: Any) -> None:
        kept = {"shelves": {name: shelf.state() for name, shelf in shelves.items()}} if shelves and step else {}
        save_checkpoint(
            config.out,
            step,
            model=model.state_dict(),
            optimiser=optimiser_state(updater.optimiser),
            state={"shaper": shaper.state(), "problems": source.state(), **kept, **more},
            ema=None if average is None else average.weights,
            blend=handed() if step else None,
        )

    taught: dict[str, float] = {}
    if config.sft is not None and checkpoint is None:
        taught = supervise(model, tokens, pairs, config.sft, say=say)
        reference.load_state_dict(model.state_dict())  # type: ignore[attr-defined]
        save(0, sft=taught)
    elif checkpoint is not None and first == 0:
        taught = checkpoint.state["sft"]
    if config.learning.ema is not None:
        average = Average(model, config.learning.ema)
        if checkpoint is not None and checkpoint.ema is not None:
            average.restore(checkpoint.ema)

    def sample(
        problems: list[Problem],
        *seed: str | int,
        samples: int = config.sampling.samples,
        graphs: StepGraphs | None = None,  # a captured step serves one number of rows: not for batches of any size
    ) -> Batch:
        return collect(
            model,
            tokens,
            task,
            problems,
            seed=(config.seed, *seed),
            samples=samples,
            temperature=config.sampling.temperature,
            max_tokens=config.sampling.max_tokens,
            graphs=graphs,
        )

    def scout(step: int) -> Scouted | None:
        if scouting is None:
            return None
        posed, rest = source.draw(step, scouting.scouts), config.sampling.samples - scouting.first
        return go_on(
            scouting,
            sample(posed, "train", step, samples=scouting.first, graphs=graphs),
            prompts=config.sampling.prompts,
            seed=seed_of(config.seed, "scouting", step),
            draw_more=lambda chosen: sample(chosen, "train", step, "more", samples=rest, graphs=graphs_of_more),
            pad_token=tokens.pad,
        )

    def again(batch: Batch, step: int) -> Lesson | None:
        if critique is None:
            return None
        most_prompt = model.context - config.sampling.max_tokens
        return refine(
            critique,
            batch,
            task,
            tokens,
            most_prompt=most_prompt,
            sample=lambda problems: sample(problems, "again", step, samples=1),
        )

    def lessons_of(lesson: Lesson | None, step: int) -> list[Taught]:
        device = next(model.parameters()).device
        found = [lesson_of(shelf, step, seed=config.seed, tokens=tokens, device=device) for shelf in shelves.values()]
        if critique is not None and lesson is not None and lesson.learnt is not None:
            found.append(Taught("critique", lesson.learnt, critique.coef))
        return [each for each in found if each is not None]

    def score(batch: Batch) -> dict[str, np.ndarray]:
        if not shaper.needs_references:
            return {}
        how, rows = config.sampling, config.learning.rows
        return score_references(model, tokens, batch, temperature=how.temperature, rows=rows)

    def evaluated() -> tuple[Evaluated, ...]:
        how, max_tokens = config.evaluation, config.sampling.max_tokens
        with wearing(model, handed()):
            return tuple(evaluate(model, tokens, task, how, max_tokens=max_tokens, reference=reference, graphs=graphs))

    def look(step: int) -> tuple[Evaluated, ...]:
        found = evaluated()
        metrics = {key: value for one in found for key, value in one.metrics().items()}
        writer.log(step, metrics)
        trackers.log(step, metrics)
        if step in (0, config.learning.steps):
            for one in found:
                keep(rollouts_of(config, one.batch, step, split=config.evaluation.split, temperature=one.temperature))
        return found

    with Trackers.start(
        config.trackers, run_name=config.out.name, folder=config.out, config=as_settings(config)
    ) as trackers:
        if taught:
            writer.log(0, taught)
            # A tracker would draw a chart of one point for the loss at every step.
            trackers.log(0, {key: value for key, value in taught.items() if "@" not in key})
        before: tuple[Evaluated, ...] = look(0) if first == 0 else ()
        after = before
        for anchor in _anchors(shelves) if first == 0 and config.learning.steps else ():
            posed = task.problems((config.seed, anchor.name), anchor.problems)
            collect_anchor(anchor, posed, lambda problems: sample(problems, "anchor"), most=config.sampling.prompts)
        clock = Clock(first, config.learning.steps)
        for step in range(first + 1, config.learning.steps + 1):
            scouted = scout(step)
            if scouted is None:
                batch = sample(source.draw(step, config.sampling.prompts), "train", step, graphs=graphs)
            else:
                batch = scouted.batch
            passed_over = None if scouted is None else scouted.passed_over
            references = score(batch)
            for _ in range(config.sampling.refills):
                lacking = config.sampling.prompts - int(shaper.live_P(batch, references).sum())
                n = min(lacking, config.sampling.most - len(batch.problems))
                if n < 1:
                    break
                more = sample(source.draw(step, n, beside=batch.problems), "train", step)
                batch = join_batches([batch, more], pad_token=tokens.pad)
                references = score(batch)
            # The first completions of all that was posed: later ones, of problems that were chosen by their outcome, would
            # pull the rate over all problems, on which a curriculum's estimates lean, towards that of the chosen ones.
            source.observe((batch if scouted is None else scouted.first).groups)
            lesson = again(batch, step)
            clock.lap("sample")
            mask_BT = batch.samples.mask_BT.cpu().numpy()
            wanted = {*updater.marks, *(["answer_BT"] if shaper.needs_answer else [])}
            marks = {name: mark_tokens(name, batch, tokens, mask_BT.shape) for name in wanted}
            shaper.observe(tally_tokens(batch.samples.entropy_BT.cpu().numpy(), mask_BT))
            shaped = shaper.shape(batch, mask_BT, marks.get("answer_BT"), references)
            lessons = lessons_of(lesson, step)
            updated = updater.step(batch.samples, shaped, step=step, marks=marks, lessons=lessons)
            for shelf in shelves.values():
                if isinstance(shelf, RareReplay):
                    shelf.keep(right_rows(batch, most_rate=shelf.most_rate))
            if average is not None:
                average.add(model)
            clock.lap("update")
            metrics = step_metrics(batch, shaped) | source.metrics() | updated | clock.read()
            for name, shelf in shelves.items():
                metrics |= {f"{name}/kept": float(len(shelf.kept)), f"{name}/rows": _rows(lessons, name)}
            if scouted is not None:
                metrics |= scouted.metrics()
            if config.sampling.refills or scouted is not None or critique is not None or _anchors(shelves):
                metrics |= extra_rollouts(batch, passed_over, lesson, _anchors(shelves) if step == 1 else ())
            writer.log(step, metrics)
            trackers.log(step, metrics)
            if step % config.record_every == 0 or step == config.learning.steps:
                keep(rollouts_of(config, batch, step, split="train", temperature=None, shaped=shaped))
                if passed_over is not None:  # without an advantage: the record is of all that was posed
                    keep(rollouts_of(config, passed_over, step, split="train", temperature=None))
                if lesson is not None:
                    keep(refined_of(config, batch, lesson, step))
            if step % config.evaluation.every == 0 or step == config.learning.steps:
                after = look(step)
            if step % config.save_every == 0 or step == config.learning.steps:
                save(step)
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


def _anchors(shelves: Mapping[str, Shelf]) -> list[BaseAnchor]:
    return [shelf for shelf in shelves.values() if isinstance(shelf, BaseAnchor)]


def _rows(lessons: Sequence[Taught], name: str) -> float:
    """Completions of a lesson: what training passed over beside the step's own."""
    return float(sum(len(lesson.samples.finish) for lesson in lessons if lesson.name == name))


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


def _supervised(config: TrainConfig) -> dict[str, Tensor]:
    """What supervised training left: the reference of the whole run."""
    found = load_weights(config.out, step=0)
    if found is None:
        raise UsageError(
            f"{config.out} has lost its checkpoint of step 0, the reference of the steps after it: train into another folder"
        )
    return found[1]


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
