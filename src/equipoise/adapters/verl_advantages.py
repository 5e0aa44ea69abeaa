"""Our advantages under verl 0.9's signature of an estimator. Axes: B rows, P groups, G completions each, T tokens.

| verl | here |
| --- | --- |
| `token_level_rewards`, summed over tokens (a KL in the reward included) | reward_PG, and correct_PG for passk_training |
| `index`, the prompt's uid | the group |
| `response_mask` | the tokens that get the advantage |

verl hands an estimator neither texts nor answers, entropies or log-probs. Of an agent loop that returns several outputs per
session every output is a row of its group; only verl's literal `grpo` looks at the last one alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.adapters.group_rows import advantage_of_rows
from equipoise.adapters.verl_settings import estimator_settings
from equipoise.catalogue.base import Method
from equipoise.catalogue.build import build
from equipoise.errors import UsageError

Estimator = Callable[..., tuple[Tensor, Tensor]]


def advantage_estimator(method: Method) -> Estimator:
    """The method as an estimator that `register_adv_est` takes: advantages and returns, both (B, T)."""
    call = build(method.name)

    def estimate(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: np.ndarray | None = None,
        config: Any = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        if index is None:
            raise UsageError(
                f"equipoise_{method.name} compares completions of one prompt, and verl passed no uid to tell them by"
            )
        with torch.no_grad():
            rewards_B = token_level_rewards.sum(dim=-1)
            adv_B = advantage_of_rows(
                partial(call, **estimator_settings(method)), rewards_B.double().cpu().numpy(), list(index)
            )
            spread_B = torch.as_tensor(adv_B, dtype=rewards_B.dtype, device=rewards_B.device)
            adv_BT = spread_B[:, None] * response_mask
        return adv_BT, adv_BT

    estimate.__name__ = f"equipoise_{method.name}"
    estimate.__doc__ = f"{method.about}: {method.equation} ({method.link})"
    return estimate
