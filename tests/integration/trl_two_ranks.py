"""One rank of a TRL run, for test_trl_adapter_ranks.py: python -m torch.distributed.run --nproc_per_node 2 trl_two_ranks.py FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trl_runs import exploring, figures, make

from equipoise.adapters.trl import Exploration, ucb_reward
from equipoise.base import Answer

BONUS = "equipoise.objectives.regularisers:entropy_bonus"


def first_letter(text: str) -> Answer | None:
    return Answer("late" if text[0] > "m" else "early", (0, 1)) if text else None


def run(folder: Path, case: str) -> None:
    # Groups of four lie on both ranks: each has two of their completions in a pass.
    small = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "ddp_backend": "gloo"}
    told = {}
    if case == "plain":
        trainer = make(folder / "trl", **small)
        trainer.train()
    elif case == "zero":
        chosen = Exploration(
            regularisers=(f"{BONUS}:coef=0.0",),
            weights=("forking_step:share=1.0",),
            bonuses=("batch_exploration:weight=0.0",),
        )
        trainer = exploring(folder / "trl", exploration=chosen, read=first_letter, capture=folder / "zero", **small)
        trainer.train()
    else:
        reward = ucb_reward("ucb_constant:unless_all_right=False", read=first_letter)
        chosen = Exploration(
            regularisers=(f"{BONUS}:coef=0.5",),
            weights=("forking_step:share=0.5",),
            bonuses=("batch_exploration:weight=0.5,unless_all_right=False",),
            controllers=("adaptive_clip:initial=9.0,start=0.2", "entropy_budget:target=9.0"),
        )
        given = {"exploration": chosen, "read": first_letter, "capture": folder / "steered", "correct": None}
        trainer = exploring(folder / "trl", rewards=[reward], **given, **small)
        trainer.train()
        told = {"counter": reward.counter.state(), "steering": trainer._exploring.steering.state()}
    told |= {"figures": figures(trainer), "log": trainer.state.log_history, "clip": trainer.epsilon_high}
    (folder / f"{case}-{trainer.accelerator.process_index}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    for name in ("plain", "zero", "steered"):
        run(Path(sys.argv[1]), name)
