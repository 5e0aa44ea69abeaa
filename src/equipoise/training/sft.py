"""Supervised training on demonstrations: a prompt, and a completion that is to be learnt.

Axes: N demonstrations, B of one batch, L prompt columns, T completion columns, S = L + T.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import cos, isfinite, pi
from typing import Literal

import torch
from torch import Tensor

from equipoise.base import Completion, Prompt
from equipoise.errors import UsageError
from equipoise.models.language_model import LanguageModel, Tokens, score_tokens
from equipoise.objectives.reduce import token_mean
from equipoise.tasks.task import Seed, Task
from equipoise.training.recipe import REFERENCE

Pair = tuple[Prompt, str]  # prompt, completion
Schedule = Literal["cosine", "constant"]
BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `loss` is the mean over the steps since the last report, in nats per token."""

    step: int
    steps: int
    loss: float
    lr: float
    seconds: float


def make_pairs(
    task: Task, *, seed: Seed, n: int, split: str = "train", template: str = REFERENCE
) -> list[tuple[str, str]]:
    """`n` problems with the solution that each was made from, written into `template`.

    The problems of one seed are all different. To show a problem several times, with other solutions, take several seeds.
    """
    pairs = []
    for problem in task.problems(seed, n, split=split):
        if problem.reference is None or not isinstance(problem.prompt, str):
            raise UsageError(f"problem {problem.id} has no solution to show, or no plain prompt: give your own pairs")
        text = template.replace(REFERENCE, problem.reference)
        grade = task.grade(problem, Completion(text, finish="stop"))
        if not grade.correct:
            raise UsageError(
                f"the solution of problem {problem.id}, written as '{text}', is graded {grade.outcome}: change the template"
            )
        pairs.append((problem.prompt, text))
    return pairs


