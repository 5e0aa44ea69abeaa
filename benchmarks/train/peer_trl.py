"""TRL's side: `GRPOTrainer.train` as it is, sampling with transformers' `generate`, with clocks around its parts.

python -m benchmarks.train.peer_trl CASE FOLDER OUT SETTINGS (started by run.py). Read with TRL 1.16.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.train.case import Case, prompts_of, reward_of
from benchmarks.train.turns import Turns


def config_of(case: Case, out: str, settings: dict[str, Any]) -> GRPOConfig:
    """What is named here is what the embedded trainer does too; `settings` replace it."""
    passes = case.prompts * case.samples // case.rows
    chosen: dict[str, Any] = {
        "output_dir": out,
        "use_cpu": case.device == "cpu",
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": case.rows,
        "gradient_accumulation_steps": passes,
        "num_generations": case.samples,
        "max_completion_length": case.tokens,
        "max_steps": case.steps,
        "shuffle_dataset": False,
        "beta": case.kl,
        "loss_type": "dapo",  # a mean over the tokens of the step
        "scale_rewards": "group",
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    return GRPOConfig(**(chosen | settings))


class WatchedTrainer(GRPOTrainer):
    turns: Turns

    def training_step(self, *args: Any, **settings: Any) -> Any:
        with self.turns.part("update"):
            return super().training_step(*args, **settings)

    def _prepare_inputs(self, *args: Any, **settings: Any) -> Any:
        with self.turns.part("rest"):
            return super()._prepare_inputs(*args, **settings)

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **settings: Any) -> Any:
        with self.turns.part("sampling"):
            found = super()._generate_single_turn(prompt_ids, *args, **settings)
        distinct = prompt_ids[:: self.num_generations]
        self.turns.count(prompt_tokens=sum(map(len, distinct)), generated=sum(map(len, found[0])))
        return found

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **settings: Any
    ) -> Any:
        given = (model, input_ids, attention_mask, logits_to_keep, *args)
        if not torch.is_grad_enabled():
            with self.turns.part("scoring"):
                return super()._get_per_token_logps_and_entropies(*given, **settings)
        self.turns.count(trained=int(attention_mask[:, -logits_to_keep:].sum()), passes=1)
        return super()._get_per_token_logps_and_entropies(*given, **settings)

    def _clip_grad_norm(self, *args: Any, **settings: Any) -> Any:
        with self.turns.part("update"):
            return super()._clip_grad_norm(*args, **settings)


class GiveTurns(TrainerCallback):
    def __init__(self, turns: Turns, trainer: WatchedTrainer) -> None:
        self.turns, self.trainer = turns, trainer

    def on_step_end(self, *args: Any, **settings: Any) -> None:
        entropies = self.trainer._metrics["train"]["entropy"]  # a number a pass, all of one step
        self.turns.entropy = sum(entropies) / len(entropies)
        self.turns.step_ended()


def main(case: Case, folder: str, out: str, settings: dict[str, Any]) -> None:
    turns = Turns(case.device)
    prompts = [prompt for step in range(1, case.steps + 1) for prompt in prompts_of(case, step)]
    WatchedTrainer.turns = turns
    trainer = WatchedTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        reward_funcs=lambda completions, **columns: [reward_of(text) for text in completions],
        args=config_of(case, out, settings),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.add_callback(GiveTurns(turns, trainer))
    trainer.train()


if __name__ == "__main__":
    main(Case.read(sys.argv[1]), *sys.argv[2:4], json.loads(sys.argv[4]))
