"""Makes a packaged model from nothing, and measures it: `python -m equipoise.lab.make_packaged --size small --out FOLDER`.

Supervised training on solved Countdown problems of the split "train", then 512 problems of "test" × 64 samples at six
temperatures. Axes: P problems, G samples of each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.base import Problem
from equipoise.files import atomic_write
from equipoise.measures.intervals import Interval, mean_of_prompts, ratio_of_sums
from equipoise.measures.subsets import missed_share
from equipoise.models.characters import Characters
from equipoise.models.checkpoint import save_gpt
from equipoise.models.gpt import GPT, GPTConfig
from equipoise.models.language_model import LanguageModel, Tokens
from equipoise.models.loaders import load_model
from equipoise.models.packaged import MAX_TOKENS, file_name
from equipoise.tasks.table import find_task
from equipoise.tasks.task import Task
from equipoise.training.collect import collect
from equipoise.training.sft import Progress, fine_tune, make_pairs

TASK = "countdown"
TOKENS = Characters("0123456789+-*/()=,>")
SHARDS = 16  # seeds of the training problems: several of them pose the same problem, each with another solution
TEMPERATURES = (0.3, 0.6, 0.8, 1.0, 1.3, 1.6)
KS = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class Size:
    """All that a packaged model follows from, besides the code and the kind of machine."""

    width: int
    layers: int
    heads: int
    steps: int
    lr: float
    batch: int = 512
    warmup: int = 50
    pairs: int = 800_000
    seed: int = 0

    @property
    def config(self) -> GPTConfig:
        return GPTConfig(TOKENS.size, width=self.width, layers=self.layers, heads=self.heads, pad=TOKENS.pad)


# Steps are few on purpose: a base with pass@1 of about .2 and pass@64 above .9 has much to gain from RL, and much to lose.
SIZES = {
    "small": Size(width=96, layers=3, heads=3, steps=1_500, lr=2e-3),
    "medium": Size(width=192, layers=4, heads=6, steps=800, lr=1e-3),
}


def train_model(size: Size, *, device: str, jobs: int) -> tuple[GPT, tuple[Progress, ...]]:
    pairs = make_all_pairs(size.pairs, seed=size.seed, jobs=jobs)
    model = GPT(size.config, seed=size.seed).to(device)
    heard = fine_tune(
        model,
        TOKENS,
        pairs,
        steps=size.steps,
        batch=size.batch,
        lr=size.lr,
        seed=size.seed,
        warmup=size.warmup,
        every=max(1, size.steps // 20),
        say=_say,
    )
    return model, heard


def make_all_pairs(n: int, *, seed: int, jobs: int) -> list[tuple[str, str]]:
    """The same whatever the number of processes."""
    with ProcessPoolExecutor(jobs) as pool:
        shards = pool.map(_make_shard, [(seed, shard, -(-n // SHARDS)) for shard in range(SHARDS)])
        return [pair for shard in shards for pair in shard][:n]


def _make_shard(asked: tuple[int, int, int]) -> list[tuple[str, str]]:
    seed, shard, n = asked
    return make_pairs(find_task(TASK), seed=("packaged", seed, shard), n=n)


def _say(at: Progress) -> None:
    print(f"{at.seconds:5.0f} s  step {at.step} of {at.steps}  loss {at.loss:.4f}  lr {at.lr:.1e}", flush=True)


# --- what it can do --------------------------------------------------------------------------------------------------------


def evaluate(
    model: LanguageModel,
    tokens: Tokens,
    task: Task,
    problems: list[Problem],
    *,
    samples: int,
    temperature: float,
    seed: int,
    rows: int = 8192,
) -> dict[str, Any]:
    """Accuracy, breadth and entropy at one temperature. Temperatures share their random numbers; `rows` bounds the memory."""
    correct_P, distinct_P, unparsable_P, entropy_P, tokens_P = (np.zeros(len(problems)) for _ in range(5))
    at_once = max(1, rows // samples)
    for first in range(0, len(problems), at_once):
        here = slice(first, first + at_once)
        batch = collect(
            model,
            tokens,
            task,
            problems[here],
            seed=("evaluate", seed),
            samples=samples,
            temperature=temperature,
            max_tokens=MAX_TOKENS,
        )
        correct_P[here], distinct_P[here] = batch.right_P, batch.distinct_P
        unparsable_P[here] = (batch.answers_PG == None).sum(axis=1)  # noqa: E711
        entropy_P[here] = batch.samples.entropy_BT.double().sum(1).view(-1, samples).sum(1).cpu()
        tokens_P[here] = batch.samples.mask_BT.sum(1).view(-1, samples).sum(1).cpu()
    drawn_P = np.full(len(problems), samples)
    passed = {
        f"pass@{k}": _shown(mean_of_prompts(1 - missed_share(correct_P, drawn_P, k), bounds=(0, 1)))
        for k in KS
        if k <= samples
    }
    entropy = ratio_of_sums(entropy_P, tokens_P, np.arange(len(problems)))
    return {
        "temperature": temperature,
        **passed,
        "distinct_unsolved": _distinct(distinct_P[correct_P == 0], samples),
        "distinct_solved": _distinct(distinct_P[correct_P > 0], samples),
        "entropy": _shown(entropy),
        "unparsable": float(unparsable_P.sum() / (samples * len(problems))),
        "tokens": float(tokens_P.sum() / (samples * len(problems))),
    }


def _distinct(distinct_P: np.ndarray, samples: int) -> dict[str, Any] | None:
    """Different canonical answers among the samples of a problem; None where there is no such problem."""
    return _shown(mean_of_prompts(distinct_P, bounds=(0, samples))) if len(distinct_P) else None


def _shown(interval: Interval) -> dict[str, Any]:
    return asdict(interval)


def measure_model(
    path: Path, exact: GPT, *, problems: int, samples: int, temperatures: tuple[float, ...], device: str
) -> dict[str, Any]:
    """The file as users load it, in float32, over the temperatures; and at temperature 1 what rounding and memory change."""
    task = find_task(TASK)
    model = load_model(path, device=device).model

    def at(which: LanguageModel, split: str, temperature: float = 1.0) -> dict[str, Any]:
        drawn = task.problems(("packaged", "evaluate"), problems, split=split)
        return evaluate(which, TOKENS, task, drawn, samples=samples, temperature=temperature, seed=0)

    return {
        "test": [at(model, "test", temperature) for temperature in temperatures],
        "test_before_rounding": at(exact, "test"),
        "tune": at(model, "tune"),
        "train": at(model, "train"),
    }


def make_packaged(
    name: str,
    folder: Path,
    *,
    size: Size,
    device: str,
    jobs: int,
    problems: int = 512,
    samples: int = 64,
    temperatures: tuple[float, ...] = TEMPERATURES,
) -> dict[str, Any]:
    """Train, save in half the bytes, measure what was saved; writes the checkpoint and, beside it, its numbers as JSON."""
    started = time.monotonic()
    model, heard = train_model(size, device=device, jobs=jobs)
    trained = time.monotonic()
    path = folder / file_name(name)
    rounded = GPT(size.config)
    rounded.load_state_dict(model.state_dict())
    save_gpt(path, rounded.half(), TOKENS)
    results = {
        "size": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": path.stat().st_size,
        "recipe": asdict(size) | {"task": TASK, "shards": SHARDS, "max_tokens": MAX_TOKENS},
        "loss": [{"step": at.step, "loss": at.loss} for at in heard],
        "problems": problems,
        "samples": samples,
        "evaluation": measure_model(
            path, model, problems=problems, samples=samples, temperatures=temperatures, device=device
        ),
        "machine": {
            "device": torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine(),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "seconds_training": round(trained - started),
            "seconds_measuring": round(time.monotonic() - trained),
        },
    }
    with atomic_write(path.with_suffix(".json")) as handle:
        handle.write((json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and its numbers")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that make problems")
    parser.add_argument("--steps", type=int, help="another number than the recipe's")
    chosen = parser.parse_args()
    size = SIZES[chosen.size]
    if chosen.steps is not None:
        size = replace(size, steps=chosen.steps)
    results = make_packaged(chosen.size, chosen.out, size=size, device=chosen.device, jobs=chosen.jobs)
    for row in results["evaluation"]["test"]:
        print(f"T {row['temperature']}  pass@1 {row['pass@1']['value']:.3f}  pass@64 {row['pass@64']['value']:.3f}")


if __name__ == "__main__":
    main()
