"""Makes the packaged model that thinks, from nothing, and measures it: `python -m equipoise.lab.make_thinker --out FOLDER`.

Supervised training on `search_traces` of the split "train", some twenty minutes of one core; then `measure_thinker` on problems
of "test". Axes: B demonstrations of a batch, S tokens.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder
from equipoise.lab.measure_thinker import measure_thinker
from equipoise.lab.search_traces import END, OFF, START, Shares, Trace, make_traces
from equipoise.models.characters import Characters
from equipoise.models.checkpoint import save_gpt
from equipoise.models.gpt import GPT, GPTConfig
from equipoise.models.language_model import LanguageModel, Tokens, hidden_states
from equipoise.models.loaders import load_model
from equipoise.models.packaged import THINKER, file_name
from equipoise.models.token_stats import masked_token_stats
from equipoise.objectives.reduce import token_mean
from equipoise.tasks.countdown import Countdown
from equipoise.tasks.table import find_task
from equipoise.training.sft import BETAS, Progress, share_of_rate

TASK = "countdown:numbers=3"
TOKENS = Characters(f"0123456789+-*()=,>{OFF}{START}{END}", thinking=(START, END))
SHARD = 5_000  # different problems of a seed; another seed shows many of them again, with other attempts
WINDOW = (
    64  # batches whose demonstrations are sorted by length: in a batch of all lengths half of the tokens are padding
)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a model is shown, and how it learns it."""

    traces: int = 100_000
    steps: int = 5_000
    batch_tokens: int = 2_048  # padding included
    lr: float = 1.5e-3
    warmup: int = 200
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    seed: int = 0


Traces = Callable[[Lesson], Iterator[Trace]]


@dataclass(frozen=True, slots=True)
class Recipe(Lesson):
    """All that the weights follow from, besides the code and the kind of machine."""

    width: int = 96
    layers: int = 4
    heads: int = 3
    context: int = 256

    @property
    def config(self) -> GPTConfig:
        return GPTConfig(
            TOKENS.size,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            context=self.context,
            pad=TOKENS.pad,
        )


def train_thinker(recipe: Recipe, *, every: int = 100) -> tuple[GPT, tuple[Progress, ...]]:
    """From nothing. Equal recipes give equal weights on a CPU."""
    model = GPT(recipe.config, seed=recipe.seed)
    return model, learn(model, TOKENS, recipe, every=every)


def learn(
    model: LanguageModel,
    tokens: Tokens,
    lesson: Lesson,
    *,
    every: int = 100,
    traces: Traces | None = None,
) -> tuple[Progress, ...]:
    """Train the model in place: AdamW on the tokens that are to be learnt, by the mean over those of a batch.

    `traces` None: those of three-number Countdown.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]  # a norm's scale has its rest at 1, not at 0
    groups = [{"params": matrices, "weight_decay": lesson.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=lesson.lr, betas=BETAS)
    batches = draw_batches(lesson, tokens, context=model.context, traces=traces)
    heard: list[Progress] = []
    losses: list[Tensor] = []
    started = time.monotonic()
    for step in range(1, lesson.steps + 1):
        rate = lesson.lr * share_of_rate(step, steps=lesson.steps, warmup=lesson.warmup, schedule="cosine")
        for group in optimiser.param_groups:
            group["lr"] = rate
        ids_BS, real_BS, learnt_BS = (each.to(model.head.weight_VD.device) for each in next(batches))
        hidden_BSD = hidden_states(model, ids_BS, real_BS)[:, :-1]
        head = model.head
        stats = masked_token_stats(hidden_BSD, head.weight_VD, ids_BS[:, 1:], learnt_BS[:, 1:], bias_V=head.bias_V)
        loss = token_mean(-stats.logp_BT, step_tokens=int(learnt_BS.sum()))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), lesson.clip_norm)
        optimiser.step()
        losses.append(loss.detach())
        if step % every == 0 or step == lesson.steps:
            mean = float(torch.stack(losses).mean())
            heard.append(Progress(step, lesson.steps, mean, rate, time.monotonic() - started))
            losses.clear()
            _say(heard[-1])
    return tuple(heard)


def draw_batches(
    lesson: Lesson, tokens: Tokens, *, context: int, traces: Traces | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Ids, which of them are real and which are to be learnt, in batches of alike lengths, without end."""
    rows = [encode(trace, tokens) for trace in (traces or all_traces)(lesson)]
    longest = max(len(ids) for ids, _ in rows)
    if longest > context:
        raise UsageError(f"a demonstration has {longest} tokens, the model reads {context}: raise its context")
    generator = torch.Generator().manual_seed(lesson.seed)
    # About as many as WINDOW batches take, of demonstrations of the mean length.
    window = WINDOW * lesson.batch_tokens * len(rows) // sum(len(ids) for ids, _ in rows)
    while True:
        order = torch.randperm(len(rows), generator=generator).tolist()
        for first in range(0, len(order), window):
            near = sorted(order[first : first + window], key=lambda row: (len(rows[row][0]), row))
            batches = list(_batches([rows[row] for row in near], lesson.batch_tokens))
            for place in torch.randperm(len(batches), generator=generator).tolist():
                yield pad_right(batches[place], tokens.pad)