def fine_tune(
    model: LanguageModel,
    tokens: Tokens,
    pairs: Sequence[Pair],
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    schedule: Schedule = "cosine",
    warmup: int = 50,
    weight_decay: float = 0.1,
    clip_norm: float = 1.0,
    rows: int | None = None,
    every: int = 50,
    say: Callable[[Progress], None] | None = None,
) -> tuple[Progress, ...]:
    """Train the model in place by AdamW, for `steps` of `batch` pairs; every pair is seen once before one is seen twice.

        L = −Σ ln p(token) / number of tokens, over the completions' tokens and the one that ends each

    Prompts are read, not learnt. `rows` pairs go through the model at once, None: the whole batch. It changes memory and, but for
    dropout, not the gradient. Equal seeds give equal weights on a CPU; the caller's random numbers are left alone.
    Every `every` steps, and after the last, `say` hears the progress; the result is all that it heard.
    """
    _check(model, pairs, steps=steps, batch=batch, rows=rows, lr=lr, warmup=warmup, every=every, schedule=schedule)
    data = _encode(model, tokens, pairs)
    optimiser = _optimiser(model, lr, weight_decay)
    batches = _draw_rows(len(pairs), batch, seed=seed)
    heard: list[Progress] = []
    losses: list[Tensor] = []
    started, was_training = time.monotonic(), model.training
    model.train(True)
    with torch.random.fork_rng():  # dropout, where a model has it, follows the seed too
        torch.manual_seed(seed)
        for step in range(1, steps + 1):
            rate = lr * share_of_rate(step, steps=steps, warmup=warmup, schedule=schedule)
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.zero_grad()
            losses.append(_add_gradient(model, data, next(batches), rows=rows or batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optimiser.step()
            if step % every == 0 or step == steps:
                heard.append(_report(step, steps, losses, rate, time.monotonic() - started))
                losses.clear()
                if say is not None:
                    say(heard[-1])
    model.train(was_training)
    return tuple(heard)


def _add_gradient(model: LanguageModel, data: _Encoded, batch_B: Tensor, *, rows: int) -> Tensor:
    """Of the mean over the tokens of the whole batch, in parts of `rows` pairs; the loss."""
    step_tokens = int(data.n_completion_N[batch_B].sum())
    parts = []
    for part_R in torch.split(batch_B, rows):
        ids_RS, mask_RS, n_prompt = data.take(part_R)
        stats = score_tokens(model, ids_RS, mask_RS, n_prompt=n_prompt)
        loss = token_mean(-stats.logp_BT, step_tokens=step_tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        parts.append(loss.detach())
    return torch.stack(parts).sum()


def share_of_rate(step: int, *, steps: int, warmup: int, schedule: Schedule) -> float:
    """The learning rate of a step, counted from 1, as a share of the highest: a straight line up, then flat or half a cosine."""
    if step <= warmup:
        return step / warmup
    if schedule == "constant":
        return 1.0
    return (1 + cos(pi * (step - warmup) / (steps + 1 - warmup))) / 2


def _optimiser(model: LanguageModel, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Only matrices decay: a norm's scale has its rest at 1, not at 0."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=BETAS)


def _report(step: int, steps: int, losses: list[Tensor], rate: float, seconds: float) -> Progress:
    loss = float(torch.stack(losses).mean())
    if not isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at step {step} of {steps}: lower the learning rate")
    return Progress(step, steps, loss, rate, seconds)


# --- demonstrations as tensors ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Prompts end in column L, where completions begin. Lengths stay on the CPU: a batch is cut without asking the GPU."""

    ids_NS: Tensor
    mask_NS: Tensor
    n_prompt_N: Tensor
    n_completion_N: Tensor

    def take(self, rows_B: Tensor) -> tuple[Tensor, Tensor, int]:
        """Ids and mask of these rows, in no more columns than they need, and how many of those are the prompts'."""
        n_prompt, n_completion = int(self.n_prompt_N[rows_B].max()), int(self.n_completion_N[rows_B].max())
        middle = int(self.n_prompt_N.max())
        columns = slice(middle - n_prompt, middle + n_completion)
        rows_B = rows_B.to(self.ids_NS.device)
        return self.ids_NS[rows_B, columns], self.mask_NS[rows_B, columns], n_prompt


def _encode(model: LanguageModel, tokens: Tokens, pairs: Sequence[Pair]) -> _Encoded:
    # A tokenizer may begin every text with a token of its own, which does not belong in the middle.
    opening = len(tokens.encode(""))
    prompts = [tokens.encode(prompt) for prompt, _ in pairs]
    completions = [[*tokens.encode(text)[opening:], tokens.stop[0]] for _, text in pairs]
    for pair, prompt, completion in zip(pairs, prompts, completions, strict=True):
        if not prompt:
            raise UsageError(f"the prompt of the completion {pair[1]!r} has no tokens: every pair needs one")
        if len(prompt) + len(completion) > model.context:
            raise UsageError(
                f"a pair has {len(prompt)} + {len(completion)} tokens, but this model reads at most {model.context}: "
                f"leave out or shorten {pair[1][:40]!r}"
            )
    before, after = max(map(len, prompts)), max(map(len, completions))
    if before + after > model.context:
        # Cut to what a batch needs, this would pass or fail by the luck of the draw.
        raise UsageError(
            f"the longest prompt has {before} tokens, the longest completion {after}, and this model reads {model.context}: "
            "leave out or shorten the longest"
        )
    ids_NS = torch.tensor(
        [
            [tokens.pad] * (before - len(prompt)) + prompt + completion + [tokens.pad] * (after - len(completion))
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
    )
    n_prompt_N = torch.tensor([len(prompt) for prompt in prompts])
    n_completion_N = torch.tensor([len(completion) for completion in completions])
    columns_S = torch.arange(before + after)
    mask_NS = (columns_S >= before - n_prompt_N[:, None]) & (columns_S < before + n_completion_N[:, None])
    device = model.head.weight_VD.device
    return _Encoded(ids_NS.to(device), mask_NS.to(device), n_prompt_N, n_completion_N)


def _draw_rows(n: int, batch: int, *, seed: int) -> Iterator[Tensor]:
    """Batches of rows without end: all n in a random order, then all in another."""
    generator = torch.Generator().manual_seed(seed)
    waiting = torch.empty(0, dtype=torch.long)
    while True:
        while len(waiting) < batch:
            waiting = torch.cat([waiting, torch.randperm(n, generator=generator)])
        yield waiting[:batch]
        waiting = waiting[batch:]


def _check(
    model: LanguageModel,
    pairs: Sequence[Pair],
    *,
    steps: int,
    batch: int,
    rows: int | None,
    lr: float,
    warmup: int,
    every: int,
    schedule: str,
) -> None:
    if not pairs:
        raise UsageError("supervised training needs at least one pair of prompt and completion, found none")
    if min(steps, batch, every, 1 if rows is None else rows) < 1 or warmup < 0:
        raise UsageError(
            f"steps, batch, rows and every must be 1 or more and warmup 0 or more, found {steps}, {batch}, {rows}, {every} "
            f"and {warmup}"
        )
    if not (isfinite(lr) and lr > 0):
        raise UsageError(f"lr is {lr}: use a number above 0, such as 1e-3")
    if schedule not in ("cosine", "constant"):
        raise UsageError(f"schedule is '{schedule}': use cosine or constant")
    dtype = model.head.weight_VD.dtype
    if dtype not in (torch.float32, torch.float64):
        raise UsageError(f"weights are {dtype}, in which small updates are lost: train in float32, model.float()")
