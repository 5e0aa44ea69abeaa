"""Makes a small GPT that plans trips and learns from failed plans: `python -m equipoise.lab.make_planner --out FILE.safetensors`.

A search that shows a model its earlier tries needs one that can read them, and no model of this size reads words. So half of the
pairs are (problem) → a solution, any of them, so that the model keeps many ways; and half (problem, one to five wrong tries with
what is wrong with each, as `tasks.again` puts them) → the solution that is nearest to one of the tries. First the tries are
solutions with cities moved; then, once it has learnt to plan at all, its own.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from equipoise.base import Completion, Problem
from equipoise.files import atomic_write, make_folder
from equipoise.measures.intervals import mean_of_prompts, paired_difference
from equipoise.measures.subsets import missed_share
from equipoise.models.characters import Characters
from equipoise.models.checkpoint import save_gpt
from equipoise.models.gpt import GPT, GPTConfig
from equipoise.models.language_model import LanguageModel
from equipoise.tasks.again import Try
from equipoise.tasks.table import find_task
from equipoise.tasks.task import mix_seed
from equipoise.tasks.trips import CITIES, WRONG, Trips
from equipoise.training.collect import Batch, collect
from equipoise.training.sft import Pair, Progress, fine_tune

TASK = "trips"
TOKENS = Characters(f"0123456789{CITIES},|>{WRONG}")
MAX_TOKENS = 12  # of a plan: nine cities and its end, and some more
MOST_TRIES = 5
SHARDS = 64
ROWS = 16384  # completions sampled at once


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a planner follows from, besides the code and the kind of machine."""

    task: str = TASK
    width: int = 96
    layers: int = 4
    heads: int = 4
    context: int = 256
    problems: int = 160_000
    steps: int = 2_600
    lr: float = 2e-3
    own_problems: int = 12_000  # whose wrong tries are the model's own
    own_steps: int = 700
    own_lr: float = 5e-4
    batch: int = 512
    seed: int = 0


def moved(plan: str, random: Random) -> str:
    """A plan with one to three changes: two cities exchanged, one put elsewhere, or a stretch turned round."""
    cities = list(plan)
    for _ in range(random.choice((1, 1, 2, 3))):
        here, there = sorted(random.sample(range(len(cities)), 2))
        match random.randrange(3):
            case 0:
                cities[here], cities[there] = cities[there], cities[here]
            case 1:
                cities.insert(there, cities.pop(here))
            case _:
                cities[here : there + 1] = reversed(cities[here : there + 1])
    return "".join(cities)


def nearest(solutions: Sequence[str], tries: Sequence[str], random: Random) -> str:
    """The solution that keeps most of one of the tries: neighbours and places; by chance among equals."""

    def kept(solution: str, plan: str) -> int:
        legs = {frozenset(leg) for leg in pairwise(plan)}
        places = sum(a == b for a, b in zip(solution, plan, strict=False))
        return places + sum(frozenset(leg) in legs for leg in pairwise(solution))

    return max(solutions, key=lambda solution: (max(kept(solution, plan) for plan in tries), random.random()))


def pair_after(task: Trips, problem: Problem, plans: Sequence[str], random: Random) -> Pair | None:
    """These wrong plans as tries, and the solution nearest to them; None where it is too long to read."""
    tries: list[Try] = [(found := Completion(plan, finish="stop"), task.grade(problem, found)) for plan in plans]
    tries.sort(key=lambda one: one[1].reward or 0.0)  # the best last, as the search puts them
    prompt = task.ask_again(problem, tries)
    return None if prompt is None else (prompt, nearest(sorted(task.solutions(problem)), plans, random))


def make_pairs(asked: tuple[str, int, int, int]) -> list[Pair]:
    """A shard of the first lessons: of each problem a plain pair, and one after tries with cities moved."""
    spec, seed, shard, n = asked
    task, random = _trips(spec), Random(mix_seed("planner", seed, shard))
    pairs: list[Pair] = []
    for problem in task.problems(("planner", seed, shard), n):
        solutions = sorted(task.solutions(problem))
        pairs.append((problem.prompt, random.choice(solutions)))
        wrong = {moved(random.choice(solutions), random) for _ in range(random.randint(1, MOST_TRIES))}
        tries = sorted(wrong - set(solutions))
        random.shuffle(tries)
        if tries and (pair := pair_after(task, problem, tries, random)) is not None:
            pairs.append(pair)
    return pairs


def pairs_of_own(task: Trips, batch: Batch, random: Random) -> list[Pair]:
    """A plain pair and one after the model's own wrong plans, for every problem that has some."""
    pairs: list[Pair] = []
    for problem, answers in zip(batch.problems, batch.answers_PG, strict=True):
        solutions = sorted(task.solutions(problem))
        wrong = sorted({answer for answer in answers if answer is not None} - set(solutions))
        if wrong:
            tries = random.sample(wrong, min(len(wrong), random.randint(1, MOST_TRIES)))
            if (pair := pair_after(task, problem, tries, random)) is not None:
                pairs.append(pair)
        pairs.append((problem.prompt, random.choice(solutions)))
    return pairs


