"""Completions that are imitated beside the policy gradient: the base model's own right ones, and rare right ones of earlier steps.

    L += coef · Σ −ln π(y | q) / tokens of the update, over `rows` completions drawn from those that are kept

As a completion with an advantage of `coef` would be: `training.update.Taught`. Every row is one more row of training, and no
rollout. With `coef` 0 nothing is drawn and nothing learnt: the run is that without it, bit for bit. Kept completions
(`shaping.shelf`) are part of the checkpoint; draws follow from seed and step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from equipoise.base import Finish, Problem
from equipoise.models.decoding import seed_of
from equipoise.models.generate import pad_left
from equipoise.models.language_model import Tokens
from equipoise.models.samples import Samples
from equipoise.shaping.shelf import BaseAnchor, Kept, Shelf, rare_right
from equipoise.training.collect import Batch
from equipoise.training.update import Taught


def collect_anchor(
    anchor: BaseAnchor, posed: Sequence[Problem], sample: Callable[[list[Problem]], Batch], *, most: int
) -> None:
    """Draw from the base model, `most` problems at a time, and keep what is right."""
    for first in range(0, len(posed), most):
        batch = sample(list(posed[first : first + most]))
        anchor.drawn += len(batch.completions)
        anchor.tokens_drawn += int(batch.samples.mask_BT.sum())
        anchor.keep(right_rows(batch, most_rate=1.0))


def lesson_of(shelf: Shelf, step: int, *, seed: int, tokens: Tokens, device: torch.device) -> Taught | None:
    """What a step imitates of what is kept; None where that is nothing."""
    some = shelf.draw(seed_of(seed, shelf.name, step))
    return Taught(shelf.name, as_samples(some, pad=tokens.pad, device=device), shelf.coef) if some else None


def right_rows(batch: Batch, *, most_rate: float) -> list[Kept]:
    """Right completions of the problems with at most this share of right ones among those that were judged."""
    assert batch.groups.correct_PG is not None
    each = batch.answers_PG.shape[1]
    rare_B = rare_right(batch.groups.correct_PG, most_rate=most_rate).ravel()
    prompt_B = batch.samples.prompt_B.tolist()
    prompts = [
        [token for token, real in zip(ids, mask, strict=True) if real]
        for ids, mask in zip(batch.samples.prompt_ids_PL.tolist(), batch.samples.prompt_mask_PL.tolist(), strict=True)
    ]
    return [
        (batch.problems[row // each].id, prompts[prompt_B[row]], list(completion.token_ids or ()))
        for row, completion in enumerate(batch.completions)
        if rare_B[row]
    ]


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
