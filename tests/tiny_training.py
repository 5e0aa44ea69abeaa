"""A training run that takes a second: a tiny GPT that solves some three-number Countdown problems, and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch.nn.functional import cross_entropy

from equipoise.base import Completion, Grade, Problem
from equipoise.models.characters import Characters
from equipoise.models.checkpoint import save_gpt
from equipoise.models.gpt import GPT, GPTConfig
from equipoise.models.language_model import hidden_states
from equipoise.rollouts.folder import open_folder
from equipoise.tasks.table import find_task
from equipoise.training.recipe import TrainConfig

TASK = "countdown:numbers=3,largest=9,operators=+-"
TOKENS = Characters("0123456789+-*/()=,>")


def make_model(path: Path, *, steps: int = 300, width: int = 32) -> Path:
    """Teach a tiny GPT the references of training problems, until some completions are right and many are not."""
    model = GPT(GPTConfig(TOKENS.size, width=width, layers=1, heads=2, context=32))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    texts = [(p.prompt, p.reference) for p in find_task(TASK).problems("warm up", 256)]
    rows = [(TOKENS.encode(prompt), [*TOKENS.encode(answer), *TOKENS.stop]) for prompt, answer in texts]
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.tensor([[*p, *a] + [TOKENS.pad] * (longest - len(p) - len(a)) for p, a in rows])
    mask = torch.tensor([[True] * (len(p) + len(a)) + [False] * (longest - len(p) - len(a)) for p, a in rows])
    target = torch.tensor([[-100] * len(p) + a + [-100] * (longest - len(p) - len(a)) for p, a in rows])
    for number in range(steps):
        some = torch.arange(64) + 64 * (number % 4)
        logits = hidden_states(model, ids[some], mask[some]) @ model.head.weight_VD.T
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), target[some, 1:].flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    save_gpt(path, model, TOKENS)
    return path


def config_of(out: Path, model: Path, **changes: Any) -> TrainConfig:
    """The settings of a tiny run; a section in `changes` replaces only what it names."""
    settings: dict[str, Any] = {
        "out": out,
        "model": str(model),
        "task": TASK,
        "sampling": {"prompts": 6, "samples": 6, "max_tokens": 9},
        "learning": {"steps": 6, "lr": 1e-3, "warmup": 2, "rows": 512},
        "evaluation": {"problems": 6, "samples": 6, "every": 2},
        "save_every": 2,
    }
    for name, value in changes.items():
        settings[name] = {**settings.get(name, {}), **value} if isinstance(value, dict) else value
    return TrainConfig(**settings)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The log without its times."""
    lines = open_folder(folder).metrics()
    return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]


def read_rollouts(folder: Path) -> list[dict[str, Any]]:
    return [row for batch in open_folder(folder).rollouts() for row in batch.rows()]


@dataclass(frozen=True)
class Unjudged:
    """Countdown with a checker that runs out of time on one in `every` completions."""

    every: int = 1
    env: str = "unjudged"

    def problems(self, seed: Any, n: int, *, split: str = "train") -> list[Problem]:
        return find_task(TASK).problems(seed, n, split=split)

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        graded = find_task(TASK).grade(problem, completion)
        late = crc32(f"{problem.id} {completion.text}".encode()) % self.every == 0
        return Grade(graded.answer, "timeout", None) if late else graded
