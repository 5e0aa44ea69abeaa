"""Rollouts drawn from a made-up model, in the columns of the record. Axes: P problems, G samples, R rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from equipoise.lab.synthetic import Problems, World, astray, draw_problems, progress, sharpness, thinking, trained
from equipoise.lab.synthetic_tokens import Tokens, draw_tokens
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.run import Run, RunInfo


@dataclass(frozen=True, slots=True)
class Draws:
    """Rollouts as arrays. `answer_R` −1: unreadable; `step`, `budget` None: not set."""

    problem_R: np.ndarray
    sample_R: np.ndarray
    answer_R: np.ndarray
    step: int | None = None
    budget: int | None = None


def make_run(world: World, *, seed: int) -> Run:
    """The run: training rollouts over its steps (those of the base model where there was no training), then the final
    model at every thinking budget."""
    problems = draw_problems(world, seed=seed)
    rng = np.random.default_rng([seed, 1])
    parts = [_encode(world, problems, draws, rng) for draws in _training(world, problems, rng)]
    parts += [_encode(world, problems, draws, rng) for draws in _sweep(world, problems, rng)]
    return _run(world, parts, seed=seed, name="run")


def make_baseline(world: World, *, seed: int) -> Run:
    """The base model's rollouts of the same problems, one pass, drawn independently of the run's."""
    problems = draw_problems(world, seed=seed)
    rng = np.random.default_rng([seed, 2])
    draws = _draw(world, problems.base_PA, np.arange(world.problems), rng)
    return _run(world, [_encode(world, problems, draws, rng)], seed=seed, name="base")


def _training(world: World, problems: Problems, rng: np.random.Generator) -> Iterator[Draws]:
    if not world.passes:
        yield _draw(world, problems.base_PA, np.arange(world.problems), rng)
    for first in range(0, world.steps, world.steps_per_pass):
        order = rng.permutation(world.problems)
        for i, chosen in enumerate(np.array_split(order, world.steps_per_pass)):
            prob_PA = trained(world, problems, progress(world, first + i))
            yield _draw(world, prob_PA, np.sort(chosen), rng, step=first + i)


def _draw(
    world: World, prob_PA: np.ndarray, chosen: np.ndarray, rng: np.random.Generator, *, step: int | None = None
) -> Draws:
    answer_PG = pick(prob_PA[chosen], rng.random((len(chosen), world.samples)))
    answer_PG[rng.random(answer_PG.shape) < world.unreadable] = -1
    sample_R = np.tile(np.arange(world.samples), len(chosen))
    return Draws(np.repeat(chosen, world.samples), sample_R, answer_PG.ravel(), step)


def _sweep(world: World, problems: Problems, rng: np.random.Generator) -> Iterator[Draws]:
    """Where budgets are lengths of one trace, a sample keeps its luck over them and changes its answer as little as it can."""
    prob_PA = trained(world, problems, 1.0) if world.passes else problems.base_PA
    shape = world.problems, world.budget_samples
    problem_R, sample_R = np.repeat(np.arange(shape[0]), shape[1]), np.tile(np.arange(shape[1]), shape[0])
    luck, strays, lost = rng.random((3, *shape))
    for budget in world.budgets:
        if not world.continued:
            luck, strays, lost = rng.random((3, *shape))
        on_track_PA, astray_P = thinking(world, problems, prob_PA, budget)
        answer_PG = pick(on_track_PA, luck)
        # Astray, every look at the trace finds another answer: they oscillate.
        answer_PG = np.where(strays < astray_P[:, None], pick(astray(problems), rng.random(shape)), answer_PG)
        answer_PG[lost < world.unreadable] = -1
        yield Draws(problem_R, sample_R, answer_PG.ravel(), budget=budget)


def pick(prob_PA: np.ndarray, luck_PG: np.ndarray) -> np.ndarray:
    """The answer of every sample, from its place in [0, 1) on the cumulated probabilities."""
    below_PA = np.cumsum(prob_PA, axis=1)
    most_P = prob_PA.shape[1] - 1 - np.argmax(prob_PA[:, ::-1] > 0, axis=1)
    # Rounding may leave the last sum a little below 1.
    return np.asarray(np.minimum((luck_PG[:, :, None] >= below_PA[:, None, :]).sum(axis=2), most_P[:, None]))


def _encode(world: World, problems: Problems, draws: Draws, rng: np.random.Generator) -> Rollouts:
    n, readable_R = len(draws.problem_R), draws.answer_R >= 0
    right_R = draws.answer_R == 0
    ids = _dictionary(draws.problem_R, [f"problem-{i:03d}" for i in range(world.problems)])
    number_R = problems.number_PA[draws.problem_R, np.maximum(draws.answer_R, 0)]
    numbers, code_R = np.unique(number_R, return_inverse=True)
    arrays = {
        "split": _repeat("train" if draws.step is not None else "eval", n),
        "group_id": ids,
        "sample_index": pa.array(draws.sample_R, pa.int32()),
        "prompt_id": ids,
        "env": _repeat("synthetic", n),
        "answer": _dictionary(np.where(readable_R, code_R.ravel(), -1), [str(number) for number in numbers]),
        "correct": pa.array(right_R),
        "reward": pa.array(right_R.astype(float)),
        "finish_reason": _dictionary((~readable_R).astype(int), ["stop", "length"]),
    }
    if draws.step is not None:
        arrays["step"] = pa.array(np.full(n, draws.step))
    if draws.budget is not None:
        arrays["budget"] = pa.array(np.full(n, draws.budget))
        arrays["n_tokens"] = pa.array(np.full(n, draws.budget))
    elif world.tokens:
        arrays |= _token_columns(world, problems, draws, rng)
    if world.prompts and draws.budget is None:
        arrays |= _prompt_columns(problems, draws)
    return Rollouts.of_arrays(arrays, n)


def _token_columns(world: World, problems: Problems, draws: Draws, rng: np.random.Generator) -> dict[str, pa.Array]:
    done = 0.0 if draws.step is None else progress(world, draws.step)
    tokens: Tokens = draw_tokens(
        rng,
        draws.problem_R,
        problems.openness_P[draws.problem_R],
        sharpness(world, problems, done)[draws.problem_R],
        (world.narrowing * done * problems.pull_P)[draws.problem_R],
        mean_length=world.tokens,
    )
    offsets = pa.array(tokens.offsets, pa.int32())
    return {
        "n_tokens": pa.array(np.diff(tokens.offsets)),
        "token_ids": pa.ListArray.from_arrays(offsets, pa.array(tokens.id_T, pa.int32())),
        "logprobs_rollout": pa.ListArray.from_arrays(offsets, pa.array(tokens.logprob_T, pa.float32())),
        "entropies": pa.ListArray.from_arrays(offsets, pa.array(tokens.entropy_T.astype(np.float16))),
    }


def _prompt_columns(problems: Problems, draws: Draws) -> dict[str, pa.Array]:
    """A prompt that says what it is, and the right answer."""
    prompts = [f"Synthetic problem {i}: find its whole number." for i in range(len(problems.base_PA))]
    references = [str(number) for number in problems.number_PA[:, 0]]
    return {
        "prompt": _dictionary(draws.problem_R, prompts),
        "reference_answer": _dictionary(draws.problem_R, references),
    }


def _dictionary(codes: np.ndarray, values: list[str]) -> pa.Array:
    """A text column from codes, −1 for null."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32(), mask=codes < 0), pa.array(values, pa.string()))


def _repeat(value: str, n: int) -> pa.Array:
    return _dictionary(np.zeros(n, np.int64), [value])


def _run(world: World, parts: list[Rollouts], *, seed: int, name: str) -> Run:
    def stream(columns: Sequence[str] | None) -> Iterator[Rollouts]:
        for part in parts:
            kept = [column for column in part.columns if columns is None or column in columns]
            yield Rollouts(part.batch.select(kept))

    info = RunInfo(
        source="synthetic",
        run_id=f"synthetic-{name}-{seed}",
        settings=asdict(world),
        seed=seed,
        provenance={"entropies": {"estimator": "exact", "temperature": 1.0, "aggregation": "per token"}},
    )
    return Run(Path(f"synthetic-{name}"), info, stream)
