"""The embedded trainer's side: `equipoise.training.loop.train` as it is, with clocks around its parts.

python -m benchmarks.train.ours CASE FOLDER OUT (started by run.py)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.train.case import Case
from benchmarks.train.turns import Turns
from equipoise.training import collect, loop, recipe, update


def config_of(case: Case, folder: str, out: str) -> recipe.TrainConfig:
    never = 10**9
    return recipe.TrainConfig(
        out=Path(out),
        task="benchmarks.train.case:OddLength",
        model=folder,
        device=case.device,
        method=recipe.Method(regularisers=(f"kl_corrected:coef={case.kl}",) if case.kl else ()),
        sampling=recipe.Sampling(prompts=case.prompts, samples=case.samples, max_tokens=case.tokens),
        learning=recipe.Learning(steps=case.steps, lr=1e-6, warmup=0, rows=case.rows),
        evaluation=recipe.Evaluation(every=never, problems=2, samples=1),  # before the first step and after the last
        save_every=never,
    )


def watch(turns: Turns) -> None:
    """Put the clocks and counters into the loop's functions."""
    generate, stats, batch = collect.generate, update.Updater._stats, update.Updater._batch

    def watched_generate(*args: Any, **settings: Any) -> Any:
        with turns.part("sampling"):
            drawn = generate(*args, **settings)
        generated = int(drawn.mask_BT.sum())
        turns.count(prompt_tokens=int(drawn.prompt_mask_PL.sum()), generated=generated)
        turns.entropy = float(drawn.entropy_BT.sum()) / generated
        return drawn

    def watched_stats(self: Any, model: Any, samples: Any) -> Any:
        """Of the reference alone: the policy's pass is part of the batch."""
        with turns.part("scoring"):
            return stats(self, model, samples)

    def watched_batch(self: Any, samples: Any, *args: Any, **settings: Any) -> Any:
        turns.count(trained=int(samples.mask_BT.sum()), passes=1)
        return batch(self, samples, *args, **settings)

    collect.generate = watched_generate  # type: ignore[assignment]
    update.Updater._stats = watched_stats  # type: ignore[method-assign]
    update.Updater._batch = watched_batch  # type: ignore[method-assign]
    update.Updater.step = turns.within("update", update.Updater.step)  # type: ignore[method-assign]


def main(case: Case, folder: str, out: str) -> None:
    turns = Turns(case.device)
    watch(turns)

    def say(line: str) -> None:
        if line.startswith("step "):  # others are warnings
            turns.step_ended()

    loop.train(config_of(case, folder, out), say=say)


if __name__ == "__main__":
    main(Case.read(sys.argv[1]), *sys.argv[2:4])
