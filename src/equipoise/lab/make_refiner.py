"""Teaches a small GPT to use the checker's words: `python -m equipoise.lab.make_refiner --model packaged --out FILE.safetensors`.

A model that was never shown a second try cannot make one, so a critique loop (`training.critique`) has nothing to learn from.
Here the model samples solutions of training problems; each wrong one, put as `tasks.again.ask_again` puts it, becomes the
prompt of the reference solution. Half of the pairs are such, half plain, so that first tries stay what they were. What it makes
of held-out problems is then measured against the one thing that counts: as many more first tries at the same problems.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder
from equipoise.measures.intervals import mean_of_prompts, paired_difference
from equipoise.models.characters import Characters
from equipoise.models.checkpoint import save_gpt
from equipoise.models.gpt import GPT
from equipoise.models.language_model import LanguageModel, Tokens
from equipoise.models.packaged import MAX_TOKENS
from equipoise.tasks.again import ask_again
from equipoise.tasks.table import find_task
from equipoise.tasks.task import Task
from equipoise.training.collect import Batch, collect
from equipoise.training.critique import CritiqueLoop, refine
from equipoise.training.opening import open_model
from equipoise.training.sft import Pair, Progress, fine_tune, make_pairs

ROWS = 8192  # completions sampled at once


def second_tries(task: Task, batch: Batch) -> list[Pair]:
    """Every wrong completion that there is something to say of, with the reference solution as what should follow. No pair twice."""
    each, found = batch.answers_PG.shape[1], dict[Pair, None]()
    for row, (completion, grade) in enumerate(zip(batch.completions, batch.grades, strict=True)):
        problem = batch.problems[row // each]
        prompt = ask_again(task, problem, completion, grade)
        if isinstance(prompt, str) and problem.reference is not None:
            found[prompt, problem.reference] = None
    return list(found)


def teach(
    model: LanguageModel,
    tokens: Tokens,
    task: Task,
    *,
    problems: int,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    samples: int = 4,
) -> tuple[Progress, ...]:
    """Trains the model in place, on its own wrong tries at `problems` problems and on as many plain pairs."""
    again: list[Pair] = []
    drawn = task.problems(("refiner", seed), problems)
    for first in range(0, problems, max(1, ROWS // samples)):
        part = drawn[first : first + max(1, ROWS // samples)]
        again += second_tries(task, _tries(model, tokens, task, part, seed=("refiner", seed), samples=samples))
    room = model.context - MAX_TOKENS
    again = [pair for pair in again if len(tokens.encode(pair[0])) <= room]
    if not again:
        raise UsageError(f"none of {problems} problems has a wrong try to learn from: draw more, or use a harder task")
    plain: list[Pair] = list(make_pairs(task, seed=("refiner", "plain", seed), n=len(again)))
    pairs = [pair for both in zip(again, plain, strict=True) for pair in both]
    return fine_tune(model, tokens, pairs, steps=steps, batch=batch, lr=lr, seed=seed, say=_say)


def measure_refiner(
    model: LanguageModel, tokens: Tokens, task: Task, *, problems: int, samples: int = 16, tries: int = 4
) -> dict[str, Any]:
    """Held-out problems that `samples` first tries all miss: the share right of `tries` second tries and of as many first ones."""
    posed = task.problems(("refiner", "measure"), problems, split="test")
    first = _tries(model, tokens, task, posed, seed=("first",), samples=samples)
    lesson = refine(
        CritiqueLoop(tries=tries),
        first,
        task,
        tokens,
        most_prompt=model.context - MAX_TOKENS,
        sample=lambda asked: _tries(model, tokens, task, asked, seed=("second",), samples=1),
    )
    told: dict[str, Any] = {
        "problems": problems,
        "pass@1": asdict(mean_of_prompts(first.right_P / samples, bounds=(0, 1))),
        "failed": int((first.right_P == 0).sum()),
    }
    if lesson is None:
        return told
    right: dict[int, list[bool]] = {}
    for parent, grade in zip(lesson.parents, lesson.refined.grades, strict=True):
        right.setdefault(parent // samples, []).append(bool(grade.correct))
    failed = [posed[place] for place in right]
    more = _tries(model, tokens, task, failed, seed=("more",), samples=tries)
    second_P, first_P = np.array([np.mean(found) for found in right.values()]), more.right_P / tries
    return told | {
        "second_tries": asdict(mean_of_prompts(second_P, bounds=(0, 1))),
        "first_tries": asdict(mean_of_prompts(first_P, bounds=(0, 1))),
        "difference": asdict(paired_difference(second_P, first_P)),
    }


def _tries(
    model: LanguageModel, tokens: Tokens, task: Task, problems: list[Any], *, seed: tuple[int | str, ...], samples: int
) -> Batch:
    return collect(model, tokens, task, problems, seed=seed, samples=samples, temperature=1.0, max_tokens=MAX_TOKENS)


def _say(at: Progress) -> None:
    print(f"{at.seconds:5.0f} s  step {at.step} of {at.steps}  loss {at.loss:.4f}  lr {at.lr:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model",
        default="packaged",
        help="a small GPT: packaged, packaged:medium, a .safetensors file or a run folder",
    )
    parser.add_argument("--task", default="countdown")
    parser.add_argument(
        "--out", type=Path, required=True, help="file for the weights; its numbers go beside it, as JSON"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--problems", type=int, default=50_000, help="whose wrong tries are learnt from")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measured", type=int, default=512, help="held-out problems")
    asked = parser.parse_args()
    task, loaded = find_task(asked.task), open_model(asked.model, device=asked.device).loaded
    if not isinstance(loaded.model, GPT) or not isinstance(loaded.tokens, Characters):
        raise SystemExit(
            f"{asked.model} is no small GPT: use packaged, packaged:medium, a .safetensors file or a run folder"
        )
    how = {name: getattr(asked, name) for name in ("problems", "steps", "batch", "lr", "seed")}
    results: dict[str, Any] = {"model": asked.model, "task": asked.task, **how}
    results["before"] = measure_refiner(loaded.model, loaded.tokens, task, problems=asked.measured)
    teach(loaded.model, loaded.tokens, task, **how)
    results["after"] = measure_refiner(loaded.model, loaded.tokens, task, problems=asked.measured)
    make_folder(asked.out.parent)
    save_gpt(asked.out, loaded.model.cpu(), loaded.tokens)
    with atomic_write(asked.out.with_suffix(".json")) as handle:
        handle.write((json.dumps(results, indent=1) + "\n").encode())
    for when in ("before", "after"):
        print(when, json.dumps(results[when]))


if __name__ == "__main__":
    main()
