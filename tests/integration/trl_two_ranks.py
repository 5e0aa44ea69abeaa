"""One rank of a TRL run, for test_trl_adapter_ranks.py: python -m torch.distributed.run --nproc_per_node 2 trl_two_ranks.py FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from trl_runs import exploring, figures, make

from equipoise.adapters.trl import Exploration, ucb_reward
from equipoise.base import Answer

BONUS = "equipoise.objectives.regularisers:entropy_bonus"


def first_letter(text: str) -> Answer | None:
    return Answer("late" if text[0] > "m" else "early", (0, 1)) if text else None


def watched(trainer: Any) -> list[dict[str, Any]]:
    """Of every pass of this rank: what it adds for completions that are imitated, −Σ ln π of them and Σ KL to the reference by slow loops."""
    replay, told = trainer._exploring.lessons[0], []
    term, share = replay.term, replay._share

    def logp_of(model, prompt, ids):
        row = torch.tensor([[*prompt, *ids]])
        return model(row).logits[0, len(prompt) - 1 : -1].detach().double().log_softmax(-1)

    def watching(model, inputs):
        found = term(model, inputs)
        kept = share(trainer._step % 2, 2)
        taught = kept[0] if kept is not None and kept[1] else ()
        slow = -sum(
            float(logp_of(trainer.model, prompt, ids)[t, token])
            for _, prompt, ids in taught
            for t, token in enumerate(ids)
        )
        kl = 0.0
        for row, mask in enumerate(inputs["completion_mask"].bool()):
            prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
            ids = inputs["completion_ids"][row][mask].tolist()
            p, q = (logp_of(each, prompt, ids) for each in (trainer.model, trainer.ref_model))
            kl += float((p.exp() * (p - q)).sum())
        seen = {"added": None if found is None else float(found[0].detach()), "slow": slow, "kl": kl}
        counts = {"tokens": sum(len(ids) for *_, ids in taught), "own": int(inputs["num_items_in_batch"])}
        told.append({**seen, **counts, "step": trainer.state.global_step + 1})
        return found

    replay.term = watching
    return told


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
    elif case == "replay":
        anchor = "base_anchor:problems=3,rows=3,coef=0.25"
        specs = ("rare_replay:most_rate=1,rows=3,coef=0.5", anchor, "kl:kind=exact,coef=0.5")
        given = {"average": 0.5, "capture": folder / "replay", "save_strategy": "steps", "save_steps": 3}
        # As TRL does by default: two passes with gradients through the same recomputed layers.
        trainer = exploring(folder / "replay-trl", *specs, gradient_checkpointing=True, **given, **small)
        told["terms"] = watched(trainer)
        trainer.train()
        told["kept"], told["anchor"] = (each.state() for each in trainer._exploring.lessons)
        told["weights"] = [float(parameter.detach().double().sum()) for parameter in trainer.model.parameters()]
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
    for name in ("plain", "zero", "steered", "replay"):
        run(Path(sys.argv[1]), name)