def teach(recipe: Recipe, *, device: str, jobs: int) -> GPT:
    task = _trips(recipe.task)
    each = -(-recipe.problems // SHARDS)
    asked = [(recipe.task, recipe.seed, shard, each) for shard in range(SHARDS)]
    if jobs == 1:
        pairs = [pair for shard in map(make_pairs, asked) for pair in shard]
    else:  # not forked: CUDA does not survive that
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            pairs = [pair for shard in pool.map(make_pairs, asked) for pair in shard]
    config = GPTConfig(
        TOKENS.size,
        width=recipe.width,
        layers=recipe.layers,
        heads=recipe.heads,
        context=recipe.context,
        pad=TOKENS.pad,
    )
    model = GPT(config, seed=recipe.seed).to(device)
    _fit(model, pairs, steps=recipe.steps, lr=recipe.lr, recipe=recipe)
    own: list[Pair] = []
    problems = task.problems(("planner", "own", recipe.seed), recipe.own_problems)
    for first in range(0, len(problems), ROWS // 8):
        part = problems[first : first + ROWS // 8]
        own += pairs_of_own(task, tries_at(model, task, part, samples=8, seed="own"), Random(mix_seed("own", first)))
    _fit(model, own, steps=recipe.own_steps, lr=recipe.own_lr, recipe=recipe)
    return model


def tries_at(
    model: LanguageModel, task: Trips, problems: list[Problem], *, samples: int, seed: str, temperature: float = 1.0
) -> Batch:
    return collect(
        model,
        TOKENS,
        task,
        problems,
        seed=("planner", seed),
        samples=samples,
        temperature=temperature,
        max_tokens=MAX_TOKENS,
    )


def measure_planner(
    model: LanguageModel, spec: str, *, problems: int, samples: int = 64, split: str = "test"
) -> dict[str, Any]:
    """Held-out problems: first tries, and of those that 16 miss, second tries after one of the misses against further first ones."""
    task = _trips(spec)
    posed = task.problems(("planner", "measure"), problems, split=split)
    first = tries_at(model, task, posed, samples=samples, seed="measure")
    told: dict[str, Any] = {
        f"pass@{k}": asdict(mean_of_prompts(1 - missed_share(first.right_P, first.drawn_P, k), bounds=(0, 1)))
        for k in (1, 4, 16, 64)
        if k <= samples
    }
    told["distinct"] = float(first.distinct_P.mean())
    told["solutions"] = float(np.mean([len(task.solutions(problem)) for problem in posed]))
    told["entropy"] = float(first.samples.entropy_BT.double().sum() / first.samples.mask_BT.sum())
    again, places = [], []
    for place, problem in enumerate(posed):
        rows = range(place * samples, place * samples + min(16, samples))
        if any(first.grades[row].correct for row in rows):
            continue
        best = max(rows, key=lambda row: first.grades[row].reward or 0.0)
        prompt = task.ask_again(problem, [(first.completions[best], first.grades[best])])
        if prompt is not None:
            places.append(place)
            again.append(Problem(f"{problem.id} again", problem.env, prompt, problem.reference, problem.params))
    told["missed by 16"] = len(again)
    if again:
        second = tries_at(model, task, again, samples=16, seed="second")
        more = tries_at(model, task, [posed[place] for place in places], samples=16, seed="more")
        second_P, more_P = second.right_P / 16, more.right_P / 16
        told["second tries"] = asdict(mean_of_prompts(second_P, bounds=(0, 1)))
        told["more first tries"] = asdict(mean_of_prompts(more_P, bounds=(0, 1)))
        told["difference"] = asdict(paired_difference(second_P, more_P))
    return told


def _fit(model: GPT, pairs: list[Pair], *, steps: int, lr: float, recipe: Recipe) -> None:
    room = model.context - MAX_TOKENS
    kept = [pair for pair in pairs if len(pair[0]) <= room]
    fine_tune(model, TOKENS, kept, steps=steps, batch=recipe.batch, lr=lr, seed=recipe.seed, every=250, say=_say)


def _trips(spec: str) -> Trips:
    task = find_task(spec)
    assert isinstance(task, Trips)
    return task


def _say(at: Progress) -> None:
    print(f"{at.seconds:5.0f} s  step {at.step} of {at.steps}  loss {at.loss:.4f}  lr {at.lr:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="file for the weights; its numbers go beside it, as JSON"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that make problems")
    parser.add_argument("--measured", type=int, default=200, help="held-out problems")
    recipe = Recipe()
    for name, value in asdict(recipe).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    asked = parser.parse_args()
    recipe = Recipe(**{name: getattr(asked, name) for name in asdict(recipe)})
    model = teach(recipe, device=asked.device, jobs=asked.jobs)
    make_folder(asked.out.parent)
    rounded = GPT(model.config)
    rounded.load_state_dict(model.state_dict())
    save_gpt(asked.out, rounded.half(), TOKENS)
    results = {
        "recipe": asdict(recipe),
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": asked.out.stat().st_size,
        "test": measure_planner(model, recipe.task, problems=asked.measured),
    }
    with atomic_write(asked.out.with_suffix(".json")) as handle:
        handle.write((json.dumps(results, indent=1) + "\n").encode())
    print(json.dumps(results["test"], indent=1))


if __name__ == "__main__":
    main()
