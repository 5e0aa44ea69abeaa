"""Batches of different problems as one. Axes: P problems, G completions each, B = P · G."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from equipoise.models.samples import Samples
from equipoise.rollouts.groups import Groups
from equipoise.training.collect import Batch


def join_batches(parts: Sequence[Batch], *, pad_token: int) -> Batch:
    """What one draw of all their problems would have given; every part has as many completions of a problem."""
    if len(parts) == 1:
        return parts[0]
    answers_PG = np.concatenate([part.answers_PG for part in parts])
    return Batch(
        [problem for part in parts for problem in part.problems],
        [completion for part in parts for completion in part.completions],
        [grade for part in parts for grade in part.grades],
        _join_groups([part.groups for part in parts], answers_PG),
        answers_PG,
        join_samples([part.samples for part in parts], pad_token=pad_token),
    )


def join_samples(parts: Sequence[Samples], *, pad_token: int) -> Samples:
    """Completions of different prompts, padded to the widest part: prompts on the left, completions on the right."""
    firsts = np.cumsum([0, *(len(part.prompt_ids_PL) for part in parts)]).tolist()

    def stacked(tensors: list[Tensor], *, value: float = 0, left: bool = False) -> Tensor:
        widest = max(tensor.shape[1] for tensor in tensors)
        short = [widest - tensor.shape[1] for tensor in tensors]
        return torch.cat([pad(t, (n, 0) if left else (0, n), value=value) for t, n in zip(tensors, short, strict=True)])

    return Samples(
        stacked([part.prompt_ids_PL for part in parts], value=pad_token, left=True),
        stacked([part.prompt_mask_PL for part in parts], left=True),
        torch.cat([part.prompt_B + first for part, first in zip(parts, firsts, strict=False)]),
        stacked([part.ids_BT for part in parts], value=pad_token),
        stacked([part.mask_BT for part in parts]),
        stacked([part.logp_BT for part in parts]),
        stacked([part.entropy_BT for part in parts]),
        tuple(finish for part in parts for finish in part.finish),
    )


def _join_groups(parts: Sequence[Groups], answers_PG: np.ndarray) -> Groups:
    names = [field.name for field in fields(Groups) if field.name != "prompt_ids_P"]
    joined: dict[str, Any] = {"prompt_ids_P": tuple(name for part in parts for name in part.prompt_ids_P)}
    for name in names:
        values = [getattr(part, name) for part in parts]
        joined[name] = None if any(value is None for value in values) else np.concatenate(values)
    # Codes and rows count within a part.
    code_of: dict[str, int] = {}
    codes = [-1 if text is None else code_of.setdefault(text, len(code_of)) for text in answers_PG.ravel()]
    joined["answer_PG"] = np.array(codes).reshape(answers_PG.shape)
    joined["row_PG"] = np.arange(answers_PG.size).reshape(answers_PG.shape)
    return Groups(**joined)