def all_traces(lesson: Lesson) -> Iterator[Trace]:
    task = find_task(TASK)
    assert isinstance(task, Countdown)
    for shard in range(-(-lesson.traces // SHARD)):
        n = min(SHARD, lesson.traces - shard * SHARD)
        yield from make_traces(task, seed=("thinker", lesson.seed, shard), n=n)


Row = tuple[list[int], list[bool]]  # ids, and which are to be learnt


def encode(trace: Trace, tokens: Tokens = TOKENS) -> Row:
    """The prompt, which is not learnt, the pieces, and the token that ends a completion."""
    ids = tokens.encode(trace.problem.prompt)
    learnt = [False] * len(ids)
    for piece in trace.pieces:
        made = tokens.encode(piece.text)
        ids, learnt = ids + made, learnt + [piece.learnt] * len(made)
    return [*ids, tokens.stop[0]], [*learnt, True]


def _batches(rows: Sequence[Row], tokens: int) -> Iterator[list[Row]]:
    """Rows of rising length, as many at once as take `tokens` when padded to the longest of them."""
    batch: list[Row] = []
    for row in rows:
        if batch and (len(batch) + 1) * len(row[0]) > tokens:
            yield batch
            batch = []
        batch.append(row)
    yield batch


def pad_right(rows: Sequence[Row], pad: int = TOKENS.pad) -> tuple[Tensor, Tensor, Tensor]:
    longest = max(len(ids) for ids, _ in rows)
    ids_BS = torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows])
    learnt_BS = torch.tensor([learnt + [False] * (longest - len(ids)) for ids, learnt in rows])
    real_BS = torch.tensor([[True] * len(ids) + [False] * (longest - len(ids)) for ids, _ in rows])
    return ids_BS, real_BS, learnt_BS


def _say(at: Progress) -> None:
    print(f"{at.seconds:5.0f} s  step {at.step} of {at.steps}  loss {at.loss:.4f}  lr {at.lr:.1e}", flush=True)


def make_thinker(folder: Path, *, recipe: Recipe, problems: int = 256, samples: int = 16) -> dict[str, Any]:
    """Train, save in half the bytes, measure what was saved; writes the checkpoint and, beside it, its numbers as JSON."""
    started = time.process_time()
    model, heard = train_thinker(recipe)
    trained = time.process_time()
    make_folder(folder)
    path = folder / file_name(THINKER)
    save_gpt(path, model.half(), TOKENS)
    saved = load_model(path).model
    results = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": path.stat().st_size,
        "recipe": asdict(recipe) | {"task": TASK, "shares": asdict(Shares()), "alphabet": TOKENS.alphabet},
        "loss": [{"step": at.step, "loss": at.loss} for at in heard],
        "measured": measure_thinker(saved, TOKENS, find_task(TASK), problems=problems, samples=samples),
        "machine": {
            "device": platform.machine(),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "core_seconds_training": round(trained - started),
            "core_seconds_measuring": round(time.process_time() - trained),
        },
    }
    with atomic_write(path.with_suffix(".json")) as handle:
        handle.write((json.dumps(results, ensure_ascii=False) + "\n").encode())
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and its numbers")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="another number than the recipe's")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # as many cores as the recipe was made with: sums in another order are other weights
    results = make_thinker(asked.out, recipe=replace(Recipe(), steps=asked.steps))
    for kind in ("capped", "forced"):
        for row in results["measured"][kind]:
            print(f"{kind} at {row['budget']:3d}: {row['accuracy']['value']:.3f}, {row['tokens']:.0f} tokens")


if __name__ == "__main__":
    main()
