"""Completions that are imitated beside the policy gradient: the base model's own right ones, and rare right ones of earlier steps.

    L += coef · Σ −ln π(y | q) / tokens of the update, over `rows` completions drawn from those that are kept

As a completion with an advantage of `coef` would be: `training.update.Taught`. It is supervised: no ratio, hence none to clip,
however old a completion is. Every row is one more row of training, and no rollout. With `coef` 0 nothing is drawn and nothing
learnt: the run is that without it, bit for bit. Kept completions are part of the checkpoint; draws follow from seed and step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from equipoise.base import Finish, Problem
from equipoise.errors import UsageError
from equipoise.models.decoding import seed_of
from equipoise.models.generate import pad_left
from equipoise.models.language_model import Tokens
from equipoise.models.samples import Samples
from equipoise.shaping.bounds import check_state
from equipoise.training.collect import Batch
from equipoise.training.update import Taught

Kept = tuple[str, list[int], list[int]]  # id of the problem, tokens of its prompt, tokens of the completion


class Shelf:
    """Right completions that are kept, and some of them for a step. What is `kept` and when: the two below."""

    name = "shelf"

    def __init__(self, *, rows: int, coef: float) -> None:
        if rows < 1 or not coef >= 0:
            raise UsageError(f"{self.name} needs rows >= 1 and coef >= 0, found rows={rows}, coef={coef:g}")
        self.rows, self.coef = rows, coef
        self.kept: list[Kept] = []

    def lesson(self, step: int, *, seed: int, tokens: Tokens, device: torch.device) -> Taught | None:
        """`rows` of them, each at most once; None where there is none, or nothing is asked for."""
        if not (self.coef and self.kept):
            return None
        order = np.random.default_rng(seed_of(seed, self.name, step)).permutation(len(self.kept))
        some = [self.kept[place] for place in order[: self.rows]]
        return Taught(self.name, as_samples(some, pad=tokens.pad, device=device), self.coef)

    def state(self) -> dict[str, Any]:
        return {"kept": [list(each) for each in self.kept]}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state(self.name, state, self.state())
        self.kept = [(str(name), list(prompt), list(ids)) for name, prompt, ids in state["kept"]]


class BaseAnchor(Shelf):
    """Right completions of the base model, drawn once before the first step on `problems` training problems.

    On them cross-entropy is, but for a constant, the forward KL of the policy from the base model among its right completions,
    each as often as it was drawn: mass that the policy takes away from what the base could solve costs −ln of what is left. With
    `once`, every text of a problem counts once, so that rare solutions weigh as much as common ones. Ours.
    """

    name = "base_anchor"

    def __init__(self, *, problems: int = 1024, rows: int = 64, coef: float = 0.5, once: bool = False) -> None:
        super().__init__(rows=rows, coef=coef)
        if problems < 1:
            raise UsageError(f"base_anchor needs problems >= 1, found {problems}")
        self.problems, self.once = problems, once
        self.drawn = self.tokens_drawn = 0  # rollouts of this process's collection, for the log

    def collect(self, posed: Sequence[Problem], sample: Callable[[list[Problem]], Batch], *, most: int) -> None:
        """Draw, `most` problems at a time, and keep what is right."""
        for first in range(0, len(posed), most):
            batch = sample(list(posed[first : first + most]))
            self.drawn += len(batch.completions)
            self.tokens_drawn += int(batch.samples.mask_BT.sum())
            right = right_rows(batch, most_rate=1.0)
            self.kept += unseen(right, self.kept) if self.once else right


class RareReplay(Shelf):
    """Right completions of problems of which at most `most_rate` of a group was right, the newest `size` of them, each text once.

    They are replayed in the steps after the one that drew them. With `most_rate` 1 every right completion is kept. Ours.
    """

    name = "rare_replay"

    def __init__(self, *, most_rate: float = 0.25, size: int = 2048, rows: int = 64, coef: float = 0.5) -> None:
        super().__init__(rows=rows, coef=coef)
        if not 0 < most_rate <= 1 or size < 1:
            raise UsageError(
                f"rare_replay needs 0 < most_rate <= 1 and size >= 1, found most_rate={most_rate:g}, size={size}"
            )
        self.most_rate, self.size = most_rate, size

    def observe(self, batch: Batch) -> None:
        """What a step drew. Call it after `lesson`: nothing is replayed in its own step."""
        self.kept += unseen(right_rows(batch, most_rate=self.most_rate), self.kept)
        del self.kept[: -self.size]


def right_rows(batch: Batch, *, most_rate: float) -> list[Kept]:
    """Right completions of the problems with at most this share of right ones among those that were judged."""
    each = batch.answers_PG.shape[1]
    rare_P = batch.right_P <= most_rate * batch.drawn_P
    prompt_B = batch.samples.prompt_B.tolist()
    prompts = [
        [token for token, real in zip(ids, mask, strict=True) if real]
        for ids, mask in zip(batch.samples.prompt_ids_PL.tolist(), batch.samples.prompt_mask_PL.tolist(), strict=True)
    ]
    return [
        (batch.problems[row // each].id, prompts[prompt_B[row]], list(completion.token_ids or ()))
        for row, (completion, grade) in enumerate(zip(batch.completions, batch.grades, strict=True))
        if grade.correct and rare_P[row // each]
    ]


def unseen(found: Sequence[Kept], kept: Sequence[Kept]) -> list[Kept]:
    """Those of other problems or texts than what is kept, each once, in their order."""
    seen = {(name, tuple(ids)) for name, _, ids in kept}
    new: list[Kept] = []
    for each in found:
        key = (each[0], tuple(each[2]))
        if key not in seen:
            seen.add(key)
            new.append(each)
    return new


def as_samples(kept: Sequence[Kept], *, pad: int, device: torch.device) -> Samples:
    """Kept completions as the rows of an update. Their log-probs when they were drawn are not known: 0 stands there, unread."""
    ids_PL, mask_PL = pad_left(
        [prompt for _, prompt, _ in kept], max(len(p) for _, p, _ in kept), pad=pad, device=device
    )
    width = max(len(ids) for _, _, ids in kept)
    ids_BT = torch.tensor([[*ids, *[pad] * (width - len(ids))] for _, _, ids in kept], device=device)
    lengths_B = torch.tensor([len(ids) for _, _, ids in kept], device=device)
    mask_BT = torch.arange(width, device=device) < lengths_B[:, None]
    zeros_BT = torch.zeros(ids_BT.shape, device=device)
    prompt_B, finish = torch.arange(len(kept), device=device), tuple[Finish, ...](["stop"] * len(kept))
    return Samples(ids_PL, mask_PL, prompt_B, ids_BT, mask_BT, zeros_BT, zeros_BT, finish)
