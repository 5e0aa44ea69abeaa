"""Which tokens a loss moves. Two losses can have equal values and move different tokens. Axes: B completions, T tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.objectives.batch import TokenBatch

Loss = Callable[..., Tensor]  # a TokenBatch → the scalar loss; an Objective is one
LEAVES = ("logp_BT", "entropy_BT", "ref_kl_BT")


@dataclass(frozen=True, slots=True)
class Influence:
    """The loss differentiated by what the model gives for each token; None where the batch does not have that."""

    logp_BT: Tensor  # dL/d ln pi(a_t): below 0 the token is made likelier
    entropy_BT: Tensor | None  # dL/dH_t
    ref_kl_BT: Tensor | None  # dL/d KL_t, of an exact KL to the reference


def influence(loss: Loss, batch: TokenBatch, **how: Any) -> Influence:
    """dL/dlogp, dL/dH and dL/dKL on detached leaves: no model is needed, and its parameters get no gradient.

    `how` goes to the loss: `settings` and `chosen` of an `Objective`.
    """
    leaves = {name: t.detach().clone().requires_grad_() for name in LEAVES if (t := getattr(batch, name)) is not None}
    with torch.enable_grad():
        value = loss(replace(batch.detached(), **leaves), **how)
    if value.requires_grad:
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    else:  # it reads none of them
        found = tuple(map(torch.zeros_like, leaves.values()))
    by_name = dict(zip(leaves, found, strict=True))
    return Influence(by_name["logp_BT"], by_name.get("entropy_BT"), by_name.get("ref_kl_BT"))


def moved(a: Influence, b: Influence, *, tolerance: float = 0.0) -> Tensor:
    """(B, T) bool: the tokens that two losses move differently, by more than `tolerance` in any of the derivatives."""
    moved_BT = torch.zeros_like(a.logp_BT, dtype=torch.bool)
    for name in LEAVES:
        one, other = getattr(a, name), getattr(b, name)
        if one is not None and other is not None:
            moved_BT |= (one - other).abs() > tolerance
    return moved_BT
