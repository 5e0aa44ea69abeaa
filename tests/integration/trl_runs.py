"""Real TRL runs of a tiny model, with and without the adapter, and what they leave behind."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch

TINY = Path(__file__).resolve().parent.parent / "golden" / "make"
if str(TINY) not in sys.path:
    sys.path.append(str(TINY))

PROMPTS = [f"{a}+{b}=?" for a in range(4) for b in range(4)]
FIGURES = ("loss", "grad_norm", "entropy", "reward")


def length(completions: list[str], **columns: Any) -> list[float]:
    """Half of all texts, and not the same half for any two of a group."""
    return [float(len(text) % 2 + (text[-1:] > "m")) for text in completions]


def right(completions: list[str], **columns: Any) -> list[float]:
    return [float(text[-1:] > "a") for text in completions]


def make(
    out: Path | str,
    kind: type | None = None,
    *,
    rewards: Any = None,
    given: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A GRPOTrainer on CPU: 4 prompts a step, 4 completions of at most 12 tokens each. `given` goes to the mixin."""
    from datasets import Dataset
    from tiny import tiny_model, tiny_tokenizer
    from trl import GRPOConfig, GRPOTrainer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    tokenizer = tiny_tokenizer()
    chosen = {
        "output_dir": str(out),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": 7,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 12,
        "logging_steps": 1,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
    }
    rows = {"prompt": PROMPTS * 2, "gold": [str(n) for n in range(2 * len(PROMPTS))]}
    evaluated = (given or {}).get("eval_dataset")
    return (kind or GRPOTrainer)(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        reward_funcs=rewards or [length, right],
        args=GRPOConfig(**(chosen | settings)),
        train_dataset=Dataset.from_dict(rows),
        **{name: value for name, value in (given or {}).items() if name != "eval_dataset"},
        **({} if evaluated is None else {"eval_dataset": Dataset.from_dict(evaluated)}),
    )


def exploring(out: Path | str, *specs: str, kind: type | None = None, **settings: Any) -> Any:
    """The same trainer with the mixin. Settings named as the mixin's go to it, the others to GRPOConfig."""
    from trl import GRPOTrainer

    from equipoise.adapters.trl import explore

    ours = (
        "capture",
        "correct",
        "read",
        "eval_dataset",
        "callbacks",
        "rollout_func",
        "exploration",
        "average",
        "recipe",
    )
    given = {name: settings.pop(name) for name in ours if name in settings}
    given.setdefault("exploration", list(specs))
    given.setdefault("correct", "right")
    return make(out, kind or explore(GRPOTrainer), given=given, **settings)


def trained(trainer: Any, **how: Any) -> list[tuple[float, ...]]:
    """Train, and the figures of every step. Seeds are set when a trainer is built: train it before the next one is."""
    trainer.train(**how)
    return figures(trainer)


def figures(trainer: Any) -> list[tuple[float, ...]]:
    return [tuple(line.get(name, 0.0) for name in FIGURES) for line in trainer.state.log_history if "loss" in line]


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
