"""Search over the steps of a reply against votes and best-of-N that spend the same tokens, problem by problem.

    python -m benchmarks.steps.run [--problems 200] [--thinking 64] [--seed 0]

Draws a pool of independent replies to every problem, then runs every search on it. A baseline takes as many replies of the pool, in
their order, as fit into the tokens that the search spent on that problem (one at least). Writes `results.json` beside this file;
`report.py` makes the README of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from math import exp, fsum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.base import Completion, Draw, Problem, Prompt, Question, Sampler, Sampling
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.particles import Particles
from equipoise.infer.step_search import DVTS, Beam
from equipoise.lab.open_model import open_sampler
from equipoise.measures.intervals import Interval, mean_of_prompts, paired_difference
from equipoise.measures.votes import tally_votes
from equipoise.samplers.batched import Batched
from equipoise.tasks.asking import ask
from equipoise.tasks.table import find_task
from equipoise.tasks.task import Task

HERE = Path(__file__).parent
POOL = 96  # replies to a problem
AT_ONCE = 64  # problems searched together
COOL = 0.3  # the temperature of the pools in benchmarks/infer
Search = Beam | DVTS | Particles
SHORT: dict[str, Any] = {"tokens": 2, "steps": "tokens"}
WIDE = {"n": 16, **SHORT}
THOUGHTS: dict[str, Any] = {"tokens": 12, "steps": "tokens", "start": "[", "end": "]"}  # about an attempt
NOISES = (0.0, 0.1, 0.2, 0.3)


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    search: Search
    scorer: str  # which baseline has the same knowledge
    noise: float | None = None  # share of the checker's verdicts that are turned round


def short_arms() -> list[Arm]:
    arms = []
    for noise in NOISES:
        arms += [
            Arm("beam", Beam(width=4, **WIDE), "checker", noise),
            Arm("dvts", DVTS(width=4, **WIDE), "checker", noise),
            Arm("particles", Particles(pick="vote", **WIDE), "checker", noise),
        ]
    return [
        *arms,
        Arm("beam", Beam(width=4, by="confidence", **WIDE), "confidence"),
        Arm("dvts", DVTS(width=4, by="confidence", **WIDE), "confidence"),
        Arm("particles", Particles(by="confidence", pick="vote", **WIDE), "confidence"),
        Arm("beam", Beam(n=4, width=4, by="rollouts", rollouts=4, **SHORT), "rollouts"),
        Arm("dvts", DVTS(n=8, width=4, by="rollouts", rollouts=4, **SHORT), "rollouts"),
    ]


def thinking_arms() -> list[Arm]:
    return [
        Arm("beam", Beam(n=4, width=4, **THOUGHTS), "checker", 0.0),
        Arm("dvts", DVTS(n=8, width=4, **THOUGHTS), "checker", 0.0),
        Arm("particles", Particles(n=4, pick="vote", **THOUGHTS), "checker", 0.0),
        Arm("beam", Beam(n=4, width=4, by="confidence", **THOUGHTS), "confidence"),
        Arm("dvts", DVTS(n=8, width=4, by="confidence", **THOUGHTS), "confidence"),
        Arm("particles", Particles(n=4, by="confidence", pick="vote", **THOUGHTS), "confidence"),
    ]


@dataclass(frozen=True, slots=True)
class Pooled:
    """Independent replies to one problem."""

    question: Question
    drawn: list[Completion]
    cooled: list[Completion]  # at COOL: what likely tokens alone are worth

    def fitting(self, tokens: float) -> list[Completion]:
        return fitting(self.drawn, tokens)


def fitting(drawn: list[Completion], tokens: float) -> list[Completion]:
    """As many of these, in their order, as fit into so many tokens; one at least."""
    made = np.cumsum([completion.n_tokens or 0 for completion in drawn])
    return drawn[: max(1, int(np.searchsorted(made, tokens, side="right")))]


def checker_of(question: Question, noise: float) -> Callable[[Completion], float]:
    """What a step scorer says: the task's own verdicts, a share of them turned round, always the same ones for a text."""
    assert question.judge is not None
    assert question.progress is not None
    judge, progress = question.judge, question.progress

    def check(completion: Completion) -> float:
        finished = completion.finish == "stop"
        truth = float(judge(completion).correct or False) if finished else float(progress(completion) or 0.0)
        told = f"{question.seed}\x1f{finished}\x1f{completion.thinking}\x1f{completion.text}"
        coin = int.from_bytes(blake2b(told.encode(), digest_size=8).digest(), "big") / 2**64
        return 1 - truth if coin < noise else truth

    return check


def right(question: Question, answer_text: str | None) -> float:
    assert question.judge is not None
    return 0.0 if answer_text is None else float(question.judge(Completion(answer_text)).correct or False)


def vote(pooled: Pooled, drawn: Sequence[Completion], weigh: Callable[[Completion], float] | None) -> float:
    answers = [pooled.question.read(completion) for completion in drawn]
    weights = None if weigh is None else [weigh(completion) for completion in drawn]
    useless = weights is None or not any(w for w, a in zip(weights, answers, strict=True) if a is not None)
    votes = tally_votes(answers, None if useless else weights, seed=pooled.question.seed)
    return right(pooled.question, None if votes.winner is None else votes.winner.text)


def confidence(completion: Completion) -> float:
    assert completion.logprobs
    return exp(fsum(completion.logprobs) / len(completion.logprobs))


def shown(found: Interval) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


