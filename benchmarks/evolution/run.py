"""Mind Evolution against best-of-N and sequential revision, with as many generated tokens, on trips.

    python -m benchmarks.evolution.run

Two policies of one small GPT that was taught to read its failed plans: as it was taught (preserved), and after plain GRPO
(collapsed). Every strategy has the same problems and the same checker as its evaluator. Tokens are counted up to the first right plan, in
the order of the plans, so that one run with the largest budget tells who has solved what within any smaller one. Writes
results.json and README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evolution.report import write_readme
from equipoise.base import Question, Sampling
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.together import together
from equipoise.lab.make_planner import measure_planner
from equipoise.lab.solve import find_strategy
from equipoise.measures.intervals import mean_of_prompts, paired_difference
from equipoise.models.loaders import load_model
from equipoise.samplers.batched import Batched
from equipoise.tasks.asking import ask
from equipoise.tasks.table import find_task

HERE = Path(__file__).parent
POLICIES = {"preserved": HERE / "planner.safetensors", "collapsed": HERE / "planner-grpo.safetensors"}
# As it was taught, and with so many dates that a plan is rarely right by chance.
TASKS = {"trips": "trips", "hard trips": "trips:flights=18,dates=5,least_solutions=1"}
MAX_TOKENS = 12
# Smaller than the paper's counts, as the budget is: 36 plans a generation, and no more parents than the model's 256 tokens hold.
# Best-of-N ends at its first right plan: the draws of best_of_n, ten at a time.
ARMS = {
    "best of N": "mind_evolution:islands=1,conversations=10,turns=1,generations=999,no_parents=1",
    "revision, one chain": "revision:turns=9999,pick=judge",
    "revision, ten threads": "revision_threads:turns=999",
    "Mind Evolution, 1 island": "mind_evolution:islands=1,conversations=12,turns=3,generations=99,parents=3",
    "Mind Evolution, 4 islands": "mind_evolution:islands=4,conversations=3,turns=3,generations=99,parents=3",
}
REFERENCES = ("best of N", "revision, one chain", "Mind Evolution, 1 island")  # that others are compared with


@dataclass(frozen=True, slots=True)
class Outcome:
    """One strategy on one problem. Tokens, prompts and plans are those up to the first right plan, or all of them."""

    solved: bool
    tokens: int
    read: float | None  # prompt tokens
    plans: int
    distinct: int


async def answer(spec: str, question: Question, sampler: Batched, *, budget: int, room: asyncio.Semaphore) -> Outcome:
    async with room:
        choice = await find_strategy(spec)(question, Metered(sampler, Ledger(budget)))
    assert question.judge is not None
    tokens, plans, solved, texts = 0, 0, False, set()
    for completion in choice.drawn:
        tokens, plans = tokens + (completion.n_tokens or 0), plans + 1
        texts.add(completion.text)
        if question.read(completion) is not None and question.judge(completion).correct:
            solved = True
            break
    # A round is written whole: of its prompts the share up to the first right plan counts, as of its tokens.
    read = None if choice.spent.prompt is None else choice.spent.prompt * plans / max(1, len(choice.drawn))
    return Outcome(solved, tokens, read, plans, len(texts))


def run_arm(spec: str, questions: Sequence[Question], sampler: Batched, *, budget: int, at_once: int) -> list[Outcome]:
    async def go() -> list[Outcome]:
        room = asyncio.Semaphore(at_once)
        return await together(answer(spec, one, sampler, budget=budget, room=room) for one in questions)

    return asyncio.run(go())


def numbers(outcomes: dict[str, list[Outcome]], budgets: Sequence[int]) -> dict[str, Any]:
    """The share solved within each budget, the paired differences to the references, what it cost, and every outcome."""

    def within(name: str, budget: int) -> np.ndarray:
        return np.array([one.solved and one.tokens <= budget for one in outcomes[name]], dtype=float)

    told: dict[str, Any] = {}
    for name, rows in outcomes.items():
        told[name] = {
            "spec": ARMS[name],
            "solved": {str(b): asdict(mean_of_prompts(within(name, b), bounds=(0, 1))) for b in budgets},
            "differences": {
                other: {str(b): asdict(paired_difference(within(name, b), within(other, b))) for b in budgets}
                for other in REFERENCES
                if other != name and other in outcomes
            },
            "tokens": float(np.mean([one.tokens for one in rows])),
            "prompt_tokens": float(np.mean([one.read or 0 for one in rows])),
            "plans": float(np.mean([one.plans for one in rows])),
            "distinct": float(np.sum([one.distinct for one in rows]) / np.sum([one.plans for one in rows])),
            "outcomes": [[int(one.solved), one.tokens] for one in rows],
        }
    return told


def between_policies(policies: dict[str, Any], budgets: Sequence[int]) -> dict[str, Any]:
    """What collapse costs: every strategy on the collapsed policy less itself on the preserved one, on the same problems."""
    told: dict[str, Any] = {}
    for task in policies.get("collapsed", {}):
        before, after = policies.get("preserved", {}).get(task, {}), policies["collapsed"][task]
        told[task] = {}
        for arm in after:
            if arm not in before:
                continue
            solved = [np.array(one[arm]["outcomes"]) for one in (after, before)]
            within = {b: [(each[:, 0] == 1) & (each[:, 1] <= b) for each in solved] for b in budgets}
            told[task][arm] = {
                str(b): asdict(paired_difference(mine.astype(float), theirs.astype(float)))
                for b, (mine, theirs) in within.items()
            }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--budgets", type=int, nargs="+", default=[100, 300, 900])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--at-once", type=int, default=256, help="problems under way together")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results.json and README.md")
    asked = parser.parse_args()
    path = asked.out / "results.json"
    results: dict[str, Any] = {
        "problems": asked.problems,
        "seed": asked.seed,
        "budgets": asked.budgets,
        "tasks": TASKS,
        "policies": {},
        "first tries": {},
        "machine": {"python": platform.python_version(), "torch": version("torch"), "device": asked.device},
    }
    for policy in asked.policies:
        loaded = load_model(POLICIES[policy], device=asked.device)
        sampler = Batched(loaded)
        for name in asked.tasks:
            told = measure_planner(loaded.model, TASKS[name], problems=asked.problems // 2)
            results["first tries"].setdefault(policy, {})[name] = told
            task = find_task(TASKS[name])
            posed = task.problems(("evolution", asked.seed), asked.problems, split="test")
            questions = [ask(task, problem, Sampling(max_tokens=MAX_TOKENS), seed=asked.seed) for problem in posed]
            outcomes: dict[str, list[Outcome]] = {}
            for arm in asked.arms:
                began = time.monotonic()
                outcomes[arm] = run_arm(ARMS[arm], questions, sampler, budget=max(asked.budgets), at_once=asked.at_once)
                solved = np.mean([one.solved for one in outcomes[arm]])
                print(f"{policy}, {name}, {arm}: {solved:.3f}  {time.monotonic() - began:.0f} s", flush=True)
                results["policies"].setdefault(policy, {})[name] = numbers(outcomes, asked.budgets)
                results["between policies"] = between_policies(results["policies"], asked.budgets)
                asked.out.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(results) + "\n")
    write_readme(results, asked.out / "README.md")


if __name__ == "__main__":
    main()