class Plain:
    """Batched draws tell the log-probs of sampled tokens unasked, and refuse to be asked for more."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        return self.sampler.draw(prompt, replace(how, top_logprobs=None), n=n, seed=seed, first=first)


async def search_one(arm: Arm, pooled: Pooled, sampler: Sampler) -> dict[str, float]:
    question = pooled.question
    check = checker_of(question, arm.noise or 0.0)
    if arm.noise is not None:
        question = replace(question, progress=check, judge=None)
    choice = await arm.search(question, Metered(sampler, Ledger()))
    drawn = pooled.fitting(choice.spent.generated)
    return {
        "own": right(pooled.question, None if choice.answer is None else choice.answer.text),
        "tokens": choice.spent.generated,
        "probe": choice.spent.probe,
        "drawn": len(drawn),
        "majority": vote(pooled, drawn, None),
        "cooled": vote(pooled, fitting(pooled.cooled, choice.spent.generated), None),
        "best_of_n": vote(pooled, drawn, confidence if arm.scorer == "confidence" else check),
    }


async def run_arm(arm: Arm, pool: Sequence[Pooled], sampler: Sampler) -> dict[str, Any]:
    started = time.perf_counter()
    found: list[dict[str, float]] = []
    for start in range(0, len(pool), AT_ONCE):
        found += await asyncio.gather(*(search_one(arm, each, sampler) for each in pool[start : start + AT_ONCE]))
    rows = {name: [row[name] for row in found] for name in found[0]}
    own_P = rows["own"]
    return {
        "arm": arm.name,
        "scorer": arm.scorer,
        "noise": arm.noise,
        "settings": asdict(arm.search),
        "accuracy": shown(mean_of_prompts(own_P, bounds=(0.0, 1.0))),
        "tokens": float(np.mean(rows["tokens"])),
        "probe_tokens": float(np.mean(rows["probe"])),
        "replies_at_equal_tokens": float(np.mean(rows["drawn"])),
        "majority": shown(mean_of_prompts(rows["majority"], bounds=(0.0, 1.0))),
        "best_of_n": shown(mean_of_prompts(rows["best_of_n"], bounds=(0.0, 1.0))),
        "minus_majority": shown(paired_difference(own_P, rows["majority"])),
        "cooled": shown(mean_of_prompts(rows["cooled"], bounds=(0.0, 1.0))),
        "minus_cooled": shown(paired_difference(own_P, rows["cooled"])),
        "minus_best_of_n": shown(paired_difference(own_P, rows["best_of_n"])),
        "seconds": time.perf_counter() - started,
    }


async def draw_pool(task: Task, sampler: Sampler, *, problems: int, max_tokens: int, n: int, seed: int) -> list[Pooled]:
    async def one(problem: Problem) -> Pooled:
        question = ask(task, problem, Sampling(max_tokens=max_tokens), seed=seed)
        # Another seed than the searches have: their first steps are not those of the pool.
        other = replace(question, seed=question.seed ^ 1)
        cool = replace(question.how, temperature=COOL)
        drawn = await Metered(sampler, Ledger()).draw(other, n=n).completions()
        return Pooled(question, drawn, await Metered(sampler, Ledger()).draw(other, n=n, how=cool).completions())

    found: list[Pooled] = []
    problems_P = task.problems(("steps", seed), problems, split="test")
    for start in range(0, problems, AT_ONCE // 4):
        found += await asyncio.gather(*(one(problem) for problem in problems_P[start : start + AT_ONCE // 4]))
    return found


async def run_world(
    model: str, spec: str, arms: Sequence[Arm], *, problems: int, max_tokens: int, pool: int, seed: int
) -> dict[str, Any]:
    opened = open_sampler(model)
    sampler = Plain(Batched(opened.loaded))
    drawn = await draw_pool(
        find_task(spec), opened.sampler, problems=problems, max_tokens=max_tokens, n=pool, seed=seed
    )
    single = mean_of_prompts([vote(each, each.drawn[:1], None) for each in drawn], bounds=(0.0, 1.0))
    results = []
    for arm in arms:
        results.append(await run_arm(arm, drawn, sampler))
        last = results[-1]
        print(
            model,
            arm.name,
            arm.scorer,
            arm.noise,
            f"{last['accuracy']['value']:.3f}",
            f"{last['tokens']:.0f}",
            flush=True,
        )
    return {
        "model": model,
        "task": spec,
        "problems": problems,
        "max_tokens": max_tokens,
        "pool": pool,
        "single": shown(single),
        "single_tokens": float(np.mean([each.drawn[0].n_tokens for each in drawn])),
        "arms": results,
    }


def save(worlds: Sequence[dict[str, Any]], *, seed: int, seconds: float) -> None:
    facts = {
        "schema": "equipoise.benchmarks.steps/1",
        "seed": seed,
        "worlds": worlds,
        "seconds": seconds,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    (HERE / "results.json").write_text(json.dumps(facts, indent=1) + "\n")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--thinking", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    started = time.perf_counter()
    short = await run_world(
        "packaged", "countdown", short_arms(), problems=given.problems, max_tokens=20, pool=POOL, seed=given.seed
    )
    save([short], seed=given.seed, seconds=time.perf_counter() - started)
    thinker = await run_world(
        "packaged:thinker",
        "countdown:numbers=3",
        thinking_arms(),
        problems=given.thinking,
        max_tokens=232,
        pool=32,
        seed=given.seed,
    )
    save([short, thinker], seed=given.seed, seconds=time.perf_counter() - started)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(main())
